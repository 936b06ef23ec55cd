// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// For each component, the machine with exactly the roles that its requires-clause lists; and one as a kernel has it.

#include <pvx/arch/x86_64.hpp>
#include <pvx/pvx.hpp>

#include "support/archetypes.hpp"

namespace machines {

using steal_time = archetype::machine<archetype::atomics_role, archetype::msr_role, archetype::relax_role,
                                      archetype::records<pvx::abi::kvm_steal_time>>;
using clock =
    archetype::machine<archetype::atomics_role, archetype::msr_role, archetype::tsc_role, archetype::relax_role,
                       archetype::cpu_role, archetype::records<pvx::abi::pvclock_vcpu_time_info>>;
using ipi = archetype::machine<archetype::hypercall_role, archetype::cpu_role, archetype::native_ipi_role>;
using x2apic = archetype::machine<archetype::wrmsr_fence_role>;
using timer = archetype::machine<archetype::msr_role>;
using detection = archetype::machine<archetype::cpuid_role>;
using registration = archetype::machine<archetype::msr_role, archetype::records<pvx::abi::kvm_steal_time>>;
using private_memory =
    archetype::machine<archetype::msr_role, archetype::records<pvx::abi::kvm_steal_time>, archetype::sharing_role>;
using deferred_flush = archetype::machine<archetype::atomics_role, archetype::local_flush_role,
                                          archetype::deferral_role<archetype::cell<uint8_t>>>;
using leave_to_host =
    archetype::machine<archetype::atomics_role, archetype::cpu_role, archetype::records<pvx::abi::kvm_steal_time>>;
using tlb_flush = archetype::machine<archetype::atomics_role, archetype::cpu_role,
                                     archetype::records<pvx::abi::kvm_steal_time>, archetype::remote_flush_role>;
/// And one with each optional ability.
using whole_flush =
    archetype::machine<archetype::atomics_role, archetype::cpu_role, archetype::records<pvx::abi::kvm_steal_time>,
                       archetype::remote_flush_role, archetype::online_role, archetype::local_flush_role,
                       archetype::deferral_role<archetype::cell<uint8_t>>>;

using lock =
    archetype::machine<archetype::atomics_role, archetype::cpu_role, archetype::relax_role, archetype::wait_role>;

/// One for each way to sleep. A base that a machine derives from asks for more where it is used.
struct kvm_lock
    : archetype::machine<archetype::atomics_role, archetype::cpu_role, archetype::halt_role, archetype::hypercall_role>,
      pvx::guest::kvm_wait<kvm_lock> {
    using machine::machine;
    bool can_kick() const { return archetype::read_outside() != 0; }
};
struct hyperv_lock : archetype::machine<archetype::atomics_role, archetype::cpu_role, archetype::relax_role,
                                        archetype::irq_role, archetype::msr_role, archetype::native_ipi_role>,
                     pvx::guest::hyperv_wait<hyperv_lock> {
    using machine::machine;
    pvx::abi::apic_command wake_command() const { return {}; }
};
struct yield_lock : archetype::machine<archetype::atomics_role, archetype::cpu_role, archetype::relax_role>,
                    pvx::guest::yield_wait<yield_lock> {
    using machine::machine;
    void yield() const { archetype::write_outside(0); }
};

using host_steal_time =
    archetype::machine<archetype::atomics_role, archetype::guest_memory_role<pvx::abi::kvm_steal_time>,
                       archetype::run_clock_role, archetype::guest_tlb_role>;
using host_steal_time_observed =
    archetype::machine<archetype::atomics_role, archetype::guest_memory_role<pvx::abi::kvm_steal_time>,
                       archetype::run_clock_role, archetype::guest_tlb_role,
                       archetype::observer_role<pvx::host::steal_event>>;

using apic_words = archetype::machine<archetype::atomics_role>;
using halt = archetype::machine<archetype::atomics_role, archetype::wake_event_role>;
using kicker = archetype::machine<archetype::atomics_role, archetype::vcpu_wake_role>;
using apic_map = archetype::machine<archetype::atomics_role, archetype::index_role>;
using host_cpuid = archetype::machine<archetype::cpuid_inputs_role>;
using host_cpuid_observed =
    archetype::machine<archetype::cpuid_inputs_role, archetype::observer_role<pvx::host::cpuid_event>>;
using cr0 = archetype::machine<archetype::guest_cr0_role>;
using mmu = archetype::machine<archetype::mmu_role>;
using cr0_writes =
    archetype::machine<archetype::guest_cr0_role, archetype::mmu_role, archetype::observer_role<pvx::host::cr0_event>>;

using host_clock =
    archetype::machine<archetype::atomics_role,
                       archetype::guest_memory_role<pvx::host::clock_words, pvx::abi::pvclock_wall_clock>,
                       archetype::guest_clock_role>;
/// A host that offers nothing, one that kicks and no more, and one with every role.
using no_hypercalls = archetype::machine<archetype::pv_features_role>;
using kicks_only =
    archetype::machine<archetype::pv_features_role, archetype::apic_lookup_role, archetype::host_kick_role>;
using all_hypercalls =
    archetype::machine<archetype::pv_features_role, archetype::apic_lookup_role, archetype::host_kick_role,
                       archetype::directed_yield_role, archetype::ipi_delivery_role, archetype::clock_pairing_role,
                       archetype::gpa_range_role, archetype::atomics_role,
                       archetype::guest_memory_role<pvx::abi::kvm_clock_pairing>>;
using all_msrs = archetype::machine<archetype::pv_features_role, archetype::halt_polling_role, archetype::pv_eoi_role,
                                    archetype::async_pf_role, archetype::migration_role>;
using exit_stats = archetype::machine<archetype::atomics_role, archetype::index_role>;
using exits_observed = archetype::machine<archetype::observer_role<pvx::host::exit_event>>;

/// A CPU whose XCR0 and IA32_XSS can be set.
struct tunable_cpu : archetype::machine<archetype::cpuid_role> {
    using machine::machine;
    void enable_xstate(pvx::host::xstate_enabled value) const { archetype::write_outside(value.xcr0 + value.xss); }
};

/// What a kernel would write: the hardware's roles from pvx, its own few from elsewhere.
struct kernel : pvx::arch::x86_64,
                archetype::cpu_role,
                archetype::hypercall_role,
                archetype::native_ipi_role,
                archetype::online_role,
                archetype::local_flush_role,
                archetype::remote_flush_role,
                archetype::deferral_role<uint8_t>,
                archetype::wait_role,
                archetype::records<pvx::abi::kvm_steal_time, pvx::abi::pvclock_vcpu_time_info> {};

/// What a hypervisor would write: the compiler's atomics, the rest from elsewhere.
struct hypervisor : pvx::builtin_atomics,
                    archetype::guest_memory_role<pvx::abi::kvm_steal_time, pvx::host::clock_words,
                                                 pvx::abi::pvclock_wall_clock, pvx::abi::kvm_clock_pairing>,
                    archetype::run_clock_role,
                    archetype::vcpu_wake_role,
                    archetype::wake_event_role,
                    archetype::guest_cr0_role,
                    archetype::mmu_role,
                    archetype::cpuid_inputs_role,
                    archetype::pv_features_role,
                    archetype::apic_lookup_role,
                    archetype::host_kick_role,
                    archetype::directed_yield_role,
                    archetype::ipi_delivery_role,
                    archetype::clock_pairing_role,
                    archetype::gpa_range_role,
                    archetype::guest_clock_role,
                    archetype::halt_polling_role,
                    archetype::pv_eoi_role,
                    archetype::async_pf_role,
                    archetype::migration_role {};

/// What the hot paths work on. Never defined: the callers of the functions bring them.
struct components {
    pvx::guest::steal_time<kernel> steal_time_;
    pvx::guest::kvm_clock<kernel> clock_;
    pvx::guest::ipi<kernel> ipi_;
    pvx::guest::x2apic<kernel> x2apic_;
    pvx::guest::tlb_flush<kernel> tlb_flush_;
    pvx::guest::deferred_flush<kernel> deferred_flush_;
    pvx::guest::lock_domain<kernel> locks_;
    pvx::host::steal_time<hypervisor> host_steal_time_;
    pvx::host::runtime_cpuid<hypervisor> host_cpuid_;
    pvx::host::hypercalls<hypervisor> hypercalls_;
    pvx::host::kvm_clock<hypervisor> host_clock_;
    pvx::host::msrs<hypervisor> msrs_;
    pvx::host::exit_stats<hypervisor> exit_stats_;
    pvx::host::apic_map<hypervisor> apic_map_;
};

// A component costs what it stores of its own: an empty machine takes no room.
static_assert(sizeof(components::steal_time_) == 1 && sizeof(components::ipi_) == 1);
static_assert(sizeof(components::x2apic_) == sizeof(bool));
static_assert(sizeof(components::tlb_flush_) == sizeof(pvx::guest::flush_options));
static_assert(sizeof(components::deferred_flush_) == 1 && sizeof(components::hypercalls_) == 1);
static_assert(sizeof(components::msrs_) == sizeof(pvx::host::msrs_state));

}  // namespace machines
