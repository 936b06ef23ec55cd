// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Locks to compare with. Each spins as a kernel's would, without asking the scheduler for anything.

#include <pthread.h>

#include <atomic>
#include <cstdint>

#include "support/lock_harness.hpp"

namespace pvx_bench {

class test_and_set_lock {
public:
    void lock() {
        while (taken_.exchange(true, std::memory_order_acquire))
            while (taken_.load(std::memory_order_relaxed)) spin_wait();
    }
    void unlock() { taken_.store(false, std::memory_order_release); }

private:
    alignas(64) std::atomic<bool> taken_{false};
};

class ticket_lock {
public:
    void lock() {
        uint32_t const mine = next_.fetch_add(1, std::memory_order_relaxed);
        while (serving_.load(std::memory_order_acquire) != mine) spin_wait();
    }
    void unlock() { serving_.store(serving_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }

private:
    alignas(64) std::atomic<uint32_t> next_{0};
    alignas(64) std::atomic<uint32_t> serving_{0};
};

/// glibc's. Not told about the end of a round, but nobody queues for it.
class posix_spin_lock {
public:
    posix_spin_lock() { pthread_spin_init(&lock_, PTHREAD_PROCESS_PRIVATE); }
    void lock() { pthread_spin_lock(&lock_); }
    bool try_lock() { return pthread_spin_trylock(&lock_) == 0; }
    void unlock() { pthread_spin_unlock(&lock_); }

private:
    alignas(64) pthread_spinlock_t lock_;
};

}  // namespace pvx_bench
