// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// CPUID of a vCPU that runs: some bits follow what the guest writes to other registers (CR4, XCR0, IA32_XSS,
/// IA32_APIC_BASE, IA32_MISC_ENABLE). Such a write only marks the table, by one store; who reads it, compares it or
/// hands it out brings it up to date first, and cannot do without, since there is no other way to the entries. But a
/// reference that was kept is out of date from the next mark on. [sdm2a CPUID] [sdm3a 2.5] [sdm1 13.2] [apm3 E]
///
/// Not here, and as given: what IA32_TSX_CTRL hides (RTM, HLE), bits 22 and 34 of IA32_MISC_ENABLE (highest leaf, NX),
/// and Intel's SYSCALL bit, which is clear outside of 64-bit mode. [sdm4 2.1] [sdm2a CPUID]
///
/// One object per vCPU, on that vCPU's thread. Nothing here executes CPUID. Whether the guest's CPUID faults is the
/// caller's to check before it asks.

#include <pvx/abi/cr.hpp>
#include <pvx/abi/msr.hpp>
#include <pvx/host/concepts.hpp>
#include <pvx/host/cpuid_table.hpp>

namespace pvx::inline v0::host {

/// Sizes of an XSAVE area, in bytes.
/// Axiom: a pure function of the mask and of the CPU model; no CPUID is executed. For no bit it is that of the fixed
/// part, 576. Bits that name no component do not count. 0 is no size but says that the layout is not set up yet: it may
/// be read from the guest's own table, which stays marked until then. After a layout was replaced, mark_changed().
template <class S>
concept xstate_sizes_policy = requires(S const s, uint64_t mask) {
    { s.standard_size(mask) } -> same_as<uint32_t>;   // standard_size(xcr0) is what XSAVE writes
    { s.compacted_size(mask) } -> same_as<uint32_t>;  // compacted_size(xcr0 | xss) is what XSAVES and XSAVEC write
};

/// The guest's registers that CPUID shows.
struct cpuid_inputs {
    uint64_t cr4;
    uint64_t xcr0;
    uint64_t xss;
    uint64_t apic_base;    ///< IA32_APIC_BASE. 0 for a vCPU without an APIC.
    uint64_t misc_enable;  ///< IA32_MISC_ENABLE, where the guest has one.
};

/// What a vCPU's registers hold, and how large its XSAVE areas are.
/// Axiom: read on the vCPU's thread, and what it gives is what the guest would read: bits that the guest may change
/// without an exit are fetched from where the hardware keeps them. Its writes of CR4.OSXSAVE and CR4.PKE, XCR0,
/// IA32_XSS and the MSRs exit; of a register where they do not, each exit is followed by mark_changed().
template <class E>
concept cpuid_inputs_policy = requires(E const e) {
    { e.read_cpuid_inputs() } -> same_as<cpuid_inputs>;  // read_cpuid_inputs() gives the registers' values now
    { e.xstate_sizes() } -> xstate_sizes_policy;         // xstate_sizes() is the layout of the CPU that the guest sees
};

/// Where CPUID.1:ECX.MONITOR comes from.
enum class mwait_bit : uint8_t {
    as_given,  ///< From the entry: a VMM without MWAIT, an AMD guest, or one that the bit must not change for.
    follows_misc_enable,  ///< From bit 18 of IA32_MISC_ENABLE, as on an Intel CPU, whatever the entry says.
};

/// What runtime_cpuid tells the observer.
enum class cpuid_event : uint8_t {
    brought_up_to_date,  ///< A table that was marked got its bits.
};

/// The table of one vCPU: plain data, for a snapshot, a fork or a migration. 6 KB for 256 entries.
template <uint32_t Capacity>
struct cpuid_state {
    static constexpr uint32_t current_version = 1;

    uint32_t version{current_version};
    uint32_t count{};
    cpuid_entry entries[Capacity]{};
};

/// CPUID of one vCPU, of up to Capacity entries.
template <class Environment, uint32_t Capacity = 256>
    requires cpuid_inputs_policy<Environment>
class runtime_cpuid {
public:
    /// `id`: the vCPU's x2APIC id. It replaces what the entries say, see cpuid_table::with_identity().
    constexpr runtime_cpuid(Environment environment, apic_id id, mwait_bit mwait = mwait_bit::as_given)
        : environment_(environment), mwait_(mwait), table_(id) {}

    /// The guest changed a register of cpuid_inputs: CR4.OSXSAVE or CR4.PKE, XCR0, IA32_XSS, the enable bit of
    /// IA32_APIC_BASE, bit 18 of IA32_MISC_ENABLE. By whatever way: MOV, XSETBV, WRMSR, RSM, INIT, a restored state. Or
    /// xstate_sizes() gives another layout. One store. For a change too many it costs the next reader some nanoseconds.
    constexpr void mark_changed() { changed_ = true; }

    /// What CPUID answers the guest.
    constexpr abi::cpuid_regs read(uint32_t leaf, uint32_t subleaf) { return table().cpuid(leaf, subleaf); }

    /// The table, for the VMM itself, user space, or a CPUID page. \post up to date until the next mark
    constexpr cpuid_table<Capacity> const& table() {
        if (changed_) apply(environment_.read_cpuid_inputs());
        return table_;
    }

    /// Other entries from now on. Their changing bits do not matter. \return bad_argument, and nothing has changed, for
    /// more than Capacity of them, or as of cpuid_table::assign().
    constexpr status replace(cpuid_entry const* entries, uint32_t count) {
        status const done = table_.assign(entries, count);
        if (done == status::ok) changed_ = true;
        return done;
    }

    /// These entries are what the guest has already: replacing them changes nothing, and so is allowed for a vCPU that
    /// has run. All bits count, but for those that change: both sides have them as they are now. The order does not.
    constexpr bool matches(cpuid_entry const* entries, uint32_t count) {
        if (count != table_.size()) return false;
        auto const inputs = environment_.read_cpuid_inputs();
        apply(inputs);  // also if a mark was forgotten
        uint64_t seen[Capacity / 64 + 1] = {};
        for (uint32_t i = 0; i < count; ++i) {
            uint32_t const n = table_.find(entries[i].leaf, entries[i].subleaf);
            uint64_t const once = bit<uint64_t>(n);
            if (n == 0 || (seen[n / 64] & once) != 0) return false;
            seen[n / 64] |= once;
            cpuid_entry theirs = table_.with_identity(entries[i]);
            theirs.regs = with_changes(theirs, inputs);
            if (theirs != table_[n]) return false;
        }
        return true;
    }

    /// Nothing changed that was not marked. For a debug build of a VMM, after an exit.
    constexpr bool all_changes_marked() const {
        if (changed_) return true;
        auto const inputs = environment_.read_cpuid_inputs();
        for (where const& w : changing)
            if (uint32_t const n = table_.find(w.leaf, w.subleaf); n != 0)
                if (with_changes(table_[n], inputs) != table_[n].regs) return false;
        return true;
    }

    /// For a snapshot or migration. Into the caller's memory: it is large for a kernel's stack.
    constexpr void save(cpuid_state<Capacity>& state) {
        cpuid_entry const* const entries = table().entries();
        state.version = cpuid_state<Capacity>::current_version;
        state.count = table_.size();
        for (uint32_t i = 0; i < Capacity; ++i) state.entries[i] = i < state.count ? entries[i] : cpuid_entry{};
    }

    /// Take over a state that save() made, perhaps elsewhere. Changing bits come from this vCPU's registers, ids are
    /// its own. \return bad_argument, and nothing has changed, for a version that is not known, or as of replace().
    constexpr status restore(cpuid_state<Capacity> const& state) {
        if (state.version != cpuid_state<Capacity>::current_version) return status::bad_argument;
        return replace(state.entries, state.count);
    }

private:
    struct where {
        uint32_t leaf;
        uint32_t subleaf;
    };
    // Of the leaves that have changing bits.
    static constexpr where changing[] = {{abi::cpuid_leaf::features, 0},
                                         {abi::cpuid_leaf::extended_features, 0},
                                         {abi::cpuid_leaf::xstate, 0},
                                         {abi::cpuid_leaf::xstate, 1},
                                         {abi::cpuid_leaf::extended_signature, 0}};

    constexpr void apply(cpuid_inputs const& inputs) {
        for (where const& w : changing)
            if (uint32_t const n = table_.find(w.leaf, w.subleaf); n != 0)
                table_.set(n, with_changes(table_[n], inputs));
        // No size is 0: there is no layout yet, so it is asked again.
        uint32_t const sizes = table_.find(abi::cpuid_leaf::xstate, 0);
        changed_ = sizes != 0 && table_[sizes].regs.ebx == 0 && has_xsave();
        if constexpr (observer_policy<Environment, cpuid_event>) environment_.event(cpuid_event::brought_up_to_date);
    }

    static constexpr void put(uint32_t& word, abi::cpuid_bit which, bool on) {
        uint32_t const mask = bit<uint32_t>(which.bit);
        word = on ? word | mask : word & ~mask;
    }

    constexpr bool has_xsave() const {
        return has(table_[table_.find(abi::cpuid_leaf::features, 0)].regs, abi::cpuid_feature::xsave);
    }

    // The entry's registers, with the bits that change as they are now.
    constexpr abi::cpuid_regs with_changes(cpuid_entry const& entry, cpuid_inputs const& in) const {
        using namespace abi::cpuid_feature;
        abi::cpuid_regs regs = entry.regs;
        auto const is = [&](uint32_t leaf, uint32_t subleaf) { return entry.leaf == leaf && entry.subleaf == subleaf; };
        if (is(abi::cpuid_leaf::features, 0)) {
            put(regs.ecx, osxsave, (in.cr4 & abi::cr4::osxsave) != 0);
            put(regs.edx, apic, (in.apic_base & abi::msr::apic_base::enable) != 0);
            if (mwait_ == mwait_bit::follows_misc_enable)
                put(regs.ecx, mwait, (in.misc_enable & abi::msr::misc_enable::monitor_enable) != 0);
        } else if (is(abi::cpuid_leaf::extended_features, 0)) {
            put(regs.ecx, ospke, (in.cr4 & abi::cr4::pke) != 0);
        } else if (is(abi::cpuid_leaf::xstate, 0)) {
            // Of the table, also for entries that are compared with it: where they differ in this, they differ.
            regs.ebx = has_xsave() ? environment_.xstate_sizes().standard_size(in.xcr0) : 0;
        } else if (is(abi::cpuid_leaf::xstate, 1)) {
            bool const compacts = has(regs, xsaves) || has(regs, xsavec);
            regs.ebx = compacts ? environment_.xstate_sizes().compacted_size(in.xcr0 | in.xss) : 0;
        } else if (is(abi::cpuid_leaf::extended_signature, 0) && table_.is_amd()) {
            put(regs.edx, apic_repeated, (in.apic_base & abi::msr::apic_base::enable) != 0);
        }
        return regs;
    }

    [[no_unique_address]] Environment environment_;
    mwait_bit mwait_;
    bool changed_{};
    cpuid_table<Capacity> table_;
};

}  // namespace pvx::inline v0::host
