// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// What the hypervisor and the CPU offer this guest, read from CPUID once. Set-up only: each CPUID may exit.
/// What to make of it is decided in guest/configuration.hpp. [kvm-cpuid]

#include <pvx/abi/kvm_features.hpp>
#include <pvx/abi/proposed.hpp>
#include <pvx/arch/concepts.hpp>

namespace pvx::inline v0::guest {

/// A hypervisor interface that announces itself by a signature.
enum class hypervisor : uint8_t { none, unknown, kvm, hyperv, xen, vmware, bhyve, acrn, tcg, pvx };

/// The interface that a signature stands for; `unknown` for a name that is not in the table.
constexpr hypervisor identify_hypervisor(abi::cpuid_name name) {
    if (name == abi::kvm_signature) return hypervisor::kvm;
    if (name == abi::make_cpuid_name("Microsoft Hv")) return hypervisor::hyperv;
    if (name == abi::make_cpuid_name("XenVMMXenVMM")) return hypervisor::xen;
    if (name == abi::make_cpuid_name("VMwareVMware")) return hypervisor::vmware;
    if (name == abi::make_cpuid_name("bhyve bhyve ")) return hypervisor::bhyve;
    if (name == abi::make_cpuid_name("ACRNACRNACRN")) return hypervisor::acrn;
    if (name == abi::make_cpuid_name("TCGTCGTCGTCG")) return hypervisor::tcg;
    if (name == abi::proposed::signature) return hypervisor::pvx;
    return hypervisor::unknown;
}

/// A name for a report.
constexpr const char* to_string(hypervisor h) {
    switch (h) {
        case hypervisor::none: return "none";
        case hypervisor::unknown: return "unknown";
        case hypervisor::kvm: return "KVM";
        case hypervisor::hyperv: return "Hyper-V";
        case hypervisor::xen: return "Xen";
        case hypervisor::vmware: return "VMware";
        case hypervisor::bhyve: return "bhyve";
        case hypervisor::acrn: return "ACRN";
        case hypervisor::tcg: return "QEMU TCG";
        case hypervisor::pvx: return "pvx extensions";
    }
    return "unknown";
}

/// One signature, where it was found.
struct signature {
    hypervisor kind{};
    uint32_t base{};  ///< Leaf that carries the name.
    uint32_t last{};  ///< Last leaf of this interface.
    abi::cpuid_name name{};
};

/// Everything that pvx reads from CPUID. Plain data: a test or a replay makes one by hand.
struct features {
    static constexpr uint32_t max_signatures = 4;

    abi::cpu_vendor vendor{};
    bool hypervisor_present{};  ///< CPUID.1:ECX[31].
    bool mwait{};               ///< The guest can wait in MWAIT, so that a waiting vCPU need not exit.
    bool x2apic{};
    bool tsc_deadline{};
    bool invariant_tsc{};

    signature signatures[max_signatures]{};  ///< In the order of their leaves.
    uint32_t signature_count{};

    uint32_t kvm_bits{};   ///< EAX of KVM's features leaf; 0 where KVM is not found.
    uint32_t kvm_hints{};  ///< EDX of the same.

    uint32_t proposed_bits{};  ///< EAX of the features leaf of abi::proposed; 0 where it is not found.

    /// The signature of an interface; a null pointer where it is not offered.
    constexpr const signature* find(hypervisor h) const {
        for (uint32_t i = 0; i < signature_count; ++i)
            if (signatures[i].kind == h) return &signatures[i];
        return nullptr;
    }
    constexpr bool has(abi::kvm_feature f) const { return (kvm_bits & abi::mask(f)) != 0; }
    constexpr bool has(abi::kvm_hint h) const { return (kvm_hints & abi::mask(h)) != 0; }
};

/// Read CPUID. Hypervisor leaves are read only if the CPU says that there are any. They are scanned from the first on,
/// since KVM may stand behind another interface (Hyper-V or Xen emulation), up to KVM's and what follows it without a
/// gap, or to the end of the range.
template <cpuid_policy Machine>
constexpr features detect_features(Machine const& machine) {
    features f;
    abi::cpuid_regs const leaf0 = machine.cpuid(abi::cpuid_leaf::vendor, 0);
    abi::cpuid_regs const leaf1 = machine.cpuid(abi::cpuid_leaf::features, 0);
    f.vendor = abi::identify_vendor(abi::vendor_name(leaf0));
    f.hypervisor_present = abi::has(leaf1, abi::cpuid_feature::hypervisor);
    f.mwait = abi::has(leaf1, abi::cpuid_feature::mwait);
    f.x2apic = abi::has(leaf1, abi::cpuid_feature::x2apic);
    f.tsc_deadline = abi::has(leaf1, abi::cpuid_feature::tsc_deadline);

    uint32_t const last_extended = machine.cpuid(abi::cpuid_leaf::extended_max, 0).eax;
    if (last_extended >= abi::cpuid_leaf::power_management)
        f.invariant_tsc =
            abi::has(machine.cpuid(abi::cpuid_leaf::power_management, 0), abi::cpuid_feature::invariant_tsc);

    if (!f.hypervisor_present) return f;

    for (uint32_t base = abi::cpuid_leaf::hypervisor_first; base <= abi::cpuid_leaf::hypervisor_last;
         base += abi::cpuid_leaf::hypervisor_step) {
        abi::cpuid_regs const regs = machine.cpuid(base, 0);
        abi::cpuid_name const name = abi::signature_name(regs);
        hypervisor const kind = identify_hypervisor(name);
        // Intel CPUs, and their emulators, answer an absent leaf with another leaf's data: an unknown name is taken for
        // a signature only where a hypervisor must have one.
        if (kind == hypervisor::unknown && (base != abi::cpuid_leaf::hypervisor_first || name == abi::cpuid_name{})) {
            if (f.find(hypervisor::kvm) != nullptr) break;
            continue;
        }
        if (kind == hypervisor::kvm && f.find(hypervisor::kvm) != nullptr) continue;
        // Every KVM has its features leaf, whatever it gives as the last one: old ones gave 0.
        uint32_t const features_leaf = base + abi::kvm_features_offset;
        bool const too_low = kind == hypervisor::kvm && regs.eax < features_leaf;
        uint32_t const last = too_low ? features_leaf : regs.eax;
        // A full table loses what was found last, but never KVM's, on which everything else depends.
        bool const full = f.signature_count == features::max_signatures;
        if (full && kind == hypervisor::kvm) --f.signature_count;
        if (f.signature_count < features::max_signatures) f.signatures[f.signature_count++] = {kind, base, last, name};

        if (kind == hypervisor::kvm) {
            abi::cpuid_regs const offered = machine.cpuid(features_leaf, 0);
            f.kvm_bits = offered.eax;
            f.kvm_hints = offered.edx;
        } else if (kind == hypervisor::pvx && f.find(hypervisor::kvm) != nullptr) {
            f.proposed_bits = machine.cpuid(base + abi::proposed::features_offset, 0).eax;
            break;
        }
    }
    return f;
}

}  // namespace pvx::inline v0::guest
