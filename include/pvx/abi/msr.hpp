// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Architectural model-specific registers, by their manual's names. [sdm4 2.1] [apm2 A]

#include <pvx/base/bits.hpp>

namespace pvx::inline v0::abi::msr {

inline constexpr uint32_t ia32_tsc = 0x10;
inline constexpr uint32_t ia32_tsc_adjust = 0x3b;
inline constexpr uint32_t ia32_apic_base = 0x1b;
inline constexpr uint32_t ia32_misc_enable = 0x1a0;
inline constexpr uint32_t ia32_tsc_deadline = 0x6e0;
/// First of the x2APIC registers: the register at xAPIC offset `n` is MSR ia32_x2apic + n / 16.
inline constexpr uint32_t ia32_x2apic = 0x800;
inline constexpr uint32_t ia32_xss = 0xda0;
inline constexpr uint32_t ia32_efer = 0xc0000080;
inline constexpr uint32_t ia32_fs_base = 0xc0000100;
inline constexpr uint32_t ia32_gs_base = 0xc0000101;
inline constexpr uint32_t ia32_kernel_gs_base = 0xc0000102;

/// Bits of ia32_apic_base.
namespace apic_base {
inline constexpr uint64_t bootstrap_cpu = bit<uint64_t>(8);
inline constexpr uint64_t x2apic_enable = bit<uint64_t>(10);
inline constexpr uint64_t enable = bit<uint64_t>(11);
}  // namespace apic_base

/// Bits of ia32_efer.
namespace efer {
inline constexpr uint64_t syscall_enable = bit<uint64_t>(0);
inline constexpr uint64_t long_mode_enable = bit<uint64_t>(8);
inline constexpr uint64_t long_mode_active = bit<uint64_t>(10);
inline constexpr uint64_t no_execute_enable = bit<uint64_t>(11);
inline constexpr uint64_t svm_enable = bit<uint64_t>(12);
}  // namespace efer

/// Bits of ia32_misc_enable.
namespace misc_enable {
inline constexpr uint64_t monitor_enable = bit<uint64_t>(18);
}  // namespace misc_enable

}  // namespace pvx::inline v0::abi::msr
