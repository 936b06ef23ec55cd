// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// What others must know of a vCPU's APIC to find it, in one word: its id, its mode, its logical destination, whether
/// it takes interrupts. One word, so that no reader sees half of a change. And the one rule by which an APIC decides
/// that a destination means it. No state: any thread. [sdm3a 11.6.2] [sdm3a 11.12.10]

#include <pvx/host/apic_icr.hpp>
#include <pvx/host/apic_state.hpp>

namespace pvx::inline v0::host {

/// The word. Zero, as forgotten memory is: no APIC.
///
///     31:0 id   39:32 logical id of the LDR   43:40 model of the DFR   49:48 mode   58:56 apic_word
struct apic_identity {
    uint64_t bits;

    constexpr apic_id id() const { return apic_id{static_cast<uint32_t>(bits)}; }
    constexpr abi::apic_mode mode() const { return static_cast<abi::apic_mode>((bits >> 48) & 3); }
    /// As in an xAPIC: ids from 256 on look like smaller ones.
    constexpr uint32_t short_id() const { return bits & 0xff; }
    /// Of an xAPIC.
    constexpr uint32_t logical_id() const { return (bits >> 32) & 0xff; }
    constexpr uint32_t model() const { return (bits >> 40) & 0xf; }

    /// Enabled in IA32_APIC_BASE, so that it can be found at all.
    constexpr bool reachable() const { return has(apic_word::hardware); }
    /// Takes a message of this kind, see apic_state::accepts().
    constexpr bool accepts(abi::apic_delivery how) const {
        return has(abi::is_interrupt(how) ? apic_word::usable : apic_word::hardware);
    }

    /// A physical destination means it. An xAPIC answers to its eight bits and, as in KVM, to an id above them: a CPU
    /// that has one starts as an xAPIC too, and must be found by the INIT that starts it.
    constexpr bool answers(apic_id to) const {
        return to == id() || (mode() != abi::apic_mode::x2apic && to.value == short_id());
    }
    /// A logical destination means it. Each APIC reads it in its own way: an x2APIC as a cluster and sixteen bits, an
    /// xAPIC as eight bits that its DFR explains, so that a wider one means no xAPIC. All eight bits mean each xAPIC
    /// that has set a bit. Clusters are 0 to 14; of 15 the manual says no more than that. [sdm3a 11.6.2.2]
    constexpr bool answers_logical(uint32_t to) const {
        if (mode() == abi::apic_mode::x2apic) {
            uint32_t const ldr = abi::x2apic_ldr(id());
            return (ldr ^ to) >> 16 == 0 && (ldr & to & 0xffff) != 0;
        }
        if (to > 0xff) return false;
        if (model() == abi::dfr_flat) return (logical_id() & to) != 0;
        if (model() != abi::dfr_cluster) return false;
        return (to == 0xff || (logical_id() ^ to) >> 4 == 0) && (logical_id() & to & 0xf) != 0;
    }
    /// The destination field of a command means it. Shorthands, so everybody as well, are not looked at.
    constexpr bool answers(apic_ipi const& ipi) const {
        return ipi.logical ? answers_logical(ipi.destination.value) : answers(apic_id{ipi.destination.value});
    }

    friend constexpr bool operator==(apic_identity, apic_identity) = default;

private:
    constexpr bool has(uint8_t bit) const { return (bits >> 56 & bit) != 0; }
};

/// From registers: those of an xAPIC for LDR and DFR. In x2APIC mode they do not count: there the LDR follows from the
/// id, whatever a saved state says.
constexpr apic_identity make_apic_identity(apic_id id, abi::apic_mode mode, uint8_t word, uint32_t ldr = 0,
                                           uint32_t dfr = abi::dfr_reset) {
    return {id.value | uint64_t{ldr >> 24} << 32 | uint64_t{dfr >> 28} << 40 |
            uint64_t{static_cast<uint8_t>(mode)} << 48 | uint64_t{word} << 56};
}
template <apic_presence Presence>
constexpr apic_identity make_apic_identity(apic_state<Presence> const& apic, uint32_t ldr, uint32_t dfr) {
    return make_apic_identity(apic.id(), apic.mode(), apic.word(), ldr, dfr);
}

}  // namespace pvx::inline v0::host
