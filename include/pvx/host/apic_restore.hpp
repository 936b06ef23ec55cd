// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// In which order a vCPU's APIC is restored, as data and a check for a VMM's own list. Out of order nothing fails: a
/// timer is armed and ignored, a mask stays, and the guest hangs an hour later. CPUID comes before all of it, since it
/// says which values are legal. What is restored by another interface stands here as its MSR, in either mode: a
/// register as the one that it is in x2APIC mode, a whole page of registers as the LVT timer register. So read-only
/// ones (ID, version, PPR, LDR, ISR, TMR, IRR, current count) may be in a list: that they are not restored by WRMSR is
/// the VMM's to know. AMD's extended registers are in the rules, as far as a guest is given them.
///
/// A state is *saved* in the reverse order, the deadline first: a tick that comes in between is then in the IRR, late
/// or twice; the other way round it is in neither.

#include <pvx/abi/apic.hpp>

namespace pvx::inline v0::host {

/// MSRs `first` .. `last`.
struct msr_range {
    uint32_t first;
    uint32_t last;

    constexpr bool has(uint32_t index) const { return index - first <= last - first; }
};

/// All of `before` come before any of `after`.
struct restore_rule {
    msr_range before;
    msr_range after;
    char const* why;
};

/// The registers of the rules.
namespace restore_msr {
constexpr msr_range one(uint32_t index) { return {index, index}; }
constexpr msr_range apic(uint32_t offset) { return one(abi::apic_msr(offset)); }
inline constexpr msr_range tsc_adjust = one(abi::msr::ia32_tsc_adjust);
inline constexpr msr_range base = one(abi::msr::ia32_apic_base);
inline constexpr msr_range deadline = one(abi::msr::ia32_tsc_deadline);
inline constexpr msr_range lvt_cmci = apic(0x2f0);
inline constexpr msr_range interrupt_enable = {abi::apic_msr(abi::apic_reg::interrupt_enable_first),
                                               abi::apic_msr(abi::apic_reg::interrupt_enable_last)};
inline constexpr msr_range extended_lvt = {abi::apic_msr(abi::apic_reg::extended_lvt_first),
                                           abi::apic_msr(abi::apic_reg::extended_lvt_last)};
inline constexpr msr_range lvt = {abi::apic_msr(abi::apic_reg::lvt_timer), abi::apic_msr(abi::apic_reg::lvt_error)};
}  // namespace restore_msr

/// [sdm3a 11.4.3] [sdm3a 11.4.7.2] [sdm3a 11.5.4] [sdm3a 11.5.4.1] [sdm3a 11.12.2] [apm2 16.3.6] [apm2 16.4.7]
inline constexpr restore_rule apic_restore_rules[] = {
    {restore_msr::base,
     {abi::msr::ia32_x2apic, abi::msr::ia32_x2apic + 0xff},
     "registers are of a mode, and a change of it resets them"},
    {restore_msr::base, restore_msr::deadline, "a disabled APIC ignores the deadline"},
    {restore_msr::apic(abi::apic_reg::svr), restore_msr::lvt, "a software-disabled APIC keeps its LVT masked"},
    {restore_msr::apic(abi::apic_reg::svr), restore_msr::lvt_cmci, "a software-disabled APIC keeps its LVT masked"},
    {restore_msr::apic(abi::apic_reg::lvt_timer), restore_msr::apic(abi::apic_reg::timer_initial),
     "a change of the timer's mode stops it"},
    {restore_msr::apic(abi::apic_reg::timer_divide), restore_msr::apic(abi::apic_reg::timer_initial),
     "the count starts with the divisor of the moment"},
    {restore_msr::apic(abi::apic_reg::lvt_timer), restore_msr::deadline,
     "outside of deadline mode the deadline is ignored"},
    {restore_msr::one(abi::msr::ia32_tsc), restore_msr::deadline,
     "against another TSC the deadline is long past, or far away"},
    {restore_msr::tsc_adjust, restore_msr::deadline, "against another TSC the deadline is long past, or far away"},
    {restore_msr::apic(abi::apic_reg::svr), restore_msr::extended_lvt, "a software-disabled APIC keeps its LVT masked"},
    {restore_msr::apic(abi::apic_reg::extended_control), restore_msr::interrupt_enable,
     "interrupt enable registers take no write before it"},
};

/// Registers whose write does something: ends an interrupt, takes over the errors since the last write and forgets
/// those before, sends. What they hold is restored without a write of the guest's kind, or not at all.
inline constexpr uint32_t apic_restore_acts[] = {
    abi::apic_msr(abi::apic_reg::eoi),          abi::apic_msr(abi::apic_reg::esr),
    abi::apic_msr(abi::apic_reg::icr_low),      abi::apic_msr(abi::apic_reg::self_ipi),
    abi::apic_msr(abi::apic_reg::specific_eoi),
};

/// What is wrong with a list.
struct [[nodiscard]] restore_check {
    bool ok{true};
    uint32_t position{};         ///< In the list: of an MSR that comes too late, or that must not be in it.
    restore_rule const* rule{};  ///< That it breaks; null for a register that acts.

    friend constexpr bool operator==(restore_check const&, restore_check const&) = default;
};

/// Check the order in which `count` MSRs are restored. Constant expression: a VMM asserts it of its table.
constexpr restore_check check_restore(uint32_t const* msrs, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i)
        for (uint32_t acts : apic_restore_acts)
            if (msrs[i] == acts) return {false, i, nullptr};
    for (restore_rule const& rule : apic_restore_rules) {
        bool begun = false;
        for (uint32_t i = 0; i < count; ++i) {
            if (begun && rule.before.has(msrs[i])) return {false, i, &rule};
            begun = begun || rule.after.has(msrs[i]);
        }
    }
    return {};
}

}  // namespace pvx::inline v0::host
