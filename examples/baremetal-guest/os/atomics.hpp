// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The OS's own shared words go through the same policy as those of pvx.

#include <pvx/base/atomics.hpp>

namespace os {

namespace order = pvx::order;

inline constexpr pvx::builtin_atomics atomics{};

}  // namespace os
