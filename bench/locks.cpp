// SPDX-License-Identifier: MIT

/// \file
/// bench_locks: the locks of support/compared_locks.hpp under more and more threads. See support/lock_harness.hpp.

#include <algorithm>
#include <cstdio>

#include "support/compared_locks.hpp"
#include "support/program.hpp"

using namespace pvx_bench;

namespace {

void print_head() {
    std::printf("%7s %6s %7s  %-19s %9s %-19s %11s %5s %12s %7s %7s %5s %5s\n", "threads", "inside", "outside", "lock",
                "Mops/s", "95 %", "CPU ns/op", "Jain", "gap us", "halts", "kicks", "far", "other");
}

std::string count_text(std::optional<double> per_op) {
    if (!per_op) return "-";
    char text[32];
    std::snprintf(text, sizeof text, "%.4f", *per_op);
    return text;
}

void print_row(lock_options const& o, lock_result const& r) {
    std::printf("%7u %6u %7u  %-19s %9.4f %8.4f..%-9.4f %11.1f %5.2f %12.1f %7s %7s %4.0f%% %4.0f%%  %s\n", o.threads,
                o.inside_ns, o.outside_ns, r.lock.c_str(), r.middle.mops, r.mops_low, r.mops_high,
                r.middle.cpu_ns_per_op, r.middle.jain, r.middle.longest_gap_us,
                count_text(r.middle.halts_per_op).c_str(), count_text(r.middle.kicks_per_op).c_str(), 100 * r.far_share,
                100 * r.foreign_share, r.contaminated ? "contaminated" : "clean");
    std::fflush(stdout);
}

nlohmann::json to_json(lock_options const& o, lock_result const& r) {
    nlohmann::json row{{"lock", r.lock},
                       {"threads", o.threads},
                       {"inside_ns", o.inside_ns},
                       {"outside_ns", o.outside_ns},
                       {"rounds", o.rounds},
                       {"rejected", r.rejected},
                       {"mops", rounded(r.middle.mops)},
                       {"mops_low", rounded(r.mops_low)},
                       {"mops_high", rounded(r.mops_high)},
                       {"aa_error", rounded(r.aa_error, 3)},
                       {"cpu_ns_per_op", rounded(r.middle.cpu_ns_per_op)},
                       {"jain", rounded(r.middle.jain)},
                       {"longest_gap_us", rounded(r.middle.longest_gap_us)},
                       {"far_share", rounded(r.far_share, 3)},
                       {"foreign_share", rounded(r.foreign_share, 3)},
                       {"state", r.contaminated ? "contaminated" : "clean"}};
    if (r.middle.halts_per_op) row["halts_per_op"] = rounded(*r.middle.halts_per_op);
    if (r.middle.kicks_per_op) row["kicks_per_op"] = rounded(*r.middle.kicks_per_op);
    return row;
}

/// Every tuning that can be made of the three lists; a list that is empty stands for the default.
std::vector<named_lock> tuned_locks(std::vector<uint32_t> spins, std::vector<uint32_t> steals,
                                    std::vector<uint32_t> head_polls) {
    std::vector<named_lock> locks;
    if (spins.empty() && steals.empty() && head_polls.empty()) return locks;
    pvx::guest::lock_tuning const usual;
    if (spins.empty()) spins = {usual.spins};
    if (steals.empty()) steals = {usual.steals};
    if (head_polls.empty()) head_polls = {usual.head_polls};
    for (uint32_t s : spins)
        for (uint32_t t : steals)
            for (uint32_t h : head_polls) locks.push_back(tuned_lock({.spins = s, .steals = t, .head_polls = h}));
    return locks;
}

}  // namespace

int main(int argc, char** argv) {
    std::vector<uint32_t> threads{1, 2, 4, 8, 16, 32, 64}, inside{100}, outside{100, 2000};
    std::vector<uint32_t> spins, steals, head_polls;
    lock_options options;
    std::string filter, json_path;
    bool list = false;
    parse_options(
        argc, argv, "bench_locks",
        "Compares locks under contention, in interleaved rounds: throughput with its 95 % interval, CPU time per\n"
        "operation, Jain fairness, the longest time that a thread was without the lock. Medians over the rounds.\n"
        "Lists are separated by commas. Exit code 1: a lock let two threads in.\n"
        "In pvx's lock the threads are the CPUs, and futexes their halt and kick.",
        {{"--list", "", "print the names of the locks, and how to get more", [&](auto&) { list = true; }},
         {"--filter", "TEXT", "only locks whose name holds TEXT", [&](auto& text) { filter = text; }},
         {"--threads", "LIST", "numbers of threads (1,2,4,8,16,32,64)", take_numbers(threads, 1)},
         {"--inside-ns", "LIST", "work with the lock held (100)", take_numbers(inside, 0)},
         {"--outside-ns", "LIST", "work without it (100,2000)", take_numbers(outside, 0)},
         {"--rounds", "N", "rounds of each lock (8)", take_number(options.rounds, 1)},
         {"--round-ms", "N", "length of a round (100)", take_number(options.round_ms, 1)},
         {"--spins", "LIST", "also pvx's paravirtual lock with each of these spins of a waiter,",
          take_numbers(spins, 1)},
         {"--steals", "LIST", "each of these tries of a newcomer,", take_numbers(steals, 0)},
         {"--head-polls", "LIST", "and each of these polls of the head, as pvx SPINS/STEALS/HEAD-POLLS",
          take_numbers(head_polls, 0)},
         {"--quick", "", "1,2,4 threads, 2 rounds of 20 ms: shows that it runs, measures little",
          [&](auto&) {
              threads = {1, 2, 4};
              outside = {100};
              options.rounds = 2;
              options.round_ms = 20;
          }},
         {"--json", "FILE", "write the rows there too", [&](auto& text) { json_path = text; }}});

    constexpr uint32_t most_threads = 1024;
    for (uint32_t t : threads)
        if (t > most_threads) die(exit_usage, "more than " + std::to_string(most_threads) + " threads");

    std::vector<named_lock> locks;
    for (named_lock const& l : compared_locks())
        if (l.name.find(filter) != std::string::npos) locks.push_back(l);
    if (locks.empty()) die(exit_usage, "no lock is called '" + filter + "'; see bench_locks --list");
    if (list) {
        for (named_lock const& l : locks) std::printf("%s\n", l.name.c_str());
        for (std::string const& what : absent_locks())
            std::printf("not built in: %s; install that package and run CMake again\n", what.c_str());
        return 0;
    }
    for (named_lock const& l : tuned_locks(spins, steals, head_polls)) locks.push_back(l);

    auto const machine = make_machine_probe();
    print_fingerprint(*machine);
    nlohmann::json all = report(*machine);
    auto const tables = threads.size() * inside.size() * outside.size();
    progress shown(static_cast<uint32_t>(tables * locks.size()) * options.rounds);
    uint64_t errors = 0;
    print_head();
    for (uint32_t in : inside)
        for (uint32_t out : outside)
            for (uint32_t t : threads) {
                options.inside_ns = in;
                options.outside_ns = out;
                options.threads = t;
                for (lock_result const& r :
                     compare_locks(*machine, locks, options, [&](std::string const& name) { shown.step(name); })) {
                    print_row(options, r);
                    all["rows"].push_back(to_json(options, r));
                    if (r.middle.exclusion_errors != 0)
                        std::fprintf(stderr, "bench_locks: %s with %u threads let two in, %llu times seen\n",
                                     r.lock.c_str(), t, static_cast<unsigned long long>(r.middle.exclusion_errors));
                    errors += r.middle.exclusion_errors;
                }
            }
    std::printf("\n%.1f s\n", shown.seconds());
    if (!json_path.empty()) write_json(json_path, all);
    return errors == 0 ? 0 : exit_failed;
}
