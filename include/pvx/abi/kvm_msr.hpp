// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// KVM's paravirtual MSRs: number, gating feature, and the bits that a host must refuse. [kvm-msr]

#include <pvx/abi/kvm_features.hpp>

namespace pvx::inline v0::abi {

/// One paravirtual MSR.
struct kvm_msr_row {
    uint32_t index;     ///< MSR number.
    kvm_feature gate;   ///< The feature without which the MSR does not exist.
    uint64_t reserved;  ///< Bits that fault if set; 0 where KVM takes any value.
};

namespace kvm_msr {
/// Wall clock at boot, deprecated number: guest-physical address, written once by the host.
inline constexpr kvm_msr_row wall_clock_old{0x11, kvm_feature::clocksource, 0};
/// Per-vCPU clock, deprecated number: guest-physical address | enable.
inline constexpr kvm_msr_row system_time_old{0x12, kvm_feature::clocksource, 0};
/// Wall clock at boot: guest-physical address (4-byte aligned), written once by the host at the WRMSR.
inline constexpr kvm_msr_row wall_clock{0x4b564d00, kvm_feature::clocksource2, 0};
/// Per-vCPU clock: guest-physical address (4-byte aligned) | enable.
inline constexpr kvm_msr_row system_time{0x4b564d01, kvm_feature::clocksource2, 0};
/// Asynchronous page faults: guest-physical address (64-byte aligned) | flags.
inline constexpr kvm_msr_row async_pf_en{0x4b564d02, kvm_feature::async_pf, bit_range<uint64_t>(4, 5)};
/// Steal time: guest-physical address (64-byte aligned) | enable.
inline constexpr kvm_msr_row steal_time{0x4b564d03, kvm_feature::steal_time, bit_range<uint64_t>(1, 5)};
/// End of interrupt without exit: guest-physical address (4-byte aligned) | enable.
inline constexpr kvm_msr_row pv_eoi_en{0x4b564d04, kvm_feature::pv_eoi, bit<uint64_t>(1)};
/// Halt polling in the host: bit 0, set at reset.
inline constexpr kvm_msr_row poll_control{0x4b564d05, kvm_feature::poll_control, bit_range<uint64_t>(1, 63)};
/// Vector of the interrupt that announces an available page.
inline constexpr kvm_msr_row async_pf_int{0x4b564d06, kvm_feature::async_pf_int, bit_range<uint64_t>(8, 63)};
/// Acknowledges that interrupt: bit 0.
inline constexpr kvm_msr_row async_pf_ack{0x4b564d07, kvm_feature::async_pf_int, 0};
/// Ready to be migrated: bit 0.
inline constexpr kvm_msr_row migration_control{0x4b564d08, kvm_feature::migration_control, 0};
}  // namespace kvm_msr

/// The MSR of this number; one of number 0 if KVM has none.
constexpr kvm_msr_row find_kvm_msr(uint32_t index) {
    switch (index) {
        case kvm_msr::wall_clock_old.index: return kvm_msr::wall_clock_old;
        case kvm_msr::system_time_old.index: return kvm_msr::system_time_old;
        case kvm_msr::wall_clock.index: return kvm_msr::wall_clock;
        case kvm_msr::system_time.index: return kvm_msr::system_time;
        case kvm_msr::async_pf_en.index: return kvm_msr::async_pf_en;
        case kvm_msr::steal_time.index: return kvm_msr::steal_time;
        case kvm_msr::pv_eoi_en.index: return kvm_msr::pv_eoi_en;
        case kvm_msr::poll_control.index: return kvm_msr::poll_control;
        case kvm_msr::async_pf_int.index: return kvm_msr::async_pf_int;
        case kvm_msr::async_pf_ack.index: return kvm_msr::async_pf_ack;
        case kvm_msr::migration_control.index: return kvm_msr::migration_control;
        default: return {};
    }
}

/// Bits of async_pf_en beside the address and the enable bit.
namespace async_pf {
inline constexpr uint64_t send_always = bit<uint64_t>(1);   ///< Also in ring 0.
inline constexpr uint64_t as_vmexit = bit<uint64_t>(2);     ///< To the hypervisor in the guest; async_pf_vmexit.
inline constexpr uint64_t as_interrupt = bit<uint64_t>(3);  ///< "Page ready" is an interrupt; async_pf_int.
}  // namespace async_pf

/// Bit 0 of every MSR that carries an address: the record is in use.
inline constexpr uint64_t kvm_msr_enable = bit<uint64_t>(0);

}  // namespace pvx::inline v0::abi
