// SPDX-License-Identifier: MIT
#include <pvx/base/seqcount.hpp>

#include "support/operation.hpp"

using namespace pvx_bench;

namespace {

constexpr pvx::builtin_atomics atomics;

struct {
    uint32_t version;
    uint64_t first, second;
} record{};

bool const reading = add_pair(
    "seqcount: read two words", "pvx",
    [] {
        uint64_t first = 0, second = 0;
        pvx::seqcount_read(
            atomics, record.version,
            [&] {
                first = atomics.ref(record.first).load(pvx::order::relaxed);
                second = atomics.ref(record.second).load(pvx::order::relaxed);
            },
            [] {});
        keep(first);
        keep(second);
    },
    "two plain loads",
    [] {
        keep(atomics.ref(record.first).load(pvx::order::relaxed));
        keep(atomics.ref(record.second).load(pvx::order::relaxed));
    });

bool const writing = add_pair(
    "seqcount: write two words", "pvx",
    [n = uint64_t{0}]() mutable {
        uint32_t const odd = pvx::seqcount_write_begin(atomics, record.version);
        atomics.ref(record.first).store(++n, pvx::order::relaxed);
        atomics.ref(record.second).store(n, pvx::order::relaxed);
        pvx::seqcount_write_end(atomics, record.version, odd);
    },
    "two plain stores",
    [n = uint64_t{0}]() mutable {
        atomics.ref(record.first).store(++n, pvx::order::relaxed);
        atomics.ref(record.second).store(n, pvx::order::relaxed);
        __asm__ volatile("" : : : "memory");
    });

}  // namespace
