// SPDX-License-Identifier: MIT

/// \file
/// Hypercalls: unknown ones, the kick and its latch, directed yield, clock pairing. [kvm-hypercall]

#include "../../os/job.hpp"
#include "../../os/timer.hpp"
#include "case.hpp"

namespace conform {
namespace {

namespace abi = pvx::abi;
namespace call = pvx::abi::kvm_hypercall;
using abi::kvm_feature;

constexpr uint32_t nobody = 0x7ffffff0;  // an APIC id that no vCPU has
constexpr uint64_t settle_us = 20'000;

outcome unknown_numbers() {
    // 2 and 3 are withdrawn, 4 and 6 to 8 are other architectures', 5 in the upper half must not be taken for 5.
    uint64_t const numbers[] = {0, 2, 3, 4, 6, 7, 8, 999, 0xffffffff, 0x100000005, ~uint64_t{0}};
    if (hypercall(999) == hypercall_faulted) return fail("the instruction raises an exception");
    for (uint64_t n : numbers)
        if (int64_t const r = hypercall(n); r != abi::kvm_error::no_such_hypercall)
            return fail("hypercall {:#x} returns {}", n, r);
    return pass();
}

outcome poll_irq() {
    int64_t const r = hypercall(call::vapic_poll_irq);
    return r == 0 ? pass() : fail("returns {}", r);
}

outcome yield_answers() {
    for (uint32_t cpu = 0; cpu < os::cpu_count(); ++cpu)
        if (int64_t const r = hypercall(call::sched_yield, os::cpu_apic_id(cpu)); r != 0)
            return fail("to vCPU {} {}", cpu, r);
    int64_t const absent = hypercall(call::sched_yield, nobody);
    return absent == 0 ? pass() : fail("to an absent one {}", absent);
}

outcome kick_answers() {
    int64_t const absent = hypercall(call::kick_cpu, 0, nobody);
    return absent == 0 ? pass() : fail("to an absent vCPU {}", absent);
}

/// Waits until a word is not below `target`; false when patience is over.
bool wait_for(uint32_t& word, uint32_t target) {
    machine const m;
    uint64_t const end = m.tsc().value + os::us_to_tsc(patience_us);
    while (m.ref(word).load(pvx::order::acquire) < target) {
        if (m.tsc().value > end) return false;
        m.relax();
    }
    return true;
}

/// The last vCPU halts with interrupts off and says how often it woke. NMIs end a halt that nobody else ends, so that a
/// failure is a failure and not a hang.
struct sleeper {
    uint32_t halting = 0;  // number of halts begun
    uint32_t woken = 0;    // number of halts ended
    uint32_t cpu = os::cpu_count() - 1;
    uint32_t id = os::cpu_apic_id(os::cpu_count() - 1);

    void halt_once() {
        machine const m;
        m.ref(halting).fetch_add(1, pvx::order::seq_cst);
        m.halt_irqs_off();
        m.ref(woken).fetch_add(1, pvx::order::seq_cst);
    }
    /// Whether `n` halts have ended, by themselves or by a kick. They have in any case on return.
    bool woke(uint32_t n) {
        if (wait_for(woken, n)) return true;
        rescue(n);
        return false;
    }
    /// More than one NMI: the first may come before the vCPU halts.
    void rescue(uint32_t n) {
        for (uint32_t i = 0; i < 200 && machine{}.ref(woken).load(pvx::order::acquire) < n; ++i) {
            os::send_nmi(id);
            os::delay_us(settle_us);
        }
    }
    void finish() { os::wait_job(cpu); }
};

outcome kick_wakes(uint32_t cpu) {
    sleeper s{.cpu = cpu, .id = os::cpu_apic_id(cpu)};
    auto job = [&] {
        machine const m;
        auto const irqs = m.irq_save();
        s.halt_once();
        m.irq_restore(irqs);
    };
    os::start_job(s.cpu, job);
    bool const began = wait_for(s.halting, 1);
    os::delay_us(settle_us);  // it is asleep by now, or the kick is remembered: both must wake it
    bool const early = machine{}.ref(s.woken).load(pvx::order::acquire) != 0;
    int64_t const r = hypercall(call::kick_cpu, 0, s.id);
    bool const woke = s.woke(1);
    s.finish();
    if (!began) return fail("vCPU {} never began to halt", cpu);
    if (r != 0) return fail("the kick of vCPU {} returns {}", cpu, r);
    if (early) return skip("vCPU {} woke by itself, so nothing can be said", cpu);
    return woke ? pass() : fail("vCPU {} was not woken", cpu);
}

/// By APIC id, which is not the number of the vCPU where ids have gaps.
outcome kick_wakes_each() {
    for (uint32_t cpu = 1; cpu < os::cpu_count(); ++cpu)
        if (outcome const o = kick_wakes(cpu); o.what() != outcome::kind::pass) return o;
    return pass();
}

outcome kick_is_latched() {
    sleeper s;
    uint32_t go = 0;
    auto job = [&] {
        machine const m;
        auto const irqs = m.irq_save();
        m.ref(go).store(1, pvx::order::release);
        (void)wait_for(go, 2);
        s.halt_once();  // kicked twice before: must not sleep
        s.halt_once();  // the latch holds one kick, not two: must sleep
        m.irq_restore(irqs);
    };
    os::start_job(s.cpu, job);
    machine const m;
    bool const ready = wait_for(go, 1);
    (void)hypercall(call::kick_cpu, 0, s.id);
    (void)hypercall(call::kick_cpu, 0, s.id);
    m.ref(go).store(2, pvx::order::release);
    bool const first = s.woke(1);
    bool const began_second = wait_for(s.halting, 2);
    os::delay_us(settle_us);
    bool const second = m.ref(s.woken).load(pvx::order::acquire) >= 2;
    if (!second) s.rescue(2);
    s.finish();
    if (!ready || !began_second) return fail("the vCPU never came to its halts");
    if (!first) return fail("a kick before the halt was lost");
    // A second halt may return for no reason; that is allowed, and more than a bare latch.
    return second ? pass("two kicks ended two halts, so they are counted or the second was spurious") : pass();
}

outcome pairing_refuses_other_clocks() {
    static constinit abi::kvm_clock_pairing answer = {};
    int64_t const r = hypercall(call::clock_pairing, os::physical_address(&answer), 1);
    if (r == abi::kvm_error::no_such_hypercall) return skip("the host has no clock pairing");
    return r == abi::kvm_error::not_supported ? pass() : fail("clock type 1 returns {}", r);
}

outcome pairing_answers() {
    static constinit abi::kvm_clock_pairing answer = {};
    answer = {};
    machine const m;
    uint64_t const before = m.tsc().value;
    int64_t const r = hypercall(call::clock_pairing, os::physical_address(&answer), 0);
    uint64_t const after = m.tsc().value;
    if (r == abi::kvm_error::no_such_hypercall) return skip("the host has no clock pairing");
    if (r == abi::kvm_error::not_supported) return skip("the host's clock is not the TSC");
    if (r != 0) return fail("returns {}", r);
    if (answer.flags != 0) return fail("flags are {:#x}", answer.flags);
    if (answer.sec < 1'577'836'800 || answer.nsec < 0 || answer.nsec >= 1'000'000'000)
        return fail("{} s {} ns", answer.sec, answer.nsec);
    if (answer.tsc < before || answer.tsc > after) return fail("TSC {} is outside {}..{}", answer.tsc, before, after);
    return pass("{} s since 1970", answer.sec);
}

outcome map_gpa_range_hidden() {
    if (pv::features().has(kvm_feature::hc_map_gpa_range)) return skip("the host offers it");
    int64_t const r = hypercall(call::map_gpa_range, 0x100000, 1, 0);
    return r == abi::kvm_error::no_such_hypercall ? pass() : fail("returns {}", r);
}

constexpr test_case cases[] = {
    {"unknown hypercalls return -1000", {}, unknown_numbers},
    {"the interrupt-poll hypercall returns 0", {}, poll_irq},
    {"the memory-range hypercall returns -1000 where it is not offered", {}, map_gpa_range_hidden},
    {"a yield to any vCPU, itself and an absent one returns 0",
     {.features = mask(kvm_feature::pv_sched_yield)},
     yield_answers},
    {"a kick to an absent vCPU returns 0", {.features = mask(kvm_feature::pv_unhalt)}, kick_answers},
    {"a kick by its APIC id wakes every vCPU that halts with interrupts off",
     {.features = mask(kvm_feature::pv_unhalt), .cpus = 2},
     kick_wakes_each},
    {"a kick before the halt is not lost", {.features = mask(kvm_feature::pv_unhalt), .cpus = 2}, kick_is_latched},
    {"clock pairing refuses other clocks than the wall clock", {}, pairing_refuses_other_clocks},
    {"clock pairing gives the wall clock and a TSC of the same moment", {}, pairing_answers},
};

}  // namespace

constinit const case_list hypercall_cases = list_of(cases);

}  // namespace conform
