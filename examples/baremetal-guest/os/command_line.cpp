// SPDX-License-Identifier: MIT

#include "command_line.hpp"

#include "panic.hpp"

namespace os {
namespace {

constinit string_view the_line;

/// Value of a digit in any base up to 16; 16 if it is none.
uint32_t digit_value(char c) {
    if (c >= '0' && c <= '9') return static_cast<uint32_t>(c - '0');
    if (c >= 'a' && c <= 'f') return static_cast<uint32_t>(c - 'a') + 10;
    return 16;
}

}  // namespace

void set_command_line(string_view text) { the_line = text; }

command_line::iterator::iterator(string_view rest) : rest_(rest) { ++*this; }

command_line::iterator& command_line::iterator::operator++() {
    while (rest_.starts_with(" ")) rest_ = rest_.substr(1);
    word_ = rest_.empty() ? string_view{} : rest_.first(rest_.find(' '));
    rest_ = rest_.substr(word_.size());
    return *this;
}

command_line::iterator command_line::begin() const { return iterator{the_line}; }
command_line::iterator command_line::end() const { return iterator{{}}; }

bool option(string_view word) {
    for (string_view const w : command_line{})
        if (w == word) return true;
    return false;
}

string_view option_value(string_view key, string_view fallback) {
    for (string_view const w : command_line{}) {
        size_t const equals = w.find('=');
        if (equals != w.size() && w.first(equals) == key) return w.substr(equals + 1);
    }
    return fallback;
}

bool parse_number(string_view text, uint64_t& number) {
    uint32_t const base = text.starts_with("0x") ? 16 : 10;
    string_view const digits = base == 16 ? text.substr(2) : text;
    uint64_t value = 0;
    bool good = !digits.empty() && digits.size() <= 16;
    for (char const c : digits) {
        good = good && digit_value(c) < base;
        value = value * base + digit_value(c);
    }
    if (good) number = value;
    return good;
}

uint64_t option_number(string_view key, uint64_t fallback) {
    string_view const text = option_value(key, {});
    uint64_t number = fallback;
    if (text.data() != nullptr && !parse_number(text, number)) panic("{}={} is not a number", key, text);
    return number;
}

}  // namespace os
