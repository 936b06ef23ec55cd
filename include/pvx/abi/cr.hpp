// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Control register bits, by their manual's names in lower case. [sdm3a 2.5] [apm2 3.1]

#include <pvx/base/bits.hpp>

namespace pvx::inline v0::abi {

namespace cr0 {
inline constexpr uint64_t pe = bit<uint64_t>(0);
inline constexpr uint64_t mp = bit<uint64_t>(1);
inline constexpr uint64_t em = bit<uint64_t>(2);
inline constexpr uint64_t ts = bit<uint64_t>(3);
inline constexpr uint64_t et = bit<uint64_t>(4);
inline constexpr uint64_t ne = bit<uint64_t>(5);
inline constexpr uint64_t wp = bit<uint64_t>(16);
inline constexpr uint64_t am = bit<uint64_t>(18);
inline constexpr uint64_t nw = bit<uint64_t>(29);
inline constexpr uint64_t cd = bit<uint64_t>(30);
inline constexpr uint64_t pg = bit<uint64_t>(31);
}  // namespace cr0

namespace cr4 {
inline constexpr uint64_t pse = bit<uint64_t>(4);
inline constexpr uint64_t pae = bit<uint64_t>(5);
inline constexpr uint64_t pge = bit<uint64_t>(7);
inline constexpr uint64_t osfxsr = bit<uint64_t>(9);
inline constexpr uint64_t umip = bit<uint64_t>(11);
inline constexpr uint64_t la57 = bit<uint64_t>(12);
inline constexpr uint64_t pcide = bit<uint64_t>(17);
inline constexpr uint64_t osxsave = bit<uint64_t>(18);
inline constexpr uint64_t smep = bit<uint64_t>(20);
inline constexpr uint64_t smap = bit<uint64_t>(21);
inline constexpr uint64_t pke = bit<uint64_t>(22);
inline constexpr uint64_t cet = bit<uint64_t>(23);
}  // namespace cr4

}  // namespace pvx::inline v0::abi
