// SPDX-License-Identifier: MIT

/// \file
/// Runs the suites that the command line names, in its order. Words with `=` are options of suites.

#include "os/command_line.hpp"
#include "os/console.hpp"
#include "os/exit.hpp"
#include "pv.hpp"
#include "suites.hpp"

namespace {

suite const* find_suite(os::string_view name) {
    for (suite const& s : suites)
        if (s.name == name) return &s;
    return nullptr;
}

bool is_option(os::string_view word) { return word.find('=') != word.size(); }

uint8_t usage(os::string_view word) {
    os::print("unknown word \"{}\" on the command line; it can name any of:\n", word);
    for (suite const& s : suites)
        if (!s.hidden) os::print("  {:<10} {}\n", s.name, s.summary);
    os::print("without any: {}\n", default_suite);
    return os::exit_code::usage;
}

}  // namespace

uint8_t guest_main() {
    uint32_t named = 0;
    for (os::string_view const word : os::command_line{}) {
        if (is_option(word)) continue;
        if (find_suite(word) == nullptr) return usage(word);
        ++named;
    }
    pv::initialise();
    if (named == 0) return find_suite(default_suite)->run() ? os::exit_code::success : os::exit_code::failure;
    bool good = true;
    for (os::string_view const word : os::command_line{})
        if (!is_option(word)) good &= find_suite(word)->run();
    return good ? os::exit_code::success : os::exit_code::failure;
}
