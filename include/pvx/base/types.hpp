// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Integers that must not be mixed, each a type of its own. A wrong mix (a CPU index passed as an APIC id) is the
/// kick that never wakes anyone; here it does not compile.

#include <stdint.h>

#include <pvx/base/std.hpp>

namespace pvx::inline v0 {

/// An integer that is told apart from every other by Tag. Arithmetic goes through `.value`, on purpose.
template <class Tag, class Rep>
struct strong_integer {
    using rep = Rep;

    Rep value{};

    // Not defaulted: value-initialisation would then zero first, by a call of memset at clang's -O0.
    PVX_ENTRY_INLINE constexpr strong_integer() {}
    PVX_ENTRY_INLINE constexpr explicit strong_integer(Rep v) : value(v) {}

    friend constexpr bool operator==(strong_integer, strong_integer) = default;
    friend constexpr bool operator<(strong_integer a, strong_integer b) { return a.value < b.value; }
};

/// The dense number of a CPU inside one kernel: 0 .. possible CPUs - 1.
using cpu_index = strong_integer<struct cpu_index_tag, uint32_t>;
/// The (x2)APIC id of a CPU: sparse, 32 bits.
using apic_id = strong_integer<struct apic_id_tag, uint32_t>;
/// An address in guest-physical space, in bytes.
using guest_phys = strong_integer<struct guest_phys_tag, uint64_t>;
/// A time or a duration in nanoseconds.
using nanoseconds = strong_integer<struct nanoseconds_tag, uint64_t>;
/// A reading, or a difference of readings, of the time stamp counter.
using tsc_ticks = strong_integer<struct tsc_ticks_tag, uint64_t>;

/// A record in memory that two sides share: where this side sees it, and what the other side is told.
template <class T>
struct shared {
    T* pointer{};
    guest_phys address{};
};

}  // namespace pvx::inline v0
