// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// What a guest says, byte by byte, as a fuzzer makes it up; and the end of a run in which something was not as it must
/// be. A target is one file with LLVMFuzzerTestOneInput(). Sanitizers see what is not written here: a read beyond a
/// table, a shift that is too far.

#include <stdint.h>

#include <cstdio>
#include <cstdlib>

namespace pvx_fuzz {

/// The bytes from the first to the last, and zeros behind it.
class input {
public:
    input(uint8_t const* data, size_t size) : at_(data), end_(data + size) {}

    bool empty() const { return at_ == end_; }

    /// The next bytes as a number.
    template <class T>
    T take() {
        uint64_t value = 0;
        for (unsigned i = 0; i < sizeof(T) && !empty(); ++i) value |= uint64_t{*at_++} << 8 * i;
        return static_cast<T>(value);
    }
    /// A number below `n`, by one byte. \pre 0 < n <= 256
    uint32_t below(uint32_t n) { return take<uint8_t>() % n; }
    /// One of these, or now and then anything of the kind.
    template <class T, uint32_t N>
    T one_of(T const (&usual)[N]) {
        uint32_t const which = below(N + 1);
        return which < N ? usual[which] : take<T>();
    }

private:
    uint8_t const* at_;
    uint8_t const* end_;
};

/// Ends the run, with the input kept by the fuzzer, if it is not so.
inline void expect(bool so, char const* what) {
    if (so) return;
    std::fprintf(stderr, "not so: %s\n", what);
    std::abort();
}

}  // namespace pvx_fuzz
