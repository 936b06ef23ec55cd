// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The one sequence counter of pvx: one writer, any number of readers that take no lock. Both sides of the steal-time
/// page and of the KVM clock speak it: an odd version means "being written", and a version that moved means "again".
///
/// Every field behind the counter is read and written with relaxed accesses of the atomics policy. Writers of one
/// counter must exclude each other.
///
///     writer                                 reader
///     version = odd        (relaxed)         v = version          (acquire)  [seq-even]
///     fence release        [seq-odd]         fields               (relaxed)
///     fields               (relaxed)         fence acquire        [seq-odd]
///     version = even       (release) [seq-even]   version == v ?  (relaxed)
///
/// A reader that saw an even v acquired all fields of that update [seq-even]. If it saw one field of a *later* update,
/// the two fences make the odd version before that field visible to its second look, which then differs [seq-odd].

#include <pvx/base/atomics.hpp>

namespace pvx::inline v0 {

/// One attempt: call `copy`, which must copy the fields with relaxed loads and do nothing else that matters.
/// In entry code `copy` is a PVX_ENTRY_LAMBDA. True if what it copied belongs to one update; false while an update is
/// under way or if one came between.
template <class Atomics, class Version, class Copy>
PVX_ENTRY_INLINE bool seqcount_try_read(Atomics const& atomics, Version& version, Copy&& copy) {
    // order: acquire [seq-even] pairs with the release store in seqcount_write_end()
    uint32_t const before = atomics.ref(version).load(order::acquire);
    if ((before & 1) != 0) return false;
    copy();
    // order: acquire fence [seq-odd] field loads before the second look; pairs with the fence in seqcount_write_begin()
    atomics.fence(order::acquire);
    return atomics.ref(version).load(order::relaxed) == before;
}

/// At most `attempts` tries. False: no consistent copy was had, so keep the last good one. For readers that must not
/// wait, such as one with interrupts off: a host that is preempted in the middle of an update leaves the version odd
/// for milliseconds.
template <class Atomics, class Version, class Copy>
PVX_ENTRY_INLINE bool seqcount_read_bounded(Atomics const& atomics, Version& version, uint32_t attempts, Copy&& copy) {
    for (uint32_t i = 0; i < attempts; ++i)
        if (seqcount_try_read(atomics, version, copy)) return true;
    return false;
}

/// Try until a consistent copy was had, calling `relax` between tries. Waits as long as the writer is stopped in an
/// update.
template <class Atomics, class Version, class Copy, class Relax>
inline void seqcount_read(Atomics const& atomics, Version& version, Copy&& copy, Relax&& relax) {
    while (!seqcount_try_read(atomics, version, copy)) relax();
}

/// Begin an update; the fields may be stored (relaxed) afterwards. Returns the odd version, for seqcount_write_end().
/// A version that is odd already (a junk page, or a writer that died) counts as even plus one.
template <class Atomics, class Version>
inline uint32_t seqcount_write_begin(Atomics const& atomics, Version& version) {
    // Relaxed: there is one writer, so this reads what it wrote itself.
    uint32_t const odd = (atomics.ref(version).load(order::relaxed) + 1) | 1;
    atomics.ref(version).store(odd, order::relaxed);
    // order: release fence [seq-odd] odd version before the fields; pairs with the fence in seqcount_try_read()
    atomics.fence(order::release);
    return odd;
}

/// End the update that returned `odd`.
template <class Atomics, class Version>
inline void seqcount_write_end(Atomics const& atomics, Version& version, uint32_t odd) {
    // order: release [seq-even] fields before the even version; pairs with the acquire load in seqcount_try_read()
    atomics.ref(version).store(odd + 1, order::release);
}

}  // namespace pvx::inline v0
