// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Extensions of KVM's ABI that pvx proposes and that no other hypervisor offers. A guest finds them by a signature
/// leaf of their own, at the first multiple of 0x100 after KVM's that is free, and asks for each.
///
/// *In host.* KVM marks a vCPU only when it was descheduled although it wants to run; one that is halted must be woken
/// by an IPI for every flush. A host with this extension also marks the vCPU that is in the host for any other reason,
/// if nothing that began before the flush can still use a guest translation. The bit is the host's: a guest-owned
/// "I am waiting" bit is unsafe, since the host may be on its way back into the guest without looking. A CPUID bit is
/// not enough to protect guests that do not know it, because they take any value but 0 for "preempted": so the guest
/// opts in, per vCPU, by a bit of the steal-time MSR, which every other host refuses.

#include <pvx/abi/cpuid.hpp>
#include <pvx/abi/kvm_steal_time.hpp>

namespace pvx::inline v0::abi::proposed {

/// The name in the signature leaf. EAX of that leaf is the last leaf of this interface.
inline constexpr cpuid_name signature = make_cpuid_name("pvxpvxpvxpvx");

/// Features, from the signature leaf on.
inline constexpr uint32_t features_offset = 1;

/// In EAX of the features leaf: the host knows steal_in_host and steal_time_in_host.
inline constexpr uint32_t feature_in_host = bit<uint32_t>(0);

/// In the steal-time MSR: this vCPU's guest knows the bit below, so the host may set it.
inline constexpr uint64_t steal_time_in_host = bit<uint64_t>(1);

/// H, a bit of `preempted` in the steal-time page: set by the host while the vCPU is in the host and owes every flush
/// that is asked of it to its next entry. Legal values are then 0, H, P, H|P, and the last three with F.
inline constexpr uint8_t steal_in_host = bit<uint8_t>(2);

}  // namespace pvx::inline v0::abi::proposed
