// SPDX-License-Identifier: MIT

/// \file
/// CR0: whatever a guest writes, with and without an exit, in any state of its other registers; and the permission
/// check, against the rules written out.

#include <pvx/host/access_rights.hpp>
#include <pvx/host/cr0_wp.hpp>

#include "input.hpp"

using namespace pvx;
using namespace pvx_fuzz;
using namespace pvx::host;
namespace cr0 = pvx::abi::cr0;
namespace cr4 = pvx::abi::cr4;
namespace efer = pvx::abi::msr::efer;

namespace {

/// A VMM whose hardware lets the guest write the bits that it owns.
struct vmm {
    uint64_t* hardware;
    bool direct;
    uint32_t* root_reloads;
    bool pdptes_valid;

    uint64_t guest_cr0() const { return *hardware; }
    bool direct_map() const { return direct; }
    void refresh_permissions() const {}
    void reload_roots() const { ++*root_reloads; }
    bool reload_pdptes() const { return pdptes_valid; }
    void flush_guest_tlb() const {}
};

constexpr uint64_t cr0_values[] = {0x10,
                                   0x11,
                                   cr0::pe | cr0::pg | 0x10,
                                   cr0::pe | cr0::pg | cr0::wp | 0x10,
                                   cr0::pe | cr0::pg | cr0::wp | cr0::cd | 0x10,
                                   cr0::pe | cr0::wp | 0x10,
                                   cr0::pg};

void check_access(input& in, uint64_t now_cr0, uint64_t now_cr4, uint64_t now_efer) {
    uint32_t const code = in.take<uint32_t>(), rights = in.take<uint32_t>();
    bool const ac = in.below(2) == 0;
    bool const write = (code & 2) != 0, user = (code & 4) != 0, fetch = (code & 16) != 0;
    bool const writable = (rights & 2) != 0, users = (rights & 4) != 0, executable = (rights & 16) != 0;
    bool const wp = (now_cr0 & cr0::wp) != 0, smep = (now_cr4 & cr4::smep) != 0, smap = (now_cr4 & cr4::smap) != 0;
    bool const nx = (now_cr4 & cr4::pae) != 0 && (now_efer & efer::no_execute_enable) != 0;
    bool faults = user && !users;
    faults |= write && !writable && (user || wp);
    faults |= fetch && !executable && nx;
    faults |= fetch && !user && users && smep;
    faults |= !fetch && !user && users && smap && !ac;
    uint32_t const told = access_fault(paging_rules_of(now_cr0, now_cr4, now_efer), {code, ac}, {rights});
    expect((told != 0) == faults, "an access faults as the manual's rules say");
    expect(told == 0 || (told & ~uint32_t{0x17}) == 0, "an error code has no other bits");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(uint8_t const* data, size_t size) {
    input in(data, size);
    uint32_t root_reloads = 0;
    uint64_t truth = 0x10, now_efer = 0;
    vmm const machine{&truth, in.below(2) == 0, &root_reloads, in.below(4) != 0};
    virtualization const by = in.below(2) == 0 ? virtualization::vmx : virtualization::svm;
    lazy_cr0 lazy{truth};
    uint64_t const own = ownable_cr0(by, machine.direct) & in.take<uint64_t>();
    lazy.give(own, machine);
    while (!in.empty()) {
        // The guest runs, and writes what is its own.
        truth = (truth & ~own) | (in.take<uint8_t>() % 2 == 0 ? ~truth & own : truth & own);
        lazy.exited();

        cr0_inputs is{};
        is.written = in.below(3) == 0 ? in.one_of(cr0_values) : truth ^ bit<uint64_t>(in.below(64));
        is.cr4 = in.take<uint32_t>();
        is.efer = (now_efer & efer::long_mode_active) | (in.take<uint16_t>() & ~efer::long_mode_active);
        is.cs_l = in.below(2) == 0;
        is.tr_16_bit = in.below(4) == 0;
        uint32_t const reloads_before = root_reloads;
        cr0_decision const done = write_cr0(lazy, is, machine);
        if (done.refusal != cr0_refusal::none) {
            expect(done.cr0 == truth, "a refused write leaves CR0 as the guest had it");
            expect(!done.reload_roots && !done.flush_guest_tlb && !done.refresh_permissions, "and asks for nothing");
            expect(root_reloads == reloads_before, "and does nothing");
        } else {
            uint64_t const changed = done.cr0 ^ truth;
            expect(done.cr0 >> 32 == 0, "no high bit gets in");
            expect((done.cr0 & cr0::pg) == 0 || (done.cr0 & cr0::pe) != 0, "no paging without protection");
            expect((done.cr0 & cr0::nw) == 0 || (done.cr0 & cr0::cd) != 0, "no NW without CD");
            expect(!cet_without_wp(done.cr0, is.cr4), "no CET without WP");
            bool const long_mode = (done.cr0 & cr0::pg) != 0 && (is.efer & efer::long_mode_enable) != 0;
            expect(((done.efer & efer::long_mode_active) != 0) == long_mode, "LMA is LME and paging");
            expect((changed & cr0::pg) == 0 || done.flush_guest_tlb, "paging on or off flushes");
            expect((changed & cr0::wp) == 0 || (done.cr0 & cr0::pg) == 0 || done.refresh_permissions,
                   "another WP is other permissions");
            expect(!machine.direct || root_reloads == reloads_before, "hardware's walks need no other roots");
            truth = done.cr0;
            now_efer = done.efer;
        }
        expect(lazy.read(~uint64_t{0}, machine) == truth, "every look at CR0 sees what the guest has");
        check_access(in, truth, is.cr4, is.efer);

        auto const nested = nested_vmx_cr0_write(in.take<uint64_t>(), own, in.take<uint64_t>(), truth);
        expect(nested.to_l1 || (nested.value & own) == (truth & own), "a nested guest changes none of its host's bits");
    }
    return 0;
}
