// SPDX-License-Identifier: MIT

/// \file
/// What pruning saves: the same two workloads for each way to prune, in turns of a second, so that a disturbance
/// meets all of them. A stale read anywhere is a failure.
///
/// *compute*: one vCPU flushes all others, which compute, and now and then wait with interrupts off.
/// *locks*: a quarter of the vCPUs compute and flush all others, which fight for a lock with interrupts off: who waits
/// long halts until it is kicked, and cannot answer an IPI before it has had the lock.

#include "../os/command_line.hpp"
#include "../os/console.hpp"
#include "../os/panic.hpp"
#include "bench/samples.hpp"
#include "flush_load.hpp"

namespace {

namespace abi = pvx::abi;
using flush_load::plan;
using flush_load::tally;

constexpr uint64_t slice_us = 1'000'000;
constexpr uint64_t default_s = 10;

constinit uint32_t the_lock = 0;

/// One lock operation, some 2 us inside and 10 us outside.
void lock_turn(bool) {
    machine const m;
    auto const irqs = m.irq_save();
    pv::locks.lock(the_lock);               // who halts in it, defers
    flush_load::this_participant().look();  // before an interrupt can repair anything
    os::delay_us(2);
    pv::locks.unlock(the_lock);
    m.irq_restore(irqs);
    os::delay_us(10);
}

// --- ways and workloads ---

/// A way to prune, and what came of it.
struct way {
    char const* name;
    bool host;
    bool deferral;
    tally sum;
    uint64_t ns;
    bench_suites::histogram times;

    uint64_t per_second(uint64_t count) const { return ns == 0 ? 0 : count * 100'000'000'000 / ns; }  // in 1/100
    uint64_t flush_rate() const { return per_second(sum.shootdowns); }
    uint64_t turn_rate() const { return per_second(sum.turns); }
    uint64_t illegal() const { return sum.own_set + sum.illegal; }
};

struct workload {
    char const* name;
    uint32_t flushers;
    flush_load::pace then;
    void (*turn)(bool deferring);
    char const* turns;
};

os::fixed hundredths(uint64_t n) { return {static_cast<int64_t>(n), 2}; }
os::fixed ratio(uint64_t a, uint64_t b) { return hundredths(b == 0 ? 0 : a * 100 / b); }

void run_slice(way& w, workload const& load, uint64_t us) {
    plan p{.options = {.host_bits = w.host ? abi::steal_preempted : uint8_t{0}, .deferral = w.deferral},
           .flushers = load.flushers,
           .us = us,
           .then = load.then};
    p.times = &w.times;
    tally const t = flush_load::run(p, [&] { load.turn(w.deferral); });
    w.sum.add(t);
    w.ns += t.ns;
}

void print_header(workload const& load) {
    os::print("\n{}: {} flushing, {} {}\n", load.name, load.flushers, os::cpu_count() - load.flushers, load.turns);
    os::print("{:<9} {:>8} {:>8} {:>7} {:>10} {:>10} {:>7} {:>7} {:>8} {:>10} {:>7}\n", "pruned", "flushes", "per s",
              "to off", "median us", "99% us", "IPIs", "by host", "deferred", "turns/s", "to off");
}

void print_way(way const& w, way const& off) {
    uint64_t const n = w.sum.shootdowns;
    os::fixed const median_us = hundredths(os::tsc_to_ns(w.times.permille(500)) / 10);
    os::fixed const late_us = hundredths(os::tsc_to_ns(w.times.permille(990)) / 10);
    os::print("{:<9} {:>8} {:>8} {:>7} {:>10} {:>10} {:>7} {:>7} {:>8} {:>10} {:>7}\n", w.name, n,
              hundredths(w.flush_rate()), ratio(w.flush_rate(), off.flush_rate()), median_us, late_us,
              ratio(w.sum.ipis, n), ratio(w.sum.to_host, n), ratio(w.sum.deferred, n), hundredths(w.turn_rate()),
              ratio(w.turn_rate(), off.turn_rate()));
}

/// Ticks are those of the first flusher's shootdowns; the counts are everybody's, and since the start.
void print_way_for_programs(way const& w, workload const& load) {
    tally const& t = w.sum;
    os::print(
        "bench\t{}, {}\t{}\t{}\t{}\t{}\tp99={}\tns={}\tshootdowns={}\tipis={}\tto_host={}\tdeferred={}\tturns={}"
        "\tstale={}\tillegal={}\n",
        load.name, w.name, w.times.permille(500), w.times.permille(100), w.times.permille(900), w.times.count(),
        w.times.permille(990), w.ns, t.shootdowns, t.ipis, t.to_host, t.deferred, t.turns, t.stale, w.illegal());
}

void print_skip(way const& w, workload const& load, char const* why) {
    if (bench_suites::for_programs())
        os::print("bench-skip\t{}, {}\t{}\n", load.name, w.name, why);
    else
        os::print("{:<9} not: {}\n", w.name, why);
}

bool run_workload(workload const& load, uint64_t seconds) {
    static constinit way ways[] = {
        {.name = "off", .host = false, .deferral = false, .sum = {}, .ns = 0, .times = {}},
        {.name = "host", .host = true, .deferral = false, .sum = {}, .ns = 0, .times = {}},
        {.name = "deferred", .host = false, .deferral = true, .sum = {}, .ns = 0, .times = {}},
        {.name = "both", .host = true, .deferral = true, .sum = {}, .ns = 0, .times = {}}};
    pvx::guest::decision const by_host = pv::configuration().tlb_flush;
    bool const table = !bench_suites::for_programs();
    auto const each_way = [&](auto const& f) {
        for (way& w : ways)
            if (!w.host || by_host) f(w);
    };
    for (way& w : ways) w.sum = {}, w.ns = 0, w.times = {};
    for (uint64_t round = 1; round <= seconds; ++round) {
        each_way([&](way& w) { run_slice(w, load, slice_us); });
        if (table)
            os::print("# {}: round {} of {}\n", load.name, round, seconds);
        else
            each_way([&](way& w) { print_way_for_programs(w, load); });
    }

    if (table) print_header(load);
    uint64_t stale = 0, illegal = 0;
    for (way const& w : ways) {
        if (w.host && !by_host)
            print_skip(w, load, pvx::guest::to_string(by_host.why));
        else if (table)
            print_way(w, ways[0]);
        stale += w.sum.stale;
        illegal += w.illegal();
    }
    if (stale != 0) os::print("FAILED: {} reads used an old translation\n", stale);
    if (illegal != 0) os::print("FAILED: {} times, a preempted byte was not what it may be\n", illegal);
    return stale == 0 && illegal == 0;
}

}  // namespace

bool shootdown() {
    uint64_t const seconds = os::option_number("seconds", default_s);
    uint32_t const cpus = os::cpu_count();
    if (cpus < 2 || seconds == 0) {
        os::print("shootdown: needs two vCPUs, and a second or more\n");
        return false;
    }
    if (bench_suites::for_programs()) {
        bench_suites::print_fact("tsc_khz", os::tsc_hz() / 1000);
        bench_suites::print_fact("vcpus", cpus);
    } else {
        os::print("shootdown: takes {} s; IPIs and pruned vCPUs are per flush\n", seconds * 8);
    }
    workload const loads[] = {
        {"compute", 1, flush_load::pace::none, [](bool deferring) { flush_load::waiting_turn(deferring); },
         "compute, and wait up to 64 us with interrupts off"},
        {"locks", cpus < 4 ? 1 : cpus / 4, flush_load::pace::work, lock_turn, "take a lock with interrupts off"},
    };
    bool good = true;
    for (workload const& load : loads) good &= run_workload(load, seconds);
    return good;
}
