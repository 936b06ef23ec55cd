// SPDX-License-Identifier: MIT
#include <pvx/guest/x2apic.hpp>

#include "support/catch.hpp"
#include "support/fake_machine.hpp"

using namespace pvx::guest;
using pvx::abi::cpu_vendor;
using pvx_test::fake_machine;
using pvx_test::fake_state;
using words = std::vector<std::string>;

namespace {

constexpr pvx::abi::apic_command vector_40 = pvx::abi::make_apic_command(pvx::abi::apic_delivery::fixed, 0x40);

fake_state apic_msrs() {
    fake_state s;
    for (uint32_t msr : {0x830u, 0x83fu, 0x80bu, 0x6e0u}) s.msrs[msr] = 0;
    return s;
}

}  // namespace

TEST_CASE("AMD and Hygon need no fence before the ICR, everyone else gets one", "[guest][x2apic]") {
    CHECK_FALSE(icr_needs_fence(cpu_vendor::amd));
    CHECK_FALSE(icr_needs_fence(cpu_vendor::hygon));
    CHECK(icr_needs_fence(cpu_vendor::intel));
    CHECK(icr_needs_fence(cpu_vendor::unknown));
}

TEST_CASE("The fence stands before the ICR write, and only where it was asked for", "[guest][x2apic]") {
    fake_state s = apic_msrs();
    x2apic(fake_machine{s}, true).send(pvx::apic_id{300}, vector_40);
    CHECK(s.log == words{"mfence lfence", "wrmsr 0x830 0x12c00004040"});
    s.log.clear();
    x2apic(fake_machine{s}, false).send(pvx::apic_id{300}, vector_40);
    CHECK(s.log == words{"wrmsr 0x830 0x12c00004040"});
}

TEST_CASE("Purely local writes are never fenced", "[guest][x2apic]") {
    fake_state s = apic_msrs();
    x2apic const apic(fake_machine{s}, true);
    apic.send_self(0x41);
    apic.end_of_interrupt();
    arm_tsc_deadline(fake_machine{s}, pvx::tsc_ticks{12345});
    CHECK(s.log == words{"wrmsr 0x83f 0x41", "wrmsr 0x80b 0x0", "wrmsr 0x6e0 0x3039"});
}

TEST_CASE("Switching to deadline mode through the xAPIC page is ordered by one store fence", "[guest][x2apic]") {
    fake_state s;
    order_xapic_deadline_mode(fake_machine{s});
    CHECK(s.log == words{"mfence"});
}
