// SPDX-License-Identifier: MIT
// The main program of every test binary, for Catch2 2.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
