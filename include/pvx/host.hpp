// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The whole host half, for a hypervisor or a VMM.

#include <pvx/host/concepts.hpp>
#include <pvx/host/steal_time.hpp>
#include <pvx/version.hpp>
