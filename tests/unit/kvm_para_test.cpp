// SPDX-License-Identifier: MIT
#include <pvx/abi/kvm_clock.hpp>
#include <pvx/abi/kvm_features.hpp>
#include <pvx/abi/kvm_hypercall.hpp>
#include <pvx/abi/kvm_msr.hpp>
#include <pvx/abi/kvm_steal_time.hpp>

// The kernel's own words for the same things, from the system's headers (Debian: linux-libc-dev).
#include <errno.h>
#include <linux/kvm_para.h>

#include <string>

#include "support/catch.hpp"

using namespace pvx;

namespace {

unsigned number(abi::kvm_feature f) { return static_cast<unsigned>(f); }

/// Two structs have a field at the same offset and of the same size.
#define PVX_SAME_FIELD(ours, theirs, our_field, their_field)           \
    CHECK(offsetof(ours, our_field) == offsetof(theirs, their_field)); \
    CHECK(sizeof(ours::our_field) == sizeof(theirs::their_field))

}  // namespace

TEST_CASE("feature bits are those of the kernel's header", "[abi][kvm_features]") {
    using enum abi::kvm_feature;
    CHECK(number(clocksource) == KVM_FEATURE_CLOCKSOURCE);
    CHECK(number(nop_io_delay) == KVM_FEATURE_NOP_IO_DELAY);
    CHECK(number(mmu_op) == KVM_FEATURE_MMU_OP);
    CHECK(number(clocksource2) == KVM_FEATURE_CLOCKSOURCE2);
    CHECK(number(async_pf) == KVM_FEATURE_ASYNC_PF);
    CHECK(number(steal_time) == KVM_FEATURE_STEAL_TIME);
    CHECK(number(pv_eoi) == KVM_FEATURE_PV_EOI);
    CHECK(number(pv_unhalt) == KVM_FEATURE_PV_UNHALT);
    CHECK(number(pv_tlb_flush) == KVM_FEATURE_PV_TLB_FLUSH);
    CHECK(number(async_pf_vmexit) == KVM_FEATURE_ASYNC_PF_VMEXIT);
    CHECK(number(pv_send_ipi) == KVM_FEATURE_PV_SEND_IPI);
    CHECK(number(poll_control) == KVM_FEATURE_POLL_CONTROL);
    CHECK(number(pv_sched_yield) == KVM_FEATURE_PV_SCHED_YIELD);
    CHECK(number(async_pf_int) == KVM_FEATURE_ASYNC_PF_INT);
    CHECK(number(msi_ext_dest_id) == KVM_FEATURE_MSI_EXT_DEST_ID);
    CHECK(number(hc_map_gpa_range) == KVM_FEATURE_HC_MAP_GPA_RANGE);
    CHECK(number(migration_control) == KVM_FEATURE_MIGRATION_CONTROL);
    CHECK(number(clocksource_stable_bit) == KVM_FEATURE_CLOCKSOURCE_STABLE_BIT);
    CHECK(static_cast<unsigned>(abi::kvm_hint::realtime) == KVM_HINTS_REALTIME);
    CHECK(mask(steal_time) == 1u << KVM_FEATURE_STEAL_TIME);
    CHECK(mask(clocksource_stable_bit) == 1u << KVM_FEATURE_CLOCKSOURCE_STABLE_BIT);
    CHECK(mask(abi::kvm_hint::realtime) == 1u << KVM_HINTS_REALTIME);
}

TEST_CASE("the signature and its leaves are those of the kernel's header", "[abi][kvm_features]") {
    std::string name;
    for (uint32_t i = 0; i < 12; ++i) name += abi::kvm_signature.at(i);
    CHECK(name == std::string(KVM_SIGNATURE, 12));
    CHECK(abi::cpuid_leaf::hypervisor_first == KVM_CPUID_SIGNATURE);
    CHECK(abi::cpuid_leaf::hypervisor_first + abi::kvm_features_offset == KVM_CPUID_FEATURES);
}

TEST_CASE("MSR numbers and masks are those of the kernel's header", "[abi][kvm_msr]") {
    namespace msr = abi::kvm_msr;
    CHECK(msr::wall_clock_old.index == MSR_KVM_WALL_CLOCK);
    CHECK(msr::system_time_old.index == MSR_KVM_SYSTEM_TIME);
    CHECK(msr::wall_clock.index == MSR_KVM_WALL_CLOCK_NEW);
    CHECK(msr::system_time.index == MSR_KVM_SYSTEM_TIME_NEW);
    CHECK(msr::async_pf_en.index == MSR_KVM_ASYNC_PF_EN);
    CHECK(msr::steal_time.index == MSR_KVM_STEAL_TIME);
    CHECK(msr::pv_eoi_en.index == MSR_KVM_PV_EOI_EN);
    CHECK(msr::poll_control.index == MSR_KVM_POLL_CONTROL);
    CHECK(msr::async_pf_int.index == MSR_KVM_ASYNC_PF_INT);
    CHECK(msr::async_pf_ack.index == MSR_KVM_ASYNC_PF_ACK);
    CHECK(msr::migration_control.index == MSR_KVM_MIGRATION_CONTROL);
    CHECK(abi::kvm_msr_enable == KVM_MSR_ENABLED);
    CHECK(abi::kvm_msr_enable == KVM_ASYNC_PF_ENABLED);
    CHECK(abi::kvm_msr_enable == KVM_PV_EOI_ENABLED);
    CHECK(msr::steal_time.reserved == KVM_STEAL_RESERVED_MASK);
    CHECK((KVM_STEAL_VALID_BITS | KVM_STEAL_RESERVED_MASK | KVM_MSR_ENABLED) == ~0ull);
    // Every flag of asynchronous page faults is legal, and what is left below the address is not.
    CHECK((msr::async_pf_en.reserved | KVM_ASYNC_PF_ENABLED | KVM_ASYNC_PF_SEND_ALWAYS |
           KVM_ASYNC_PF_DELIVERY_AS_PF_VMEXIT | KVM_ASYNC_PF_DELIVERY_AS_INT) == 0x3f);
    CHECK((msr::async_pf_en.reserved & (KVM_ASYNC_PF_ENABLED | KVM_ASYNC_PF_SEND_ALWAYS |
                                        KVM_ASYNC_PF_DELIVERY_AS_PF_VMEXIT | KVM_ASYNC_PF_DELIVERY_AS_INT)) == 0);
}

TEST_CASE("the steal-time record is that of the kernel's header", "[abi][kvm_steal_time]") {
    CHECK(sizeof(abi::kvm_steal_time) == sizeof(::kvm_steal_time));
    PVX_SAME_FIELD(abi::kvm_steal_time, ::kvm_steal_time, steal, steal);
    PVX_SAME_FIELD(abi::kvm_steal_time, ::kvm_steal_time, version, version);
    PVX_SAME_FIELD(abi::kvm_steal_time, ::kvm_steal_time, flags, flags);
    PVX_SAME_FIELD(abi::kvm_steal_time, ::kvm_steal_time, preempted, preempted);
    PVX_SAME_FIELD(abi::kvm_steal_time, ::kvm_steal_time, pad8, u8_pad);
    PVX_SAME_FIELD(abi::kvm_steal_time, ::kvm_steal_time, pad32, pad);
    CHECK(alignof(abi::kvm_steal_time) == 1u << (KVM_STEAL_ALIGNMENT_BITS + 1));
    CHECK(abi::steal_preempted == KVM_VCPU_PREEMPTED);
    CHECK(abi::steal_flush_tlb == KVM_VCPU_FLUSH_TLB);
}

TEST_CASE("the clock-pairing record is that of the kernel's header", "[abi][kvm_clock]") {
    CHECK(sizeof(abi::kvm_clock_pairing) == sizeof(::kvm_clock_pairing));
    CHECK(alignof(abi::kvm_clock_pairing) == alignof(::kvm_clock_pairing));
    PVX_SAME_FIELD(abi::kvm_clock_pairing, ::kvm_clock_pairing, sec, sec);
    PVX_SAME_FIELD(abi::kvm_clock_pairing, ::kvm_clock_pairing, nsec, nsec);
    PVX_SAME_FIELD(abi::kvm_clock_pairing, ::kvm_clock_pairing, tsc, tsc);
    PVX_SAME_FIELD(abi::kvm_clock_pairing, ::kvm_clock_pairing, flags, flags);
    PVX_SAME_FIELD(abi::kvm_clock_pairing, ::kvm_clock_pairing, pad, pad);
}

TEST_CASE("hypercall numbers and errors are those of the kernel's header", "[abi][kvm_hypercall]") {
    namespace call = abi::kvm_hypercall;
    namespace error = abi::kvm_error;
    CHECK(call::vapic_poll_irq == KVM_HC_VAPIC_POLL_IRQ);
    CHECK(call::kick_cpu == KVM_HC_KICK_CPU);
    CHECK(call::clock_pairing == KVM_HC_CLOCK_PAIRING);
    CHECK(call::send_ipi == KVM_HC_SEND_IPI);
    CHECK(call::sched_yield == KVM_HC_SCHED_YIELD);
    CHECK(call::map_gpa_range == KVM_HC_MAP_GPA_RANGE);
    CHECK(error::no_such_hypercall == -KVM_ENOSYS);
    CHECK(error::fault == -KVM_EFAULT);
    CHECK(error::invalid == -KVM_EINVAL);
    CHECK(error::too_big == -KVM_E2BIG);
    CHECK(error::not_permitted == -KVM_EPERM);
    CHECK(error::not_supported == -KVM_EOPNOTSUPP);
}

TEST_CASE("what hypercalls and asynchronous page faults take is as in the kernel's header", "[abi][kvm_hypercall]") {
    CHECK(abi::kvm_clock_pairing_wall == KVM_CLOCK_PAIRING_WALLCLOCK);
    CHECK(abi::gpa_attributes::encrypted == KVM_MAP_GPA_RANGE_ENCRYPTED);
    CHECK((abi::gpa_attributes::page_size & KVM_MAP_GPA_RANGE_PAGE_SZ_2M) == 1);
    CHECK((abi::gpa_attributes::page_size & KVM_MAP_GPA_RANGE_PAGE_SZ_1G) == 2);
    CHECK(abi::gpa_attributes::reserved == ~(abi::gpa_attributes::page_size | abi::gpa_attributes::encrypted));
    CHECK(abi::kvm_msr_enable == KVM_ASYNC_PF_ENABLED);
    CHECK(abi::async_pf::send_always == KVM_ASYNC_PF_SEND_ALWAYS);
    CHECK(abi::async_pf::as_vmexit == KVM_ASYNC_PF_DELIVERY_AS_PF_VMEXIT);
    CHECK(abi::async_pf::as_interrupt == KVM_ASYNC_PF_DELIVERY_AS_INT);
}
