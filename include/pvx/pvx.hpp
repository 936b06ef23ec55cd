// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// All of pvx that is there, but for the architecture's machine base.

#include <pvx/guest.hpp>
#include <pvx/host.hpp>
