// SPDX-License-Identifier: MIT

/// \file
/// XSAVE areas: a CPUID that a user-level VMM, or a broken CPU, hands over, any mask, XCR0 and XSS that a guest asks
/// for, and the header of an area that it has written.

#include <pvx/host/xstate_layout.hpp>

#include "input.hpp"

using namespace pvx;
using namespace pvx_fuzz;
using host::xsave_format;

namespace {

/// CPUID as in the input: what a CPU has for the components, and any features.
struct cpuid_leaves {
    abi::cpuid_regs vendor;
    abi::cpuid_regs features;
    abi::cpuid_regs components[64];

    abi::cpuid_regs cpuid(uint32_t leaf, uint32_t subleaf) const {
        if (leaf == abi::cpuid_leaf::vendor) return vendor;
        if (leaf == abi::cpuid_leaf::features) return features;
        expect(leaf == abi::cpuid_leaf::xstate, "only leaves 0, 1 and 0xd are read");
        expect(subleaf >= 2 && subleaf < 64, "only the sub-leaves of components are read");
        return components[subleaf];
    }
};

cpuid_leaves make_leaves(input& in) {
    constexpr uint32_t max_leaves[] = {0xd, 0x20, 0xc, 0};
    constexpr uint32_t features[] = {bit<uint32_t>(abi::cpuid_feature::xsave.bit), 0};
    cpuid_leaves leaves{};
    leaves.vendor.eax = in.one_of(max_leaves);
    leaves.features.ecx = in.one_of(features);
    for (uint32_t n = 2; n < 64; ++n) {
        auto& [size, offset, flags, reserved] = leaves.components[n];
        switch (in.below(4)) {
            case 0: break;  // not there
            case 1: size = in.take<uint8_t>() * 8, offset = 576 + in.take<uint8_t>() * 64; break;
            case 2: size = in.take<uint16_t>(), offset = in.take<uint16_t>(); break;
            case 3: size = in.take<uint32_t>(), offset = in.take<uint32_t>(); break;
        }
        if (size != 0) flags = in.take<uint8_t>();
        reserved = flags;
    }
    return leaves;
}

/// As the manual says it: component after component.
uint64_t plain_size(cpuid_leaves const& leaves, xsave_format format, uint64_t mask) {
    uint64_t size = 576;
    for (uint32_t n = host::xstate_layout::first; n < host::xstate_layout::end; ++n) {
        auto const& [bytes, offset, flags, reserved] = leaves.components[n];
        if ((mask >> n & 1) == 0 || bytes == 0) continue;
        bool const supervisor = (flags & 1) != 0, aligned = (flags & 2) != 0;
        if (format == xsave_format::compacted)
            size = (aligned ? (size + 63) / 64 * 64 : size) + bytes;
        else if (!supervisor && uint64_t{offset} + bytes > size)
            size = uint64_t{offset} + bytes;
    }
    return size;
}

template <xsave_format Format>
void check_sizes(host::xstate_layout const& layout, cpuid_leaves const& leaves, uint64_t mask,
                 host::xsave_size_memo<Format>& memo) {
    uint64_t const size = layout.required_size<Format>(mask).value;
    expect(size == plain_size(leaves, Format, mask), "a size is that of the manual's loop");
    expect(size == layout.required_size<Format>(mask, memo).value, "a remembered size is the size");
    for (uint32_t n = 0; n < 70; ++n) {
        uint32_t const place = layout.offset<Format>(n, mask);
        if (place == 0) continue;
        expect(place >= abi::xsave_extended_offset, "no component lies in the fixed part");
        expect(place + layout[n].size <= size, "each component ends inside of the area");
    }
}

void check_rules(input& in, uint64_t supported) {
    uint64_t const value = in.take<uint64_t>();
    uint64_t const repaired = host::constrain_xcr0(value, supported);
    expect(host::valid_xcr0(repaired, supported), "a repaired XCR0 is valid");
    expect((repaired & ~(supported | 1)) == 0, "no XCR0 has what is not supported");
    expect((repaired & ~(value | 1)) == 0, "a repair adds nothing but x87");
    expect(!host::valid_xcr0(value, supported) || repaired == value, "a valid XCR0 stays as it is");
    expect((repaired & 6) != 4, "no YMM without SSE");
    expect((repaired & 0xe0) == 0 || (repaired & 0xe6) == 0xe6, "AVX-512 is whole, and on AVX");
    expect((repaired >> 17 & 3) != 1 && (repaired >> 17 & 3) != 2, "AMX is whole");
    expect((repaired >> 3 & 3) != 1 && (repaired >> 3 & 3) != 2, "MPX is whole");
    uint64_t const xss = host::constrain_xss(value, supported);
    expect(host::valid_xss(xss, supported), "a repaired XSS is valid");

    uint64_t const allowed = in.take<uint64_t>(), mask = in.take<uint64_t>(), present = in.take<uint64_t>();
    expect(host::valid_xsave_header<xsave_format::standard>(
               host::make_xsave_header<xsave_format::standard>(present, mask, allowed), allowed),
           "a header that was made is valid");
    expect(host::valid_xsave_header<xsave_format::compacted>(
               host::make_xsave_header<xsave_format::compacted>(present, mask, allowed), allowed),
           "a compacted header that was made is valid");
    abi::xsave_header header{};
    header.xstate_bv = in.take<uint64_t>();
    header.xcomp_bv = in.take<uint64_t>();
    for (uint64_t& word : header.reserved) word = in.below(2) == 0 ? 0 : in.take<uint64_t>();
    if (host::valid_xsave_header<xsave_format::standard>(header, allowed))
        expect((header.xstate_bv & ~allowed) == 0 && header.xcomp_bv == 0, "no header brings in what is not allowed");
    if (host::valid_xsave_header<xsave_format::compacted>(header, allowed))
        expect((header.xstate_bv & ~allowed) == 0 && (header.xstate_bv & ~header.xcomp_bv) == 0 &&
                   header.xcomp_bv >> 63 == 1,
               "no compacted header has a component without a place");

    constexpr uint32_t feature_leaves[] = {1, 7, 0x1e, 0x80000001, 0x80000021};
    abi::cpuid_regs const regs{in.take<uint32_t>(), in.take<uint32_t>(), in.take<uint32_t>(), in.take<uint32_t>()};
    uint32_t const leaf = in.one_of(feature_leaves), subleaf = in.below(3);
    auto const less = host::constrain_features(regs, leaf, subleaf, supported);
    expect((less.eax & ~regs.eax) == 0 && (less.ebx & ~regs.ebx) == 0 && (less.ecx & ~regs.ecx) == 0 &&
               (less.edx & ~regs.edx) == 0,
           "no feature is added");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(uint8_t const* data, size_t size) {
    input in(data, size);
    cpuid_leaves const leaves = make_leaves(in);
    static host::xstate_layout layout;
    bool const there = layout.set_up(leaves) == status::ok;
    host::xsave_size_memo<xsave_format::standard> standard{};
    host::xsave_size_memo<xsave_format::compacted> compacted{};
    do {
        uint64_t const mask = in.take<uint64_t>();
        if (there) {
            check_sizes(layout, leaves, mask, standard);
            check_sizes(layout, leaves, mask, compacted);
        } else {
            expect(layout.components() == 0 && layout.standard_size(mask) == 512 && layout.compacted_size(mask) == 512,
                   "without XSAVE there is FXSAVE's area");
        }
    } while (in.below(4) != 0);
    check_rules(in, in.below(2) == 0 ? layout.user_components() : in.take<uint64_t>());
    return 0;
}
