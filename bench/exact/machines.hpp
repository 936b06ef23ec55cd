// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The two machines that every case is built for. `plain` is what a kernel has: compiler atomics and the privileged
/// instructions themselves, which the stepper carries out (see step.cpp). `counting` counts what the policies are asked
/// for. Both ask the same planned host, so that one case takes one path, on any hardware.

#include <pvx/arch/x86_64.hpp>
#include <pvx/pvx.hpp>

namespace exact {

using namespace pvx;

inline constexpr uint32_t max_cpus = 256;

/// The guest's memory and what its host answers. Each case starts with it as it is here, and may change it.
inline constinit uint32_t this_cpu = 3;
inline constinit uint32_t apic_ids[max_cpus] = {};
inline constinit abi::kvm_steal_time steal_pages[max_cpus] = {};
inline constinit abi::pvclock_vcpu_time_info clock_records[max_cpus] = {};
inline constinit uint8_t deferrals[max_cpus] = {};

struct planned_host {
    uint64_t tsc = 1000000;
    uint64_t msr = 0;
    int64_t hypercall = 0;
};
inline constinit planned_host host;

/// An AMD CPU with x2APIC under KVM that offers everything. Leaves that are not here are zeros.
constexpr abi::cpuid_regs planned_cpuid(uint32_t leaf, uint32_t) {
    constexpr abi::cpuid_name amd = abi::make_cpuid_name("AuthenticAMD");
    switch (leaf) {
        case 0: return {0x10, amd.words[0], amd.words[2], amd.words[1]};
        case 1: return {0, 0, 1u << 31 | 1u << 24 | 1u << 21, 1u << 9};
        case 0x40000000:
            return {0x40000001, abi::kvm_signature.words[0], abi::kvm_signature.words[1], abi::kvm_signature.words[2]};
        case 0x40000001: return {0x0100ffff, 0, 0, 0};
        case 0x80000000: return {0x80000008, 0, 0, 0};
        case 0x80000007: return {0, 0, 0, 1u << 8};
        default: return {};
    }
}

/// What the counting machine counts, and its names in the results.
enum event : uint32_t {
    shared_load,
    shared_store,
    shared_rmw,
    shared_fence,
    hypercall_made,
    kicked,
    ipi_sent,
    msr_read,
    msr_written,
    cpuid_read,
    relaxed,
    halted,
    flushed,
    event_kinds
};
inline constexpr const char* event_names[event_kinds] = {
    "shared loads", "shared stores", "shared rmw", "fences asked", "hypercalls", "kicks",        "ipis",
    "msr reads",    "msr writes",    "cpuids",     "relaxes",      "halts",      "local flushes"};

/// Memory that the counting child shares with its parent.
inline constinit uint64_t* events = nullptr;
PVX_ALWAYS_INLINE void note(event e) { ++events[e]; }

template <word T>
class counting_ref {
public:
    explicit counting_ref(T& object) : to_(object) {}

    T load(load_order auto o) const { return note(shared_load), to_.load(o); }
    void store(T v, store_order auto o) const { note(shared_store), to_.store(v, o); }
    T exchange(T v, rmw_order auto o) const { return note(shared_rmw), to_.exchange(v, o); }
    T fetch_or(T v, rmw_order auto o) const { return note(shared_rmw), to_.fetch_or(v, o); }
    T fetch_and(T v, rmw_order auto o) const { return note(shared_rmw), to_.fetch_and(v, o); }
    T fetch_add(T v, rmw_order auto o) const { return note(shared_rmw), to_.fetch_add(v, o); }
    bool compare_exchange(T& expected, T desired, rmw_order auto success, load_order auto failure) const {
        return note(shared_rmw), to_.compare_exchange(expected, desired, success, failure);
    }

private:
    builtin_atomic_ref<T> to_;
};

/// What every kernel brings: its CPUs and their records.
struct kernel_roles {
    cpu_index self() const { return cpu_index{this_cpu}; }
    uint32_t possible_cpus() const { return max_cpus; }
    apic_id apic(cpu_index cpu) const { return apic_id{apic_ids[cpu.value]}; }
    template <class T>
    shared<T> record(cpu_index cpu) const {
        if constexpr (same_as<T, abi::kvm_steal_time>) return at(steal_pages[cpu.value]);
        if constexpr (same_as<T, abi::pvclock_vcpu_time_info>) return at(clock_records[cpu.value]);
    }
    uint8_t& deferral(cpu_index cpu) const { return deferrals[cpu.value]; }
    bool can_kick() const { return true; }

private:
    template <class T>
    static shared<T> at(T& record) {
        return {&record, guest_phys{reinterpret_cast<uintptr_t>(&record)}};
    }
};

struct plain : arch::x86_64, kernel_roles, guest::kvm_wait<plain> {
    int64_t hypercall(uint64_t number, uint64_t a0, uint64_t a1, uint64_t a2, uint64_t a3) const {
        return arch::vmmcall(number, a0, a1, a2, a3);
    }
    void native_ipi(apic_id id, abi::apic_command command) const {
        write_msr(abi::apic_msr(abi::apic_reg::icr_low), abi::x2apic_icr(id, command));
    }
    // What it costs is the kernel's own: here only that it is reached.
    void flush_all_local() const { __asm__ volatile("" ::: "memory"); }
};

struct counting : kernel_roles, guest::kvm_wait<counting> {
    template <word T>
    using cell = T;
    template <word T>
    counting_ref<T> ref(T& object) const {
        return counting_ref<T>{object};
    }
    void fence(fence_order auto) const { note(shared_fence); }
    void store_low_byte(uint32_t& object, uint8_t value, store_order auto o) const {
        note(shared_store);
        arch::x86_64{}.store_low_byte(object, value, o);
    }

    abi::cpuid_regs cpuid(uint32_t leaf, uint32_t subleaf) const {
        return note(cpuid_read), planned_cpuid(leaf, subleaf);
    }
    uint64_t read_msr(uint32_t) const { return note(msr_read), host.msr; }
    void write_msr(uint32_t, uint64_t) const { note(msr_written); }
    int64_t hypercall(uint64_t number, uint64_t, uint64_t, uint64_t, uint64_t) const {
        if (number == abi::kvm_hypercall::kick_cpu) note(kicked);
        return note(hypercall_made), host.hypercall;
    }
    tsc_ticks tsc() const { return tsc_ticks{host.tsc}; }
    uint32_t clamp_index(uint32_t i, uint32_t n) const { return i < n ? i : 0; }
    void relax() const { note(relaxed); }
    using irq_state = bool;
    irq_state irq_save() const { return true; }
    void irq_restore(irq_state) const {}
    bool irqs_on(irq_state state) const { return state; }
    void halt_irqs_off() const { note(halted); }
    void enable_and_halt(irq_state) const { note(halted); }
    void fence_before_wrmsr() const {}
    void fence_stores() const {}
    void native_ipi(apic_id, abi::apic_command) const { note(ipi_sent); }
    void flush_all_local() const { note(flushed); }
};

}  // namespace exact
