// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// What each CPU owns: its stacks and its record, which GS points to.

#include "attempt.hpp"
#include "cpu_ops.hpp"
#include "job.hpp"
#include "shootdown.hpp"
#include "timer.hpp"

namespace os {

inline constexpr uint32_t max_cpus = 64;
inline constexpr size_t page_size = 4096;

/// The stacks of one CPU. Each lies above a page that paging.cpp unmaps, so that an overflow faults instead of writing
/// into the neighbour; NMI, #DF and #MC have stacks of their own (IST), so that this fault is still reported.
struct alignas(page_size) cpu_stacks {
    uint8_t guard_main[page_size];
    uint8_t main[4 * page_size];
    uint8_t guard_nmi[page_size];
    uint8_t nmi[page_size];
    uint8_t guard_double_fault[page_size];
    uint8_t double_fault[page_size];
    uint8_t guard_machine_check[page_size];
    uint8_t machine_check[page_size];

    uint64_t top() const { return reinterpret_cast<uint64_t>(main + sizeof(main)); }
    bool contains(uint64_t address, size_t size) const {
        uint64_t const begin = reinterpret_cast<uint64_t>(this);
        return address >= begin && address + size <= begin + sizeof(*this);
    }
    bool in_guard(uint64_t address) const {
        uint8_t const* const guards[] = {guard_main, guard_nmi, guard_double_fault, guard_machine_check};
        for (uint8_t const* guard : guards)
            if (address - reinterpret_cast<uint64_t>(guard) < page_size) return true;
        return false;
    }
};
static_assert(offsetof(cpu_stacks, guard_nmi) == 0x5000, "boot_stack_end in boot/entry.S");

/// One CPU. Written by the CPU itself, except where a member says otherwise.
struct alignas(64) per_cpu {
    per_cpu* self;            // gs:0
    uint32_t index;           // gs:8
    uint32_t apic_id;         // gs:12
    attempt_record* attempt;  // gs:16, boot/traps.S
    cpu_stacks* stacks;
    uint32_t online;  // shared: set by the CPU, read by the one that starts it
    bool in_nmi;
    uint8_t deferral;  // shared: guest/deferred_flush.hpp
    cpu_timers timers;
    job_slot job;              // shared, see job.cpp
    shootdown_slot shootdown;  // shared, see shootdown.cpp
};

/// The record of a CPU.
per_cpu& cpu_record(uint32_t index);

/// The record of this CPU. \pre GS is loaded, as in everything but the first instructions and fault entries.
inline per_cpu& this_cpu() { return *reinterpret_cast<per_cpu*>(gs_self()); }

/// The same without the precondition, for fault entries: null if GS points to no record.
per_cpu* this_cpu_or_null();

/// Number of CPUs that run.
uint32_t cpu_count();
/// Dense number of this CPU: 0 .. cpu_count() - 1; 0 is the one that booted.
inline uint32_t cpu_self() { return gs_index(); }
/// APIC id of a CPU: sparse, up to 32 bits.
uint32_t cpu_apic_id(uint32_t index);

}  // namespace os

/// The stacks of the CPU that boots: static, since boot/entry.S needs them before there is an allocator.
extern "C" os::cpu_stacks boot_stacks;
