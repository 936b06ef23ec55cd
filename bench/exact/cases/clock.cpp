// SPDX-License-Identifier: MIT
#include "case.hpp"

namespace {

using exact::counting, exact::plain;

template <class Machine>
using kvm_clock = pvx::guest::kvm_clock<Machine>;

constexpr pvx::guest::clock_msrs msrs{pvx::abi::kvm_msr::system_time.index, pvx::abi::kvm_msr::wall_clock.index};

template <class Machine>
constinit kvm_clock<Machine> the_clock{Machine{}, msrs, true};

template <class Call>
constexpr auto& clock_of(Call const&) {
    return the_clock<typename Call::machine>;
}

template <class Machine>
EXACT_OPERATION uint64_t now(kvm_clock<Machine>& clock) {
    return clock.now().value;
}

template <class Machine>
EXACT_OPERATION bool now_bounded(kvm_clock<Machine>& clock, pvx::nanoseconds& out) {
    return clock.now_bounded(out);
}

template <class Machine>
EXACT_OPERATION bool sample_bounded(kvm_clock<Machine> const& clock, uint32_t cpu, pvx::guest::clock_sample& out) {
    return clock.sample_bounded(pvx::cpu_index{cpu}, out);
}

template <class Machine>
EXACT_OPERATION pvx::status enable(kvm_clock<Machine> const& clock, uint32_t cpu) {
    return clock.enable(pvx::cpu_index{cpu});
}

constinit pvx::nanoseconds time{};
constinit pvx::guest::clock_sample sample{};

// The host has filled in the record of CPU 3: half a nanosecond for each tick.
void fill_record(uint8_t flags) {
    exact::clock_records[3].tsc_to_system_mul = 1u << 31;
    exact::clock_records[3].flags = flags;
}

exact::test_case const list[] = {
    {"clock/now, stable", now<plain>, now<counting>,
     [](auto call) {
         fill_record(pvx::abi::pvclock_tsc_stable);
         call(clock_of(call));
     }},
    {"clock/now, not stable", now<plain>, now<counting>,
     [](auto call) {
         fill_record(0);
         call(clock_of(call));
     }},
    {"clock/now, not stable, another CPU is ahead", now<plain>, now<counting>,
     [](auto call) {
         fill_record(0);
         exact::clock_records[3].system_time = uint64_t{1} << 60;
         (void)clock_of(call).now();
         exact::clock_records[3].system_time = 0;
         call(clock_of(call));
     }},
    {"clock/now_bounded, stable", now_bounded<plain>, now_bounded<counting>,
     [](auto call) {
         fill_record(pvx::abi::pvclock_tsc_stable);
         call(clock_of(call), time);
     }},
    {"clock/now_bounded, not stable", now_bounded<plain>, now_bounded<counting>,
     [](auto call) {
         fill_record(0);
         call(clock_of(call), time);
     }},
    {"clock/sample_bounded", sample_bounded<plain>, sample_bounded<counting>,
     [](auto call) {
         fill_record(pvx::abi::pvclock_tsc_stable);
         call(clock_of(call), 3u, sample);
     }},
    {"clock/enable", enable<plain>, enable<counting>, [](auto call) { call(clock_of(call), 3u); }},
};
exact::component const here{list};

}  // namespace
