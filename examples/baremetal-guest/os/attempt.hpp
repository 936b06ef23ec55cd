// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Running code that may fault. `attempt` calls anything, also the inline assembly of pvx, unchanged, and returns what
/// exception it raised:
///
///     uint64_t value = 0;
///     if (auto fault = os::attempt([&] { value = arch::read_msr(index); })) print("vector {}\n", fault.vector);
///
/// A fault unwinds like longjmp: no destructor of what was called runs, so a lock taken inside stays taken. Attempts
/// nest. Interrupt handlers are outside the attempt that they interrupt. NMI, #DF and #MC are never caught.

#include <stddef.h>
#include <stdint.h>

#include "erased.hpp"

namespace os {

inline constexpr uint8_t vector_invalid_opcode = 6;
inline constexpr uint8_t vector_general_protection = 13;
inline constexpr uint8_t vector_page_fault = 14;

/// The exception that an attempt raised.
struct fault_info {
    bool raised = false;
    uint8_t vector = 0;
    uint32_t error_code = 0;
    uint64_t rip = 0;
    /// CR2; for page faults only.
    uint64_t address = 0;

    explicit operator bool() const { return raised; }
    bool is(uint8_t which) const { return raised && vector == which; }
};

/// An attempt in progress, on the stack of who makes it.
struct attempt_record {
    attempt_record* previous;
    uint64_t stack;
    uint64_t flags;
    fault_info fault;
};

/// attempt() for a plain function.
fault_info attempt_call(void (*function)(void*), void* argument);

/// Calls f() and returns the exception that ended it, if one did.
template <class F>
fault_info attempt(F const& f) {
    return attempt_call(call_erased<F>, erase_type(f));
}

/// RDMSR; false if it raised an exception, and value is then untouched.
bool try_rdmsr(uint32_t index, uint64_t& value);
/// WRMSR; false if it raised an exception.
bool try_wrmsr(uint32_t index, uint64_t value);

}  // namespace os
