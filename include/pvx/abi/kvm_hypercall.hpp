// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// KVM's hypercalls. VMCALL on Intel, VMMCALL on AMD and Hygon; number in RAX, arguments in RBX, RCX, RDX, RSI, result
/// in RAX; only ring 0 may call. A caller in 32-bit mode has everything truncated to 32 bits. [kvm-hypercall]

#include <stdint.h>

namespace pvx::inline v0::abi {

namespace kvm_hypercall {
inline constexpr uint64_t vapic_poll_irq = 1;
/// a0 flags (0), a1 APIC id: wakes a halted vCPU.
inline constexpr uint64_t kick_cpu = 5;
/// a0 guest-physical address of the result, a1 clock type (0: wall clock).
inline constexpr uint64_t clock_pairing = 9;
/// a0, a1 bitmap of 128 APIC ids, a2 the id of its bit 0, a3 ICR without destination: returns how many were reached.
inline constexpr uint64_t send_ipi = 10;
/// a0 APIC id of the vCPU to yield to.
inline constexpr uint64_t sched_yield = 11;
/// a0 guest-physical address, a1 number of pages, a2 attributes.
inline constexpr uint64_t map_gpa_range = 12;
}  // namespace kvm_hypercall

/// a1 of clock_pairing: the host's time of day.
inline constexpr uint64_t kvm_clock_pairing_wall = 0;

/// a2 of map_gpa_range.
namespace gpa_attributes {
inline constexpr uint64_t page_size = 0xf;             ///< Preferred size: 0 is 4 KiB, 1 is 2 MiB, 2 is 1 GiB.
inline constexpr uint64_t encrypted = 1u << 4;         ///< Else plain text.
inline constexpr uint64_t reserved = ~uint64_t{0x1f};  ///< Must be zero.
}  // namespace gpa_attributes

/// APIC ids that one send_ipi can name from a 64-bit caller.
inline constexpr uint32_t kvm_send_ipi_window = 128;

/// Errors, as hypercalls return them: negative.
namespace kvm_error {
inline constexpr int64_t not_permitted = -1;         ///< Caller is not in ring 0.
inline constexpr int64_t too_big = -7;               ///< E2BIG.
inline constexpr int64_t fault = -14;                ///< An address in guest memory could not be used.
inline constexpr int64_t invalid = -22;              ///< An argument is invalid.
inline constexpr int64_t not_supported = -95;        ///< Known, but not available in this configuration.
inline constexpr int64_t no_such_hypercall = -1000;  ///< Unknown number.
}  // namespace kvm_error

}  // namespace pvx::inline v0::abi
