// SPDX-License-Identifier: MIT

#include "format.hpp"

namespace os {
namespace {

constexpr string_view cut_mark = "...\n";

/// Digits from the right end of a buffer; 64 bits have at most 20, and a point.
class digits {
public:
    void put(char c) { buffer_[--begin_] = c; }

    void put_number(uint64_t v, uint32_t base, uint32_t minimum) {
        for (uint32_t n = 0; v != 0 || n < minimum; ++n, v /= base) put("0123456789abcdef"[v % base]);
    }

    string_view view() const { return {buffer_ + begin_, sizeof(buffer_) - begin_}; }

private:
    char buffer_[32];
    size_t begin_ = sizeof(buffer_);
};

void put_decimals(digits& out, uint64_t magnitude, uint32_t decimals) {
    for (uint32_t i = 0; i < decimals && i < 9; ++i, magnitude /= 10) out.put(static_cast<char>('0' + magnitude % 10));
    out.put('.');
    out.put_number(magnitude, 10, 1);
}

}  // namespace

void text_writer::put(char c) {
    if (size_ < capacity_) {
        data_[size_++] = c;
        return;
    }
    for (size_t i = 0; i < cut_mark.size() && i < capacity_; ++i) data_[capacity_ - cut_mark.size() + i] = cut_mark[i];
}

void text_writer::put(string_view text) {
    for (char const c : text) put(c);
}

void text_writer::put_field(format_argument const& argument, format_spec const& spec) {
    using type = format_argument::type;
    digits number;
    string_view sign;
    string_view text;
    bool is_number = false;
    char character = 0;
    switch (argument.kind) {
        case type::none: return;
        case type::boolean: text = argument.number != 0 ? "yes" : "no"; break;
        case type::text: text = argument.text; break;
        case type::character:
            character = static_cast<char>(argument.number);
            text = {&character, 1};
            break;
        case type::unsigned_number:
        case type::signed_number:
        case type::fixed_point:
        case type::address: {
            is_number = true;
            uint64_t magnitude = argument.number;
            bool const hexadecimal = spec.hexadecimal || argument.kind == type::address;
            bool const is_signed = argument.kind == type::signed_number || argument.kind == type::fixed_point;
            if (hexadecimal) {
                if (spec.prefix || argument.kind == type::address) sign = "0x";
            } else if (is_signed && static_cast<int64_t>(magnitude) < 0) {
                sign = "-";
                magnitude = 0 - magnitude;
            }
            if (argument.kind == type::fixed_point && argument.decimals != 0)
                put_decimals(number, magnitude, argument.decimals);
            else
                number.put_number(magnitude, hexadecimal ? 16 : 10, 1);
            text = number.view();
            break;
        }
    }
    size_t const size = sign.size() + text.size();
    size_t const padding = spec.width > size ? spec.width - size : 0;
    bool const zeros = spec.zeros && is_number && spec.alignment == 0;
    char const alignment = spec.alignment != 0 ? spec.alignment : is_number ? '>' : '<';
    size_t const before = alignment == '>' ? padding : alignment == '^' ? padding / 2 : 0;
    if (!zeros)
        for (size_t i = 0; i < before; ++i) put(' ');
    put(sign);
    if (zeros)
        for (size_t i = 0; i < padding; ++i) put('0');
    put(text);
    if (!zeros)
        for (size_t i = before; i < padding; ++i) put(' ');
}

void text_writer::vprint(string_view format, format_argument const* arguments) {
    for (size_t i = 0; i < format.size(); ++i) {
        char const c = format[i];
        if (c == '{' && !format.substr(i + 1).starts_with("{")) {
            string_view const rest = format.substr(i + 1);
            size_t const end = rest.find('}');
            format_spec spec;
            spec.parse(rest.first(end).substr(1));
            put_field(*arguments, spec);
            if (arguments->kind != format_argument::type::none) ++arguments;
            i += end + 1;
            continue;
        }
        if (c == '{' || c == '}') ++i;
        put(c);
    }
}

}  // namespace os
