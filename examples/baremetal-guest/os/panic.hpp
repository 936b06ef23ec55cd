// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The end of a run that went wrong: one report, the other CPUs stopped, a non-zero exit code. The first CPU to get
/// here reports; the rest stop.

#include "format.hpp"
#include "trap.hpp"

namespace os {

[[noreturn]] void vpanic(string_view format, format_argument const* arguments);

/// Prints the message with this CPU's name and a backtrace, and exits with exit_code::panic.
template <class... Arguments>
[[noreturn]] void panic(format_for<Arguments...> format, Arguments const&... arguments) {
    format_argument const list[] = {arguments..., {}};
    vpanic(format.text(), list);
}

/// Prints an exception or NMI that nobody handles, and exits with exit_code::fault. `headline` says what it is.
[[noreturn]] void report_fault(trap_frame const& frame, string_view headline);

/// A CPU has begun to report: the others must stop. Read by their NMI handlers.
bool is_panicking();

}  // namespace os
