// SPDX-License-Identifier: MIT

#include "exit.hpp"

#include "console.hpp"
#include "cpu_ops.hpp"

namespace os {

constexpr uint16_t debug_exit_port = 0xf4;

void exit(uint8_t value) {
    seize_console();
    out8(debug_exit_port, value);
    print("exit code {}; there is no isa-debug-exit device at port 0xf4, so this machine halts\n", value);
    halt_for_ever();
}

void halt_for_ever() {
    arch::irq_disable();
    for (;;) arch::hlt();
}

}  // namespace os
