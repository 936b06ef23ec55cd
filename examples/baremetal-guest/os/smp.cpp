// SPDX-License-Identifier: MIT

#include "smp.hpp"

#include <pvx/abi/msr.hpp>

#include "apic.hpp"
#include "atomics.hpp"
#include "clock.hpp"
#include "console.hpp"
#include "descriptor_tables.hpp"
#include "exit.hpp"
#include "memory.hpp"
#include "paging.hpp"
#include "panic.hpp"
#include "per_cpu.hpp"
#include "trap.hpp"

extern "C" {
extern uint8_t const trampoline_start[], trampoline_end[];
/// Read and written by boot/entry.S: the next ticket, their number, and the top of the stack of each.
constinit uint32_t started_tickets = 0;
constinit uint32_t started_limit = 0;
constinit uint32_t started_stacks[os::max_cpus]{};
constinit os::cpu_stacks boot_stacks{};
[[noreturn]] void os_start_other(uint32_t ticket);
}

namespace os {
namespace {

constexpr uint64_t init_delay_us = 10'000;
constexpr uint64_t second_startup_after_us = 10'000;
/// For 64 vCPUs that share one CPU under an emulator.
constexpr uint64_t start_timeout_us = 30'000'000;

constinit per_cpu records[max_cpus]{};
constinit uint32_t running_cpus = 1;
/// By ticket, as started_stacks.
constinit cpu_stacks* ticket_stacks[max_cpus]{};

void set_gs(per_cpu& cpu) {
    cpu.self = &cpu;
    arch::write_msr(pvx::abi::msr::ia32_gs_base, reinterpret_cast<uint64_t>(&cpu));
}

bool is_online(uint32_t index) {
    // order: acquire [os-online] the CPU's set-up; pairs with [os-online] in set_online()
    return atomics.ref(records[index].online).load(order::acquire) != 0;
}

void set_online(per_cpu& cpu) {
    // order: release [os-online]; pairs with [os-online] in is_online()
    atomics.ref(cpu.online).store(1u, order::release);
}

/// Waits until all CPUs are online; false if that takes longer.
bool wait_all_online(uint64_t us) {
    uint64_t const begin = arch::rdtsc();
    for (uint32_t i = 1; i < running_cpus;) {
        if (is_online(i)) {
            ++i;
        } else {
            if (arch::rdtsc() - begin > us_to_tsc(us)) return false;
            arch::pause();
        }
    }
    return true;
}

void add_cpu(uint32_t apic_id) {
    if (!apic_is_x2apic() && apic_id > 0xfe) {
        print("smp: APIC id {} needs an x2APIC, which this machine does not offer; not started\n", apic_id);
        return;
    }
    per_cpu& cpu = records[running_cpus];
    cpu.index = running_cpus++;
    cpu.apic_id = apic_id;
}

/// The first CPU is number 0, wherever the table has it; the others follow in the table's order.
void make_table(acpi_info const& acpi) {
    per_cpu& first = records[0];
    first.apic_id = read_apic_id();
    set_online(first);
    bool found = false;
    for (uint32_t i = 0; i < acpi.cpu_count; ++i) found |= acpi.apic_ids[i] == first.apic_id;
    if (acpi.cpu_count == 0)
        print("smp: ACPI names no CPU, so there is only this one (apic id {})\n", first.apic_id);
    else if (!found)
        print("smp: the MADT does not list the CPU that booted (apic id {})\n", first.apic_id);
    for (uint32_t i = 0; i < acpi.cpu_count; ++i)
        if (acpi.apic_ids[i] != first.apic_id && running_cpus < max_cpus) add_cpu(acpi.apic_ids[i]);
    if (acpi.ignored_count != 0)
        print("smp: {} CPUs beyond the first {} are not started\n", acpi.ignored_count, max_cpus);
}

}  // namespace

per_cpu& cpu_record(uint32_t index) { return records[index]; }
uint32_t cpu_count() { return running_cpus; }
uint32_t cpu_apic_id(uint32_t index) { return records[index].apic_id; }

per_cpu* this_cpu_or_null() {
    uint64_t const offset = arch::read_msr(pvx::abi::msr::ia32_gs_base) - reinterpret_cast<uint64_t>(records);
    if (offset >= sizeof(records) || offset % sizeof(per_cpu) != 0) return nullptr;
    return &records[offset / sizeof(per_cpu)];
}

void initialise_first_cpu() {
    records[0].stacks = &boot_stacks;
    set_gs(records[0]);
    initialise_descriptor_tables();
    load_descriptor_tables(0, boot_stacks);
    enable_machine_checks();
}

void start_other_cpus(acpi_info const& acpi) {
    make_table(acpi);
    if (running_cpus == 1) return;

    for (uint32_t ticket = 0; ticket + 1 < running_cpus; ++ticket) {
        auto* const stacks = static_cast<cpu_stacks*>(allocate_pages(sizeof(cpu_stacks) / page_size));
        protect_stacks(*stacks);
        ticket_stacks[ticket] = stacks;
        started_stacks[ticket] = static_cast<uint32_t>(stacks->top());
    }
    started_limit = running_cpus - 1;
    uint64_t const page = low_page();
    copy_bytes(reinterpret_cast<void*>(page), trampoline_start, static_cast<size_t>(trampoline_end - trampoline_start));

    // All at once: the delays are then paid once, and 64 CPUs start as fast as the host can run them.
    uint8_t const startup_page = static_cast<uint8_t>(page / page_size);
    for (uint32_t i = 1; i < running_cpus; ++i) send_init(cpu_apic_id(i));
    delay_us(init_delay_us);
    for (uint32_t i = 1; i < running_cpus; ++i) send_startup(cpu_apic_id(i), startup_page);
    if (wait_all_online(second_startup_after_us)) return;
    for (uint32_t i = 1; i < running_cpus; ++i)
        if (!is_online(i)) send_startup(cpu_apic_id(i), startup_page);  // a CPU that did start ignores it
    if (wait_all_online(start_timeout_us)) return;
    for (uint32_t i = 1; i < running_cpus; ++i)
        if (!is_online(i)) panic("cpu {} (apic id {}) did not start after INIT and two SIPIs", i, cpu_apic_id(i));
}

}  // namespace os

/// Where a started CPU leaves boot/entry.S.
void os_start_other(uint32_t ticket) {
    using namespace os;
    cpu_stacks* const stacks = ticket_stacks[ticket];
    load_descriptor_tables(ticket + 1, *stacks);
    enable_machine_checks();
    load_page_map();
    initialise_apic();
    uint32_t const id = read_apic_id();
    uint32_t index = 1;
    while (index < cpu_count() && cpu_apic_id(index) != id) ++index;
    if (index == cpu_count()) panic("a CPU started whose APIC id, {}, is not in the MADT", id);
    per_cpu& cpu = cpu_record(index);
    cpu.stacks = stacks;
    set_gs(cpu);
    initialise_timer();
    set_online(cpu);
    idle_loop();
}
