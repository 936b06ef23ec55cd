// SPDX-License-Identifier: MIT
// The first example of README.md, between the two marks; the build checks that it stands there word for word.
#include <stdint.h>

inline constexpr uint32_t max_cpus = 64;
static uint64_t virt_to_phys(void const* p) { return reinterpret_cast<uintptr_t>(p); }
[[noreturn]] static void panic(char const*) { __builtin_trap(); }

// [readme]
#include <pvx/arch/x86_64.hpp>
#include <pvx/guest.hpp>

struct machine : pvx::arch::x86_64 {  // CPUID, MSRs, TSC, atomics, fences: ready-made
    template <class T>
    pvx::shared<T> record(pvx::cpu_index cpu) const {  // yours: memory that the host writes, one record per CPU
        static constinit T records[max_cpus] = {};
        return {&records[cpu.value], pvx::guest_phys{virt_to_phys(&records[cpu.value])}};
    }
};

constexpr pvx::guest::steal_time steal{machine{}};  // empty: a component costs nothing until it is used

void start_cpu(uint32_t cpu) {  // on each CPU as it comes up
    auto const features = pvx::guest::detect_features(machine{});
    auto const use = pvx::guest::configure(features, max_cpus);
    if (!use.steal_time) return;  // use.steal_time.why says why
    if (steal.enable(pvx::cpu_index{cpu}) != pvx::status::ok) panic("steal time");
}

uint64_t stolen_ns(uint32_t cpu) { return steal.read(pvx::cpu_index{cpu}).value; }
// [readme]
