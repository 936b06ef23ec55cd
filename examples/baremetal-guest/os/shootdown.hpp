// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// TLB shootdown by interrupt: a CPU asks others to drop translations, and waits until each has done it. In three
/// steps, so that whoever has a better way to send the interrupts can use it:
///
///     ask_for_flush(mask, request);
///     ... vector_shootdown to every CPU of the mask ...
///     wait_for_flush(mask);

#include <pvx/abi/apic.hpp>
#include <pvx/base/cpu_mask.hpp>
#include <pvx/guest/flush_request.hpp>

#include "trap.hpp"

namespace os {

/// One CPU's side of it. See shootdown.cpp for who writes what.
struct shootdown_slot {
    uint64_t asked;
    pvx::guest::flush_request const* request;
    uint32_t unanswered;
};

inline constexpr pvx::abi::apic_command shootdown_command =
    pvx::abi::make_apic_command(pvx::abi::apic_delivery::fixed, vector_shootdown);

/// Drops every translation of this CPU, global ones and those of other PCIDs too. A full fence; may run in NMI.
void flush_all_local();

/// Leaves a request with every CPU of the mask, which may hold this one.
/// \pre interrupts are on: others may be waiting for this CPU. Not in an interrupt handler. The mask is not empty.
void ask_for_flush(pvx::const_cpu_mask_view mask, pvx::guest::flush_request const& request);
/// Waits, busy, until they have done it. One that does not answer is a panic.
void wait_for_flush(pvx::const_cpu_mask_view mask);

/// Takes the interrupt from now on, on every CPU.
void initialise_shootdown();

}  // namespace os
