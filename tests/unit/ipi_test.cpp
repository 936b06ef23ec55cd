// SPDX-License-Identifier: MIT
#include <pvx/guest/ipi.hpp>

#include <algorithm>
#include <random>
#include <set>

#include "support/catch.hpp"
#include "support/fake_machine.hpp"

using namespace pvx::guest;
using pvx::apic_id;
using pvx::cpu_index;
using pvx_test::fake_machine;
using pvx_test::fake_state;

namespace {

constexpr pvx::abi::apic_command vector_f0 = pvx::abi::make_apic_command(pvx::abi::apic_delivery::fixed, 0xf0);

/// A machine whose hypercall decodes what it is given into the set of APIC ids reached.
struct network {
    fake_state state;
    std::multiset<uint32_t> by_hypercall;
    unsigned hypercalls = 0;
    int64_t refuse_with = 0;

    explicit network(std::vector<uint32_t> ids) {
        for (uint32_t id : ids) state.apic_ids.push_back(apic_id{id});
        state.on_hypercall = [this](uint64_t nr, uint64_t low, uint64_t high, uint64_t base, uint64_t icr) -> int64_t {
            CHECK(nr == 10);
            CHECK(icr == 0xf0);
            ++hypercalls;
            if (refuse_with != 0) return refuse_with;
            int64_t n = 0;
            for (uint32_t i = 0; i < 128; ++i)
                if (((i < 64 ? low >> i : high >> (i - 64)) & 1) != 0) {
                    by_hypercall.insert(static_cast<uint32_t>(base) + i);
                    ++n;
                }
            return n;
        };
    }

    std::multiset<uint32_t> reached() const {
        std::multiset<uint32_t> all = by_hypercall;
        for (auto const& [id, command] : state.native) all.insert(id);
        return all;
    }

    uint32_t send(std::vector<unsigned long> words) {
        return ipi(fake_machine{state}).send({words.data(), static_cast<uint32_t>(state.apic_ids.size())}, vector_f0);
    }
    uint32_t send_all() { return send(std::vector<unsigned long>(state.apic_ids.size() / 64 + 1, ~0ul)); }
};

std::vector<uint32_t> range(uint32_t first, uint32_t count, uint32_t step) {
    std::vector<uint32_t> ids;
    for (uint32_t i = 0; i < count; ++i) ids.push_back(first + i * step);
    return ids;
}

}  // namespace

TEST_CASE("128 ids in a row take one hypercall and 129 take two ways", "[guest][ipi]") {
    network full(range(0, 128, 1));
    CHECK(full.send_all() == 0);
    CHECK(full.hypercalls == 1);
    CHECK(full.reached().size() == 128);
    CHECK(full.state.native.empty());

    network more(range(0, 129, 1));
    CHECK(more.send_all() == 0);
    CHECK(more.hypercalls == 1);
    CHECK(more.state.native.size() == 1);  // one target left: the native write is one exit too
    CHECK(more.reached().size() == 129);
}

TEST_CASE("Ids that fall, or jump back and forth within 128, share a window", "[guest][ipi]") {
    std::vector<uint32_t> falling = range(0, 128, 1);
    std::reverse(falling.begin(), falling.end());
    network down(falling);
    CHECK(down.send_all() == 0);
    CHECK(down.hypercalls == 1);
    CHECK(down.reached().size() == 128);

    network zigzag({64, 0, 127, 63, 1, 126});
    CHECK(zigzag.send_all() == 0);
    CHECK(zigzag.hypercalls == 1);
    CHECK(zigzag.reached() == std::multiset<uint32_t>{0, 1, 63, 64, 126, 127});
}

TEST_CASE("Sparse ids in steps of two take half as many per window", "[guest][ipi]") {
    network n(range(0, 128, 2));
    CHECK(n.send_all() == 0);
    CHECK(n.hypercalls == 2);
    CHECK(n.reached().size() == 128);
}

TEST_CASE("Ids at the top of 32 bits do not wrap into low ones", "[guest][ipi]") {
    network n({0xfffffffe, 0xffffff80, 0, 0xffffffff});
    CHECK(n.send_all() == 0);
    CHECK(n.reached() == std::multiset<uint32_t>{0, 0xffffff80, 0xfffffffe, 0xffffffff});
    CHECK(std::all_of(n.by_hypercall.begin(), n.by_hypercall.end(), [](uint32_t id) { return id >= 0xffffff80; }));
}

TEST_CASE("An empty mask does nothing at all", "[guest][ipi]") {
    network n(range(0, 8, 1));
    CHECK(n.send({0ul}) == 0);
    CHECK(n.hypercalls == 0);
    CHECK(n.state.native.empty());
}

TEST_CASE("One target goes the native way without a hypercall", "[guest][ipi]") {
    network n({9, 17});
    CHECK(n.send({2ul}) == 0);
    CHECK(n.hypercalls == 0);
    CHECK(n.state.native == std::vector<std::pair<uint32_t, uint32_t>>{{17, 0xf0}});
}

TEST_CASE("Whatever error the host gives, everybody is reached natively, once", "[guest][ipi]") {
    for (int64_t error : {int64_t{-95}, int64_t{-22}, int64_t{-1000}, int64_t{-1}, INT64_MIN}) {
        network n({0, 2, 4, 500, 502});
        n.refuse_with = error;
        CHECK(n.send_all() == 2);
        CHECK(n.reached() == std::multiset<uint32_t>{0, 2, 4, 500, 502});
    }
}

TEST_CASE("A short count is no error: nobody is interrupted twice", "[guest][ipi]") {
    network n({0, 1, 2, 3});
    n.state.on_hypercall = [&](uint64_t, uint64_t, uint64_t, uint64_t, uint64_t) -> int64_t { return 0; };
    CHECK(n.send_all() == 0);
    CHECK(n.state.native.empty());
}

TEST_CASE("The kick takes APIC ids and not CPU indices", "[guest][ipi]") {
    network n({0, 2, 4});
    CHECK(n.send({0b110ul}) == 0);
    CHECK(n.by_hypercall == std::multiset<uint32_t>{2, 4});
}

TEST_CASE("Any set of ids in any order is reached exactly once each", "[guest][ipi]") {
    std::mt19937 generator(1);
    auto const random = [&] { return static_cast<uint32_t>(generator()); };
    for (unsigned round = 0; round < 2000; ++round) {
        uint32_t const spread = 1u << (random() % 12);
        uint32_t const base = (round % 3 == 0) ? 0xffffffffu - spread * 2 : random() % 1000;
        std::set<uint32_t> chosen;
        for (unsigned i = random() % 200; i > 0; --i) chosen.insert(base + random() % (spread * 2));
        std::vector<uint32_t> ids(chosen.begin(), chosen.end());
        std::shuffle(ids.begin(), ids.end(), generator);
        network n(ids);
        n.refuse_with = (round % 7 == 0) ? -95 : 0;
        n.send_all();
        CHECK(n.reached() == std::multiset<uint32_t>(ids.begin(), ids.end()));
    }
}

TEST_CASE("NMIs go out with their delivery mode", "[guest][ipi]") {
    static_assert(pvx::abi::make_apic_command(pvx::abi::apic_delivery::nmi, 0).value == 0x400);
    network n({1});
    unsigned long one = 1;
    ipi(fake_machine{n.state}).send({&one, 1}, pvx::abi::make_apic_command(pvx::abi::apic_delivery::nmi, 0));
    CHECK(n.state.native == std::vector<std::pair<uint32_t, uint32_t>>{{1, 0x400}});
}
