// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// May the guest access this page? For accesses that the host makes on the guest's behalf: instructions that it
/// emulates, descriptors that it loads. The rules are a table of bits, one map for each of the sixteen combinations of
/// WP, SMEP, SMAP and NX, so there is nothing to rebuild and nothing that can be out of date. Pure. [sdm3a 4.6]
/// [sdm3a 4.7] [apm2 5.6]
///
/// Protection keys and shadow stacks are not in it: check them besides. The write-disable bit of a key binds a
/// supervisor only with WP set, in PKRU and in PKRS: that check too reads WP by lazy_cr0, as it is now. A fault by a
/// key is a bit more in the same error code, and its other bits are as here. [sdm3a 4.6.2]

#include <pvx/abi/msr.hpp>
#include <pvx/abi/page_fault.hpp>
#include <pvx/host/guest_cr0.hpp>

namespace pvx::inline v0::host {

/// What is done to the page.
struct page_access {
    /// Of abi::page_fault: write, user, fetch. Other bits do not count. An access that the CPU makes for itself (to the
    /// GDT, LDT, IDT or TSS) is a supervisor's at any CPL. Nested page tables are walked as a user.
    uint32_t code{};
    /// EFLAGS.AC is set, and the access is not one that the CPU makes for itself.
    bool ac{};
};

/// What all entries on the way to a page permit together. The four PDPTEs of PAE paging are not among them: they have
/// no R/W, U/S and XD, and there these bits are reserved.
struct page_rights {
    /// Of abi::page_fault: write, user, fetch; the first two are at R/W's and U/S's place in an entry. `fetch`: XD is
    /// clear, or a reserved bit, which if it is set is another fault.
    uint32_t bits{};
};

/// Which rules hold.
struct paging_rules {
    static constexpr uint32_t wp = bit<uint32_t>(0);
    static constexpr uint32_t smep = bit<uint32_t>(1);
    static constexpr uint32_t smap = bit<uint32_t>(2);
    static constexpr uint32_t nx = bit<uint32_t>(3);

    uint32_t bits{};
};

/// The rules for one set of control registers. \pre CR0.PG: without paging no page forbids anything.
constexpr paging_rules paging_rules_of(uint64_t cr0, uint64_t cr4, uint64_t efer) {
    bool const nx = (cr4 & abi::cr4::pae) != 0 && (efer & abi::msr::efer::no_execute_enable) != 0;
    return {((cr0 & abi::cr0::wp) != 0 ? paging_rules::wp : 0) |
            ((cr4 & abi::cr4::smep) != 0 ? paging_rules::smep : 0) |
            ((cr4 & abi::cr4::smap) != 0 ? paging_rules::smap : 0) | (nx ? paging_rules::nx : 0)};
}

namespace detail {

// Write 1, user 2, fetch 4: no index beyond 7 can be made.
constexpr uint32_t index_of(uint32_t code) { return (code >> 1 & 3) | (code >> 2 & 4); }

/// Bit `page` of faults[rules][access] is set if the access, to which 8 is added with AC, faults.
struct fault_maps {
    uint8_t faults[16][16];
};

constexpr uint8_t make_fault_map(uint32_t rules, uint32_t access) {
    // The pages, by index, that have a right.
    constexpr uint32_t writable = 0xaa, users = 0xcc, executable = 0xf0;
    bool const write = (access & 1) != 0, user = (access & 2) != 0, fetch = (access & 4) != 0, ac = (access & 8) != 0;
    uint32_t faults = user ? ~users : 0;
    if (write && (user || (rules & paging_rules::wp) != 0)) faults |= ~writable;
    if (fetch && (rules & paging_rules::nx) != 0) faults |= ~executable;
    if (fetch && !user && (rules & paging_rules::smep) != 0) faults |= users;
    if (!fetch && !user && !ac && (rules & paging_rules::smap) != 0) faults |= users;
    return static_cast<uint8_t>(faults & 0xff);
}

inline constexpr fault_maps all_fault_maps = [] {
    fault_maps maps{};
    for (uint32_t rules = 0; rules < 16; ++rules)
        for (uint32_t access = 0; access < 16; ++access) maps.faults[rules][access] = make_fault_map(rules, access);
    return maps;
}();

}  // namespace detail

/// 0 if the access is permitted, otherwise the error code of the page fault that it is.
[[nodiscard]] constexpr uint32_t access_fault(paging_rules rules, page_access access, page_rights page) {
    uint8_t const faults =
        detail::all_fault_maps.faults[rules.bits & 15][detail::index_of(access.code) | (access.ac ? 8u : 0u)];
    if ((faults >> detail::index_of(page.bits) & 1) == 0) return 0;
    bool const fetch_told = (rules.bits & (paging_rules::smep | paging_rules::nx)) != 0;
    return abi::page_fault::present |
           (access.code & (abi::page_fault::write | abi::page_fault::user | (fetch_told ? abi::page_fault::fetch : 0)));
}

/// The same under the vCPU's own rules, with WP as it is now, since the guest may have written it without an exit.
/// \pre CR0.PG. `cr4` and `efer` are what the guest has.
template <guest_cr0_policy Environment>
[[nodiscard]] constexpr uint32_t access_fault(lazy_cr0& cr0, uint64_t cr4, uint64_t efer, page_access access,
                                              page_rights page, Environment const& environment) {
    return access_fault(paging_rules_of(cr0.read(abi::cr0::wp, environment), cr4, efer), access, page);
}

}  // namespace pvx::inline v0::host
