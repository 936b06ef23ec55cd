// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The version of pvx, for the preprocessor and for code. Versioning rules: CONTRIBUTING.md.

/// One number, 10000 * major + 100 * minor + patch.
#define PVX_VERSION 100

#include <stdint.h>

namespace pvx::inline v0 {

/// What PVX_VERSION says, for code that would rather not use the preprocessor.
inline constexpr uint32_t version = PVX_VERSION;

}  // namespace pvx::inline v0
