// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// A machine whose clock, neighbours and CPUs are what the test says. Nothing of it depends on the real time.

#include <functional>
#include <random>

#include "support/machine_state.hpp"
#include "support/operation.hpp"

namespace pvx_bench_test {

struct fake_probe final : pvx_bench::probe {
    uint64_t ns = 1000;
    uint64_t foreign_ns = 0;  // what others have used, and
    double foreign = 0;       // how many CPUs they use from now on
    uint64_t switched = 0;
    std::vector<double> lines{33};  // what line_ns() gives, one after the other; the last one again and again
    size_t line_looks = 0;

    void pass(double time_ns) {
        ns += static_cast<uint64_t>(time_ns);
        foreign_ns += static_cast<uint64_t>(time_ns * foreign);
    }

    uint64_t now_ns() override { return ns; }
    uint32_t cpus() override { return 2; }
    uint64_t machine_cpu_ns() override { return ns + foreign_ns; }  // this process uses one CPU all the time
    uint64_t own_cpu_ns() override { return ns; }
    uint64_t switches() override { return switched; }
    double line_ns() override { return lines[std::min(line_looks++, lines.size() - 1)]; }
};

/// An operation that takes `cost_ns` on the fake machine; `trouble()` is called once a slice and gives a factor.
inline pvx_bench::operation takes(fake_probe& machine, double cost_ns, std::function<double()> trouble = {}) {
    return {"", [&machine, cost_ns, trouble](uint64_t times) {
                machine.pass(cost_ns * static_cast<double>(times) * (trouble ? trouble() : 1));
            }};
}

/// A busy machine: slices scatter, it drifts by half over a second, now and then the hypervisor takes the CPU for 2 ms,
/// which nobody counts, or a neighbour for 3 ms, which is counted.
struct rough_machine {
    fake_probe& machine;
    std::mt19937_64 random{7};

    double operator()() {
        double const scatter = 0.98 + 0.04 * static_cast<double>(random() % 1000) / 1000;
        double const second = static_cast<double>(machine.ns % 1000000000) / 1e9;
        double const drift = 1 + (second < 0.5 ? second : 1 - second);
        if (random() % 50 == 0) machine.pass(2e6);
        if (random() % 30 == 0) {
            machine.pass(3e6);
            ++machine.switched;
        }
        return scatter * drift;
    }
};

}  // namespace pvx_bench_test
