// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// All that a suite needs of the OS.

#include "apic.hpp"
#include "attempt.hpp"
#include "clock.hpp"
#include "command_line.hpp"
#include "console.hpp"
#include "exit.hpp"
#include "job.hpp"
#include "memory.hpp"
#include "paging.hpp"
#include "panic.hpp"
#include "per_cpu.hpp"
#include "shootdown.hpp"
#include "timer.hpp"
#include "trap.hpp"
