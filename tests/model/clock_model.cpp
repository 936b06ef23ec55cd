// SPDX-License-Identifier: MIT
// Bound: three CPUs, one or two readings each, any TSC skew: 1 preemption (--full: 2). Memory model: C++20 as Relacy
// has it.

/// \file
/// The clock where the host does not vouch for it: a CPU that was told of a reading never gets an earlier one. The
/// shipped kvm_clock over records in plain memory, which no host writes here: that side is seqcount_model.cpp.

#include <optional>

#include <pvx/guest/clock.hpp>

#include "support/model.hpp"

namespace {

using namespace pvx;
using namespace pvx_test;

constexpr uint32_t cpus = 3;

/// The clock's own word begins at zero; an rl::atomic begins with nothing.
template <class T>
struct zero_cell : rl::atomic<T> {
    zero_cell() { this->store(0, rl::mo_relaxed, place{}.info()); }
};

alignas(64) abi::pvclock_vcpu_time_info records[cpus];

/// What "keep the larger" would be without the compare.
struct store_ref : relacy_ref<uint64_t, shipped> {
    using relacy_ref::relacy_ref;
    bool compare_exchange(uint64_t&, uint64_t desired, rmw_order auto, load_order auto, place where = {}) const {
        store(desired, order::relaxed, where);
        return true;
    }
};

template <bool Compares>
struct machine : relacy_atomics<>, relacy_relax {
    template <word T>
    using cell = zero_cell<T>;

    using relacy_atomics<>::ref;
    auto ref(zero_cell<uint64_t>& object) const {
        if constexpr (Compares)
            return relacy_ref<uint64_t, shipped>{object};
        else
            return store_ref{object};
    }

    uint64_t read_msr(uint32_t) const { return 0; }
    void write_msr(uint32_t, uint64_t) const {}
    tsc_ticks tsc() const { return tsc_ticks{1 + rl::rand(3)}; }  // skew: any CPU reads anything
    cpu_index self() const { return cpu_index{static_cast<uint32_t>(rl::thread_index())}; }
    uint32_t possible_cpus() const { return cpus; }
    apic_id apic(cpu_index cpu) const { return apic_id{cpu.value}; }
    template <class T>
    shared<T> record(cpu_index cpu) const {
        return {&records[cpu.value], guest_phys{64}};
    }
};

/// CPU 0 tells CPU 1 what it was given, and CPU 1 tells CPU 2.
template <bool Compares>
struct told_of_readings : rl::test_suite<told_of_readings<Compares>, cpus> {
    relacy_memory memory;
    std::optional<guest::kvm_clock<machine<Compares>>> clock;
    rl::atomic<uint64_t> told[2];

    void before() {
        for (auto& r : records) {
            r = {};
            r.version = 2;
            r.tsc_to_system_mul = 1u << 31;
            r.tsc_shift = 1;
            memory.adopt(r.version);
            memory.adopt(r.tsc_timestamp);
            memory.adopt(r.system_time);
            memory.adopt(r.tsc_to_system_mul);
            memory.adopt(r.tsc_shift);
            memory.adopt(r.flags);
        }
        clock.emplace(machine<Compares>{}, guest::clock_msrs{1, 2}, true);
        for (auto& t : told) t.store(0, rl::mo_relaxed, place{}.info());
    }

    uint64_t reading() {
        nanoseconds t;
        require(clock->now_bounded(t), "the own record is always consistent");
        return t.value;
    }

    void thread(unsigned cpu) {
        uint64_t const heard = cpu == 0 ? reading() : told[cpu - 1].load(rl::mo_acquire, place{}.info());
        uint64_t const mine = reading();
        require(mine >= heard, "no reading is before one that was told");
        if (cpu + 1 < cpus) told[cpu].store(mine, rl::mo_release, place{}.info());
    }
};

}  // namespace

int main(int argc, char** argv) {
    model m{argc, argv};
    m.passes<told_of_readings<true>>("clock, not stable: three CPUs, each told by the one before", {1, 2});
    m.caught<told_of_readings<false>>("the larger kept by a plain store", {1, 2});
    return m.result();
}
