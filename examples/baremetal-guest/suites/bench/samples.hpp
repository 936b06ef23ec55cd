// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Samples of one figure, and how every bench suite prints them: a table for people, or with `format=tsv` on the
/// command line one line a figure for programs, its fields parted by tabs:
///
///     bench       NAME  MEDIAN  10TH-PERCENTILE  90TH-PERCENTILE  COUNT  [KEY=VALUE]...    in TSC ticks
///     bench-skip  NAME  WHY
///     bench-fact  KEY   VALUE
///
/// A later line of the same name replaces an earlier one. Each is printed in one go, so a run that was cut short leaves
/// whole lines, but perhaps for the last.

#include "../../os/clock.hpp"
#include "../../os/command_line.hpp"
#include "../../os/console.hpp"

namespace bench_suites {

struct samples {
    static constexpr uint32_t max_count = 301;

    uint64_t ticks[max_count];
    uint32_t count = 0;

    bool full() const { return count == max_count; }
    void add(uint64_t t) {
        if (!full()) ticks[count++] = t;
    }
    /// Sorts, by insertion: there are few, and this is no library.
    void sort() {
        for (uint32_t i = 1; i < count; ++i) {
            uint64_t const v = ticks[i];
            uint32_t j = i;
            for (; j > 0 && ticks[j - 1] > v; --j) ticks[j] = ticks[j - 1];
            ticks[j] = v;
        }
    }
    /// \pre sorted
    uint64_t percentile(uint32_t p) const { return count == 0 ? 0 : ticks[(count - 1) * p / 100]; }
};

inline bool for_programs() { return os::option_value("format", "table") == os::string_view{"tsv"}; }

inline void print_fact(char const* key, uint64_t value) { os::print("bench-fact\t{}\t{}\n", key, value); }

inline void print_header() {
    if (for_programs()) return;
    os::print("\n{:<44} {:>10} {:>10} {:>10} {:>10} {:>5}\n", "TSC ticks", "median", "10th pct", "90th pct",
              "median ns", "n");
}

/// Returns the median.
inline uint64_t print_row(char const* name, samples& s) {
    s.sort();
    uint64_t const median = s.percentile(50), low = s.percentile(10), high = s.percentile(90);
    if (for_programs())
        os::print("bench\t{}\t{}\t{}\t{}\t{}\n", name, median, low, high, s.count);
    else
        os::print("{:<44} {:>10} {:>10} {:>10} {:>10} {:>5}\n", name, median, low, high, os::tsc_to_ns(median),
                  s.count);
    return median;
}

inline void print_skip(char const* name, char const* why) {
    if (for_programs())
        os::print("bench-skip\t{}\t{}\n", name, why);
    else
        os::print("{:<44} {:>10}  {}\n", name, "-", why);
}

}  // namespace bench_suites
