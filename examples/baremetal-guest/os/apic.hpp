// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The local APIC: as x2APIC where CPUID offers it, else as xAPIC. All CPUs use the same mode. [sdm3a 11]

#include <stdint.h>

#include <pvx/abi/apic.hpp>

namespace os {

/// Enables this CPU's APIC, with timer and LINT0 masked. LINT1 is NMI on the CPU that boots: QEMU's `inject-nmi` makes
/// a hung guest report where it hangs.
void initialise_apic();

bool apic_is_x2apic();
/// This CPU's id by its APIC, not by the table.
uint32_t read_apic_id();

/// Any register by its xAPIC offset (pvx::abi::apic_reg); in x2APIC mode the ICR is not one of them.
uint32_t read_apic(uint32_t reg);
void write_apic(uint32_t reg, uint32_t value);

void end_of_interrupt();

/// To one CPU, also to this one: any command, or the usual ones.
void send_command(uint32_t apic_id, pvx::abi::apic_command command);

/// To one CPU, also to this one. Earlier stores are visible to the target before it takes the interrupt.
void send_ipi(uint32_t apic_id, uint8_t vector);
void send_nmi(uint32_t apic_id);
void send_init(uint32_t apic_id);
/// The target begins in real mode at `page` * 4096.
void send_startup(uint32_t apic_id, uint8_t page);

}  // namespace os
