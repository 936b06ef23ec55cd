// SPDX-License-Identifier: MIT
#include "case.hpp"

namespace {

using exact::counting, exact::plain;
namespace deferral = pvx::guest::deferral;

template <class Machine>
constexpr pvx::guest::deferred_flush<Machine> deferred{Machine{}};

template <class Machine>
EXACT_OPERATION void enter(uint32_t cpu) {
    deferred<Machine>.enter(pvx::cpu_index{cpu});
}

template <class Machine>
EXACT_OPERATION bool leave(uint32_t cpu) {
    return deferred<Machine>.leave(pvx::cpu_index{cpu});
}

template <class Machine>
EXACT_OPERATION bool defer(uint32_t cpu) {
    return deferred<Machine>.defer(pvx::cpu_index{cpu});
}

// Calls for CPU 5, whose byte says this.
template <class Call>
void with(Call call, uint8_t byte) {
    exact::deferrals[5] = byte;
    call(5u);
}

exact::test_case const list[] = {
    {"deferred_flush/enter", enter<plain>, enter<counting>, [](auto call) { with(call, deferral::awake); }},
    {"deferred_flush/leave, awake: the entry hook", leave<plain>, leave<counting>,
     [](auto call) { with(call, deferral::awake); }},
    {"deferred_flush/leave, nothing owed", leave<plain>, leave<counting>,
     [](auto call) { with(call, deferral::asleep); }},
    {"deferred_flush/defer, awake", defer<plain>, defer<counting>, [](auto call) { with(call, deferral::awake); }},
    {"deferred_flush/defer, asleep", defer<plain>, defer<counting>, [](auto call) { with(call, deferral::asleep); }},
};
exact::component const here{list};

}  // namespace
