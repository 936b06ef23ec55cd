// SPDX-License-Identifier: MIT
#include <pvx/guest/deferred_flush.hpp>

#include <functional>
#include <vector>

#include "support/catch.hpp"
#include "support/flush_machine.hpp"
#include "support/recording_atomics.hpp"

using namespace pvx;
using namespace pvx::guest;
using namespace pvx_test;
using kind = recorded::kind;

namespace {

constexpr uint8_t awake = deferral::awake, asleep = deferral::asleep, pending = deferral::pending,
                  draining = deferral::draining;
constexpr uint8_t owing = asleep | pending;
constexpr cpu_index waiter{1};

/// The machine of these tests: a local flush takes part in the order of things.
struct machine : with_deferral<flush_machine<recording_atomics>> {
    std::function<void()>* on_flush;

    machine(flush_state& s, recording_atomics a, std::function<void()>& f)
        : with_deferral<flush_machine<recording_atomics>>(s, a), on_flush(&f) {}
    void flush_all_local() const {
        with_deferral<flush_machine<recording_atomics>>::flush_all_local();
        if (*on_flush) (*on_flush)();
    }
};

struct two_cpus {
    recording notes;
    flush_state state{2};
    std::function<void()> on_flush;
    uint8_t& byte{state.deferrals[1]};
    deferred_flush<machine> flush{machine{state, recording_atomics{notes}, on_flush}};
};

}  // namespace

TEST_CASE("A wait that nobody wants flushed goes from awake to asleep, draining and awake, without a flush",
          "[guest][deferred_flush]") {
    two_cpus t;
    t.flush.enter(waiter);
    CHECK(t.byte == asleep);
    CHECK_FALSE(t.flush.leave(waiter));
    CHECK(t.notes.steps == std::vector<recorded>{{kind::load, &t.byte, awake, order::relaxed.builtin},
                                                 {kind::store, &t.byte, asleep, order::release.builtin},
                                                 {kind::load, &t.byte, asleep, order::relaxed.builtin},
                                                 {kind::rmw, &t.byte, draining, order::acquire.builtin},
                                                 {kind::store, &t.byte, awake, order::relaxed.builtin}});
    CHECK(t.state.local_flushes == 0);
}

TEST_CASE("A flush that was left is done between draining and awake", "[guest][deferred_flush]") {
    two_cpus t;
    uint8_t at_flush = 0xff;
    t.on_flush = [&] { at_flush = t.byte; };
    t.flush.enter(waiter);
    CHECK(t.flush.defer(waiter));
    CHECK(t.byte == owing);
    CHECK(t.flush.leave(waiter));
    CHECK(at_flush == draining);
    CHECK(t.byte == awake);
    CHECK(t.state.local_flushes == 1);
}

TEST_CASE("Where nothing is deferred, leaving is one load, and may be repeated", "[guest][deferred_flush]") {
    two_cpus t;
    for (int i = 0; i < 3; ++i) CHECK_FALSE(t.flush.leave(waiter));
    CHECK(t.notes.steps == std::vector<recorded>(3, recorded{kind::load, &t.byte, awake, order::relaxed.builtin}));
    t.flush.enter(waiter);
    CHECK(t.flush.defer(waiter));
    CHECK(t.flush.leave(waiter));
    CHECK_FALSE(t.flush.leave(waiter));
    CHECK(t.state.local_flushes == 1);
}

TEST_CASE("Whatever byte is found but plain asleep, leaving ends awake and flushed", "[guest][deferred_flush]") {
    for (unsigned before = 1; before < 256; ++before) {
        CAPTURE(before);
        two_cpus t;
        t.byte = static_cast<uint8_t>(before);
        CHECK(t.flush.leave(waiter) == (before != asleep));
        CHECK(t.byte == awake);
        CHECK(t.state.local_flushes == (before != asleep ? 1u : 0u));
    }
}

TEST_CASE("A flush is left only to a CPU that is asleep, by one compare-and-swap", "[guest][deferred_flush]") {
    for (uint8_t before : {awake, asleep, owing, draining}) {
        CAPTURE(unsigned{before});
        two_cpus t;
        t.byte = before;
        bool const out = before == asleep || before == owing;
        CHECK(t.flush.defer(waiter) == out);
        CHECK(t.byte == (out ? owing : before));
        CHECK(t.notes.count(kind::rmw) == (out ? 1 : 0));
        CHECK(t.notes.count(kind::lost_cas) + t.notes.count(kind::store) + t.notes.count(kind::fence) == 0);
        CHECK(t.state.deferrals[0] == awake);

        two_cpus fenced;
        fenced.byte = before;
        CHECK(fenced.flush.defer_fenced(waiter) == out);
        CHECK(fenced.byte == (out ? owing : before));
        CHECK(fenced.notes.count(kind::rmw) == (before == asleep ? 1 : 0));
        CHECK(fenced.notes.count(kind::load) == 1);
    }
}

TEST_CASE("The compare-and-swap orders the page-table stores before pending, and pending was reached from asleep",
          "[guest][deferred_flush]") {
    two_cpus t;
    t.byte = asleep;
    REQUIRE(t.flush.defer(waiter));
    CHECK(t.notes.steps == std::vector<recorded>{{kind::load, &t.byte, asleep, order::acquire.builtin},
                                                 {kind::rmw, &t.byte, owing, order::acq_rel.builtin}});
}

TEST_CASE("A waiter that leaves between a flusher's look and its compare-and-swap is interrupted",
          "[guest][deferred_flush]") {
    for (bool fenced : {false, true})
        for (uint8_t next : {draining, awake}) {
            two_cpus t;
            t.byte = asleep;
            t.notes.after = [&](recorded const& r) {
                if (r.what == kind::load) t.byte = next;
            };
            CHECK_FALSE((fenced ? t.flush.defer_fenced(waiter) : t.flush.defer(waiter)));
            CHECK(t.byte == next);
            CHECK(t.notes.count(kind::lost_cas) == 1);
        }
}

TEST_CASE("A second flusher that loses to the first is done only behind a fence", "[guest][deferred_flush]") {
    for (bool fenced : {false, true}) {
        two_cpus t;
        t.byte = asleep;
        t.notes.after = [&](recorded const& r) {
            if (r.what == kind::load) t.byte = owing;
        };
        CHECK((fenced ? t.flush.defer_fenced(waiter) : t.flush.defer(waiter)) == fenced);
        CHECK(t.byte == owing);
    }
}

TEST_CASE("An NMI at any step of a wait leaves nothing stale and loses no flush", "[guest][deferred_flush]") {
    // The hook runs after each operation on the byte, and in the middle of the flush. What was asked for before the NMI
    // is done when the hook returns; what is asked for before the end is done at the end.
    for (bool asked : {false, true})
        for (size_t at = 0; at < 6; ++at) {
            CAPTURE(asked, at);
            two_cpus t;
            uint32_t wanted = 0;  // page-table generation that the CPU must have reached
            uint32_t reached = 0;
            uint32_t tables = 0;
            t.on_flush = [&] { reached = tables; };
            size_t step = 0;
            bool nmi = false;
            auto const nmi_here = [&] {
                if (step++ != at) return;
                nmi = true;
                t.flush.leave(waiter);
                CHECK(reached >= wanted);
                CHECK(t.byte == awake);
            };
            t.flush.enter(waiter);
            if (asked) {
                ++tables;
                if (t.flush.defer(waiter)) wanted = tables;
            }
            t.notes.after = [&](recorded const&) { nmi_here(); };
            nmi_here();
            t.on_flush = [&, inside = false]() mutable {
                if (!inside) {
                    inside = true;
                    nmi_here();
                    inside = false;
                }
                reached = tables;
            };
            t.flush.leave(waiter);
            CHECK(reached >= wanted);
            CHECK(t.byte == awake);
            if (at < 4) CHECK(nmi);
            if (!asked && at > 3) CHECK(t.state.local_flushes == 0);
        }
}

TEST_CASE("A flusher at any step of leaving is served by that leave, or told to interrupt", "[guest][deferred_flush]") {
    for (bool fenced : {false, true})
        for (size_t at = 0; at < 4; ++at) {
            CAPTURE(fenced, at);
            two_cpus t;
            uint32_t tables = 0, reached = 0, wanted = 0;
            t.on_flush = [&] { reached = tables; };
            t.flush.enter(waiter);
            size_t step = 0;
            auto const flusher_here = [&] {
                if (step++ != at) return;
                ++tables;
                if (fenced ? t.flush.defer_fenced(waiter) : t.flush.defer(waiter)) wanted = tables;
            };
            t.notes.after = [&](recorded const&) { flusher_here(); };
            flusher_here();
            bool const flushed = t.flush.leave(waiter);
            CHECK(reached >= wanted);
            CHECK(flushed == (wanted != 0));
            CHECK(wanted == (at < 2 ? 1u : 0u));  // from draining on, the flusher interrupts
        }
}

TEST_CASE("Many flushers cost the waiter one flush", "[guest][deferred_flush]") {
    two_cpus t;
    t.flush.enter(waiter);
    for (int i = 0; i < 100; ++i) CHECK((i % 2 != 0 ? t.flush.defer_fenced(waiter) : t.flush.defer(waiter)));
    CHECK(t.flush.leave(waiter));
    CHECK(t.state.local_flushes == 1);
}

TEST_CASE("A CPU that waits again begins anew", "[guest][deferred_flush]") {
    two_cpus t;
    for (uint32_t round = 1; round <= 3; ++round) {
        t.flush.enter(waiter);
        CHECK(t.byte == asleep);
        CHECK(t.flush.defer(waiter));
        CHECK(t.flush.leave(waiter));
        CHECK(t.state.local_flushes == round);
        t.flush.enter(waiter);
        CHECK_FALSE(t.flush.leave(waiter));
        CHECK(t.state.local_flushes == round);
    }
}

TEST_CASE("The byte of another CPU is not touched", "[guest][deferred_flush]") {
    two_cpus t;
    t.state.deferrals[0] = asleep;
    t.flush.enter(waiter);
    (void)t.flush.defer(waiter);
    (void)t.flush.leave(waiter);
    CHECK(t.state.deferrals[0] == asleep);
    for (recorded const& r : t.notes.steps) CHECK(r.word == &t.byte);
}

TEST_CASE("Beginning to wait once more keeps a flush that is pending", "[guest][deferred_flush]") {
    two_cpus t;
    t.flush.enter(waiter);
    CHECK(t.flush.defer(waiter));
    t.flush.enter(waiter);
    CHECK(t.byte == owing);
    CHECK(t.flush.leave(waiter));
    CHECK(t.state.local_flushes == 1);
}

TEST_CASE("Beginning to wait changes no byte but that of a CPU that is awake", "[guest][deferred_flush]") {
    for (uint8_t before : {asleep, owing, draining}) {
        CAPTURE(unsigned{before});
        two_cpus t;
        t.byte = before;
        t.flush.enter(waiter);
        CHECK(t.byte == before);
        CHECK(t.notes.count(kind::store) + t.notes.count(kind::rmw) == 0);
    }
}
