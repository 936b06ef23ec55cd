// SPDX-License-Identifier: MIT

/// \file
/// What this machine is, what its hypervisor offers, what pvx makes of it and why, and what the vCPUs are given.

#include "../os/apic.hpp"
#include "../os/clock.hpp"
#include "../os/console.hpp"
#include "../os/memory.hpp"
#include "../os/timer.hpp"
#include "../pv.hpp"
#include "../suites.hpp"
#include "load.hpp"

namespace {

namespace abi = pvx::abi;
namespace guest = pvx::guest;

constexpr uint64_t observed_us = 100'000;

void print_name(abi::cpuid_name const& name, os::text_writer& to) {
    for (uint32_t i = 0; i < 12; ++i) {
        char const c = name.at(i);
        if (c != 0) to.put(c >= ' ' && c <= '~' ? c : '?');
    }
}

void report_machine() {
    guest::features const& f = pv::features();
    os::print("\npvx {}.{}.{} bare-metal guest: {} vCPUs, {} MiB, {}, TSC {} MHz ({})\n\n", PVX_VERSION / 10000,
              PVX_VERSION / 100 % 100, PVX_VERSION % 100, os::cpu_count(), os::memory_size() >> 20,
              os::apic_is_x2apic() ? "x2APIC" : "xAPIC", os::fixed{static_cast<int64_t>(os::tsc_hz() / 1000), 3},
              os::tsc_hz_source());
    os::print("CPU vendor     {}{}{}\n", abi::to_string(f.vendor), f.invariant_tsc ? ", invariant TSC" : "",
              f.mwait ? ", MWAIT" : "");
    if (!f.hypervisor_present) os::print("hypervisor     none announced\n");
    for (uint32_t i = 0; i < f.signature_count; ++i) {
        guest::signature const& s = f.signatures[i];
        os::text_buffer<16> name;
        print_name(s.name, name);
        os::print("hypervisor     {:<9}leaves {:#x}..{:#x}  \"{}\"\n", guest::to_string(s.kind), s.base, s.last,
                  name.view());
    }
    if (f.find(guest::hypervisor::kvm) == nullptr) return;

    os::text_buffer<400> line;
    line.print("KVM features   {:#010x}:", f.kvm_bits);
    uint32_t column = 26;
    for (uint8_t n = 0; n < 32; ++n) {
        if ((f.kvm_bits & pvx::bit<uint32_t>(n)) == 0) continue;
        char const* const name = abi::to_string(static_cast<abi::kvm_feature>(n));
        os::text_buffer<32> word;
        if (name != nullptr)
            word.print(" {}", name);
        else
            word.print(" bit_{}", n);
        column += static_cast<uint32_t>(word.view().size());
        if (column > 100) {
            line.print("\n{:<26}", "");
            column = 26 + static_cast<uint32_t>(word.view().size());
        }
        line.put(word.view());
    }
    os::print("{}\n", line.view());
    os::print("KVM hints      {:#010x}:{}\n", f.kvm_hints,
              f.has(abi::kvm_hint::realtime) ? " realtime (CPUs are dedicated)" : " none");
}

void report_decisions() {
    guest::configuration const& c = pv::configuration();
    struct {
        char const* feature;
        guest::decision decision;
        char const* use;
    } const rows[] = {
        {"clock", c.clock, "nanoseconds that go on over migration"},
        {"clock stable", c.clock_stable, "time without a shared line, where the host sets the flag"},
        {"steal time", c.steal_time, "what the host took from each vCPU; is it preempted"},
        {"TLB flush", c.tlb_flush, "no IPI to a preempted vCPU: the host flushes"},
        {"send IPI", c.send_ipi, "many IPIs in one exit"},
        {"sched yield", c.sched_yield, "directed yield to a preempted vCPU"},
        {"kick", c.kick, "wake a halted lock waiter"},
    };
    os::print("\n{:<14} {:<4} {:<34} {}\n", "feature", "use", "why", "what it is for");
    for (auto const& r : rows)
        os::print("{:<14} {:<4} {:<34} {}\n", r.feature, r.decision ? "yes" : "no",
                  r.decision ? "offered" : guest::to_string(r.decision.why), r.use);
    guest::lock_choice const locks = pv::lock_mode();
    os::print("\nlocks          {}: {}\n", guest::to_string(locks.mode),
              locks.mode == guest::lock_mode::paravirtual ? "kicks are offered" : guest::to_string(locks.why));
}

bool report_clock() {
    guest::configuration const& c = pv::configuration();
    if (!c.clock) {
        os::print("\nclock          off: {}\n", guest::to_string(c.clock.why));
        return true;
    }
    guest::clock_sample sample;
    if (!pv::clock().sample_bounded(machine{}.self(), sample)) {
        os::print("\nclock          the record of CPU 0 is never consistent\n");
        return false;
    }
    static constinit abi::pvclock_wall_clock scratch = {};
    pvx::nanoseconds at_zero;
    pvx::status const wall =
        pv::clock().wall_clock_at_zero({&scratch, pvx::guest_phys{os::physical_address(&scratch)}}, at_zero);
    os::print("\nclock          {} ms since start, TSC {} kHz, {}\n", sample.time.value / 1000000,
              pv::clock().tsc_khz(machine{}.self()),
              sample.stable ? "stable: all vCPUs agree" : "not stable: made monotonic by the guest");
    if (wall == pvx::status::ok)
        os::print("wall clock     {} s since 1970\n", (at_zero.value + pv::clock().now().value) / 1000000000);
    else
        os::print("wall clock     {}\n", pvx::to_string(wall));
    return wall == pvx::status::ok;
}

void report_cpus() {
    uint32_t const cpus = os::cpu_count();
    guest::decision const steal = pv::configuration().steal_time;
    if (!steal) {
        os::print("\nsteal time     off: {}\n\nvCPU  APIC id\n", guest::to_string(steal.why));
        for (uint32_t cpu = 0; cpu < cpus; ++cpu) os::print("{:>4}  {:>7}\n", cpu, os::cpu_apic_id(cpu));
        return;
    }
    // Steal only tells something while somebody wants to run: all vCPUs do, for a moment.
    load_result loads[os::max_cpus];
    bool seen_preempted[os::max_cpus] = {};
    load_all(observed_us, loads, seen_preempted);
    os::print("\nwhile all {} vCPUs are busy for {} ms:\n", cpus, observed_us / 1000);
    os::print("vCPU  APIC id  steal ms  steal %  seen preempted  steal page\n");
    for (uint32_t cpu = 0; cpu < cpus; ++cpu) {
        load_result const& l = loads[cpu];
        uint64_t const share = l.wall_ns == 0 ? 0 : l.steal_ns * 1000 / l.wall_ns;
        os::print("{:>4}  {:>7}  {:>8}  {:>7}  {:<14}  {}\n", cpu, os::cpu_apic_id(cpu),
                  os::fixed{static_cast<int64_t>(l.steal_ns / 10000), 2}, os::fixed{static_cast<int64_t>(share), 1},
                  seen_preempted[cpu] ? "yes" : "no", pvx::to_string(pv::steal_status(cpu)));
    }
}

}  // namespace

bool report() {
    report_machine();
    report_decisions();
    bool const good = report_clock();
    report_cpus();
    os::print("\n");
    return good;
}
