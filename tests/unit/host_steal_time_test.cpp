// SPDX-License-Identifier: MIT
#include <pvx/host/steal_time.hpp>

#include <pvx/guest/steal_time.hpp>
#include <pvx/guest/tlb_flush.hpp>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/fake_environment.hpp"
#include "support/recording_atomics.hpp"

using namespace pvx;
using namespace pvx::host;
using namespace pvx_test;
using abi::kvm_steal_time;
using kind = recorded::kind;

namespace {

constexpr uint8_t P = abi::steal_preempted, F = abi::steal_flush_tlb, H = abi::proposed::steal_in_host;
constexpr uint32_t steal_msr = 0x4b564d03;
constexpr uint64_t first_page = 0x1000, second_page = 0x2fc0;

constexpr departure preempted{.at_instruction_boundary = true, .preempted = true, .wants_to_run = true};
constexpr departure blocked{.at_instruction_boundary = true, .preempted = false, .wants_to_run = true};
constexpr departure in_emulation{.at_instruction_boundary = false, .preempted = true, .wants_to_run = true};

char const* name(steal_event e) {
    switch (e) {
        case steal_event::reported: return "reported";
        case steal_event::kept: return "kept";
        case steal_event::not_at_boundary: return "not_at_boundary";
        case steal_event::not_preempted: return "not_preempted";
        case steal_event::entering: return "entering";
        case steal_event::page_out_of_reach: return "page_out_of_reach";
        case steal_event::flushed: return "flushed";
        case steal_event::flushed_in_doubt: return "flushed_in_doubt";
    }
    return "?";
}

/// With the optional role of an observer.
struct observed : fake_environment<recording_atomics> {
    using fake_environment::fake_environment;
    void event(steal_event e) const {
        state->log.push_back(name(e));
        state->called();
    }
};

/// A vCPU with two pages that the guest may register.
struct vcpu {
    recording notes;
    host_state host;
    kvm_steal_time first{};
    kvm_steal_time second{};
    steal_time<observed> steal;

    explicit vcpu(bool offer_in_host = false) : steal(observed(host, recording_atomics{notes}), offer_in_host) {
        host.memory = {{first_page, &first}, {second_page, &second}};
    }
    vcpu(vcpu const&) = delete;

    void registers(uint64_t value) { REQUIRE(steal.write_msr(steal_msr, value) == msr_outcome::done); }
    /// Registered, entered once, and nothing of it in the notes.
    static std::unique_ptr<vcpu> running(bool in_host = false) {
        auto v = std::make_unique<vcpu>(in_host);
        v->registers(first_page | 1 | (in_host ? 2 : 0));
        v->steal.enter();
        v->forget();
        return v;
    }
    void enters() {
        steal.load();
        steal.enter();
    }
    void forget() {
        notes.steps.clear();
        host.log.clear();
        host.maps = 0;
    }
    size_t writes() const { return notes.count(kind::store) + notes.count(kind::rmw) + notes.count(kind::lost_cas); }
    bool saw(std::vector<std::string> const& expected) const { return host.log == expected; }
};

std::string dirty(uint64_t address) { return "dirty " + hex(address); }

}  // namespace

// --- the MSR ---------------------------------------------------------------------------------------------------------

TEST_CASE("A write to the steal-time MSR with any reserved bit faults and changes nothing", "[host][steal_time]") {
    for (bool offered : {false, true})
        for (unsigned bit = 0; bit < 64; ++bit) {
            CAPTURE(offered, bit);
            vcpu v(offered);
            v.registers(second_page | 1);
            uint64_t const value = first_page | 1 | uint64_t{1} << bit;
            bool const reserved = bit >= (offered ? 2 : 1) && bit <= 5;
            CHECK(v.steal.write_msr(steal_msr, value) == (reserved ? msr_outcome::fault : msr_outcome::done));
            CHECK(v.steal.msr() == (reserved ? second_page | 1 : value));
            // Also where nothing is enabled.
            CHECK(v.steal.write_msr(steal_msr, uint64_t{1} << bit) ==
                  (reserved ? msr_outcome::fault : msr_outcome::done));
        }
}

TEST_CASE("Another MSR is somebody else's", "[host][steal_time]") {
    vcpu v(true);
    v.registers(first_page | 1);
    for (uint32_t index : {0u, 0x11u, 0x4b564d02u, 0x4b564d04u, 0xffffffffu}) {
        CHECK(v.steal.write_msr(index, ~uint64_t{0}) == msr_outcome::not_ours);
        CHECK(v.steal.read_msr(index) == msr_read{msr_outcome::not_ours, 0});
    }
    CHECK(v.steal.read_msr(steal_msr) == msr_read{msr_outcome::done, first_page | 1});
    CHECK(v.steal.msr() == (first_page | 1));
}

TEST_CASE("Writing the MSR touches no memory: the first entry does", "[host][steal_time]") {
    vcpu v;
    v.registers(first_page | 1);
    CHECK(v.notes.steps.empty());
    CHECK(v.host.maps == 0);
    CHECK(v.saw({}));
    v.steal.enter();
    CHECK(v.host.maps == 1);
    CHECK(v.saw({dirty(first_page)}));
}

// --- leaving ---------------------------------------------------------------------------------------------------------

TEST_CASE("What is published follows from the way of leaving, and from nothing else", "[host][steal_time]") {
    for (unsigned row = 0; row < 32; ++row) {
        bool const offered = (row & 16) != 0, asked = (row & 8) != 0;
        if (asked && !offered) continue;
        departure const how{(row & 1) != 0, (row & 2) != 0, (row & 4) != 0};
        CAPTURE(how.at_instruction_boundary, how.preempted, how.wants_to_run, offered, asked);
        vcpu v(offered);
        v.registers(first_page | 1 | (asked ? 2 : 0));
        v.steal.enter();
        v.forget();
        v.steal.put(how);

        uint8_t expected = asked ? H : 0;
        if (how.preempted && how.wants_to_run) expected = static_cast<uint8_t>(expected | P);
        if (!how.at_instruction_boundary) expected = 0;
        CHECK(v.first.preempted == expected);
        if (expected != 0) {
            CHECK(v.saw({dirty(first_page), "reported"}));
            CHECK(v.notes.steps ==
                  std::vector<recorded>{{kind::rmw, &v.first.preempted, expected, order::release.builtin}});
        } else {
            CHECK(v.saw({how.at_instruction_boundary ? "not_preempted" : "not_at_boundary"}));
            CHECK(v.notes.steps.empty());
        }
        CHECK(v.host.guards == 0);
    }
}

TEST_CASE("A vCPU whose guest did not register a page is put and entered without a trace", "[host][steal_time]") {
    vcpu v;
    v.steal.put(preempted);
    v.enters();
    v.registers(first_page);  // not enabled
    v.steal.put(preempted);
    v.enters();
    CHECK(v.notes.steps.empty());
    CHECK(v.host.maps == 0);
    CHECK(v.saw({}));
}

TEST_CASE("A second departure while the vCPU is out keeps the flush that was left", "[host][steal_time]") {
    auto const v = vcpu::running();
    v->steal.put(preempted);
    v->first.preempted |= F;
    v->forget();
    v->steal.put(preempted);
    CHECK(v->first.preempted == (P | F));
    CHECK(v->notes.steps.empty());
    CHECK(v->saw({"kept"}));
    v->enters();
    CHECK(v->host.count("flush") == 1);
}

TEST_CASE("A vCPU that blocked first and is then preempted adds its bit to the byte and keeps the flush",
          "[host][steal_time]") {
    auto const v = vcpu::running(true);
    v->steal.put(blocked);
    CHECK(v->first.preempted == H);
    v->first.preempted |= F;
    v->forget();
    v->steal.put(preempted);
    CHECK(v->first.preempted == (H | P | F));
    CHECK(v->saw({dirty(first_page), "reported"}));
    v->steal.put(blocked);  // and back: nothing is taken away before the exchange
    CHECK(v->first.preempted == (H | P | F));
    v->enters();
    CHECK(v->first.preempted == 0);
    CHECK(v->host.count("flush") == 1);
}

TEST_CASE("Also a flush that comes at the very moment of the second departure is kept", "[host][steal_time]") {
    auto const v = vcpu::running(true);
    v->steal.put(blocked);
    v->notes.steps.clear();
    v->notes.after = [&](recorded const& r) {
        if (r.what == kind::load) v->first.preempted |= F;  // between a look and a store, if there were any
    };
    v->host.on_generation = [&] { v->first.preempted |= F; };
    v->steal.put(preempted);
    CHECK(v->first.preempted == (H | P | F));
}

TEST_CASE("Leaving in the middle of an emulation never adds a bit", "[host][steal_time]") {
    auto const v = vcpu::running(true);
    v->steal.put(in_emulation);
    CHECK(v->first.preempted == 0);
    v->steal.put(blocked);
    v->steal.put(in_emulation);
    CHECK(v->first.preempted == H);
    v->enters();
    CHECK(v->host.count("flush") == 0);
}

// --- entering --------------------------------------------------------------------------------------------------------

TEST_CASE("Entering exchanges the byte with zero and flushes exactly if a flush was left", "[host][steal_time]") {
    for (bool in_host : {false, true})
        for (unsigned left = 0; left < 256; ++left) {
            CAPTURE(in_host, left);
            auto const v = vcpu::running(in_host);
            v->steal.put(preempted);
            v->first.preempted = static_cast<uint8_t>(left);
            v->forget();
            v->enters();
            CHECK(v->first.preempted == 0);
            CHECK(v->notes.steps.front() == recorded{kind::rmw, &v->first.preempted, 0, order::acquire.builtin});
            CHECK(v->notes.count(kind::rmw, &v->first.preempted) == 1);
            CHECK(v->notes.count(kind::load, &v->first.preempted) == 0);
            std::vector<std::string> expected;
            if (left != 0) expected.push_back(dirty(first_page));
            if ((left & F) != 0) {
                expected.push_back("flushed");
                expected.push_back("flush");
            }
            CHECK(v->saw(expected));
        }
}

TEST_CASE("A flush that is left at the last moment before the exchange is done", "[host][steal_time]") {
    auto const v = vcpu::running();
    v->steal.put(preempted);
    // The flusher comes after all that entering looks at before its exchange.
    v->host.on_generation = [&] { v->first.preempted |= F; };
    v->enters();
    CHECK(v->host.count("flush") == 1);
    CHECK(v->host.count("flushed") == 1);
    CHECK(v->first.preempted == 0);
}

TEST_CASE("After the exchange no flusher finds a bit to leave a flush on", "[host][steal_time]") {
    auto const v = vcpu::running();
    v->steal.put(preempted);
    bool after_exchange = false;
    v->notes.after = [&](recorded const& r) {
        if (r.word == &v->first.preempted && r.what == kind::rmw) after_exchange = true;
        if (after_exchange) CHECK(v->first.preempted == 0);
    };
    v->enters();
    CHECK(after_exchange);
}

TEST_CASE("The flush is done after the exchange and before the entry ends, and the observer is told first",
          "[host][steal_time]") {
    auto const v = vcpu::running();
    v->steal.put(preempted);
    v->first.preempted |= F;
    uint8_t at_flush = 0xff;
    v->host.on_flush = [&] { at_flush = v->first.preempted; };
    v->enters();
    CHECK(at_flush == 0);
    CHECK(v->host.count("flushed") == 1);
}

TEST_CASE("Entering again without a load in between does nothing", "[host][steal_time]") {
    auto const v = vcpu::running();
    v->host.run_delay = 50;
    v->steal.enter();
    CHECK(v->notes.steps.empty());
    CHECK(v->saw({}));
    CHECK(v->first.steal == 0);
}

TEST_CASE("An entry that is abandoned leaves the bits, and the flush is done by the next one", "[host][steal_time]") {
    auto const v = vcpu::running();
    v->steal.put(preempted);
    v->steal.load();
    CHECK(v->first.preempted == P);
    v->first.preempted |= F;
    v->steal.put(preempted);  // it never ran
    CHECK(v->first.preempted == (P | F));
    v->steal.load();
    v->steal.load();
    v->steal.enter();
    CHECK(v->first.preempted == 0);
    CHECK(v->host.count("flush") == 1);
}

TEST_CASE("A vCPU that is entered without a load still takes back what it published", "[host][steal_time]") {
    auto const v = vcpu::running(true);
    v->steal.put(blocked);
    v->first.preempted |= F;
    v->steal.enter();
    CHECK(v->first.preempted == 0);
    CHECK(v->host.count("flush") == 1);
}

// --- the sum ---------------------------------------------------------------------------------------------------------

TEST_CASE("What was stolen is added under the counter, and only that", "[host][steal_time]") {
    auto const v = vcpu::running();
    uint32_t const version = v->first.version;
    CHECK(version % 2 == 0);
    v->host.run_delay = 100;
    v->enters();
    CHECK(v->first.steal == 100);
    CHECK(v->first.version == version + 2);
    CHECK(v->notes.steps ==
          std::vector<recorded>{{kind::rmw, &v->first.preempted, 0, order::acquire.builtin},
                                {kind::load, &v->first.version, version, order::relaxed.builtin},
                                {kind::store, &v->first.version, version + 1, order::relaxed.builtin},
                                {kind::fence, nullptr, 0, order::release.builtin},
                                {kind::load, &v->first.steal, 0, order::relaxed.builtin},
                                {kind::store, &v->first.steal, 100, order::relaxed.builtin},
                                {kind::store, &v->first.version, version + 2, order::release.builtin}});
    CHECK(v->saw({dirty(first_page)}));
    CHECK(v->first.flags == 0);
}

TEST_CASE("A reader never sees a sum that is half written with an even version", "[host][steal_time]") {
    auto const v = vcpu::running();
    v->host.run_delay = 7;
    v->notes.after = [&](recorded const& r) {
        if (r.what != kind::rmw && r.what != kind::fence && v->first.version % 2 == 0)
            CHECK((v->first.steal == 0) == (v->first.version == 2));
    };
    v->enters();
    CHECK(v->first.steal == 7);
}

TEST_CASE("Nothing is written, and no page marked dirty, where nothing was published or stolen", "[host][steal_time]") {
    auto const v = vcpu::running();
    kvm_steal_time const before = v->first;
    v->enters();
    CHECK(std::memcmp(&before, &v->first, sizeof before) == 0);
    CHECK(v->saw({}));
}

TEST_CASE("What a new page holds is added to, and its odd version becomes even at the first entry",
          "[host][steal_time]") {
    for (uint32_t junk : {0u, 1u, 7u, 0xfffffffeu, 0xffffffffu}) {
        CAPTURE(junk);
        vcpu v;
        v.first.version = junk;
        v.first.steal = 1000;
        v.first.preempted = 0;
        v.host.run_delay = 500;
        v.registers(first_page | 1);
        v.steal.enter();
        CHECK(v.first.version % 2 == 0);
        CHECK(v.first.steal == 1000);  // what was stolen before the page was there is not told
        v.host.run_delay = 530;
        v.enters();
        CHECK(v.first.steal == 1030);
        CHECK(v.first.version % 2 == 0);
    }
}

TEST_CASE("The sum never goes back: not with the clock, the thread or the host", "[host][steal_time]") {
    auto const v = vcpu::running();
    v->host.run_delay = 100;
    v->enters();
    v->host.run_delay = 40;  // another thread, and nobody said so
    v->enters();
    CHECK(v->first.steal == 100);
    v->host.run_delay = 45;
    v->enters();
    CHECK(v->first.steal == 105);
    v->steal.thread_changed();
    v->host.run_delay = 100000;
    v->enters();
    CHECK(v->first.steal == 105);
    v->host.run_delay = 100010;
    v->enters();
    CHECK(v->first.steal == 115);

    vcpu elsewhere;
    std::memcpy(&elsewhere.first, &v->first, sizeof v->first);
    elsewhere.host.run_delay = 3;
    REQUIRE(elsewhere.steal.restore(v->steal.save()) == status::ok);
    elsewhere.enters();
    CHECK(elsewhere.first.steal == 115);
    elsewhere.host.run_delay = 5;
    elsewhere.enters();
    CHECK(elsewhere.first.steal == 117);
}

TEST_CASE("A page that is registered anew begins to count then", "[host][steal_time]") {
    auto const v = vcpu::running();
    v->host.run_delay = 100;
    v->registers(second_page | 1);
    v->steal.enter();
    CHECK(v->first.steal == 0);
    CHECK(v->second.steal == 0);
    v->host.run_delay = 130;
    v->enters();
    CHECK(v->first.steal == 0);
    CHECK(v->second.steal == 30);
}

TEST_CASE("A page that is registered once more is begun anew at the next entry, also without a load",
          "[host][steal_time]") {
    auto const v = vcpu::running();
    v->first.version = 7;
    v->registers(first_page | 1);
    v->steal.enter();
    CHECK(v->first.version % 2 == 0);
}

TEST_CASE("Reserved bytes and flags of the page are never written", "[host][steal_time]") {
    auto const v = vcpu::running(true);
    std::memset(static_cast<void*>(&v->first), 0xa5, sizeof v->first);
    v->first.preempted = 0;
    v->host.run_delay = 10;
    v->steal.put(preempted);
    v->enters();
    CHECK(v->first.flags == 0xa5a5a5a5);
    for (uint8_t pad : v->first.pad8) CHECK(pad == 0xa5);
    for (uint32_t pad : v->first.pad32) CHECK(pad == 0xa5a5a5a5);
}

// --- pages that come and go ------------------------------------------------------------------------------------------

TEST_CASE("After the MSR is cleared, or the vCPU reset, nothing is written any more", "[host][steal_time]") {
    for (bool by_reset : {false, true}) {
        CAPTURE(by_reset);
        auto const v = vcpu::running(true);
        if (by_reset)
            v->steal.reset();
        else
            v->registers(0);
        CHECK(v->steal.msr() == 0);
        v->host.run_delay = 100;
        kvm_steal_time const before = v->first;
        v->steal.put(preempted);
        v->enters();
        v->steal.put(blocked);
        v->enters();
        CHECK(std::memcmp(&before, &v->first, sizeof before) == 0);
        CHECK(v->notes.steps.empty());
        CHECK(v->saw({}));
    }
}

TEST_CASE("A page that is registered anew while memory stays the same is the one that is written",
          "[host][steal_time]") {
    auto const v = vcpu::running();
    v->registers(second_page | 1);
    v->steal.put(preempted);  // before the first entry
    CHECK(v->first.preempted == 0);
    CHECK(v->second.preempted == P);
    v->enters();
    v->steal.put(preempted);
    CHECK(v->first.preempted == 0);
    CHECK(v->second.preempted == P);
}

TEST_CASE("Where the vCPU cannot sleep and the memory map has changed, nothing is written and nothing mapped",
          "[host][steal_time]") {
    auto const v = vcpu::running();
    v->host.sleepy = false;
    v->host.generation = 2;
    v->steal.put(preempted);
    CHECK(v->notes.steps.empty());
    CHECK(v->host.maps == 0);
    CHECK(v->saw({"page_out_of_reach"}));
    // The same for another address, and before the first entry.
    auto const moved = vcpu::running();
    moved->host.sleepy = false;
    moved->registers(second_page | 1);
    moved->steal.put(preempted);
    CHECK(moved->notes.steps.empty());
    CHECK(moved->host.maps == 0);
    CHECK(moved->saw({"page_out_of_reach"}));
}

TEST_CASE("A memory map that changes while the vCPU leaves is not mapped from where it cannot sleep",
          "[host][steal_time]") {
    auto const v = vcpu::running();
    v->host.sleepy = false;
    v->host.on_generation = [&] { ++v->host.generation; };
    v->steal.put(preempted);
    CHECK(v->host.maps == 0);
    v->host.on_generation = [] {};
    v->enters();
    CHECK(v->first.preempted == 0);
}

TEST_CASE("Where the vCPU may sleep, leaving maps the page anew", "[host][steal_time]") {
    auto const v = vcpu::running();
    v->host.generation = 2;
    v->steal.put(preempted);
    CHECK(v->host.maps == 1);
    CHECK(v->first.preempted == P);
    v->steal.put(in_emulation);
    v->host.sleepy = false;
    v->enters();
    CHECK(v->host.maps == 1);
    CHECK(v->host.count("flush") == 0);
}

TEST_CASE("A page is mapped once for as long as the memory map stays", "[host][steal_time]") {
    auto const v = vcpu::running();
    for (int i = 0; i < 5; ++i) {
        v->steal.put(preempted);
        v->enters();
    }
    CHECK(v->host.maps == 0);
}

TEST_CASE("A page that is not plain memory is not touched, and asked for again when the memory map has changed",
          "[host][steal_time]") {
    vcpu v;
    v.registers(0x5000 | 1);
    v.steal.enter();
    CHECK(v.saw({"page_out_of_reach"}));
    v.steal.put(preempted);
    CHECK(v.saw({"page_out_of_reach", "page_out_of_reach"}));
    CHECK(v.notes.steps.empty());
    v.host.memory[0x5000] = &v.second;
    v.host.generation = 2;
    v.enters();
    CHECK(v.second.version % 2 == 0);
    CHECK(v.second.version != 0);
    CHECK(v.host.count("flush") == 0);
}

TEST_CASE("A page that could not be had where the vCPU cannot sleep is asked for again at the next entry",
          "[host][steal_time]") {
    auto const v = vcpu::running();
    v->steal.put(preempted);
    v->host.generation = 2;
    v->host.memory.erase(first_page);  // it would take a fault
    v->host.sleepy = false;
    v->enters();
    CHECK(v->host.count("flush") == 1);
    v->host.memory[first_page] = &v->first;
    v->host.sleepy = true;
    v->steal.enter();
    CHECK(v->first.preempted == 0);
}

namespace {

/// Something that happens to a vCPU.
struct happening_to {
    char const* what;
    std::function<void(vcpu&)> happens;
};

/// Each of them to a vCPU that is out, by either bit, with and without a flush that was left; then `check(v, asked)`.
template <class Check>
void while_out(std::vector<happening_to> const& rows, Check const& check) {
    for (happening_to const& r : rows)
        for (bool in_host : {false, true})
            for (bool asked : {false, true}) {
                CAPTURE(r.what, in_host, asked);
                auto const v = vcpu::running(in_host);
                v->steal.put(in_host ? blocked : preempted);
                if (asked) v->first.preempted |= F;
                v->forget();
                r.happens(*v);
                check(*v, asked);
            }
}

}  // namespace

TEST_CASE("Whatever keeps the exchange from the byte that has the bits, the flush is done", "[host][steal_time]") {
    std::vector<happening_to> const rows = {
        {"the page is gone",
         [](vcpu& v) {
             v.host.memory.erase(first_page);
             v.host.generation = 2;
         }},
        {"the page moved to other memory",
         [](vcpu& v) {
             v.host.memory[first_page] = &v.second;
             v.host.generation = 2;
         }},
        {"the memory map changed, and the page may be the same", [](vcpu& v) { v.host.generation = 2; }},
        {"the state came from elsewhere", [](vcpu& v) { REQUIRE(v.steal.restore(v.steal.save()) == status::ok); }},
    };
    while_out(rows, [](vcpu& v, bool) {
        v.enters();
        CHECK(v.host.count("flush") == 1);
        CHECK(v.second.preempted == 0);
        // Once: the next entry is in no doubt.
        v.forget();
        v.enters();
        CHECK(v.host.count("flush") == 0);
    });
}

TEST_CASE("A page that is withdrawn or moved while it says that the vCPU is out has that taken back first",
          "[host][steal_time]") {
    std::vector<happening_to> const rows = {
        {"another page", [](vcpu& v) { v.registers(second_page | 1); }},
        {"no page", [](vcpu& v) { v.registers(0); }},
        {"the same page", [](vcpu& v) { v.registers(first_page | 1); }},
        {"a reset", [](vcpu& v) { v.steal.reset(); }},
    };
    while_out(rows, [](vcpu& v, bool asked) {
        // Before the guest can believe that the page is its own again.
        CHECK(v.first.preempted == 0);
        CHECK(v.host.count("flush") == (asked ? 1 : 0));
        v.first.preempted = 0x80;  // now it is
        v.enters();
        CHECK(v.host.count("flush") == (asked ? 1 : 0));
        CHECK((v.first.preempted == 0x80 || v.steal.msr() == (first_page | 1)));
    });
}

TEST_CASE("Where the bits cannot be taken back because the memory map has changed, the next entry flushes",
          "[host][steal_time]") {
    auto const v = vcpu::running();
    v->steal.put(preempted);
    v->host.generation = 2;
    v->registers(second_page | 1);
    v->forget();
    v->enters();
    CHECK(v->host.count("flush") == 1);
}

TEST_CASE("Memory that moves away with a host bit in it, and back, has the bit taken back at the first entry",
          "[host][steal_time]") {
    auto const v = vcpu::running();
    v->steal.put(preempted);
    v->host.memory[first_page] = &v->second;
    v->host.generation = 2;
    v->enters();
    CHECK(v->first.preempted == P);
    v->host.memory[first_page] = &v->first;
    v->host.generation = 3;
    v->forget();
    v->steal.enter();  // not even out since
    CHECK(v->first.preempted == 0);
}

TEST_CASE("A page that is gone for good costs one flush and one look, not one at each entry", "[host][steal_time]") {
    auto const v = vcpu::running();
    v->steal.put(preempted);
    v->host.memory.erase(first_page);
    v->host.generation = 2;
    v->forget();
    for (int i = 0; i < 100; ++i) v->enters();
    CHECK(v->host.count("flush") == 1);
    CHECK(v->host.maps == 1);
    v->steal.put(preempted);
    CHECK(v->host.log.back() == "page_out_of_reach");
}

TEST_CASE("A thread that loses its CPU anywhere in an entry, a departure or a change of the page forgets nothing",
          "[host][steal_time]") {
    struct row {
        char const* what;
        std::function<void(vcpu&)> before;
        std::function<void(vcpu&)> happens;
    };
    auto const enters = [](vcpu& v) { v.enters(); };
    auto const out_with_a_flush = [](vcpu& v) {
        v.steal.put(preempted);
        v.first.preempted |= F;
    };
    auto const memory_moves = [](vcpu& v) {
        v.host.memory[first_page] = &v.second;
        v.host.generation = 2;
    };
    std::vector<row> const rows = {
        {"an entry", [](vcpu& v) { v.host.run_delay = 5; }, enters},
        {"an entry with a flush", out_with_a_flush, enters},
        {"an entry with another page", [](vcpu& v) { v.registers(second_page | 3); }, enters},
        {"an entry with other memory", memory_moves, enters},
        {"an entry without memory",
         [](vcpu& v) {
             v.host.memory.clear();
             v.host.generation = 2;
         },
         enters},
        {"a departure", [](vcpu&) {}, [](vcpu& v) { v.steal.put(blocked); }},
        {"a departure with other memory", memory_moves, [](vcpu& v) { v.steal.put(blocked); }},
        {"a second departure", [](vcpu& v) { v.steal.put(blocked); }, [](vcpu& v) { v.steal.put(preempted); }},
        {"a withdrawal", out_with_a_flush, [](vcpu& v) { v.registers(0); }},
        {"a move", out_with_a_flush, [](vcpu& v) { v.registers(second_page | 3); }},
        {"a reset", out_with_a_flush, [](vcpu& v) { v.steal.reset(); }},
    };
    for (row const& r : rows) {
        unsigned interruptions = 0;
        for (unsigned n = 1; n == interruptions + 1; ++n) {
            CAPTURE(r.what, n);
            auto const v = vcpu::running(true);
            r.before(*v);
            v->forget();
            // Where other memory is behind the page, this is no longer the guest's.
            bool const let_go = v->host.memory[first_page] != &v->first;
            bool const flush_left = (v->first.preempted & F) != 0;
            unsigned calls = 0;
            v->host.on_call = [&] {
                if (++calls != n) return;
                ++interruptions;
                uint8_t const bytes[] = {v->first.preempted, v->second.preempted};
                size_t const written = v->writes();
                uint32_t const mapped = v->host.maps;
                v->host.sleepy = false;
                v->steal.put(preempted);
                CHECK((v->host.log.back() == "entering" || v->host.log.back() == "kept"));
                CHECK((v->first.preempted == bytes[0] && v->second.preempted == bytes[1]));
                CHECK((v->writes() == written && v->host.maps == mapped));
                v->steal.load();
                v->host.sleepy = true;
            };
            // Also right behind an operation on a shared word.
            v->notes.after = [&](recorded const&) { v->host.called(); };
            r.happens(*v);
            v->host.on_call = nullptr;
            if (calls < n) break;

            CHECK(v->steal.must_enter());
            for (int i = 0; i < 3 && v->steal.must_enter(); ++i) v->steal.enter();
            CHECK_FALSE(v->steal.must_enter());
            CHECK(v->second.preempted == 0);
            CHECK(v->first.preempted == 0);
            CHECK(v->host.count("flush") >= (flush_left ? 1u : 0u));
            if (let_go) CHECK(v->notes.count(kind::rmw, &v->first.preempted) == 0);
            CHECK(v->host.guards == 0);
        }
        CHECK(interruptions >= 3);
    }
}

TEST_CASE("A vCPU must enter after it was out, and need not after an entry that nothing disturbed",
          "[host][steal_time]") {
    auto const v = vcpu::running();
    CHECK_FALSE(v->steal.must_enter());
    v->steal.put(preempted);
    CHECK(v->steal.must_enter());
    v->steal.enter();
    CHECK_FALSE(v->steal.must_enter());
    v->steal.load();
    CHECK(v->steal.must_enter());
    v->steal.enter();
    CHECK_FALSE(v->steal.must_enter());
}

TEST_CASE("A restore writes nothing into the memory that is there", "[host][steal_time]") {
    auto const v = vcpu::running();
    v->steal.put(preempted);
    v->first.preempted = 0xff;  // the new state's memory
    v->forget();
    REQUIRE(v->steal.restore(v->steal.save()) == status::ok);
    CHECK(v->writes() == 0);
    CHECK(v->first.preempted == 0xff);
}

TEST_CASE("A page that goes away with a host bit in it, and comes back, has it taken back at the first entry",
          "[host][steal_time]") {
    auto const v = vcpu::running();
    v->steal.put(preempted);
    v->host.memory.erase(first_page);
    v->host.generation = 2;
    v->enters();
    CHECK(v->first.preempted == P);  // nobody can reach it now
    v->first.preempted |= F;         // a flush that was left before it went
    v->host.memory[first_page] = &v->first;
    v->host.generation = 3;
    v->forget();
    v->enters();
    CHECK(v->first.preempted == 0);
    CHECK(v->host.count("flush") == 1);
    v->forget();
    v->enters();
    CHECK(v->host.count("flush") == 0);
}

TEST_CASE("In doubt the flush is told as such, and as a flush that was asked for where the byte says so",
          "[host][steal_time]") {
    auto const v = vcpu::running();
    v->steal.put(preempted);
    v->host.generation = 2;
    v->forget();
    v->enters();
    CHECK(v->saw({dirty(first_page), "flushed_in_doubt", "flush"}));
    v->steal.put(preempted);
    v->first.preempted |= F;
    v->host.generation = 3;
    v->forget();
    v->enters();
    CHECK(v->saw({dirty(first_page), "flushed", "flush"}));
    v->steal.put(preempted);
    v->host.memory.clear();
    v->host.generation = 4;
    v->forget();
    v->enters();
    CHECK(v->saw({"page_out_of_reach", "flushed_in_doubt", "flush"}));
}

TEST_CASE("A vCPU that published nothing is in no doubt, whatever became of its page", "[host][steal_time]") {
    auto const v = vcpu::running();
    v->host.memory.clear();
    v->host.generation = 2;
    v->enters();
    CHECK(v->host.count("flush") == 0);
    v->registers(0);
    v->enters();
    CHECK(v->host.count("flush") == 0);
}

TEST_CASE("A second departure does not put its bit on another byte than the first", "[host][steal_time]") {
    auto const v = vcpu::running(true);
    v->steal.put(blocked);
    v->host.memory[first_page] = &v->second;
    v->host.generation = 2;
    v->steal.put(preempted);
    CHECK(v->second.preempted == 0);
    CHECK(v->first.preempted == H);
    v->enters();
    CHECK(v->host.count("flush") == 1);
}

// --- snapshots -------------------------------------------------------------------------------------------------------

TEST_CASE("A state goes from one vCPU to another, and the first entry there flushes", "[host][steal_time]") {
    auto const from = vcpu::running(true);
    steal_time_state const state = from->steal.save();
    CHECK(state.version == steal_time_state::current_version);
    CHECK(state.msr == (first_page | 3));

    vcpu to(true);
    REQUIRE(to.steal.restore(state) == status::ok);
    CHECK(to.steal.msr() == (first_page | 3));
    to.steal.enter();  // also without a load
    CHECK(to.host.count("flushed_in_doubt") == 1);
    CHECK(to.host.count("flush") == 1);
    to.enters();
    CHECK(to.host.count("flush") == 1);
    to.steal.put(blocked);
    CHECK(to.first.preempted == H);
}

TEST_CASE("A state without a page flushes at the first entry as well", "[host][steal_time]") {
    vcpu v;
    REQUIRE(v.steal.restore(steal_time_state{}) == status::ok);
    v.enters();
    CHECK(v.host.count("flush") == 1);
    CHECK(v.notes.steps.empty());
}

TEST_CASE("A state of another version, with a pad, or with a value that the MSR refuses, changes nothing",
          "[host][steal_time]") {
    auto const v = vcpu::running();
    for (uint32_t version : {0u, 2u, 0xffffffffu}) {
        steal_time_state state = v->steal.save();
        state.version = version;
        state.msr = second_page | 1;
        CHECK(v->steal.restore(state) == status::bad_argument);
    }
    for (uint64_t value : {first_page | 3, first_page | 0x20}) {
        steal_time_state state = v->steal.save();
        state.msr = value;
        CHECK(v->steal.restore(state) == status::bad_argument);
    }
    for (uint32_t pad : {1u, 0x80000000u}) {
        steal_time_state state = v->steal.save();
        state.msr = second_page | 1;
        state.pad = pad;
        CHECK(v->steal.restore(state) == status::bad_argument);
    }
    CHECK(v->steal.msr() == (first_page | 1));
    v->enters();
    CHECK(v->host.count("flush") == 0);

    v->steal.put(preempted);
    steal_time_state state = v->steal.save();
    state.msr |= 0x20;
    CHECK(v->steal.restore(state) == status::bad_argument);
    CHECK(v->steal.must_enter());
    v->first.preempted |= F;
    v->steal.enter();
    CHECK(v->first.preempted == 0);
    CHECK(v->host.count("flush") == 1);
}

// --- the other side --------------------------------------------------------------------------------------------------

TEST_CASE("Whatever a guest writes into its page costs nobody but itself", "[host][steal_time]") {
    for (unsigned junk = 0; junk < 256; ++junk) {
        auto const v = vcpu::running(true);
        std::memset(static_cast<void*>(&v->first), static_cast<int>(junk), sizeof v->first);
        v->host.run_delay = 9;
        v->steal.put(preempted);
        v->enters();
        CHECK(v->first.preempted == 0);
        CHECK(v->first.version % 2 == 0);
        CHECK(v->host.count("flush") == ((junk & F) != 0 ? 1u : 0u));
        CHECK(v->second.version == 0);
        CHECK(v->host.guards == 0);
    }
}

namespace {

/// What is around one vCPU, plain, so that a walk over all orders can go back.
struct scene {
    kvm_steal_time memory[3]{};  // two take turns behind the first page; the last is the second page
    uint8_t behind_first = 0;    // 2: nothing is
    bool first_in_reach = true;  // of guest CPUs
    bool sleepy = true;          // can_sleep()
    bool running = true;         // the guest may be executing
    bool owed = false;           // a flush was left
    uint64_t seen = first_page;  // the page that guest CPUs look at, 0 if none
    uint64_t generation = 1;     // of the memory map

    kvm_steal_time* at(uint64_t address) {
        if (address == second_page) return &memory[2];
        return address == first_page && behind_first < 2 ? &memory[behind_first] : nullptr;
    }
    /// The one that a flusher finds.
    kvm_steal_time* found() { return seen == first_page && !first_in_reach ? nullptr : at(seen); }
    void change_map(uint8_t now_behind_first) {
        behind_first = now_behind_first;
        first_in_reach = false;
        ++generation;
    }
};

struct scene_environment : builtin_atomics {
    scene* around;

    explicit scene_environment(scene& s) : around(&s) {}
    int read_guard() const { return 0; }
    template <class T>
    T* map(guest_phys address) const {
        return around->at(address.value);
    }
    uint64_t memory_generation() const { return around->generation; }
    void mark_dirty(guest_phys) const {}
    bool can_sleep() const { return around->sleepy; }
    nanoseconds run_delay() const { return nanoseconds{0}; }
    void flush_guest_tlb() const { around->owed = false; }
};

enum class happening : uint8_t {
    preempt,
    block,
    leave_in_emulation,
    load,
    enter,
    flush,  ///< A guest CPU leaves a flush where it finds a bit of the host's.
    change_generation,
    swap_memory,
    take_or_give_memory,
    register_first,
    register_second,
    withdraw,
    reset,
    restore,
    end
};

class every_order {
public:
    every_order(bool in_host, bool sleepy) : host_bits_(in_host ? P | H : P), steal_(scene_environment(now_), in_host) {
        now_.sleepy = sleepy;
        registers(first_page);
        steal_.enter();
    }
    every_order(every_order const&) = delete;

    void walk(unsigned depth) {
        scene const then = now_;
        auto const steal = steal_;
        for (uint8_t h = 0; h < uint8_t(happening::end); ++h) {
            happens(happening{h});
            judge(then, steal.msr(), happening{h});
            if (depth > 1) walk(depth - 1);
            now_ = then;
            steal_ = steal;
        }
    }

    unsigned illegal = 0;             ///< Bytes that no protocol leaves behind.
    unsigned stray = 0;               ///< Bits set where no page is registered, or set or cleared by the wrong event.
    unsigned lost = 0;                ///< Flushes that were not done before the guest ran.
    unsigned visible = 0;             ///< The guest ran, and its CPUs found a bit of the host's.
    unsigned left_while_running = 0;  ///< The same, and a flush was left.
    unsigned left = 0;

private:
    void registers(uint64_t page) {
        (void)steal_.write_msr(steal_msr, page == 0 ? 0 : page | 1 | (host_bits_ == P ? 0 : 2));
    }
    uint64_t registered() const { return (steal_.msr() & 1) != 0 ? steal_.msr() & ~uint64_t{63} : 0; }

    void leaves(departure how) {
        now_.running = false;
        steal_.put(how);
    }

    void happens(happening h) {
        bool const in_host = h >= happening::register_first;
        if (in_host) now_.running = false;
        switch (h) {
            case happening::preempt: return leaves(preempted);
            case happening::block: return leaves(blocked);
            case happening::leave_in_emulation: return leaves(in_emulation);
            case happening::load: return steal_.load();
            case happening::enter:
                steal_.enter();
                now_.running = true;
                now_.first_in_reach |= registered() != 0;
                return;
            case happening::flush: {
                kvm_steal_time* const page = now_.found();
                if (page == nullptr || (page->preempted & host_bits_) == 0) return;
                page->preempted |= F;
                now_.owed = true;
                ++left;
                left_while_running += now_.running;
                return;
            }
            case happening::change_generation: ++now_.generation; break;
            case happening::swap_memory: now_.change_map(now_.behind_first == 0 ? 1 : 0); break;
            case happening::take_or_give_memory: now_.change_map(now_.behind_first == 2 ? 0 : 2); break;
            case happening::register_first:
                registers(first_page);
                now_.seen = first_page;
                return;
            case happening::register_second:
                registers(second_page);
                now_.seen = second_page;
                return;
            case happening::withdraw: return registers(0);
            case happening::reset: return steal_.reset();
            case happening::restore: (void)steal_.restore(steal_.save()); return;
            case happening::end: return;
        }
        // The map changed. Until then guest CPUs may look at a page that is registered no more.
        if (registered() == 0) now_.seen = 0;
    }

    void judge(scene const& then, uint64_t msr_then, happening h) {
        bool const leaving = h <= happening::leave_in_emulation;
        bool const taking_back = h == happening::enter || (h >= happening::register_first && h <= happening::reset);
        kvm_steal_time const* const page = now_.at((msr_then & 1) != 0 ? msr_then & ~uint64_t{63} : 0);
        for (unsigned i = 0; i < 3; ++i) {
            uint8_t const before = then.memory[i].preempted, after = now_.memory[i].preempted;
            illegal += (after & ~(host_bits_ | F)) != 0 || after == F;
            if (before == after || h == happening::flush) continue;
            bool const by_right = (before & ~after) == 0 ? leaving : after == 0 && taking_back;
            stray += !by_right || page != &now_.memory[i];
        }
        if (h != happening::enter) return;
        lost += now_.owed;
        visible += now_.found() != nullptr && now_.found()->preempted != 0;
    }

    uint8_t host_bits_;
    scene now_;
    steal_time<scene_environment> steal_;
};

}  // namespace

TEST_CASE(
    "In every order of leaving, entering, flushing, remapping and registering, the byte is legal and no flush is lost",
    "[host][steal_time][tlb_flush]") {
    // Legal: 0, H, P, H|P, and the last three with F; never F alone.
    for (bool in_host : {false, true})
        for (bool sleepy : {false, true}) {
            CAPTURE(in_host, sleepy);
            every_order orders(in_host, sleepy);
            orders.walk(6);
            CHECK(orders.illegal == 0);
            CHECK(orders.stray == 0);
            CHECK(orders.lost == 0);
            CHECK(orders.visible == 0);
            CHECK(orders.left_while_running == 0);
            CHECK(orders.left > 1000);
        }
}

TEST_CASE("A page at the end of the address space, or of all ones, is asked for as it is", "[host][steal_time]") {
    vcpu v;
    v.registers(~uint64_t{0x3e});
    v.steal.enter();
    v.steal.put(preempted);
    CHECK(v.saw({"page_out_of_reach", "page_out_of_reach"}));
    v.host.memory[~uint64_t{0x3f}] = &v.first;
    v.host.generation = 2;
    v.enters();
    v.steal.put(preempted);
    CHECK(v.first.preempted == P);
}

TEST_CASE("Without an observer nothing is told, and all else is the same", "[host][steal_time]") {
    host_state host;
    kvm_steal_time page{};
    host.memory[first_page] = &page;
    recording notes;
    steal_time<fake_environment<recording_atomics>> steal(
        fake_environment<recording_atomics>(host, recording_atomics{notes}));
    REQUIRE(steal.write_msr(steal_msr, first_page | 1) == msr_outcome::done);
    steal.enter();
    steal.put(preempted);
    CHECK(page.preempted == P);
    page.preempted |= F;
    steal.load();
    steal.enter();
    CHECK(host.log == std::vector<std::string>{dirty(first_page), dirty(first_page), dirty(first_page), "flush"});
}

TEST_CASE("Both halves over one page: registered, preempted, flushed by another vCPU, charged and withdrawn",
          "[host][guest][steal_time][tlb_flush]") {
    bool const in_host = GENERATE(false, true);
    CAPTURE(in_host);
    kvm_steal_time pages[2];
    std::memset(static_cast<void*>(pages), 0xee, sizeof pages);
    fake_state guest;
    guest.apic_ids = {apic_id{0}, apic_id{1}};
    guest.msrs[steal_msr] = 0;
    guest.records = {{0, &pages[0]}, {1, &pages[1]}};
    fake_machine const machine{guest};
    auto const address = [&](unsigned cpu) { return reinterpret_cast<uintptr_t>(&pages[cpu]); };

    // The host has one vCPU of the two: the other is the flusher.
    host_state host;
    host.memory = {{address(1), &pages[1]}};
    steal_time<fake_environment<thread_atomics>> vcpu1(fake_environment<thread_atomics>(host), in_host);
    guest.on_wrmsr = [&](uint32_t index, uint64_t value) {
        REQUIRE(vcpu1.write_msr(index, value) == msr_outcome::done);
    };
    pvx::guest::steal_time<fake_machine> const steal(machine, in_host);
    pvx::guest::tlb_flush<fake_machine> const flush(machine, {.host_bits = static_cast<uint8_t>(in_host ? P | H : P)});

    REQUIRE(steal.enable(cpu_index{1}) == status::ok);
    CHECK(vcpu1.msr() == (address(1) | 1 | (in_host ? 2 : 0)));
    vcpu1.load();
    vcpu1.enter();
    CHECK(steal.read(cpu_index{1}) == nanoseconds{0});
    CHECK_FALSE(steal.preempted(cpu_index{1}));
    CHECK_FALSE(flush.leave_to_host(cpu_index{1}));  // it runs

    vcpu1.put(preempted);
    CHECK(steal.preempted(cpu_index{1}));
    CHECK(flush.leave_to_host(cpu_index{1}));
    CHECK(steal.preempted(cpu_index{1}));
    host.run_delay = 250;
    vcpu1.load();
    vcpu1.enter();
    CHECK(host.count("flush") == 1);
    CHECK_FALSE(steal.preempted(cpu_index{1}));
    CHECK_FALSE(flush.leave_to_host(cpu_index{1}));
    CHECK(steal.read(cpu_index{1}) == nanoseconds{250});

    vcpu1.put(blocked);
    CHECK_FALSE(steal.preempted(cpu_index{1}));  // halted is not preempted
    CHECK(flush.leave_to_host(cpu_index{1}) == in_host);
    vcpu1.load();
    vcpu1.enter();
    CHECK(host.count("flush") == (in_host ? 2u : 1u));

    steal.disable();
    vcpu1.put(preempted);
    CHECK(pages[1].preempted == 0);
    CHECK(vcpu1.msr() == 0);
}
