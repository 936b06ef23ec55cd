// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// One-shot timers of each CPU, on its local APIC: TSC-deadline mode where offered, else the calibrated counter. Two
/// share the hardware: one for whoever wants it, one for the OS's own timed waits.

#include <stdint.h>

namespace os {

using timer_function = void (*)();

/// Deadlines are readings of the TSC; 0 is none.
struct cpu_timers {
    uint64_t user_deadline;
    timer_function user_function;
    uint64_t wait_deadline;
};

/// Calls `function` on this CPU, in interrupt context, `us` microseconds from now or a little later.
void arm_timer_us(uint64_t us, timer_function function);
void cancel_timer();

/// Sleeps, halted. \pre interrupts are on and this is not an interrupt handler
void sleep_us(uint64_t us);

/// The wait timer: makes sure that a HLT on this CPU ends at `deadline`, a reading of the TSC. 0 disarms it.
void set_wait_deadline(uint64_t deadline);

/// The timer of this CPU is ready. \pre the clock is calibrated
void initialise_timer();
/// Timers use TSC-deadline mode.
bool timer_is_tsc_deadline();
/// Rate of the APIC's counter; 0 in TSC-deadline mode.
uint64_t apic_timer_hz();

}  // namespace os
