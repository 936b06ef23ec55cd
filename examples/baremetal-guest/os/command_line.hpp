// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The words of the kernel's command line: `word` and `key=value`, separated by spaces.

#include <stdint.h>

#include "string_view.hpp"

namespace os {

void set_command_line(string_view text);

/// For (string_view word : command_line()).
class command_line {
public:
    class iterator {
    public:
        explicit iterator(string_view rest);
        string_view operator*() const { return word_; }
        iterator& operator++();
        friend bool operator!=(iterator const& a, iterator const& b) { return a.word_.data() != b.word_.data(); }

    private:
        string_view word_;
        string_view rest_;
    };
    iterator begin() const;
    iterator end() const;
};

/// The word is there.
bool option(string_view word);
/// The value of `key=value`, or the fallback.
string_view option_value(string_view key, string_view fallback);
/// A decimal or 0x number; false, and unchanged, if the text is none.
bool parse_number(string_view text, uint64_t& number);
/// The value of an option as a number; one that is none is a panic.
uint64_t option_number(string_view key, uint64_t fallback);

}  // namespace os
