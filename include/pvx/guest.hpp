// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The whole guest half. The machine object of an x86-64 kernel also wants <pvx/arch/x86_64.hpp>.

#include <pvx/guest/clock.hpp>
#include <pvx/guest/concepts.hpp>
#include <pvx/guest/configuration.hpp>
#include <pvx/guest/deferred_flush.hpp>
#include <pvx/guest/features.hpp>
#include <pvx/guest/flush_request.hpp>
#include <pvx/guest/ipi.hpp>
#include <pvx/guest/lock_mode.hpp>
#include <pvx/guest/pv_wait.hpp>
#include <pvx/guest/qspinlock.hpp>
#include <pvx/guest/record.hpp>
#include <pvx/guest/steal_time.hpp>
#include <pvx/guest/tlb_flush.hpp>
#include <pvx/guest/x2apic.hpp>
#include <pvx/version.hpp>
