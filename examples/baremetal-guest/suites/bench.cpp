// SPDX-License-Identifier: MIT

/// \file
/// What leaving the guest costs here, and what the paravirtual ways save: TSC ticks, median and spread.
/// The two ways of one thing are measured in turns, so that a disturbance meets both.

#include "../os/apic.hpp"
#include "../os/clock.hpp"
#include "../os/console.hpp"
#include "../os/job.hpp"
#include "../os/panic.hpp"
#include "../os/timer.hpp"
#include "../os/trap.hpp"
#include "../pv.hpp"
#include "../suites.hpp"
#include "bench/samples.hpp"

namespace {

namespace abi = pvx::abi;
using abi::kvm_feature;
using bench_suites::print_header;
using bench_suites::print_row;
using bench_suites::print_skip;
using bench_suites::samples;

constexpr uint64_t budget_us = 1'000'000;  // per row; a slow machine takes fewer samples
constexpr uint64_t patience_us = 5'000'000;
constexpr uint8_t vector = 0x61;
constexpr uint32_t unused_apic_id = 0xfffe;  // an xAPIC id has 8 bits, and nobody gives a guest this many vCPUs

constinit samples first = {};
constinit samples second = {};

/// Times batches of an operation that this vCPU does alone.
template <class F>
uint64_t measure(char const* name, uint32_t batch, F operation) {
    machine const m;
    for (uint32_t i = 0; i < batch; ++i) operation();
    first.count = 0;
    uint64_t const end = m.tsc().value + os::us_to_tsc(budget_us);
    while (!first.full() && m.tsc().value < end) {
        uint64_t const begin = m.tsc().value;
        for (uint32_t i = 0; i < batch; ++i) operation();
        first.add((m.tsc().value - begin) / batch);
    }
    return print_row(name, first);
}

template <uint32_t Count>
[[gnu::always_inline]] inline void read_tsc_times() {
    if constexpr (Count > 0) {
        (void)os::arch::rdtsc();
        read_tsc_times<Count - 1>();
    }
}

/// The least that this many instructions were seen to take: an interrupt adds, and nothing subtracts.
template <uint32_t Count>
uint64_t ticks_of_instructions() {
    uint64_t least = ~uint64_t{0};
    for (uint32_t i = 0; i < 10; ++i) {
        uint64_t const begin = os::arch::rdtsc();
        read_tsc_times<Count>();
        uint64_t const ticks = os::arch::rdtsc() - begin;
        if (ticks < least) least = ticks;
    }
    return least;
}

/// TSC ticks of a thousand instructions that only read the TSC. No CPU is so fast that it is 1000, but an emulator that
/// counts is (run-guest --exact), unless somebody scales the TSC: then this is the scale.
uint64_t ticks_per_1000_instructions() {
    constexpr uint32_t count = 100;
    return (ticks_of_instructions<count>() - ticks_of_instructions<0>()) * (1000 / count);
}

void print_calibration() {
    uint64_t const ticks = ticks_per_1000_instructions();
    if (bench_suites::for_programs()) {
        bench_suites::print_fact("ticks_per_1000_instructions", ticks);
        bench_suites::print_fact("vcpus", os::cpu_count());
    } else if (ticks == 1000) {
        os::print(
            "\na TSC tick is one instruction here: the ticks below are exact counts of guest and host together\n");
    }
}

constinit uint32_t arrived = 0;

void count_arrival(os::trap_frame&) { machine{}.ref(arrived).fetch_add(1, pvx::order::seq_cst); }

/// What goes by a vCPU's own APIC, so that one vCPU is enough.
void bench_own_interrupts() {
    machine const m;
    if (pv::features().has(kvm_feature::pv_unhalt)) {
        // Leaves a kick behind, which ends this vCPU's next halt at once: every halt here looks at what it waits for.
        uint32_t const id = os::cpu_apic_id(os::cpu_self());
        measure("kick hypercall, to itself", 16, [&] { (void)m.hypercall(abi::kvm_hypercall::kick_cpu, 0, id, 0, 0); });
    } else {
        print_skip("kick hypercall, to itself", "not offered");
    }
    auto const command = abi::make_apic_command(abi::apic_delivery::fixed, vector);
    if (os::apic_is_x2apic())
        measure("x2APIC ICR write, to an id that no vCPU has", 16,
                [&] { m.native_ipi(pvx::apic_id{unused_apic_id}, command); });
    else
        print_skip("x2APIC ICR write, to an id that no vCPU has", "the APIC is an xAPIC");
    os::set_irq_handler(vector, count_arrival);
    measure("IPI to itself, sent, handled, EOI", 16, [&] { m.native_ipi(m.apic(m.self()), command); });
    os::set_irq_handler(vector, nullptr);
}

void bench_exits() {
    machine const m;
    bool const kvm = pv::features().find(pvx::guest::hypervisor::kvm) != nullptr;
    print_calibration();
    print_header();
    measure("reading the TSC, in order (no exit)", 64, [&] { (void)m.tsc(); });
    measure("CPUID", 16, [&] { (void)m.cpuid(0, 0); });
    if (kvm)
        measure("null hypercall", 16, [&] { (void)m.hypercall(abi::kvm_hypercall::vapic_poll_irq, 0, 0, 0, 0); });
    else
        print_skip("null hypercall", "the hypervisor is not KVM");
    measure("MSR read (APIC base)", 16, [&] { (void)m.read_msr(abi::msr::ia32_apic_base); });
    if (pv::features().has(kvm_feature::poll_control))
        measure("MSR write (poll control)", 16, [&] { m.write_msr(abi::kvm_msr::poll_control.index, 1); });
    else
        print_skip("MSR write (poll control)", "not offered");
    bench_own_interrupts();
    if (pv::configuration().clock)
        measure("KVM clock, now() (no exit)", 64, [&] { (void)pv::clock().now(); });
    else
        print_skip("KVM clock, now()", pvx::guest::to_string(pv::configuration().clock.why));
    if (pv::configuration().steal_time)
        measure("steal time, read() (no exit)", 64, [&] { (void)pv::steal.read(m.self()); });
    else
        print_skip("steal time, read()", pvx::guest::to_string(pv::configuration().steal_time.why));
}

void wait_for_arrivals(uint32_t n) {
    machine const m;
    uint64_t const end = m.tsc().value + os::us_to_tsc(patience_us);
    while (m.ref(arrived).load(pvx::order::acquire) < n) {
        if (m.tsc().value > end)
            os::panic("bench: {} of {} interrupts arrived", m.ref(arrived).load(pvx::order::acquire), n);
        m.relax();
    }
}

/// A mask of all vCPUs but this one.
struct others {
    unsigned long words[1];
    uint32_t count = os::cpu_count() - 1;

    others() : words{pvx::bit_range<unsigned long>(0, os::cpu_count() - 1) & ~(1ul << os::cpu_self())} {}
    pvx::const_cpu_mask_view mask() const { return {words, os::cpu_count()}; }
};

void bench_ipis() {
    if (os::cpu_count() < 2) return print_skip("IPIs", "only one vCPU");
    machine const m;
    auto const command = abi::make_apic_command(abi::apic_delivery::fixed, vector);
    others const targets;
    bool const paravirtual = bool(pv::configuration().send_ipi);
    auto const native = [&] {
        targets.mask().for_each([&](pvx::cpu_index cpu) { m.native_ipi(m.apic(cpu), command); });
    };

    os::set_irq_handler(vector, count_arrival);
    auto const round = [&](auto send, samples& sent, samples* done) {
        m.ref(arrived).store(0, pvx::order::seq_cst);
        uint64_t const begin = m.tsc().value;
        send();
        uint64_t const gone = m.tsc().value;
        wait_for_arrivals(targets.count);
        sent.add(gone - begin);
        if (done != nullptr) done->add(m.tsc().value - begin);
    };

    // How long the sender is busy, and then how long until everybody has it. Targets are idle, so they must be woken.
    static constinit samples native_done = {}, paravirtual_done = {};
    first.count = second.count = native_done.count = paravirtual_done.count = 0;
    uint64_t const end = m.tsc().value + os::us_to_tsc(2 * budget_us);
    while (!first.full() && m.tsc().value < end) {
        round(native, first, &native_done);
        if (paravirtual) round([&] { (void)pv::ipi.send(targets.mask(), command); }, second, &paravirtual_done);
    }
    os::set_irq_handler(vector, nullptr);

    if (!bench_suites::for_programs())
        os::print("{:<44}\n", os::cpu_count() == 2 ? "one halted vCPU:" : "all other vCPUs, halted:");
    uint64_t const by_icr = print_row("  native IPIs, sender busy", first);
    print_row("  native IPIs, until all have it", native_done);
    if (!paravirtual) return print_skip("  PV IPIs", pvx::guest::to_string(pv::configuration().send_ipi.why));
    uint64_t const by_call = print_row("  PV IPIs, sender busy", second);
    print_row("  PV IPIs, until all have it", paravirtual_done);
    if (by_call != 0 && !bench_suites::for_programs())
        os::print("  PV IPIs keep the sender busy {} times less for {} targets\n",
                  os::fixed{static_cast<int64_t>(by_icr * 100 / by_call), 2}, targets.count);
}

/// From a native IPI to the handler of a vCPU that is idle: halted with interrupts on.
void bench_wake() {
    char const* const name = "HLT wake: native IPI to handler, one vCPU";
    if (os::cpu_count() < 2) return print_skip(name, "only one vCPU");
    machine const m;
    auto const command = abi::make_apic_command(abi::apic_delivery::fixed, vector);
    pvx::apic_id const id = m.apic(pvx::cpu_index{os::cpu_count() - 1});
    os::set_irq_handler(vector, count_arrival);
    first.count = 0;
    uint64_t const end = m.tsc().value + os::us_to_tsc(budget_us);
    while (!first.full() && m.tsc().value < end) {
        os::delay_us(200);  // let it fall asleep
        m.ref(arrived).store(0, pvx::order::seq_cst);
        uint64_t const begin = m.tsc().value;
        m.native_ipi(id, command);
        wait_for_arrivals(1);
        first.add(m.tsc().value - begin);
    }
    os::set_irq_handler(vector, nullptr);
    print_row(name, first);
}

/// From the kick to the first instruction after the HLT of a vCPU that halts with interrupts off, as a lock waiter
/// does.
void bench_kick() {
    char const* const name = "kick: halted, interrupts off, to running";
    if (!pv::configuration().kick) return print_skip(name, pvx::guest::to_string(pv::configuration().kick.why));
    machine const m;
    uint32_t const cpu = os::cpu_count() - 1;
    uint32_t const id = os::cpu_apic_id(cpu);
    static constinit uint32_t turn = 0;  // odd: the sleeper is about to halt; even: it was woken
    static constinit uint32_t stop = 0;
    m.ref(turn).store(0, pvx::order::relaxed);
    m.ref(stop).store(0, pvx::order::seq_cst);
    auto sleeper = [&] {
        auto const irqs = m.irq_save();
        while (m.ref(stop).load(pvx::order::acquire) == 0) {
            m.ref(turn).fetch_add(1, pvx::order::seq_cst);
            m.halt_irqs_off();
            uint32_t const now = m.ref(turn).fetch_add(1, pvx::order::seq_cst) + 1;
            // The waker has seen this before the next halt begins, so a kick is never taken for another.
            while (m.ref(stop).load(pvx::order::acquire) == 0 && m.ref(turn).load(pvx::order::acquire) == now)
                m.relax();
        }
        m.irq_restore(irqs);
    };
    os::start_job(cpu, sleeper);
    auto const wait_turn = [&](uint32_t parity, uint64_t limit) {
        while ((m.ref(turn).load(pvx::order::acquire) & 1) != parity)
            if (m.tsc().value > limit) os::panic("bench: a kicked vCPU did not wake");
    };
    first.count = 0;
    uint64_t const end = m.tsc().value + os::us_to_tsc(budget_us);
    while (!first.full() && m.tsc().value < end) {
        uint64_t const limit = m.tsc().value + os::us_to_tsc(patience_us);
        wait_turn(1, limit);
        os::delay_us(200);  // let it fall asleep
        uint64_t const begin = m.tsc().value;
        (void)m.hypercall(abi::kvm_hypercall::kick_cpu, 0, id, 0, 0);
        wait_turn(0, limit);
        first.add(m.tsc().value - begin);
        m.ref(turn).fetch_add(2, pvx::order::seq_cst);  // go on
    }
    m.ref(stop).store(1, pvx::order::seq_cst);
    (void)m.hypercall(abi::kvm_hypercall::kick_cpu, 0, id, 0, 0);
    os::wait_job(cpu);
    print_row(name, first);
}

}  // namespace

bool bench() {
    bench_exits();
    bench_ipis();
    bench_wake();
    bench_kick();
    if (!bench_suites::for_programs()) os::print("\n");
    return true;
}
