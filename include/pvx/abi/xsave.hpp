// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// XSAVE: state components and the fixed part of the save area. [sdm1 13.1] [sdm1 13.4] [apm2 11.5]

#include <stddef.h>

#include <pvx/base/bits.hpp>

namespace pvx::inline v0::abi {

/// State components: the bits of XCR0 and IA32_XSS.
namespace xfeature {
inline constexpr uint64_t x87 = bit<uint64_t>(0);
inline constexpr uint64_t sse = bit<uint64_t>(1);
inline constexpr uint64_t ymm = bit<uint64_t>(2);
inline constexpr uint64_t bndregs = bit<uint64_t>(3);
inline constexpr uint64_t bndcsr = bit<uint64_t>(4);
inline constexpr uint64_t opmask = bit<uint64_t>(5);
inline constexpr uint64_t zmm_hi256 = bit<uint64_t>(6);
inline constexpr uint64_t hi16_zmm = bit<uint64_t>(7);
inline constexpr uint64_t pt = bit<uint64_t>(8);
inline constexpr uint64_t pkru = bit<uint64_t>(9);
inline constexpr uint64_t pasid = bit<uint64_t>(10);
inline constexpr uint64_t cet_u = bit<uint64_t>(11);
inline constexpr uint64_t cet_s = bit<uint64_t>(12);
inline constexpr uint64_t hdc = bit<uint64_t>(13);
inline constexpr uint64_t uintr = bit<uint64_t>(14);
inline constexpr uint64_t lbr = bit<uint64_t>(15);
inline constexpr uint64_t hwp = bit<uint64_t>(16);
inline constexpr uint64_t xtilecfg = bit<uint64_t>(17);
inline constexpr uint64_t xtiledata = bit<uint64_t>(18);
inline constexpr uint64_t apx = bit<uint64_t>(19);
/// Light-weight profiling, of AMD's alone.
inline constexpr uint64_t lwp = bit<uint64_t>(62);
}  // namespace xfeature

/// Bytes of the legacy area that FXSAVE writes.
inline constexpr uint32_t xsave_legacy_bytes = 512;
/// Bytes of the header behind it.
inline constexpr uint32_t xsave_header_bytes = 64;
/// Where the extended area begins.
inline constexpr uint32_t xsave_extended_offset = xsave_legacy_bytes + xsave_header_bytes;
/// Bit of XCOMP_BV that says "compacted format".
inline constexpr uint64_t xcomp_bv_compacted = bit<uint64_t>(63);

/// The header at offset 512 of an XSAVE area.
struct xsave_header {
    uint64_t xstate_bv;
    uint64_t xcomp_bv;
    uint64_t reserved[6];
};
static_assert(sizeof(xsave_header) == xsave_header_bytes && alignof(xsave_header) == 8);
static_assert(offsetof(xsave_header, xstate_bv) == 0);
static_assert(offsetof(xsave_header, xcomp_bv) == 8);
static_assert(offsetof(xsave_header, reserved) == 16);

}  // namespace pvx::inline v0::abi
