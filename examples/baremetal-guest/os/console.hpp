// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The serial console, a 16550 at 0x3f8. Each print() is formatted first and written in one go under a lock, so lines
/// of different CPUs do not mix. May be called anywhere; an NMI or fault that interrupts a print on its own CPU writes
/// into the middle of that line rather than deadlock.

#include "format.hpp"

namespace os {

void initialise_console();

void write(string_view text);
void vprint(string_view format, format_argument const* arguments);

/// Prints at most line_capacity characters; see format.hpp for the format.
template <class... Arguments>
void print(format_for<Arguments...> format, Arguments const&... arguments) {
    format_argument const list[] = {arguments..., {}};
    vprint(format.text(), list);
}
inline constexpr size_t line_capacity = 512;

/// For a CPU that is about to stop the machine: takes the lock for good, by force if its owner does not release it
/// soon.
void seize_console();

}  // namespace os
