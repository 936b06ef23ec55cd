// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Text that somebody else owns.

#include <stddef.h>
#include <stdint.h>

namespace os {

class string_view {
public:
    constexpr string_view() = default;
    constexpr string_view(char const* data, size_t size) : data_(data), size_(size) {}
    constexpr string_view(char const* text) : data_(text) {
        while (text != nullptr && text[size_] != '\0') ++size_;
    }

    constexpr char const* data() const { return data_; }
    constexpr size_t size() const { return size_; }
    constexpr bool empty() const { return size_ == 0; }
    constexpr char operator[](size_t i) const { return data_[i]; }
    constexpr char const* begin() const { return data_; }
    constexpr char const* end() const { return data_ + size_; }

    /// Characters from..end; empty if there are none.
    constexpr string_view substr(size_t from) const {
        return from >= size_ ? string_view{} : string_view{data_ + from, size_ - from};
    }
    constexpr string_view first(size_t count) const { return {data_, count < size_ ? count : size_}; }
    constexpr bool starts_with(string_view other) const { return other.size_ <= size_ && first(other.size_) == other; }
    /// Where c is first; size() if nowhere.
    constexpr size_t find(char c) const {
        size_t i = 0;
        while (i < size_ && data_[i] != c) ++i;
        return i;
    }

    friend constexpr bool operator==(string_view a, string_view b) {
        if (a.size_ != b.size_) return false;
        for (size_t i = 0; i < a.size_; ++i)
            if (a.data_[i] != b.data_[i]) return false;
        return true;
    }

private:
    char const* data_ = nullptr;
    size_t size_ = 0;
};

}  // namespace os
