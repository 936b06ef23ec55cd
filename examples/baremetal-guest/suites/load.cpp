// SPDX-License-Identifier: MIT

#include "load.hpp"

#include "../os/clock.hpp"
#include "../os/job.hpp"
#include "../pv.hpp"

namespace {

constexpr uint64_t gap_us = 500;
/// More than a host needs that updates the page of a running vCPU from elsewhere.
constexpr uint32_t attempts = 10'000;

load_result load(uint64_t us, bool* seen_preempted) {
    machine const m;
    bool const steal_on = bool(pv::configuration().steal_time);
    uint32_t const cpus = os::cpu_count();
    uint32_t const self = m.self().value;
    auto const steal = [&] {
        pvx::nanoseconds now;  // stays 0 where steal time is off, or a test has put junk into the page
        if (steal_on) (void)pv::steal.read_bounded(m.self(), now, attempts);
        return now.value;
    };

    load_result result;
    // Both readings of steal lie within the wall time: the vCPU may be preempted for long between any two lines.
    uint64_t const begin = m.tsc().value;
    uint64_t const steal_before = steal();
    uint64_t const end = begin + os::us_to_tsc(us);
    uint64_t const gap = os::us_to_tsc(gap_us);
    uint64_t lost = 0;
    uint32_t other = self;
    uint64_t now = begin;
    while (now < end) {
        uint64_t const next = m.tsc().value;
        if (next - now >= gap) lost += next - now;
        now = next;
        if (!steal_on || seen_preempted == nullptr) continue;
        other = other + 1 == cpus ? 0 : other + 1;
        if (other != self && pv::steal.preempted(pvx::cpu_index{other}))
            m.ref(reinterpret_cast<uint8_t&>(seen_preempted[other])).store(1, pvx::order::relaxed);
    }
    result.steal_ns = steal() - steal_before;
    result.wall_ns = os::tsc_to_ns(m.tsc().value - begin);
    result.lost_ns = os::tsc_to_ns(lost);
    return result;
}

}  // namespace

load_result load_this_cpu(uint64_t us) { return load(us, nullptr); }

void load_all(uint64_t us, load_result* results, bool* seen_preempted) {
    os::run_on_all([=] { results[os::cpu_self()] = load(us, seen_preempted); });
}
