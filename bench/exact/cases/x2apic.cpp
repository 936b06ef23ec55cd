// SPDX-License-Identifier: MIT
#include "case.hpp"

namespace {

using exact::counting, exact::plain;

template <class Machine>
using x2apic = pvx::guest::x2apic<Machine>;

template <class Machine>
EXACT_OPERATION void send(x2apic<Machine> const& apic, uint32_t id, uint32_t command) {
    apic.send(pvx::apic_id{id}, pvx::abi::apic_command{command});
}

template <class Machine>
EXACT_OPERATION void send_self(x2apic<Machine> const& apic, uint8_t vector) {
    apic.send_self(vector);
}

template <class Machine>
EXACT_OPERATION void end_of_interrupt(x2apic<Machine> const& apic) {
    apic.end_of_interrupt();
}

template <class Machine>
EXACT_OPERATION void arm_tsc_deadline(uint64_t when) {
    pvx::guest::arm_tsc_deadline(Machine{}, pvx::tsc_ticks{when});
}

template <class Call>
auto apic_of(Call const&, bool fenced) {
    return x2apic<typename Call::machine>{typename Call::machine{}, fenced};
}

exact::test_case const list[] = {
    {"x2apic/send, fenced", send<plain>, send<counting>, [](auto call) { call(apic_of(call, true), 5u, 0xfdu); }},
    {"x2apic/send, not fenced", send<plain>, send<counting>, [](auto call) { call(apic_of(call, false), 5u, 0xfdu); }},
    {"x2apic/send_self", send_self<plain>, send_self<counting>,
     [](auto call) { call(apic_of(call, true), uint8_t{0xfd}); }},
    {"x2apic/end_of_interrupt", end_of_interrupt<plain>, end_of_interrupt<counting>,
     [](auto call) { call(apic_of(call, true)); }},
    {"x2apic/arm_tsc_deadline", arm_tsc_deadline<plain>, arm_tsc_deadline<counting>,
     [](auto call) { call(uint64_t{1} << 40); }},
};
exact::component const here{list};

}  // namespace
