// SPDX-License-Identifier: MIT
#include <pvx/guest/clock.hpp>

#include <time.h>

#include "pairs/user_machine.hpp"
#include "support/operation.hpp"

using namespace pvx_bench;

namespace {

using record = pvx::abi::pvclock_vcpu_time_info;

pvx::guest::kvm_clock<user_machine> stable(user_machine{}, {}, true);
pvx::guest::kvm_clock<user_machine> not_stable(user_machine{}, {}, false);

constexpr uint32_t self = 3;
bool const filled = [] {
    record& own = user_machine::records<record>[self];
    own.tsc_to_system_mul = 1u << 31;
    own.flags = pvx::abi::pvclock_tsc_stable;
    return true;
}();

/// What no clock can do without: the counter, one multiplication, one addition.
uint64_t bare_scale() {
    record const& own = user_machine::records<record>[self];
    return own.system_time + pvx::abi::pvclock_scale(pvx::tsc_ticks{pvx::arch::rdtsc_ordered() - own.tsc_timestamp},
                                                     own.tsc_to_system_mul, 0)
                                 .value;
}

uint64_t clock_gettime_ns() {
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<uint64_t>(t.tv_sec) * 1000000000 + static_cast<uint64_t>(t.tv_nsec);
}

bool const against_bare = add_pair(
    "clock: now, stable", "pvx", [] { keep(stable.now()); }, "bare rdtsc and scale", [] { keep(bare_scale()); });
bool const against_system = add_pair(
    "clock: now, stable, system", "pvx", [] { keep(stable.now()); }, "clock_gettime", [] { keep(clock_gettime_ns()); });
bool const against_stable = add_pair(
    "clock: now, not stable", "pvx not stable", [] { keep(not_stable.now()); }, "pvx stable",
    [] { keep(stable.now()); });

}  // namespace
