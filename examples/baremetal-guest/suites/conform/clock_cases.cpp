// SPDX-License-Identifier: MIT

/// \file
/// The KVM clock: one time for all vCPUs, at the right rate, and silence when it is off. [kvm-msr]

#include "../../os/clock.hpp"
#include "../../os/job.hpp"
#include "../../os/timer.hpp"
#include "case.hpp"

namespace conform {
namespace {

namespace abi = pvx::abi;

constexpr uint64_t race_us = 200'000;

/// What a race of all vCPUs for the latest time found.
struct race {
    alignas(64) uint64_t latest = 0;
    alignas(64) uint64_t readings[os::max_cpus] = {};
    uint64_t back[os::max_cpus] = {};
    uint64_t worst[os::max_cpus] = {};

    uint64_t total_back() const {
        uint64_t n = 0;
        for (uint64_t b : back) n += b;
        return n;
    }
    uint64_t worst_of_all() const {
        uint64_t n = 0;
        for (uint64_t w : worst) n = n < w ? w : n;
        return n;
    }
    uint64_t total_readings() const {
        uint64_t n = 0;
        for (uint64_t r : readings) n += r;
        return n;
    }
};

/// All vCPUs read time at once; each compares with the latest that any had published before it began to read.
template <class Read>
void run_race(race& r, Read read) {
    os::run_on_all([&] {
        machine const m;
        uint32_t const self = os::cpu_self();
        uint64_t const end = m.tsc().value + os::us_to_tsc(race_us);
        while (m.tsc().value < end) {
            uint64_t seen = m.ref(r.latest).load(pvx::order::seq_cst);
            uint64_t const now = read();
            ++r.readings[self];
            if (now < seen) {
                ++r.back[self];
                if (r.worst[self] < seen - now) r.worst[self] = seen - now;
            }
            while (seen < now &&
                   !m.ref(r.latest).compare_exchange(seen, now, pvx::order::seq_cst, pvx::order::relaxed)) {
            }
        }
    });
}

outcome filled_in() {
    struct row {
        uint32_t version, mul;
    } rows[os::max_cpus] = {};
    os::run_on_all([&] {
        abi::pvclock_vcpu_time_info& r = pv::clock_record(os::cpu_self());
        rows[os::cpu_self()] = {machine{}.ref(r.version).load(pvx::order::acquire), r.tsc_to_system_mul};
    });
    for (uint32_t cpu = 0; cpu < os::cpu_count(); ++cpu) {
        if (rows[cpu].version == 0 || (rows[cpu].version & 1) != 0)
            return fail("version of vCPU {} is {}", cpu, rows[cpu].version);
        if (rows[cpu].mul == 0) return fail("vCPU {} has no rate", cpu);
    }
    return pass();
}

outcome library_clock_monotonic() {
    race r;
    run_race(r, [] { return pv::clock().now().value; });
    if (r.total_back() != 0)
        return fail("{} of {} readings went back, by up to {} ns", r.total_back(), r.total_readings(),
                    r.worst_of_all());
    return pass("{} readings by {} vCPUs", r.total_readings(), os::cpu_count());
}

outcome raw_clock_monotonic() {
    bool all_stable[os::max_cpus] = {};
    os::run_on_all([&] {
        pvx::guest::clock_sample s;
        all_stable[os::cpu_self()] = pv::clock().sample_bounded(machine{}.self(), s) && s.stable;
    });
    for (uint32_t cpu = 0; cpu < os::cpu_count(); ++cpu)
        if (!all_stable[cpu]) return skip("the host does not set the stable flag for vCPU {}", cpu);
    race r;
    run_race(r, [] {
        pvx::guest::clock_sample s;
        while (!pv::clock().sample_bounded(machine{}.self(), s)) machine{}.relax();
        return s.time.value;
    });
    if (r.total_back() != 0)
        return fail("{} of {} readings went back, by up to {} ns", r.total_back(), r.total_readings(),
                    r.worst_of_all());
    return pass("{} readings by {} vCPUs", r.total_readings(), os::cpu_count());
}

outcome rate_matches_tsc() {
    machine const m;
    uint64_t const tsc_before = m.tsc().value;
    uint64_t const before = pv::clock().now().value;
    os::delay_us(100'000);
    uint64_t const ticks = m.tsc().value - tsc_before;
    uint64_t const ns = pv::clock().now().value - before;
    uint64_t const khz = pv::clock().tsc_khz(m.self());
    if (khz == 0) return fail("no rate in the record");
    // A vCPU that is preempted between the two readings of a pair shifts them against each other: allow 1 %.
    uint64_t const expected = ticks / khz * 1'000'000 + ticks % khz * 1'000'000 / khz;
    uint64_t const off = expected < ns ? ns - expected : expected - ns;
    if (off * 100 > expected) return fail("{} ns for {} ticks at {} kHz", ns, ticks, khz);
    return pass("{} ns where {} ns were due", ns, expected);
}

outcome wall_clock_plausible() {
    static constinit abi::pvclock_wall_clock scratch = {};
    pvx::shared<abi::pvclock_wall_clock> const place{&scratch, pvx::guest_phys{os::physical_address(&scratch)}};
    pvx::nanoseconds first, second;
    pvx::status const a = pv::clock().wall_clock_at_zero(place, first);
    pvx::status const b = pv::clock().wall_clock_at_zero(place, second);
    if (a != pvx::status::ok || b != pvx::status::ok) return fail("{}", pvx::to_string(a != pvx::status::ok ? a : b));
    uint64_t const apart = first.value < second.value ? second.value - first.value : first.value - second.value;
    // It names one moment, the zero of the clock: asking again moves it only by what the host's own clock was set.
    if (apart > 1'000'000'000) return fail("asked twice, it differs by {} ms", apart / 1'000'000);
    uint64_t const now = (first.value + pv::clock().now().value) / 1'000'000'000;
    if (now < 1'577'836'800) return fail("{} s since 1970 is before 2020", now);
    return pass("{} s since 1970", now);
}

outcome silent_when_off() {
    uint32_t const cpu = os::cpu_count() - 1;
    uint32_t changed = 0;
    os::run_on(cpu, [&] {
        pv::clock().disable();
        auto* const bytes = reinterpret_cast<uint8_t volatile*>(&pv::clock_record(cpu));
        constexpr uint32_t size = sizeof(abi::pvclock_vcpu_time_info);
        for (uint32_t i = 0; i < size; ++i) bytes[i] = 0xa5;
        for (uint32_t i = 0; i < 10; ++i) os::sleep_us(2'000);
        while (changed < size && bytes[changed] == 0xa5) ++changed;
        pv::enable_this_cpu();
    });
    if (changed != sizeof(abi::pvclock_vcpu_time_info)) return fail("byte {} was written after MSR = 0", changed);
    return pass();
}

constexpr requirement uses_clock{.clock = true};

constexpr test_case cases[] = {
    {"every vCPU's clock record is filled in, with an even version", uses_clock, filled_in},
    {"the library's clock never goes back between vCPUs", uses_clock, library_clock_monotonic},
    {"the vCPUs' own clocks agree where the host says that they are stable", uses_clock, raw_clock_monotonic},
    {"the clock runs at the rate that its record gives for the TSC", uses_clock, rate_matches_tsc},
    {"the wall clock is after 2020 and names one moment", uses_clock, wall_clock_plausible},
    {"nothing is written to a clock record after the MSR was set to 0", uses_clock, silent_when_off},
};

}  // namespace

constinit const case_list clock_cases = list_of(cases);

}  // namespace conform
