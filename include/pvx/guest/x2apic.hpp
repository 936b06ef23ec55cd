// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// x2APIC register writes, with a fence only where one is needed. x2APIC and TSC-deadline MSR writes are not
/// serialising [sdm3a 11.12.3], so an IPI could overtake the data that it announces. On AMD and Hygon they wait for
/// earlier stores by themselves [amd-icr], and `mfence; lfence` costs tens of nanoseconds on every IPI. Runs on the CPU
/// whose APIC it is; no state.

#include <pvx/abi/apic.hpp>
#include <pvx/guest/concepts.hpp>

namespace pvx::inline v0::guest {

/// Whether a write to the ICR needs a fence on this vendor's CPUs. An unknown vendor is fenced. A guest whose
/// hypervisor makes up vendor names, or may migrate it to another vendor, says true.
constexpr bool icr_needs_fence(abi::cpu_vendor vendor) {
    return vendor != abi::cpu_vendor::amd && vendor != abi::cpu_vendor::hygon;
}

/// The x2APIC of the calling CPU. \pre the APIC is in x2APIC mode.
template <wrmsr_fence_policy Machine>
class x2apic {
public:
    constexpr x2apic(Machine machine, bool fence_icr) : machine_(machine), fence_icr_(fence_icr) {}

    /// Send a command to one CPU. Earlier stores of the caller are visible to it when the interrupt arrives.
    void send(apic_id destination, abi::apic_command command) const {
        if (fence_icr_) machine_.fence_before_wrmsr();
        machine_.write_msr(abi::apic_msr(abi::apic_reg::icr_low), abi::x2apic_icr(destination, command));
    }

    /// Send a fixed interrupt to the calling CPU, which needs no fence: a CPU sees its own stores.
    void send_self(uint8_t vector) const { machine_.write_msr(abi::apic_msr(abi::apic_reg::self_ipi), vector); }

    /// End of interrupt: local, no fence.
    void end_of_interrupt() const { machine_.write_msr(abi::apic_msr(abi::apic_reg::eoi), 0); }

private:
    [[no_unique_address]] Machine machine_;
    bool fence_icr_;
};

/// Arm the calling CPU's timer in TSC-deadline mode, in either APIC mode; 0 disarms it. Local, no fence.
template <msr_policy Machine>
void arm_tsc_deadline(Machine const& machine, tsc_ticks when) {
    machine.write_msr(abi::msr::ia32_tsc_deadline, when.value);
}

/// Call once after the LVT timer was switched to deadline mode through the xAPIC page: that store can be overtaken by
/// the first write of the deadline MSR, which the CPU would then ignore. [sdm3a 11.5.4.1]
template <wrmsr_fence_policy Machine>
void order_xapic_deadline_mode(Machine const& machine) {
    machine.fence_stores();
}

}  // namespace pvx::inline v0::guest
