// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Which of the measured slices count: the good ones, or if the machine gave too few, the least bad.

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <vector>

#include "support/machine_state.hpp"

namespace pvx_bench {

/// Nothing speaks against this slice.
inline bool clean(disturbance const& d, double foreign_limit) {
    return d.same_distance() && d.foreign_share <= foreign_limit;
}

/// A slice has a member `disturbed`. The `wanted` best of them, in the order in which they were measured.
template <class Slice>
std::vector<Slice> least_disturbed(std::vector<Slice> const& slices, size_t wanted, double foreign_limit) {
    std::vector<size_t> order(slices.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](size_t x, size_t y) {
        auto const rank = [&](size_t i) {
            disturbance const& d = slices[i].disturbed;
            return std::tuple(!clean(d, foreign_limit), !d.same_distance(),
                              clean(d, foreign_limit) ? 0 : d.foreign_share);
        };
        return rank(x) < rank(y);
    });
    order.resize(std::min(wanted, order.size()));
    std::sort(order.begin(), order.end());
    std::vector<Slice> best;
    for (size_t i : order) best.push_back(slices[i]);
    return best;
}

/// What a set of slices met, for a report.
struct conditions {
    double far_share{};
    double foreign_share{};
    bool contaminated{};
};

template <class Slice>
conditions conditions_of(std::vector<Slice> const& slices, double foreign_limit) {
    conditions c;
    for (Slice const& s : slices) {
        double const part = 1 / static_cast<double>(slices.size());
        c.far_share += s.disturbed.far() ? part : 0;
        c.foreign_share += s.disturbed.foreign_share * part;
        c.contaminated |= !clean(s.disturbed, foreign_limit);
    }
    return c;
}

}  // namespace pvx_bench
