// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The page-fault error code. Guest and host. [sdm3a 4.7] [apm2 8.4.2]

#include <pvx/base/bits.hpp>

namespace pvx::inline v0::abi::page_fault {

/// A translation was there, and its access rights forbade the access.
inline constexpr uint32_t present = bit<uint32_t>(0);
inline constexpr uint32_t write = bit<uint32_t>(1);
/// A user-mode access. What the CPU does for itself at CPL 3 (descriptor tables, TSS) is a supervisor-mode access.
inline constexpr uint32_t user = bit<uint32_t>(2);
/// A reserved bit was set in a paging-structure entry.
inline constexpr uint32_t reserved = bit<uint32_t>(3);
/// An instruction fetch. Only told where the CPU can forbid some: with CR4.SMEP, or CR4.PAE and EFER.NXE.
inline constexpr uint32_t fetch = bit<uint32_t>(4);
inline constexpr uint32_t protection_key = bit<uint32_t>(5);
inline constexpr uint32_t shadow_stack = bit<uint32_t>(6);

}  // namespace pvx::inline v0::abi::page_fault
