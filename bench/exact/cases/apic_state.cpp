// SPDX-License-Identifier: MIT
#include <pvx/host/apic_icr.hpp>
#include <pvx/host/apic_state.hpp>
#include <pvx/host/apic_words.hpp>

#include "case.hpp"

namespace {

using exact::counting, exact::plain;
using pvx::host::apic_state;

constexpr pvx::host::apic_offer offer{46, true};
constexpr uint64_t base = pvx::abi::apic_base_default | pvx::abi::msr::apic_base::enable;

template <class>
EXACT_OPERATION bool usable(apic_state<> const& apic) {
    return apic.usable();
}

template <class>
EXACT_OPERATION pvx::host::apic_write write_msr(apic_state<>& apic, uint32_t index, uint64_t value) {
    return apic.write_msr(offer, index, value);
}

template <class>
EXACT_OPERATION pvx::host::apic_write write_page(apic_state<>& apic, uint32_t offset, uint32_t value) {
    return apic.write_page(offer, offset, value);
}

template <class>
EXACT_OPERATION pvx::host::apic_change init(apic_state<>& apic) {
    return apic.init();
}

template <class Machine>
EXACT_OPERATION uint32_t scan(pvx::host::apic_words<Machine> const& words) {
    uint32_t usable = 0;
    words.for_each(pvx::host::apic_word::usable, [&](pvx::cpu_index) { ++usable; });
    return usable;
}

template <class>
EXACT_OPERATION void write_icr_msr(pvx::host::icr_write& out, uint32_t index, uint64_t value) {
    out = pvx::host::write_icr_msr(pvx::abi::apic_mode::x2apic, out.icr, index, value);
}

template <class>
EXACT_OPERATION void write_icr_page(pvx::host::icr_write& out, uint32_t offset, uint32_t value) {
    out = pvx::host::write_icr_page(pvx::abi::apic_mode::xapic, out.icr, offset, value);
}

apic_state<> xapic() {
    apic_state<> apic(pvx::apic_id{5}, false);
    (void)apic.write_page(offer, pvx::abi::apic_reg::svr, 0x1ff);
    return apic;
}

constinit typename plain::cell<uint8_t> plain_words[64] = {};

template <class Call>
void scan_of(Call call, uint8_t word) {
    using machine = typename Call::machine;
    for (auto& each : plain_words) each = word;
    call(pvx::host::apic_words<machine>(machine{}, plain_words, 64));
}

template <class Call, class... Arguments>
void with_xapic(Call call, Arguments... arguments) {
    apic_state<> apic = xapic();
    call(apic, arguments...);
}

template <class Call, class... Arguments>
void with_icr(Call call, Arguments... arguments) {
    pvx::host::icr_write out{};
    call(out, arguments...);
}

exact::test_case const list[] = {
    {"apic_state/usable", usable<plain>, usable<counting>, [](auto call) { with_xapic(call); }},
    {"apic_state/write base, nothing new", write_msr<plain>, write_msr<counting>,
     [](auto call) { with_xapic(call, 0x1bu, base); }},
    {"apic_state/write base, to x2APIC", write_msr<plain>, write_msr<counting>,
     [](auto call) { with_xapic(call, 0x1bu, base | pvx::abi::msr::apic_base::x2apic_enable); }},
    {"apic_state/write base, fault", write_msr<plain>, write_msr<counting>,
     [](auto call) { with_xapic(call, 0x1bu, base | 1); }},
    {"apic_state/write another MSR", write_msr<plain>, write_msr<counting>,
     [](auto call) { with_xapic(call, 0x10u, base); }},
    {"apic_state/write SVR, software-disabled", write_page<plain>, write_page<counting>,
     [](auto call) { with_xapic(call, 0xf0u, 0xffu); }},
    {"apic_state/init", init<plain>, init<counting>, [](auto call) { with_xapic(call); }},
    {"apic_state/scan, 64 of 64", scan<plain>, scan<counting>, [](auto call) { scan_of(call, 7); }},
    {"apic_state/scan, 0 of 64", scan<plain>, scan<counting>, [](auto call) { scan_of(call, 3); }},
    {"apic_icr/x2APIC, fixed", write_icr_msr<plain>, write_icr_msr<counting>,
     [](auto call) { with_icr(call, 0x830u, uint64_t{5} << 32 | 0x40fd); }},
    {"apic_icr/x2APIC, self", write_icr_msr<plain>, write_icr_msr<counting>,
     [](auto call) { with_icr(call, 0x83fu, uint64_t{0xfd}); }},
    {"apic_icr/xAPIC, destination", write_icr_page<plain>, write_icr_page<counting>,
     [](auto call) { with_icr(call, 0x310u, 0x05000000u); }},
    {"apic_icr/xAPIC, fixed", write_icr_page<plain>, write_icr_page<counting>,
     [](auto call) { with_icr(call, 0x300u, 0x40fdu); }},
};
exact::component const here{list};

}  // namespace
