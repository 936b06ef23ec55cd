// SPDX-License-Identifier: MIT
#include "support/paired.hpp"

#include <algorithm>
#include <cmath>

#include "support/least_disturbed.hpp"
#include "support/statistics.hpp"

namespace pvx_bench {
namespace {

/// An operation, and how often it must be done to fill a slice.
struct sliced {
    operation const& what;
    uint64_t times;
};

uint64_t time_of_run(probe& machine, operation const& what, uint64_t times) {
    uint64_t const start = machine.now_ns();
    what.run(times);
    return machine.now_ns() - start;
}

double time_of(probe& machine, sliced const& s) {
    uint64_t total = 0;
    if (!s.what.prepare) {
        total = time_of_run(machine, s.what, s.times);
    } else {
        for (uint64_t i = 0; i < s.times; ++i) {
            s.what.prepare();
            total += time_of_run(machine, s.what, 1);
        }
        // Where each time is timed by itself, the clock's own time counts.
        uint64_t clock = ~uint64_t{0};
        for (int i = 0; i < 8; ++i) clock = std::min(clock, time_of_run(machine, {"", [](uint64_t) {}}, 1));
        total -= std::min(total, clock * s.times);
    }
    return static_cast<double>(std::max<uint64_t>(1, total)) / static_cast<double>(s.times);
}

uint64_t times_for(probe& machine, operation const& what, uint64_t slice_ns) {
    constexpr uint64_t most = uint64_t{1} << 30;  // for an operation that was optimised away
    for (uint64_t times = 1; times < most; times *= 2) {
        // The shortest of three: an interruption must not pass for the operation.
        double once = time_of(machine, {what, times});
        for (int i = 0; i < 2; ++i) once = std::min(once, time_of(machine, {what, times}));
        double const slice = static_cast<double>(slice_ns);
        if (once * static_cast<double>(times) >= slice / 2)
            return std::max<uint64_t>(1, static_cast<uint64_t>(slice / once));
    }
    return most;
}

struct timed_pair {
    double first;
    double second;
    double ratio() const { return first / second; }
};

timed_pair time_pair(probe& machine, sliced const& a, sliced const& b, bool b_first) {
    if (!b_first) {
        double const first = time_of(machine, a);
        return {first, time_of(machine, b)};
    }
    double const second = time_of(machine, b);
    return {time_of(machine, a), second};
}

struct round {
    bool b_first;
    timed_pair ab, aa, bb;
};

struct block {
    std::vector<round> rounds;
    uint32_t thrown{};
    bool interrupted{};  // a round in which the thread was switched out had to be kept
    disturbance disturbed{};
};

block measure_block(probe& machine, sliced const& a, sliced const& b, uint32_t rounds, uint32_t patience) {
    block result;
    watch watched(machine);
    while (result.rounds.size() < rounds) {
        bool const b_first = result.rounds.size() % 2 != 0;
        uint64_t const switches = machine.switches();
        round const r{b_first, time_pair(machine, a, b, b_first), time_pair(machine, a, a, b_first),
                      time_pair(machine, b, b, b_first)};
        bool const interrupted = machine.switches() != switches;
        if (interrupted && result.thrown < rounds * (patience - 1)) {
            ++result.thrown;
            continue;
        }
        result.interrupted |= interrupted;
        result.rounds.push_back(r);
    }
    result.disturbed = watched.end();
    return result;
}

/// The ratios of one kind of pair, by the order in which it was measured.
struct ratios {
    std::vector<double> by_order[2];

    void add(timed_pair const& p, bool b_first) { by_order[b_first].push_back(p.ratio()); }
    estimate value() const { return bootstrap_ratio(by_order[0], by_order[1]); }

    /// For a control: how far its interval reaches from 1.
    double error() const {
        estimate const e = value();
        return std::max(std::abs(e.low - 1), std::abs(e.high - 1));
    }
};

}  // namespace

paired_result measure(probe& machine, operation const& a, operation const& b, paired_options const& options) {
    sliced const slice_a{a, times_for(machine, a, options.slice_ns)};
    sliced const slice_b{b, times_for(machine, b, options.slice_ns)};

    // What must be prepared each time takes many times as long as what is measured.
    uint32_t const pairs = a.prepare || b.prepare ? std::min(options.pairs, options.block_pairs) : options.pairs;
    uint32_t const wanted = (pairs + options.block_pairs - 1) / options.block_pairs;
    uint32_t const rounds = (pairs + wanted - 1) / wanted;
    std::vector<block> blocks;
    paired_result result;
    for (uint32_t good = 0; good < wanted && blocks.size() < wanted * options.patience;) {
        blocks.push_back(measure_block(machine, slice_a, slice_b, rounds, options.patience));
        good += clean(blocks.back().disturbed, options.foreign_limit);
        result.rejected += blocks.back().thrown;
    }
    std::vector<block> const used = least_disturbed(blocks, wanted, options.foreign_limit);
    result.rejected += static_cast<uint32_t>(blocks.size() - used.size()) * rounds;

    std::vector<double> ns_a, ns_b;
    ratios ab, aa, bb;
    for (block const& blk : used)
        for (round const& r : blk.rounds) {
            if (ns_a.size() == pairs) break;
            ns_a.push_back(r.ab.first);
            ns_b.push_back(r.ab.second);
            ab.add(r.ab, r.b_first);
            aa.add(r.aa, r.b_first);
            bb.add(r.bb, r.b_first);
        }
    estimate const e = ab.value();
    conditions const c = conditions_of(used, options.foreign_limit);
    bool const interrupted = std::any_of(used.begin(), used.end(), [](block const& blk) { return blk.interrupted; });
    result.ns_a = median(ns_a);
    result.ns_b = median(ns_b);
    result.ratio = e.value;
    result.low = e.low;
    result.high = e.high;
    result.aa_error = std::max({least_aa_error, aa.error(), bb.error()});
    result.pairs = static_cast<uint32_t>(ns_a.size());
    result.far_share = c.far_share;
    result.foreign_share = c.foreign_share;
    result.contaminated = c.contaminated || interrupted;
    return result;
}

}  // namespace pvx_bench
