// SPDX-License-Identifier: MIT
#include "case.hpp"

namespace {

using exact::counting, exact::plain;

template <class Machine>
constexpr pvx::guest::steal_time<Machine> steal{Machine{}};

template <class Machine>
EXACT_OPERATION uint64_t read(uint32_t cpu) {
    return steal<Machine>.read(pvx::cpu_index{cpu}).value;
}

template <class Machine>
EXACT_OPERATION bool read_bounded(uint32_t cpu, pvx::nanoseconds& out) {
    return steal<Machine>.read_bounded(pvx::cpu_index{cpu}, out);
}

template <class Machine>
EXACT_OPERATION bool preempted(uint32_t cpu) {
    return steal<Machine>.preempted(pvx::cpu_index{cpu});
}

template <class Machine>
EXACT_OPERATION pvx::status enable(uint32_t cpu) {
    return steal<Machine>.enable(pvx::cpu_index{cpu});
}

template <class Machine>
EXACT_OPERATION uint64_t charge(pvx::guest::steal_account& account, uint64_t reading, uint64_t elapsed) {
    return account.charge(pvx::nanoseconds{reading}, pvx::nanoseconds{elapsed}).value;
}

constinit pvx::guest::steal_account account{pvx::nanoseconds{100}};
constinit pvx::nanoseconds last{5};

exact::test_case const list[] = {
    {"steal_time/read", read<plain>, read<counting>, [](auto call) { call(3u); }},
    {"steal_time/read_bounded", read_bounded<plain>, read_bounded<counting>, [](auto call) { call(3u, last); }},
    {"steal_time/read_bounded, host stopped, 64 attempts", read_bounded<plain>, read_bounded<counting>,
     [](auto call) {
         exact::steal_pages[3].version = 1;
         call(3u, last);
     }},
    {"steal_time/preempted", preempted<plain>, preempted<counting>, [](auto call) { call(3u); }},
    {"steal_time/charge", charge<plain>, charge<counting>, [](auto call) { call(account, 150u, 1000u); }},
    {"steal_time/charge, more than passed", charge<plain>, charge<counting>,
     [](auto call) { call(account, 5000u, 1000u); }},
    {"steal_time/enable", enable<plain>, enable<counting>, [](auto call) { call(3u); }},
};
exact::component const here{list};

}  // namespace
