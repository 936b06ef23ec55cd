// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Exceptions, NMIs and interrupts: who handles what. Handlers are the same for all CPUs and are set while nothing
/// raises the vector.

#include <stdint.h>

namespace os {

/// Registers at the time of an exception or interrupt, as boot/traps.S pushes them. A handler may change them.
struct trap_frame {
    uint64_t r15, r14, r13, r12, r11, r10, r9, r8;
    uint64_t rbp, rdi, rsi, rdx, rcx, rbx, rax;
    uint64_t vector, error_code;
    uint64_t rip, cs, rflags, rsp, ss;
};
static_assert(sizeof(trap_frame) == 22 * 8);

inline constexpr uint8_t vector_debug = 1;
inline constexpr uint8_t vector_nmi = 2;
inline constexpr uint8_t vector_breakpoint = 3;
inline constexpr uint8_t vector_double_fault = 8;
inline constexpr uint8_t vector_machine_check = 18;
/// Interrupt vectors below are exceptions or those of the masked legacy PICs.
inline constexpr uint8_t first_free_vector = 0x30;
/// Those above are the OS's own.
inline constexpr uint8_t last_free_vector = 0xef;
inline constexpr uint8_t vector_timer = 0xf0;
inline constexpr uint8_t vector_wake = 0xf1;
inline constexpr uint8_t vector_shootdown = 0xf2;
inline constexpr uint8_t vector_spurious = 0xff;

/// Called with interrupts off; EOI follows.
using irq_handler = void (*)(trap_frame&);
/// Called for an NMI, on its own stack. Another NMI can come from the first fault or IRET in it on, and is then
/// reported.
using nmi_handler = void (*)(trap_frame&);
/// True: handled, go on at the frame. False: somebody else's.
using exception_handler = bool (*)(trap_frame&);

/// Called with the CPU's number, first of all, in every entry that interrupts also where interrupts are off: NMI, #MC,
/// #DB, #BP. Before it has returned, nothing but the OS's own memory may be touched.
using entry_hook = void (*)(uint32_t cpu);

/// A null handler takes the old one away; what nobody handles is reported and ends the run.
void set_irq_handler(uint8_t vector, irq_handler handler);
void set_nmi_handler(nmi_handler handler);
/// Comes before attempts. \pre vector < 32, not NMI
void set_exception_handler(uint8_t vector, exception_handler handler);

/// Null: none.
void set_entry_hook(entry_hook hook);

/// Machine checks on this CPU are exceptions from now on; until then they are a shutdown.
void enable_machine_checks();

}  // namespace os
