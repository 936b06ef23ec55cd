// SPDX-License-Identifier: MIT
#include "case.hpp"

namespace {

using exact::counting, exact::plain, exact::limit;
using namespace pvx::host;

constexpr uint32_t ids = 256;

/// vCPUs whose APIC ids are their indices. What a role costs is the VMM's own: here only that it is reached.
template <class Machine>
struct environment : Machine {
    struct look_up {
        explicit operator bool() const { return true; }
        uint32_t limit() const { return ids; }
        pvx::cpu_index vcpu(pvx::apic_id id) const { return pvx::cpu_index{exact::apic_ids[id.value]}; }
    };
    look_up apic_map() const { return {}; }
    uint32_t pv_features() const { return ~0u; }
    void kick(pvx::cpu_index vcpu) const { reach(vcpu, exact::kicked); }
    void yield_to(pvx::cpu_index vcpu) const { reach(vcpu, exact::relaxed); }
    bool deliver(pvx::cpu_index vcpu, apic_ipi) const { return reach(vcpu, exact::ipi_sent), true; }
    void set_halt_polling(bool) const {}

    struct guard {};
    guard read_guard() const { return {}; }
    template <class T>
    T* map(pvx::guest_phys) const {
        static T object{};
        return &object;
    }
    uint64_t memory_generation() const { return 1; }
    void mark_dirty(pvx::guest_phys) const {}
    bool can_sleep() const { return false; }
    clock_reading read_clock() const {
        return {pvx::tsc_ticks{exact::host.tsc}, pvx::nanoseconds{5}, 3000000000, true};
    }
    pvx::nanoseconds wall_clock_at_zero() const { return pvx::nanoseconds{7}; }

private:
    void reach(pvx::cpu_index vcpu, exact::event e) const {
        if constexpr (pvx::same_as<Machine, counting>) exact::note(e);
        __asm__ volatile("" : : "r"(vcpu.value), "r"(e) : "memory");
    }
};

template <class Machine>
EXACT_OPERATION uint64_t call(hypercalls<environment<Machine>> const& with, hypercall const& of) {
    return with.call(of).rax;
}

template <class Machine>
EXACT_OPERATION uint64_t read_msr(msrs<environment<Machine>> const& with, uint32_t index) {
    return with.read(index).value;
}

template <class Machine>
EXACT_OPERATION msr_outcome write_msr(msrs<environment<Machine>>& with, uint32_t index, uint64_t value) {
    return with.write(index, value);
}

template <class Machine>
EXACT_OPERATION void count_exit(exit_stats<Machine> const& stats, uint32_t reason) {
    stats.count({reason, exit_path::fast});
}

template <class Machine>
EXACT_OPERATION void enter(kvm_clock<environment<Machine>>& clock) {
    clock.enter();
}

// Calls with what the vCPU's registers hold.
template <class Call>
void with_registers(Call call, hypercall const& of) {
    for (uint32_t i = 0; i < exact::max_cpus; ++i) exact::apic_ids[i] = i;
    hypercalls<environment<typename Call::machine>> const with{{}};
    call(with, of);
}

template <class Call, class... Arguments>
void with_msrs(Call call, Arguments... arguments) {
    msrs<environment<typename Call::machine>> with{{}};
    call(with, arguments...);
}

constinit uint64_t counters[exit_stats_words(64)] = {};
constexpr uint64_t all = ~uint64_t{0};
// Of these, what is locked is what the roles do.
constexpr limit no_lock{"LOCK", 0};

exact::test_case const list[] = {
    {"hypercalls/kick, with a yield", call<plain>, call<counting>,
     [](auto c) {
         with_registers(c, {pvx::abi::kvm_hypercall::kick_cpu, 0, 7, 0, 0, 0, true});
     },
     no_lock},
    {"hypercalls/yield", call<plain>, call<counting>,
     [](auto c) {
         with_registers(c, {pvx::abi::kvm_hypercall::sched_yield, 7, 0, 0, 0, 0, true});
     },
     no_lock},
    {"hypercalls/send IPI, 1 target", call<plain>, call<counting>,
     [](auto c) {
         with_registers(c, {pvx::abi::kvm_hypercall::send_ipi, 1, 0, 7, 0x40, 0, true});
     },
     no_lock},
    {"hypercalls/send IPI, 128 targets", call<plain>, call<counting>,
     [](auto c) {
         with_registers(c, {pvx::abi::kvm_hypercall::send_ipi, all, all, 7, 0x40, 0, true});
     },
     no_lock},
    {"hypercalls/unknown", call<plain>, call<counting>,
     [](auto c) {
         with_registers(c, {99, 0, 0, 0, 0, 0, true});
     },
     no_lock},
    {"hypercalls/outside of ring 0", call<plain>, call<counting>,
     [](auto c) {
         with_registers(c, {pvx::abi::kvm_hypercall::kick_cpu, 0, 7, 0, 0, 3, true});
     },
     no_lock},
    {"msrs/read poll control", read_msr<plain>, read_msr<counting>,
     [](auto c) { with_msrs(c, pvx::abi::kvm_msr::poll_control.index); }, no_lock},
    {"msrs/write poll control", write_msr<plain>, write_msr<counting>,
     [](auto c) { with_msrs(c, pvx::abi::kvm_msr::poll_control.index, uint64_t{0}); }, no_lock},
    {"msrs/read another MSR", read_msr<plain>, read_msr<counting>, [](auto c) { with_msrs(c, 0x10u); }, no_lock},
    {"host_clock/enter, nothing new", enter<plain>, enter<counting>,
     [](auto c) {
         kvm_clock<environment<typename decltype(c)::machine>> clock{{}};
         c(clock);
     },
     no_lock},
    {"host_clock/enter, the record is written", enter<plain>, enter<counting>,
     [](auto c) {
         kvm_clock<environment<typename decltype(c)::machine>> clock{{}};
         (void)clock.write_msr(pvx::abi::kvm_msr::system_time.index, 0x1001);
         clock.enter();
         clock.mark_changed();
         c(clock);
     },
     no_lock},
    {"exit_stats/count", count_exit<plain>, count_exit<counting>,
     [](auto c) {
         using machine = typename decltype(c)::machine;
         c(exit_stats<machine>(machine{}, counters, 64), 5u);
     },
     no_lock},
};
exact::component const here{list};

}  // namespace
