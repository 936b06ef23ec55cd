// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// A kernel's machine in a process: records and CPU numbers, and the hypercall and the IPI do nothing.

#include <pvx/arch/x86_64.hpp>
#include <pvx/guest/concepts.hpp>

namespace pvx_bench {

struct user_machine : pvx::arch::x86_64 {
    static constexpr uint32_t cpus = 64;

    template <class T>
    static inline T records[cpus] = {};

    pvx::cpu_index self() const { return pvx::cpu_index{3}; }
    uint32_t possible_cpus() const { return cpus; }
    pvx::apic_id apic(pvx::cpu_index cpu) const { return pvx::apic_id{cpu.value * 2}; }
    template <class T>
    pvx::shared<T> record(pvx::cpu_index cpu) const {
        return {&records<T>[cpu.value], {}};
    }

    [[gnu::noinline]] int64_t hypercall(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t) const {
        __asm__ volatile("");
        return 0;
    }
    [[gnu::noinline]] void native_ipi(pvx::apic_id, pvx::abi::apic_command) const { __asm__ volatile(""); }
};

}  // namespace pvx_bench
