// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// How CPUID's leaves are numbered: their ranges, and which of them have sub-leaves. [sdm2a CPUID] [apm3 E]

#include <pvx/abi/cpuid.hpp>

namespace pvx::inline v0::abi {

/// A range of leaves. The first leaf of each tells the highest one in EAX.
enum class cpuid_range : uint8_t {
    basic,
    hypervisor,  ///< 0x40000000 .. 0x4fffffff: no CPU has leaves there, and each 0x100 are an interface of their own.
    extended,
    vendor,  ///< From 0xc0000000 on: of Centaur and Zhaoxin CPUs.
};

/// The range that a leaf is in.
constexpr cpuid_range cpuid_range_of(uint32_t leaf) {
    if (leaf >= 0xc0000000) return cpuid_range::vendor;
    if (leaf >= cpuid_leaf::extended_max) return cpuid_range::extended;
    return leaf >> 28 == 4 ? cpuid_range::hypervisor : cpuid_range::basic;
}

namespace cpuid_leaf {
/// Extended topology, version 2: extended_topology with more levels.
inline constexpr uint32_t extended_topology_v2 = 0x1f;
/// AMD's extended_topology with more levels.
inline constexpr uint32_t extended_topology_amd = 0x80000026;
}  // namespace cpuid_leaf

/// The leaf enumerates topology: EDX is the x2APIC id and ECX[7:0] the sub-leaf that was asked for, whatever it was.
constexpr bool is_topology_leaf(uint32_t leaf) {
    return leaf == cpuid_leaf::extended_topology || leaf == cpuid_leaf::extended_topology_v2 ||
           leaf == cpuid_leaf::extended_topology_amd;
}

/// Bit n of `basic` is leaf n, bit n of `extended` leaf 0x80000000 + n.
constexpr bool is_cpuid_leaf_of(uint64_t basic, uint64_t extended, uint32_t leaf) {
    uint32_t const number = leaf & ~cpuid_leaf::extended_max;
    uint64_t const those = leaf == number ? basic : extended;
    return number < 64 && (those >> number & 1) != 0;
}

/// The CPU's leaf depends on the sub-leaf in ECX. [sdm2a CPUID] [apm3 E]
constexpr bool cpuid_has_subleaves(uint32_t leaf) {
    constexpr auto set = [](auto... leaves) { return (bit<uint64_t>(leaves) | ...); };
    constexpr uint64_t basic = set(0x04u, 0x07u, 0x0bu, 0x0du, 0x0fu, 0x10u, 0x12u, 0x14u, 0x17u, 0x18u, 0x1bu, 0x1du,
                                   0x1eu, 0x1fu, 0x20u, 0x23u, 0x24u);
    constexpr uint64_t extended = set(0x1du, 0x20u, 0x26u);
    return is_cpuid_leaf_of(basic, extended, leaf);
}

/// The CPU's leaf ignores ECX, says a manual. Of leaves that are not here and have no sub-leaves nothing is known.
/// [sdm2a CPUID] [apm3 E]
constexpr bool cpuid_ignores_subleaf(uint32_t leaf) {
    constexpr auto set = [](auto... leaves) { return (bit<uint64_t>(leaves) | ...); };
    constexpr uint64_t basic = bit_range<uint64_t>(0x00, 0x03) | set(0x05u, 0x06u, 0x09u, 0x0au, 0x15u, 0x16u, 0x19u);
    constexpr uint64_t extended =
        bit_range<uint64_t>(0x00, 0x08) | set(0x0au, 0x1eu, 0x1fu, 0x21u, 0x22u) | bit_range<uint64_t>(0x19, 0x1c);
    return is_cpuid_leaf_of(basic, extended, leaf);
}

}  // namespace pvx::inline v0::abi
