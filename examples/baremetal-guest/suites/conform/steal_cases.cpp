// SPDX-License-Identifier: MIT

/// \file
/// The steal-time page: when the host writes it, what, and when it must not. [kvm-msr]

#include "../../os/clock.hpp"
#include "../../os/job.hpp"
#include "../../os/timer.hpp"
#include "../load.hpp"
#include "case.hpp"

namespace conform {
namespace {

namespace abi = pvx::abi;
using pvx::cpu_index;

constexpr uint32_t steal_msr = abi::kvm_msr::steal_time.index;
constexpr uint64_t contention_us = 300'000;
/// Enough for the host to have written, if it ever does: blocking and waking is what makes KVM update the page.
constexpr uint32_t wake_ups = 20;
constexpr uint64_t wake_up_us = 2'000;

/// Makes the host stop and start this vCPU many times.
void block_and_wake() {
    for (uint32_t i = 0; i < wake_ups; ++i) os::sleep_us(wake_up_us);
}

uint32_t version_of(abi::kvm_steal_time& page) { return settled_version(page.version); }

/// KVM does not offer the kick where a HLT does not exit. There it may have no reason to touch the page for long.
bool halts_may_not_exit() {
    return !pv::features().has(abi::kvm_feature::pv_unhalt) || pv::features().has(abi::kvm_hint::realtime);
}

outcome registered() {
    if (!pv::configuration().steal_time)
        return skip("steal time: {}", pvx::guest::to_string(pv::configuration().steal_time.why));
    return all_registered(pv::steal_status);
}

void fill(abi::kvm_steal_time& page, uint8_t value) {
    auto* const bytes = reinterpret_cast<uint8_t volatile*>(&page);
    for (uint32_t i = 0; i < sizeof page; ++i) bytes[i] = value;
}

/// The first byte of the page that is not `value`; its size if all are.
uint32_t first_changed(abi::kvm_steal_time& page, uint8_t value) {
    auto* const bytes = reinterpret_cast<uint8_t volatile*>(&page);
    uint32_t i = 0;
    while (i < sizeof page && bytes[i] == value) ++i;
    return i;
}

outcome version_even_and_rising() {
    struct row {
        uint32_t before, after;
        uint64_t stolen;
        bool padded;
    } rows[os::max_cpus] = {};
    os::run_on_all([&] {
        abi::kvm_steal_time& page = pv::steal_page(os::cpu_self());
        row& r = rows[os::cpu_self()];
        r.before = version_of(page);
        uint64_t const steal_before = page.steal;
        block_and_wake();
        r.after = version_of(page);
        r.stolen = page.steal - steal_before;
        r.padded = page.flags != 0;
        for (uint8_t byte : page.pad8) r.padded |= byte != 0;
        for (uint32_t word : page.pad32) r.padded |= word != 0;
    });
    for (uint32_t cpu = 0; cpu < os::cpu_count(); ++cpu) {
        row const& r = rows[cpu];
        if (((r.before | r.after) & 1) != 0)
            return fail("the version of vCPU {} stays odd: {}", cpu, (r.before & 1) != 0 ? r.before : r.after);
        if (r.after == 0) return fail("the page of vCPU {} was never written", cpu);
        if (r.padded) return fail("flags or padding of vCPU {} are not zero", cpu);
        // A host that keeps a halted vCPU on its CPU has nothing to write.
        if (r.after == r.before && r.stolen == 0)
            return skip("nothing was stolen from vCPU {}, and its page was not written", cpu);
        if (r.after - r.before == 0 || r.after - r.before > (1u << 31))
            return fail("version of vCPU {} went from {} to {} over {} wake-ups", cpu, r.before, r.after, wake_ups);
    }
    return pass("vCPU 0: {} to {} over {} wake-ups", rows[0].before, rows[0].after, wake_ups);
}

outcome monotonic() {
    struct row {
        uint64_t readings, own, back;
        uint32_t illegal;
    } rows[os::max_cpus] = {};
    os::run_on_all([&] {
        machine const m;
        row& r = rows[os::cpu_self()];
        uint64_t last[os::max_cpus] = {};
        uint64_t const end = m.tsc().value + os::us_to_tsc(contention_us);
        do {
            for (uint32_t cpu = 0; cpu < os::cpu_count(); ++cpu) {
                pvx::nanoseconds now{last[cpu]};
                if (!pv::steal.read_bounded(cpu_index{cpu}, now)) continue;
                ++r.readings;
                r.own += cpu == os::cpu_self();
                r.back += now.value < last[cpu];
                last[cpu] = now.value;
                // Nobody prunes flushes here, so P is the only bit that there can be; and a vCPU that runs has none.
                uint8_t const byte = m.ref(pv::steal_page(cpu).preempted).load(pvx::order::relaxed);
                r.illegal += byte > abi::steal_preempted || (byte != 0 && cpu == os::cpu_self());
            }
        } while (m.tsc().value < end);
    });
    uint64_t readings = 0;
    for (uint32_t cpu = 0; cpu < os::cpu_count(); ++cpu) {
        if (rows[cpu].back != 0) return fail("vCPU {} saw steal go back {} times", cpu, rows[cpu].back);
        if (rows[cpu].illegal != 0) return fail("vCPU {} saw {} illegal preempted bytes", cpu, rows[cpu].illegal);
        if (rows[cpu].own == 0) return fail("vCPU {} never had a consistent reading of its own page", cpu);
        readings += rows[cpu].readings;
    }
    return pass("{} readings of {} pages by all vCPUs", readings, os::cpu_count());
}

/// All vCPUs busy at once: sums over them.
struct contention {
    uint64_t wall = 0, steal = 0, lost = 0;
    uint64_t by_host = 0;       ///< lost, less what a vCPU loses that is busy alone
    uint32_t seen = 0;          ///< vCPUs that another one saw preempted
    uint32_t impossible = ~0u;  ///< one from which more was stolen than there was

    /// Less may be the work of whatever is below this hypervisor and competes with it for its CPUs.
    bool certain() const { return by_host > wall / 5 * 2; }
    outcome uncertain() const {
        return skip("vCPUs lost only {} % of their time to each other: needs two vCPUs per host CPU",
                    by_host * 100 / wall);
    }
};

contention contend() {
    contention c;
    load_result loads[os::max_cpus];
    bool seen[os::max_cpus] = {};
    load_result const alone[] = {load_this_cpu(contention_us / 3), load_this_cpu(contention_us / 3)};
    load_all(contention_us, loads, seen);
    for (uint32_t cpu = 0; cpu < os::cpu_count(); ++cpu) {
        load_result const& l = loads[cpu];
        if (l.steal_ns > l.wall_ns + l.wall_ns / 20) c.impossible = cpu;
        c.wall += l.wall_ns;
        c.steal += l.steal_ns;
        c.lost += l.lost_ns;
        c.seen += seen[cpu];
    }
    uint64_t noise = 0;  // in 1/1000 of the time
    for (load_result const& l : alone)
        if (uint64_t const n = l.lost_ns * 1000 / l.wall_ns; n > noise) noise = n;
    uint64_t const by_others = c.wall / 1000 * noise;
    c.by_host = c.lost > by_others ? c.lost - by_others : 0;
    return c;
}

outcome rises_under_contention() {
    contention const c = contend();
    if (c.impossible != ~0u) return fail("more was stolen from vCPU {} than the time that passed", c.impossible);
    if (c.steal < c.by_host / 2 && c.certain())
        return fail("steal {} % of the time, but {} % was lost", c.steal * 100 / c.wall, c.lost * 100 / c.wall);
    if (c.steal < c.by_host / 2 || c.lost < c.wall / 5) return c.uncertain();
    return pass("steal {} % of the time; {} % was seen lost", c.steal * 100 / c.wall, c.lost * 100 / c.wall);
}

outcome preempted_is_seen() {
    contention const c = contend();
    if (c.seen * 2 >= os::cpu_count()) return pass("{} of {} vCPUs", c.seen, os::cpu_count());
    if (!c.certain()) return c.uncertain();
    return fail("{} % of the time was lost, but only {} of {} vCPUs were seen preempted", c.lost * 100 / c.wall, c.seen,
                os::cpu_count());
}

outcome idle_is_not_stolen() {
    machine const m;
    uint64_t stolen = 0, wall = 0, late = 0;
    for (uint32_t attempt = 0; attempt < 3; ++attempt) {
        uint64_t const begin = m.tsc().value;
        pvx::nanoseconds before, after;
        bool const read = pv::steal.read_bounded(m.self(), before);
        os::sleep_us(contention_us);
        uint64_t const end = m.tsc().value;
        if (!read || !pv::steal.read_bounded(m.self(), after)) return fail("the page cannot be read");
        stolen = after.value - before.value;
        wall = os::tsc_to_ns(end - begin);
        late = wall > contention_us * 1000 ? wall - contention_us * 1000 : 0;
        // A wake-up that comes late is stolen in truth.
        if (stolen <= late + wall / 10) return pass("{} us stolen in {} us asleep", stolen / 1000, wall / 1000);
    }
    if (halts_may_not_exit()) return skip("halts may not exit here, and the host is busy");
    return fail("{} us stolen in {} us asleep, with {} us of delay", stolen / 1000, wall / 1000, late / 1000);
}

outcome little_without_contention() {
    // The host may be busy with something else: what is stolen for a reason is seen lost as well.
    load_result l;
    for (uint32_t attempt = 0; attempt < 3; ++attempt) {
        l = load_this_cpu(contention_us);
        if (l.steal_ns * 50 < l.wall_ns) return pass("{} us stolen within {} us", l.steal_ns / 1000, l.wall_ns / 1000);
    }
    if (l.steal_ns <= l.lost_ns + l.wall_ns / 50)
        return skip("the host is busy: {} us lost, {} us stolen", l.lost_ns / 1000, l.steal_ns / 1000);
    return fail("{} us stolen within {} us, but only {} us were lost", l.steal_ns / 1000, l.wall_ns / 1000,
                l.lost_ns / 1000);
}

outcome silent_after_withdrawal() {
    uint32_t const cpu = os::cpu_count() - 1;
    uint32_t changed = 0;
    os::run_on(cpu, [&] {
        pv::steal.disable();
        fill(pv::steal_page(cpu), 0xa5);
    });
    load_result loads[os::max_cpus];
    load_all(contention_us / 3, loads);  // its own reading of steal fails on junk, and is not used
    os::run_on(cpu, [&] {
        block_and_wake();
        changed = first_changed(pv::steal_page(cpu), 0xa5);
        pv::enable_this_cpu();
    });
    if (changed != sizeof(abi::kvm_steal_time)) return fail("byte {} was written after MSR = 0", changed);
    return pass();
}

outcome moves_when_registered_again() {
    static constinit abi::kvm_steal_time other = {};
    uint32_t const cpu = os::cpu_count() - 1;
    uint32_t changed = 0, version = 0;
    other = {};
    os::run_on(cpu, [&] {
        // Straight from one page to the other, as a kernel does that was started by kexec.
        pvx::arch::write_msr(steal_msr, os::physical_address(&other) | abi::kvm_msr_enable);
        fill(pv::steal_page(cpu), 0x5a);
        block_and_wake();
        changed = first_changed(pv::steal_page(cpu), 0x5a);
        version = version_of(other);
        pv::enable_this_cpu();
    });
    if (changed != sizeof(abi::kvm_steal_time)) return fail("byte {} of the old page was written", changed);
    if (version == 0 || (version & 1) != 0) return fail("version of the new page is {}", version);
    return pass();
}

outcome junk_version_becomes_even() {
    uint32_t const cpu = os::cpu_count() - 1;
    uint32_t version = 1;
    os::run_on(cpu, [&] {
        pv::steal.disable();
        abi::kvm_steal_time& page = pv::steal_page(cpu);
        page = {};
        page.version = 0x12345677;  // a guest must zero the page; a host must not depend on it
        pvx::arch::write_msr(steal_msr, os::physical_address(&page) | abi::kvm_msr_enable);
        block_and_wake();
        version = version_of(page);
        pv::enable_this_cpu();
    });
    return (version & 1) == 0 ? pass() : fail("version is {:#x}", version);
}

constexpr requirement uses_steal{.features = mask(abi::kvm_feature::steal_time), .steal = true};

constexpr test_case cases[] = {
    {"every vCPU's steal page can be registered", {.features = mask(abi::kvm_feature::steal_time)}, registered},
    {"the steal version is even and rises, flags and padding stay zero", uses_steal, version_even_and_rising},
    {"steal never goes back, and the preempted byte is legal, for every observer", uses_steal, monotonic},
    {"steal rises with the time that vCPUs lose to each other",
     {.features = mask(abi::kvm_feature::steal_time), .cpus = 2, .steal = true},
     rises_under_contention},
    {"a vCPU that is preempted says so in its preempted byte",
     {.features = mask(abi::kvm_feature::steal_time), .cpus = 2, .steal = true},
     preempted_is_seen},
    {"time asleep is not counted as stolen", uses_steal, idle_is_not_stolen},
    {"steal is less than 2 % where nobody contends", uses_steal, little_without_contention},
    {"nothing is written after the MSR was set to 0", uses_steal, silent_after_withdrawal},
    {"a page that is registered again moves, and the old one stays untouched", uses_steal, moves_when_registered_again},
    {"an odd version left in the page becomes even", uses_steal, junk_version_becomes_even},
};

}  // namespace

constinit const case_list steal_cases = list_of(cases);

}  // namespace conform
