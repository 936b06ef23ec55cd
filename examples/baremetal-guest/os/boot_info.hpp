// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// What the loader says, from a PVH start info or a multiboot 2 information structure: RAM, command line, ACPI's RSDP.
/// [pvh] [multiboot2 3.6]

#include <stdint.h>

#include "string_view.hpp"

namespace os {

/// The values that boot/entry.S passes.
enum class boot_protocol : uint32_t { pvh = 0, multiboot2 = 1 };

struct boot_info {
    /// Copied: the loader's memory need not be kept.
    string_view command_line;
    /// Physical address; 0 if the loader names none.
    uint64_t rsdp = 0;
};

/// Reads it, and tells memory.hpp which RAM there is and what of it the loader uses.
boot_info read_boot_info(boot_protocol protocol, uint64_t address);

}  // namespace os
