// SPDX-License-Identifier: MIT
#include "support/lock_harness.hpp"

#include <atomic>
#include <mutex>
#include <thread>

#include "fake_probe.hpp"
#include "support/catch.hpp"
#include "support/compared_locks.hpp"

using namespace pvx_bench;
using namespace pvx_bench_test;

namespace {

/// Lets everybody in, and holds the first until there is a second: they meet also where a busy machine runs the threads
/// one after the other.
class no_lock {
public:
    void lock() {
        ++inside_;
        for (int i = 0; i < 1000 && inside_ < 2; ++i) std::this_thread::yield();
    }
    void unlock() { --inside_; }

private:
    std::atomic<int> inside_{0};
};

/// Thread 1 gets nothing while the round runs.
struct unfair_lock {
    std::mutex mutex;
    void lock(uint32_t thread) {
        while (thread == 1 && round_stage.load() == stage::run) sched_yield();
        mutex.lock();
    }
    void unlock(uint32_t) { mutex.unlock(); }
};

/// Wants to know how many threads there are, and who each of them is.
struct joining_lock {
    static inline std::atomic<uint32_t> made_for{0}, joined{0}, strangers{0};
    static inline thread_local bool known = false;

    std::mutex mutex;
    explicit joining_lock(uint32_t threads) { made_for = threads; }
    void join(uint32_t thread) {
        joined |= 1u << thread;
        known = true;
    }
    void lock() {
        if (!known) ++strangers;
        mutex.lock();
    }
    void unlock() { mutex.unlock(); }
};

/// Counts two halts and one kick for each time it is taken.
struct counting_lock {
    std::mutex mutex;
    std::atomic<uint64_t> taken{0};
    void lock() {
        mutex.lock();
        ++taken;
    }
    void unlock() { mutex.unlock(); }
    uint64_t halts() const { return 2 * taken; }
    uint64_t kicks() const { return taken; }
};

lock_options brief(uint32_t threads) {
    lock_options o;
    o.threads = threads;
    o.rounds = 1;
    o.round_ms = 20;
    o.patience = 1;
    return o;
}

lock_round one_round(named_lock const& lock, lock_options const& options) {
    auto const machine = make_machine_probe();
    return run_round(*machine, lock.make(options.threads), busy_work(*machine), options);
}

}  // namespace

TEST_CASE("two that are inside at once are seen by one of them", "[bench][locks]") {
    guarded data;
    CHECK(data.enter(0));
    CHECK(data.leave(0));
    CHECK(data.enter(0));
    CHECK_FALSE(data.enter(1));
    CHECK_FALSE(data.leave(0));
}

TEST_CASE("a lock that does not exclude is found out", "[bench][locks]") {
    lock_options options = brief(4);
    options.inside_ns = 50000;
    uint64_t errors = 0;
    for (int round = 0; round < 50 && errors == 0; ++round)
        errors = one_round(lock_named<no_lock>("none"), options).exclusion_errors;
    CHECK(errors != 0);
}

TEST_CASE("each lock that is compared excludes, also with more threads than CPUs", "[bench][locks]") {
    for (named_lock const& lock : compared_locks()) {
        INFO(lock.name);
        lock_round const r = one_round(lock, brief(6));
        CHECK(r.exclusion_errors == 0);
        CHECK(r.mops > 0);
        CHECK(r.cpu_ns_per_op > 0);
        CHECK(r.jain > 0);
        CHECK(r.jain <= 1);
        bool const counts = lock.name.starts_with("pvx");
        CHECK(r.halts_per_op.has_value() == counts);
        CHECK(r.kicks_per_op.has_value() == counts);
        if (lock.name == "pvx, native") CHECK(r.halts_per_op.value() == 0);
    }
}

TEST_CASE("waiters of pvx's lock that hardly spin halt and are kicked", "[bench][locks]") {
    lock_options options = brief(6);
    options.inside_ns = 50000;
    double halts = 0, kicks = 0;
    for (int round = 0; round < 50 && (halts == 0 || kicks == 0); ++round) {
        lock_round const r = one_round(tuned_lock({.spins = 1, .steals = 0, .head_polls = 1}), options);
        CHECK(r.exclusion_errors == 0);
        halts += r.halts_per_op.value();
        kicks += r.kicks_per_op.value();
    }
    CHECK(halts > 0);
    CHECK(kicks > 0);
}

TEST_CASE("a lock learns how many threads there are, and each thread joins before it locks", "[bench][locks]") {
    auto const machine = make_machine_probe();
    compare_locks(*machine, {lock_named<joining_lock>("joining")}, brief(3));
    CHECK(joining_lock::made_for.load() == 3u);
    CHECK(joining_lock::joined.load() == 7u);
    CHECK(joining_lock::strangers.load() == 0u);
}

TEST_CASE("a thread that starves counts as unfair and as a gap of the whole round", "[bench][locks]") {
    lock_round const r = one_round(lock_named<unfair_lock>("unfair"), brief(2));
    CHECK(r.jain == 0.5);
    CHECK(r.longest_gap_us > 19000);
}

TEST_CASE("halts and kicks are counted for each operation", "[bench][locks]") {
    lock_round const r = one_round(lock_named<counting_lock>("counting"), brief(1));
    REQUIRE(r.halts_per_op);
    REQUIRE(r.kicks_per_op);
    // The last operation may fall on either side of the end.
    CHECK(*r.halts_per_op > 1.9);
    CHECK(*r.halts_per_op < 2.1);
    CHECK(*r.kicks_per_op > 0.95);
    CHECK(*r.kicks_per_op < 1.05);
}

TEST_CASE("work takes the time that it was calibrated to", "[bench][locks]") {
    fake_probe machine;
    auto const real = make_machine_probe();
    uint64_t const steps = busy_work(*real).steps(100000);
    double best = 1e9;
    for (int i = 0; i < 50; ++i) {
        uint64_t const start = real->now_ns();
        busy_work::run(steps, 1);
        best = std::min(best, static_cast<double>(real->now_ns() - start));
    }
    CHECK(best > 50000);
    CHECK(best < 200000);
}

TEST_CASE("bad rounds are measured again up to a limit; then the result says so", "[bench][locks]") {
    fake_probe machine;
    std::vector<named_lock> const locks{lock_named<std::mutex>("first"), lock_named<std::mutex>("second")};
    lock_options options = brief(1);
    options.rounds = 3;
    options.round_ms = 1;
    options.patience = 2;
    std::vector<std::string> order;
    auto const note = [&](std::string const& name) {
        machine.pass(1000);  // so that no time is 0
        order.push_back(name);
    };
    SECTION("a good machine") {
        auto const results = compare_locks(machine, locks, options, note);
        CHECK(order == std::vector<std::string>{"first", "second", "second", "first", "first", "second"});
        for (lock_result const& r : results) {
            CHECK_FALSE(r.contaminated);
            CHECK(r.rejected == 0);
            CHECK(r.middle.exclusion_errors == 0);
            CHECK(r.aa_error >= least_lock_error);
        }
    }
    SECTION("the CPUs move in the first round") {
        machine.lines = {33, 200, 200};
        auto const results = compare_locks(machine, locks, options, note);
        CHECK(order.size() == 7);
        CHECK(results[0].rejected == 1);
        CHECK(results[1].rejected == 0);
        CHECK_FALSE(results[0].contaminated);
        CHECK(results[0].far_share > 0.99);
    }
    SECTION("the CPUs are never seen") {
        machine.lines = {-1};
        auto const results = compare_locks(machine, locks, options, note);
        CHECK(order.size() == 12);
        for (lock_result const& r : results) {
            CHECK(r.contaminated);
            CHECK(r.rejected == 3);
        }
    }
}
