// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// What the guest finds in memory when it starts. [pvh] [acpi]

#include "guest_memory.hpp"

/// Registers of the first vCPU at its start: 32-bit protected mode, flat segments, paging off.
struct boot_entry {
    uint64_t rip;  ///< What the PVH note names.
    uint64_t rbx;  ///< The address of the start info.
};

/// Loads the ELF file `guest`, and writes the start info with the command line, the memory map and the ACPI tables,
/// which list APIC ids 0 .. vcpus - 1. Throws usage for a file that will not do.
boot_entry load_guest(guest_memory& memory, std::string const& guest, std::string const& command_line, uint32_t vcpus);
