// SPDX-License-Identifier: MIT
#include "support/lock_harness.hpp"

#include <chrono>
#include <latch>
#include <thread>

#include "support/least_disturbed.hpp"
#include "support/statistics.hpp"

namespace pvx_bench {

busy_work::busy_work(probe& machine) : step_ns_(1e9) {
    constexpr uint64_t steps = 50000;
    for (int i = 0; i < 20; ++i) {
        uint64_t const start = machine.now_ns();
        run(steps, 1);
        uint64_t const passed = std::max<uint64_t>(1, machine.now_ns() - start);
        step_ns_ = std::min(step_ns_, static_cast<double>(passed) / steps);
    }
}

[[gnu::noinline]] uint64_t busy_work::run(uint64_t steps, uint64_t value) {
    for (uint64_t i = 0; i < steps; ++i) __asm__ volatile("imul %0, %0" : "+r"(value));
    return value;
}

lock_round run_round(probe& machine, any_lock const& lock, busy_work const& work, lock_options const& options) {
    uint64_t const inside = work.steps(options.inside_ns), outside = work.steps(options.outside_ns);
    std::vector<thread_tally> tallies(options.threads);
    guarded data;
    watch watched(machine);

    round_stage = stage::wait;
    std::latch ready(options.threads);
    // This thread lives on beside them. In a process with a single thread glibc's mutex would leave out its locked
    // instruction (SINGLE_THREAD_P), and one contender would measure what no program with threads has.
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < options.threads; ++t)
        threads.emplace_back([&, t] {
            ready.count_down();
            round_stage.wait(stage::wait);
            lock.contend({t, inside, outside, data, tallies[t]});
        });
    ready.wait();

    uint64_t const halts = lock.halts ? lock.halts() : 0, kicks = lock.kicks ? lock.kicks() : 0;
    uint64_t const start_cpu = machine.own_cpu_ns(), start_tsc = pvx::arch::rdtsc(), start_ns = machine.now_ns();
    for (thread_tally& t : tallies) t.last_tsc = start_tsc;
    round_stage = stage::run;
    round_stage.notify_all();
    std::this_thread::sleep_for(std::chrono::milliseconds(options.round_ms));
    round_stage = stage::stop;
    uint64_t const end_tsc = pvx::arch::rdtsc(), end_ns = machine.now_ns(), end_cpu = machine.own_cpu_ns();
    uint64_t const halts_end = lock.halts ? lock.halts() : 0, kicks_end = lock.kicks ? lock.kicks() : 0;
    for (std::thread& t : threads) t.join();

    lock_round round;
    uint64_t operations = 0, all = 0, longest = 0;
    std::vector<double> shares;
    for (thread_tally& t : tallies) {
        t.had_lock_at(end_tsc);  // one that starved until the end waited, too
        operations += t.operations;
        all += t.operations + t.after_end;
        longest = std::max(longest, t.longest_tsc);
        round.exclusion_errors += t.errors;
        shares.push_back(static_cast<double>(t.operations));
    }
    round.exclusion_errors += data.first != all || data.second != all;

    double const n = std::max(1.0, static_cast<double>(operations));
    double const passed = static_cast<double>(end_ns - start_ns);
    round.mops = static_cast<double>(operations) * 1000 / passed;
    round.cpu_ns_per_op = static_cast<double>(end_cpu - start_cpu) / n;
    round.jain = jain_fairness(shares);
    round.longest_gap_us = static_cast<double>(longest) * passed / static_cast<double>(end_tsc - start_tsc) / 1000;
    if (lock.halts) round.halts_per_op = static_cast<double>(halts_end - halts) / n;
    if (lock.kicks) round.kicks_per_op = static_cast<double>(kicks_end - kicks) / n;
    round.disturbed = watched.end();
    return round;
}

namespace {

double difference_of_halves(std::vector<double> const& values) {
    std::vector<double> halves[2];
    for (size_t i = 0; i < values.size(); ++i) halves[i % 2].push_back(values[i]);
    double const first = median(halves[0]), second = median(halves[1]);
    if (first <= 0 || second <= 0) return least_lock_error;
    return std::max(least_lock_error, std::max(first, second) / std::min(first, second) - 1);
}

}  // namespace

std::vector<lock_result> compare_locks(probe& machine, std::vector<named_lock> const& locks,
                                       lock_options const& options,
                                       std::function<void(std::string const&)> const& step) {
    busy_work const work(machine);
    std::vector<std::vector<lock_round>> rounds(locks.size());
    std::vector<uint32_t> good(locks.size());
    for (uint32_t pass = 0; pass < options.rounds * options.patience; ++pass)
        for (size_t i = 0; i < locks.size(); ++i) {
            // Each pass begins with another lock, so that none always comes after the same one.
            size_t const which = (i + pass) % locks.size();
            if (good[which] >= options.rounds) continue;
            if (step) step(locks[which].name);
            rounds[which].push_back(run_round(machine, locks[which].make(options.threads), work, options));
            good[which] += clean(rounds[which].back().disturbed, options.foreign_limit);
        }

    std::vector<lock_result> results;
    for (size_t i = 0; i < locks.size(); ++i) {
        auto const used = least_disturbed(rounds[i], options.rounds, options.foreign_limit);
        auto const values = [&](auto member) {
            std::vector<double> all;
            for (lock_round const& r : used) all.push_back(member(r));
            return all;
        };
        lock_result result;
        result.lock = locks[i].name;
        estimate const mops = bootstrap_median(values([](lock_round const& r) { return r.mops; }));
        result.middle.mops = mops.value;
        result.mops_low = mops.low;
        result.mops_high = mops.high;
        result.aa_error = difference_of_halves(values([](lock_round const& r) { return r.mops; }));
        result.middle.cpu_ns_per_op = median(values([](lock_round const& r) { return r.cpu_ns_per_op; }));
        result.middle.jain = median(values([](lock_round const& r) { return r.jain; }));
        result.middle.longest_gap_us = median(values([](lock_round const& r) { return r.longest_gap_us; }));
        if (used.front().halts_per_op)
            result.middle.halts_per_op = median(values([](lock_round const& r) { return *r.halts_per_op; }));
        if (used.front().kicks_per_op)
            result.middle.kicks_per_op = median(values([](lock_round const& r) { return *r.kicks_per_op; }));
        for (lock_round const& r : rounds[i]) result.middle.exclusion_errors += r.exclusion_errors;
        conditions const c = conditions_of(used, options.foreign_limit);
        result.far_share = c.far_share;
        result.foreign_share = c.foreign_share;
        result.contaminated = c.contaminated;
        result.rejected = static_cast<uint32_t>(rounds[i].size() - used.size());
        results.push_back(result);
    }
    return results;
}

}  // namespace pvx_bench
