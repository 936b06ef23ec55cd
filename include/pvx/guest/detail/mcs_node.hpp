// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// A waiter in the queue of a lock. A node belongs to one context of one CPU from the moment it is taken until the
/// lock is handed on, and is then used for another lock: it is not in the lock, so the lock's memory may go.

#include <pvx/base/atomics.hpp>

namespace pvx::inline v0::guest::detail {

/// What a waiter does. Its own CPU writes it, except that the owner in front of it changes halted.
namespace waiter {
inline constexpr uint32_t running = 0;
inline constexpr uint32_t halted = 1;  ///< May be halted, and needs to be woken.
inline constexpr uint32_t hashed = 2;  ///< Is in the wait table, so the unlocker wakes it.
}  // namespace waiter

template <class Machine>
struct alignas(64) mcs_node {
    template <class T>
    using cell = typename Machine::template cell<T>;

    cell<uint32_t> next{};    ///< The node behind, as a tail names it; 0: not known yet.
    cell<uint32_t> turn{};    ///< 1: this node is the head of the queue.
    cell<uint32_t> state{};   ///< See `waiter`.
    cell<uint32_t> in_use{};  ///< Of a CPU's first node: how many of its nodes are taken.
};

}  // namespace pvx::inline v0::guest::detail
