// SPDX-License-Identifier: MIT

/// \file
/// What the guest components' hot paths cost in user space: reading steal time and the clock, building an IPI window,
/// walking a CPU mask, each beside the plain way of doing it. Run with --benchmark_enable_random_interleaving=true.

#include <benchmark/benchmark.h>

#include <vector>

#include <pvx/arch/x86_64.hpp>
#include <pvx/pvx.hpp>

namespace {

constexpr uint32_t cpus = 64;

pvx::abi::kvm_steal_time steal_pages[cpus];
pvx::abi::pvclock_vcpu_time_info clock_records[cpus];

/// A kernel's machine in a process: records and CPU numbers, but nothing privileged.
struct user_machine : pvx::arch::x86_64 {
    pvx::cpu_index self() const { return pvx::cpu_index{3}; }
    uint32_t possible_cpus() const { return cpus; }
    pvx::apic_id apic(pvx::cpu_index cpu) const { return pvx::apic_id{cpu.value * 2}; }
    template <class T>
    pvx::shared<T> record(pvx::cpu_index cpu) const {
        if constexpr (pvx::same_as<T, pvx::abi::kvm_steal_time>)
            return {&steal_pages[cpu.value], {}};
        else
            return {&clock_records[cpu.value], {}};
    }
};

void steal_time_read(benchmark::State& state) {
    pvx::guest::steal_time const steal(user_machine{});
    for (auto _ : state) benchmark::DoNotOptimize(steal.read(pvx::cpu_index{3}));
}
BENCHMARK(steal_time_read);

void steal_time_plain_load(benchmark::State& state) {
    for (auto _ : state) benchmark::DoNotOptimize(__atomic_load_n(&steal_pages[3].steal, __ATOMIC_RELAXED));
}
BENCHMARK(steal_time_plain_load);

void clock_now_stable(benchmark::State& state) {
    clock_records[3] = {};
    clock_records[3].tsc_to_system_mul = 1u << 31;
    clock_records[3].flags = pvx::abi::pvclock_tsc_stable;
    pvx::guest::kvm_clock<user_machine> clock(user_machine{}, {}, true);
    for (auto _ : state) benchmark::DoNotOptimize(clock.now());
}
BENCHMARK(clock_now_stable);

void clock_now_not_stable(benchmark::State& state) {
    clock_records[3] = {};
    clock_records[3].tsc_to_system_mul = 1u << 31;
    pvx::guest::kvm_clock<user_machine> clock(user_machine{}, {}, true);
    for (auto _ : state) benchmark::DoNotOptimize(clock.now());
}
BENCHMARK(clock_now_not_stable);

void tsc_ordered(benchmark::State& state) {
    for (auto _ : state) benchmark::DoNotOptimize(pvx::arch::rdtsc_ordered());
}
BENCHMARK(tsc_ordered);

void ipi_window_of_all(benchmark::State& state) {
    for (auto _ : state) {
        pvx::guest::ipi_window window;
        for (uint32_t id = 0; id < cpus; ++id) benchmark::DoNotOptimize(window.add(pvx::apic_id{id * 2}));
        benchmark::DoNotOptimize(window);
    }
    state.SetItemsProcessed(state.iterations() * cpus);
}
BENCHMARK(ipi_window_of_all);

void mask_for_each(benchmark::State& state) {
    std::vector<unsigned long> words(static_cast<size_t>(state.range(0)), 0x1111111111111111);
    pvx::const_cpu_mask_view const mask(words.data(), static_cast<uint32_t>(words.size() * 64));
    for (auto _ : state) {
        uint64_t sum = 0;
        mask.for_each([&](pvx::cpu_index cpu) { sum += cpu.value; });
        benchmark::DoNotOptimize(sum);
    }
    state.SetItemsProcessed(state.iterations() * state.range(0) * 16);
}
BENCHMARK(mask_for_each)->Arg(1)->Arg(64);

void mask_test_each(benchmark::State& state) {
    std::vector<unsigned long> words(static_cast<size_t>(state.range(0)), 0x1111111111111111);
    pvx::const_cpu_mask_view const mask(words.data(), static_cast<uint32_t>(words.size() * 64));
    for (auto _ : state) {
        uint64_t sum = 0;
        for (uint32_t cpu = 0; cpu < mask.bits; ++cpu)
            if (mask.test(pvx::cpu_index{cpu})) sum += cpu;
        benchmark::DoNotOptimize(sum);
    }
    state.SetItemsProcessed(state.iterations() * state.range(0) * 16);
}
BENCHMARK(mask_test_each)->Arg(1)->Arg(64);

}  // namespace

BENCHMARK_MAIN();
