// SPDX-License-Identifier: MIT
#include "support/compared_locks.hpp"

#include <mutex>

#include "support/pvx_lock.hpp"
#include "support/reference_locks.hpp"

#if PVX_BENCH_ABSL
#include <absl/synchronization/mutex.h>
#endif
#if PVX_BENCH_CK
#include "support/ck_locks.h"
#endif
#if PVX_BENCH_NSYNC
#include <nsync.h>
#endif
#if PVX_BENCH_TBB
#include <tbb/queuing_mutex.h>
#include <tbb/spin_mutex.h>
#endif

#if PVX_BENCH_CK
void ck_locks_wait() { pvx_bench::spin_wait(); }
#endif

namespace pvx_bench {
namespace {

#if PVX_BENCH_ABSL
class absl_mutex {
public:
    void lock() { mutex_.Lock(); }
    void unlock() { mutex_.Unlock(); }

private:
    alignas(64) absl::Mutex mutex_;
};
#endif

#if PVX_BENCH_CK
class ck_ticket {
public:
    void lock() { ck_ticket_lock(&lock_); }
    void unlock() { ck_ticket_unlock(&lock_); }

private:
    ck_line lock_{};
};

class ck_mcs {
public:
    explicit ck_mcs(uint32_t threads) : nodes_(threads) {}
    void lock(uint32_t thread) { ck_mcs_lock(&tail_, &nodes_[thread]); }
    void unlock(uint32_t thread) { ck_mcs_unlock(&tail_, &nodes_[thread]); }

private:
    ck_line tail_{};
    std::vector<ck_line> nodes_;
};
#endif

#if PVX_BENCH_NSYNC
class nsync_mutex {
public:
    void lock() { nsync::nsync_mu_lock(&mutex_); }
    void unlock() { nsync::nsync_mu_unlock(&mutex_); }

private:
    alignas(64) nsync::nsync_mu mutex_{};  // all zero: free
};
#endif

#if PVX_BENCH_TBB
class tbb_queuing_mutex {
public:
    explicit tbb_queuing_mutex(uint32_t threads) : nodes_(threads) {}
    void lock(uint32_t thread) { nodes_[thread].acquire(mutex_); }
    void unlock(uint32_t thread) { nodes_[thread].release(); }

private:
    struct alignas(64) node : tbb::queuing_mutex::scoped_lock {};
    std::vector<node> nodes_;
    alignas(64) tbb::queuing_mutex mutex_;
};
#endif

}  // namespace

std::vector<named_lock> compared_locks() {
    return {
        lock_named<pvx_lock<>>("pvx, paravirtual", lock_mode::paravirtual),
            lock_named<pvx_lock<>>("pvx, native", lock_mode::native), lock_named<test_and_set_lock>("test-and-set"),
            lock_named<ticket_lock>("ticket"), lock_named<posix_spin_lock>("pthread_spin"),
            lock_named<std::mutex>("std::mutex"),
#if PVX_BENCH_NSYNC
            lock_named<nsync_mutex>("nsync_mu"),
#endif
#if PVX_BENCH_ABSL
            lock_named<absl_mutex>("absl::Mutex"),
#endif
#if PVX_BENCH_TBB
            lock_named<tbb::spin_mutex>("tbb::spin_mutex"), lock_named<tbb_queuing_mutex>("tbb::queuing_mutex"),
#endif
#if PVX_BENCH_CK
            lock_named<ck_ticket>("ck ticket"), lock_named<ck_mcs>("ck MCS"),
#endif
    };
}

named_lock tuned_lock(lock_tuning const& tuning) {
    return lock_named<pvx_lock<>>("pvx " + std::to_string(tuning.spins) + '/' + std::to_string(tuning.steals) + '/' +
                                      std::to_string(tuning.head_polls),
                                  lock_mode::paravirtual, tuning);
}

std::vector<std::string> absent_locks() {
    std::vector<std::string> absent;
    if (!PVX_BENCH_NSYNC) absent.emplace_back("nsync: libnsync-dev");
    if (!PVX_BENCH_ABSL) absent.emplace_back("Abseil: libabsl-dev");
    if (!PVX_BENCH_TBB) absent.emplace_back("oneTBB: libtbb-dev");
    if (!PVX_BENCH_CK) absent.emplace_back("Concurrency Kit: libck-dev");
    return absent;
}

}  // namespace pvx_bench
