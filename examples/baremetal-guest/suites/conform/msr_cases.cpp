// SPDX-License-Identifier: MIT

/// \file
/// Paravirtual MSRs: what must be refused, what is read back. [kvm-msr]

#include "../../os/attempt.hpp"
#include "case.hpp"

namespace conform {
namespace {

namespace abi = pvx::abi;
using abi::kvm_feature;

/// Each reserved bit, beside what else is written, raises #GP and leaves the MSR as it was.
outcome reserved_bits_refused(abi::kvm_msr_row const& msr, uint64_t beside = 0) {
    uint64_t before = 0;
    if (!os::try_rdmsr(msr.index, before)) return fail("MSR {:#x} cannot be read", msr.index);
    for (uint32_t n = 0; n < 64; ++n) {
        uint64_t const bit = pvx::bit<uint64_t>(n);
        if ((msr.reserved & bit) == 0) continue;
        os::fault_info const fault = os::attempt([&] { pvx::arch::write_msr(msr.index, beside | bit); });
        if (!fault.raised) {
            (void)os::try_wrmsr(msr.index, before);
            return fail("MSR {:#x} takes reserved bit {}", msr.index, n);
        }
        if (!fault.is(os::vector_general_protection))
            return fail("reserved bit {} of MSR {:#x} raises vector {} and not #GP", n, msr.index, fault.vector);
        if (uint64_t after = 0; !os::try_rdmsr(msr.index, after) || after != before)
            return fail("MSR {:#x} is {:#x} after a refused write, was {:#x}", msr.index, after, before);
    }
    return pass();
}

outcome steal_reserved() { return reserved_bits_refused(abi::kvm_msr::steal_time); }
outcome async_pf_reserved() { return reserved_bits_refused(abi::kvm_msr::async_pf_en); }
outcome async_pf_int_reserved() { return reserved_bits_refused(abi::kvm_msr::async_pf_int); }
outcome eoi_reserved() { return reserved_bits_refused(abi::kvm_msr::pv_eoi_en); }
outcome poll_reserved() { return reserved_bits_refused(abi::kvm_msr::poll_control); }

outcome steal_reserved_with_address() {
    // A real address and the enable bit do not make a reserved bit legal.
    uint64_t const address = os::physical_address(&pv::steal_page(os::cpu_self()));
    return reserved_bits_refused(abi::kvm_msr::steal_time, address | abi::kvm_msr_enable);
}

outcome eoi_reserved_with_address() {
    static constinit uint32_t word = 0;  // aligned, so that its address has none of the bits
    return reserved_bits_refused(abi::kvm_msr::pv_eoi_en, os::physical_address(&word) | abi::kvm_msr_enable);
}

outcome poll_control_values() {
    uint32_t const index = abi::kvm_msr::poll_control.index;
    uint64_t at_reset = 0, off = 1;
    if (!os::try_rdmsr(index, at_reset)) return fail("cannot be read");
    bool const written = os::try_wrmsr(index, 0) && os::try_rdmsr(index, off) && os::try_wrmsr(index, 1);
    if (!written || off != 0) return fail("0 is not taken or not read back");
    if (at_reset != 1) return fail("was {:#x} after reset", at_reset);
    return pass();
}

outcome steal_read_back() {
    uint64_t value = 0;
    uint64_t const expected = os::physical_address(&pv::steal_page(os::cpu_self())) | abi::kvm_msr_enable;
    if (!os::try_rdmsr(abi::kvm_msr::steal_time.index, value)) return fail("cannot be read");
    return value == expected ? pass() : fail("reads {:#x}, {:#x} was written", value, expected);
}

outcome absent_msr() {
    // The last of the numbers that KVM reserves for itself, and never used.
    uint64_t value = 0;
    // One that is nobody's: where it can be read, the host answers for whatever it does not know.
    if (os::try_rdmsr(0x4b564eff, value)) return skip("the host ignores unknown MSRs (as KVM's ignore_msrs=1)");
    os::fault_info const fault = os::attempt([&] { value = pvx::arch::read_msr(0x4b564dff); });
    if (!fault.raised) return fail("reads {:#x}", value);
    return fault.is(os::vector_general_protection) ? pass() : fail("raises vector {}", fault.vector);
}

bool same_signatures(pvx::guest::features const& a, pvx::guest::features const& b) {
    bool same = a.signature_count == b.signature_count;
    for (uint32_t i = 0; same && i < a.signature_count; ++i)
        same = a.signatures[i].kind == b.signatures[i].kind && a.signatures[i].base == b.signatures[i].base;
    return same;
}

outcome same_features_everywhere() {
    struct {
        bool differs[os::max_cpus];
    } result = {};
    pvx::guest::features const& expected = pv::features();
    os::run_on_all([&] {
        pvx::guest::features const mine = pvx::guest::detect_features(machine{});
        result.differs[os::cpu_self()] = mine.kvm_bits != expected.kvm_bits || mine.kvm_hints != expected.kvm_hints ||
                                         !same_signatures(mine, expected);
    });
    for (uint32_t cpu = 0; cpu < os::cpu_count(); ++cpu)
        if (result.differs[cpu]) return fail("vCPU {} is offered something else than vCPU 0", cpu);
    return pass();
}

outcome features_leaf_registers() {
    uint32_t const base = pv::features().find(pvx::guest::hypervisor::kvm)->base;
    abi::cpuid_regs const r = machine{}.cpuid(base + abi::kvm_features_offset, 0);
    return r.ebx == 0 && r.ecx == 0 ? pass() : fail("EBX {:#x}, ECX {:#x}", r.ebx, r.ecx);
}

constexpr test_case cases[] = {
    {"every vCPU is offered the same features and hints", {}, same_features_everywhere},
    {"EBX and ECX of the features leaf are zero", {}, features_leaf_registers},
    {"a paravirtual MSR that does not exist faults", {}, absent_msr},
    {"reserved bits of the steal-time MSR fault", {.features = mask(kvm_feature::steal_time)}, steal_reserved},
    {"reserved bits of the steal-time MSR fault beside a real address",
     {.features = mask(kvm_feature::steal_time), .steal = true},
     steal_reserved_with_address},
    {"the steal-time MSR reads back what was written",
     {.features = mask(kvm_feature::steal_time), .steal = true},
     steal_read_back},
    {"reserved bits of the async-page-fault MSR fault", {.features = mask(kvm_feature::async_pf)}, async_pf_reserved},
    {"reserved bits of the async-page-fault interrupt MSR fault",
     {.features = mask(kvm_feature::async_pf_int)},
     async_pf_int_reserved},
    {"the reserved bit of the EOI MSR faults", {.features = mask(kvm_feature::pv_eoi)}, eoi_reserved},
    {"the reserved bit of the EOI MSR faults beside a real address",
     {.features = mask(kvm_feature::pv_eoi)},
     eoi_reserved_with_address},
    {"reserved bits of the poll-control MSR fault", {.features = mask(kvm_feature::poll_control)}, poll_reserved},
    {"the poll-control MSR is 1 after reset and keeps what is written",
     {.features = mask(kvm_feature::poll_control)},
     poll_control_values},
};

}  // namespace

constinit const case_list msr_cases = list_of(cases);

}  // namespace conform
