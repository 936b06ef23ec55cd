// SPDX-License-Identifier: MIT
#include "case.hpp"

namespace {

using exact::counting, exact::plain;

/// A host whose guest memory is always at hand.
template <class Machine>
struct environment : Machine {
    struct guard {};
    guard read_guard() const { return {}; }
    template <class T>
    T* map(pvx::guest_phys) const {
        return &exact::steal_pages[0];
    }
    uint64_t memory_generation() const { return 1; }
    void mark_dirty(pvx::guest_phys) const {}
    bool can_sleep() const { return false; }
    pvx::nanoseconds run_delay() const { return pvx::nanoseconds{exact::host.tsc}; }
    void flush_guest_tlb() const {}
};

template <class Machine>
using steal_time = pvx::host::steal_time<environment<Machine>>;

template <class Machine>
EXACT_OPERATION void enter(steal_time<Machine>& steal) {
    steal.enter();
}

template <class Machine>
EXACT_OPERATION void put(steal_time<Machine>& steal, pvx::host::departure how) {
    steal.put(how);
}

constexpr pvx::host::departure preempted{true, true, true};

// Calls with a vCPU that has run once.
template <class Call, class Prepare, class... Arguments>
void with(Call call, Prepare prepare, Arguments... arguments) {
    steal_time<typename Call::machine> steal{{}};
    (void)steal.write_msr(pvx::abi::kvm_msr::steal_time.index, 0x1001);
    steal.enter();
    prepare(steal);
    call(steal, arguments...);
}

exact::test_case const list[] = {
    {"host_steal_time/enter, was not out", enter<plain>, enter<counting>, [](auto call) { with(call, [](auto&) {}); }},
    {"host_steal_time/enter, was out, no steal", enter<plain>, enter<counting>,
     [](auto call) { with(call, [](auto& steal) { steal.put(preempted), steal.load(); }); }},
    {"host_steal_time/enter, was out, steal", enter<plain>, enter<counting>,
     [](auto call) { with(call, [](auto& steal) { steal.put(preempted), steal.load(), exact::host.tsc += 5; }); }},
    {"host_steal_time/put, preempted", put<plain>, put<counting>,
     [](auto call) {
         with(
             call, [](auto&) {}, preempted);
     }},
    {"host_steal_time/put, again", put<plain>, put<counting>,
     [](auto call) {
         with(
             call, [](auto& steal) { steal.put(preempted); }, preempted);
     }},
    {"host_steal_time/put, blocked", put<plain>, put<counting>,
     [](auto call) {
         with(
             call, [](auto&) {}, pvx::host::departure{true, false, true});
     }},
};
exact::component const here{list};

}  // namespace
