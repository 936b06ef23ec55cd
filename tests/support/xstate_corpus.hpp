// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// CPUID.0xD of real CPUs as data, and what the manuals make of it: the sizes, computed by the plainest loop there is.
/// Where a sub-leaf is from a published dump, it is as it stands there; `origin` says so.

#include <pvx/abi/cpuid.hpp>
#include <pvx/abi/xsave.hpp>

namespace pvx_test {

/// EAX, EBX and ECX of one sub-leaf.
struct xstate_subleaf {
    uint32_t number;
    uint32_t size;
    uint32_t offset;
    uint32_t flags;  ///< 1: supervisor, 2: aligned, 4: can be disarmed (XFD).
};

struct xstate_cpu {
    char const* name;
    char const* origin;
    xstate_subleaf list[16];  ///< To the first of size 0.

    /// Zeros for one that does not exist, as CPUID gives them.
    constexpr xstate_subleaf at(uint32_t number) const {
        for (xstate_subleaf const& s : list)
            if (s.size != 0 && s.number == number) return s;
        return {};
    }
    constexpr uint64_t components(bool supervisor) const {
        uint64_t mask = supervisor ? 0 : 3;
        for (xstate_subleaf const& s : list)
            if (s.size != 0 && ((s.flags & 1) != 0) == supervisor) mask |= uint64_t{1} << s.number;
        return mask;
    }
};

inline constexpr xstate_cpu xstate_corpus[] = {
    {"Skylake client",
     "dump: MPX, processor trace",
     {{2, 256, 576, 0}, {3, 64, 960, 0}, {4, 64, 1024, 0}, {8, 128, 0, 1}}},
    {"Skylake server",
     "made of the dumps beside it: MPX, AVX-512, PKU",
     {{2, 256, 576, 0},
      {3, 64, 960, 0},
      {4, 64, 1024, 0},
      {5, 64, 1088, 0},
      {6, 512, 1152, 0},
      {7, 1024, 1664, 0},
      {8, 128, 0, 1},
      {9, 8, 2688, 0}}},
    {"Sapphire Rapids",
     "dump: AVX-512, PKU, CET, AMX and more supervisor components",
     {{2, 256, 576, 0},
      {5, 64, 1088, 0},
      {6, 512, 1152, 0},
      {7, 1024, 1664, 0},
      {8, 128, 0, 1},
      {9, 8, 2688, 0},
      {10, 8, 0, 1},
      {11, 16, 0, 1},
      {12, 24, 0, 1},
      {14, 48, 0, 1},
      {15, 808, 0, 1},
      {17, 64, 2752, 2},
      {18, 8192, 2816, 6}}},
    {"Zen 2", "dump: a PKRU of 64 bytes", {{2, 256, 576, 0}, {9, 64, 832, 0}}},
    {"Zen 3",
     "dump: PKU behind a hole; CET as in the manual",
     {{2, 256, 576, 0}, {9, 8, 2432, 0}, {11, 16, 0, 1}, {12, 24, 0, 1}}},
    {"Zen 4",
     "dump: AVX-512 without the hole of MPX; CET as in the manual",
     {{2, 256, 576, 0},
      {5, 64, 832, 0},
      {6, 512, 896, 0},
      {7, 1024, 1408, 0},
      {9, 8, 2432, 0},
      {11, 16, 0, 1},
      {12, 24, 0, 1}}},
    {"APX",
     "Sapphire Rapids with APX as its specification has it: 128 bytes in the room of MPX",
     {{2, 256, 576, 0},
      {5, 64, 1088, 0},
      {6, 512, 1152, 0},
      {7, 1024, 1664, 0},
      {8, 128, 0, 1},
      {9, 8, 2688, 0},
      {10, 8, 0, 1},
      {11, 16, 0, 1},
      {12, 24, 0, 1},
      {14, 48, 0, 1},
      {15, 808, 0, 1},
      {17, 64, 2752, 2},
      {18, 8192, 2816, 6},
      {19, 128, 960, 0}}},
    {"made up",
     "no CPU: odd sizes, and aligned components in every position, as no real layout tries them",
     {{2, 1, 4000, 0},
      {3, 63, 577, 2},
      {4, 65, 3000, 0},
      {6, 7, 600, 2},
      {7, 5, 0, 3},
      {9, 100, 2000, 2},
      {10, 9, 2100, 2},
      {11, 11, 0, 1},
      {12, 130, 9000, 0},
      {13, 3, 8000, 2},
      {15, 60, 0, 3},
      {16, 64, 700, 0},
      {17, 2, 701, 2},
      {19, 33, 650, 0}}},
};

inline constexpr xstate_cpu const& sapphire_rapids = xstate_corpus[2];
inline constexpr xstate_cpu const& zen_3 = xstate_corpus[4];
inline constexpr xstate_cpu const& zen_4 = xstate_corpus[5];
inline constexpr xstate_cpu const& apx_cpu = xstate_corpus[6];

/// [sdm1 13.4.3], one component after the other.
constexpr uint32_t xsave_bytes(xstate_cpu const& cpu, uint64_t mask, bool compacted) {
    uint32_t bytes = 576;
    for (xstate_subleaf const& s : cpu.list) {
        if (s.size == 0 || (mask >> s.number & 1) == 0) continue;
        bool const supervisor = (s.flags & 1) != 0, aligned = (s.flags & 2) != 0;
        if (!compacted && supervisor) continue;
        uint32_t const offset = !compacted ? s.offset : aligned ? (bytes + 63) / 64 * 64 : bytes;
        if (offset + s.size > bytes) bytes = offset + s.size;
    }
    return bytes;
}

/// The CPU, as far as a table of its sub-leaves can be read. Its EBX of sub-leaves 0 and 1 is for what is on.
struct xstate_cpuid {
    xstate_cpu const* cpu;
    uint64_t xcr0{1};
    uint64_t xss{0};

    constexpr pvx::abi::cpuid_regs cpuid(uint32_t leaf, uint32_t subleaf) const {
        if (leaf == 0) return {0x20, 0, 0, 0};
        if (leaf == 1) return {0, 0, 1u << 26, 0};
        if (leaf != 0xd) return {};
        uint64_t const user = cpu->components(false), supervisor = cpu->components(true);
        if (subleaf == 0)
            return {static_cast<uint32_t>(user), xsave_bytes(*cpu, xcr0, false), xsave_bytes(*cpu, user, false), 0};
        if (subleaf == 1) return {0xf, xsave_bytes(*cpu, xcr0 | xss, true), static_cast<uint32_t>(supervisor), 0};
        xstate_subleaf const s = cpu->at(subleaf);
        return {s.size, s.offset, s.flags, 0};
    }
};

}  // namespace pvx_test
