// SPDX-License-Identifier: MIT
#include <pvx/host/xstate_rules.hpp>

#include "support/catch.hpp"

using namespace pvx;
using namespace pvx::host;

namespace {

using enum xsave_format;
namespace xf = abi::xfeature;

}  // namespace

TEST_CASE("XCR0 is refused and repaired as XSETBV has it", "[host][xstate_rules]") {
    constexpr uint64_t all = 0xe02ff;  // with MPX, AMX and APX
    struct {
        uint64_t value, supported, repaired;
    } const cases[] = {
        {0x0, all, 0x1},
        {0x1, all, 0x1},
        {0x2, all, 0x3},
        {0x3, all, 0x3},
        {0x5, all, 0x1},  // YMM without SSE
        {0x6, all, 0x7},
        {0x7, all, 0x7},
        {0x27, all, 0x7},  // a part of AVX-512
        {0x67, all, 0x7},
        {0xc7, all, 0x7},
        {0xa7, all, 0x7},
        {0xe7, all, 0xe7},
        {0xe3, all, 0x3},  // AVX-512 without YMM
        {0xe5, all, 0x1},  // and YMM, on which it rests, without SSE
        {0x0f, all, 0x7},  // a half of MPX
        {0x17, all, 0x7},
        {0x1f, all, 0x1f},
        {0x19, all, 0x19},      // MPX needs nothing
        {0x202e7, all, 0x2e7},  // a half of AMX
        {0x402e7, all, 0x2e7},
        {0x602e7, all, 0x602e7},
        {0x60001, all, 0x60001},
        {0x80001, all, 0x80001},
        {0x8001f, all, 0x80007},  // APX and MPX
        {0x80009, all, 0x80001},
        {0x2e7, 0x2e7, 0x2e7},
        {0x602e7, 0x2e7, 0x2e7},  // not supported
        {0x602e7, 0x202e7, 0x2e7},
        {~uint64_t{0}, 0x202e7, 0x2e7},  // what may be offered where half of AMX is there
        {0x2ff, 0x2e7, 0x2e7},
        {0x7, 0x3, 0x3},
        {0xe7, 0xe3, 0x3},  // what AVX-512 needs is not supported
        {0x107, all, 0x7},  // of IA32_XSS
        {uint64_t{1} << 63 | 7, all, 0x7},
        {uint64_t{1} << 62 | 7, all, 0x7},
        {~uint64_t{0}, all, 0xe02e7},
        {0x7, 0, 0x1},
    };
    for (auto const& c : cases) {
        CAPTURE(c.value, c.supported);
        CHECK(constrain_xcr0(c.value, c.supported) == c.repaired);
        CHECK(valid_xcr0(c.value, c.supported) == (c.value == c.repaired));
    }
    CHECK(xcr0_at_reset == 1);
    CHECK(valid_xcr0(xcr0_at_reset, all));
}

TEST_CASE("What the repair of XCR0 gives is valid, and the largest set that is", "[host][xstate_rules]") {
    // Every value over the user components, against the rules one by one as the manual lists them.
    constexpr uint64_t user[] = {0, 1, 2, 3, 4, 5, 6, 7, 9, 17, 18, 19};
    auto const faults = [](uint64_t v) {
        auto const on = [&](uint64_t b) { return (v & b) != 0; };
        uint32_t const avx512 = popcount(v & xfeature_group::avx512);
        return !on(xf::x87) || (on(xf::ymm) && !on(xf::sse)) || (avx512 != 0 && avx512 != 3) ||
               (avx512 != 0 && !on(xf::ymm)) || on(xf::bndregs) != on(xf::bndcsr) ||
               on(xf::xtilecfg) != on(xf::xtiledata) || (on(xf::apx) && on(xf::bndregs));
    };
    uint64_t wrong = 0;
    for (uint32_t i = 0; i < 1u << 12; ++i) {
        uint64_t value = 0;
        for (uint32_t b = 0; b < 12; ++b) value |= (uint64_t{i} >> b & 1) << user[b];
        wrong += valid_xcr0(value, ~uint64_t{0}) == faults(value);
        uint64_t const repaired = constrain_xcr0(value, ~uint64_t{0});
        wrong += faults(repaired) || (repaired & ~(value | 1)) != 0;
        // No bit that was taken can be put back without another; MPX and APX exclude each other.
        for (uint64_t more : {xf::sse, xf::ymm, xf::bndregs | xf::bndcsr, xf::opmask | xf::zmm_hi256 | xf::hi16_zmm,
                              xf::pkru, xf::xtilecfg | xf::xtiledata, xf::apx})
            wrong += (value & more) == more && (repaired & more) == 0 && !faults(repaired | more);
    }
    CHECK(wrong == 0);
}

TEST_CASE("IA32_XSS takes the supervisor components of the guest, and no others", "[host][xstate_rules]") {
    constexpr uint64_t supported = xf::pt | xf::pasid | xf::cet_u | xf::cet_s | xf::uintr | xf::lbr;
    CHECK(valid_xss(0, supported));
    CHECK(valid_xss(0x1800, supported));
    CHECK_FALSE(valid_xss(0x1800 | xf::hdc, supported));
    CHECK_FALSE(valid_xss(xf::ymm, supported));  // of XCR0
    CHECK_FALSE(valid_xss(uint64_t{1} << 63, supported));
    CHECK_FALSE(valid_xss(0x800, 0));
    CHECK(constrain_xss(~uint64_t{0}, 0x1800) == 0x1800);
}

TEST_CASE("A header says its format, and only what its reader may restore", "[host][xstate_rules]") {
    abi::xsave_header const s = make_xsave_header<standard>(0x3, 0x7, 0x7);
    CHECK(s.xstate_bv == 0x3);
    CHECK(s.xcomp_bv == 0);
    abi::xsave_header const c = make_xsave_header<compacted>(0x3, 0x7, 0x7);
    CHECK(c.xstate_bv == 0x3);
    CHECK(c.xcomp_bv == (uint64_t{1} << 63 | 0x7));
    for (uint64_t word : c.reserved) CHECK(word == 0);
    // A component that is on in the host alone: processor trace.
    CHECK(make_xsave_header<compacted>(0x107, 0x107, 0x1807).xcomp_bv == (uint64_t{1} << 63 | 0x7));
    CHECK(make_xsave_header<compacted>(0x107, 0x107, 0x1807).xstate_bv == 0x7);
    // Present, but without a place.
    CHECK(make_xsave_header<compacted>(0x7, 0x3, 0x7).xstate_bv == 0x3);
    CHECK(make_xsave_header<standard>(0x7, 0x3, 0x7).xstate_bv == 0x3);
    // Bit 63 is no component.
    CHECK(make_xsave_header<compacted>(~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}).xstate_bv == ~uint64_t{0} >> 1);
    CHECK(make_xsave_header<standard>(~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}).xcomp_bv == 0);
    static_assert(valid_xsave_header<compacted>(make_xsave_header<compacted>(0x2e7, 0x1ae7, 0x1ae7), 0x1ae7));
    static_assert(valid_xsave_header<standard>(make_xsave_header<standard>(0x2e7, 0x2e7, 0x2e7), 0x2e7));
}

TEST_CASE("A header is refused where XRSTOR or XRSTORS would fault", "[host][xstate_rules]") {
    constexpr uint64_t format = uint64_t{1} << 63;
    constexpr uint64_t guest = 0x1ae7;
    abi::xsave_header const s{0x2e7, 0, {}}, c{0x2e7, format | guest, {}};
    CHECK(valid_xsave_header<standard>(s, guest));
    CHECK(valid_xsave_header<compacted>(c, guest));
    // Each is no header of the other format.
    CHECK_FALSE(valid_xsave_header<compacted>(s, guest));
    CHECK_FALSE(valid_xsave_header<standard>(c, guest));
    CHECK(valid_xsave_header<standard>({}, guest));
    CHECK_FALSE(valid_xsave_header<compacted>({}, guest));
    CHECK_FALSE(valid_xsave_header<compacted>({0x2e7, guest, {}}, guest));
    auto const with = [](abi::xsave_header h, auto change) { return change(h), h; };
    // A place for what is not on in the guest, though nothing lies there.
    CHECK_FALSE(valid_xsave_header<compacted>(with(c, [](auto& h) { h.xcomp_bv |= 0x100; }), guest));
    CHECK(valid_xsave_header<compacted>(with(c, [](auto& h) { h.xcomp_bv |= 0x100; }), guest | 0x100));
    // Present without a place, or not on.
    CHECK_FALSE(valid_xsave_header<compacted>(with(c, [](auto& h) { h.xcomp_bv &= ~uint64_t{0x200}; }), guest));
    CHECK_FALSE(valid_xsave_header<compacted>(with(c, [](auto& h) { h.xstate_bv |= 0x100; }), guest));
    CHECK_FALSE(valid_xsave_header<standard>(with(s, [](auto& h) { h.xstate_bv |= 0x100; }), guest));
    CHECK_FALSE(valid_xsave_header<standard>(with(s, [](auto& h) { h.xstate_bv |= format; }), ~uint64_t{0}));
    CHECK_FALSE(valid_xsave_header<compacted>(with(c, [](auto& h) { h.xstate_bv |= format; }), ~uint64_t{0}));
    for (uint32_t i = 0; i < 6; ++i) {
        CAPTURE(i);
        auto const dirty = [&](auto& h) { h.reserved[i] = 1; };
        CHECK_FALSE(valid_xsave_header<compacted>(with(c, dirty), guest));
        CHECK(valid_xsave_header<standard>(with(s, dirty), guest) == (i != 0));
    }
}

TEST_CASE("What XSETBV and WRMSR take is what sub-leaves 0 and 1 say, in both registers", "[host][xstate_rules]") {
    CHECK(supported_xcr0({0x2e7, 0xa88, 0xa90, 0}) == 0x2e7);
    CHECK(supported_xcr0({0x7, 0, 0, 0x40000000}) == (xf::lwp | 0x7));
    CHECK(supported_xcr0({0xffffffff, 0, 0, 0}) == 0xffffffff);
    CHECK(supported_xcr0({}) == 0);
    CHECK(supported_xss({0xf, 0x240, 0x1800, 0}) == 0x1800);
    CHECK(supported_xss({0x8, 0, 0x1800, 0x1}) == (uint64_t{1} << 32 | 0x1800));
    CHECK(supported_xss({0x8, 0, 0xffffffff, 0}) == 0xffffffff);
    // Without XSAVES there is no IA32_XSS, whatever a template has left in ECX.
    CHECK(supported_xss({0x7, 0x240, 0x1800, 0x1}) == 0);
    // A template that takes all but AVX out of sub-leaf 0.
    CHECK_FALSE(valid_xcr0(0x2e7, supported_xcr0({0x7, 0, 0, 0})));
    CHECK(constrain_xcr0(0x2e7, supported_xcr0({0x7, 0, 0, 0})) == 0x7);
}

TEST_CASE("A saved state of a host that knew more comes in where the host can load it, and is cut to the guest's",
          "[host][xstate_rules]") {
    // PKRU, in the state of a guest that has no PKU.
    constexpr uint64_t saved = 0x207, guest = 0x7, host = 0x2e7;
    CHECK(valid_xstate_bv(saved, host));
    CHECK(constrain_xstate_bv(saved, guest) == guest);
    CHECK_FALSE(valid_xstate_bv(saved, 0xe7));  // a host without PKU
    CHECK(constrain_xstate_bv(0x3, guest) == 0x3);
    CHECK(valid_xstate_bv(0, guest));
}

TEST_CASE("Registers that a restore would lose are named", "[host][xstate_rules]") {
    CHECK(lost_components(make_xsave_header<standard>(0x3, 0x7, 0x7), 0x7) == xf::ymm);
    CHECK(lost_components(make_xsave_header<standard>(0x7, 0x7, 0x7), 0x7) == 0);
    CHECK(lost_components({}, 0x7) == 0x7);
}

TEST_CASE("No feature is offered without its components", "[host][xstate_rules]") {
    constexpr abi::cpuid_regs everything{~0u, ~0u, ~0u, ~0u};
    auto const offered = [&](uint32_t leaf, uint32_t subleaf, uint64_t components) {
        return constrain_features(everything, leaf, subleaf, components);
    };
    auto const lacks = [&](uint64_t components, abi::cpuid_bit where) {
        return !abi::has(offered(where.leaf, where.subleaf, components), where);
    };
    using enum abi::cpuid_reg;
    constexpr abi::cpuid_bit avx{1, 0, ecx, 28}, fma{1, 0, ecx, 12}, f16c{1, 0, ecx, 29}, avx2{7, 0, ebx, 5},
        vaes{7, 0, ecx, 9}, avx512f{7, 0, ebx, 16}, mpx{7, 0, ebx, 14}, tile{7, 0, edx, 24}, apx_f{7, 1, edx, 21},
        shadow_stacks{7, 0, ecx, 7}, branch_tracking{7, 0, edx, 20}, amx_avx512{0x1e, 1, eax, 7};
    for (abi::cpuid_bit const& b : {avx, fma, f16c, avx2, vaes, avx512f}) {
        CAPTURE(b.leaf, int(b.bit));
        CHECK(lacks(0x3, b));
        CHECK(lacks(0x5, b));
        CHECK(lacks(0, b));
        CHECK_FALSE(lacks(0xe7, b));
    }
    CHECK_FALSE(lacks(0x7, avx));
    CHECK(lacks(0x7, avx512f));
    CHECK(lacks(0xa7, avx512f));
    CHECK(lacks(0x2e7, tile));
    CHECK(lacks(0x202e7, tile));
    CHECK_FALSE(lacks(0x602e7, tile));
    CHECK(lacks(0xf, mpx));
    CHECK_FALSE(lacks(0x1f, mpx));
    CHECK(lacks(0x602e7, apx_f));
    CHECK_FALSE(lacks(0x802e7, apx_f));
    CHECK(lacks(0x7, abi::cpuid_feature::pku));
    CHECK_FALSE(lacks(0x207, abi::cpuid_feature::pku));
    CHECK(lacks(0x7, shadow_stacks));
    CHECK(lacks(0x807, shadow_stacks));
    CHECK(lacks(0x1007, shadow_stacks));
    CHECK_FALSE(lacks(0x1807, shadow_stacks));
    CHECK_FALSE(lacks(0x807, branch_tracking));
    CHECK(lacks(0x1007, branch_tracking));
    // AVX-512 without what it rests on, which XSETBV never turns on.
    for (uint64_t partial : {0xe0u, 0xe1u, 0xe3u, 0xe5u}) CHECK(lacks(partial, avx512f));
    CHECK(lacks(0x60007, amx_avx512));
    CHECK(lacks(0xe7, amx_avx512));
    CHECK_FALSE(lacks(0x600e7, amx_avx512));
    // What needs no component stays, in these leaves and in others.
    CHECK(offered(1, 0, 0) == abi::cpuid_regs{~0u, ~0u, ~(1u << 12 | 1u << 28 | 1u << 29), ~0u});
    CHECK(offered(7, 0, ~uint64_t{0}) == everything);
    CHECK(offered(7, 2, 0) == everything);
    CHECK(offered(2, 0, 0) == everything);
    // BMI1, BMI2, SHA and GFNI have forms, or are, without vector registers of AVX.
    CHECK((offered(7, 0, 3).ebx & (1u << 3 | 1u << 8 | 1u << 29)) == (1u << 3 | 1u << 8 | 1u << 29));
    CHECK((offered(7, 0, 3).ecx & 1u << 8) != 0);
}

TEST_CASE("The features that need a component are these, and no others", "[host][xstate_rules]") {
    // The manuals' tables, by register: each set of bits, and each single component whose lack takes it away.
    using enum abi::cpuid_reg;
    constexpr uint64_t x = 1;
    constexpr uint64_t avx = x << 1 | x << 2, avx512 = avx | x << 5 | x << 6 | x << 7, amx = x << 17 | x << 18;
    struct row {
        uint32_t leaf, subleaf;
        abi::cpuid_reg reg;
        uint32_t bits;
        uint64_t needs;
    };
    constexpr row rows[] = {
        {1, 0, ecx, 0x30001000, avx},  // FMA, AVX, F16C
        {7, 0, ebx, 0x00000020, avx},  // AVX2
        {7, 0, ebx, 0x00004000, x << 3 | x << 4},
        {7, 0, ebx, 0xdc230000, avx512},  // F, DQ, IFMA, PF, ER, CD, BW, VL
        {7, 0, ecx, 0x00000008, x << 9},  // PKU
        {7, 0, ecx, 0x00000080, x << 11 | x << 12},
        {7, 0, ecx, 0x00000600, avx},      // VAES, VPCLMULQDQ
        {7, 0, ecx, 0x00005842, avx512},   // VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ
        {7, 0, ecx, 0x20000000, x << 10},  // ENQCMD
        {7, 0, edx, 0x00000020, x << 14},  // UINTR
        {7, 0, edx, 0x0080010c, avx512},   // 4VNNIW, 4FMAPS, VP2INTERSECT, FP16
        {7, 0, edx, 0x00100000, x << 11},  // IBT
        {7, 0, edx, 0x03400000, amx},      // BF16, TILE, INT8
        {7, 1, eax, 0x00800017, avx},      // SHA512, SM3, SM4, AVX_VNNI, AVX_IFMA
        {7, 1, eax, 0x00000020, avx512},   // BF16
        {7, 1, eax, 0x00200000, amx},      // FP16
        {7, 1, edx, 0x00000430, avx},      // VNNI_INT8, NE_CONVERT, VNNI_INT16
        {7, 1, edx, 0x00000100, amx},      // COMPLEX
        {7, 1, edx, 0x00080000, avx512},   // AVX10
        {7, 1, edx, 0x00200000, x << 19},  // APX
        {0x1e, 1, eax, 0x00000080, amx | avx512},
        {0x80000001, 0, ecx, 0x00010800, avx},  // XOP, FMA4
        {0x80000001, 0, ecx, 0x00008000, x << 62},
        {0x80000021, 0, eax, 0x00800000, avx512},
    };
    for (uint32_t missing = 0; missing < 64; ++missing)
        for (uint32_t leaf :
             {1u, 7u, 0xdu, 0x14u, 0x1cu, 0x1du, 0x1eu, 0x24u, 0x29u, 0x80000001u, 0x80000008u, 0x80000021u})
            for (uint32_t subleaf : {0u, 1u, 2u})
                for (abi::cpuid_reg reg : {eax, ebx, ecx, edx}) {
                    uint32_t expected = 0;
                    for (row const& r : rows)
                        if (r.leaf == leaf && r.subleaf == subleaf && r.reg == reg && (r.needs >> missing & 1) != 0)
                            expected |= r.bits;
                    CAPTURE(missing, leaf, subleaf, int(reg));
                    CHECK(~offerable_features(leaf, subleaf, reg, ~(x << missing)) == expected);
                }
    // Nothing is on: all of them go, and only they.
    for (row const& r : rows) {
        uint32_t all = 0;
        for (row const& other : rows)
            if (other.leaf == r.leaf && other.subleaf == r.subleaf && other.reg == r.reg) all |= other.bits;
        CAPTURE(r.leaf, r.subleaf, int(r.reg));
        CHECK(~offerable_features(r.leaf, r.subleaf, r.reg, 0) == all);
        CHECK(~offerable_features(r.leaf, r.subleaf, r.reg, ~uint64_t{0}) == 0);
    }
}
