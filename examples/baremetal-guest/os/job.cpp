// SPDX-License-Identifier: MIT

/// \file
/// A mailbox (job_slot) per CPU. `state` goes idle -> taken (who posts, by CAS) -> posted (the same) -> idle (the CPU
/// whose mailbox it is, when the function has returned). `waiting` is set by a CPU while it waits, halted, for a job of
/// its own.

#include "job.hpp"

#include "apic.hpp"
#include "atomics.hpp"
#include "clock.hpp"
#include "panic.hpp"
#include "per_cpu.hpp"
#include "trap.hpp"

namespace os {
namespace {

constexpr uint32_t job_idle = 0;
constexpr uint32_t job_taken = 1;
constexpr uint32_t job_posted = 2;

/// How long a wait spins before it halts: about what a halt and a wake-up cost under a hypervisor.
constexpr uint64_t spin_us = 50;

constinit uint32_t idle_mode = static_cast<uint32_t>(idle_kind::halt);

bool is_idle(uint32_t cpu) {
    // order: acquire [os-job-done] what the job wrote; pairs with [os-job-done] in run_posted()
    return atomics.ref(cpu_record(cpu).job.state).load(order::acquire) == job_idle;
}

bool is_posted(job_slot& job) {
    // order: acquire [os-job-post] function and argument; pairs with [os-job-post] in start_job()
    return atomics.ref(job.state).load(order::acquire) == job_posted;
}

/// Runs this CPU's job and wakes who waits for it.
///
///     here                         wait_job()
///     state = idle                 waiting = 1
///     full fence                   full fence
///     if (waiting) IPI             if (state != idle) HLT
///
/// Without either fence both may read the old value: the IPI is lost, and the waiter sleeps until its limit.
void run_posted(job_slot& job) {
    job.function(job.argument);
    uint32_t const owner = job.owner;
    // order: seq_cst [os-job-done] the job's writes before idle, and idle before the look at `waiting`; pairs with
    // [os-job-done] in is_idle() and [os-job-wait] in wait_job()
    atomics.ref(job.state).exchange(job_idle, order::seq_cst);
    if (atomics.ref(cpu_record(owner).job.waiting).load(order::relaxed) != 0) send_ipi(cpu_apic_id(owner), vector_wake);
}

[[noreturn]] void give_up(uint32_t cpu, uint64_t timeout_us) {
    panic("cpu {} (apic id {}) has not finished its job in {} ms", cpu, cpu_apic_id(cpu), timeout_us / 1000);
}

}  // namespace

void start_job(uint32_t cpu, job_function function, void* argument) {
    if (cpu == cpu_self() || cpu >= cpu_count()) panic("no job can be given to cpu {} of {}", cpu, cpu_count());
    job_slot& job = cpu_record(cpu).job;
    uint64_t const begin = arch::rdtsc();
    uint32_t found = job_idle;
    // order: acquire [os-job-done], as in is_idle()
    while (!atomics.ref(job.state).compare_exchange(found, job_taken, order::acquire, order::relaxed)) {
        if (arch::rdtsc() - begin > us_to_tsc(job_timeout_us)) give_up(cpu, job_timeout_us);
        arch::pause();
        found = job_idle;
    }
    job.owner = cpu_self();
    job.function = function;
    job.argument = argument;
    // order: release [os-job-post] function and argument before posted; pairs with [os-job-post] in is_posted(). The
    // IPI is after it because send_ipi() fences.
    atomics.ref(job.state).store(job_posted, order::release);
    send_ipi(cpu_apic_id(cpu), vector_wake);
}

void wait_job(uint32_t cpu, uint64_t timeout_us) {
    uint64_t const begin = arch::rdtsc();
    uint64_t const deadline = begin + us_to_tsc(timeout_us);
    while (arch::rdtsc() - begin < us_to_tsc(spin_us)) {
        if (is_idle(cpu)) return;
        arch::pause();
    }
    uint32_t& waiting = this_cpu().job.waiting;
    set_wait_deadline(deadline);
    arch::irq_disable();
    // order: seq_cst [os-job-wait] waiting before the look at `state`; pairs with [os-job-done] in run_posted()
    atomics.ref(waiting).exchange(1u, order::seq_cst);
    while (!is_idle(cpu)) {
        if (arch::rdtsc() >= deadline) give_up(cpu, timeout_us);
        arch::sti_hlt();
        arch::irq_disable();
    }
    atomics.ref(waiting).store(0u, order::relaxed);
    arch::irq_enable();
    set_wait_deadline(0);
}

void run_on(uint32_t cpu, job_function function, void* argument, uint64_t timeout_us) {
    if (cpu == cpu_self()) return function(argument);
    start_job(cpu, function, argument);
    wait_job(cpu, timeout_us);
}

void run_on_first(uint32_t count, job_function function, void* argument, uint64_t timeout_us) {
    for (uint32_t cpu = 0; cpu < count; ++cpu)
        if (cpu != cpu_self()) start_job(cpu, function, argument);
    function(argument);
    for (uint32_t cpu = 0; cpu < count; ++cpu)
        if (cpu != cpu_self()) wait_job(cpu, timeout_us);
}

void set_idle(idle_kind kind) {
    atomics.ref(idle_mode).store(static_cast<uint32_t>(kind), order::relaxed);
    for (uint32_t cpu = 0; cpu < cpu_count(); ++cpu)
        if (cpu != cpu_self()) send_ipi(cpu_apic_id(cpu), vector_wake);
}

void idle_loop() {
    job_slot& job = this_cpu().job;
    for (;;) {
        arch::irq_disable();
        if (is_posted(job)) {
            arch::irq_enable();
            run_posted(job);
        } else if (atomics.ref(idle_mode).load(order::relaxed) == static_cast<uint32_t>(idle_kind::spin)) {
            arch::irq_enable();
            arch::pause();
        } else {
            arch::sti_hlt();
        }
    }
}

void meeting::wait() {
    auto const round = atomics.ref(round_);
    uint32_t const now = round.load(order::relaxed);
    // order: acq_rel [os-meeting] everything before anyone's arrival is before everyone's departure; the last to arrive
    // passes it on by [os-meeting-round]
    if (atomics.ref(arrived_).fetch_add(1u, order::acq_rel) + 1 == count_) {
        atomics.ref(arrived_).store(0u, order::relaxed);
        // order: release [os-meeting-round]; pairs with [os-meeting-round] below
        round.store(now + 1, order::release);
        return;
    }
    uint64_t const begin = arch::rdtsc();
    // order: acquire [os-meeting-round]; pairs with [os-meeting-round] above
    while (round.load(order::acquire) == now) {
        if (arch::rdtsc() - begin > us_to_tsc(job_timeout_us)) panic("a meeting of {} CPUs did not take place", count_);
        arch::pause();
    }
}

}  // namespace os
