// SPDX-License-Identifier: MIT

#include "descriptor_tables.hpp"

#include "trap.hpp"

/// boot/traps.S: 256 entry points, 16 bytes apart.
extern "C" uint8_t trap_stubs[];

namespace os {
namespace {

struct [[gnu::packed]] task_state {
    uint32_t reserved0;
    uint64_t rsp[3];
    uint64_t reserved1;
    uint64_t ist[7];
    uint64_t reserved2;
    uint16_t reserved3;
    uint16_t io_map;
};
static_assert(sizeof(task_state) == 104);

struct gate {
    uint16_t offset_0;
    uint16_t selector;
    uint8_t ist;
    uint8_t type;
    uint16_t offset_16;
    uint32_t offset_32;
    uint32_t reserved;
};
static_assert(sizeof(gate) == 16);

// The first four are those of boot_gdt in boot/entry.S.
constexpr uint16_t selector_code = 0x08;
constexpr uint16_t selector_data = 0x10;
constexpr uint32_t first_task_entry = 4;

constexpr uint8_t interrupt_gate = 0x8e;
constexpr uint64_t task_available = 0x89;

enum ist_number : uint8_t { ist_none, ist_nmi, ist_double_fault, ist_machine_check };

constinit uint64_t gdt[first_task_entry + 2 * max_cpus] = {0, 0x00af9b000000ffff, 0x00cf93000000ffff,
                                                           0x00cf9b000000ffff};
alignas(16) constinit gate idt[256]{};
// One to a slot, and no TSS crosses a page.
struct alignas(128) task_slot {
    task_state task;
};
constinit task_slot tasks[max_cpus]{};

}  // namespace

void initialise_descriptor_tables() {
    for (uint32_t i = 0; i < max_cpus; ++i) {
        tasks[i].task.io_map = sizeof(task_state);  // no I/O permission map
        uint64_t const base = reinterpret_cast<uint64_t>(&tasks[i].task);
        uint64_t* const entry = gdt + first_task_entry + 2 * i;
        entry[0] =
            (sizeof(task_state) - 1) | (base & 0xffffff) << 16 | task_available << 40 | (base >> 24 & 0xff) << 56;
        entry[1] = base >> 32;
    }
    for (uint32_t v = 0; v < 256; ++v) {
        uint64_t const stub = reinterpret_cast<uint64_t>(trap_stubs + 16 * v);
        gate& g = idt[v];
        g.offset_0 = static_cast<uint16_t>(stub);
        g.selector = selector_code;
        g.type = interrupt_gate;
        g.offset_16 = static_cast<uint16_t>(stub >> 16);
        g.offset_32 = static_cast<uint32_t>(stub >> 32);
    }
    idt[vector_nmi].ist = ist_nmi;
    idt[vector_double_fault].ist = ist_double_fault;
    idt[vector_machine_check].ist = ist_machine_check;
}

void load_descriptor_tables(uint32_t slot, cpu_stacks const& stacks) {
    auto const end = [](uint8_t const(&stack)[page_size]) { return reinterpret_cast<uint64_t>(stack + page_size); };
    task_state& task = tasks[slot].task;
    task.ist[ist_nmi - 1] = end(stacks.nmi);
    task.ist[ist_double_fault - 1] = end(stacks.double_fault);
    task.ist[ist_machine_check - 1] = end(stacks.machine_check);
    load_gdt({sizeof(gdt) - 1, reinterpret_cast<uint64_t>(gdt)}, selector_data);
    load_idt({sizeof(idt) - 1, reinterpret_cast<uint64_t>(idt)});
    load_task(static_cast<uint16_t>(8 * (first_task_entry + 2 * slot)));
}

}  // namespace os
