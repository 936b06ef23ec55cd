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

/// What a kernel would write: the hardware's roles from pvx, its own few from elsewhere.
struct kernel : pvx::arch::x86_64,
                archetype::cpu_role,
                archetype::hypercall_role,
                archetype::native_ipi_role,
                archetype::records<pvx::abi::kvm_steal_time, pvx::abi::pvclock_vcpu_time_info> {};

/// What the hot paths work on. Never defined: the callers of the functions bring them.
struct components {
    pvx::guest::steal_time<kernel> steal_time_;
    pvx::guest::kvm_clock<kernel> clock_;
    pvx::guest::ipi<kernel> ipi_;
    pvx::guest::x2apic<kernel> x2apic_;
};

// A component costs what it stores of its own: an empty machine takes no room.
static_assert(sizeof(components::steal_time_) == 1 && sizeof(components::ipi_) == 1);
static_assert(sizeof(components::x2apic_) == sizeof(bool));

}  // namespace machines
