// SPDX-License-Identifier: MIT

/// \file
/// IPIs by hypercall: they reach exactly the CPUs that were named, and wrong arguments give the documented errors.
/// [kvm-hypercall]

#include "../../os/job.hpp"
#include "../../os/trap.hpp"
#include "case.hpp"

namespace conform {
namespace {

namespace abi = pvx::abi;
using abi::kvm_feature;

constexpr uint8_t vector = 0x60;
constexpr abi::apic_command fixed_command = abi::make_apic_command(abi::apic_delivery::fixed, vector);
constexpr abi::apic_command nmi_command = abi::make_apic_command(abi::apic_delivery::nmi, 0);
constexpr uint64_t settle_us = 2'000;

constinit uint32_t received[os::max_cpus] = {};

/// Stays installed for good: what a faulty host sends late, or to the wrong vCPU, is to fail a case and not end the
/// run.
void count_one(os::trap_frame&) { machine{}.ref(received[os::cpu_self()]).fetch_add(1, pvx::order::seq_cst); }

int64_t send_ipi(uint64_t low, uint64_t high, uint64_t lowest, uint64_t icr) {
    return hypercall(abi::kvm_hypercall::send_ipi, low, high, lowest, icr);
}

void start_counting() {
    for (uint32_t& r : received) machine{}.ref(r).store(0, pvx::order::seq_cst);
    os::set_irq_handler(vector, count_one);
}

/// Waits until every CPU of the mask, one bit each, has received something.
outcome all_received(uint64_t mask) {
    machine const m;
    uint64_t const end = m.tsc().value + os::us_to_tsc(patience_us);
    for (uint32_t cpu = 0; cpu < os::cpu_count(); ++cpu)
        while ((mask >> cpu & 1) != 0 && m.ref(received[cpu]).load(pvx::order::acquire) == 0) {
            if (m.tsc().value > end) return fail("mask {:#x}: vCPU {} received nothing", mask, cpu);
            m.relax();
        }
    return pass();
}

/// Sends through the library to the CPUs of a mask.
outcome send_to(uint64_t mask, abi::apic_command command) {
    start_counting();
    unsigned long words[1] = {mask};
    uint32_t const refused = pv::ipi.send({words, os::cpu_count()}, command);
    if (refused != 0) return fail("the host refused {} hypercalls", refused);
    return all_received(mask);
}

/// Nobody received what was not meant for it, nor anything twice. What is pending for a vCPU comes before its next job;
/// what the host is slow to send has a moment more.
outcome nobody_else(uint64_t mask) {
    os::run_on_all([] {});
    os::delay_us(settle_us);
    for (uint32_t cpu = 0; cpu < os::cpu_count(); ++cpu) {
        uint32_t const n = machine{}.ref(received[cpu]).load(pvx::order::acquire);
        if (n != (mask >> cpu & 1)) return fail("mask {:#x}: vCPU {} received {}", mask, cpu, n);
    }
    return pass();
}

outcome every_set(abi::apic_command command) {
    uint64_t const all = pvx::bit_range<uint64_t>(0, os::cpu_count() - 1);
    uint64_t seed = 0x9e3779b97f4a7c15;
    uint32_t sets = 0;
    for (uint32_t round = 0; round < 24; ++round) {
        seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
        uint64_t mask = seed & all;
        if (round == 0) mask = all;
        if (round == 1) mask = all & ~pvx::bit<uint64_t>(os::cpu_self());
        if (pvx::popcount(mask) < 2) continue;  // the library sends a single one natively
        outcome o = send_to(mask, command);
        if (o.what() == outcome::kind::pass) o = nobody_else(mask);
        if (o.what() != outcome::kind::pass) return o;
        ++sets;
    }
    return pass("{} sets of {} vCPUs", sets, os::cpu_count());
}

/// A window over the ids of all vCPUs, as far as it reaches.
pvx::guest::ipi_window window_of_all() {
    pvx::guest::ipi_window w;
    for (uint32_t cpu = 0; cpu < os::cpu_count(); ++cpu) (void)w.add(pvx::apic_id{os::cpu_apic_id(cpu)});
    return w;
}

bool refused_for_good() {
    pvx::guest::ipi_window const w = window_of_all();
    return send_ipi(0, 0, w.lowest().value, fixed_command.value) == abi::kvm_error::not_supported;
}

outcome no_apic_map() { return skip("the host has no map of its APICs (-95), so it refuses every call"); }

outcome exact_fixed() {
    if (refused_for_good()) return no_apic_map();
    return every_set(fixed_command);
}

outcome exact_nmi() {
    if (refused_for_good()) return no_apic_map();
    os::set_nmi_handler(count_one);
    outcome const o = every_set(nmi_command);
    os::set_nmi_handler(ignore_nmi);
    return o;
}

outcome counts_the_reached() {
    if (refused_for_good()) return no_apic_map();
    start_counting();
    pvx::guest::ipi_window const w = window_of_all();
    if (w.count() != os::cpu_count()) return skip("the ids are too far apart for one call");
    int64_t const reached = send_ipi(w.low(), w.high(), w.lowest().value, fixed_command.value);
    int64_t const none = send_ipi(0, 0, w.lowest().value, fixed_command.value);
    outcome const o = all_received(pvx::bit_range<uint64_t>(0, os::cpu_count() - 1));
    if (o.what() != outcome::kind::pass) return o;
    if (none != 0) return fail("an empty set returns {}", none);
    return reached == w.count() ? pass() : fail("{} ids return {}", w.count(), reached);
}

/// Sends to all 128 ids from `lowest` on: those of vCPUs get it, the others are passed over and not counted.
outcome whole_window(uint32_t lowest) {
    uint64_t expected = 0;
    for (uint32_t cpu = 0; cpu < os::cpu_count(); ++cpu)
        if (os::cpu_apic_id(cpu) - lowest < abi::kvm_send_ipi_window) expected |= pvx::bit<uint64_t>(cpu);
    start_counting();
    int64_t const r = send_ipi(~uint64_t{0}, ~uint64_t{0}, lowest, fixed_command.value);
    if (r != pvx::popcount(expected))
        return fail("128 ids from {:#x} on, {} of them in use, return {}", lowest, pvx::popcount(expected), r);
    outcome const o = all_received(expected);
    return o.what() == outcome::kind::pass ? nobody_else(expected) : o;
}

outcome refuses_destinations() {
    // Logical mode and each shorthand: the destination is in the bitmap and nowhere else. A host may look at nothing if
    // the bitmap is empty, so it names this vCPU.
    start_counting();
    uint32_t const bits[] = {0x800, 0x40000, 0x80000, 0xc0000};
    uint32_t const self = os::cpu_apic_id(os::cpu_self());
    for (uint32_t bit : bits)
        if (int64_t const r = send_ipi(1, 0, self, fixed_command.value | bit); r != abi::kvm_error::invalid)
            return fail("ICR bit {:#x} returns {}", bit, r);
    return nobody_else(0);
}

outcome ids_of_nobody() {
    if (refused_for_good()) return no_apic_map();
    // The last window ends with the id that is a broadcast elsewhere. KVM lets ids beyond it wrap to 0: not tested.
    uint32_t lowest = ~0u, highest = 0;
    for (uint32_t cpu = 0; cpu < os::cpu_count(); ++cpu) {
        uint32_t const id = os::cpu_apic_id(cpu);
        if (id < lowest) lowest = id;
        if (id > highest) highest = id;
    }
    uint32_t const windows[] = {lowest, highest, highest + 1, 0x7fffff00, 0xffffff80};
    for (uint32_t first : windows)
        if (outcome const o = whole_window(first); o.what() != outcome::kind::pass) return o;
    return pass();
}

constexpr requirement send_ipi_to_two{.features = mask(kvm_feature::pv_send_ipi), .cpus = 2};
constexpr requirement send_ipi_alone{.features = mask(kvm_feature::pv_send_ipi)};

constexpr test_case cases[] = {
    {"IPIs by hypercall reach exactly the vCPUs that are named", send_ipi_to_two, exact_fixed},
    {"NMIs by hypercall reach exactly the vCPUs that are named", send_ipi_to_two, exact_nmi},
    {"the hypercall returns how many were reached, 0 for nobody", send_ipi_to_two, counts_the_reached},
    {"an ICR with a destination mode or shorthand returns -22", send_ipi_alone, refuses_destinations},
    {"ids that no vCPU has are passed over and not counted", send_ipi_alone, ids_of_nobody},
};

}  // namespace

constinit const case_list ipi_cases = list_of(cases);

}  // namespace conform
