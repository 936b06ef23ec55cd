// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// From what is offered to what is used: one pure function, each decision with its reason, so that a report can say why
/// something is off. The conditions are those under which Linux uses the same features. [kvm-cpuid]

#include <pvx/guest/features.hpp>

namespace pvx::inline v0::guest {

/// Why something is on or off. The first reason that applies, in this order, is the one that is given.
enum class reason : uint8_t {
    on,                ///< Nothing speaks against it.
    switched_off,      ///< The user said so; beats everything that the host offers.
    no_hypervisor,     ///< Bare metal, or a hypervisor that hides.
    no_kvm,            ///< No KVM signature was found.
    not_offered,       ///< KVM does not offer the feature.
    single_cpu,        ///< There is nobody to flush, kick or interrupt.
    dedicated_cpus,    ///< The host says that vCPUs are not preempted, so nothing can be gained.
    needs_steal_time,  ///< It lives in the steal-time page, which is off.
    waits_in_mwait,    ///< Idle vCPUs do not exit, so the host cannot say that they are not running.
};

/// The reason in words, for a report.
constexpr const char* to_string(reason r) {
    switch (r) {
        case reason::on: return "on";
        case reason::switched_off: return "switched off by the user";
        case reason::no_hypervisor: return "no hypervisor";
        case reason::no_kvm: return "the hypervisor is not KVM";
        case reason::not_offered: return "not offered by the host";
        case reason::single_cpu: return "only one CPU";
        case reason::dedicated_cpus: return "host hint: CPUs are dedicated";
        case reason::needs_steal_time: return "needs steal time, which is off";
        case reason::waits_in_mwait: return "guest may use MWAIT";
    }
    return "unknown";
}

/// A decision: true if the feature is used, and the reason either way.
struct decision {
    reason why{reason::no_hypervisor};

    constexpr explicit operator bool() const { return why == reason::on; }
};

/// What the user of the guest allows; everything by default.
struct switches {
    bool clock{true};
    bool steal_time{true};
    bool tlb_flush{true};
    bool in_host{true};
    bool send_ipi{true};
    bool sched_yield{true};
    bool kick{true};
};

/// What a guest uses of its host.
struct configuration {
    decision clock;         ///< KVM clock.
    decision clock_stable;  ///< The clock's stable flag may be believed.
    decision steal_time;    ///< Steal-time page, and with it "is that vCPU preempted".
    decision tlb_flush;     ///< Leaving flushes of preempted vCPUs to the host.
    decision in_host;       ///< The same for vCPUs that are in the host for another reason: abi::proposed, not KVM's.
    decision send_ipi;      ///< IPIs by hypercall.
    decision sched_yield;   ///< Directed yield by hypercall.
    decision kick;          ///< Waking a halted vCPU by hypercall, for locks that sleep.
};

/// Decide. \pre possible_cpus >= 1; it counts all CPUs that may ever run, not those that run now.
constexpr configuration configure(features const& f, uint32_t possible_cpus, switches const& user = {}) {
    using abi::kvm_feature;
    bool const alone = possible_cpus <= 1;
    bool const dedicated = f.has(abi::kvm_hint::realtime);

    auto const offered = [&](bool allowed, bool bits) {
        if (!allowed) return decision{reason::switched_off};
        if (!f.hypervisor_present) return decision{reason::no_hypervisor};
        if (f.find(hypervisor::kvm) == nullptr) return decision{reason::no_kvm};
        return decision{bits ? reason::on : reason::not_offered};
    };
    auto const unless = [](decision d, bool against, reason why) { return d && against ? decision{why} : d; };

    configuration c;
    bool const any_clock = f.has(kvm_feature::clocksource2) || f.has(kvm_feature::clocksource);
    c.clock = offered(user.clock, any_clock);
    c.clock_stable = c.clock ? offered(true, f.has(kvm_feature::clocksource_stable_bit)) : c.clock;
    c.steal_time = offered(user.steal_time, f.has(kvm_feature::steal_time));

    auto const by_preemption = [&](bool allowed, kvm_feature feature) {
        decision d = offered(allowed, f.has(feature));
        d = unless(d, alone, reason::single_cpu);
        d = unless(d, dedicated, reason::dedicated_cpus);
        d = unless(d, !c.steal_time, reason::needs_steal_time);
        return unless(d, f.mwait, reason::waits_in_mwait);
    };
    c.tlb_flush = by_preemption(user.tlb_flush, kvm_feature::pv_tlb_flush);
    bool const knows_in_host = (f.proposed_bits & abi::proposed::feature_in_host) != 0;
    c.in_host = c.tlb_flush ? offered(user.in_host, knows_in_host) : c.tlb_flush;
    c.sched_yield = by_preemption(user.sched_yield, kvm_feature::pv_sched_yield);

    c.send_ipi = unless(offered(user.send_ipi, f.has(kvm_feature::pv_send_ipi)), alone, reason::single_cpu);

    c.kick = offered(user.kick, f.has(kvm_feature::pv_unhalt));
    c.kick = unless(c.kick, alone, reason::single_cpu);
    c.kick = unless(c.kick, dedicated, reason::dedicated_cpus);
    return c;
}

}  // namespace pvx::inline v0::guest
