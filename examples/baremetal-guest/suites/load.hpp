// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Keeping vCPUs busy for a while, and what happened to each meanwhile: by the host's account (steal) and by the
/// guest's own eyes (gaps in a loop that reads the TSC).

#include <stdint.h>

/// One vCPU under load.
struct load_result {
    uint64_t wall_ns = 0;
    uint64_t steal_ns = 0;  ///< 0 where steal time is off
    uint64_t lost_ns = 0;   ///< sum of gaps of half a millisecond and more
};

/// Keeps the calling vCPU busy.
load_result load_this_cpu(uint64_t us);

/// Keeps all vCPUs busy at once; `results` has one entry for each. If `seen_preempted` is given, each entry says
/// whether another vCPU saw that one preempted.
void load_all(uint64_t us, load_result* results, bool* seen_preempted = nullptr);
