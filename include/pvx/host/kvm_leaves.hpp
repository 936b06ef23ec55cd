// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// KVM's CPUID leaves, made of what the host really does: a guest believes what stands there, and one that is offered a
/// kick which cannot reach it waits for ever. [kvm-cpuid]

#include <pvx/abi/kvm_features.hpp>
#include <pvx/host/cpuid_table.hpp>

namespace pvx::inline v0::host {

/// What a host does for a vCPU.
struct kvm_host {
    uint32_t features;  ///< What its code can do, as bits of abi::kvm_feature.
    bool hlt_exits;     ///< HLT exits, so that the host has a halt that a kick can end.
    bool apic_map;      ///< The host, not user space, has the APIC: it finds vCPUs by their ids and interrupts them.
    bool dedicated;     ///< vCPUs are never preempted for an unlimited time.
};

/// What of it is offered, as bits of abi::kvm_feature.
constexpr uint32_t kvm_features_offered(kvm_host const& host) {
    using enum abi::kvm_feature;
    uint32_t without = 0;
    if (!host.hlt_exits) without |= mask(pv_unhalt);
    if (!host.apic_map)
        without |= mask(pv_unhalt) | mask(pv_send_ipi) | mask(pv_sched_yield) |                 // name an APIC id
                   mask(pv_eoi) | mask(async_pf) | mask(async_pf_int) | mask(async_pf_vmexit);  // are of the APIC
    // Bits of the MSR that enables asynchronous page faults.
    if ((host.features & mask(async_pf)) == 0) without |= mask(async_pf_int) | mask(async_pf_vmexit);
    // Flushes are left in the steal-time page.
    if ((host.features & mask(steal_time)) == 0) without |= mask(pv_tlb_flush);
    return host.features & ~without;
}

/// The two leaves.
struct kvm_leaves {
    cpuid_entry entries[2];
};

/// The leaves, for the `place`th interface of this hypervisor: 0 is at 0x40000000, 1 at 0x40000100, as behind
/// Hyper-V's. \pre the guest's entry for leaf 1 has abi::cpuid_feature::hypervisor; without it no guest looks here
constexpr kvm_leaves make_kvm_leaves(kvm_host const& host, uint8_t place = 0) {
    uint32_t const base = abi::cpuid_leaf::hypervisor_first + place * abi::cpuid_leaf::hypervisor_step;
    uint32_t const features = base + abi::kvm_features_offset;
    auto const& [ebx, ecx, edx] = abi::kvm_signature.words;
    uint32_t const hints = host.dedicated ? mask(abi::kvm_hint::realtime) : 0;
    return {{{base, 0, {features, ebx, ecx, edx}}, {features, 0, {kvm_features_offered(host), 0, 0, hints}}}};
}

}  // namespace pvx::inline v0::host
