// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// What the command line can say: each suite is a word of it, each option a key=value.

#include "os/string_view.hpp"

/// Runs on CPU 0 with interrupts on. Returns whether all went well.
using suite_function = bool (*)();

struct suite {
    os::string_view name;
    os::string_view summary;
    suite_function run;
    /// Not in the usage text: for those who test what runs this guest.
    bool hidden = false;
};

bool report();
bool conformance();
bool bench();
bool torture();
bool shootdown();
bool lock();
bool selftest();

/// faults.cpp: faults on the first CPU, faults on another one, hangs.
bool fault();
bool fault_ap();
bool hang();

inline constexpr suite suites[] = {
    {"report", "what the hypervisor offers, what pvx makes of it and why, what each vCPU is given", report},
    {"conform", "conformance of the hypervisor's side of the KVM ABI, as TAP", conformance},
    {"bench", "what exits, IPIs and wake-ups cost", bench},
    {"shootdown", "TLB shootdowns, and locks beside them, for each way to prune the flushes", shootdown},
    {"lock", "locks under contention: test-and-set, ticket, and pvx's in each of its modes", lock},
    {"torture", "the conformance cases about TLB flushes, kicks and locks, at length", torture},
    {"selftest", "the small OS below the suites: CPUs, timer, faults, memory", selftest},
    {"fault", "raises #UD, or goes wrong as kind= says", fault, true},
    {"fault-ap", "raises #UD on CPU 1", fault_ap, true},
    {"hang", "never ends", hang, true},
};

struct option {
    os::string_view key;
    /// Parted by |; `N` is any number, nothing any text.
    os::string_view values;
    os::string_view summary;
    bool hidden = false;
};

inline constexpr option options[] = {
    {"clock", "on|off", "use the KVM clock"},
    {"steal", "on|off", "use the steal-time page"},
    {"flush", "off|host|deferred|both", "leave TLB flushes to the host, to vCPUs that wait, or to both (default)"},
    {"ipi", "on|off", "use IPIs by hypercall"},
    {"yield", "on|off", "use directed yield"},
    {"kick", "on|off", "use the kick"},
    {"format", "table|tsv", "bench, shootdown, lock: for people or for programs"},
    {"seconds", "N", "shootdown, lock: for each way and workload (default 10)"},
    {"spins", "N", "lock: looks of a waiter in a queue before it halts (default 1024)"},
    {"part", "flushes|locks|both", "torture: which cases (default both)"},
    {"shootdowns", "N", "torture: for each case about flushes (default 100000)"},
    {"kicks", "N", "torture: for each case about kicks and locks (default 100000)"},
    {"kind", "", "fault: which", true},
};

/// What runs if the command line names nothing.
inline constexpr os::string_view default_suite = "report";
