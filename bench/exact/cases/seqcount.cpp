// SPDX-License-Identifier: MIT
#include "case.hpp"

namespace {

using exact::counting, exact::plain;

constinit uint32_t version = 4;
constinit uint64_t field = 7;
constinit uint64_t copied = 0;

template <class Machine>
EXACT_OPERATION bool try_read(uint32_t& v, uint64_t& from, uint64_t& out) {
    Machine const machine;
    return pvx::seqcount_try_read(machine, v, [&] { out = machine.ref(from).load(pvx::order::relaxed); });
}

template <class Machine>
EXACT_OPERATION bool read_bounded(uint32_t& v, uint64_t& from, uint64_t& out, uint32_t attempts) {
    Machine const machine;
    return pvx::seqcount_read_bounded(machine, v, attempts, [&] { out = machine.ref(from).load(pvx::order::relaxed); });
}

template <class Machine>
EXACT_OPERATION void write(uint32_t& v, uint64_t& to, uint64_t value) {
    Machine const machine;
    uint32_t const odd = pvx::seqcount_write_begin(machine, v);
    machine.ref(to).store(value, pvx::order::relaxed);
    pvx::seqcount_write_end(machine, v, odd);
}

exact::test_case const list[] = {
    {"seqcount/try_read", try_read<plain>, try_read<counting>, [](auto call) { call(version, field, copied); }},
    {"seqcount/read_bounded, writer stopped, 64 attempts", read_bounded<plain>, read_bounded<counting>,
     [](auto call) {
         version = 5;
         call(version, field, copied, 64u);
     }},
    {"seqcount/write, 1 field", write<plain>, write<counting>, [](auto call) { call(version, field, 9u); }},
};
exact::component const here{list};

}  // namespace
