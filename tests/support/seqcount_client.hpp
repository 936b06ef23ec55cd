// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The client of the sequence counter: a record of three fields that belong together. The same code is the unit test,
/// the stress test on real threads and the input of the model checker.

#include <pvx/base/seqcount.hpp>

namespace pvx_test {

using namespace pvx;

/// What a reader gets. Update n is {n, n, n modulo 256}.
struct seqcount_copy {
    uint64_t first{};
    uint64_t second{};
    uint64_t third{};

    bool whole() const { return first == second && third == (first & 0xff); }
};

/// The shared record. The third field is narrower, as in the records of the ABI. With `builtin_atomics` it is plain
/// memory, as those are.
template <atomics_policy A>
struct seqcount_record {
    typename A::template cell<uint32_t> version{};
    typename A::template cell<uint64_t> first{};
    typename A::template cell<uint64_t> second{};
    typename A::template cell<uint8_t> third{};
};

/// Give every word its first value; a torn `fields` is junk that no reader may accept.
template <atomics_policy A, class Record>
void seqcount_fill(A const& atomics, Record& r, uint32_t version, seqcount_copy fields) {
    atomics.ref(r.version).store(version, order::relaxed);
    atomics.ref(r.first).store(fields.first, order::relaxed);
    atomics.ref(r.second).store(fields.second, order::relaxed);
    atomics.ref(r.third).store(static_cast<uint8_t>(fields.third), order::relaxed);
}

/// Publish update n.
template <atomics_policy A, class Record>
void seqcount_publish(A const& atomics, Record& r, uint64_t n) {
    uint32_t const odd = seqcount_write_begin(atomics, r.version);
    atomics.ref(r.first).store(n, order::relaxed);
    atomics.ref(r.second).store(n, order::relaxed);
    atomics.ref(r.third).store(static_cast<uint8_t>(n), order::relaxed);
    seqcount_write_end(atomics, r.version, odd);
}

/// The copy that a reader makes, field by field.
template <atomics_policy A, class Record>
void seqcount_take(A const& atomics, Record& r, seqcount_copy& out) {
    out.first = atomics.ref(r.first).load(order::relaxed);
    out.second = atomics.ref(r.second).load(order::relaxed);
    out.third = atomics.ref(r.third).load(order::relaxed);
}

/// At most `attempts` tries; `out` is written only if one of them was good.
template <atomics_policy A, class Record>
bool seqcount_get_bounded(A const& atomics, Record& r, uint32_t attempts, seqcount_copy& out) {
    seqcount_copy taken;
    if (!seqcount_read_bounded(atomics, r.version, attempts, [&] { seqcount_take(atomics, r, taken); })) return false;
    out = taken;
    return true;
}

/// Try until it is good.
template <atomics_policy A, class Record, class Relax>
seqcount_copy seqcount_get(A const& atomics, Record& r, Relax&& relax) {
    seqcount_copy taken;
    seqcount_read(
        atomics, r.version, [&] { seqcount_take(atomics, r, taken); }, relax);
    return taken;
}

}  // namespace pvx_test
