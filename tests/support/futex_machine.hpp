// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Threads of a Linux process as the CPUs of guest::lock_domain: halt and kick are futex operations on a counter of
/// each thread. Complete, and for programs as well: `Atomics` is pvx::builtin_atomics, pvx::arch::x86_64, or a policy
/// of the tests.

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vector>

#include <pvx/guest/concepts.hpp>

namespace pvx_test {

using namespace pvx;

/// The threads. Outlives the machines that refer to it.
class futex_cpus {
public:
    explicit futex_cpus(uint32_t count) : kicks_(count) {}

    /// The calling thread is this CPU from now on. \pre no other thread is
    static void become(cpu_index cpu) { mine() = cpu; }
    static cpu_index self() { return mine(); }

    uint32_t count() const { return static_cast<uint32_t>(kicks_.size()); }
    /// Where a CPU sleeps: how often it was kicked.
    uint32_t& kicks(cpu_index cpu) { return kicks_[cpu.value].count; }

private:
    static cpu_index& mine() {
        thread_local cpu_index cpu{};
        return cpu;
    }
    // One cache line each: a kick of one thread is no business of another.
    struct alignas(64) line {
        uint32_t count = 0;
    };
    std::vector<line> kicks_;
};

/// The handle that a domain holds.
template <class Atomics>
struct futex_machine : Atomics {
    futex_cpus* cpus;

    explicit futex_machine(futex_cpus& c) : cpus(&c) {}

    cpu_index self() const { return futex_cpus::self(); }
    uint32_t possible_cpus() const { return cpus->count(); }
    apic_id apic(cpu_index cpu) const { return apic_id{cpu.value}; }
    void relax() const { __builtin_ia32_pause(); }

    /// Sleeps until it is kicked once more. A counter and not a flag: a signal handler that waits between the look and
    /// the sleep would take the flag for itself.
    template <class Cell>
    void wait(Cell& watched, uint32_t mask, uint32_t value) const {
        auto const kicks = this->ref(cpus->kicks(self()));
        // order: acquire what the kicker stored before its kick, here and below; pairs with kick()
        uint32_t const before = kicks.load(order::acquire);
        if ((this->ref(watched).load(order::relaxed) & mask) != value) return;
        // The kernel compares once more when it has queued us.
        futex(cpus->kicks(self()), FUTEX_WAIT_PRIVATE, before);
        static_cast<void>(kicks.load(order::acquire));
    }

    void kick(cpu_index cpu) const {
        uint32_t& kicks = cpus->kicks(cpu);
        // order: release pairs with wait()
        this->ref(kicks).fetch_add(1, order::release);
        futex(kicks, FUTEX_WAKE_PRIVATE, 1);
    }

private:
    static void futex(uint32_t& word, int operation, uint32_t value) {
        int const error = errno;  // of what a signal handler interrupted
        syscall(SYS_futex, &word, operation, value, nullptr, nullptr, 0);
        errno = error;
    }
};

}  // namespace pvx_test
