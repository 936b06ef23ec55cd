// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Type-safe formatting into caller's memory, a small part of std::format:
///
///     {}  {:<12}  {:>8}  {:^10}  {:04}  {:x}  {:#x}  {:#010x}  {{ }}
///
/// Text is left-aligned, numbers are right-aligned. The number of fields and their form are checked at compile time.
/// Allocates nothing; what does not fit is cut, and the end then says so.

#include "string_view.hpp"

namespace os {

/// A number with decimals, as an integer in units of the last one: fixed{1234, 2} prints 12.34.
struct fixed {
    int64_t value;
    uint32_t decimals;
};

/// One argument, its type erased.
struct format_argument {
    enum class type : uint8_t { none, unsigned_number, signed_number, boolean, character, text, fixed_point, address };

    constexpr format_argument() = default;
    constexpr format_argument(bool v) : kind(type::boolean), number(v) {}
    constexpr format_argument(char v) : kind(type::character), number(static_cast<uint8_t>(v)) {}
    constexpr format_argument(int v) : format_argument(static_cast<long long>(v)) {}
    constexpr format_argument(long v) : format_argument(static_cast<long long>(v)) {}
    constexpr format_argument(long long v) : kind(type::signed_number), number(static_cast<uint64_t>(v)) {}
    constexpr format_argument(unsigned v) : kind(type::unsigned_number), number(v) {}
    constexpr format_argument(unsigned long v) : kind(type::unsigned_number), number(v) {}
    constexpr format_argument(unsigned long long v) : kind(type::unsigned_number), number(v) {}
    constexpr format_argument(string_view v) : kind(type::text), text(v) {}
    constexpr format_argument(char const* v) : kind(type::text), text(v) {}
    constexpr format_argument(fixed v)
        : kind(type::fixed_point), decimals(v.decimals), number(static_cast<uint64_t>(v.value)) {}
    format_argument(void const* v) : kind(type::address), number(reinterpret_cast<uint64_t>(v)) {}

    type kind = type::none;
    uint32_t decimals = 0;
    uint64_t number = 0;
    string_view text;
};

/// What stands between `{:` and `}`.
struct format_spec {
    char alignment = 0;
    bool zeros = false;
    bool prefix = false;
    bool hexadecimal = false;
    uint32_t width = 0;

    /// Takes text up to the `}`; false if there is something it does not know.
    constexpr bool parse(string_view text) {
        size_t i = 0;
        auto at = [&](char c) { return i < text.size() && text[i] == c; };
        if (at('<') || at('>') || at('^')) alignment = text[i++];
        if (at('#')) prefix = true, ++i;
        if (at('0')) zeros = true, ++i;
        while (i < text.size() && text[i] >= '0' && text[i] <= '9')
            width = width * 10 + static_cast<uint32_t>(text[i++] - '0');
        if (at('x')) hexadecimal = true, ++i;
        return i == text.size() && width < 256;
    }
};

/// A format string whose fields were counted at compile time.
template <class... Arguments>
class format_string {
public:
    consteval format_string(char const* text) : text_(text) {
        size_t fields = 0;
        for (size_t i = 0; i < text_.size(); ++i) {
            if (text_[i] != '{' && text_[i] != '}') continue;
            if (text_.substr(i + 1).starts_with(text_.substr(i).first(1))) {
                ++i;
                continue;
            }
            string_view const rest = text_.substr(i + 1);
            size_t const end = rest.find('}');
            format_spec spec;
            if (text_[i] == '}' || end == rest.size()) malformed();
            if (end != 0 && (rest[0] != ':' || !spec.parse(rest.first(end).substr(1)))) malformed();
            ++fields;
            i += end + 1;
        }
        if (fields != sizeof...(Arguments)) wrong_number_of_arguments();
    }

    constexpr string_view text() const { return text_; }

private:
    // Not constexpr: a call makes the constant expression ill-formed, and the compiler names the function.
    static void malformed() {}
    static void wrong_number_of_arguments() {}

    string_view text_;
};

/// Stops deduction, so that the arguments alone decide the type of a format string.
template <class T>
struct identity {
    using type = T;
};
template <class... Arguments>
using format_for = format_string<typename identity<Arguments>::type...>;

/// Text under construction in memory of the caller's.
class text_writer {
public:
    constexpr text_writer(char* memory, size_t capacity) : data_(memory), capacity_(capacity) {}
    text_writer(text_writer const&) = delete;
    text_writer& operator=(text_writer const&) = delete;

    template <class... Arguments>
    void print(format_for<Arguments...> format, Arguments const&... arguments) {
        format_argument const list[] = {arguments..., {}};
        vprint(format.text(), list);
    }
    /// The same, unchecked. Fields without an argument print nothing.
    void vprint(string_view format, format_argument const* arguments);

    void put(char c);
    void put(string_view text);
    void clear() { size_ = 0; }
    string_view view() const { return {data_, size_}; }

private:
    void put_field(format_argument const& argument, format_spec const& spec);

    char* data_;
    size_t capacity_;
    size_t size_ = 0;
};

/// The same with memory of its own.
template <size_t Capacity>
class text_buffer : public text_writer {
public:
    constexpr text_buffer() : text_writer(storage_, Capacity) {}

private:
    char storage_[Capacity];
};

}  // namespace os
