// SPDX-License-Identifier: MIT
#include <pvx/guest/tlb_flush.hpp>

#include <pvx/abi/proposed.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/flush_machine.hpp"
#include "support/recording_atomics.hpp"

using namespace pvx;
using namespace pvx::guest;
using namespace pvx_test;
using kind = recorded::kind;

namespace {

constexpr uint8_t P = abi::steal_preempted, F = abi::steal_flush_tlb, H = abi::proposed::steal_in_host;
constexpr flush_options stock{.host_bits = P};
constexpr flush_options proposed{.host_bits = P | H};
constexpr uint32_t word_bits = const_cpu_mask_view::word_bits;

using plain_machine = flush_machine<recording_atomics>;
using online_machine = with_online<plain_machine>;
using deferring_machine = with_deferral<plain_machine>;

/// Some CPUs, and what pruning of a mask of all of them writes. CPU 0 is the caller.
struct guest_of {
    recording notes;
    flush_state state;
    std::vector<unsigned long> src;
    std::vector<unsigned long> dst;
    std::vector<uint32_t> left;

    explicit guest_of(uint32_t cpus)
        : state(cpus), src((cpus + word_bits - 1) / word_bits, ~0ul), dst(src.size(), 0xdddddddddddddddd) {}

    uint32_t cpus() const { return static_cast<uint32_t>(state.pages.size()); }
    uint8_t& byte(uint32_t cpu) { return state.pages[cpu].preempted; }
    template <class Machine = plain_machine>
    Machine machine() {
        return Machine{state, recording_atomics{notes}};
    }
    template <class Machine = plain_machine>
    bool prune(flush_options options = stock, flush_kind what = flush_kind::leaves) {
        return tlb_flush<Machine>(machine<Machine>(), options)
            .prune(const_cpu_mask_view{src.data(), cpus()}, cpu_mask_view{dst.data(), cpus()}, what,
                   [&](cpu_index cpu) { left.push_back(cpu.value); });
    }
    bool kept(uint32_t cpu) const { return const_cpu_mask_view{dst.data(), cpus()}.test(cpu_index{cpu}); }
    size_t writes() const { return notes.count(kind::store) + notes.count(kind::rmw) + notes.count(kind::lost_cas); }
    size_t fences() const { return notes.count(kind::fence); }
    /// Let somebody act after the n-th step on `word`, beginning with 1.
    void at_step(size_t n, void const* word, std::function<void()> act) {
        notes.after = [=, seen = size_t{0}](recorded const& r) mutable {
            if (r.word == word && ++seen == n) act();
        };
    }
};

std::string name(flush_options o) { return o.host_bits == P ? "stock" : "proposed"; }

/// Calls `check(g, options, byte, out)` with each byte in CPU 1's page, on both ABIs; `out`: it says that a flush is
/// owed.
template <class Check>
void for_each_byte(Check const& check) {
    for (flush_options const options : {stock, proposed})
        for (unsigned before = 0; before < 256; ++before) {
            CAPTURE(name(options), before);
            guest_of g(2);
            uint8_t const byte = static_cast<uint8_t>(before);
            g.byte(1) = byte;
            check(g, options, byte, (byte & options.host_bits) != 0);
        }
}

}  // namespace

TEST_CASE("A flush is left to the host for exactly those bytes that say it owes one, by one compare-and-swap",
          "[guest][tlb_flush]") {
    for_each_byte([](guest_of& g, flush_options options, uint8_t byte, bool out) {
        CHECK(tlb_flush(g.machine(), options).leave_to_host(cpu_index{1}) == out);
        CHECK(g.byte(1) == (out ? byte | F : byte));
        CHECK(g.notes.count(kind::rmw, &g.byte(1)) == (out ? 1 : 0));
        CHECK(g.writes() == (out ? 1 : 0));
        CHECK(g.fences() == 0);
    });
}

TEST_CASE("Pruning decides byte by byte as leaving to the host does, but writes nothing where a flush is pending",
          "[guest][tlb_flush]") {
    for_each_byte([](guest_of& g, flush_options options, uint8_t byte, bool out) {
        bool const flagged = (byte & F) != 0;
        CHECK(g.prune(options));
        CHECK(g.kept(0));
        CHECK(g.kept(1) == !out);
        CHECK(g.byte(1) == (out ? byte | F : byte));
        CHECK(g.writes() == (out && !flagged ? 1 : 0));
        CHECK(g.fences() == (out ? 1 : 0));
        CHECK(g.left == (out ? std::vector<uint32_t>{1} : std::vector<uint32_t>{}));
    });
}

TEST_CASE("The compare-and-swap orders the page-table stores before F, and F was reached from what the host published",
          "[guest][tlb_flush]") {
    guest_of g(2);
    g.byte(1) = P;
    REQUIRE(tlb_flush(g.machine(), stock).leave_to_host(cpu_index{1}));
    CHECK(g.notes.steps == std::vector<recorded>{{kind::load, &g.byte(1), P, order::acquire.builtin},
                                                 {kind::rmw, &g.byte(1), P | F, order::acq_rel.builtin}});
}

TEST_CASE("Only host bits that the guest asked for count: in-host is left alone on stock KVM", "[guest][tlb_flush]") {
    guest_of g(3);
    g.byte(1) = H;
    g.byte(2) = H | F;
    CHECK(g.prune(stock));
    CHECK(g.kept(1));
    CHECK(g.kept(2));
    CHECK(g.writes() == 0);
    CHECK(g.prune(proposed));
    CHECK_FALSE(g.kept(1));
    CHECK_FALSE(g.kept(2));
    CHECK(g.byte(1) == (H | F));
    CHECK(g.byte(2) == (H | F));
}

TEST_CASE("A bit that is not the host's, such as a guest's own for waiting, is never taken for not running",
          "[guest][tlb_flush]") {
    for (unsigned bit = 0; bit < 8; ++bit) {
        uint8_t const own = static_cast<uint8_t>(1u << bit);
        if (own == P || own == H) continue;
        guest_of g(2);
        g.byte(1) = static_cast<uint8_t>(own | F);
        CHECK_FALSE(tlb_flush(g.machine(), proposed).leave_to_host(cpu_index{1}));
        g.prune(proposed);
        CHECK(g.kept(1));
        CHECK(g.byte(1) == (own | F));
    }
}

TEST_CASE("The calling CPU stays in the mask if it is in, whatever its page says", "[guest][tlb_flush]") {
    for (uint32_t self : {0u, 1u, 63u, 64u, 65u, 99u}) {
        CAPTURE(self);
        guest_of g(100);
        g.state.self = cpu_index{self};
        for (auto& page : g.state.pages) page.preempted = P;
        CHECK(g.prune());
        CHECK(g.kept(self));
        CHECK(const_cpu_mask_view{g.dst.data(), 100}.count() == 1);
        CHECK(g.byte(self) == P);
        CHECK(g.left.size() == 99);

        guest_of without(100);
        without.state.self = cpu_index{self};
        without.src[self / word_bits] &= ~(1ul << self % word_bits);
        for (auto& page : without.state.pages) page.preempted = P;
        CHECK_FALSE(without.prune());
        CHECK(without.byte(self) == P);
    }
}

TEST_CASE("CPUs that are not online are taken out, untouched, and not reported as left", "[guest][tlb_flush]") {
    guest_of g(130);
    g.state.online = {0x0fUL, ~0ul, 0};
    g.state.online_bits = 68;  // bits beyond it are junk
    for (uint32_t cpu : {2u, 5u, 66u, 70u, 128u}) g.byte(cpu) = P;
    CHECK(g.prune<online_machine>());
    CHECK(g.dst == std::vector<unsigned long>{0x0b, 0x0b, 0});
    CHECK(g.left == std::vector<uint32_t>{2, 66});
    for (uint32_t cpu : {5u, 70u, 128u}) CHECK(g.byte(cpu) == P);

    g.state.online = {};
    g.state.online_bits = 0;
    CHECK_FALSE(g.prune<online_machine>());
    CHECK(g.dst == std::vector<unsigned long>{0, 0, 0});
}

TEST_CASE("Offline CPUs are taken out also where nothing may be pruned", "[guest][tlb_flush]") {
    guest_of g(8);
    g.state.online = {0x05};
    g.state.online_bits = 8;
    g.byte(2) = P;
    CHECK(g.prune<online_machine>(flush_options{.host_bits = 0}));
    CHECK(g.dst[0] == 0x05);
    CHECK(g.notes.count(kind::load, &g.byte(2)) == 0);
}

TEST_CASE("A machine whose online_cpus() is not quite right is noticed by its name", "[guest][tlb_flush]") {
    struct by_value : plain_machine {
        uint32_t online_cpus() const;
    };
    struct writable : plain_machine {
        cpu_mask_view online_cpus() const;
    };
    struct not_const : plain_machine {
        const_cpu_mask_view online_cpus();
    };
    STATIC_REQUIRE(online_policy<online_machine> && names_online_cpus<online_machine>);
    STATIC_REQUIRE(!online_policy<plain_machine> && !names_online_cpus<plain_machine>);
    STATIC_REQUIRE(!online_policy<by_value> && names_online_cpus<by_value>);
    STATIC_REQUIRE(!online_policy<writable> && names_online_cpus<writable>);
    STATIC_REQUIRE(!online_policy<not_const> && names_online_cpus<not_const>);
}

TEST_CASE("Masks of any size are pruned to the last bit, and junk beyond the end is ignored and cleared",
          "[guest][tlb_flush]") {
    for (uint32_t cpus : {1u, 2u, 63u, 64u, 65u, 100u, 128u, 8192u}) {
        CAPTURE(cpus);
        guest_of g(cpus);
        g.state.self = cpu_index{0};
        std::vector<unsigned long> expected(g.src.size(), 0);
        std::vector<uint32_t> expected_left;
        // Every third is preempted, and so is the last.
        for (uint32_t cpu = 0; cpu < cpus; ++cpu) {
            bool const out = cpu % 3 == 1 || cpu == cpus - 1;
            if (out) g.byte(cpu) = P;
            if (out && cpu != 0)
                expected_left.push_back(cpu);
            else
                expected[cpu / word_bits] |= 1ul << cpu % word_bits;
        }
        CHECK(g.prune());
        CHECK(g.dst == expected);
        CHECK(g.left == expected_left);
    }
}

TEST_CASE("A mask without bits is no mask, and nothing is written", "[guest][tlb_flush]") {
    guest_of g(1);
    CHECK_FALSE(tlb_flush(g.machine(), stock)
                    .prune(const_cpu_mask_view{g.src.data(), 0}, cpu_mask_view{g.dst.data(), 0}, flush_kind::leaves,
                           [](cpu_index) { FAIL("nobody is left out"); }));
    CHECK(g.dst[0] == 0xdddddddddddddddd);
    CHECK(g.notes.steps.empty());
}

TEST_CASE("The destination may be the source", "[guest][tlb_flush]") {
    guest_of apart(200), same(200);
    for (uint32_t cpu : {1u, 64u, 127u, 128u, 199u}) apart.byte(cpu) = same.byte(cpu) = P;
    CHECK(apart.prune());
    cpu_mask_view const mask{same.src.data(), 200};
    CHECK(tlb_flush(same.machine(), stock).prune(mask, mask, flush_kind::leaves, [&](cpu_index cpu) {
        same.left.push_back(cpu.value);
    }));
    CHECK(same.src == apart.dst);
    CHECK(same.left == apart.left);
}

TEST_CASE("The source is only read, and each word of it once, also if it changes meanwhile", "[guest][tlb_flush]") {
    guest_of g(130);
    std::vector<unsigned long> const before = g.src;
    for (auto& page : g.state.pages) page.preempted = P;
    g.byte(2) = 0;
    g.byte(66) = 0;
    // As soon as a word was read, all of its CPUs leave the mask and the rest of the source is unchanged.
    g.notes.after = [&](recorded const& r) {
        for (unsigned long& w : g.src)
            if (r.word == &w) w = 0;
    };
    CHECK(g.prune());
    for (unsigned long& w : g.src) {
        CHECK(g.notes.count(kind::load, &w) == 1);
        CHECK(g.notes.count(kind::store, &w) + g.notes.count(kind::rmw, &w) == 0);
    }
    CHECK(g.dst == std::vector<unsigned long>{0x05, 0x04, 0});
    CHECK(g.left.size() == 130 - 3);
}

TEST_CASE("A source in read-only memory will do", "[guest][tlb_flush]") {
    static unsigned long const constant[] = {0x0e};
    guest_of g(4);
    g.byte(1) = P;
    CHECK(tlb_flush(g.machine(), stock)
              .prune(const_cpu_mask_view{constant, 4}, cpu_mask_view{g.dst.data(), 4}, flush_kind::leaves,
                     [](cpu_index) {}));
    CHECK(g.dst[0] == 0x0c);
}

TEST_CASE("Each CPU that is left out is reported exactly once, in order and after it is out", "[guest][tlb_flush]") {
    guest_of g(100);
    for (uint32_t cpu : {3u, 63u, 64u, 99u}) g.byte(cpu) = P;
    tlb_flush(g.machine(), stock)
        .prune(const_cpu_mask_view{g.src.data(), 100}, cpu_mask_view{g.dst.data(), 100}, flush_kind::leaves,
               [&](cpu_index cpu) {
                   CHECK(g.byte(cpu.value) == (P | F));
                   g.left.push_back(cpu.value);
               });
    CHECK(g.left == std::vector<uint32_t>{3, 63, 64, 99});
}

TEST_CASE("A CPU without a page is interrupted", "[guest][tlb_flush]") {
    guest_of g(3);
    g.byte(1) = g.byte(2) = P;
    g.state.without_page = {1};
    CHECK_FALSE(tlb_flush(g.machine(), stock).leave_to_host(cpu_index{1}));
    CHECK(g.prune());
    CHECK(g.kept(1));
    CHECK_FALSE(g.kept(2));
    CHECK(g.byte(1) == P);
}

TEST_CASE("Where nobody is out there is no fence and nothing is written", "[guest][tlb_flush]") {
    guest_of g(100);
    for (uint32_t cpu = 0; cpu < 100; ++cpu) g.byte(cpu) = cpu % 2 != 0 ? F : 0;
    CHECK(g.prune<deferring_machine>(proposed));
    CHECK(g.writes() == 0);
    CHECK(g.fences() == 0);
    // One load of the byte of each, but for the caller's.
    CHECK(g.notes.count(kind::load, &g.byte(0)) == 0);
    for (uint32_t cpu = 1; cpu < 100; ++cpu) REQUIRE(g.notes.count(kind::load, &g.byte(cpu)) == 1);
}

TEST_CASE("There is one full fence a pruning, after the mask is read and before the load that decides",
          "[guest][tlb_flush]") {
    guest_of g(130);
    for (uint32_t cpu : {5u, 6u, 70u, 129u}) g.byte(cpu) = P | F;
    CHECK(g.prune());
    CHECK(g.fences() == 1);
    CHECK(g.writes() == 0);
    size_t const fence = static_cast<size_t>(
        std::find_if(g.notes.steps.begin(), g.notes.steps.end(), [](auto& r) { return r.what == kind::fence; }) -
        g.notes.steps.begin());
    CHECK(g.notes.steps[fence].order == order::seq_cst.builtin);
    for (uint32_t cpu : {5u, 6u, 70u, 129u}) {
        size_t after = 0;
        for (size_t i = fence; i < g.notes.steps.size(); ++i) after += g.notes.steps[i].word == &g.byte(cpu);
        CHECK(after == (cpu == 5 ? 1 : 2));  // the look at the first came before the fence
    }
}

TEST_CASE("A CPU that comes back between the look and the decision is interrupted", "[guest][tlb_flush]") {
    guest_of g(2);
    g.byte(1) = P;
    g.at_step(1, &g.byte(1), [&] { g.byte(1) = 0; });
    CHECK(g.prune());
    CHECK(g.kept(1));
    CHECK(g.left.empty());
    CHECK(g.byte(1) == 0);
    CHECK(g.writes() == 0);
}

TEST_CASE("A compare-and-swap that is lost to the host on its way in means an interrupt", "[guest][tlb_flush]") {
    for (uint8_t out : {P, H, uint8_t(P | H)}) {
        guest_of g(2);
        g.byte(1) = out;
        g.at_step(2, &g.byte(1), [&] { g.byte(1) = 0; });  // after the load that decides
        CHECK(g.prune(proposed));
        CHECK(g.kept(1));
        CHECK(g.left.empty());
        CHECK(g.byte(1) == 0);
        CHECK(g.notes.count(kind::lost_cas) == 1);
        CHECK(g.notes.count(kind::rmw) == 0);

        guest_of direct(2);
        direct.byte(1) = out;
        direct.at_step(1, &direct.byte(1), [&] { direct.byte(1) = 0; });
        CHECK_FALSE(tlb_flush(direct.machine(), proposed).leave_to_host(cpu_index{1}));
        CHECK(direct.byte(1) == 0);
        CHECK(direct.notes.count(kind::lost_cas) == 1);
    }
}

TEST_CASE("A compare-and-swap that is lost to another flusher leaves the flush only behind the fence",
          "[guest][tlb_flush]") {
    guest_of g(2);
    g.byte(1) = P;
    g.at_step(2, &g.byte(1), [&] { g.byte(1) = P | F; });
    CHECK(g.prune());
    CHECK_FALSE(g.kept(1));
    CHECK(g.left == std::vector<uint32_t>{1});
    CHECK(g.fences() == 1);
    CHECK(g.notes.count(kind::lost_cas) == 1);

    // Without the fence the other flusher's F says nothing about this one's stores.
    guest_of direct(2);
    direct.byte(1) = P;
    direct.at_step(1, &direct.byte(1), [&] { direct.byte(1) = P | F; });
    CHECK_FALSE(tlb_flush(direct.machine(), stock).leave_to_host(cpu_index{1}));
    CHECK(direct.notes.count(kind::lost_cas) == 1);
}

TEST_CASE("A compare-and-swap that is lost to one more bit of the host's is not tried again", "[guest][tlb_flush]") {
    guest_of g(2);
    g.byte(1) = H;
    g.at_step(2, &g.byte(1), [&] { g.byte(1) = H | P; });
    CHECK(g.prune(proposed));
    CHECK(g.kept(1));
    CHECK(g.byte(1) == (H | P));
    CHECK(g.notes.count(kind::lost_cas) == 1);
}

TEST_CASE("Which kinds of flush may be left to whom", "[guest][tlb_flush]") {
    for (unsigned row = 0; row < 8; ++row) {
        flush_options const options{.host_bits = static_cast<uint8_t>((row & 1) != 0 ? P : 0),
                                    .deferral = (row & 2) != 0,
                                    .walkers_protected = (row & 4) != 0};
        bool const to_host = options.host_bits != 0;
        tlb_flush<plain_machine> const plain(guest_of(1).machine(), options);
        tlb_flush<deferring_machine> const deferring(guest_of(1).machine<deferring_machine>(), options);
        CAPTURE(row);
        CHECK(plain.prunes(flush_kind::leaves) == to_host);
        CHECK(plain.prunes(flush_kind::attributes) == to_host);
        CHECK(plain.prunes(flush_kind::tables) == (to_host && options.walkers_protected));
        for (flush_kind k : {flush_kind::leaves, flush_kind::attributes, flush_kind::tables}) {
            CHECK_FALSE(plain.defers(k));
            CHECK(deferring.defers(k) == (options.deferral && k == flush_kind::leaves));
            CHECK(deferring.prunes(k) == plain.prunes(k));
        }

        for (flush_kind k : {flush_kind::leaves, flush_kind::attributes, flush_kind::tables}) {
            CAPTURE(k);
            guest_of g(4);
            g.byte(1) = P;
            g.state.deferrals[2] = deferral::asleep;
            CHECK(g.prune<deferring_machine>(options, k));
            CHECK(g.kept(1) == !deferring.prunes(k));
            CHECK(g.byte(1) == (deferring.prunes(k) ? P | F : P));
            CHECK(g.kept(2) == !deferring.defers(k));
            CHECK(g.state.deferrals[2] == (deferring.defers(k) ? 3 : deferral::asleep));
            CHECK(g.kept(3));
            // What may not be pruned is not even looked at.
            if (!deferring.prunes(k)) CHECK(g.notes.count(kind::load, &g.byte(1)) == 0);
            if (!deferring.defers(k)) CHECK(g.notes.count(kind::load, &g.state.deferrals[2]) == 0);
        }
    }
}

TEST_CASE("Tables are not pruned by default", "[guest][tlb_flush]") {
    guest_of g(2);
    g.byte(1) = P;
    CHECK(g.prune(stock, flush_kind::tables));
    CHECK(g.kept(1));
    CHECK(g.notes.count(kind::load, &g.byte(1)) == 0);
}

TEST_CASE("A CPU that defers is left out where the host would not have it, and the host comes first",
          "[guest][tlb_flush]") {
    guest_of g(5);
    g.state.deferrals = {1, 1, 1, 3, 4};
    g.byte(2) = P;
    g.byte(4) = P;
    CHECK(g.prune<deferring_machine>());
    CHECK(g.dst[0] == 0x01);
    CHECK(g.left == std::vector<uint32_t>{1, 2, 3, 4});
    CHECK(g.state.deferrals == std::vector<uint8_t>{1, 3, 1, 3, 4});
    CHECK(g.byte(2) == (P | F));
    CHECK(g.byte(4) == (P | F));
    CHECK(g.fences() == 1);
}

TEST_CASE("A CPU that the host lets in while it defers is still left out, by deferral", "[guest][tlb_flush]") {
    guest_of g(2);
    g.byte(1) = P;
    g.state.deferrals[1] = deferral::asleep;
    g.at_step(2, &g.byte(1), [&] { g.byte(1) = 0; });
    CHECK_FALSE((g.src[0] = 2, g.prune<deferring_machine>()));
    CHECK(g.left == std::vector<uint32_t>{1});
    CHECK(g.byte(1) == 0);
    CHECK(g.state.deferrals[1] == (deferral::asleep | deferral::pending));
}

TEST_CASE("Deferral is left alone where the options say so, or the machine has none", "[guest][tlb_flush]") {
    guest_of off(2);
    off.state.deferrals[1] = deferral::asleep;
    CHECK(off.prune<deferring_machine>(flush_options{.deferral = false}));
    CHECK(off.kept(1));
    CHECK(off.state.deferrals[1] == deferral::asleep);

    guest_of none(2);
    none.state.deferrals[1] = deferral::asleep;
    CHECK(none.prune<plain_machine>());
    CHECK(none.kept(1));
}

TEST_CASE("The kernel's shootdown is called once, with the rest, the request and the number that was left out",
          "[guest][tlb_flush]") {
    guest_of g(70);
    for (uint32_t cpu : {1u, 64u, 65u}) g.byte(cpu) = P;
    g.src = {0x0f, 0x3f};
    flush_range const range{0x1000, 0x3000};
    flush_request const request{&range, 1, flush_kind::attributes};
    CHECK(tlb_flush(g.machine(), stock)
              .flush(const_cpu_mask_view{g.src.data(), 70}, request, cpu_mask_view{g.dst.data(), 70}) == 3);
    CHECK(g.state.remote == std::vector<remote_flush>{{{0x0d, 0x3c}, 70, flush_kind::attributes, 3}});
    CHECK(g.src == std::vector<unsigned long>{0x0f, 0x3f});
}

TEST_CASE("Nobody is interrupted where nobody is left, and the shootdown is not called at all", "[guest][tlb_flush]") {
    guest_of g(70);
    g.src = {0x0e, 0x20};
    for (uint32_t cpu : {1u, 2u, 3u, 69u}) g.byte(cpu) = P;
    CHECK(tlb_flush(g.machine(), stock)
              .flush(const_cpu_mask_view{g.src.data(), 70}, flush_request{}, cpu_mask_view{g.dst.data(), 70}) == 4);
    CHECK(g.state.remote.empty());

    guest_of empty(70);
    empty.src = {0, ~0ul << 6};  // nothing but junk beyond the end
    CHECK(tlb_flush(empty.machine(), stock)
              .flush(const_cpu_mask_view{empty.src.data(), 70}, flush_request{}, cpu_mask_view{empty.dst.data(), 70}) ==
          0);
    CHECK(empty.state.remote.empty());
}

TEST_CASE("With one CPU online there is no shootdown of others", "[guest][tlb_flush]") {
    guest_of g(64);
    g.state.online = {1};
    g.state.online_bits = 64;
    g.src[0] = ~1ul;
    CHECK(tlb_flush(g.machine<online_machine>(), stock)
              .flush(const_cpu_mask_view{g.src.data(), 64}, flush_request{}, cpu_mask_view{g.dst.data(), 64}) == 0);
    CHECK(g.state.remote.empty());
}

TEST_CASE("A scratch mask that is larger than the targets is cut to them", "[guest][tlb_flush]") {
    guest_of g(8192);
    g.src = {0x0e};
    CHECK(tlb_flush(g.machine(), stock)
              .flush(const_cpu_mask_view{g.src.data(), 4}, flush_request{}, cpu_mask_view{g.dst.data(), 8192}) == 0);
    CHECK(g.state.remote == std::vector<remote_flush>{{{0x0e}, 4, flush_kind::leaves, 0}});
    CHECK(g.dst[1] == 0xdddddddddddddddd);
}

TEST_CASE("A flush prunes by the kind of its request", "[guest][tlb_flush]") {
    struct mine {
        flush_kind kind() const { return flush_kind::tables; }
    };
    guest_of g(2);
    g.byte(1) = P;
    CHECK(tlb_flush(g.machine(), stock)
              .flush(const_cpu_mask_view{g.src.data(), 2}, mine{}, cpu_mask_view{g.dst.data(), 2}) == 0);
    CHECK(g.state.remote == std::vector<remote_flush>{{{0x03}, 2, flush_kind::tables, 0}});
}

TEST_CASE("By itself it prunes nothing, and what the host allows is what the configuration says",
          "[guest][tlb_flush]") {
    guest_of g(70);
    for (uint32_t cpu = 0; cpu < 70; ++cpu) g.byte(cpu) = P;
    CHECK(g.prune(flush_options{}));
    CHECK(g.left.empty());

    configuration c;
    CHECK(choose_flush_options(c).host_bits == 0);
    c.tlb_flush = decision{reason::on};
    CHECK(choose_flush_options(c).host_bits == P);
    c.in_host = decision{reason::on};
    CHECK(choose_flush_options(c).host_bits == (P | H));
}

TEST_CASE("Bits that are not the host's are ignored, also where the options name them", "[guest][tlb_flush]") {
    guest_of g(2);
    for (unsigned before = 0; before < 256; ++before) {
        CAPTURE(before);
        g.byte(1) = static_cast<uint8_t>(before);
        CHECK(tlb_flush(g.machine(), flush_options{.host_bits = 0xff}).leave_to_host(cpu_index{1}) ==
              ((before & (P | H)) != 0));
    }
}

TEST_CASE("A root that is freed is neither left to the host nor deferred", "[guest][tlb_flush]") {
    guest_of g(3);
    g.byte(1) = P;
    flush_options const all{.host_bits = P, .deferral = true, .walkers_protected = true};
    tlb_flush const flush(g.machine<deferring_machine>(), all);
    CHECK_FALSE(flush.prunes(flush_kind::roots));
    CHECK_FALSE(flush.defers(flush_kind::roots));
    CHECK(g.prune(all, flush_kind::roots));
    CHECK(g.left.empty());
}

TEST_CASE("CPUs that are not possible are not looked at, and are clear in what is left", "[guest][tlb_flush]") {
    guest_of g(70);
    for (uint32_t cpu = 0; cpu < 70; ++cpu) g.byte(cpu) = P;
    g.src.assign(4, ~0ul);
    g.dst.assign(4, ~0ul);
    CHECK(tlb_flush(g.machine(), stock)
              .prune(const_cpu_mask_view{g.src.data(), 256}, cpu_mask_view{g.dst.data(), 256}, flush_kind::leaves,
                     [&](cpu_index cpu) { g.left.push_back(cpu.value); }));
    CHECK(g.left.size() == 69);
    CHECK(g.dst == std::vector<unsigned long>{1, 0, 0, 0});
}
