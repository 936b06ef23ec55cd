// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// What KVM offers a guest: the signature, the feature bits and the hints of its CPUID leaves. [kvm-cpuid]

#include <pvx/abi/cpuid.hpp>

namespace pvx::inline v0::abi {

/// The signature at the base leaf. Unlike a vendor's name it ends in three zeros.
inline constexpr cpuid_name kvm_signature = make_cpuid_name("KVMKVMKVM");

/// Offset of the features leaf from the base: EAX has the features, EDX the hints.
inline constexpr uint32_t kvm_features_offset = 1;

/// A feature: the number of its bit in EAX of the features leaf.
enum class kvm_feature : uint8_t {
    clocksource = 0,              ///< Clock MSRs 0x11 and 0x12.
    nop_io_delay = 1,             ///< No delay needed on port I/O.
    mmu_op = 2,                   ///< Withdrawn.
    clocksource2 = 3,             ///< Clock MSRs 0x4b564d00 and 0x4b564d01.
    async_pf = 4,                 ///< Asynchronous page faults.
    steal_time = 5,               ///< Steal-time page.
    pv_eoi = 6,                   ///< End of interrupt without an exit.
    pv_unhalt = 7,                ///< The kick hypercall wakes a halted vCPU.
    pv_tlb_flush = 9,             ///< The host flushes a preempted vCPU before it runs again.
    async_pf_vmexit = 10,         ///< Asynchronous page faults as exits of a nested guest.
    pv_send_ipi = 11,             ///< IPIs to many CPUs in one hypercall.
    poll_control = 12,            ///< The guest may turn the host's halt polling off.
    pv_sched_yield = 13,          ///< Directed yield by hypercall.
    async_pf_int = 14,            ///< Asynchronous page-fault completion by interrupt.
    msi_ext_dest_id = 15,         ///< 15-bit APIC ids in MSI addresses.
    hc_map_gpa_range = 16,        ///< Hypercall that changes the encryption state of memory.
    migration_control = 17,       ///< The guest says when it may be migrated.
    clocksource_stable_bit = 24,  ///< The clock's stable flag means something.
};

/// The feature's bit as a mask over EAX.
constexpr uint32_t mask(kvm_feature f) { return bit<uint32_t>(static_cast<uint8_t>(f)); }

/// The feature's name, for reports; a null pointer for a bit that has none.
constexpr const char* to_string(kvm_feature f) {
    switch (f) {
        case kvm_feature::clocksource: return "clocksource";
        case kvm_feature::nop_io_delay: return "nop_io_delay";
        case kvm_feature::mmu_op: return "mmu_op";
        case kvm_feature::clocksource2: return "clocksource2";
        case kvm_feature::async_pf: return "async_pf";
        case kvm_feature::steal_time: return "steal_time";
        case kvm_feature::pv_eoi: return "pv_eoi";
        case kvm_feature::pv_unhalt: return "pv_unhalt";
        case kvm_feature::pv_tlb_flush: return "pv_tlb_flush";
        case kvm_feature::async_pf_vmexit: return "async_pf_vmexit";
        case kvm_feature::pv_send_ipi: return "pv_send_ipi";
        case kvm_feature::poll_control: return "poll_control";
        case kvm_feature::pv_sched_yield: return "pv_sched_yield";
        case kvm_feature::async_pf_int: return "async_pf_int";
        case kvm_feature::msi_ext_dest_id: return "msi_ext_dest_id";
        case kvm_feature::hc_map_gpa_range: return "hc_map_gpa_range";
        case kvm_feature::migration_control: return "migration_control";
        case kvm_feature::clocksource_stable_bit: return "clocksource_stable_bit";
    }
    return nullptr;
}

/// A hint: the number of its bit in EDX of the features leaf.
enum class kvm_hint : uint8_t {
    realtime = 0,  ///< vCPUs are never preempted for an unlimited time.
};

/// The hint's bit as a mask over EDX.
constexpr uint32_t mask(kvm_hint h) { return bit<uint32_t>(static_cast<uint8_t>(h)); }

}  // namespace pvx::inline v0::abi
