// SPDX-License-Identifier: MIT
#include "case.hpp"

namespace {

using exact::counting, exact::plain;

template <class Machine>
EXACT_OPERATION uint32_t send(unsigned long const* words, uint32_t bits, uint32_t command) {
    return pvx::guest::ipi<Machine>{Machine{}}.send({words, bits}, pvx::abi::apic_command{command});
}

template <class Machine>
EXACT_OPERATION bool add(pvx::guest::ipi_window& window, uint32_t id) {
    return window.add(pvx::apic_id{id});
}

constexpr uint32_t vector = 0xfd;
constinit unsigned long targets[exact::max_cpus / 64] = {};
constinit pvx::guest::ipi_window window{};

// Sends to the first n CPUs; CPU i has the APIC id first_id + i * step.
template <class Call>
void send_to(Call call, uint32_t n, uint32_t first_id, int32_t step) {
    pvx::cpu_mask_view const mask{targets, exact::max_cpus};
    for (uint32_t i = 0; i < n; ++i) mask.set(pvx::cpu_index{i});
    for (uint32_t i = 0; i < exact::max_cpus; ++i) exact::apic_ids[i] = first_id + i * static_cast<uint32_t>(step);
    call(targets, exact::max_cpus, vector);
}

exact::test_case const list[] = {
    {"ipi/send, no target of 256", send<plain>, send<counting>, [](auto call) { send_to(call, 0, 0, 1); }},
    {"ipi/send, 1 target", send<plain>, send<counting>, [](auto call) { send_to(call, 1, 0, 1); }},
    {"ipi/send, 2 targets", send<plain>, send<counting>, [](auto call) { send_to(call, 2, 0, 1); }},
    {"ipi/send, 64 targets", send<plain>, send<counting>, [](auto call) { send_to(call, 64, 0, 1); }},
    {"ipi/send, 64 targets, ids fall", send<plain>, send<counting>, [](auto call) { send_to(call, 64, 255, -1); }},
    {"ipi/send, 64 targets, every 16th id", send<plain>, send<counting>, [](auto call) { send_to(call, 64, 0, 16); }},
    {"ipi/send, 64 targets, host refuses", send<plain>, send<counting>,
     [](auto call) {
         exact::host.hypercall = pvx::abi::kvm_error::no_such_hypercall;
         send_to(call, 64, 0, 1);
     }},
    {"ipi/send, all 256 CPUs", send<plain>, send<counting>, [](auto call) { send_to(call, 256, 0, 1); }},
    {"ipi/window add, above", add<plain>, add<counting>,
     [](auto call) {
         (void)window.add(pvx::apic_id{10});
         call(window, 90u);
     }},
    {"ipi/window add, below", add<plain>, add<counting>,
     [](auto call) {
         (void)window.add(pvx::apic_id{90});
         call(window, 10u);
     }},
};
exact::component const here{list};

}  // namespace
