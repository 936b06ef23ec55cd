// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// pvx's lock as the harness takes it: threads are its CPUs, and futexes its halt and kick.

#include <pvx/arch/x86_64.hpp>
#include <pvx/guest/qspinlock.hpp>

#include <cstdlib>
#include <initializer_list>
#include <vector>

#include "support/futex_machine.hpp"
#include "support/lock_harness.hpp"

namespace pvx_bench {

using pvx::guest::lock_event;
using pvx::guest::lock_mode;
using pvx::guest::lock_tuning;

/// How often a thread's lock told each event. Lines of its own for each thread, so that counting does not contend.
struct alignas(128) lock_tally {
    uint64_t of[16]{};
};

struct lock_machine : pvx_test::futex_machine<pvx::arch::x86_64> {
    lock_tally* tallies;

    lock_machine(pvx_test::futex_cpus& c, lock_tally* t) : futex_machine(c), tallies(t) {}

    void relax() const { spin_wait(); }
    /// Only waiters and unlockers that kick get here.
    void event(lock_event what) const {
        // Loaded and stored, not added: its thread alone writes it.
        auto const count = ref(tallies[self().value].of[static_cast<size_t>(what)]);
        count.store(count.load(pvx::order::relaxed) + 1, pvx::order::relaxed);
    }
};

template <class Machine = lock_machine>
class pvx_lock {
public:
    explicit pvx_lock(uint32_t threads, lock_mode mode, lock_tuning const& tuning = {})
        : cpus_(threads),
          tallies_(threads),
          nodes_(threads * pvx::guest::detail::nodes_per_cpu),
          entries_(nodes_.size()),
          domain_(Machine{cpus_, tallies_.data()},
                  {nodes_.data(), threads, entries_.data(), static_cast<uint32_t>(entries_.size())}, tuning) {
        if (domain_.go_live(mode) != pvx::status::ok) std::abort();
    }

    void join(uint32_t thread) { pvx_test::futex_cpus::become(pvx::cpu_index{thread}); }
    void lock() { domain_.lock(word_); }
    bool try_lock() { return domain_.try_lock(word_); }
    void unlock() { domain_.unlock(word_); }

    uint64_t halts() const { return sum({lock_event::halt_node, lock_event::halt_head}); }
    uint64_t kicks() const { return sum({lock_event::kick, lock_event::kick_early}); }

private:
    // Threads may count meanwhile.
    uint64_t sum(std::initializer_list<lock_event> events) const {
        uint64_t n = 0;
        for (lock_tally const& t : tallies_)
            for (lock_event e : events) n += __atomic_load_n(&t.of[static_cast<size_t>(e)], __ATOMIC_RELAXED);
        return n;
    }

    pvx_test::futex_cpus cpus_;
    std::vector<lock_tally> tallies_;
    std::vector<pvx::guest::detail::mcs_node<Machine>> nodes_;
    std::vector<pvx::guest::detail::wait_entry<Machine>> entries_;
    // A kernel's domain is read, and hardly ever written: not in the line of a lock.
    alignas(64) pvx::guest::lock_domain<Machine> domain_;
    alignas(64) uint32_t word_{};
};

}  // namespace pvx_bench
