// SPDX-License-Identifier: MIT

/// \file
/// bench_paired: the table of all pairs. See support/paired.hpp for how a row comes about and support/operation.hpp for
/// how to add one.

#include "support/paired.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "support/program.hpp"
#include "support/statistics.hpp"

using namespace pvx_bench;

namespace {

/// A chain of multiplications, each waiting for the one before: about 1 ns each. The copy's number is in the code, so
/// that no compiler merges two of them.
template <int Steps, int Copy>
struct chain {
    uint64_t value = 3;
    void operator()() {
        __asm__ volatile("# copy %c1\n .rept %c2\n imul %0, %0\n .endr" : "+r"(value) : "i"(Copy), "i"(Steps));
    }
};

void print_head() {
    std::printf("%-48s %-16s %-21s %9s %9s %7s  %-15s %6s %5s %5s %5s %5s\n", "pair", "a", "b", "ns a", "ns b", "a/b",
                "95 %", "A/A +-", "thrown", "far", "other", "");
}

void print_row(pair const& p, paired_result const& r) {
    std::printf("%-48s %-16s %-21s %9.2f %9.2f %7.4f  %.4f..%.4f %5.2f%% %6u %4.0f%% %4.0f%%  %s%s\n", p.name.c_str(),
                p.a.name.c_str(), p.b.name.c_str(), r.ns_a, r.ns_b, r.ratio, r.low, r.high, 100 * r.aa_error,
                r.rejected, 100 * r.far_share, 100 * r.foreign_share,
                r.flagged() ? (r.ratio > 1 ? "a slower" : "a faster") : "same", r.contaminated ? ", contaminated" : "");
    std::fflush(stdout);
}

nlohmann::json to_json(pair const& p, paired_result const& r) {
    return {{"name", p.name},
            {"a", p.a.name},
            {"b", p.b.name},
            {"ns_a", rounded(r.ns_a)},
            {"ns_b", rounded(r.ns_b)},
            {"ratio", rounded(r.ratio)},
            {"low", rounded(r.low)},
            {"high", rounded(r.high)},
            {"aa_error", rounded(r.aa_error, 3)},
            {"flagged", r.flagged()},
            {"pairs", r.pairs},
            {"rejected", r.rejected},
            {"far_share", rounded(r.far_share, 3)},
            {"foreign_share", rounded(r.foreign_share, 3)},
            {"state", r.contaminated ? "contaminated" : "clean"}};
}

/// How one kind of pair did over the tries of the self-test.
struct tally {
    std::vector<double> errors;
    uint32_t flagged = 0;
    uint32_t silently_wrong = 0;  // the true ratio is outside of the widened interval, and the result is not marked
    uint32_t contaminated = 0;
    uint32_t unremarkable = 0;  // neither flagged nor marked

    void add(paired_result const& r, double truth) {
        errors.push_back(std::abs(r.ratio / truth - 1));
        flagged += r.flagged();
        bool const wrong = r.low > truth * (1 + r.aa_error) || r.high < truth * (1 - r.aa_error);
        silently_wrong += wrong && !r.contaminated;
        contaminated += r.contaminated;
        unremarkable += !r.flagged() && !r.contaminated;
    }

    void print(char const* what) {
        std::sort(errors.begin(), errors.end());
        std::printf(
            "%-36s %4zu tries: %u flagged, %u silently wrong, %u contaminated; error median %.3f %%, "
            "90th pct %.3f %%, worst %.3f %%\n",
            what, errors.size(), flagged, silently_wrong, contaminated, 100 * median(errors),
            100 * errors[errors.size() * 9 / 10], 100 * errors.back());
    }
};

int self_test(probe& machine, uint32_t tries, paired_options const& options) {
    operation const one = make_operation("one", chain<150, 1>{});
    operation const copy = make_operation("copy", chain<150, 2>{});
    operation const longer = make_operation("longer", chain<153, 3>{});
    operation const brief = make_operation("brief", chain<1, 4>{});
    operation const brief_copy = make_operation("brief copy", chain<1, 5>{});
    tally same, copies, briefs, more;
    progress shown(tries);
    for (uint32_t i = 0; i < tries; ++i) {
        shown.step("self-test");
        same.add(measure(machine, one, one, options), 1);
        copies.add(measure(machine, one, copy, options), 1);
        briefs.add(measure(machine, brief, brief_copy, options), 1);
        more.add(measure(machine, longer, one, options), 1.02);
    }
    same.print("A against itself");
    copies.print("A against a copy of itself");
    briefs.print("1 ns against a copy");
    more.print("2 % more work against A");
    std::printf("%.1f s\n", shown.seconds());
    bool const holds = same.flagged + copies.flagged + briefs.flagged == 0 && more.unremarkable == 0;
    if (!holds) std::fprintf(stderr, "bench_paired: the self-test does not hold on this machine now\n");
    return holds ? 0 : exit_failed;
}

}  // namespace

int main(int argc, char** argv) {
    bool list = false, quick = false;
    std::string filter, json_path;
    uint32_t tries = 0;
    paired_options options;
    uint32_t wanted_pairs = options.pairs;
    parse_options(
        argc, argv, "bench_paired",
        "Times each pvx hot path beside the plain way to do the same, in interleaved slices.\n"
        "Each row: nanoseconds of both, the ratio a/b with its 95 % interval, and how far the same estimator was off\n"
        "on A against A and B against B meanwhile. 'a slower' and 'a faster' are said only beyond that error.",
        {{"--list", "", "print the names of the rows", [&](auto&) { list = true; }},
         {"--filter", "TEXT", "only rows whose name holds TEXT", [&](auto& text) { filter = text; }},
         {"--pairs", "N", "pairs of each row (301)", take_number(wanted_pairs, 1)},
         {"--quick", "", "51 pairs, and fewer rows",
          [&](auto&) {
              quick = true;
              wanted_pairs = 51;
          }},
         {"--json", "FILE", "write the rows there too", [&](auto& text) { json_path = text; }},
         {"--self-test", "N", "N times A against A, and 2 % more work against A; code 1 if it is wrong",
          take_number(tries, 1)}});

    std::vector<pair> rows;
    for (pair const& p : pairs())
        if (p.name.find(filter) != std::string::npos && (p.in_quick || !quick)) rows.push_back(p);
    std::sort(rows.begin(), rows.end(), [](pair const& x, pair const& y) { return x.name < y.name; });
    if (rows.empty()) die(exit_usage, "no row holds '" + filter + "'; see bench_paired --list");
    if (list) {
        for (pair const& p : rows) std::printf("%s\n", p.name.c_str());
        return 0;
    }

    options.pairs = wanted_pairs;
    options.block_pairs = std::min(options.block_pairs, wanted_pairs);
    auto const machine = make_machine_probe();
    print_fingerprint(*machine);
    if (tries != 0) return self_test(*machine, tries, options);

    nlohmann::json all = report(*machine);
    double aa_error = 0;
    progress shown(static_cast<uint32_t>(rows.size()));
    print_head();
    for (pair const& p : rows) {
        shown.step(p.name);
        paired_result r = measure(*machine, p.a, p.b, options);
        r.ns_a /= p.items;
        r.ns_b /= p.items;
        print_row(p, r);
        all["rows"].push_back(to_json(p, r));
        aa_error = std::max(aa_error, r.aa_error);
    }
    all["aa_error"] = rounded(aa_error, 3);
    std::printf("\nA/A error of the worst row %.2f %%; %.1f s\n", 100 * aa_error, shown.seconds());
    if (!json_path.empty()) write_json(json_path, all);
    return 0;
}
