// SPDX-License-Identifier: MIT
#include <pvx/host/cpuid_table.hpp>

#include <pvx/arch/concepts.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "support/catch.hpp"

using namespace pvx;
using namespace pvx::host;
using abi::cpuid_regs;

namespace {

constexpr apic_id id{0x12345};
constexpr cpuid_regs zeros{};
constexpr cpuid_regs intel(uint32_t highest) { return {highest, 0x756e6547, 0x6c65746e, 0x49656e69}; }
constexpr cpuid_regs amd(uint32_t highest) { return {highest, 0x68747541, 0x444d4163, 0x69746e65}; }
constexpr cpuid_regs hygon(uint32_t highest) { return {highest, 0x6f677948, 0x656e6975, 0x6e65476e}; }
constexpr cpuid_regs some(uint32_t n) { return {n, n + 1, n + 2, n + 3}; }
/// Of leaf 1: with the id.
constexpr cpuid_regs leaf_1(uint32_t n) { return {n, (n + 1) | 0x45000000, n + 2, n + 3}; }

using list = std::vector<cpuid_entry>;

template <uint32_t Capacity = 64>
cpuid_table<Capacity> table_of(list const& entries) {
    cpuid_table<Capacity> table(id);
    REQUIRE(table.assign(entries.data(), static_cast<uint32_t>(entries.size())) == status::ok);
    return table;
}

}  // namespace

// --- the numbers -----------------------------------------------------------------------------------------------------

TEST_CASE("The leaves that have sub-leaves are those of the manuals", "[abi][cpuid]") {
    std::set<uint32_t> const with{0x4,  0x7,  0xb,  0xd,  0xf,  0x10, 0x12, 0x14,       0x17,       0x18,
                                  0x1b, 0x1d, 0x1e, 0x1f, 0x20, 0x23, 0x24, 0x8000001d, 0x80000020, 0x80000026};
    for (uint32_t range : {0x00000000u, 0x40000000u, 0x80000000u, 0xc0000000u})
        for (uint32_t n = 0; n < 0x200; ++n) {
            CAPTURE(range, n);
            CHECK(abi::cpuid_has_subleaves(range + n) == (with.count(range + n) != 0));
        }
    for (uint32_t leaf : {0x20000004u, 0x7fffffffu, 0x8000000bu, 0x84000004u, 0xffffffffu})
        CHECK_FALSE(abi::cpuid_has_subleaves(leaf));
}

TEST_CASE("The leaves that ignore ECX are those of the manuals, and none of them has sub-leaves", "[abi][cpuid]") {
    std::set<uint32_t> const flat{0x0,        0x1,        0x2,        0x3,        0x5,        0x6,
                                  0x9,        0xa,        0x15,       0x16,       0x19,       0x80000000,
                                  0x80000001, 0x80000002, 0x80000003, 0x80000004, 0x80000005, 0x80000006,
                                  0x80000007, 0x80000008, 0x8000000a, 0x80000019, 0x8000001a, 0x8000001b,
                                  0x8000001c, 0x8000001e, 0x8000001f, 0x80000021, 0x80000022};
    for (uint32_t range : {0x00000000u, 0x40000000u, 0x80000000u, 0xc0000000u})
        for (uint32_t n = 0; n < 0x200; ++n) {
            CAPTURE(range, n);
            CHECK(abi::cpuid_ignores_subleaf(range + n) == (flat.count(range + n) != 0));
            CHECK_FALSE((abi::cpuid_ignores_subleaf(range + n) && abi::cpuid_has_subleaves(range + n)));
        }
    for (uint32_t leaf : {0x20000001u, 0x7fffffffu, 0x84000001u, 0xffffffffu})
        CHECK_FALSE(abi::cpuid_ignores_subleaf(leaf));
}

TEST_CASE("Topology leaves are 0xb, 0x1f and AMD's 0x80000026", "[abi][cpuid]") {
    for (uint32_t range : {0x00000000u, 0x40000000u, 0x80000000u, 0xc0000000u})
        for (uint32_t n = 0; n < 0x80; ++n) {
            CAPTURE(range, n);
            bool const topology = range == 0 ? n == 0xb || n == 0x1f : range == 0x80000000 && n == 0x26;
            CHECK(abi::is_topology_leaf(range + n) == topology);
        }
}

TEST_CASE("A leaf is of the range that its highest bits say", "[abi][cpuid]") {
    using enum abi::cpuid_range;
    std::pair<uint32_t, abi::cpuid_range> const edges[] = {{0, basic},
                                                           {0x3fffffff, basic},
                                                           {0x40000000, hypervisor},
                                                           {0x4fffffff, hypervisor},
                                                           {0x50000000, basic},
                                                           {0x7fffffff, basic},
                                                           {0x80000000, extended},
                                                           {0x8fffffff, extended},
                                                           {0xbfffffff, extended},
                                                           {0xc0000000, vendor},
                                                           {0xffffffff, vendor}};
    for (auto const& [leaf, range] : edges) {
        CAPTURE(leaf);
        CHECK(abi::cpuid_range_of(leaf) == range);
    }
}

// --- sub-leaves ------------------------------------------------------------------------------------------------------

TEST_CASE("A leaf without sub-leaves answers whatever ECX holds", "[host][cpuid_table]") {
    auto const table = table_of({{0, 0, amd(0x10)}, {1, 0, leaf_1(10)}, {0x80000008, 0, some(20)}});
    for (uint32_t ecx : {0u, 1u, 0xffu, 0x80000000u, 0xffffffffu}) {
        CAPTURE(ecx);
        CHECK(table.cpuid(0, ecx) == amd(0x10));
        CHECK(table.cpuid(1, ecx) == leaf_1(10));
        CHECK(table.cpuid(0x80000008, ecx) == some(20));
    }
}

TEST_CASE("Of a leaf that has sub-leaves, one that is not there is zeros and not sub-leaf 0", "[host][cpuid_table]") {
    for (uint32_t leaf : {0x4u, 0x7u, 0xdu, 0x12u, 0x8000001du}) {
        auto const table = table_of({{0, 0, intel(0x1f)}, {0x80000000, 0, some(0x80000020)}, {leaf, 0, some(10)}});
        CAPTURE(leaf);
        CHECK(table.cpuid(leaf, 0) == some(10));
        for (uint32_t ecx : {1u, 2u, 63u, 0x100u, 0xffffffffu}) CHECK(table.cpuid(leaf, ecx) == zeros);
    }
    auto const sparse = table_of({{0, 0, intel(0x1f)}, {0xd, 0, some(1)}, {0xd, 2, some(2)}, {0xd, 9, some(3)}});
    for (uint32_t ecx = 0; ecx < 64; ++ecx)
        CHECK(sparse.cpuid(0xd, ecx) == (ecx == 0 ? some(1) : ecx == 2 ? some(2) : ecx == 9 ? some(3) : zeros));
    // Sub-leaf 0 need not be there.
    CHECK(table_of({{0, 0, intel(0x1f)}, {4, 1, some(5)}}).cpuid(4, 0) == zeros);
}

TEST_CASE("A leaf that no manual names has the sub-leaves that its entries have", "[host][cpuid_table]") {
    auto const xen = table_of({{0, 0, intel(0x1f)},
                               {0x40000003, 0, some(1)},
                               {0x40000003, 2, some(2)},
                               {0x40000002, 0, some(3)},
                               {0x40000104, 1, some(4)},
                               {0x40000105, 0, some(5)},
                               {0x40000105, 1, some(6)}});
    CHECK(xen.cpuid(0x40000003, 0) == some(1));
    CHECK(xen.cpuid(0x40000003, 1) == zeros);
    CHECK(xen.cpuid(0x40000003, 2) == some(2));
    CHECK(xen.cpuid(0x40000002, 7) == some(3));
    CHECK(xen.cpuid(0x40000104, 0) == zeros);
    CHECK(xen.cpuid(0x40000104, 1) == some(4));
    CHECK(xen.cpuid(0x40000104, 2) == zeros);
    CHECK(xen.cpuid(0x40000105, 1) == some(6));
    CHECK(xen.cpuid(0x40000105, 2) == zeros);
}

TEST_CASE("Every sub-leaf of a topology leaf has the vCPU's id and its own number, whatever the entries say",
          "[host][cpuid_table]") {
    for (uint32_t leaf : {0xbu, 0x1fu, 0x80000026u}) {
        auto const table = table_of({{0, 0, intel(0x1f)},
                                     {0x80000000, 0, some(0x80000026)},
                                     {leaf, 0, {1, 2, 0x1a5, 0xdead}},
                                     {leaf, 1, {4, 16, 0x20000205, 0}},
                                     {leaf, 2, {5, 0, 0, 0}},
                                     {leaf, 0x1a5, {6, 0, 0x200, 0}}});
        CAPTURE(leaf);
        CHECK(table.cpuid(leaf, 0) == cpuid_regs{1, 2, 0x100, id.value});
        CHECK(table.cpuid(leaf, 1) == cpuid_regs{4, 16, 0x20000201, id.value});
        CHECK(table.cpuid(leaf, 2) == cpuid_regs{5, 0, 2, id.value});
        CHECK(table.cpuid(leaf, 0x1a5) == cpuid_regs{6, 0, 0x2a5, id.value});  // 8 bits of it
        for (uint32_t ecx : {3u, 0xffu, 0x100u, 0x1a4u, 0xffffffffu})
            CHECK(table.cpuid(leaf, ecx) == cpuid_regs{0, 0, ecx & 0xff, id.value});
    }
}

TEST_CASE("Each leaf that has an APIC id has the vCPU's, whatever the entries say", "[host][cpuid_table]") {
    auto const table =
        table_of({{0, 0, amd(1)}, {1, 0, {~0u, ~0u, ~0u, ~0u}}, {0x8000001e, 0, {~0u, ~0u, ~0u, ~0u}}, {2, 0, {}}});
    CHECK(table.cpuid(1, 0) == cpuid_regs{~0u, 0x45ffffff, ~0u, ~0u});  // 8 bits of it
    CHECK(table.cpuid(0x8000001e, 0) == cpuid_regs{0x12345, ~0u, ~0u, ~0u});
    CHECK(table.cpuid(2, 0) == zeros);
    // As they came from another vCPU, or from a template of all.
    for (uint32_t n : {0u, 1u, 255u, 256u, 0xffffffffu}) {
        cpuid_table<2> of_n(apic_id{n});
        cpuid_entry const entries[] = {{1, 0, {0, 0x11000800, 0, 0}}, {0x8000001e, 0, {}}};
        REQUIRE(of_n.assign(entries, 2) == status::ok);
        CHECK(of_n.cpuid(1, 0).ebx == (0x800 | n << 24));
        CHECK(of_n.cpuid(0x8000001e, 0) == cpuid_regs{n, 0, 0, 0});
    }
}

TEST_CASE("Without CPUs in its sub-leaf 0 a topology leaf is not there, and is zeros throughout",
          "[host][cpuid_table]") {
    for (cpuid_regs const& none : {cpuid_regs{}, cpuid_regs{0, 0x10000, 0, 0}}) {
        auto const table = table_of({{0, 0, intel(0x1f)}, {0xb, 0, none}});
        CHECK(table.cpuid(0xb, 0) == none);
        CHECK(table.cpuid(0xb, 1) == zeros);
        CHECK(table.cpuid(0x1f, 0) == zeros);
        CHECK(table.cpuid(0x1f, 1) == zeros);
    }
}

// --- ranges ----------------------------------------------------------------------------------------------------------

TEST_CASE("On an Intel CPU a leaf out of range is the highest basic leaf, with its sub-leaves", "[host][cpuid_table]") {
    for (cpuid_regs const& vendor : {intel(0xb), cpuid_regs{0xb, 0x746e6543, 0x736c7561, 0x48727561}}) {
        auto const table = table_of({{0, 0, vendor},
                                     {1, 0, leaf_1(10)},
                                     {0xb, 0, {1, 2, 0x100, 0}},
                                     {0xb, 1, {4, 8, 0x201, 0}},
                                     {0x80000000, 0, {0x80000008, 0, 0, 0}},
                                     {0x80000008, 0, some(20)}});
        for (uint32_t leaf :
             {0xcu, 0x1fu, 0x100u, 0x3fffffffu, 0x50000000u, 0x7fffffffu, 0x80000009u, 0x8000000au, 0x8fffffffu}) {
            CAPTURE(leaf);
            CHECK(table.cpuid(leaf, 0) == cpuid_regs{1, 2, 0x100, id.value});
            CHECK(table.cpuid(leaf, 1) == cpuid_regs{4, 8, 0x201, id.value});
            CHECK(table.cpuid(leaf, 7) == cpuid_regs{0, 0, 7, id.value});
        }
        CHECK(table.cpuid(0x80000008, 0) == some(20));
    }
    auto const flat = table_of({{0, 0, intel(0x16)}, {0x16, 0, some(30)}});
    CHECK(flat.cpuid(0x17, 5) == some(30));
    CHECK(flat.cpuid(0x80000000, 0) == some(30));  // there is no extended leaf at all
}

TEST_CASE("A leaf that is in range and not there is zeros", "[host][cpuid_table]") {
    auto const table = table_of(
        {{0, 0, intel(0x16)}, {0x16, 0, some(30)}, {0x80000000, 0, {0x80000008, 0, 0, 0}}, {0x80000008, 0, some(20)}});
    for (uint32_t leaf : {0x1u, 0x3u, 0x7u, 0xbu, 0x15u, 0x80000001u, 0x80000007u})
        CHECK(table.cpuid(leaf, 0) == zeros);
    // The highest leaf itself may be missing.
    auto const hole = table_of({{0, 0, intel(0x16)}, {1, 0, leaf_1(1)}});
    CHECK(hole.cpuid(0x17, 0) == zeros);
    CHECK(hole.cpuid(0x16, 0) == zeros);
    auto const extended_hole = table_of({{0, 0, intel(1)}, {1, 0, leaf_1(1)}, {0x80000000, 0, {0x80000008, 0, 0, 0}}});
    CHECK(extended_hole.cpuid(0x80000008, 0) == zeros);
    CHECK(extended_hole.cpuid(0x80000009, 0) == leaf_1(1));
}

TEST_CASE("A leaf that the VMM put in beyond the highest one is there, and its missing sub-leaves are zeros",
          "[host][cpuid_table]") {
    auto const table = table_of({{0, 0, intel(1)},
                                 {1, 0, leaf_1(1)},
                                 {4, 0, some(10)},
                                 {4, 1, some(20)},
                                 {0xb, 0, {1, 2, 0x100, 0}},
                                 {0x80000000, 0, {0x80000008, 0, 0, 0}},
                                 {0x8000001d, 0, some(30)}});
    CHECK(table.cpuid(4, 0) == some(10));
    CHECK(table.cpuid(4, 1) == some(20));
    CHECK(table.cpuid(4, 2) == zeros);
    CHECK(table.cpuid(0xb, 1) == cpuid_regs{0, 0, 1, id.value});
    CHECK(table.cpuid(0x8000001d, 0) == some(30));
    CHECK(table.cpuid(0x8000001d, 1) == zeros);
    CHECK(table.cpuid(7, 0) == leaf_1(1));  // which it did not
}

TEST_CASE("On an AMD or Hygon CPU a leaf out of range is zeros", "[host][cpuid_table]") {
    for (cpuid_regs const& vendor : {amd(1), hygon(1)}) {
        auto const table = table_of(
            {{0, 0, vendor}, {1, 0, leaf_1(10)}, {0x80000000, 0, {0x80000001, 0, 0, 0}}, {0x80000001, 0, some(20)}});
        for (uint32_t leaf : {2u, 0xbu, 0x3fffffffu, 0x50000000u, 0x80000002u, 0x8fffffffu})
            for (uint32_t ecx : {0u, 3u}) CHECK(table.cpuid(leaf, ecx) == zeros);
        CHECK(table.cpuid(1, 0) == leaf_1(10));
        CHECK(table.cpuid(0x80000001, 0) == some(20));
    }
}

TEST_CASE("From 0x40000000 and from 0xc0000000 on, what has no entry is zeros on any CPU", "[host][cpuid_table]") {
    for (cpuid_regs const& vendor : {intel(1), amd(1)}) {
        auto const table = table_of({{0, 0, vendor},
                                     {1, 0, leaf_1(10)},
                                     {0x40000000, 0, some(0x40000001)},
                                     {0x40000001, 0, some(20)},
                                     {0xc0000000, 0, some(0xc0000001)}});
        for (uint32_t leaf :
             {0x40000002u, 0x40000100u, 0x4000ff00u, 0x4fffffffu, 0xc0000001u, 0xc0000002u, 0xffffffffu})
            CHECK(table.cpuid(leaf, 0) == zeros);
        CHECK(table.cpuid(0x40000001, 0) == some(20));
        CHECK(table.cpuid(0xc0000000, 0) == some(0xc0000001));
    }
}

// --- the table -------------------------------------------------------------------------------------------------------

TEST_CASE("A table without entries answers zeros", "[host][cpuid_table]") {
    cpuid_table<4> fresh(id);
    auto const emptied = table_of<4>({});
    auto const no_leaf_0 = table_of<4>({{1, 0, leaf_1(1)}});
    for (uint32_t leaf : {0u, 1u, 0xbu, 0x40000000u, 0x80000000u, 0xffffffffu}) {
        CHECK(fresh.cpuid(leaf, 0) == zeros);
        CHECK(emptied.cpuid(leaf, 0) == zeros);
        CHECK(no_leaf_0.cpuid(leaf, 0) == (leaf == 1 ? leaf_1(1) : zeros));
    }
}

TEST_CASE("What is refused leaves the old entries in force", "[host][cpuid_table]") {
    list const old{{0, 0, amd(1)}, {1, 0, leaf_1(10)}, {7, 0, some(20)}};
    auto table = table_of<4>(old);
    auto refuses = [&](list const& entries) {
        CHECK(table.assign(entries.data(), static_cast<uint32_t>(entries.size())) == status::bad_argument);
        CHECK(table.size() == 3);
        CHECK(std::equal(old.begin(), old.end(), table.entries()));
        for (cpuid_entry const& e : old) CHECK(table.cpuid(e.leaf, e.subleaf) == e.regs);
        CHECK(table.cpuid(9, 0) == zeros);
    };
    refuses({{9, 0, some(1)}, {10, 0, some(1)}, {11, 0, some(1)}, {12, 0, some(1)}, {13, 0, some(1)}});
    refuses({{9, 0, some(1)}, {9, 0, some(2)}});
    refuses({{9, 0, some(1)}, {4, 1, some(2)}, {10, 0, some(1)}, {4, 1, some(2)}});
    // A leaf that ignores ECX cannot have two answers, nor one that only some ECX finds.
    refuses({{9, 0, some(1)}, {1, 0, leaf_1(1)}, {1, 5, leaf_1(2)}});
    refuses({{9, 0, some(1)}, {1, 3, leaf_1(2)}});
    refuses({{0x80000001, 0xffffffff, some(1)}});
}

TEST_CASE("Entries that replace others leave nothing of them", "[host][cpuid_table]") {
    auto table =
        table_of({{0, 0, intel(0x20)}, {0x80000000, 0, {0x80000008, 0, 0, 0}}, {0x20, 0, some(1)}, {7, 3, some(2)}});
    list const fewer{{0, 0, amd(1)}, {1, 0, leaf_1(3)}};
    REQUIRE(table.assign(fewer.data(), 2) == status::ok);
    CHECK(table.size() == 2);
    for (auto const& [leaf, subleaf] : {std::pair{0x20u, 0u}, {7u, 3u}, {0x80000000u, 0u}, {0x90000000u, 0u}})
        CHECK(table.cpuid(leaf, subleaf) == zeros);
    CHECK(table.cpuid(1, 0) == leaf_1(3));
}

TEST_CASE("A full table finds each of its entries, and nothing that is not there", "[host][cpuid_table]") {
    // Sub-leaves of two leaves, and leaves of all ranges: what comes to lie beside each other is what a real table has.
    std::mt19937 random(1);
    for (int round = 0; round < 200; ++round) {
        std::map<std::pair<uint32_t, uint32_t>, cpuid_regs> expected;
        list entries{{0, 0, amd(0x100)}};
        expected[{0, 0}] = amd(0x100);
        while (entries.size() < 40) {
            uint32_t const range = static_cast<uint32_t>(random() % 4) << 30;
            uint32_t const leaf = random() % 3 == 0 ? 0xdu : range + static_cast<uint32_t>(random() % 0x28);
            uint32_t const subleaf = abi::cpuid_has_subleaves(leaf) ? static_cast<uint32_t>(random() % 20) : 0;
            if (leaf == 1 || leaf == 0x8000001e || abi::is_topology_leaf(leaf)) continue;  // have ids
            if (expected.count({leaf, subleaf}) != 0) continue;
            cpuid_regs const regs = some(static_cast<uint32_t>(random()));
            expected[{leaf, subleaf}] = regs;
            entries.push_back({leaf, subleaf, regs});
        }
        std::shuffle(entries.begin(), entries.end(), random);
        auto const table = table_of<40>(entries);
        bool right = true;
        auto ask = [&](uint32_t leaf, uint32_t subleaf) {
            auto const found = expected.find({leaf, abi::cpuid_has_subleaves(leaf) ? subleaf : 0});
            right = right && table.cpuid(leaf, subleaf) == (found == expected.end() ? zeros : found->second);
        };
        for (uint32_t range : {0x00000000u, 0x40000000u, 0x80000000u, 0xc0000000u})
            for (uint32_t n = 0; n < 0x30; ++n)
                for (uint32_t subleaf = 0; subleaf < 24; ++subleaf) ask(range + n, subleaf);
        // What a guest may ask: it finds the sub-leaves that begin their search at the place of another.
        for (int n = 0; n < 1000; ++n) ask(entries[random() % entries.size()].leaf, static_cast<uint32_t>(random()));
        CAPTURE(round);
        REQUIRE(right);
    }
}

TEST_CASE("The smallest and the largest table work", "[host][cpuid_table]") {
    CHECK(table_of<1>({{0, 0, amd(0)}}).cpuid(0, 9) == amd(0));
    constexpr uint32_t most = 0x7fff;
    auto const large = std::make_unique<cpuid_table<most>>(id);
    list entries;
    for (uint32_t n = 0; n < 2000; ++n) entries.push_back({0xd, n, some(n)});
    REQUIRE(large->assign(entries.data(), 2000) == status::ok);
    for (uint32_t n = 0; n < 2000; ++n) REQUIRE(large->cpuid(0xd, n) == some(n));
    CHECK(large->cpuid(0xd, 2000) == zeros);
}

TEST_CASE("What the VMM looks for is an entry, and not the leaf that the guest gets instead", "[host][cpuid_table]") {
    auto const table = table_of({{0, 0, intel(1)}, {1, 0, {~0u, ~0u, ~0u, ~0u}}});
    CHECK(table.cpuid(7, 0).ecx == ~0u);
    CHECK(table.find(7, 0) == 0);
    CHECK(table[table.find(7, 0)] == cpuid_entry{});
    CHECK(table[table.find(1, 9)] == cpuid_entry{1, 0, {~0u, 0x45ffffff, ~0u, ~0u}});
}

TEST_CASE("A copy of a table is a table of its own", "[host][cpuid_table]") {
    static_assert(trivially_copyable<cpuid_table<64>> && cpuid_policy<cpuid_table<64>>);
    auto table = table_of({{0, 0, amd(1)}, {1, 0, leaf_1(1)}});
    auto const copy = table;
    table.set(table.find(1, 0), some(2));
    CHECK(copy.cpuid(1, 0) == leaf_1(1));
    CHECK(table.cpuid(1, 0) == some(2));
}

TEST_CASE("Entries that were chosen to collide are found, and what is not there ends", "[host][cpuid_table]") {
    // The first place of a leaf, as in cpuid_table: all of these begin their search in one slot of 256.
    list entries{{0, 0, amd(1)}};
    for (uint32_t n = 0; entries.size() < 64; ++n)
        if ((n * 0x85ebca6bu + 0xdu * 0x9e3779b1u) >> 24 == 0x80) entries.push_back({0xd, n, some(n)});
    auto const table = table_of<64>(entries);
    for (cpuid_entry const& e : entries) CHECK(table.cpuid(e.leaf, e.subleaf) == e.regs);
    uint32_t const none = entries.back().subleaf + 1;
    for (uint32_t n = none; n < none + 1000; ++n) CHECK(table.cpuid(0xd, n) == zeros);
}

TEST_CASE("A table can be made and asked when the VMM is compiled", "[host][cpuid_table]") {
    constexpr auto table = [] {
        cpuid_table<2> t(id);
        cpuid_entry const entries[] = {{0, 0, intel(1)}, {1, 0, leaf_1(5)}};
        (void)t.assign(entries, 2);
        return t;
    }();
    static_assert(table.cpuid(2, 0) == leaf_1(5) && table.size() == 2);
    CHECK(table.cpuid(1, 1) == leaf_1(5));
}
