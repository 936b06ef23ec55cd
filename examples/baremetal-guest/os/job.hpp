// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Work for other CPUs. A CPU without a job is idle, halted or spinning, with interrupts on; a job runs with interrupts
/// on. A CPU that waits for another's job takes none itself. Every wait has a limit and ends in a panic that names the
/// CPU: nothing hangs.

#include <stdint.h>

#include "erased.hpp"

namespace os {

using job_function = void (*)(void*);

/// In per_cpu.hpp; here for run_on_all().
uint32_t cpu_count();

/// Enough for anything sensible where 64 vCPUs share 2 CPUs under an emulator, and less than the time that whoever runs
/// this guest gives it, so that the report is still seen.
inline constexpr uint64_t job_timeout_us = 30'000'000;

/// The mailbox of one CPU. See job.cpp for who writes what.
struct job_slot {
    uint32_t state;
    uint32_t owner;
    job_function function;
    void* argument;
    uint32_t waiting;
};

/// Gives a CPU other than this one a job; waits while it has another. What it is given must live until it is done.
void start_job(uint32_t cpu, job_function function, void* argument);

/// Waits, halted, until the job that this CPU gave to `cpu` is done. \pre interrupts are on
void wait_job(uint32_t cpu, uint64_t timeout_us = job_timeout_us);

/// Runs a function on one CPU, which may be this one, and waits for it.
void run_on(uint32_t cpu, job_function function, void* argument, uint64_t timeout_us = job_timeout_us);

/// Runs a function on CPUs 0 .. count - 1 at once, and waits for all. \pre this CPU is one of them
void run_on_first(uint32_t count, job_function function, void* argument, uint64_t timeout_us = job_timeout_us);

/// The same for any callable; it is shared by the CPUs and runs on all of them at once.
template <class F>
void run_on(uint32_t cpu, F const& f) {
    run_on(cpu, call_erased<F>, erase_type(f));
}
template <class F>
void run_on_first(uint32_t count, F const& f) {
    run_on_first(count, call_erased<F>, erase_type(f));
}
template <class F>
void start_job(uint32_t cpu, F const& f) {
    start_job(cpu, call_erased<F>, erase_type(f));
}

/// Runs a callable on every CPU at once, and waits for all.
template <class F>
void run_on_all(F const& f) {
    run_on_first(cpu_count(), f);
}

/// How CPUs without a job wait. Halted by default; spinning shows what a halt hides (a TLB that HLT may lose).
enum class idle_kind : uint32_t { halt, spin };
void set_idle(idle_kind kind);

/// Takes jobs for ever: what a started CPU does.
[[noreturn]] void idle_loop();

/// Where CPUs meet: wait() returns when `count` CPUs have called it. Can be used again. Spins, with a limit.
class meeting {
public:
    explicit meeting(uint32_t count) : count_(count) {}
    void wait();

private:
    uint32_t count_;
    uint32_t arrived_ = 0;
    uint32_t round_ = 0;
};

}  // namespace os
