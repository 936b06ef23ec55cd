// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Which state components may stand together in XCR0, in IA32_XSS and in the header of a save area, and which CPUID
/// features must not be offered without them. Each rule comes in two forms: `valid_` refuses, `constrain_` repairs.
///
/// Numbers only: any context, either side of the VM boundary. A guest that sizes its own save areas includes this
/// header and host/xstate_layout.hpp; neither needs anything of a host. [sdm1 13.3] [sdm3a 2.6] [apm2 11.5] [apx]

#include <pvx/abi/cpuid.hpp>
#include <pvx/abi/xsave.hpp>

namespace pvx::inline v0::host {

/// The two formats of a save area: XSAVE and XSAVEOPT write the one, XSAVEC and XSAVES the other.
enum class xsave_format : uint8_t { standard, compacted };

/// XCR0 after RESET; INIT leaves it as it is. IA32_XSS is 0.
inline constexpr uint64_t xcr0_at_reset = abi::xfeature::x87;

/// Components that are of use only together.
namespace xfeature_group {
inline constexpr uint64_t avx = abi::xfeature::sse | abi::xfeature::ymm;
inline constexpr uint64_t mpx = abi::xfeature::bndregs | abi::xfeature::bndcsr;
inline constexpr uint64_t avx512 = abi::xfeature::opmask | abi::xfeature::zmm_hi256 | abi::xfeature::hi16_zmm;
/// All that an instruction of AVX-512 needs.
inline constexpr uint64_t avx512_whole = avx | avx512;
inline constexpr uint64_t amx = abi::xfeature::xtilecfg | abi::xfeature::xtiledata;
inline constexpr uint64_t amx_avx512 = amx | avx512_whole;
inline constexpr uint64_t cet = abi::xfeature::cet_u | abi::xfeature::cet_s;
}  // namespace xfeature_group

/// What XSETBV takes in XCR0, by sub-leaf 0 of CPUID.0xD: the CPU's own, or the one that the guest is shown. A sub-leaf
/// that has a size says nothing of it: templates of CPUID clear bits here, and leave the sub-leaves.
constexpr uint64_t supported_xcr0(abi::cpuid_regs const& leaf_0xd_0) {
    return leaf_0xd_0.eax | uint64_t{leaf_0xd_0.edx} << 32;
}
/// What WRMSR takes in IA32_XSS, by sub-leaf 1 of the same. Without XSAVES there is no such register.
constexpr uint64_t supported_xss(abi::cpuid_regs const& leaf_0xd_1) {
    if (!abi::has(leaf_0xd_1, abi::cpuid_feature::xsaves)) return 0;
    return leaf_0xd_1.ecx | uint64_t{leaf_0xd_1.edx} << 32;
}

/// All of `components` are in `mask`.
constexpr bool covers(uint64_t mask, uint64_t components) { return (mask & components) == components; }

/// What XSETBV asks of XCR0: all of `together` or none, and only with all of `with`.
struct xcr0_rule {
    uint64_t together;
    uint64_t with;
};
/// In an order in which what a component needs is decided before it.
inline constexpr xcr0_rule xcr0_rules[] = {{abi::xfeature::ymm, abi::xfeature::sse},
                                           {xfeature_group::avx512, abi::xfeature::ymm},
                                           {xfeature_group::mpx, 0},
                                           {xfeature_group::amx, 0}};

/// The largest value that XSETBV takes whose components are in `value` and in `supported`, and x87, which is always on.
/// `supported` is supported_xcr0() of the guest's own CPUID, or what a VMM is about to offer there.
/// APX and MPX lie at the same place in the standard format, so no CPU has both; if one claims to, MPX is dropped.
constexpr uint64_t constrain_xcr0(uint64_t value, uint64_t supported) {
    value = (value & supported) | abi::xfeature::x87;
    for (xcr0_rule const& r : xcr0_rules)
        if (!covers(value, r.together | r.with)) value &= ~r.together;
    return (value & abi::xfeature::apx) != 0 ? value & ~xfeature_group::mpx : value;
}
/// XSETBV takes `value`; otherwise it faults. Bits that are not in `supported` are refused, whatever they mean.
constexpr bool valid_xcr0(uint64_t value, uint64_t supported) { return value == constrain_xcr0(value, supported); }

/// What of `value` IA32_XSS may hold, where `supported` is supported_xss() of the guest's own CPUID.
constexpr uint64_t constrain_xss(uint64_t value, uint64_t supported) { return value & supported; }
/// WRMSR takes `value`; otherwise it faults.
constexpr bool valid_xss(uint64_t value, uint64_t supported) { return value == constrain_xss(value, supported); }

/// The header of an area that holds the components `present`, and has a place for all of `mask`. The others of `mask`
/// are in their initial state. `present` and `mask` are cut to `allowed`: XCR0 for XRSTOR, XCR0 | XSS for XRSTORS, of
/// whoever restores; a component of the host's alone makes the guest's XRSTORS fault. [sdm1 13.4.2]
template <xsave_format Format>
constexpr abi::xsave_header make_xsave_header(uint64_t present, uint64_t mask, uint64_t allowed) {
    mask &= allowed & ~abi::xcomp_bv_compacted;
    return {present & mask, Format == xsave_format::compacted ? mask | abi::xcomp_bv_compacted : 0, {}};
}

/// XRSTOR (standard) or XRSTORS (compacted) takes the header where `allowed` is on. There is no constraining form for
/// XCOMP_BV: it says where everything lies, so a component can be taken out only by moving those behind it. A save
/// interface can ask for more than the instruction: KVM_SET_XSAVE refuses any reserved byte that is not 0.
/// [sdm1 13.8] [sdm1 13.12]
template <xsave_format Format>
constexpr bool valid_xsave_header(abi::xsave_header const& header, uint64_t allowed) {
    allowed &= ~abi::xcomp_bv_compacted;
    // Of the reserved bytes the standard form looks at the first eight only.
    if constexpr (Format == xsave_format::standard)
        return header.xcomp_bv == 0 && header.reserved[0] == 0 && covers(allowed, header.xstate_bv);
    uint64_t reserved = 0;
    for (uint64_t word : header.reserved) reserved |= word;
    uint64_t const places = header.xcomp_bv & ~abi::xcomp_bv_compacted;
    return reserved == 0 && places != header.xcomp_bv && covers(allowed, places) && covers(places, header.xstate_bv);
}

/// What of a saved XSTATE_BV a guest with `allowed` may have; a component that is cut goes to its initial state. For a
/// saved state of another host, which knew components that this guest must not have.
constexpr uint64_t constrain_xstate_bv(uint64_t xstate_bv, uint64_t allowed) { return xstate_bv & allowed; }
/// The refusing form of the same. For a restore, `allowed` is what the host can load: older hosts saved components that
/// the guest never had, and such a state must come in. What it is cut to, by constrain_xstate_bv(), is the guest's.
constexpr bool valid_xstate_bv(uint64_t xstate_bv, uint64_t allowed) { return covers(allowed, xstate_bv); }

/// Components of `wanted` that a restore from this header brings to their initial state, whatever lies in the area. Not
/// 0 where a caller filled in registers and forgot to say so.
constexpr uint64_t lost_components(abi::xsave_header const& header, uint64_t wanted) {
    return wanted & ~header.xstate_bv;
}

/// A CPUID feature, and the components without which it must not be offered.
struct xstate_feature {
    abi::cpuid_bit where;
    uint64_t needs;
};

/// All of them. The instructions fault unless the components are on, so a guest that believes in the feature dies; but
/// for the rows from PKU on, where they work, and leak from one thread to the next of a kernel that switches by XSAVE.
/// Leaves 0x1d and 0x1e (AMX), 0x24 (AVX10) and 0x29 (APX) mean nothing without the bits of leaf 7; in 0x1e is one that
/// needs more than AMX. Processor trace, last-branch records, HDC and HWP are no rows: kernels switch them, if at all,
/// by their MSRs. [sdm2a CPUID] [apm3 E]
///
/// Shadow stacks have their pointers for rings 0 to 2 in CET_S, and the rest in CET_U. Branch tracking needs CET_U
/// alone: what it has for the supervisor is in an MSR that no component holds.
inline constexpr xstate_feature xstate_features[] = {
    {{0x1, 0, abi::cpuid_reg::ecx, 12}, xfeature_group::avx},                  // FMA
    {{0x1, 0, abi::cpuid_reg::ecx, 28}, xfeature_group::avx},                  // AVX
    {{0x1, 0, abi::cpuid_reg::ecx, 29}, xfeature_group::avx},                  // F16C
    {{0x7, 0, abi::cpuid_reg::ebx, 5}, xfeature_group::avx},                   // AVX2
    {{0x7, 0, abi::cpuid_reg::ecx, 9}, xfeature_group::avx},                   // VAES
    {{0x7, 0, abi::cpuid_reg::ecx, 10}, xfeature_group::avx},                  // VPCLMULQDQ
    {{0x7, 1, abi::cpuid_reg::eax, 0}, xfeature_group::avx},                   // SHA512
    {{0x7, 1, abi::cpuid_reg::eax, 1}, xfeature_group::avx},                   // SM3
    {{0x7, 1, abi::cpuid_reg::eax, 2}, xfeature_group::avx},                   // SM4
    {{0x7, 1, abi::cpuid_reg::eax, 4}, xfeature_group::avx},                   // AVX_VNNI
    {{0x7, 1, abi::cpuid_reg::eax, 23}, xfeature_group::avx},                  // AVX_IFMA
    {{0x7, 1, abi::cpuid_reg::edx, 4}, xfeature_group::avx},                   // AVX_VNNI_INT8
    {{0x7, 1, abi::cpuid_reg::edx, 5}, xfeature_group::avx},                   // AVX_NE_CONVERT
    {{0x7, 1, abi::cpuid_reg::edx, 10}, xfeature_group::avx},                  // AVX_VNNI_INT16
    {{0x80000001, 0, abi::cpuid_reg::ecx, 11}, xfeature_group::avx},           // XOP
    {{0x80000001, 0, abi::cpuid_reg::ecx, 16}, xfeature_group::avx},           // FMA4
    {{0x7, 0, abi::cpuid_reg::ebx, 14}, xfeature_group::mpx},                  // MPX
    {{0x7, 0, abi::cpuid_reg::ebx, 16}, xfeature_group::avx512_whole},         // AVX512F
    {{0x7, 0, abi::cpuid_reg::ebx, 17}, xfeature_group::avx512_whole},         // AVX512DQ
    {{0x7, 0, abi::cpuid_reg::ebx, 21}, xfeature_group::avx512_whole},         // AVX512_IFMA
    {{0x7, 0, abi::cpuid_reg::ebx, 26}, xfeature_group::avx512_whole},         // AVX512PF
    {{0x7, 0, abi::cpuid_reg::ebx, 27}, xfeature_group::avx512_whole},         // AVX512ER
    {{0x7, 0, abi::cpuid_reg::ebx, 28}, xfeature_group::avx512_whole},         // AVX512CD
    {{0x7, 0, abi::cpuid_reg::ebx, 30}, xfeature_group::avx512_whole},         // AVX512BW
    {{0x7, 0, abi::cpuid_reg::ebx, 31}, xfeature_group::avx512_whole},         // AVX512VL
    {{0x7, 0, abi::cpuid_reg::ecx, 1}, xfeature_group::avx512_whole},          // AVX512_VBMI
    {{0x7, 0, abi::cpuid_reg::ecx, 6}, xfeature_group::avx512_whole},          // AVX512_VBMI2
    {{0x7, 0, abi::cpuid_reg::ecx, 11}, xfeature_group::avx512_whole},         // AVX512_VNNI
    {{0x7, 0, abi::cpuid_reg::ecx, 12}, xfeature_group::avx512_whole},         // AVX512_BITALG
    {{0x7, 0, abi::cpuid_reg::ecx, 14}, xfeature_group::avx512_whole},         // AVX512_VPOPCNTDQ
    {{0x7, 0, abi::cpuid_reg::edx, 2}, xfeature_group::avx512_whole},          // AVX512_4VNNIW
    {{0x7, 0, abi::cpuid_reg::edx, 3}, xfeature_group::avx512_whole},          // AVX512_4FMAPS
    {{0x7, 0, abi::cpuid_reg::edx, 8}, xfeature_group::avx512_whole},          // AVX512_VP2INTERSECT
    {{0x7, 0, abi::cpuid_reg::edx, 23}, xfeature_group::avx512_whole},         // AVX512_FP16
    {{0x7, 1, abi::cpuid_reg::eax, 5}, xfeature_group::avx512_whole},          // AVX512_BF16
    {{0x7, 1, abi::cpuid_reg::edx, 19}, xfeature_group::avx512_whole},         // AVX10
    {{0x7, 0, abi::cpuid_reg::edx, 22}, xfeature_group::amx},                  // AMX_BF16
    {{0x7, 0, abi::cpuid_reg::edx, 24}, xfeature_group::amx},                  // AMX_TILE
    {{0x7, 0, abi::cpuid_reg::edx, 25}, xfeature_group::amx},                  // AMX_INT8
    {{0x7, 1, abi::cpuid_reg::eax, 21}, xfeature_group::amx},                  // AMX_FP16
    {{0x7, 1, abi::cpuid_reg::edx, 8}, xfeature_group::amx},                   // AMX_COMPLEX
    {{0x1e, 1, abi::cpuid_reg::eax, 7}, xfeature_group::amx_avx512},           // AMX_AVX512
    {{0x80000021, 0, abi::cpuid_reg::eax, 23}, xfeature_group::avx512_whole},  // AVX512_BMM
    {{0x7, 1, abi::cpuid_reg::edx, 21}, abi::xfeature::apx},                   // APX_F
    {{0x7, 0, abi::cpuid_reg::ecx, 3}, abi::xfeature::pkru},                   // PKU
    {{0x7, 0, abi::cpuid_reg::ecx, 7}, xfeature_group::cet},                   // CET_SS
    {{0x7, 0, abi::cpuid_reg::edx, 20}, abi::xfeature::cet_u},                 // CET_IBT
    {{0x7, 0, abi::cpuid_reg::ecx, 29}, abi::xfeature::pasid},                 // ENQCMD
    {{0x7, 0, abi::cpuid_reg::edx, 5}, abi::xfeature::uintr},                  // UINTR
    {{0x80000001, 0, abi::cpuid_reg::ecx, 15}, abi::xfeature::lwp},            // LWP
};

/// The bits of one register of a leaf that may be offered where `components` can be on (XCR0 | XSS; 0 without XSAVE).
/// For leaves that have no such feature: all.
constexpr uint32_t offerable_features(uint32_t leaf, uint32_t subleaf, abi::cpuid_reg reg, uint64_t components) {
    uint32_t bits = ~uint32_t{0};
    for (xstate_feature const& f : xstate_features)
        if (f.where.leaf == leaf && f.where.subleaf == subleaf && f.where.reg == reg && !covers(components, f.needs))
            bits &= ~bit<uint32_t>(f.where.bit);
    return bits;
}

/// A leaf of the guest's CPUID without the features whose components it does not have.
constexpr abi::cpuid_regs constrain_features(abi::cpuid_regs regs, uint32_t leaf, uint32_t subleaf,
                                             uint64_t components) {
    auto const offerable = [&](abi::cpuid_reg reg) { return offerable_features(leaf, subleaf, reg, components); };
    return {regs.eax & offerable(abi::cpuid_reg::eax), regs.ebx & offerable(abi::cpuid_reg::ebx),
            regs.ecx & offerable(abi::cpuid_reg::ecx), regs.edx & offerable(abi::cpuid_reg::edx)};
}

}  // namespace pvx::inline v0::host
