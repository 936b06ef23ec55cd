// SPDX-License-Identifier: MIT
#include <pvx/host/runtime_cpuid.hpp>

#include "case.hpp"

namespace {

using exact::counting, exact::plain;
using pvx::host::cpuid_entry;

constinit pvx::host::cpuid_inputs registers{};

struct sizes {
    uint32_t standard_size(uint64_t) const { return 832; }
    uint32_t compacted_size(uint64_t) const { return 896; }
};
struct environment {
    pvx::host::cpuid_inputs read_cpuid_inputs() const { return registers; }
    sizes xstate_sizes() const { return {}; }
};
using cpuid = pvx::host::runtime_cpuid<environment, 64>;

/// As many entries as an Intel server's guest has, with all that change.
constexpr cpuid_entry entries[] = {
    {0, 0, {0x1f, 0x756e6547, 0x6c65746e, 0x49656e69}},
    {1, 0, {0x806f8, 0x800, 1u << 26, 0x178bfbff}},
    {2, 0, {}},
    {4, 0, {}},
    {4, 1, {}},
    {4, 2, {}},
    {4, 3, {}},
    {5, 0, {}},
    {6, 0, {}},
    {7, 0, {2, 0, 0, 0}},
    {7, 1, {}},
    {7, 2, {}},
    {0xa, 0, {}},
    {0xb, 0, {1, 2, 0x100, 0}},
    {0xb, 1, {7, 64, 0x201, 0}},
    {0xd, 0, {0x2e7, 0, 0, 0}},
    {0xd, 1, {0xf, 0, 0x1900, 0}},
    {0xd, 2, {}},
    {0xd, 5, {}},
    {0xd, 6, {}},
    {0xd, 7, {}},
    {0xd, 9, {}},
    {0x14, 0, {}},
    {0x15, 0, {}},
    {0x16, 0, {}},
    {0x1d, 0, {}},
    {0x1d, 1, {}},
    {0x1e, 0, {}},
    {0x1f, 0, {1, 2, 0x100, 0}},
    {0x1f, 1, {7, 64, 0x201, 0}},
    {0x40000000, 0, {}},
    {0x40000001, 0, {}},
    {0x80000000, 0, {0x80000008, 0, 0, 0}},
    {0x80000001, 0, {}},
    {0x80000002, 0, {}},
    {0x80000003, 0, {}},
    {0x80000004, 0, {}},
    {0x80000006, 0, {}},
    {0x80000007, 0, {}},
    {0x80000008, 0, {}},
};

template <class>
EXACT_OPERATION void mark(cpuid& guest) {
    guest.mark_changed();
}

template <class>
EXACT_OPERATION void read(cpuid& guest, uint32_t leaf, uint32_t subleaf, pvx::abi::cpuid_regs& out) {
    out = guest.read(leaf, subleaf);
}

constinit cpuid guest(environment{}, pvx::apic_id{5}, pvx::host::mwait_bit::follows_misc_enable);
constinit pvx::abi::cpuid_regs answer{};

template <class Call>
void ask(Call call, uint32_t leaf, uint32_t subleaf) {
    (void)guest.replace(entries, sizeof(entries) / sizeof(entries[0]));
    (void)guest.table();
    call(guest, leaf, subleaf, answer);
}

exact::test_case const list[] = {
    {"runtime_cpuid/mark", mark<plain>, mark<counting>, [](auto call) { call(guest); }, {"instructions", 2}},
    {"runtime_cpuid/read, leaf 1",
     read<plain>,
     read<counting>,
     [](auto call) { ask(call, 1, 0); },
     {"instructions", 60}},
    {"runtime_cpuid/read, leaf 1, junk in ECX", read<plain>, read<counting>,
     [](auto call) { ask(call, 1, 0x12345678); }},
    {"runtime_cpuid/read, leaf 0xd.1", read<plain>, read<counting>, [](auto call) { ask(call, 0xd, 1); }},
    {"runtime_cpuid/read, the last entry", read<plain>, read<counting>, [](auto call) { ask(call, 0x80000008, 0); }},
    {"runtime_cpuid/read, no such sub-leaf", read<plain>, read<counting>, [](auto call) { ask(call, 0xd, 31); }},
    {"runtime_cpuid/read, topology, beyond the last", read<plain>, read<counting>,
     [](auto call) { ask(call, 0xb, 7); }},
    {"runtime_cpuid/read, out of range", read<plain>, read<counting>, [](auto call) { ask(call, 0x80000099, 0); }},
    {"runtime_cpuid/read, leaf 1, marked", read<plain>, read<counting>,
     [](auto call) {
         (void)guest.replace(entries, sizeof(entries) / sizeof(entries[0]));
         call(guest, 1u, 0u, answer);
     }},
};
exact::component const here{list};

}  // namespace
