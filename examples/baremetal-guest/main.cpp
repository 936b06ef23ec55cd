// SPDX-License-Identifier: MIT

/// \file
/// Runs the suites that the command line names, in its order. A word that it does not know ends the run: a mistyped
/// option would silently test something else.

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

bool is_one_of(os::string_view values, os::string_view value) {
    while (!values.empty()) {
        os::string_view const one = values.first(values.find('|'));
        uint64_t number = 0;
        if (one == value || (one == "N" && os::parse_number(value, number))) return true;
        values = values.substr(one.size() + 1);
    }
    return false;
}

bool is_known_option(os::string_view word) {
    os::string_view const key = word.first(word.find('='));
    os::string_view const value = word.substr(key.size() + 1);
    for (option const& o : options)
        if (o.key == key) return o.values.empty() || is_one_of(o.values, value);
    // A VMM may add words of its own, for the drivers of a Linux: virtio_mmio.device=...
    return key.find('.') != key.size();
}

bool is_known(os::string_view word) { return is_option(word) ? is_known_option(word) : find_suite(word) != nullptr; }

uint8_t usage(os::string_view word) {
    os::print("unknown word \"{}\" on the command line; it can name any of:\n", word);
    for (suite const& s : suites)
        if (!s.hidden) os::print("  {:<10} {}\n", s.name, s.summary);
    os::print("without any: {}; and set KEY=VALUE:\n", default_suite);
    for (option const& o : options)
        if (!o.hidden) os::print("  {:<10} {:<22} {}\n", o.key, o.values, o.summary);
    return os::exit_code::usage;
}

}  // namespace

uint8_t guest_main() {
    uint32_t named = 0;
    for (os::string_view const word : os::command_line{}) {
        if (!is_known(word)) return usage(word);
        if (!is_option(word)) ++named;
    }
    pv::initialise();
    if (named == 0) return find_suite(default_suite)->run() ? os::exit_code::success : os::exit_code::failure;
    bool good = true;
    for (os::string_view const word : os::command_line{})
        if (!is_option(word)) good &= find_suite(word)->run();
    return good ? os::exit_code::success : os::exit_code::failure;
}
