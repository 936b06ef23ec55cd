// SPDX-License-Identifier: MIT

/// \file
/// From boot/entry.S to main(), in the order in which each part needs the ones before it.

#include "acpi.hpp"
#include "apic.hpp"
#include "boot_info.hpp"
#include "clock.hpp"
#include "command_line.hpp"
#include "console.hpp"
#include "cpu_ops.hpp"
#include "exit.hpp"
#include "paging.hpp"
#include "smp.hpp"
#include "timer.hpp"
#include "trap.hpp"

/// The program: see main.cpp. Runs on the first CPU with interrupts on and all CPUs started; its value is the exit
/// code.
uint8_t guest_main();

extern "C" [[noreturn]] void os_start(os::boot_protocol protocol, uint64_t info);

namespace {

/// The legacy PICs: moved off the exceptions' vectors, and masked for good.
void mask_legacy_pics() {
    struct {
        uint16_t port;
        uint8_t value;
    } const sequence[] = {
        {0x20, 0x11}, {0xa0, 0x11},  // initialise
        {0x21, 0x20}, {0xa1, 0x28},  // vectors
        {0x21, 0x04}, {0xa1, 0x02},  // cascade
        {0x21, 0x01}, {0xa1, 0x01},  // 8086 mode
        {0x21, 0xff}, {0xa1, 0xff},  // masked
    };
    for (auto const& step : sequence) os::out8(step.port, step.value);
}

void on_wake(os::trap_frame&) {}

}  // namespace

void os_start(os::boot_protocol protocol, uint64_t address) {
    using namespace os;
    initialise_first_cpu();
    initialise_console();
    boot_info const info = read_boot_info(protocol, address);
    set_command_line(info.command_line);
    acpi_info const acpi = read_acpi(info.rsdp);
    initialise_paging();
    mask_legacy_pics();
    initialise_apic();
    initialise_clock(acpi.pm_timer_port);
    initialise_timer();
    set_irq_handler(vector_wake, on_wake);
    initialise_shootdown();
    arch::irq_enable();
    start_other_cpus(acpi);
    exit(guest_main());
}
