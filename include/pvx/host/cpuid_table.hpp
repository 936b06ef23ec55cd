// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// What CPUID answers a guest: entries that the VMM chose, found by hashing, and the rules for everything else. A leaf
/// that has no sub-leaves ignores ECX; of a leaf that has them, one that is not there is zeros, and in the topology
/// leaves still tells who asked. A leaf out of range is the highest basic leaf on an Intel CPU, and zeros on an AMD
/// one. From 0x40000000 (hypervisors) and from 0xc0000000 (Centaur, Zhaoxin) on, what is not there is zeros on any: a
/// choice, so that no guest takes bits of another leaf for a hypervisor's. Intel's CPUs and KVM repeat the highest
/// basic leaf there too. [sdm2a CPUID] [apm3 E]
///
/// One object per vCPU, plain data that holds its entries itself, so that a copy is a snapshot. The guest chooses what
/// is looked up and nothing else: an index comes from a mask or from the table, never from a comparison that a CPU
/// could speculate past. Bits that change while the vCPU runs: host/runtime_cpuid.hpp.

#include <pvx/abi/cpuid_leaves.hpp>
#include <pvx/base/status.hpp>
#include <pvx/base/types.hpp>

namespace pvx::inline v0::host {

/// One leaf and sub-leaf. Of a leaf that ignores ECX: sub-leaf 0. KVM's entries have a flag (significant index) for
/// those where the sub-leaf counts; without it, whatever stands there, give 0.
struct cpuid_entry {
    uint32_t leaf{};
    uint32_t subleaf{};
    abi::cpuid_regs regs{};

    friend constexpr bool operator==(cpuid_entry const&, cpuid_entry const&) = default;
};

/// The entries of one vCPU, up to Capacity of them. KVM takes 256; a guest has 40 to 90.
template <uint32_t Capacity>
    requires(Capacity >= 1 && Capacity < 0x8000)
class cpuid_table {
public:
    /// No entry: every answer is zeros.
    constexpr explicit cpuid_table(apic_id id) : id_(id) {}

    /// Take over these entries in place of the old ones. \return bad_argument, with the old ones kept, for more than
    /// Capacity entries, two for the same leaf and sub-leaf, or a sub-leaf but 0 of a leaf that ignores ECX.
    constexpr status assign(cpuid_entry const* entries, uint32_t count) {
        if (count > Capacity) return status::bad_argument;
        for (uint32_t i = 0; i < count; ++i)
            if (entries[i].subleaf != 0 && abi::cpuid_ignores_subleaf(entries[i].leaf)) return status::bad_argument;
        for (uint32_t i = 0; i < count; ++i)
            for (uint32_t j = 0; j < i; ++j)
                if (entries[i].leaf == entries[j].leaf && entries[i].subleaf == entries[j].subleaf)
                    return status::bad_argument;

        for (uint16_t& slot : slots_) slot = 0;
        count_ = count;
        for (uint32_t i = 0; i < count; ++i) entries_[i + 1] = with_identity(entries[i]);
        for (uint32_t n = 1; n <= count; ++n) {
            uint32_t at = first_slot(entries_[n].leaf, entries_[n].subleaf);
            while (slots_[at] != 0) at = (at + 1) & slot_mask;
            slots_[at] = static_cast<uint16_t>(n | (any_subleaf(n) ? answers_any : 0));
        }

        cpuid_entry const& basic = entries_[number(find_slot(abi::cpuid_leaf::vendor, 0))];
        abi::cpu_vendor const vendor = abi::identify_vendor(abi::vendor_name(basic.regs));
        is_amd_ = vendor == abi::cpu_vendor::amd || vendor == abi::cpu_vendor::hygon;
        highest_basic_ = basic.regs.eax;
        highest_extended_ = entries_[number(find_slot(abi::cpuid_leaf::extended_max, 0))].regs.eax;
        return status::ok;
    }

    /// Leaf 0 names AMD or Hygon.
    constexpr bool is_amd() const { return is_amd_; }
    constexpr uint32_t size() const { return count_; }
    /// The entries, size() of them, in the order in which they came.
    constexpr cpuid_entry const* entries() const { return entries_ + 1; }

    /// What the VMM looks for: the number of an entry, from 1 on; 0 if there is none. The guest may then get the bits
    /// of another leaf, see cpuid().
    constexpr uint32_t find(uint32_t leaf, uint32_t subleaf) const {
        uint16_t slot = find_slot(leaf, subleaf);
        if (slot == 0 && subleaf != 0) {
            slot = find_slot(leaf, 0);
            if ((slot & answers_any) == 0) slot = 0;
        }
        return number(slot);
    }
    /// The entry with this number; 0 is zeros.
    constexpr cpuid_entry const& operator[](uint32_t n) const { return entries_[n]; }
    /// For what changes while the vCPU runs. \pre an entry's number
    constexpr void set(uint32_t n, abi::cpuid_regs const& regs) { entries_[n].regs = regs; }

    /// What the guest gets. So a table is a cpuid_policy.
    constexpr abi::cpuid_regs cpuid(uint32_t leaf, uint32_t subleaf) const {
        uint32_t const n = find(leaf, subleaf);
        if (n != 0) return entries_[n].regs;
        // A leaf that the VMM put in, with its sub-leaf 0, is in range, whatever leaf 0 says.
        if (in_range(leaf) || find_slot(leaf, 0) != 0) return missing_subleaf(leaf, subleaf);
        // Also then the sub-leaf counts.
        uint32_t const highest = find(highest_basic_, subleaf);
        return highest != 0 ? entries_[highest].regs : missing_subleaf(highest_basic_, subleaf);
    }

    /// The entry as it is in the table of this vCPU. The vCPU's id is in EBX[31:24] of leaf 1, in EAX of AMD's leaf
    /// 0x8000001e (as KVM has it: of 8 bits in xAPIC mode, and 0 without an APIC, on the CPU [apm2 16.12]), and in EDX
    /// of a topology leaf, whose ECX[7:0] is its own sub-leaf. Which core, node or cache it is remains the VMM's.
    constexpr cpuid_entry with_identity(cpuid_entry entry) const {
        if (entry.leaf == abi::cpuid_leaf::features) entry.regs.ebx = (entry.regs.ebx & 0x00ffffff) | id_.value << 24;
        if (entry.leaf == abi::cpuid_leaf::extended_apic_id) entry.regs.eax = id_.value;
        // Sub-leaf 0 without CPUs in it says that there is no such leaf.
        if (abi::is_topology_leaf(entry.leaf) && (entry.subleaf != 0 || topology_level(entry.regs))) {
            entry.regs.ecx = (entry.regs.ecx & ~0xffu) | (entry.subleaf & 0xff);
            entry.regs.edx = id_.value;
        }
        return entry;
    }

private:
    // Four slots an entry: with all that servers have, 70 to 90 entries, no look-up goes beyond the third slot. Entries
    // that were chosen to collide cost a look-up as many slots as there are entries, and no more.
    static constexpr uint32_t slot_bits = bit_width(uint32_t{Capacity * 4 - 1});
    static constexpr uint32_t slot_mask = (uint32_t{1} << slot_bits) - 1;
    // A slot is the number of an entry, and whether that answers for each sub-leaf.
    static constexpr uint16_t answers_any = 0x8000;

    static constexpr uint32_t number(uint16_t slot) { return slot & ~uint32_t{answers_any}; }
    static constexpr bool topology_level(abi::cpuid_regs const& regs) { return (regs.ebx & 0xffff) != 0; }

    // By multiples of the golden ratio and of another odd number: neighbours, as leaves are, come to lie far apart.
    static constexpr uint32_t first_slot(uint32_t leaf, uint32_t subleaf) {
        return (leaf * 0x9e3779b1u + subleaf * 0x85ebca6bu) >> (32 - slot_bits);
    }
    // The slot of exactly this leaf and sub-leaf; 0 if there is none. Ends: most slots are empty.
    constexpr uint16_t find_slot(uint32_t leaf, uint32_t subleaf) const {
        for (uint32_t at = first_slot(leaf, subleaf);; at = (at + 1) & slot_mask) {
            cpuid_entry const& entry = entries_[number(slots_[at])];
            if (slots_[at] == 0 || (entry.leaf == leaf && entry.subleaf == subleaf)) return slots_[at];
        }
    }

    // Of leaves that pvx does not know, Xen's time leaf for one, the entries themselves say whether ECX counts.
    constexpr bool any_subleaf(uint32_t n) const {
        if (abi::cpuid_has_subleaves(entries_[n].leaf)) return false;
        for (uint32_t i = 1; i <= count_; ++i)
            if (entries_[i].leaf == entries_[n].leaf && entries_[i].subleaf != 0) return false;
        return true;
    }

    // The answer to a leaf that is not there is zeros, and not another leaf.
    constexpr bool in_range(uint32_t leaf) const {
        switch (abi::cpuid_range_of(leaf)) {
            case abi::cpuid_range::basic: return is_amd_ || leaf <= highest_basic_;
            case abi::cpuid_range::extended: return is_amd_ || leaf <= highest_extended_;
            case abi::cpuid_range::hypervisor:
            case abi::cpuid_range::vendor: break;
        }
        return true;
    }

    constexpr abi::cpuid_regs missing_subleaf(uint32_t leaf, uint32_t subleaf) const {
        if (!abi::is_topology_leaf(leaf) || !topology_level(entries_[number(find_slot(leaf, 0))].regs)) return {};
        return {0, 0, subleaf & 0xff, id_.value};
    }

    apic_id id_;
    uint32_t count_{};
    uint32_t highest_basic_{};
    uint32_t highest_extended_{};
    bool is_amd_{};
    uint16_t slots_[slot_mask + 1]{};
    cpuid_entry entries_[Capacity + 1]{};  // the first is no entry: zeros
};

}  // namespace pvx::inline v0::host
