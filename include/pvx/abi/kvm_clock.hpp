// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The KVM clock's records, written by the host and read by the guest, and their arithmetic. [kvm-msr]

#include <stddef.h>

#include <pvx/base/bits.hpp>
#include <pvx/base/types.hpp>

namespace pvx::inline v0::abi {

/// The clock of one vCPU. Packed by the ABI to four-byte alignment; pvx asks for more, so that each field is reached by
/// one aligned access and the record never crosses a cache line.
struct alignas(32) pvclock_vcpu_time_info {
    uint32_t version;  ///< Sequence counter, odd while the host writes.
    uint32_t pad0;
    uint64_t tsc_timestamp;      ///< TSC at which system_time was taken.
    uint64_t system_time;        ///< Nanoseconds at tsc_timestamp.
    uint32_t tsc_to_system_mul;  ///< Nanoseconds per shifted tick, as a 32-bit fraction.
    uint8_t tsc_shift;           ///< Shift of the ticks before that, as int8_t: left if positive, right if negative.
    uint8_t flags;               ///< pvclock_tsc_stable, pvclock_guest_stopped.
    uint8_t pad[2];
};
static_assert(sizeof(pvclock_vcpu_time_info) == 32);
static_assert(offsetof(pvclock_vcpu_time_info, version) == 0);
static_assert(offsetof(pvclock_vcpu_time_info, pad0) == 4);
static_assert(offsetof(pvclock_vcpu_time_info, tsc_timestamp) == 8);
static_assert(offsetof(pvclock_vcpu_time_info, system_time) == 16);
static_assert(offsetof(pvclock_vcpu_time_info, tsc_to_system_mul) == 24);
static_assert(offsetof(pvclock_vcpu_time_info, tsc_shift) == 28);
static_assert(offsetof(pvclock_vcpu_time_info, flags) == 29);
static_assert(offsetof(pvclock_vcpu_time_info, pad) == 30);

/// Flags of the record.
inline constexpr uint8_t pvclock_tsc_stable = bit<uint8_t>(0);     ///< All vCPUs' clocks agree.
inline constexpr uint8_t pvclock_guest_stopped = bit<uint8_t>(1);  ///< The host had paused the guest.

/// Wall-clock time at the moment when the vCPU clock was zero.
struct alignas(4) pvclock_wall_clock {
    uint32_t version;  ///< Sequence counter, odd while the host writes.
    uint32_t sec;      ///< Seconds since 1970, unsigned: good until 2106.
    uint32_t nsec;
};
static_assert(sizeof(pvclock_wall_clock) == 12 && alignof(pvclock_wall_clock) == 4);
static_assert(offsetof(pvclock_wall_clock, version) == 0);
static_assert(offsetof(pvclock_wall_clock, sec) == 4);
static_assert(offsetof(pvclock_wall_clock, nsec) == 8);

/// Result of the clock-pairing hypercall.
struct alignas(8) kvm_clock_pairing {
    int64_t sec;
    int64_t nsec;
    uint64_t tsc;
    uint32_t flags;
    uint32_t pad[9];
};
static_assert(sizeof(kvm_clock_pairing) == 64 && alignof(kvm_clock_pairing) == 8);
static_assert(offsetof(kvm_clock_pairing, sec) == 0);
static_assert(offsetof(kvm_clock_pairing, nsec) == 8);
static_assert(offsetof(kvm_clock_pairing, tsc) == 16);
static_assert(offsetof(kvm_clock_pairing, flags) == 24);
static_assert(offsetof(kvm_clock_pairing, pad) == 28);

/// Ticks to nanoseconds by the record's fraction: ((ticks << shift) * mul) >> 32. A shift beyond the word, which only a
/// broken host writes, counts modulo 64. The product's 96 bits are taken in two halves, exactly.
PVX_ENTRY_INLINE constexpr nanoseconds pvclock_scale(tsc_ticks delta, uint32_t mul, int8_t shift) {
    uint64_t const ticks = shift >= 0 ? delta.value << (static_cast<uint32_t>(shift) & 63)
                                      : delta.value >> (static_cast<uint32_t>(-shift) & 63);
    uint64_t const high = (ticks >> 32) * mul;
    uint64_t const low = ((ticks & 0xffffffff) * mul) >> 32;
    return nanoseconds{high + low};
}

/// The TSC's rate in kHz that the fraction stands for; 0 if the record was not filled in.
constexpr uint64_t pvclock_tsc_khz(uint32_t mul, int8_t shift) {
    if (mul == 0) return 0;
    uint64_t const khz = (uint64_t{1000000} << 32) / mul;
    return shift < 0 ? khz << (static_cast<uint32_t>(-shift) & 63) : khz >> (static_cast<uint32_t>(shift) & 63);
}

}  // namespace pvx::inline v0::abi
