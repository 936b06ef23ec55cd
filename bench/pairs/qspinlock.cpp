// SPDX-License-Identifier: MIT

/// \file
/// The lock for which nobody contends. Whoever runs these keeps a second thread alive, without which glibc's mutex
/// would leave out its locked instruction: see make_machine_probe().

#include <mutex>

#include "support/operation.hpp"
#include "support/pvx_lock.hpp"
#include "support/reference_locks.hpp"

using namespace pvx_bench;

namespace {

/// Without byte_store_policy.
struct word_machine : lock_machine {
    using lock_machine::lock_machine;
    void store_low_byte() const;
};

pvx_lock<> native{1, lock_mode::native};
pvx_lock<word_machine> native_by_words{1, lock_mode::native};
pvx_lock<> paravirtual{1, lock_mode::paravirtual};
posix_spin_lock posix;
std::mutex mutex;

pvx_lock<> held{1, lock_mode::paravirtual};
posix_spin_lock posix_held;
bool const taken = [] {
    held.lock();
    posix_held.lock();
    return true;
}();

template <auto& Lock>
void lock_and_unlock() {
    Lock.lock();
    Lock.unlock();
}

template <auto& Lock>
void try_lock_and_unlock() {
    if (Lock.try_lock()) Lock.unlock();
}

/// With some nanoseconds of work inside and outside, so that a store may leave the CPU meanwhile, as in a kernel.
template <auto& Lock>
void lock_and_work() {
    static uint64_t value = 1;
    auto const work = [] {
        for (int i = 0; i < 8; ++i) {
            value = value * 0x5851f42d4c957f2d + 1;
            forget(value);
        }
    };
    Lock.lock();
    work();
    Lock.unlock();
    work();
}

bool const native_pair = add_pair(
    "qspinlock: native lock and unlock", "pvx", [] { lock_and_unlock<native>(); }, "pthread_spin",
    [] { lock_and_unlock<posix>(); });
bool const native_store = add_pair(
    "qspinlock: native lock, unlock by a byte store", "byte store", [] { lock_and_unlock<native>(); }, "CAS",
    [] { lock_and_unlock<native_by_words>(); });
bool const native_store_and_work = add_pair(
    "qspinlock: unlock by a byte store, with work", "byte store", [] { lock_and_work<native>(); }, "CAS",
    [] { lock_and_work<native_by_words>(); });
bool const paravirtual_pair = add_pair(
    "qspinlock: paravirtual lock and unlock", "pvx", [] { lock_and_unlock<paravirtual>(); }, "std::mutex",
    [] { lock_and_unlock<mutex>(); });
bool const trying = add_pair(
    "qspinlock: try_lock and unlock", "pvx", [] { try_lock_and_unlock<paravirtual>(); }, "std::mutex",
    [] { try_lock_and_unlock<mutex>(); });
bool const trying_held = add_pair(
    "qspinlock: try_lock of a held lock", "pvx", [] { keep(held.try_lock()); }, "pthread_spin",
    [] { keep(posix_held.try_lock()); });

}  // namespace
