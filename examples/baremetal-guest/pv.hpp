// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// What this kernel uses of pvx: found once at boot, switched on for every CPU.

#include "machine.hpp"

namespace pv {

/// Detects, decides, and registers each CPU's records. The command line can switch features off, see options in
/// suites.hpp. Once, before any suite.
void initialise();

pvx::guest::features const& features();
pvx::guest::configuration const& configuration();

/// How the records of a CPU were registered; `unsupported` where the feature is off or its MSR faults.
pvx::status steal_status(uint32_t cpu);
pvx::status clock_status(uint32_t cpu);

/// Registers the records of the calling CPU, again after a test has used the MSRs for something else.
void enable_this_cpu();

inline constexpr pvx::guest::steal_time<machine> steal{machine{}};
inline constexpr pvx::guest::ipi<machine> ipi{machine{}};
inline constexpr pvx::guest::deferred_flush<machine> deferred{machine{}};

/// The locks of this kernel: any word that is zero at first. Before initialise() they are test-and-set locks.
inline constinit pvx::guest::static_lock_storage<machine, os::max_cpus> lock_storage{};
inline constinit pvx::guest::lock_domain<machine> locks{machine{}, lock_storage};
/// How they wait, and why.
pvx::guest::lock_choice lock_mode();
pvx::guest::kvm_clock<machine>& clock();
/// Prunes as the host and the command line allow.
pvx::guest::tlb_flush<machine> const& flush();

/// The NMI, #MC, #DB and #BP entries do what this CPU has deferred.
void set_flush_hook();

/// The steal-time page and the clock record of a CPU.
inline pvx::abi::kvm_steal_time& steal_page(uint32_t cpu) { return shared_records<pvx::abi::kvm_steal_time>[cpu]; }
inline pvx::abi::pvclock_vcpu_time_info& clock_record(uint32_t cpu) {
    return shared_records<pvx::abi::pvclock_vcpu_time_info>[cpu];
}

}  // namespace pv
