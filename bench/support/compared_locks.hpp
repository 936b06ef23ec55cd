// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The locks that bench_locks compares: pvx's, the reference locks, and those of the libraries that were installed when
/// CMake ran.

#include <pvx/guest/qspinlock.hpp>

#include <string>
#include <vector>

#include "support/lock_harness.hpp"

namespace pvx_bench {

std::vector<named_lock> compared_locks();

/// pvx's lock with this tuning, paravirtual. Its name says which.
named_lock tuned_lock(pvx::guest::lock_tuning const& tuning);

/// "library: package" of what was not installed.
std::vector<std::string> absent_locks();

}  // namespace pvx_bench
