// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// GDT, TSS and IDT.

#include "per_cpu.hpp"

namespace os {

/// Fills GDT and IDT. Called once, first of all.
void initialise_descriptor_tables();

/// Loads them on this CPU. `slot` is a number below max_cpus that no other CPU uses: a started CPU takes its TSS before
/// it knows its index.
void load_descriptor_tables(uint32_t slot, cpu_stacks const& stacks);

}  // namespace os
