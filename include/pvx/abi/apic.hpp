// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Local APIC: register offsets and the interrupt command. [sdm3a 11.4] [sdm3a 11.6] [sdm3a 11.12] [apm2 16]

#include <pvx/abi/msr.hpp>
#include <pvx/base/types.hpp>

namespace pvx::inline v0::abi {

/// Offsets of registers in the xAPIC page; apic_msr() gives the x2APIC register.
namespace apic_reg {
inline constexpr uint32_t id = 0x020;
inline constexpr uint32_t version = 0x030;
inline constexpr uint32_t tpr = 0x080;
inline constexpr uint32_t eoi = 0x0b0;
inline constexpr uint32_t ldr = 0x0d0;
inline constexpr uint32_t dfr = 0x0e0;
inline constexpr uint32_t svr = 0x0f0;
inline constexpr uint32_t isr = 0x100;
inline constexpr uint32_t tmr = 0x180;
inline constexpr uint32_t irr = 0x200;
inline constexpr uint32_t esr = 0x280;
inline constexpr uint32_t icr_low = 0x300;
inline constexpr uint32_t icr_high = 0x310;
inline constexpr uint32_t lvt_timer = 0x320;
inline constexpr uint32_t lvt_lint0 = 0x350;
inline constexpr uint32_t lvt_lint1 = 0x360;
inline constexpr uint32_t lvt_error = 0x370;
inline constexpr uint32_t timer_initial = 0x380;
inline constexpr uint32_t timer_current = 0x390;
inline constexpr uint32_t timer_divide = 0x3e0;
/// x2APIC only: sends a fixed interrupt to the CPU that writes it.
inline constexpr uint32_t self_ipi = 0x3f0;
/// AMD only: the extended registers, from 0x400 on. [apm2 16.3.2]
inline constexpr uint32_t extended_control = 0x410;
inline constexpr uint32_t specific_eoi = 0x420;
inline constexpr uint32_t interrupt_enable_first = 0x480;
inline constexpr uint32_t interrupt_enable_last = 0x4f0;
inline constexpr uint32_t extended_lvt_first = 0x500;
inline constexpr uint32_t extended_lvt_last = 0x530;
}  // namespace apic_reg

/// The x2APIC register for an xAPIC offset. The ICR is one 64-bit register, that of icr_low.
constexpr uint32_t apic_msr(uint32_t offset) { return msr::ia32_x2apic + offset / 16; }

/// Spurious-interrupt vector register: the APIC is software-enabled.
inline constexpr uint32_t svr_enable = bit<uint32_t>(8);
/// Any LVT register: the interrupt is masked.
inline constexpr uint32_t lvt_masked = bit<uint32_t>(16);
/// LVT timer register: its three modes.
inline constexpr uint32_t lvt_timer_one_shot = 0;
inline constexpr uint32_t lvt_timer_periodic = bit<uint32_t>(17);
inline constexpr uint32_t lvt_timer_tsc_deadline = bit<uint32_t>(18);

/// How an interrupt command is delivered: bits 10:8 of the ICR.
enum class apic_delivery : uint8_t { fixed = 0, lowest_priority = 1, smi = 2, nmi = 4, init = 5, startup = 6 };

/// ICR: the level is "assert", as every command but a de-asserting INIT has it.
inline constexpr uint32_t icr_level_assert = bit<uint32_t>(14);
/// ICR of an xAPIC: the previous command is still being sent.
inline constexpr uint32_t icr_busy = bit<uint32_t>(12);

/// The low half of an interrupt command to one physical destination: vector and delivery mode, no shorthand.
using apic_command = strong_integer<struct apic_command_tag, uint32_t>;

/// An interrupt command. NMI and INIT ignore the vector.
constexpr apic_command make_apic_command(apic_delivery delivery, uint8_t vector) {
    return apic_command{(uint32_t{static_cast<uint8_t>(delivery)} << 8) | vector};
}

/// A command as the x2APIC takes it: the destination in the upper half.
constexpr uint64_t x2apic_icr(apic_id destination, apic_command command) {
    return (uint64_t{destination.value} << 32) | command.value | icr_level_assert;
}

}  // namespace pvx::inline v0::abi
