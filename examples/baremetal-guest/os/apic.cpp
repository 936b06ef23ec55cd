// SPDX-License-Identifier: MIT

#include "apic.hpp"

#include <pvx/abi/apic.hpp>
#include <pvx/abi/cpuid.hpp>
#include <pvx/guest/x2apic.hpp>

#include "cpu_ops.hpp"
#include "panic.hpp"

namespace os {
namespace {

namespace abi = pvx::abi;
namespace apic_base = abi::msr::apic_base;

constexpr uint64_t base_address_bits = 0x000ffffffffff000;
constexpr uint32_t lvt_nmi = 0x400;
/// The ICR is busy for as long as the target's APIC does not accept; a hypervisor is never that slow.
constexpr uint32_t icr_patience = 10'000'000;

// Set by the first CPU before it starts another.
constinit bool x2apic = false;
constinit bool fence_icr = true;
constinit uint64_t xapic_page = 0;

uint32_t volatile& xapic(uint32_t reg) { return *reinterpret_cast<uint32_t volatile*>(xapic_page + reg); }

void send(uint32_t apic_id, abi::apic_command command) {
    if (x2apic) {
        pvx::guest::x2apic const apic(arch::x86_64{}, fence_icr);
        apic.send(pvx::apic_id{apic_id}, command);
        return;
    }
    // A store to the xAPIC page is uncached, so earlier stores are visible before it.
    if (apic_id > 0xfe) panic("an xAPIC cannot address APIC id {}", apic_id);
    irq_guard const guard;  // the two halves belong together
    for (uint32_t tries = 0; (xapic(abi::apic_reg::icr_low) & abi::icr_busy) != 0; ++tries) {
        if (tries == icr_patience) panic("the APIC does not get rid of an interrupt command");
        arch::pause();
    }
    xapic(abi::apic_reg::icr_high) = apic_id << 24;
    xapic(abi::apic_reg::icr_low) = command.value | abi::icr_level_assert;
}

}  // namespace

void initialise_apic() {
    auto const features = arch::cpuid(abi::cpuid_leaf::features, 0);
    if (!abi::has(features, abi::cpuid_feature::apic)) panic("CPUID says that there is no local APIC");
    uint64_t base = arch::read_msr(abi::msr::ia32_apic_base);
    x2apic = abi::has(features, abi::cpuid_feature::x2apic);
    auto const vendor = abi::identify_vendor(abi::vendor_name(arch::cpuid(abi::cpuid_leaf::vendor, 0)));
    fence_icr = pvx::guest::icr_needs_fence(vendor);
    xapic_page = base & base_address_bits;
    // x2APIC mode can only be entered from xAPIC mode.
    if ((base & apic_base::enable) == 0) arch::write_msr(abi::msr::ia32_apic_base, base |= apic_base::enable);
    if (x2apic && (base & apic_base::x2apic_enable) == 0)
        arch::write_msr(abi::msr::ia32_apic_base, base | apic_base::x2apic_enable);
    if (!x2apic && xapic_page >> 32 != 0) panic("the APIC is at {:#x}, above what is mapped", xapic_page);

    write_apic(abi::apic_reg::svr, abi::svr_enable | vector_spurious);
    write_apic(abi::apic_reg::tpr, 0);
    write_apic(abi::apic_reg::lvt_timer, abi::lvt_masked | vector_timer);
    write_apic(abi::apic_reg::lvt_lint0, abi::lvt_masked);
    write_apic(abi::apic_reg::lvt_lint1, (base & apic_base::bootstrap_cpu) != 0 ? lvt_nmi : abi::lvt_masked);
    write_apic(abi::apic_reg::lvt_error, abi::lvt_masked | vector_spurious);
}

bool apic_is_x2apic() { return x2apic; }

uint32_t read_apic_id() {
    uint32_t const id = read_apic(abi::apic_reg::id);
    return x2apic ? id : id >> 24;
}

uint32_t read_apic(uint32_t reg) {
    return x2apic ? static_cast<uint32_t>(arch::read_msr(abi::apic_msr(reg))) : xapic(reg);
}

void write_apic(uint32_t reg, uint32_t value) {
    if (x2apic)
        arch::write_msr(abi::apic_msr(reg), value);
    else
        xapic(reg) = value;
}

void send_command(uint32_t apic_id, abi::apic_command command) { send(apic_id, command); }

void end_of_interrupt() { write_apic(abi::apic_reg::eoi, 0); }

void send_ipi(uint32_t apic_id, uint8_t vector) {
    send(apic_id, abi::make_apic_command(abi::apic_delivery::fixed, vector));
}
void send_nmi(uint32_t apic_id) { send(apic_id, abi::make_apic_command(abi::apic_delivery::nmi, 0)); }
void send_init(uint32_t apic_id) { send(apic_id, abi::make_apic_command(abi::apic_delivery::init, 0)); }
void send_startup(uint32_t apic_id, uint8_t page) {
    send(apic_id, abi::make_apic_command(abi::apic_delivery::startup, page));
}

}  // namespace os
