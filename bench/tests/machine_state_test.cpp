// SPDX-License-Identifier: MIT
#include "support/machine_state.hpp"

#include <sched.h>

#include <cstring>

#include "fake_probe.hpp"
#include "support/catch.hpp"
#include "support/least_disturbed.hpp"

using namespace pvx_bench;
using namespace pvx_bench_test;

namespace {

struct slice {
    int name;
    disturbance disturbed;
};

std::vector<int> names(std::vector<slice> const& slices) {
    std::vector<int> all;
    for (slice const& s : slices) all.push_back(s.name);
    return all;
}

}  // namespace

TEST_CASE("the foreign share is what others used of all CPUs", "[bench][machine]") {
    fake_probe machine;
    machine.foreign = 0.5;
    watch watched(machine);
    machine.pass(1e6);
    disturbance const d = watched.end();
    CHECK(d.foreign_share > 0.2499);
    CHECK(d.foreign_share < 0.2501);
}

TEST_CASE("the foreign share is not below 0 nor above 1, however coarse the counters are", "[bench][machine]") {
    fake_probe machine;
    machine.foreign = GENERATE(-0.7, 9.0);
    double const wanted = machine.foreign < 0 ? 0 : 1;
    watch watched(machine);
    machine.pass(1e6);
    CHECK(watched.end().foreign_share == wanted);
}

TEST_CASE("the distance of the CPUs is compared before and after", "[bench][machine]") {
    CHECK(disturbance{33, 36, 0}.same_distance());
    CHECK(disturbance{0, 0, 0}.same_distance());  // one CPU
    CHECK_FALSE(disturbance{33, 200, 0}.same_distance());
    CHECK_FALSE(disturbance{200, 33, 0}.same_distance());
    CHECK_FALSE(disturbance{24, 56, 0}.same_distance());
    CHECK_FALSE(disturbance{-1, 33, 0}.same_distance());
    CHECK_FALSE(disturbance{33, -1, 0}.same_distance());
    CHECK(disturbance{200, 200, 0}.far());
    CHECK_FALSE(disturbance{33, 33, 0}.far());
}

TEST_CASE("good slices go first, then those with the smallest foreign share, in the order of measurement",
          "[bench][machine]") {
    std::vector<slice> const slices{
        {0, {33, 33, 0.9}}, {1, {33, 33, 0.01}}, {2, {33, 200, 0}}, {3, {33, 33, 0.3}}, {4, {33, 33, 0.05}}};
    CHECK(names(least_disturbed(slices, 2, 0.1)) == std::vector<int>{1, 4});
    CHECK(names(least_disturbed(slices, 3, 0.1)) == std::vector<int>{1, 3, 4});
    CHECK(names(least_disturbed(slices, 4, 0.1)) == std::vector<int>{0, 1, 3, 4});
    CHECK(names(least_disturbed(slices, 9, 0.1)) == std::vector<int>{0, 1, 2, 3, 4});
    CHECK_FALSE(conditions_of(least_disturbed(slices, 2, 0.1), 0.1).contaminated);
    CHECK(conditions_of(least_disturbed(slices, 3, 0.1), 0.1).contaminated);
}

TEST_CASE("the fingerprint has a value for each name", "[bench][machine]") {
    auto const f = fingerprint();
    for (char const* name : {"cpu", "cpus", "governor", "hypervisor", "kernel", "compiler", "flags"}) {
        INFO(name);
        REQUIRE(f.contains(name));
        CHECK_FALSE(f.at(name).empty());
    }
}

TEST_CASE("the machine's own probe answers, and leaves the thread where it was allowed to be", "[bench][machine]") {
    auto const machine = make_machine_probe();
    cpu_set_t before, after;
    // All CPUs, whatever the tests before have left.
    std::memset(&before, 0xff, sizeof before);
    sched_setaffinity(0, sizeof before, &before);
    sched_getaffinity(0, sizeof before, &before);
    uint64_t const start = machine->now_ns(), own = machine->own_cpu_ns();
    uint64_t const everybody = machine->machine_cpu_ns(), switches = machine->switches();
    CHECK(machine->cpus() >= 1);
    for (int i = 0; i < 20; ++i) {
        double const line = machine->line_ns();
        CHECK(line < 100000);
        if (CPU_COUNT(&before) == 1) CHECK(line == 0);
        if (CPU_COUNT(&before) > 1) CHECK(line != 0);  // negative is fair: the other CPU may be taken
    }
    sched_getaffinity(0, sizeof after, &after);
    CHECK(CPU_EQUAL(&before, &after));

    while (machine->own_cpu_ns() - own < 30000000) {
    }
    CHECK(machine->now_ns() - start >= 30000000 / machine->cpus());
    CHECK(machine->machine_cpu_ns() - everybody >= 10000000);
    sched_yield();
    CHECK(machine->switches() >= switches);
}

TEST_CASE("a thread that may use one CPU only has no distance", "[bench][machine]") {
    auto const machine = make_machine_probe();
    cpu_set_t before, one;
    sched_getaffinity(0, sizeof before, &before);
    CPU_ZERO(&one);
    CPU_SET(static_cast<size_t>(sched_getcpu()), &one);
    sched_setaffinity(0, sizeof one, &one);
    CHECK(machine->line_ns() == 0);
    sched_setaffinity(0, sizeof before, &before);
}
