// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// As much of an x86-64 instruction as the counts need: its prefixes and its opcode.

#include <cstdint>

namespace exact {

enum class kind : uint8_t { other, locked, mfence, lfence, sfence, pause, cpuid, rdtsc, rdmsr, wrmsr, hypercall, halt };

struct instruction {
    kind what{};
    uint8_t length{};  ///< Of the kinds from cpuid on, which have no operands; else 0.
};

constexpr bool is_prefix(uint8_t b) {
    return b == 0xf0 || b == 0xf2 || b == 0xf3 || (b >= 0x64 && b <= 0x67) || (b & 0xe7) == 0x26;  // last: CS DS ES SS
}

constexpr instruction decode(uint8_t const* const at) {
    uint8_t const* p = at;
    bool lock = false, repeat = false, operand_size = false;
    for (; is_prefix(*p); ++p) {
        lock |= *p == 0xf0;
        repeat |= *p == 0xf3;
        operand_size |= *p == 0x66;
    }
    if (lock) return {kind::locked};
    bool const rex = (*p & 0xf0) == 0x40;
    bool const rex_b = rex && (*p & 1) != 0;
    p += rex;

    auto const whole = [&](kind k, uint8_t opcode_bytes) {
        return instruction{k, static_cast<uint8_t>(p - at + opcode_bytes)};
    };
    switch (*p) {
        case 0x86:
        case 0x87: return {p[1] < 0xc0 ? kind::locked : kind::other};  // XCHG with memory locks by itself
        case 0x90: return {repeat && !rex_b ? kind::pause : kind::other};
        case 0xf4:
        case 0xfa:
        case 0xfb: return whole(kind::halt, 1);  // HLT, CLI, STI
        case 0x0f: break;
        default: return {};
    }
    switch (p[1]) {
        case 0x01:
            if (p[2] == 0xc1 || p[2] == 0xd9) return whole(kind::hypercall, 3);
            return {};
        case 0x30: return whole(kind::wrmsr, 2);
        case 0x31: return whole(kind::rdtsc, 2);
        case 0x32: return whole(kind::rdmsr, 2);
        case 0xa2: return whole(kind::cpuid, 2);
        case 0xae:
            if (repeat || operand_size || p[2] < 0xe8) return {};
            return {p[2] < 0xf0 ? kind::lfence : p[2] < 0xf8 ? kind::mfence : kind::sfence};
        default: return {};
    }
}

template <class... Bytes>
constexpr kind kind_of(Bytes... bytes) {
    uint8_t const code[] = {static_cast<uint8_t>(bytes)..., 0, 0, 0};
    return decode(code).what;
}
static_assert(kind_of(0xf0, 0x48, 0x0f, 0xb1, 0x0f) == kind::locked);  // lock cmpxchg [rdi], rcx
static_assert(kind_of(0x66, 0xf0, 0xff, 0x00) == kind::locked);        // lock inc word [rax]
static_assert(kind_of(0x48, 0x87, 0x07) == kind::locked);              // xchg [rdi], rax
static_assert(kind_of(0x48, 0x87, 0xc1) == kind::other);               // xchg rcx, rax
static_assert(kind_of(0x0f, 0xae, 0xf0) == kind::mfence && kind_of(0x0f, 0xae, 0xe8) == kind::lfence);
static_assert(kind_of(0x0f, 0xae, 0xf8) == kind::sfence && kind_of(0x0f, 0xae, 0x07) == kind::other);  // fxsave
static_assert(kind_of(0xf3, 0x0f, 0xae, 0xe8) == kind::other);                                         // incsspd
static_assert(kind_of(0xf3, 0x90) == kind::pause && kind_of(0x90) == kind::other);
static_assert(kind_of(0x0f, 0xa2) == kind::cpuid && kind_of(0x0f, 0x31) == kind::rdtsc);
static_assert(kind_of(0x0f, 0x30) == kind::wrmsr && kind_of(0x0f, 0x32) == kind::rdmsr);
static_assert(kind_of(0x0f, 0x01, 0xc1) == kind::hypercall && kind_of(0x0f, 0x01, 0xd9) == kind::hypercall);
static_assert(kind_of(0x0f, 0x01, 0xf8) == kind::other && kind_of(0x0f, 0x1f, 0x00) == kind::other);  // swapgs, nop

}  // namespace exact
