// SPDX-License-Identifier: MIT

/// \file
/// The four functions that a compiler may call in freestanding code.

#include "cpu_ops.hpp"

extern "C" void* memcpy(void* to, void const* from, size_t size) {
    os::copy_bytes(to, from, size);
    return to;
}

extern "C" void* memset(void* to, int value, size_t size) {
    os::set_bytes(to, static_cast<uint8_t>(value), size);
    return to;
}

extern "C" void* memmove(void* to, void const* from, size_t size) {
    auto* const t = static_cast<uint8_t*>(to);
    auto const* const f = static_cast<uint8_t const*>(from);
    if (t <= f || t >= f + size) {
        os::copy_bytes(to, from, size);
    } else {
        for (size_t i = size; i != 0; --i) {
            t[i - 1] = f[i - 1];
            os::compiler_barrier();  // or the compiler sees a memmove here
        }
    }
    return to;
}

extern "C" int memcmp(void const* a, void const* b, size_t size) {
    auto const* const x = static_cast<uint8_t const*>(a);
    auto const* const y = static_cast<uint8_t const*>(b);
    for (size_t i = 0; i < size; ++i)
        if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
    return 0;
}
