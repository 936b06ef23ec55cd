// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Making the table of CPUs, and starting all but the first, by INIT and SIPI. [sdm3a 9.4.4]

#include "acpi.hpp"

namespace os {

/// Makes this CPU number 0: its record, GDT, TSS, IDT, GS. First of all, since faults can be reported only then.
void initialise_first_cpu();

/// Starts the other CPUs of the list and returns when all of them are idle. One that does not come up is a panic.
void start_other_cpus(acpi_info const& acpi);

}  // namespace os
