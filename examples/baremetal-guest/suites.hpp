// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// What the guest can run: each suite is a word of the command line.

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
bool selftest();

/// faults.cpp: faults on the first CPU, faults on another one, hangs.
bool fault();
bool fault_ap();
bool hang();

inline constexpr suite suites[] = {
    {"report", "what the hypervisor offers, what pvx makes of it and why, what each vCPU is given", report},
    {"conform", "conformance of the hypervisor's side of the KVM ABI, as TAP", conformance},
    {"bench", "what exits, IPIs and wake-ups cost", bench},
    {"selftest", "the small OS below the suites: CPUs, timer, faults, memory", selftest},
    {"fault", "raises #UD, or goes wrong as kind= says", fault, true},
    {"fault-ap", "raises #UD on CPU 1", fault_ap, true},
    {"hang", "never ends", hang, true},
};

/// What runs if the command line names nothing.
inline constexpr os::string_view default_suite = "report";
