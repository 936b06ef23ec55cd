// SPDX-License-Identifier: MIT

#include "timer.hpp"

#include <pvx/abi/apic.hpp>
#include <pvx/abi/cpuid.hpp>
#include <pvx/guest/x2apic.hpp>

#include "apic.hpp"
#include "clock.hpp"
#include "cpu_ops.hpp"
#include "panic.hpp"
#include "per_cpu.hpp"
#include "trap.hpp"

namespace os {
namespace {

namespace abi = pvx::abi;

constexpr uint32_t divide_by_16 = 0x3;
constexpr uint64_t max_count = 0xffffffff;

// Set by the first CPU before it starts another.
constinit bool tsc_deadline = false;
constinit uint64_t counter_hz = 0;

/// How many ticks the APIC's counter makes while the TSC makes those of 5 ms.
uint64_t measure_counter_hz() {
    constexpr uint64_t measure_us = 5'000;
    write_apic(abi::apic_reg::timer_initial, max_count);
    uint64_t const start = arch::rdtsc_ordered();
    uint64_t const first = read_apic(abi::apic_reg::timer_current);
    delay_us(measure_us);
    uint64_t const end = arch::rdtsc_ordered();
    uint64_t const last = read_apic(abi::apic_reg::timer_current);
    write_apic(abi::apic_reg::timer_initial, 0);
    if (last >= first) panic("the APIC timer does not count");
    uint64_t const ns = tsc_to_ns(end - start);
    return (first - last) * 1'000'000'000 / ns;
}

/// Sets the hardware to the earlier of the two deadlines. \pre interrupts are off
void program(cpu_timers const& timers) {
    uint64_t deadline = timers.user_deadline;
    if (deadline == 0 || (timers.wait_deadline != 0 && timers.wait_deadline < deadline))
        deadline = timers.wait_deadline;
    if (tsc_deadline) {
        // One that has passed fires at once.
        pvx::guest::arm_tsc_deadline(arch::x86_64{}, pvx::tsc_ticks{deadline});
        return;
    }
    uint64_t count = 0;
    if (deadline != 0) {
        uint64_t const now = arch::rdtsc();
        uint64_t const us = deadline > now ? tsc_to_ns(deadline - now) / 1000 + 1 : 0;
        count = us < 30'000'000 ? us * counter_hz / 1'000'000 + 1 : max_count;  // too early is fine: see on_timer()
        if (count > max_count) count = max_count;
    }
    write_apic(abi::apic_reg::timer_initial, static_cast<uint32_t>(count));
}

void on_timer(trap_frame&) {
    cpu_timers& timers = this_cpu().timers;
    uint64_t const now = arch::rdtsc_ordered();
    if (timers.wait_deadline != 0 && timers.wait_deadline <= now) timers.wait_deadline = 0;
    timer_function function = nullptr;
    if (timers.user_deadline != 0 && timers.user_deadline <= now) {
        timers.user_deadline = 0;
        function = timers.user_function;
    }
    program(timers);
    if (function != nullptr) function();
}

}  // namespace

void initialise_timer() {
    if (cpu_self() == 0) {
        tsc_deadline = abi::has(arch::cpuid(abi::cpuid_leaf::features, 0), abi::cpuid_feature::tsc_deadline);
        set_irq_handler(vector_timer, on_timer);
    }
    if (tsc_deadline) {
        write_apic(abi::apic_reg::lvt_timer, abi::lvt_timer_tsc_deadline | vector_timer);
        if (!apic_is_x2apic()) pvx::guest::order_xapic_deadline_mode(arch::x86_64{});
        return;
    }
    write_apic(abi::apic_reg::timer_divide, divide_by_16);
    if (cpu_self() == 0) counter_hz = measure_counter_hz();
    write_apic(abi::apic_reg::lvt_timer, abi::lvt_timer_one_shot | vector_timer);
}

bool timer_is_tsc_deadline() { return tsc_deadline; }
uint64_t apic_timer_hz() { return counter_hz; }

void arm_timer_us(uint64_t us, timer_function function) {
    irq_guard const guard;
    cpu_timers& timers = this_cpu().timers;
    timers.user_function = function;
    timers.user_deadline = arch::rdtsc() + us_to_tsc(us);
    program(timers);
}

void cancel_timer() {
    irq_guard const guard;
    cpu_timers& timers = this_cpu().timers;
    timers.user_deadline = 0;
    program(timers);
}

void set_wait_deadline(uint64_t deadline) {
    irq_guard const guard;
    cpu_timers& timers = this_cpu().timers;
    timers.wait_deadline = deadline;
    program(timers);
}

void sleep_us(uint64_t us) {
    uint64_t const deadline = arch::rdtsc() + us_to_tsc(us);
    set_wait_deadline(deadline);
    arch::irq_disable();
    while (arch::rdtsc() < deadline) {
        arch::sti_hlt();
        arch::irq_disable();
    }
    arch::irq_enable();
    set_wait_deadline(0);
}

}  // namespace os
