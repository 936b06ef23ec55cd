// SPDX-License-Identifier: MIT
#include <pvx/abi/apic.hpp>
#include <pvx/abi/cpuid.hpp>
#include <pvx/abi/cr.hpp>
#include <pvx/abi/kvm_clock.hpp>
#include <pvx/abi/kvm_features.hpp>
#include <pvx/abi/kvm_hypercall.hpp>
#include <pvx/abi/kvm_msr.hpp>
#include <pvx/abi/kvm_steal_time.hpp>
#include <pvx/abi/msr.hpp>
#include <pvx/abi/proposed.hpp>
#include <pvx/abi/xsave.hpp>

#include <string>
#include <vector>

#include "support/catch.hpp"

using namespace pvx;
using namespace pvx::abi;

namespace {

__extension__ typedef unsigned __int128 wide;

/// The scale as it is defined, with a product wide enough; `shift` in -63 .. 63.
uint64_t wide_scale(uint64_t ticks, uint32_t mul, int shift) {
    uint64_t const shifted = shift >= 0 ? ticks << shift : ticks >> -shift;
    return static_cast<uint64_t>((wide{shifted} * mul) >> 32);
}

template <size_t N>
inline constexpr char any_text[N]{};
template <size_t N>
concept can_name = requires {
    make_cpuid_name(any_text<N>);
};
template <class Id, class Command>
concept can_command = requires(Id id, Command command) {
    x2apic_icr(id, command);
};

std::string characters(cpuid_name const& name) {
    std::string s;
    for (uint32_t i = 0; i < 12; ++i) s += name.at(i);
    return s;
}

}  // namespace

TEST_CASE("a name is in registers as CPUID returns it", "[abi][cpuid]") {
    static_assert(kvm_signature == cpuid_name{{0x4b4d564b, 0x564b4d56, 0x4d}});
    CHECK(characters(kvm_signature) == std::string("KVMKVMKVM\0\0\0", 12));
    CHECK(characters(make_cpuid_name("Microsoft Hv")) == "Microsoft Hv");
    CHECK(characters(make_cpuid_name("")) == std::string(12, '\0'));
    CHECK(make_cpuid_name("\xff").words[0] == 0xff);
    static_assert(can_name<13> && !can_name<14>, "twelve characters");

    // A signature is read as EBX, ECX, EDX.
    cpuid_regs const base{.eax = 0x40000001, .ebx = 0x4b4d564b, .ecx = 0x564b4d56, .edx = 0x4d};
    CHECK(signature_name(base) == kvm_signature);
    // A vendor is read as EBX, EDX, ECX.
    CHECK_FALSE(vendor_name(base) == kvm_signature);
}

TEST_CASE("vendors are told by leaf 0", "[abi][cpuid]") {
    auto const vendor = [](uint32_t ebx, uint32_t edx, uint32_t ecx) {
        return identify_vendor(vendor_name({.eax = 0x16, .ebx = ebx, .ecx = ecx, .edx = edx}));
    };
    CHECK(vendor(0x756e6547, 0x49656e69, 0x6c65746e) == cpu_vendor::intel);  // Genu ineI ntel
    CHECK(vendor(0x68747541, 0x69746e65, 0x444d4163) == cpu_vendor::amd);    // Auth enti cAMD
    CHECK(vendor(0x6f677948, 0x6e65476e, 0x656e6975) == cpu_vendor::hygon);  // Hygo nGen uine
    CHECK(vendor(0x746e6543, 0x48727561, 0x736c7561) == cpu_vendor::unknown);
    CHECK(vendor(0, 0, 0) == cpu_vendor::unknown);
}

TEST_CASE("a CPUID bit is found in its own register", "[abi][cpuid]") {
    cpuid_regs const regs{.eax = 1, .ebx = 2, .ecx = 4, .edx = 0x80000000};
    CHECK(get(regs, cpuid_reg::eax) == 1);
    CHECK(get(regs, cpuid_reg::ebx) == 2);
    CHECK(get(regs, cpuid_reg::ecx) == 4);
    CHECK(get(regs, cpuid_reg::edx) == 0x80000000);
    CHECK(has(regs, {1, 0, cpuid_reg::eax, 0}));
    CHECK(has(regs, {1, 0, cpuid_reg::ebx, 1}));
    CHECK(has(regs, {1, 0, cpuid_reg::ecx, 2}));
    CHECK(has(regs, {1, 0, cpuid_reg::edx, 31}));
    CHECK_FALSE(has(regs, {1, 0, cpuid_reg::eax, 1}));
    CHECK_FALSE(has(regs, {1, 0, cpuid_reg::ecx, 31}));
    CHECK(get(regs, static_cast<cpuid_reg>(4)) == 0);
}

TEST_CASE("CPUID bits are where the manuals have them", "[abi][cpuid]") {
    auto const at = [](cpuid_bit b, uint32_t leaf, uint32_t subleaf, cpuid_reg reg, uint8_t bit) {
        return b.leaf == leaf && b.subleaf == subleaf && b.reg == reg && b.bit == bit;
    };
    using enum cpuid_reg;
    CHECK(at(cpuid_feature::mwait, 1, 0, ecx, 3));
    CHECK(at(cpuid_feature::x2apic, 1, 0, ecx, 21));
    CHECK(at(cpuid_feature::tsc_deadline, 1, 0, ecx, 24));
    CHECK(at(cpuid_feature::xsave, 1, 0, ecx, 26));
    CHECK(at(cpuid_feature::osxsave, 1, 0, ecx, 27));
    CHECK(at(cpuid_feature::hypervisor, 1, 0, ecx, 31));
    CHECK(at(cpuid_feature::apic, 1, 0, edx, 9));
    CHECK(at(cpuid_feature::apic_repeated, 0x80000001, 0, edx, 9));
    CHECK(at(cpuid_feature::pku, 7, 0, ecx, 3));
    CHECK(at(cpuid_feature::ospke, 7, 0, ecx, 4));
    CHECK(at(cpuid_feature::xsaveopt, 0xd, 1, eax, 0));
    CHECK(at(cpuid_feature::xsavec, 0xd, 1, eax, 1));
    CHECK(at(cpuid_feature::xsaves, 0xd, 1, eax, 3));
    CHECK(at(cpuid_feature::invariant_tsc, 0x80000007, 0, edx, 8));

    CHECK(cpuid_leaf::vendor == 0);
    CHECK(cpuid_leaf::features == 1);
    CHECK(cpuid_leaf::extended_features == 7);
    CHECK(cpuid_leaf::extended_topology == 0xb);
    CHECK(cpuid_leaf::xstate == 0xd);
    CHECK(cpuid_leaf::tsc_ratio == 0x15);
    CHECK(cpuid_leaf::extended_max == 0x80000000);
    CHECK(cpuid_leaf::power_management == 0x80000007);
    CHECK(cpuid_leaf::hypervisor_first == 0x40000000);
    CHECK(cpuid_leaf::hypervisor_step == 0x100);
    // The last base that is looked at, reached by whole steps.
    CHECK(cpuid_leaf::hypervisor_last == 0x4000ff00);
    CHECK((cpuid_leaf::hypervisor_last - cpuid_leaf::hypervisor_first) % cpuid_leaf::hypervisor_step == 0);
}

TEST_CASE("x2APIC registers have their MSR numbers", "[abi][apic]") {
    CHECK(apic_msr(apic_reg::id) == 0x802);
    CHECK(apic_msr(apic_reg::version) == 0x803);
    CHECK(apic_msr(apic_reg::tpr) == 0x808);
    CHECK(apic_msr(apic_reg::eoi) == 0x80b);
    CHECK(apic_msr(apic_reg::ldr) == 0x80d);
    CHECK(apic_msr(apic_reg::svr) == 0x80f);
    CHECK(apic_msr(apic_reg::isr) == 0x810);
    CHECK(apic_msr(apic_reg::tmr) == 0x818);
    CHECK(apic_msr(apic_reg::irr) == 0x820);
    CHECK(apic_msr(apic_reg::esr) == 0x828);
    CHECK(apic_msr(apic_reg::icr_low) == 0x830);
    CHECK(apic_msr(apic_reg::lvt_timer) == 0x832);
    CHECK(apic_msr(apic_reg::lvt_lint0) == 0x835);
    CHECK(apic_msr(apic_reg::lvt_lint1) == 0x836);
    CHECK(apic_msr(apic_reg::lvt_error) == 0x837);
    CHECK(apic_msr(apic_reg::timer_initial) == 0x838);
    CHECK(apic_msr(apic_reg::timer_current) == 0x839);
    CHECK(apic_msr(apic_reg::timer_divide) == 0x83e);
    CHECK(apic_msr(apic_reg::self_ipi) == 0x83f);
    // xAPIC only.
    CHECK(apic_reg::dfr == 0xe0);
    CHECK(apic_reg::icr_high == 0x310);
    CHECK(svr_enable == 0x100);
    CHECK(lvt_masked == 0x10000);
    CHECK(lvt_timer_one_shot == 0);
    CHECK(lvt_timer_periodic == 0x20000);
    CHECK(lvt_timer_tsc_deadline == 0x40000);
    CHECK(icr_busy == 0x1000);
}

TEST_CASE("an interrupt command is encoded as the manuals have it", "[abi][apic]") {
    CHECK(make_apic_command(apic_delivery::fixed, 0xf3).value == 0x0f3);
    CHECK(make_apic_command(apic_delivery::smi, 0).value == 0x200);
    CHECK(make_apic_command(apic_delivery::nmi, 0).value == 0x400);
    CHECK(make_apic_command(apic_delivery::init, 0).value == 0x500);
    CHECK(make_apic_command(apic_delivery::startup, 0x9f).value == 0x69f);
    CHECK(x2apic_icr(apic_id{0}, make_apic_command(apic_delivery::fixed, 0x20)) == 0x4020);
    CHECK(x2apic_icr(apic_id{0xffffffff}, make_apic_command(apic_delivery::fixed, 0xff)) == 0xffffffff000040ff);
    CHECK(x2apic_icr(apic_id{0x12345678}, make_apic_command(apic_delivery::nmi, 0)) == 0x1234567800004400);
    static_assert(can_command<apic_id, apic_command>);
    static_assert(!can_command<cpu_index, apic_command> && !can_command<apic_id, uint32_t>);
}

TEST_CASE("architectural MSRs have their numbers and bits", "[abi][msr]") {
    CHECK(msr::ia32_tsc == 0x10);
    CHECK(msr::ia32_apic_base == 0x1b);
    CHECK(msr::ia32_misc_enable == 0x1a0);
    CHECK(msr::ia32_tsc_deadline == 0x6e0);
    CHECK(msr::ia32_x2apic == 0x800);
    CHECK(msr::ia32_xss == 0xda0);
    CHECK(msr::ia32_efer == 0xc0000080);
    CHECK(msr::ia32_fs_base == 0xc0000100);
    CHECK(msr::ia32_gs_base == 0xc0000101);
    CHECK(msr::ia32_kernel_gs_base == 0xc0000102);
    CHECK(msr::apic_base::bootstrap_cpu == 0x100);
    CHECK(msr::apic_base::x2apic_enable == 0x400);
    CHECK(msr::apic_base::enable == 0x800);
    CHECK(msr::efer::syscall_enable == 0x1);
    CHECK(msr::efer::long_mode_enable == 0x100);
    CHECK(msr::efer::long_mode_active == 0x400);
    CHECK(msr::efer::no_execute_enable == 0x800);
    CHECK(msr::efer::svm_enable == 0x1000);
    CHECK(msr::misc_enable::monitor_enable == 0x40000);
}

TEST_CASE("control register bits are where the manuals have them", "[abi][cr]") {
    CHECK(cr0::pe == 0x1);
    CHECK(cr0::mp == 0x2);
    CHECK(cr0::em == 0x4);
    CHECK(cr0::ts == 0x8);
    CHECK(cr0::et == 0x10);
    CHECK(cr0::ne == 0x20);
    CHECK(cr0::wp == 0x10000);
    CHECK(cr0::am == 0x40000);
    CHECK(cr0::nw == 0x20000000);
    CHECK(cr0::cd == 0x40000000);
    CHECK(cr0::pg == 0x80000000);
    CHECK(cr4::pse == 0x10);
    CHECK(cr4::pae == 0x20);
    CHECK(cr4::pge == 0x80);
    CHECK(cr4::osfxsr == 0x200);
    CHECK(cr4::umip == 0x800);
    CHECK(cr4::la57 == 0x1000);
    CHECK(cr4::pcide == 0x20000);
    CHECK(cr4::osxsave == 0x40000);
    CHECK(cr4::smep == 0x100000);
    CHECK(cr4::smap == 0x200000);
    CHECK(cr4::pke == 0x400000);
    CHECK(cr4::cet == 0x800000);
}

TEST_CASE("XSAVE components and offsets are those of the manuals", "[abi][xsave]") {
    namespace x = xfeature;
    std::vector<uint64_t> const in_order{x::x87,    x::sse,       x::ymm,      x::bndregs,   x::bndcsr,
                                         x::opmask, x::zmm_hi256, x::hi16_zmm, x::pt,        x::pkru,
                                         x::pasid,  x::cet_u,     x::cet_s,    x::hdc,       x::uintr,
                                         x::lbr,    x::hwp,       x::xtilecfg, x::xtiledata, x::apx};
    for (size_t i = 0; i < in_order.size(); ++i) CHECK(in_order[i] == uint64_t{1} << i);
    CHECK(in_order.size() == 20);
    CHECK(xsave_legacy_bytes == 512);
    CHECK(xsave_header_bytes == 64);
    CHECK(xsave_extended_offset == 576);
    CHECK(xcomp_bv_compacted == 0x8000000000000000);
    CHECK(offsetof(xsave_header, xcomp_bv) == 8);
}

TEST_CASE("the clock records have the layout of the ABI", "[abi][kvm_clock]") {
    // Not in the kernel's exported headers, so by number. [kvm-msr]
    CHECK(sizeof(pvclock_vcpu_time_info) == 32);
    CHECK(offsetof(pvclock_vcpu_time_info, version) == 0);
    CHECK(offsetof(pvclock_vcpu_time_info, tsc_timestamp) == 8);
    CHECK(offsetof(pvclock_vcpu_time_info, system_time) == 16);
    CHECK(offsetof(pvclock_vcpu_time_info, tsc_to_system_mul) == 24);
    CHECK(offsetof(pvclock_vcpu_time_info, tsc_shift) == 28);
    CHECK(offsetof(pvclock_vcpu_time_info, flags) == 29);
    CHECK(4096 % alignof(pvclock_vcpu_time_info) == 0);
    CHECK(alignof(pvclock_vcpu_time_info) >= sizeof(pvclock_vcpu_time_info));
    CHECK(sizeof(pvclock_wall_clock) == 12);
    CHECK(offsetof(pvclock_wall_clock, sec) == 4);
    CHECK(offsetof(pvclock_wall_clock, nsec) == 8);
    CHECK(pvclock_tsc_stable == 1);
    CHECK(pvclock_guest_stopped == 2);
}

TEST_CASE("scaled ticks are exact to the last bit", "[abi][kvm_clock]") {
    std::vector<uint64_t> deltas{0,
                                 1,
                                 2,
                                 0xffff,
                                 0x7fffffff,
                                 0x80000000,
                                 0xffffffff,
                                 0x100000000,
                                 0x123456789abcdef,
                                 0x7fffffffffffffff,
                                 0x8000000000000000,
                                 0xffffffffffffffff};
    std::vector<uint32_t> const muls{0,          1,          2,          3,          0x7fffffff,
                                     0x80000000, 0x80000001, 0xaaaaaaab, 0xfffffffe, 0xffffffff};
    uint64_t x = 88172645463325252;
    for (int i = 0; i < 100; ++i) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        deltas.push_back(x >> (i % 50));
    }
    for (uint64_t const delta : deltas)
        for (uint32_t const mul : muls)
            for (int shift = -63; shift <= 63; ++shift)
                if (pvclock_scale(tsc_ticks{delta}, mul, static_cast<int8_t>(shift)).value !=
                    wide_scale(delta, mul, shift)) {
                    CAPTURE(delta, mul, shift);
                    FAIL("differs from 128-bit arithmetic");
                }
    SUCCEED();
}

TEST_CASE("a shift that only a broken host writes is taken modulo 64", "[abi][kvm_clock]") {
    static_assert(pvclock_scale(tsc_ticks{1000}, 0x80000000, 64) == nanoseconds{500});
    static_assert(pvclock_scale(tsc_ticks{1000}, 0x80000000, -64) == nanoseconds{500});
    static_assert(pvclock_scale(tsc_ticks{1000}, 0x80000000, 65) == nanoseconds{1000});
    static_assert(pvclock_scale(tsc_ticks{1000}, 0x80000000, -65) == nanoseconds{250});
    static_assert(pvclock_scale(tsc_ticks{1000}, 0x80000000, -128) == nanoseconds{500});
    static_assert(pvclock_scale(tsc_ticks{1000}, 0x80000000, 127) == nanoseconds{0});
    SUCCEED();
}

TEST_CASE("the TSC rate comes back out of the fraction that a host makes from it", "[abi][kvm_clock]") {
    // As KVM makes it: the rate halved or doubled until it is at most twice 10^9 and more than 10^9, then the fraction.
    uint64_t const khz =
        GENERATE(1000ull, 10000ull, 99999ull, 800000ull, 1000000ull, 1000001ull, 1999999ull, 2000000ull, 2394456ull,
                 2999999ull, 3000000ull, 3700123ull, 4000000ull, 5200000ull, 9999999ull);
    CAPTURE(khz);
    uint64_t hz = khz * 1000;
    int shift = 0;
    while (hz > 2000000000) {
        hz >>= 1;
        shift -= 1;
    }
    while (hz <= 1000000000) {
        hz <<= 1;
        shift += 1;
    }
    auto const mul = static_cast<uint32_t>((uint64_t{1000000000} << 32) / hz);
    uint64_t const back = pvclock_tsc_khz(mul, static_cast<int8_t>(shift));
    uint64_t const off = back > khz ? back - khz : khz - back;
    CAPTURE(mul, shift, back);
    // The quotient loses less than 1 kHz, which a right shift of the ticks then multiplies.
    CHECK(off <= (uint64_t{1} << (shift < 0 ? -shift : 0)));

    // And one second of ticks is one second.
    uint64_t const second = pvclock_scale(tsc_ticks{khz * 1000}, mul, static_cast<int8_t>(shift)).value;
    CHECK(second <= 1000000000);
    CHECK(second + 8 > 1000000000);
}

TEST_CASE("a record that was not filled in has no TSC rate", "[abi][kvm_clock]") {
    static_assert(pvclock_tsc_khz(0, 0) == 0);
    static_assert(pvclock_tsc_khz(0x80000000, 0) == 2000000);
    static_assert(pvclock_tsc_khz(0x80000000, 1) == 1000000);
    static_assert(pvclock_tsc_khz(0x80000000, -1) == 4000000);
    SUCCEED();
}

TEST_CASE("features and hints are single bits, each its own", "[abi][kvm_features]") {
    using enum kvm_feature;
    uint32_t seen = 0;
    for (kvm_feature const f :
         {clocksource, nop_io_delay, mmu_op, clocksource2, async_pf, steal_time, pv_eoi, pv_unhalt, pv_tlb_flush,
          async_pf_vmexit, pv_send_ipi, poll_control, pv_sched_yield, async_pf_int, msi_ext_dest_id, hc_map_gpa_range,
          migration_control, clocksource_stable_bit}) {
        CHECK(popcount(mask(f)) == 1);
        CHECK((seen & mask(f)) == 0);
        seen |= mask(f);
    }
    // Bit 8 is nobody's.
    CHECK(seen == 0x0103feff);
    CHECK(mask(kvm_hint::realtime) == 1);
}

TEST_CASE("each paravirtual MSR names its gate and the bits that are refused", "[abi][kvm_msr]") {
    namespace k = kvm_msr;
    auto const row = [](kvm_msr_row r, uint32_t index, kvm_feature gate, uint64_t reserved) {
        return r.index == index && r.gate == gate && r.reserved == reserved;
    };
    using enum kvm_feature;
    CHECK(row(k::wall_clock_old, 0x11, clocksource, 0));
    CHECK(row(k::system_time_old, 0x12, clocksource, 0));
    CHECK(row(k::wall_clock, 0x4b564d00, clocksource2, 0));
    CHECK(row(k::system_time, 0x4b564d01, clocksource2, 0));
    CHECK(row(k::async_pf_en, 0x4b564d02, async_pf, 0x30));
    CHECK(row(k::steal_time, 0x4b564d03, kvm_feature::steal_time, 0x3e));
    CHECK(row(k::pv_eoi_en, 0x4b564d04, pv_eoi, 0x2));
    CHECK(row(k::poll_control, 0x4b564d05, kvm_feature::poll_control, ~uint64_t{1}));
    CHECK(row(k::async_pf_int, 0x4b564d06, kvm_feature::async_pf_int, ~uint64_t{0xff}));
    CHECK(row(k::async_pf_ack, 0x4b564d07, kvm_feature::async_pf_int, 0));
    CHECK(row(k::migration_control, 0x4b564d08, kvm_feature::migration_control, 0));
    CHECK(kvm_msr_enable == 1);
    // No reserved bit is the enable bit.
    for (kvm_msr_row const& r : {k::async_pf_en, k::steal_time, k::pv_eoi_en, k::poll_control})
        CHECK((r.reserved & kvm_msr_enable) == 0);
}

TEST_CASE("hypercalls have their numbers, and errors are negative", "[abi][kvm_hypercall]") {
    CHECK(kvm_hypercall::vapic_poll_irq == 1);
    CHECK(kvm_hypercall::kick_cpu == 5);
    CHECK(kvm_hypercall::clock_pairing == 9);
    CHECK(kvm_hypercall::send_ipi == 10);
    CHECK(kvm_hypercall::sched_yield == 11);
    CHECK(kvm_hypercall::map_gpa_range == 12);
    CHECK(kvm_send_ipi_window == 128);
    CHECK(kvm_error::not_permitted == -1);
    CHECK(kvm_error::too_big == -7);
    CHECK(kvm_error::fault == -14);
    CHECK(kvm_error::invalid == -22);
    CHECK(kvm_error::not_supported == -95);
    CHECK(kvm_error::no_such_hypercall == -1000);
}

TEST_CASE("the proposed extensions use only what KVM reserves", "[abi][proposed]") {
    namespace proposed = abi::proposed;
    CHECK(proposed::signature == abi::make_cpuid_name("pvxpvxpvxpvx"));
    CHECK(proposed::features_offset == 1);
    CHECK(proposed::feature_in_host == 1);
    CHECK(proposed::steal_time_in_host == 2);
    CHECK((proposed::steal_time_in_host & abi::kvm_msr::steal_time.reserved) == proposed::steal_time_in_host);
    CHECK(proposed::steal_in_host == 4);
    CHECK((proposed::steal_in_host & (steal_preempted | steal_flush_tlb)) == 0);
}

TEST_CASE("the steal-time record has the layout of the ABI", "[abi][kvm_steal_time]") {
    CHECK(sizeof(abi::kvm_steal_time) == 64);
    CHECK(alignof(abi::kvm_steal_time) == 64);
    CHECK(offsetof(abi::kvm_steal_time, version) == 8);
    CHECK(offsetof(abi::kvm_steal_time, preempted) == 16);
    CHECK(steal_preempted == 1);
    CHECK(steal_flush_tlb == 2);
}
