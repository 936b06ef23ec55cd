// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The end of a run: a value for the isa-debug-exit device at port 0xf4. QEMU then exits with (value << 1) | 1, which
/// tools/run-guest turns back into the value.

#include <stdint.h>

namespace os {

namespace exit_code {
inline constexpr uint8_t success = 0;
inline constexpr uint8_t failure = 1;  ///< a suite said so
inline constexpr uint8_t usage = 2;    ///< unknown word on the command line
inline constexpr uint8_t panic = 3;
inline constexpr uint8_t fault = 4;  ///< an exception that nobody handles
}  // namespace exit_code

/// Ends the run. Where the device is missing: says so, and halts for ever.
[[noreturn]] void exit(uint8_t value);

/// Interrupts off, HLT, for ever.
[[noreturn]] void halt_for_ever();

}  // namespace os
