// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The little of ACPI that is needed: the CPUs, from the MADT, and a timer to measure others against, from the FADT.
/// [acpi 5.2]

#include <stdint.h>

#include "per_cpu.hpp"

namespace os {

struct acpi_info {
    /// APIC ids of the enabled CPUs, each once, in the order of the table. Others could be started only after a hotplug
    /// event.
    uint32_t apic_ids[max_cpus];
    uint32_t cpu_count;
    /// Enabled CPUs beyond max_cpus.
    uint32_t ignored_count;
    /// I/O port of the ACPI power-management timer; 0 if there is none.
    uint16_t pm_timer_port;
};

/// Reads the tables that the RSDP leads to and reserves their memory. `rsdp` 0: looks where PC firmware puts it. A
/// table with a wrong checksum is named on the console and ignored.
acpi_info read_acpi(uint64_t rsdp);

}  // namespace os
