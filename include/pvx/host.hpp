// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The whole host half, for a hypervisor or a VMM.

#include <pvx/host/access_rights.hpp>
#include <pvx/host/apic_icr.hpp>
#include <pvx/host/apic_identity.hpp>
#include <pvx/host/apic_map.hpp>
#include <pvx/host/apic_restore.hpp>
#include <pvx/host/apic_state.hpp>
#include <pvx/host/apic_words.hpp>
#include <pvx/host/clock.hpp>
#include <pvx/host/concepts.hpp>
#include <pvx/host/cpuid_table.hpp>
#include <pvx/host/cr0_wp.hpp>
#include <pvx/host/exit_stats.hpp>
#include <pvx/host/guest_cr0.hpp>
#include <pvx/host/halt.hpp>
#include <pvx/host/hypercalls.hpp>
#include <pvx/host/kick.hpp>
#include <pvx/host/kvm_leaves.hpp>
#include <pvx/host/msrs.hpp>
#include <pvx/host/runtime_cpuid.hpp>
#include <pvx/host/snapshot.hpp>
#include <pvx/host/steal_time.hpp>
#include <pvx/host/xstate_check.hpp>
#include <pvx/host/xstate_layout.hpp>
#include <pvx/host/xstate_rules.hpp>
#include <pvx/version.hpp>
