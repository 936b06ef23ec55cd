// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The few statistics that the harnesses need. All of them are robust: on a shared machine a mean is worth nothing.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace pvx_bench {

/// The middle of the values; of an even number, the mean of the two in the middle. 0 if there are none.
inline double median(std::vector<double> values) {
    if (values.empty()) return 0;
    auto const middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    if (values.size() % 2 != 0) return *middle;
    return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

/// What a value is, and between which ends it lies with a confidence of 95 %.
struct estimate {
    double value{};
    double low{};
    double high{};
};

/// `statistic(groups)` and its percentile bootstrap interval; each group is resampled from itself. The seed is fixed:
/// the same values give the same interval.
template <class Statistic>
estimate bootstrap(std::vector<std::vector<double>> const& groups, Statistic statistic, uint32_t resamples = 1000) {
    std::mt19937_64 random(1);
    std::vector<double> results;
    std::vector<std::vector<double>> sample = groups;
    for (uint32_t i = 0; i < resamples; ++i) {
        for (size_t g = 0; g < groups.size(); ++g)
            for (double& v : sample[g]) v = groups[g][random() % groups[g].size()];
        results.push_back(statistic(sample));
    }
    std::sort(results.begin(), results.end());
    size_t const tail = resamples / 40;  // 2.5 % at each end
    return {statistic(groups), results[tail], results[resamples - 1 - tail]};
}

/// The median of one group.
inline estimate bootstrap_median(std::vector<double> const& values, uint32_t resamples = 1000) {
    return bootstrap(
        {values}, [](auto const& groups) { return median(groups[0]); }, resamples);
}

/// The ratio A/B from pairs that were measured A first, and from pairs that were measured B first. If the second of two
/// is always slower, the first lie below the ratio and the others as much above: one median over all would be one of
/// the two, their geometric mean is right.
inline estimate bootstrap_ratio(std::vector<double> const& a_first, std::vector<double> const& b_first) {
    return bootstrap({a_first, b_first},
                     [](auto const& groups) { return std::sqrt(median(groups[0]) * median(groups[1])); });
}

/// Jain's fairness of what T threads got: 1 if all got the same, 1/T if one got everything.
inline double jain_fairness(std::vector<double> const& shares) {
    double sum = 0, squares = 0;
    for (double v : shares) {
        sum += v;
        squares += v * v;
    }
    return squares == 0 ? 1 : sum * sum / (static_cast<double>(shares.size()) * squares);
}

}  // namespace pvx_bench
