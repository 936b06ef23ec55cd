// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The steal-time page: one record per vCPU, written by the host and read by the guest, but for one bit that the guest
/// sets. [kvm-msr]

#include <stddef.h>

#include <pvx/base/bits.hpp>

namespace pvx::inline v0::abi {

/// The record. The guest zeroes it before it gives its address to the host.
struct alignas(64) kvm_steal_time {
    uint64_t steal;     ///< Nanoseconds in which the vCPU wanted to run and did not; excludes idle time.
    uint32_t version;   ///< Sequence counter, odd while the host writes.
    uint32_t flags;     ///< Zero.
    uint8_t preempted;  ///< steal_preempted, steal_flush_tlb; not behind the counter.
    uint8_t pad8[3];
    uint32_t pad32[11];
};
static_assert(sizeof(kvm_steal_time) == 64);
static_assert(alignof(kvm_steal_time) == 64);
static_assert(offsetof(kvm_steal_time, steal) == 0);
static_assert(offsetof(kvm_steal_time, version) == 8);
static_assert(offsetof(kvm_steal_time, flags) == 12);
static_assert(offsetof(kvm_steal_time, preempted) == 16);
static_assert(offsetof(kvm_steal_time, pad8) == 17);
static_assert(offsetof(kvm_steal_time, pad32) == 20);

/// Bits of `preempted`. Legal values are 0, P and P|F; F alone never is.
inline constexpr uint8_t steal_preempted = bit<uint8_t>(0);  ///< P: set by the host while the vCPU is descheduled.
inline constexpr uint8_t steal_flush_tlb = bit<uint8_t>(1);  ///< F: set by a guest CPU; the host flushes at load.

}  // namespace pvx::inline v0::abi
