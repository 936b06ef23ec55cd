// SPDX-License-Identifier: MIT
#include "support/statistics.hpp"

#include <cmath>

#include "support/catch.hpp"

using namespace pvx_bench;

TEST_CASE("a median is the middle, or the mean of the two in the middle", "[bench][statistics]") {
    CHECK(median({}) == 0);
    CHECK(median({7}) == 7);
    CHECK(median({9, 1, 2}) == 2);
    CHECK(median({4, 1, 9, 2}) == 3);
    CHECK(median({5, 5, 5, 1e9}) == 5);
}

TEST_CASE("the bootstrap interval is as wide as theory says, and the same each time", "[bench][statistics]") {
    std::mt19937_64 random(3);
    std::normal_distribution<double> normal(10, 1);
    std::vector<double> values;
    for (int i = 0; i < 301; ++i) values.push_back(normal(random));
    estimate const e = bootstrap_median(values);
    CHECK(e.value == median(values));
    CHECK(e.low < e.value);
    CHECK(e.value < e.high);
    double const theory = 2 * 1.96 * std::sqrt(3.14159 / 2 / 301);
    CHECK(e.high - e.low > 0.7 * theory);
    CHECK(e.high - e.low < 1.3 * theory);
    estimate const again = bootstrap_median(values);
    CHECK(again.low == e.low);
    CHECK(again.high == e.high);
}

TEST_CASE("values that do not scatter leave no interval", "[bench][statistics]") {
    estimate const e = bootstrap_median(std::vector<double>(50, 4.5));
    CHECK(e.low == 4.5);
    CHECK(e.high == 4.5);
    CHECK(bootstrap_median({}).value == 0);
}

TEST_CASE("a ratio is right if the second of two is always slower", "[bench][statistics]") {
    estimate const e = bootstrap_ratio({1.5 / 1.1, 1.5 / 1.1, 1.5 / 1.1}, {1.5 * 1.1, 1.5 * 1.1});
    CHECK(e.value > 1.4999);
    CHECK(e.value < 1.5001);
}

TEST_CASE("95 of 100 intervals hold the true median", "[bench][statistics]") {
    std::mt19937_64 random(11);
    std::exponential_distribution<double> skewed(1);
    int held = 0;
    for (int i = 0; i < 300; ++i) {
        std::vector<double> values;
        for (int n = 0; n < 101; ++n) values.push_back(skewed(random));
        estimate const e = bootstrap_median(values, 400);
        held += e.low <= std::log(2.0) && std::log(2.0) <= e.high;
    }
    CHECK(held >= 276);  // 92 %
    CHECK(held <= 294);  // 98 %
}

TEST_CASE("Jain's fairness is 1 for equal shares and 1/T if one has all", "[bench][statistics]") {
    CHECK(jain_fairness({5, 5, 5, 5}) == 1);
    CHECK(jain_fairness({8, 0, 0, 0}) == 0.25);
    CHECK(jain_fairness({1, 3}) == 0.8);
    CHECK(jain_fairness({0, 0}) == 1);
}
