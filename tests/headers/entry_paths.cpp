// SPDX-License-Identifier: MIT
// What may run in an NMI, in a fault entry or under a tracer, each in a function that is not instrumented itself.
// Whatever the optimisation level, they must come out without a call and without instrumentation.

#include "machines.hpp"

#define PVX_UNTRACED [[__gnu__::__no_instrument_function__]]

PVX_UNTRACED bool entry_steal_read(machines::components const& with, uint32_t cpu, pvx::nanoseconds& out) {
    return with.steal_time_.read_bounded(pvx::cpu_index{cpu}, out);
}

PVX_UNTRACED bool entry_steal_preempted(machines::components const& with, uint32_t cpu) {
    return with.steal_time_.preempted(pvx::cpu_index{cpu});
}

PVX_UNTRACED bool entry_clock_now(machines::components& with, pvx::nanoseconds& out) {
    return with.clock_.now_bounded(out);
}

PVX_UNTRACED bool entry_clock_sample(machines::components const& with, uint32_t cpu, pvx::guest::clock_sample& out) {
    return with.clock_.sample_bounded(pvx::cpu_index{cpu}, out);
}

PVX_UNTRACED void entry_deferred_enter(machines::components const& with, uint32_t cpu) {
    with.deferred_flush_.enter(pvx::cpu_index{cpu});
}

PVX_UNTRACED bool entry_deferred_leave(machines::components const& with, uint32_t cpu) {
    return with.deferred_flush_.leave(pvx::cpu_index{cpu});
}
