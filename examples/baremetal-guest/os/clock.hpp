// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Time by the TSC, whose rate was found at boot.

#include <stdint.h>

#include "string_view.hpp"

namespace os {

/// Ticks of the TSC in a second.
uint64_t tsc_hz();
/// Where that was found: a CPUID leaf, or the timer that it was measured against.
string_view tsc_hz_source();
/// It was not guessed from something whose own rate is only assumed.
bool tsc_hz_is_sure();

/// A number of ticks in nanoseconds, and back.
uint64_t tsc_to_ns(uint64_t ticks);
uint64_t us_to_tsc(uint64_t us);

/// Nanoseconds since the clock was set up. The same on every CPU as far as their TSCs are the same.
uint64_t uptime_ns();

/// Waits, busy.
void delay_us(uint64_t us);

/// Finds the rate. `pm_timer_port` is 0 where ACPI names none. \pre the local APIC is enabled
void initialise_clock(uint16_t pm_timer_port);

}  // namespace os
