// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Bit arithmetic over unsigned words: constant expressions without undefined cases.

#include <pvx/base/std.hpp>

namespace pvx::inline v0 {

/// Number of bits in a word.
template <word T>
inline constexpr uint32_t bit_size = sizeof(T) * 8;

/// A word with bit n set; n is taken modulo the size of the word.
template <word T>
constexpr T bit(uint32_t n) {
    return static_cast<T>(T{1} << (n % bit_size<T>));
}

/// Bits low .. high (both included) set.
template <word T>
constexpr T bit_range(uint32_t low, uint32_t high) {
    T upto = static_cast<T>(~T{0}) >> (bit_size<T> - 1 - high % bit_size<T>);
    return static_cast<T>(upto & static_cast<T>(~T{0} << (low % bit_size<T>)));
}

/// Number of set bits.
template <word T>
constexpr uint32_t popcount(T v) {
    // Not __builtin_popcount: without -mpopcnt g++ makes it a call into libgcc.
    uint64_t x = v;
    x -= (x >> 1) & 0x5555555555555555u;
    x = (x & 0x3333333333333333u) + ((x >> 2) & 0x3333333333333333u);
    x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0fu;
    return static_cast<uint32_t>((x * 0x0101010101010101u) >> 56);
}

/// Index of the lowest set bit; the size of the word if there is none.
template <word T>
constexpr uint32_t lowest_bit(T v) {
    return v == 0 ? bit_size<T> : static_cast<uint32_t>(__builtin_ctzll(v));
}

/// Index of the highest set bit plus one; 0 if there is none.
template <word T>
constexpr uint32_t bit_width(T v) {
    return v == 0 ? 0 : 64 - static_cast<uint32_t>(__builtin_clzll(v));
}

/// v is a multiple of `alignment`, a power of two.
template <word T>
constexpr bool is_aligned(T v, T alignment) {
    return (v & static_cast<T>(alignment - 1)) == 0;
}

/// The smallest multiple of `alignment`, a power of two, that is not below v.
template <word T>
constexpr T align_up(T v, T alignment) {
    return static_cast<T>((v + (alignment - 1)) & ~static_cast<T>(alignment - 1));
}

}  // namespace pvx::inline v0
