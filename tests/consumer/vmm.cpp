// SPDX-License-Identifier: MIT
// The second example of README.md, between the two marks; the build checks that it stands there word for word. Below it
// is a guest that does what the example handles.
#include <stdint.h>

static uint32_t tlb_flushes, permission_refreshes, root_reloads, map_rebuilds, faults;
static void rebuild_apic_map() { ++map_rebuilds; }
static bool raise_gp() { return ++faults, false; }

// [readme]
#include <pvx/arch/x86_64.hpp>
#include <pvx/host.hpp>

namespace host = pvx::host;

host::xstate_layout layout;  // of all vCPUs: layout.set_up(pvx::arch::x86_64{}) once, and no CPUID from then on

struct state {  // of one vCPU: yours, with pvx's between them
    uint64_t cr4{}, efer{}, xcr0{1}, xss{}, hardware_cr0{0x10};
    bool cs_l{};
    host::apic_state<> apic{pvx::apic_id{0}, true};
    host::lazy_cr0 cr0{0x10};
};

struct environment {  // yours: how pvx reaches your VMM
    state* of;

    host::cpuid_inputs read_cpuid_inputs() const { return {of->cr4, of->xcr0, of->xss, of->apic.base(), 0}; }
    host::xstate_layout const& xstate_sizes() const { return layout; }
    uint64_t guest_cr0() const { return of->hardware_cr0; }  // read only if a bit is wanted that the guest owns
    bool direct_map() const { return true; }                 // nested paging: no write of WP reloads a root
    bool reload_pdptes() const { return true; }
    void reload_roots() const { ++root_reloads; }
    void refresh_permissions() const { ++permission_refreshes; }
    void flush_guest_tlb() const { ++tlb_flushes; }
};

struct vcpu : state {
    host::runtime_cpuid<environment> cpuid{environment{this}, pvx::apic_id{0}, host::mwait_bit::as_given};
};

pvx::abi::cpuid_regs on_cpuid(vcpu& v, uint32_t leaf, uint32_t subleaf) { return v.cpuid.read(leaf, subleaf); }

bool on_xsetbv(vcpu& v, uint64_t value) {  // false: the guest gets a fault
    if (!host::valid_xcr0(value, host::supported_xcr0(on_cpuid(v, 0xd, 0)))) return raise_gp();
    v.xcr0 = value;
    v.cpuid.mark_changed();  // one store; the sizes and bits are found out when the guest asks for them
    return true;
}

bool on_wrmsr(vcpu& v, uint32_t index, uint64_t value) {
    auto const [outcome, changes] = v.apic.write_msr({.physical_bits = 48, .x2apic = true}, index, value);
    if (outcome == host::msr_outcome::fault) return raise_gp();
    if (has(changes, host::apic_change::cpuid)) v.cpuid.mark_changed();
    if (has(changes, host::apic_change::map)) rebuild_apic_map();
    return outcome == host::msr_outcome::done;  // or it is another MSR: ask the next
}

bool on_write_cr0(vcpu& v, uint64_t value) {
    host::cr0_inputs const in{.written = value, .cr4 = v.cr4, .efer = v.efer, .cs_l = v.cs_l};
    auto const done = write_cr0(v.cr0, in, environment{&v});
    if (done.refusal != host::cr0_refusal::none) return raise_gp();  // done.refusal says why
    v.hardware_cr0 = done.cr0;
    v.efer = done.efer;
    return true;
}
// [readme]

// What the guest does, and what it must see. True if all is well.
bool vmm_example_works() {
    using namespace pvx::abi;
    using pvx::bit;
    if (layout.set_up(pvx::arch::x86_64{}) != pvx::status::ok) return true;  // no XSAVE here
    static vcpu v;
    host::cpuid_entry const entries[] = {
        {0, 0, {0xd, 0, 0, 0}}, {1, 0, {0, 0, bit<uint32_t>(cpuid_feature::xsave.bit), 0}}, {0xd, 0, {7, 0, 0, 0}}};
    if (v.cpuid.replace(entries, 3) != pvx::status::ok) return false;

    bool well = !on_xsetbv(v, 2) && faults == 1;  // without x87
    well = well && on_xsetbv(v, 3) && on_cpuid(v, 0xd, 0).ebx == 576;
    uint64_t const all = host::constrain_xcr0(~uint64_t{0}, host::supported_xcr0(on_cpuid(v, 0xd, 0)));
    well = well && all == 7 && on_xsetbv(v, all) && on_cpuid(v, 0xd, 0).ebx == layout.standard_size(all);
    // The host may have PKU: the guest's CPUID does not.
    well = well && !on_xsetbv(v, all | xfeature::pkru) && faults == 2;

    uint64_t const off = v.apic.base() & ~msr::apic_base::enable;
    well = well && on_wrmsr(v, msr::ia32_apic_base, off) && map_rebuilds == 1;
    well = well && (on_cpuid(v, 1, 0).edx & bit<uint32_t>(cpuid_feature::apic.bit)) == 0;
    well = well && !on_wrmsr(v, msr::ia32_apic_base, off | msr::apic_base::x2apic_enable) && faults == 3;

    uint64_t const paging = cr0::pe | cr0::pg | 0x10;
    well = well && on_write_cr0(v, paging) && tlb_flushes == 1 && permission_refreshes == 1;
    well = well && on_write_cr0(v, paging | cr0::wp) && permission_refreshes == 2;
    return well && !on_write_cr0(v, cr0::pg) && faults == 4 && tlb_flushes == 1 && root_reloads == 0;
}
