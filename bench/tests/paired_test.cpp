// SPDX-License-Identifier: MIT
#include "support/paired.hpp"

#include "fake_probe.hpp"
#include "support/catch.hpp"

using namespace pvx_bench;
using namespace pvx_bench_test;

namespace {

/// The true ratio lies in what the result claims.
bool claims(paired_result const& r, double truth) {
    return r.low <= truth * (1 + r.aa_error) && truth * (1 - r.aa_error) <= r.high;
}

}  // namespace

TEST_CASE("a difference is flagged only where the interval and the A/A error leave out 1", "[bench][paired]") {
    paired_result r;
    r.aa_error = 0.01;
    auto const flagged = [&](double low, double high) {
        r.low = low;
        r.high = high;
        return r.flagged();
    };
    CHECK(flagged(1.011, 1.02));
    CHECK(flagged(0.9, 0.989));
    CHECK_FALSE(flagged(1.009, 1.5));
    CHECK_FALSE(flagged(0.5, 0.991));
    CHECK_FALSE(flagged(0.9, 1.1));
    r.aa_error = 0;
    CHECK(flagged(1.001, 1.002));
}

TEST_CASE("nanoseconds and ratio are those of the operations", "[bench][paired]") {
    fake_probe machine;
    paired_result const r = measure(machine, takes(machine, 300), takes(machine, 200));
    CHECK(r.ns_a > 299);
    CHECK(r.ns_a < 301);
    CHECK(r.ns_b > 199);
    CHECK(r.ns_b < 201);
    CHECK(claims(r, 1.5));
    CHECK(r.flagged());
    CHECK(r.pairs == 301);
    CHECK(r.rejected == 0);
    CHECK_FALSE(r.contaminated);
}

TEST_CASE("an operation longer than a slice is done once in it", "[bench][paired]") {
    fake_probe machine;
    uint64_t most = 0;
    operation const slow{"", [&](uint64_t times) {
                             most = std::max(most, times);
                             machine.pass(1e6 * static_cast<double>(times));
                         }};
    CHECK(claims(measure(machine, slow, takes(machine, 100)), 1e4));
    CHECK(most == 1);
}

TEST_CASE("on a rough machine A against A is not flagged, and 2 % more is", "[bench][paired]") {
    fake_probe machine;
    rough_machine rough{machine};
    auto const trouble = [&] { return rough(); };
    operation const a = takes(machine, 150, trouble), more = takes(machine, 153, trouble);
    uint32_t flagged = 0, missed = 0;
    for (int i = 0; i < 100; ++i) {
        paired_result const r = measure(machine, a, a);
        flagged += r.flagged();
        missed += !claims(r, 1);
    }
    CHECK(flagged == 0);
    CHECK(missed == 0);
    for (int i = 0; i < 20; ++i) {
        paired_result const r = measure(machine, more, a);
        CHECK(r.flagged());
        CHECK(claims(r, 1.02));
        paired_result const reverse = measure(machine, a, more);
        CHECK(reverse.flagged());
        CHECK(claims(reverse, 1 / 1.02));
    }
}

TEST_CASE("a machine that slows down all the time does not favour A or B", "[bench][paired]") {
    fake_probe machine;
    // 0.5 % from slice to slice: in one order alone every pair would say so.
    auto const slower = [&, factor = 1.0]() mutable {
        factor *= 1.005;
        return factor < 3 ? factor : factor = 1;
    };
    operation const a = takes(machine, 150, slower);
    operation const shared{"", [&](uint64_t n) { a.run(n); }};
    paired_result const r = measure(machine, shared, shared);
    CHECK(r.ratio > 0.9995);
    CHECK(r.ratio < 1.0005);
    CHECK_FALSE(r.flagged());
}

TEST_CASE("a round in which the thread was switched out is measured again", "[bench][paired]") {
    fake_probe machine;
    // B alone is hit, in two slices of three: the median would follow.
    uint64_t slices = 0;
    operation const a = takes(machine, 100), b = takes(machine, 100, [&] {
                                                 if (++slices % 12 >= 4) return 1.0;
                                                 ++machine.switched;
                                                 return 50.0;
                                             });
    paired_options options;
    options.patience = 9;
    paired_result const r = measure(machine, a, b, options);
    CHECK(r.ratio > 0.999);
    CHECK(r.ratio < 1.001);
    CHECK(r.pairs == 301);
    CHECK(r.rejected > 100);
    CHECK_FALSE(r.contaminated);
}

TEST_CASE("a thread that is switched out all the time gives a contaminated result, and an end", "[bench][paired]") {
    fake_probe machine;
    operation const a = takes(machine, 100, [&] {
        ++machine.switched;
        return 1.0;
    });
    paired_result const r = measure(machine, a, a);
    CHECK(r.contaminated);
    CHECK(r.pairs == 301);
    CHECK(r.rejected == 3 * 202);  // in each block twice as many as it needs
}

TEST_CASE("a block in which others used too much is measured again", "[bench][paired]") {
    fake_probe machine;
    // While the neighbour runs, B takes twice as long.
    operation const a = takes(machine, 100);
    operation const b = takes(machine, 100, [&] {
        bool const neighbour = machine.ns < 60000000;
        machine.foreign = neighbour ? 1.5 : 0.1;
        return neighbour ? 2 : 1;
    });
    paired_result const r = measure(machine, a, b);
    CHECK(claims(r, 1));
    CHECK(r.rejected > 0);
    CHECK(r.rejected % 101 == 0);
    CHECK(r.foreign_share < 0.6);
    CHECK_FALSE(r.contaminated);
}

TEST_CASE("where others never stop, the result has all pairs and says contaminated", "[bench][paired]") {
    fake_probe machine;
    machine.foreign = 1.5;
    paired_result const r = measure(machine, takes(machine, 100), takes(machine, 100));
    CHECK(r.contaminated);
    CHECK(r.pairs == 301);
    CHECK(r.rejected == 6 * 101);
    CHECK(r.foreign_share > 0.7);
}

TEST_CASE("a block over which the CPUs moved is measured again", "[bench][paired]") {
    fake_probe machine;
    SECTION("once") {
        machine.lines = {33, 200, 200};
        paired_result const r = measure(machine, takes(machine, 100), takes(machine, 100));
        CHECK_FALSE(r.contaminated);
        CHECK(r.rejected == 101);
        CHECK(r.far_share > 0.99);
    }
    SECTION("the other CPU never answers") {
        machine.lines = {-1};
        CHECK(measure(machine, takes(machine, 100), takes(machine, 100)).contaminated);
    }
}

TEST_CASE("what the controls see widens the error", "[bench][paired]") {
    fake_probe machine;
    std::mt19937_64 random(5);
    auto const scatter = [&] { return 0.9 + 0.2 * static_cast<double>(random() % 1000) / 1000; };
    operation const a = takes(machine, 100, scatter);
    paired_result const r = measure(machine, a, a);
    CHECK(r.aa_error > 0.003);
    CHECK_FALSE(r.flagged());
}
