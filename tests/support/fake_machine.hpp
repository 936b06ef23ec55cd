// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// A guest machine made of tables, strict: a CPUID leaf, an MSR or a hypercall that the test did not plan throws, and
/// everything that happens is recorded in order. The handle is one pointer, so that a test can hold several machines.

#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <pvx/guest/concepts.hpp>

#include "support/tsan_atomics.hpp"

namespace pvx_test {

struct unplanned : std::logic_error {
    using std::logic_error::logic_error;
};

inline std::string hex(uint64_t v) {
    static char const digits[] = "0123456789abcdef";
    std::string s;
    do s.insert(s.begin(), digits[v & 15]);
    while ((v >>= 4) != 0);
    return "0x" + s;
}

/// The state behind a fake machine.
struct fake_state {
    using leaf_key = std::pair<uint32_t, uint32_t>;

    std::map<leaf_key, pvx::abi::cpuid_regs> cpuid_table;
    unsigned cpuid_reads = 0;
    std::map<uint32_t, uint64_t> msrs;  // MSRs that exist
    std::function<void(uint32_t, uint64_t)> on_wrmsr = [](uint32_t, uint64_t) {};
    std::function<int64_t(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t)> on_hypercall;
    std::function<uint64_t()> on_tsc;
    std::function<void()> on_relax;
    std::vector<pvx::apic_id> apic_ids;
    pvx::cpu_index self{0};
    std::map<uint32_t, void*> records;  // by CPU; one record type a test
    uint64_t physical_offset = 0;       // guest-physical = pointer + this
    std::vector<std::string> log;
    std::vector<std::pair<uint32_t, uint32_t>> native;  // APIC id, command
};

/// The handle that components hold.
struct fake_machine : thread_atomics {
    fake_state* state;

    explicit fake_machine(fake_state& s) : state(&s) {}

    pvx::abi::cpuid_regs cpuid(uint32_t leaf, uint32_t subleaf) const {
        ++state->cpuid_reads;
        auto const found = state->cpuid_table.find({leaf, subleaf});
        if (found == state->cpuid_table.end()) throw unplanned("CPUID " + hex(leaf) + "." + hex(subleaf));
        return found->second;
    }
    uint64_t read_msr(uint32_t index) const {
        auto const found = state->msrs.find(index);
        if (found == state->msrs.end()) throw unplanned("RDMSR " + hex(index));
        return found->second;
    }
    void write_msr(uint32_t index, uint64_t value) const {
        if (state->msrs.find(index) == state->msrs.end()) throw unplanned("WRMSR " + hex(index));
        state->log.push_back("wrmsr " + hex(index) + " " + hex(value));
        state->msrs[index] = value;
        state->on_wrmsr(index, value);
    }
    int64_t hypercall(uint64_t number, uint64_t a0, uint64_t a1, uint64_t a2, uint64_t a3) const {
        if (!state->on_hypercall) throw unplanned("hypercall " + hex(number));
        return state->on_hypercall(number, a0, a1, a2, a3);
    }
    pvx::tsc_ticks tsc() const {
        if (!state->on_tsc) throw unplanned("TSC");
        return pvx::tsc_ticks{state->on_tsc()};
    }
    void relax() const {
        if (!state->on_relax) throw unplanned("relax");
        state->on_relax();
    }
    void fence_before_wrmsr() const { state->log.push_back("mfence lfence"); }
    void fence_stores() const { state->log.push_back("mfence"); }

    pvx::cpu_index self() const { return state->self; }
    uint32_t possible_cpus() const { return static_cast<uint32_t>(state->apic_ids.size()); }
    pvx::apic_id apic(pvx::cpu_index cpu) const { return state->apic_ids.at(cpu.value); }
    void native_ipi(pvx::apic_id id, pvx::abi::apic_command command) const {
        state->native.emplace_back(id.value, command.value);
    }
    template <class T>
    pvx::shared<T> record(pvx::cpu_index cpu) const {
        auto const found = state->records.find(cpu.value);
        if (found == state->records.end()) return {};
        return {static_cast<T*>(found->second),
                pvx::guest_phys{reinterpret_cast<uintptr_t>(found->second) + state->physical_offset}};
    }
};

/// The same with memory that is private until it is shared.
struct private_machine : fake_machine {
    pvx::status* answer;

    private_machine(fake_state& s, pvx::status& a) : fake_machine(s), answer(&a) {}

    template <class T>
    pvx::status share(pvx::shared<T> record) const {
        state->log.push_back("share " + hex(record.address.value));
        // Opening memory leaves garbage in it.
        for (size_t i = 0; i < sizeof(T); ++i) reinterpret_cast<unsigned char*>(record.pointer)[i] = 0xa5;
        return *answer;
    }
};

}  // namespace pvx_test
