// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// How the locks of a kernel wait, from what the host offers: one pure function, in the order in which current Linux
/// decides, with the reason. It knows KVM's kick; who waits by hyperv_wait chooses paravirtual by Hyper-V's own leaves.
/// [kvm-cpuid]

#include <pvx/guest/configuration.hpp>
#include <pvx/guest/qspinlock.hpp>

namespace pvx::inline v0::guest {

/// What the user, or the porter, says about locks.
struct lock_switches {
    /// False: never halt in a lock. Beats everything that the host offers.
    bool paravirtual{true};
    /// Where the host can wake nobody: poll, which any running vCPU can win, rather than queue, where the lock may be
    /// handed to one that is preempted. Some hosts withhold kicks from dedicated vCPUs without a hint; there a queue is
    /// better.
    bool poll_without_kick{true};
};

/// A mode and why.
struct lock_choice {
    lock_mode mode;
    reason why;  ///< `on`: nothing speaks against halting; otherwise what does.
};

/// Decide. \pre possible_cpus >= 1
constexpr lock_choice choose_lock_mode(features const& f, uint32_t possible_cpus, lock_switches const& user = {}) {
    if (!f.hypervisor_present) return {lock_mode::native, reason::no_hypervisor};
    // A dedicated vCPU gains nothing from halting, whatever else is offered.
    if (f.has(abi::kvm_hint::realtime)) return {lock_mode::native, reason::dedicated_cpus};
    if (possible_cpus <= 1) return {lock_mode::native, reason::single_cpu};
    if (!user.paravirtual) return {lock_mode::native, reason::switched_off};
    if (f.has(abi::kvm_feature::pv_unhalt)) return {lock_mode::paravirtual, reason::on};
    lock_mode const fallback = user.poll_without_kick ? lock_mode::test_and_set : lock_mode::native;
    return {fallback, f.find(hypervisor::kvm) == nullptr ? reason::no_kvm : reason::not_offered};
}

}  // namespace pvx::inline v0::guest
