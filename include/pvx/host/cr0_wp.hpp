// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// A guest writes CR0: what must be done, and no more. Where hardware walks the guest's page tables, a change of WP
/// costs nothing but a new idea of what they permit: their roots stay. Shadow page tables are made for one value of
/// WP, so there it takes other roots. With paging off it means nothing. Memory types (CD, NW) and the x87 bits are not
/// in here. One thread per vCPU. [sdm3a 2.5] [sdm2b MOV] [apm2 3.1.1]

#include <pvx/abi/msr.hpp>
#include <pvx/host/guest_cr0.hpp>

namespace pvx::inline v0::host {

/// What translates and checks the guest's addresses.
/// Axiom: refresh_permissions() and reload_roots() are requests, served before the next guest instruction and the next
/// walk of the guest's page tables, from CR0, CR4 and EFER as they are then. The first computes how those tables are
/// walked and what they permit; roots stay. The second goes over to shadow page tables for root_key_of(), kept ones if
/// there are any. reload_pdptes() reads the four entries at the guest's CR3 and answers whether PAE paging takes them:
/// if not, the old ones stay. Where the CPU reads them as it needs them (SVM with nested paging), true is the answer.
/// With shadow page tables, entries that differ from the last ones are other roots, and the mmu goes over to those by
/// itself: a decision says what follows from the registers, and not from memory. WP is no part of what is kept of the
/// first request while the guest owns it: the guest changes it without a request, so each look asks lazy_cr0.
template <class E>
concept mmu_policy = guest_tlb_policy<E> && requires(E const e) {
    { e.direct_map() } -> same_as<bool>;     // direct_map(): hardware walks the page tables of the guest that runs
    e.refresh_permissions();                 // refresh_permissions() asks for new rules for the same roots
    e.reload_roots();                        // reload_roots() asks for the shadow roots of the present key
    { e.reload_pdptes() } -> same_as<bool>;  // reload_pdptes() reads PAE's four entries; false: they are not valid
};

/// Why a write to CR0 is refused, by a general-protection fault with error code 0.
enum class [[nodiscard]] cr0_refusal : uint8_t{
    none,
    upper_bits,  ///< One of bits 63:32.
    nw_without_cd,
    pg_without_pe,
    long_mode_without_pae,      ///< PG set with EFER.LME and without CR4.PAE.
    long_mode_with_cs_l,        ///< PG set with EFER.LME from a code segment that has L.
    long_mode_with_16_bit_tss,  ///< PG set with EFER.LME and a 16-bit TSS. Of Intel alone. [sdm3a 10.8.5]
    leaves_64_bit_mode,         ///< PG cleared in 64-bit mode.
    pg_cleared_with_pcide,
    cet_without_wp,
    vmx_fixed,   ///< A value that VMX operation does not support.
    bad_pdptes,  ///< Entries of PAE paging that are not valid. From write_cr0() only.
};

/// All that the outcome of a write depends on.
struct cr0_inputs {
    uint64_t old_cr0{};  ///< What the guest has, of which bits it owns as of now.
    uint64_t written{};  ///< The operand, zero-extended; of a nested guest: nested_cr0_write::value.
    uint64_t cr4{};      ///< What the guest has. CET can be its own: read as of now.
    uint64_t efer{};
    bool cs_l{};
    /// TR holds a 16-bit TSS, busy or not. Of Intel alone; on AMD leave it false: there the CPU does not look, and TR
    /// is such a TSS after RESET.
    bool tr_16_bit{};
    /// The host uses EPT or nested paging, and so at each level of nesting. Of VMX: with unrestricted guest.
    bool direct{};
    /// Of a guest in VMX operation, as its MSRs tell: IA32_VMX_CR0_FIXED0, and the complement of IA32_VMX_CR0_FIXED1.
    /// PE and PG are not among them if it is a nested unrestricted guest. Otherwise 0. [sdm3c 24.8] [sdm3d A.7]
    uint64_t vmx_ones{};
    uint64_t vmx_zeros{};
};

/// What must be done. All flags are clear if the write is refused, and both values are what they were.
struct cr0_decision {
    cr0_refusal refusal{};
    bool refresh_permissions{};
    bool reload_roots{};
    bool reload_pdptes{};
    bool flush_guest_tlb{};
    uint64_t cr0{};
    uint64_t efer{};  ///< LMA follows PG.

    friend constexpr bool operator==(cr0_decision const&, cr0_decision const&) = default;
};

/// What the roots of page tables were made for. For one CR3, and one set of PDPTEs where PAE paging has them, two with
/// one key can be exchanged. Direct ones are made for any guest. How many levels the guest's tables have, how wide
/// their entries are, and whether PS and XD mean anything in them, is in the key: each changes what one table says. A
/// supervisor that writes without WP to a read-only page of the user's does so, under shadow paging, through an entry
/// that has lost its user bit: SMEP and SMAP then no longer see whose page it is, and need entries of their own. A
/// change of CR4 or EFER that changes the key takes other roots too.
struct root_key {
    static constexpr uint32_t paging = bit<uint32_t>(0);
    static constexpr uint32_t wp = bit<uint32_t>(1);
    static constexpr uint32_t smep_not_wp = bit<uint32_t>(2);
    static constexpr uint32_t smap_not_wp = bit<uint32_t>(3);
    static constexpr uint32_t nx = bit<uint32_t>(4);   ///< With PAE only: entries of 32 bits have no XD.
    static constexpr uint32_t pae = bit<uint32_t>(5);  ///< Entries of 64 bits.
    static constexpr uint32_t long_mode = bit<uint32_t>(6);
    static constexpr uint32_t la57 = bit<uint32_t>(7);  ///< Of long mode only.
    static constexpr uint32_t pse = bit<uint32_t>(8);   ///< Without PAE only.

    uint32_t bits{};

    friend constexpr bool operator==(root_key, root_key) = default;
};

/// The key for one set of control registers.
constexpr root_key root_key_of(bool direct, uint64_t cr0, uint64_t cr4, uint64_t efer) {
    if (direct || (cr0 & abi::cr0::pg) == 0) return {};
    auto const when = [](uint64_t bits, uint32_t part) { return bits != 0 ? part : 0; };
    uint32_t key = root_key::paging;
    if ((cr4 & abi::cr4::pae) == 0)
        key |= when(cr4 & abi::cr4::pse, root_key::pse);
    else
        key |= root_key::pae | when(efer & abi::msr::efer::no_execute_enable, root_key::nx);
    if ((efer & abi::msr::efer::long_mode_enable) != 0)
        key |= root_key::long_mode | when(cr4 & abi::cr4::la57, root_key::la57);
    if ((cr0 & abi::cr0::wp) != 0) return {key | root_key::wp};
    return {key | when(cr4 & abi::cr4::smep, root_key::smep_not_wp) |
            when(cr4 & abi::cr4::smap, root_key::smap_not_wp)};
}

/// CR4.CET stands on CR0.WP: a write to either register that would end so is refused. WP may be the guest's own: for a
/// write to CR4, read it by lazy_cr0. [sdm2b MOV] [apm2 3.1.3]
constexpr bool cet_without_wp(uint64_t cr0, uint64_t cr4) {
    return (cr4 & abi::cr4::cet) != 0 && (cr0 & abi::cr0::wp) == 0;
}

/// Whether the write is refused.
constexpr cr0_refusal cr0_refused(cr0_inputs const& in) {
    using namespace abi;
    namespace efer = abi::msr::efer;
    uint64_t const now = cr0_kept(in.written);
    if ((now >> 32) != 0) return cr0_refusal::upper_bits;
    if ((now & cr0::nw) != 0 && (now & cr0::cd) == 0) return cr0_refusal::nw_without_cd;
    if ((now & cr0::pg) != 0) {
        if ((now & cr0::pe) == 0) return cr0_refusal::pg_without_pe;
        // Only the change is checked: in long mode, CS.L is what 64-bit mode is.
        if ((in.old_cr0 & cr0::pg) == 0 && (in.efer & efer::long_mode_enable) != 0) {
            if ((in.cr4 & cr4::pae) == 0) return cr0_refusal::long_mode_without_pae;
            if (in.cs_l) return cr0_refusal::long_mode_with_cs_l;
            if (in.tr_16_bit) return cr0_refusal::long_mode_with_16_bit_tss;
        }
    } else if ((in.old_cr0 & cr0::pg) != 0) {
        if ((in.efer & efer::long_mode_active) != 0 && in.cs_l) return cr0_refusal::leaves_64_bit_mode;
        if ((in.cr4 & cr4::pcide) != 0) return cr0_refusal::pg_cleared_with_pcide;
    }
    if (cet_without_wp(now, in.cr4)) return cr0_refusal::cet_without_wp;
    if ((~now & in.vmx_ones) != 0 || (now & in.vmx_zeros) != 0) return cr0_refusal::vmx_fixed;
    return cr0_refusal::none;
}

/// What a write to CR0 comes to, by MOV, LMSW or CLTS. What else changes it (a restore such as KVM_SET_SREGS, RSM, VM
/// entry and exit, INIT, a task switch) has rules of its own.
constexpr cr0_decision decide(cr0_inputs const& in) {
    using namespace abi;
    namespace efer = abi::msr::efer;
    uint64_t const now = cr0_kept(in.written);
    cr0_decision d{.refusal = cr0_refused(in), .cr0 = in.old_cr0, .efer = in.efer};
    if (d.refusal != cr0_refusal::none) return d;

    uint64_t const changed = now ^ in.old_cr0;
    bool const pg = (now & cr0::pg) != 0;
    bool const pg_changed = (changed & cr0::pg) != 0;
    bool const long_mode = pg && (in.efer & efer::long_mode_enable) != 0;
    bool const pae_paging = pg && (in.cr4 & cr4::pae) != 0 && !long_mode;
    d.cr0 = now;
    d.efer = (in.efer & ~efer::long_mode_active) | (long_mode ? efer::long_mode_active : 0);
    d.refresh_permissions = pg_changed || (pg && (changed & cr0::wp) != 0);
    // Just where root_key_of() is another: CR4, LME and NXE stay.
    d.reload_roots = !in.direct && d.refresh_permissions;
    d.reload_pdptes = pae_paging && (changed & (cr0::cd | cr0::nw | cr0::pg)) != 0;  // [sdm3a 4.4.1]
    // Intel asks for it when PG is cleared, AMD also when it is set. [sdm3a 4.10.4.1] [apm2 5.5.3]
    d.flush_guest_tlb = pg_changed;
    return d;
}

/// Do what was decided, and take over the new CR0. \return false: the guest gets a general-protection fault, and
/// nothing has changed. \post otherwise the VMM brings decision.cr0 and decision.efer to hardware.
template <mmu_policy Mmu>
[[nodiscard]] constexpr bool apply(cr0_decision const& decision, lazy_cr0& cr0, Mmu const& mmu) {
    auto const tell = [&](cr0_event e) {
        if constexpr (observer_policy<Mmu, cr0_event>) mmu.event(e);
    };
    // First, since it can fail.
    if (decision.refusal != cr0_refusal::none || (decision.reload_pdptes && !mmu.reload_pdptes())) {
        tell(cr0_event::refused);
        return false;
    }
    cr0.set(decision.cr0);
    if (decision.reload_pdptes) tell(cr0_event::pdptes_reloaded);
    if (decision.refresh_permissions) mmu.refresh_permissions(), tell(cr0_event::permissions_refreshed);
    if (decision.reload_roots) mmu.reload_roots(), tell(cr0_event::roots_reloaded);
    if (decision.flush_guest_tlb) mmu.flush_guest_tlb(), tell(cr0_event::tlb_flushed);
    return true;
}

/// The guest writes CR0: decide() and apply(), with the old value and the kind of paging as they are now, whatever `in`
/// says of them. \return what was done; refused, the guest gets a general-protection fault.
template <class Environment>
    requires mmu_policy<Environment> && guest_cr0_policy<Environment>
[[nodiscard]] constexpr cr0_decision write_cr0(lazy_cr0& cr0, cr0_inputs const& in, Environment const& environment) {
    // Member by member: a copy is a call of memcpy at clang's -O0.
    cr0_inputs const now{.old_cr0 = cr0.read(~uint64_t{0}, environment),
                         .written = in.written,
                         .cr4 = in.cr4,
                         .efer = in.efer,
                         .cs_l = in.cs_l,
                         .tr_16_bit = in.tr_16_bit,
                         .direct = environment.direct_map(),
                         .vmx_ones = in.vmx_ones,
                         .vmx_zeros = in.vmx_zeros};
    cr0_decision const decision = decide(now);
    if (apply(decision, cr0, environment) || decision.refusal != cr0_refusal::none) return decision;
    return {.refusal = cr0_refusal::bad_pdptes, .cr0 = now.old_cr0, .efer = now.efer};
}

}  // namespace pvx::inline v0::host
