// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The interrupt command register, as a guest writes it: in x2APIC mode one 64-bit MSR, and SELF IPI; in xAPIC mode two
/// halves in the page. What is asked for, whether it may be, and what the register holds afterwards. An APIC that is
/// software-disabled sends all the same. No state: any thread. [sdm3a 11.6.1] [sdm3a 11.12.9] [sdm3a 11.12.11]
///
/// Where AMD's CPUs differ, it is Intel's way: on AMD's, x2APIC mode has no lowest priority, its busy bit faults, and a
/// logical 0xff of an xAPIC means everybody in either model, as in KVM. [apm2 16.6.1] [apm2 16.13]

#include <pvx/abi/apic_fields.hpp>
#include <pvx/host/concepts.hpp>

namespace pvx::inline v0::host {

/// Where an interrupt goes: an APIC id, or a logical destination. apic_ipi::logical says which.
using apic_destination = strong_integer<struct apic_destination_tag, uint32_t>;

/// A command. Always edge-triggered: an APIC overrides the trigger bit. [sdm3a 11.6.1, table 11-3]
struct apic_ipi {
    apic_destination destination{};   ///< Where `shorthand` is none.
    abi::apic_shorthand shorthand{};  ///< A destination that means everybody is told as `all`.
    abi::apic_delivery delivery{};
    uint8_t vector{};  ///< For interrupts, and SIPI: the page number to start in.
    bool logical{};

    friend constexpr bool operator==(apic_ipi const&, apic_ipi const&) = default;
};

/// What to do with a command.
enum class ipi_verdict : uint8_t {
    nothing,         ///< Nothing is sent: only the destination was written, INIT de-asserted, or the mode is reserved.
    send,            ///< Send it.
    send_invalid,    ///< Self, or all with self, and not a fixed interrupt: left open by the manual. KVM sends it.
    illegal_vector,  ///< Nothing is sent; the error status register gets abi::esr_send_illegal_vector.
};

/// What a write comes to.
struct [[nodiscard]] icr_write {
    msr_outcome outcome{};
    ipi_verdict verdict{};
    apic_ipi ipi{};
    uint64_t icr{};  ///< What the ICR holds from now on: in x2APIC mode its value, in xAPIC mode both halves.

    friend constexpr bool operator==(icr_write const&, icr_write const&) = default;
};

/// The verdict on the low half of an ICR.
constexpr ipi_verdict judge_icr(uint32_t low) {
    auto const delivery = static_cast<abi::apic_delivery>((low >> 8) & 7);
    auto const shorthand = static_cast<abi::apic_shorthand>((low >> 18) & 3);
    // Reserved ones: 7, and 3, by which some hypervisors pass a kick on, so that no guest may forge one.
    if ((low >> 8 & 3) == 3) return ipi_verdict::nothing;
    if (abi::is_interrupt(delivery) && (low & 0xff) < abi::first_legal_vector) return ipi_verdict::illegal_vector;
    // Kernels still de-assert after each INIT. Taken for a second one, it would stop a CPU that has just been started.
    bool const deasserts = (low & (abi::icr_level_triggered | abi::icr_level_assert)) == abi::icr_level_triggered;
    if (delivery == abi::apic_delivery::init && deasserts) return ipi_verdict::nothing;
    bool const to_itself = shorthand == abi::apic_shorthand::self || shorthand == abi::apic_shorthand::all;
    return to_itself && delivery != abi::apic_delivery::fixed ? ipi_verdict::send_invalid : ipi_verdict::send;
}

/// The command in an ICR, whose reserved bits do not matter. `mode` says what the destination looks like.
constexpr apic_ipi read_icr(abi::apic_mode mode, uint64_t icr) {
    bool const wide = mode == abi::apic_mode::x2apic;
    uint32_t const low = static_cast<uint32_t>(icr);
    uint32_t const destination = static_cast<uint32_t>(icr >> (wide ? 32 : 56));
    bool const logical = (low & abi::icr_logical) != 0;
    auto shorthand = static_cast<abi::apic_shorthand>((low >> 18) & 3);
    // A logical 0xff of an xAPIC is left to whoever matches LDRs: in the flat model it means whoever has a bit set in
    // its LDR, in the cluster model all clusters. [sdm3a 11.6.2.2] [sdm3a 11.12.9]
    bool const everybody = wide ? destination == 0xffffffff : !logical && destination == 0xff;
    if (shorthand == abi::apic_shorthand::none && everybody) shorthand = abi::apic_shorthand::all;
    return {apic_destination{destination}, shorthand, static_cast<abi::apic_delivery>((low >> 8) & 7),
            static_cast<uint8_t>(low), logical};
}

/// The guest writes MSR `index`, and `icr` is what its ICR holds. Ours are ICR and SELF IPI. \pre the APIC is present
/// (of one that is not, these MSRs are somebody else's): apic_state::write_msr() said that the write is not its own, or
/// that it faults
constexpr icr_write write_icr_msr(abi::apic_mode mode, uint64_t icr, uint32_t index, uint64_t value) {
    bool const self = index == abi::apic_msr(abi::apic_reg::self_ipi);
    if (!self && index != abi::apic_msr(abi::apic_reg::icr_low)) return {msr_outcome::not_ours, {}, {}, icr};
    // The busy bit: Intel's CPUs ignore it, AMD's fault. A guest that reads an xAPIC's ICR and writes it back has it.
    constexpr uint32_t allowed = abi::icr_low_fields | abi::icr_busy;
    uint64_t const reserved = self ? ~uint64_t{0xff} : uint32_t{~allowed};
    if (mode != abi::apic_mode::x2apic || (value & reserved) != 0) return {msr_outcome::fault, {}, {}, icr};
    if (!self) icr = value & ~uint64_t{abi::icr_busy};
    // SELF IPI is a fixed interrupt with this shorthand, and leaves the ICR alone.
    uint64_t const asked = self ? value | uint32_t{static_cast<uint8_t>(abi::apic_shorthand::self)} << 18 : icr;
    return {msr_outcome::done, judge_icr(static_cast<uint32_t>(asked)), read_icr(mode, asked), icr};
}

/// The guest writes `offset` of its xAPIC page, and `icr` is what both halves hold. Ours are those: the high half is
/// kept, the low one sends. Nothing faults, reserved bits read as 0. \pre as of write_icr_msr()
constexpr icr_write write_icr_page(abi::apic_mode mode, uint64_t icr, uint32_t offset, uint32_t value) {
    uint64_t const high = icr & ~uint64_t{0xffffffff}, low = icr & 0xffffffff;
    if (mode != abi::apic_mode::xapic) return {msr_outcome::not_ours, {}, {}, icr};
    if (offset == abi::apic_reg::icr_high)
        return {msr_outcome::done, {}, {}, uint64_t{value & abi::icr_xapic_destination} << 32 | low};
    if (offset != abi::apic_reg::icr_low) return {msr_outcome::not_ours, {}, {}, icr};
    icr = high | (value & abi::icr_low_fields);
    return {msr_outcome::done, judge_icr(value), read_icr(mode, icr), icr};
}

}  // namespace pvx::inline v0::host
