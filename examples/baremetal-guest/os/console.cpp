// SPDX-License-Identifier: MIT

#include "console.hpp"

#include "atomics.hpp"
#include "cpu_ops.hpp"

namespace os {
namespace {

constexpr uint16_t serial_port = 0x3f8;
constexpr uint16_t fifo_control = serial_port + 2;
constexpr uint16_t line_control = serial_port + 3;
constexpr uint16_t modem_control = serial_port + 4;
constexpr uint16_t line_status = serial_port + 5;
constexpr uint8_t transmitter_empty = 0x20;

/// Characters that go out for one look at the line status: under a hypervisor each access is an exit.
constexpr uint32_t fifo_size = 16;

/// A second or less. In TSC ticks, since the console is there before the clock.
constexpr uint64_t seize_patience = 1'000'000'000;

/// 0, or the owner's TSS selector: a name that a CPU has before it has an index.
constinit uint32_t console_lock = 0;

bool try_lock(uint32_t me) {
    uint32_t found = 0;
    // order: acquire [os-console] of the previous owner's port accesses; pairs with [os-console] in write()
    return atomics.ref(console_lock).compare_exchange(found, me, order::acquire, order::relaxed);
}

void transmit(string_view text) {
    for (size_t i = 0; i < text.size(); ++i) {
        if (i % fifo_size == 0)
            for (uint32_t tries = 0; tries < 100'000 && (in8(line_status) & transmitter_empty) == 0; ++tries)
                arch::pause();
        out8(serial_port, static_cast<uint8_t>(text[i]));
    }
}

}  // namespace

void initialise_console() {
    out8(serial_port + 1, 0);  // no interrupts
    out8(line_control, 0x80);  // the next two are the divisor: 115200 baud
    out8(serial_port, 1);
    out8(serial_port + 1, 0);
    out8(line_control, 0x03);   // 8 data bits, no parity, 1 stop bit
    out8(fifo_control, 0x07);   // FIFOs on and empty
    out8(modem_control, 0x03);  // DTR, RTS
}

void write(string_view text) {
    irq_guard const guard;
    uint32_t const me = task_selector();
    if (atomics.ref(console_lock).load(order::relaxed) == me) {
        transmit(text);
        return;
    }
    while (!try_lock(me)) arch::pause();
    transmit(text);
    // order: release [os-console]; pairs with [os-console] in try_lock()
    atomics.ref(console_lock).store(0u, order::release);
}

void vprint(string_view format, format_argument const* arguments) {
    text_buffer<line_capacity> line;
    line.vprint(format, arguments);
    write(line.view());
}

void seize_console() {
    arch::irq_disable();
    uint32_t const me = task_selector();
    uint64_t const start = arch::rdtsc();
    while (atomics.ref(console_lock).load(order::relaxed) != me && !try_lock(me)) {
        if (arch::rdtsc() - start > seize_patience) {
            atomics.ref(console_lock).store(me, order::relaxed);
            break;
        }
        arch::pause();
    }
}

}  // namespace os
