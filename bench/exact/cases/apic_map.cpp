// SPDX-License-Identifier: MIT
#include <pvx/host/apic_map.hpp>

#include "case.hpp"

namespace {

using exact::counting, exact::plain;
using namespace pvx;

constexpr uint32_t vcpus = 64, limit = 256, each = host::apic_map_words(limit);

constinit uint64_t shared_words[1 + vcpus] = {};
constinit uint32_t tables[host::two_buffers<plain>::words_for(each)] = {};

template <class Machine>
host::apic_map<Machine> map_of() {
    return {Machine{}, shared_words, vcpus, limit, host::two_buffers<Machine>(Machine{}, tables, each)};
}

template <class Machine>
EXACT_OPERATION uint32_t look_up(host::apic_map<Machine> const& map, uint32_t id) {
    return map.read_guard().vcpu(apic_id{id}).value;
}

template <class Machine>
EXACT_OPERATION uint32_t send(host::apic_map<Machine> const& map, host::apic_ipi const& ipi) {
    uint32_t sum = 0;
    map.read_guard().for_each(ipi, cpu_index{0}, [&](cpu_index vcpu) { sum += vcpu.value; });
    return sum;
}

template <class Machine>
EXACT_OPERATION void publish(host::apic_map<Machine> const& map, uint32_t vcpu, host::apic_identity identity) {
    map.publish(cpu_index{vcpu}, identity);
}

template <class Machine>
EXACT_OPERATION bool update(host::apic_map<Machine> const& map) {
    return map.update();
}

/// Ids 0 to 62 that step by one are x2APICs; vCPU 63 is an xAPIC, and has id 2 as another has, if `alias` says so.
template <class Machine>
host::apic_map<Machine> machine(bool alias = false, bool with_table = true) {
    auto const map = map_of<Machine>();
    if (with_table) (void)map.set_up();
    for (uint32_t i = 0; i < vcpus; ++i) {
        bool const last = i == vcpus - 1;
        (void)map.add(cpu_index{i},
                      host::make_apic_identity(apic_id{last && alias ? 2 : i},
                                               last ? abi::apic_mode::xapic : abi::apic_mode::x2apic, 7, 0x40000000));
    }
    if (with_table) (void)map.update();
    return map;
}

template <class Call, class... Arguments>
void with(Call call, Arguments... arguments) {
    call(machine<typename Call::machine>(), arguments...);
}

constexpr host::apic_ipi to(uint32_t destination, bool logical) {
    return {host::apic_destination{destination}, abi::apic_shorthand::none, abi::apic_delivery::fixed, 0x40, logical};
}

template <class Call>
void change(Call call, bool tell) {
    using of = typename Call::machine;
    auto const map = machine<of>();
    if (tell) map.publish(cpu_index{5}, host::make_apic_identity(apic_id{5}, abi::apic_mode::xapic, 7));
    call(map);
}

exact::test_case const list[] = {
    {"apic_map/vcpu, 1 of 64", look_up<plain>, look_up<counting>, [](auto call) { with(call, 5u); }},
    {"apic_map/vcpu, nobody", look_up<plain>, look_up<counting>, [](auto call) { with(call, 200u); }},
    {"apic_map/vcpu, beyond the limit", look_up<plain>, look_up<counting>, [](auto call) { with(call, 256u); }},
    {"apic_map/vcpu, of two, 64 vCPUs", look_up<plain>, look_up<counting>,
     [](auto call) { call(machine<typename decltype(call)::machine>(true), 2u); }},
    {"apic_map/vcpu, no table, the last of 64", look_up<plain>, look_up<counting>,
     [](auto call) { call(machine<typename decltype(call)::machine>(false, false), 63u); }},
    {"apic_map/send, physical", send<plain>, send<counting>, [](auto call) { with(call, to(5, false)); }},
    {"apic_map/send, logical, 1 of a cluster", send<plain>, send<counting>,
     [](auto call) { with(call, to(0x00010020, true)); }},
    {"apic_map/send, logical, 16 of a cluster", send<plain>, send<counting>,
     [](auto call) { with(call, to(0x0001ffff, true)); }},
    {"apic_map/publish, nothing new", publish<plain>, publish<counting>,
     [](auto call) { with(call, 5u, host::make_apic_identity(apic_id{5}, abi::apic_mode::x2apic, 7, 0x40000000)); }},
    {"apic_map/publish, another mode", publish<plain>, publish<counting>,
     [](auto call) { with(call, 5u, host::make_apic_identity(apic_id{5}, abi::apic_mode::xapic, 7)); }},
    {"apic_map/update, nothing new", update<plain>, update<counting>, [](auto call) { change(call, false); }},
    {"apic_map/update, 64 vCPUs, 256 ids", update<plain>, update<counting>, [](auto call) { change(call, true); }},
};
exact::component const here{list};

}  // namespace
