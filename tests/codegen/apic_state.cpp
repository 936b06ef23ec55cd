// SPDX-License-Identifier: MIT
// The questions that an exit asks of an APIC, each as a branch: one load and one test, or nothing where it is known.

#include <pvx/host/apic_state.hpp>

using pvx::apic_id;
using pvx::abi::apic_delivery;
using pvx::host::apic_presence;
using pvx::host::apic_state;

namespace {

using varying = apic_state<apic_presence::varies>;
using always = apic_state<apic_presence::always>;

constexpr varying known = [] {
    varying apic(apic_id{1}, true);
    (void)apic.write_page({46, true}, pvx::abi::apic_reg::svr, 0x1ff);
    return apic;
}();

}  // namespace

extern "C" {

void take();

void usable(varying const&);
void usable_always(always const&);
void present(varying const&);
void present_always(always const&);
void pending(varying const&);
void accepts_interrupt(varying const&);
void accepts_nmi(varying const&);
void usable_known();

// codegen: usable memory=1 tests=1 branches<=2 calls=0 instructions<=4
void usable(varying const& apic) {
    if (apic.usable()) take();
}

// codegen: usable_always memory=1 tests=1 branches<=2 calls=0 instructions<=4
void usable_always(always const& apic) {
    if (apic.present() && apic.usable()) take();
}

// codegen: present memory=1 tests=1 branches<=2 calls=0 instructions<=4
void present(varying const& apic) {
    if (apic.present()) take();
}

// codegen: present_always memory=0 tests=0 branches=1 calls=0 instructions=1
void present_always(always const& apic) {
    if (apic.present()) take();
}

// codegen: pending memory=1 tests=1 branches<=2 calls=0 instructions<=4
void pending(varying const& apic) {
    if (apic.hardware_enabled()) take();
}

// codegen: accepts_interrupt memory=1 tests=1 branches<=2 calls=0 instructions<=4
void accepts_interrupt(varying const& apic) {
    if (apic.accepts(apic_delivery::fixed)) take();
}

// codegen: accepts_nmi memory=1 tests=1 branches<=2 calls=0 instructions<=4
void accepts_nmi(varying const& apic) {
    if (apic.accepts(apic_delivery::nmi)) take();
}

// codegen: usable_known memory=0 tests=0 branches=1 calls=0 instructions=1
void usable_known() {
    if (known.present() && known.usable()) take();
}
}
