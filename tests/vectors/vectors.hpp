// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Golden vectors: what pvx's pure functions answer, as JSON that projects in other languages can test themselves with.
/// One file a component, tests/vectors/COMPONENT.cpp, with one object a JSON file:
///
///     void make(nlohmann::ordered_json& out) {
///         out["about"] = "What this is, and how to read a case.";
///         out["cases"].push_back({{"mask", "0x7"}, {"bytes", 832}});
///     }
///     vector_file const here{"xsave_sizes", make};
///
/// Numbers that may need more than 53 bits are strings in hexadecimal.

#include <nlohmann/json.hpp>

#include "support/fake_machine.hpp"  // pvx_test::hex

/// One JSON file, in the list of all.
struct vector_file {
    static inline constinit vector_file const* first = nullptr;

    char const* name;                           ///< Without ".json".
    void (*make)(nlohmann::ordered_json& out);  ///< Fills in the members of the file's object.
    vector_file const* next;

    vector_file(char const* n, void (*m)(nlohmann::ordered_json&)) : name(n), make(m), next(first) { first = this; }
};
