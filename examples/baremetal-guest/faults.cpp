// SPDX-License-Identifier: MIT

/// \file
/// Hidden suites that go wrong on purpose, for those who test what runs this guest, and the guest's own reports:
/// `fault kind=...`, `fault-ap`, `hang`. Each must end in one readable report and a non-zero exit code; only `hang` has
/// none.

#include "os/os.hpp"
#include "suites.hpp"

namespace {

constexpr auto undefined = [] { os::undefined_instruction(); };

void null_write() { *static_cast<uint32_t volatile*>(os::opaque_memory(8)) = 1; }

void null_call() { reinterpret_cast<void (*)()>(os::opaque_memory(0))(); }

/// Uses the stack up: the guard page makes it #PF, which finds no stack either, which makes it #DF.
uint64_t deeper(uint64_t depth) {
    uint64_t volatile local[16];
    local[depth % 16] = depth;
    return local[depth % 16] == depth ? deeper(depth + 1) + local[0] : 0;
}
void stack_overflow() { deeper(0); }

void everywhere() { os::run_on_all(undefined); }

/// Faults while it holds the console's lock.
void in_console() { os::write({static_cast<char const*>(os::opaque_memory(8)), 8}); }

/// Faults while another CPU has the lock and does not give it back.
void console_taken() {
    if (os::cpu_count() > 1)
        os::start_job(1, [] {
            os::seize_console();
            for (;;) os::arch::pause();
        });
    os::delay_us(100'000);
    undefined();
}

void unexpected_nmi() { os::send_nmi(os::cpu_apic_id(os::cpu_self())); }

void unexpected_interrupt() { os::send_ipi(os::cpu_apic_id(os::cpu_self()), os::last_free_vector); }

/// A job that does not end in time.
void endless_job() {
    if (os::cpu_count() < 2) os::panic("a job needs a second CPU");
    os::run_on(
        1, [](void*) { os::halt_for_ever(); }, nullptr, 500'000);
}

void endless_meeting() {
    os::meeting two(2);
    two.wait();
}

struct {
    os::string_view name;
    void (*run)();
} constexpr kinds[] = {
    {"undefined", undefined},
    {"null-write", null_write},
    {"null-call", null_call},
    {"stack-overflow", stack_overflow},
    {"everywhere", everywhere},
    {"in-console", in_console},
    {"console-taken", console_taken},
    {"nmi", unexpected_nmi},
    {"interrupt", unexpected_interrupt},
    {"endless-job", endless_job},
    {"endless-meeting", endless_meeting},
};

}  // namespace

bool fault() {
    os::string_view const wanted = os::option_value("kind", "undefined");
    for (auto const& kind : kinds)
        if (kind.name == wanted) {
            kind.run();
            os::delay_us(1'000'000);  // an interrupt may take its time
            os::print("fault: {} did not happen\n", wanted);
            return false;
        }
    os::print("fault: kind= can be\n");
    for (auto const& kind : kinds) os::print("  {}\n", kind.name);
    return false;
}

bool fault_ap() {
    if (os::cpu_count() < 2) os::panic("fault-ap needs a second CPU");
    os::run_on(1, undefined);
    return false;
}

bool hang() {
    os::print("hanging, with interrupts off\n");
    os::halt_for_ever();
}
