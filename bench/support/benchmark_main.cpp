// SPDX-License-Identifier: MIT

/// \file
/// bench_guest: the same operations as bench_paired, under Google Benchmark. For a look and for its reports; whether
/// two ways differ is what bench_paired answers.

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "support/machine_state.hpp"
#include "support/operation.hpp"

using namespace pvx_bench;

int main(int argc, char** argv) {
    // First, so that the command line can say otherwise. Without it the drift of the machine is taken for a difference.
    std::string interleave = "--benchmark_enable_random_interleaving=true";
    std::vector<char*> arguments{argv[0], interleave.data()};
    arguments.insert(arguments.end(), argv + 1, argv + argc);
    int count = static_cast<int>(arguments.size());
    arguments.push_back(nullptr);
    benchmark::Initialize(&count, arguments.data());
    if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) return 64;

    for (pair const& p : pairs()) {
        if (p.a.prepare || p.b.prepare) continue;  // pausing the clock each time costs more than what is measured
        for (operation const* o : {&p.a, &p.b})
            benchmark::RegisterBenchmark((p.name + "/" + o->name).c_str(), [o](benchmark::State& state) {
                // In batches: Google Benchmark's own loop would be a part of what takes a nanosecond.
                constexpr benchmark::IterationCount batch = 256;
                while (state.KeepRunningBatch(batch)) o->run(batch);
            });
    }

    auto const machine = make_machine_probe();
    for (auto const& [name, value] : fingerprint()) benchmark::AddCustomContext(name, value);
    watch idle(*machine);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // as /proc/stat counts in 10 ms
    disturbance const before = idle.end();
    benchmark::AddCustomContext("line_ns", std::to_string(before.line_after_ns));
    benchmark::AddCustomContext("cpus_are", before.far() ? "far" : "near");
    benchmark::AddCustomContext("foreign_share", std::to_string(before.foreign_share));

    watch watched(*machine);
    benchmark::RunSpecifiedBenchmarks();
    disturbance const d = watched.end();
    std::fprintf(stderr,
                 "while it ran: others used %.0f %% of the machine, a cache line took %.0f ns before and %.0f after\n",
                 100 * d.foreign_share, d.line_before_ns, d.line_after_ns);
    benchmark::Shutdown();
}
