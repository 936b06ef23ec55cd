// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// CPUID: its registers, and the bits that pvx reads. [sdm2a CPUID] [apm3 E]

#include <pvx/base/bits.hpp>

namespace pvx::inline v0::abi {

/// What one CPUID leaf and sub-leaf returns.
struct cpuid_regs {
    uint32_t eax{};
    uint32_t ebx{};
    uint32_t ecx{};
    uint32_t edx{};

    friend constexpr bool operator==(cpuid_regs const&, cpuid_regs const&) = default;
};

/// An output register of CPUID.
enum class cpuid_reg : uint8_t { eax, ebx, ecx, edx };

/// The value of one register of a leaf.
constexpr uint32_t get(cpuid_regs const& regs, cpuid_reg reg) {
    switch (reg) {
        case cpuid_reg::eax: return regs.eax;
        case cpuid_reg::ebx: return regs.ebx;
        case cpuid_reg::ecx: return regs.ecx;
        case cpuid_reg::edx: return regs.edx;
    }
    return 0;
}

/// Where one CPUID bit is.
struct cpuid_bit {
    uint32_t leaf;
    uint32_t subleaf;
    cpuid_reg reg;
    uint8_t bit;
};

/// The bit is set in `regs`, which must be what `where.leaf` and `where.subleaf` returned.
constexpr bool has(cpuid_regs const& regs, cpuid_bit where) {
    return (get(regs, where.reg) & bit<uint32_t>(where.bit)) != 0;
}

/// Architectural leaves and leaf ranges.
namespace cpuid_leaf {
inline constexpr uint32_t vendor = 0;
inline constexpr uint32_t features = 1;
inline constexpr uint32_t extended_features = 7;
inline constexpr uint32_t extended_topology = 0xb;
inline constexpr uint32_t xstate = 0xd;
inline constexpr uint32_t tsc_ratio = 0x15;
inline constexpr uint32_t hypervisor_first = 0x40000000;
inline constexpr uint32_t hypervisor_last = 0x4000ff00;
inline constexpr uint32_t hypervisor_step = 0x100;
inline constexpr uint32_t extended_max = 0x80000000;
inline constexpr uint32_t extended_signature = 0x80000001;
inline constexpr uint32_t power_management = 0x80000007;
/// AMD: EAX is the APIC id, all 32 bits of it.
inline constexpr uint32_t extended_apic_id = 0x8000001e;
}  // namespace cpuid_leaf

/// The bits that pvx reads.
namespace cpuid_feature {
inline constexpr cpuid_bit mwait{1, 0, cpuid_reg::ecx, 3};
inline constexpr cpuid_bit x2apic{1, 0, cpuid_reg::ecx, 21};
inline constexpr cpuid_bit tsc_deadline{1, 0, cpuid_reg::ecx, 24};
inline constexpr cpuid_bit xsave{1, 0, cpuid_reg::ecx, 26};
inline constexpr cpuid_bit osxsave{1, 0, cpuid_reg::ecx, 27};
/// Reserved for hypervisors: leaves from 0x40000000 on mean something only if it is set.
inline constexpr cpuid_bit hypervisor{1, 0, cpuid_reg::ecx, 31};
inline constexpr cpuid_bit apic{1, 0, cpuid_reg::edx, 9};
/// AMD only: `apic` once more.
inline constexpr cpuid_bit apic_repeated{0x80000001, 0, cpuid_reg::edx, 9};
inline constexpr cpuid_bit pku{7, 0, cpuid_reg::ecx, 3};
inline constexpr cpuid_bit ospke{7, 0, cpuid_reg::ecx, 4};
inline constexpr cpuid_bit xsaveopt{0xd, 1, cpuid_reg::eax, 0};
inline constexpr cpuid_bit xsavec{0xd, 1, cpuid_reg::eax, 1};
inline constexpr cpuid_bit xsaves{0xd, 1, cpuid_reg::eax, 3};
inline constexpr cpuid_bit invariant_tsc{0x80000007, 0, cpuid_reg::edx, 8};
}  // namespace cpuid_feature

/// A twelve-character name as CPUID returns it, in the order in which the name is read.
struct cpuid_name {
    uint32_t words[3];

    friend constexpr bool operator==(cpuid_name const&, cpuid_name const&) = default;

    /// Character i of the name, 0 .. 11.
    constexpr char at(uint32_t i) const { return static_cast<char>((words[i / 4] >> (8 * (i % 4))) & 0xff); }
};

/// The registers' form of a name of up to twelve characters, padded with zeros.
template <size_t N>
    requires(N <= 13)
consteval cpuid_name make_cpuid_name(const char (&text)[N]) {
    cpuid_name name{};
    for (size_t i = 0; i + 1 < N; ++i)
        name.words[i / 4] |= static_cast<uint32_t>(static_cast<unsigned char>(text[i])) << (8 * (i % 4));
    return name;
}

/// The CPU vendor's name of leaf 0, which is read as EBX, EDX, ECX.
constexpr cpuid_name vendor_name(cpuid_regs const& leaf0) { return {{leaf0.ebx, leaf0.edx, leaf0.ecx}}; }

/// A hypervisor's signature, which is read as EBX, ECX, EDX.
constexpr cpuid_name signature_name(cpuid_regs const& base) { return {{base.ebx, base.ecx, base.edx}}; }

/// The CPU vendors that pvx treats differently.
enum class cpu_vendor : uint8_t { unknown, intel, amd, hygon };

/// The vendor by its name in leaf 0. A hypervisor may make the name up: where a decision has a feature bit, use that.
constexpr cpu_vendor identify_vendor(cpuid_name name) {
    if (name == make_cpuid_name("GenuineIntel")) return cpu_vendor::intel;
    if (name == make_cpuid_name("AuthenticAMD")) return cpu_vendor::amd;
    if (name == make_cpuid_name("HygonGenuine")) return cpu_vendor::hygon;
    return cpu_vendor::unknown;
}

/// A name for a report.
constexpr const char* to_string(cpu_vendor v) {
    switch (v) {
        case cpu_vendor::unknown: return "unknown";
        case cpu_vendor::intel: return "Intel";
        case cpu_vendor::amd: return "AMD";
        case cpu_vendor::hygon: return "Hygon";
    }
    return "unknown";
}

}  // namespace pvx::inline v0::abi
