// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Durations, millions of them, in little memory.

#include <pvx/base/bits.hpp>

#include <stdint.h>

namespace bench_suites {

/// Durations, counted by their size to 1 part in 32.
class histogram {
public:
    void add(uint64_t ticks) { ++counts_[index_of(ticks)], ++total_; }
    void add(histogram const& other) {
        for (uint32_t i = 0; i < size; ++i) counts_[i] += other.counts_[i];
        total_ += other.total_;
    }
    uint64_t count() const { return total_; }
    /// Below which p in 1000 are: the upper end of a bucket.
    uint64_t permille(uint64_t p) const {
        uint64_t seen = 0;
        for (uint32_t i = 0; i < size; ++i)
            if ((seen += counts_[i]) * 1000 >= total_ * p && seen != 0) return upper_end(i);
        return 0;
    }

private:
    static constexpr uint32_t parts_log2 = 5;
    static constexpr uint32_t parts = 1 << parts_log2;
    static constexpr uint32_t size = (65 - parts_log2) * parts;

    static uint32_t index_of(uint64_t t) {
        if (t < parts) return static_cast<uint32_t>(t);
        uint32_t const shift = pvx::bit_width(t) - (parts_log2 + 1);
        return (shift + 1) * parts + static_cast<uint32_t>(t >> shift) - parts;
    }
    static uint64_t upper_end(uint32_t i) {
        if (i < parts) return i;
        return (uint64_t{i % parts + parts + 1} << (i / parts - 1)) - 1;
    }

    uint32_t counts_[size] = {};
    uint64_t total_ = 0;
};

}  // namespace bench_suites
