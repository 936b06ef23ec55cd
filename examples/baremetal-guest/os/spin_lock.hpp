// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// A test-and-set lock for the OS itself. (Locks that are worth something in a VM are in pvx.)

#include "atomics.hpp"
#include "cpu_ops.hpp"

namespace os {

class spin_lock {
public:
    constexpr spin_lock() = default;

    void lock() {
        // order: acquire [os-spin] what the previous owner wrote; pairs with [os-spin] in unlock()
        while (atomics.ref(word_).exchange(1u, order::acquire) != 0) arch::pause();
    }
    void unlock() {
        // order: release [os-spin]; pairs with [os-spin] in lock()
        atomics.ref(word_).store(0u, order::release);
    }

private:
    uint32_t word_ = 0;
};

/// Holds a lock for a scope, with interrupts off.
class spin_guard {
public:
    explicit spin_guard(spin_lock& lock) : lock_(lock) { lock_.lock(); }
    ~spin_guard() { lock_.unlock(); }
    spin_guard(spin_guard const&) = delete;
    spin_guard& operator=(spin_guard const&) = delete;

private:
    irq_guard irqs_;
    spin_lock& lock_;
};

}  // namespace os
