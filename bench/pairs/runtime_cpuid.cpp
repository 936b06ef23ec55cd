// SPDX-License-Identifier: MIT
#include <pvx/host/runtime_cpuid.hpp>

#include <array>
#include <random>
#include <vector>

#include "support/operation.hpp"

using namespace pvx_bench;
using pvx::abi::cpuid_regs;
using pvx::host::cpuid_entry;

namespace {

pvx::host::cpuid_inputs registers{};

struct sizes {
    uint32_t standard_size(uint64_t) const { return 832; }
    uint32_t compacted_size(uint64_t) const { return 896; }
};
struct environment {
    pvx::host::cpuid_inputs read_cpuid_inputs() const { return registers; }
    sizes xstate_sizes() const { return {}; }
};

/// As many as a server's guest has: a few leaves of each range, and sub-leaves.
std::vector<cpuid_entry> const entries = [] {
    std::vector<cpuid_entry> list{{0, 0, {0x1f, 0x756e6547, 0x6c65746e, 0x49656e69}}};
    for (uint32_t leaf : {1u, 2u, 5u, 6u, 0xau, 0x15u, 0x16u, 0x40000000u, 0x40000001u})
        list.push_back({leaf, 0, {leaf}});
    for (uint32_t leaf : {4u, 7u, 0xbu, 0xdu, 0x14u, 0x1fu})
        for (uint32_t subleaf = 0; subleaf < 4; ++subleaf) list.push_back({leaf, subleaf, {leaf + subleaf}});
    for (uint32_t n = 5; n < 19; ++n) list.push_back({0xd, n, {n}});
    for (uint32_t n = 0; n < 9; ++n) list.push_back({0x80000000 + n, 0, {0x80000008}});
    return list;
}();

auto guest = [] {
    pvx::host::runtime_cpuid<environment, 64> g({}, pvx::apic_id{5}, pvx::host::mwait_bit::follows_misc_enable);
    (void)g.replace(entries.data(), static_cast<uint32_t>(entries.size()));
    return g;
}();

/// The plain way: entries in the order in which they came.
[[gnu::noinline]] cpuid_regs scan(uint32_t leaf, uint32_t subleaf) {
    for (cpuid_entry const& e : entries)
        if (e.leaf == leaf && (!pvx::abi::cpuid_has_subleaves(leaf) || e.subleaf == subleaf)) return e.regs;
    return {};
}
[[gnu::noinline]] cpuid_regs look_up(uint32_t leaf, uint32_t subleaf) { return guest.read(leaf, subleaf); }

// What is asked for, in an order that no CPU learns by heart.
std::array<cpuid_entry, 256> const asked = [] {
    std::array<cpuid_entry, 256> some{};
    std::mt19937 random(1);
    for (cpuid_entry& e : some) e = entries[random() % entries.size()];
    return some;
}();
uint32_t next = 0;

bool const any = add_pair(
    "CPUID of a guest: any of its 57 entries", "look-up",
    [] {
        cpuid_entry const& e = asked[next++ % asked.size()];
        keep(look_up(e.leaf, e.subleaf));
    },
    "scan",
    [] {
        cpuid_entry const& e = asked[next++ % asked.size()];
        keep(scan(e.leaf, e.subleaf));
    });
bool const marked = add_pair(
    "CPUID of a guest: leaf 1", "after a mark",
    [] {
        guest.mark_changed();
        keep(look_up(1, 0));
    },
    "unmarked", [] { keep(look_up(1, 0)); });

}  // namespace
