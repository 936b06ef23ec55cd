// SPDX-License-Identifier: MIT
#include <pvx/host/exit_stats.hpp>

#include <atomic>
#include <thread>
#include <vector>

#include "support/catch.hpp"
#include "support/fake_machine.hpp"
#include "support/recording_atomics.hpp"

using namespace pvx;
using namespace pvx::host;
using namespace pvx_test;
using kind = recorded::kind;

namespace {

constexpr uint32_t reasons = 4;

/// Clamps as it should, or as on a path that is only speculated.
struct counting_host : recording_atomics {
    bool* speculates;

    counting_host(recording& notes, bool& s) : recording_atomics(notes), speculates(&s) {}
    uint32_t clamp_index(uint32_t i, uint32_t n) const {
        if (n != reasons) throw unplanned("clamp_index");
        return *speculates || i >= n ? 0 : i;
    }
};

struct vcpu {
    recording notes;
    bool speculates = false;
    uint64_t counters[exit_stats_words(reasons) + 1] = {};
    exit_stats<counting_host> stats{counting_host(notes, speculates), counters, reasons};

    vcpu() { counters[exit_stats_words(reasons)] = 77; }
    vcpu(vcpu const&) = delete;
};

struct silent {};

struct observing {
    std::vector<exit_event>* seen;
    void event(exit_event exit) const { seen->push_back(exit); }
};

struct thread_host : thread_atomics {
    uint32_t clamp_index(uint32_t i, uint32_t n) const { return i < n ? i : 0; }
};

}  // namespace

TEST_CASE("Exits are counted by reason, and apart by path", "[host][exit_stats]") {
    vcpu v;
    CHECK(v.stats.reasons() == reasons);
    for (uint32_t reason = 0; reason < reasons; ++reason)
        for (uint32_t n = 0; n <= reason; ++n) {
            v.stats.count({reason, exit_path::fast});
            if (n != 0) v.stats.count({reason, exit_path::slow});
        }
    for (uint32_t reason = 0; reason < reasons; ++reason) {
        CHECK(v.stats.read(reason, exit_path::fast) == reason + 1);
        CHECK(v.stats.read(reason, exit_path::slow) == reason);
    }
    CHECK(v.stats.total(exit_path::fast) == 10);
    CHECK(v.stats.total(exit_path::slow) == 6);
}

TEST_CASE("Reasons that have no number count together, in memory that is theirs", "[host][exit_stats]") {
    vcpu v;
    for (uint32_t reason : {reasons, reasons + 1, 0x400u, 0x7fffffffu, 0x80000000u, 0xffffffffu})
        v.stats.count({reason, exit_path::slow});
    CHECK(v.stats.read(reasons, exit_path::slow) == 6);
    CHECK(v.stats.read(0xffffffff, exit_path::slow) == 6);
    CHECK(v.stats.total(exit_path::slow) == 6);
    CHECK(v.stats.total(exit_path::fast) == 0);
    for (uint32_t reason = 0; reason < reasons; ++reason) CHECK(v.stats.read(reason, exit_path::slow) == 0);
    CHECK(v.counters[exit_stats_words(reasons)] == 77);
}

TEST_CASE("A count is one relaxed load and one relaxed store", "[host][exit_stats]") {
    vcpu v;
    v.stats.count({2, exit_path::slow});
    REQUIRE(v.notes.steps.size() == 2);
    CHECK(v.notes.steps[0] == recorded{kind::load, &v.counters[5], 0, order::relaxed.builtin});
    CHECK(v.notes.steps[1] == recorded{kind::store, &v.counters[5], 1, order::relaxed.builtin});
}

TEST_CASE("On a path that is only speculated a reason is 0", "[host][exit_stats]") {
    vcpu v;
    v.speculates = true;
    v.stats.count({3, exit_path::fast});
    CHECK(v.counters[0] == 1);
}

TEST_CASE("An environment that observes exits is told, and another has nothing to say", "[host][exit_stats]") {
    std::vector<exit_event> seen;
    tell_exit(observing{&seen}, {3, exit_path::slow});
    REQUIRE(seen.size() == 1);
    CHECK(seen[0].reason == 3);
    CHECK(seen[0].path == exit_path::slow);
    tell_exit(silent{}, {3, exit_path::slow});
    static_assert(!observer_policy<silent, exit_event>);
}

TEST_CASE("Another thread sees counts that only rise, and all of them in the end", "[host][exit_stats]") {
    uint64_t counters[exit_stats_words(1)] = {};
    exit_stats<thread_host> const stats({}, counters, 1);
    std::atomic<bool> begun{false};
    bool fell = false;
    std::thread reader([&] {
        uint64_t last = 0;
        begun = true;
        while (last < 20000) {
            uint64_t const now = stats.read(0, exit_path::fast);
            fell = fell || now < last;
            last = now;
            std::this_thread::yield();
        }
    });
    while (!begun) std::this_thread::yield();
    for (uint32_t i = 0; i < 20000; ++i) stats.count({0, exit_path::fast});
    reader.join();
    CHECK(!fell);
    CHECK(stats.total(exit_path::fast) == 20000);
}
