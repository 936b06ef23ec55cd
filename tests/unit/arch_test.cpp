// SPDX-License-Identifier: MIT
#include <pvx/arch/x86_64.hpp>

#include "support/catch.hpp"

/// arch_intel_dialect.cpp: the same functions, compiled with -masm=intel.
uint32_t clamp_index_in_intel_dialect(uint32_t i, uint32_t n);
uint64_t read_rflags_in_intel_dialect();

using namespace pvx::arch;
using pvx::abi::cpu_vendor;

TEST_CASE("An index inside its range is itself, and one outside is 0, in both assembler dialects", "[arch][x86_64]") {
    for (uint32_t n : {0u, 1u, 4u, 0x80000000u, 0xffffffffu})
        for (uint32_t i : {0u, 1u, 3u, 4u, 5u, 0x7fffffffu, 0x80000000u, 0xfffffffeu, 0xffffffffu}) {
            CAPTURE(i, n);
            CHECK(clamp_index(i, n) == (i < n ? i : 0));
            CHECK(clamp_index_in_intel_dialect(i, n) == (i < n ? i : 0));
        }
}

TEST_CASE("A process runs with interrupts on, in both assembler dialects", "[arch][x86_64]") {
    x86_64 const machine;
    CHECK(machine.irqs_on(read_rflags()));
    CHECK(machine.irqs_on(read_rflags_in_intel_dialect()));
    CHECK_FALSE(machine.irqs_on(0));
}

TEST_CASE("The time stamp counter moves on", "[arch][x86_64]") {
    x86_64 const machine;
    uint64_t const before = machine.tsc().value;
    for (int i = 0; i < 1000; ++i) machine.relax();
    CHECK(machine.tsc().value > before);
    CHECK(rdtsc() > before);
}

TEST_CASE("CPUID takes leaf and sub-leaf", "[arch][x86_64]") {
    x86_64 const machine;
    uint32_t const last = machine.cpuid(0, 0).eax;
    REQUIRE(last >= 1);
    // Sub-leaf 1 of the topology leaf says so itself.
    if (last >= 0xb) CHECK((machine.cpuid(0xb, 1).ecx & 0xff) == 1);
}

TEST_CASE("AMD and Hygon call by VMMCALL, all others by VMCALL", "[arch][hypercall]") {
    CHECK(hypercall_instruction_of(cpu_vendor::amd) == hypercall_instruction::vmmcall);
    CHECK(hypercall_instruction_of(cpu_vendor::hygon) == hypercall_instruction::vmmcall);
    CHECK(hypercall_instruction_of(cpu_vendor::intel) == hypercall_instruction::vmcall);
    CHECK(hypercall_instruction_of(cpu_vendor::unknown) == hypercall_instruction::vmcall);
}

TEST_CASE("The machine base meets every hardware concept and takes no room", "[arch][x86_64]") {
    STATIC_REQUIRE(pvx::atomics_policy<x86_64> && pvx::cpuid_policy<x86_64> && pvx::msr_policy<x86_64>);
    STATIC_REQUIRE(pvx::tsc_policy<x86_64> && pvx::index_policy<x86_64> && pvx::irq_policy<x86_64>);
    STATIC_REQUIRE(pvx::halt_policy<x86_64> && pvx::wrmsr_fence_policy<x86_64>);
    STATIC_REQUIRE(__is_empty(x86_64));
}
