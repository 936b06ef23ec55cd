// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Fields of local APIC registers that a guest writes and a host must understand: IA32_APIC_BASE, the APIC id, the
/// spurious-interrupt vector register (SVR), the interrupt command register (ICR). Offsets: abi/apic.hpp.
/// [sdm3a 11.4] [sdm3a 11.6.1] [sdm3a 11.9] [sdm3a 11.12]

#include <pvx/abi/apic.hpp>

namespace pvx::inline v0::abi {

/// How a local APIC works: bits 11 (enable) and 10 (x2APIC) of IA32_APIC_BASE. [sdm3a 11.12.1]
enum class apic_mode : uint8_t { disabled = 0, invalid = 1, xapic = 2, x2apic = 3 };

/// The mode that a value of IA32_APIC_BASE asks for.
constexpr apic_mode apic_mode_of(uint64_t apic_base) { return static_cast<apic_mode>((apic_base >> 10) & 3); }

/// IA32_APIC_BASE: where the xAPIC page is after RESET.
inline constexpr uint64_t apic_base_default = 0xfee00000;
/// IA32_APIC_BASE: the page's address, up to the width of physical addresses.
inline constexpr uint64_t apic_base_address = bit_range<uint64_t>(12, 63);
/// IA32_APIC_BASE: reserved on every CPU. [sdm3a 11.4.4]
inline constexpr uint64_t apic_base_reserved = bit_range<uint64_t>(0, 7) | bit<uint64_t>(9);

/// The MSR is in the range of the x2APIC's registers, which fault in any other mode. [sdm3a 11.12.1.2] [sdm3a 11.12.2]
constexpr bool is_x2apic_msr(uint32_t index) { return index - msr::ia32_x2apic < 0x100; }

/// The ID register's value: 8 bits in 31:24, or all 32 in x2APIC mode. [sdm3a 11.4.6] [sdm3a 11.12.5.1]
constexpr uint32_t apic_id_register(apic_id id, apic_mode mode) {
    return mode == apic_mode::x2apic ? id.value : id.value << 24;
}
/// The id in such a value. An xAPIC's has no more than 8 bits: ids from 256 on look like smaller ones.
constexpr apic_id apic_id_in(uint32_t id_register, apic_mode mode) {
    return apic_id{mode == apic_mode::x2apic ? id_register : id_register >> 24};
}
/// The logical destination register in x2APIC mode, read-only: the cluster in 31:16, one bit of 15:0. Of the id only
/// the low 20 bits count. [sdm3a 11.12.10.2]
constexpr uint32_t x2apic_ldr(apic_id id) { return (id.value >> 4) << 16 | bit<uint32_t>(id.value & 15); }

/// Destination format register of an xAPIC after RESET and INIT: flat. [sdm3a 11.6.2.2]
inline constexpr uint32_t dfr_reset = 0xffffffff;
/// DFR: the two models that bits 31:28 can have.
inline constexpr uint32_t dfr_flat = 15;
inline constexpr uint32_t dfr_cluster = 0;

/// SVR after RESET and INIT: software-disabled. [sdm3a 11.4.7.1]
inline constexpr uint32_t svr_reset = 0xff;
/// SVR: an EOI is not broadcast to the I/O APICs. Reserved unless the version register offers it. [sdm3a 11.8.5]
inline constexpr uint32_t svr_no_eoi_broadcast = bit<uint32_t>(12);
/// SVR: the bits that every APIC takes: vector, enable, and bit 9 (focus checking). AMD: read/write; Intel: reserved by
/// now, accepted as KVM does. [apm2 16.4.7]
inline constexpr uint32_t svr_always = bit_range<uint32_t>(0, 9);

/// An interrupt, with a vector and a priority, rather than a message of another kind.
constexpr bool is_interrupt(apic_delivery how) {
    return how == apic_delivery::fixed || how == apic_delivery::lowest_priority;
}
/// ICR: who is meant in place of the destination field.
enum class apic_shorthand : uint8_t { none = 0, self = 1, all = 2, others = 3 };
/// ICR: the destination is a logical one.
inline constexpr uint32_t icr_logical = bit<uint32_t>(11);
/// ICR: level-triggered. Has a meaning for the de-assertion of INIT only.
inline constexpr uint32_t icr_level_triggered = bit<uint32_t>(15);
/// ICR: the bits of the low half that a write can set in either mode; the others are reserved, or the busy bit.
inline constexpr uint32_t icr_low_fields =
    bit_range<uint32_t>(0, 11) | bit_range<uint32_t>(14, 15) | bit_range<uint32_t>(18, 19);
/// ICR, high half in xAPIC mode: the destination.
inline constexpr uint32_t icr_xapic_destination = bit_range<uint32_t>(24, 31);

/// The first vector that an interrupt can have. [sdm3a 11.5.2]
inline constexpr uint8_t first_legal_vector = 16;
/// Error status register: an interrupt with a smaller vector was to be sent. [sdm3a 11.5.3]
inline constexpr uint32_t esr_send_illegal_vector = bit<uint32_t>(5);

}  // namespace pvx::inline v0::abi
