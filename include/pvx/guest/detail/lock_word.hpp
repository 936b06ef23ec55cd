// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The word of a queued spin lock: (tail, pending, locked), all zero when free. Guest, all CPUs; numbers only.
///
///     31 .. 18   CPU of the last in the queue, plus one; 0: nobody queues
///     17 .. 16   which of that CPU's four nodes
///     15 ..  8   pending: 1 while somebody who is not queued, or the head of the queue, claims to be next
///      7 ..  0   locked: 0 free, 1 held, 3 held and the unlocker must kick somebody

#include <pvx/base/bits.hpp>
#include <pvx/base/types.hpp>

namespace pvx::inline v0::guest::detail {

inline constexpr uint32_t lock_held = 1;
inline constexpr uint32_t lock_slow = 3;
inline constexpr uint32_t lock_held_mask = bit_range<uint32_t>(0, 7);
inline constexpr uint32_t lock_pending = bit<uint32_t>(8);
inline constexpr uint32_t lock_tail_mask = bit_range<uint32_t>(16, 31);

/// Nodes of one CPU: one for each context that can interrupt another (task, soft interrupt, interrupt, NMI).
inline constexpr uint32_t nodes_per_cpu = 4;
/// CPUs that the tail can name: indices 0 .. max_lock_cpus - 1.
inline constexpr uint32_t max_lock_cpus = (1u << 14) - 1;

/// A node, as the tail of a word names it; 0 names none.
constexpr uint32_t encode_tail(cpu_index cpu, uint32_t node) { return (cpu.value + 1) << 18 | node << 16; }
/// Index of the node among those of all CPUs. \pre tail has a CPU
constexpr uint32_t node_index(uint32_t tail) { return (tail >> 16) - nodes_per_cpu; }
/// The CPU whose node it is. \pre tail has a CPU
constexpr cpu_index tail_cpu(uint32_t tail) { return cpu_index{(tail >> 18) - 1}; }

static_assert(node_index(encode_tail(cpu_index{0}, 0)) == 0);
static_assert(node_index(encode_tail(cpu_index{5}, 3)) == 5 * nodes_per_cpu + 3);
static_assert(encode_tail(cpu_index{max_lock_cpus - 1}, 3) == lock_tail_mask);

}  // namespace pvx::inline v0::guest::detail
