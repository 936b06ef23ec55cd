// SPDX-License-Identifier: MIT

#include "panic.hpp"

#include "apic.hpp"
#include "atomics.hpp"
#include "console.hpp"
#include "exit.hpp"
#include "per_cpu.hpp"

namespace os {
namespace {

/// 0, or the TSS selector of the CPU that reports: a name that a CPU has before it has an index.
constinit uint32_t reporter = 0;

/// Not on the stack: the report of a stack overflow runs on the one page of the #DF stack. Used by the reporter only.
constinit char report_memory[2048]{};
constinit text_writer report{report_memory, sizeof(report_memory)};

void put_cpu_name(per_cpu const* cpu) {
    if (cpu != nullptr)
        report.print("cpu {} (apic id {})", cpu->index, cpu->apic_id);
    else
        report.print("a cpu without a number yet (initial apic id {})", arch::cpuid(1, 0).ebx >> 24);
}

/// Return addresses by the chain of frame pointers, as far as it stays on this CPU's stacks.
void put_backtrace(per_cpu const* cpu, uint64_t frame) {
    cpu_stacks const* const stacks = cpu != nullptr ? cpu->stacks : nullptr;
    if (stacks == nullptr) return;
    report.put("  called from");
    for (uint32_t depth = 0; depth < 12; ++depth) {
        if (frame % 8 != 0 || !stacks->contains(frame, 16)) break;
        auto const* const words = reinterpret_cast<uint64_t const*>(frame);
        report.print(" {:#x}", words[1]);
        if (words[0] <= frame) break;
        frame = words[0];
    }
    report.put("\n");
}

/// Only one CPU returns from here, once, and it has the console and the machine for itself.
per_cpu const* become_reporter() {
    arch::irq_disable();
    per_cpu const* const cpu = this_cpu_or_null();
    uint32_t const me = task_selector();
    uint32_t found = 0;
    if (!atomics.ref(reporter).compare_exchange(found, me, order::relaxed, order::relaxed)) {
        if (found != me) halt_for_ever();
        write("panic: a second fault while the first was being reported\n");
        exit(exit_code::panic);
    }
    seize_console();
    for (uint32_t i = 0; i < max_cpus; ++i) {
        per_cpu& other = cpu_record(i);
        if (&other != cpu && atomics.ref(other.online).load(order::relaxed) != 0) send_nmi(other.apic_id);
    }
    return cpu;
}

char const* const page_fault_words[][2] = {
    {"page not present", "protection"}, {"read", "write"},         {"", "user"},
    {"", "reserved bit set"},           {"", "instruction fetch"},
};

void put_page_fault(uint64_t error_code) {
    report.put(" (");
    bool first = true;
    for (uint32_t i = 0; i < sizeof(page_fault_words) / sizeof(page_fault_words[0]); ++i) {
        string_view const word = page_fault_words[i][(error_code >> i) & 1];
        if (word.empty()) continue;
        if (!first) report.put(", ");
        report.put(word);
        first = false;
    }
    report.put(")");
}

}  // namespace

bool is_panicking() { return atomics.ref(reporter).load(order::relaxed) != 0; }

void vpanic(string_view format, format_argument const* arguments) {
    per_cpu const* const cpu = become_reporter();
    report.put("panic: ");
    put_cpu_name(cpu);
    report.put(": ");
    report.vprint(format, arguments);
    report.put("\n");
    put_backtrace(cpu, frame_pointer());
    write(report.view());
    exit(exit_code::panic);
}

void report_fault(trap_frame const& f, string_view headline) {
    uint64_t const cr2 = read_cr2();
    per_cpu const* const cpu = become_reporter();
    report.print("fault: {} (vector {}) on ", headline, f.vector);
    put_cpu_name(cpu);
    report.print("\n  error code {:#x}", f.error_code);
    if (f.vector == vector_page_fault) put_page_fault(f.error_code);
    report.print("  rip {:#018x}  cr2 {:#018x}\n", f.rip, cr2);
    report.print("  rsp {:#018x}  rflags {:#x}  cs {:#x}  ss {:#x}  cr3 {:#x}\n", f.rsp, f.rflags, f.cs, f.ss,
                 read_cr3());
    report.print("  rax {:016x} rbx {:016x} rcx {:016x} rdx {:016x}\n", f.rax, f.rbx, f.rcx, f.rdx);
    report.print("  rsi {:016x} rdi {:016x} rbp {:016x} r8  {:016x}\n", f.rsi, f.rdi, f.rbp, f.r8);
    report.print("  r9  {:016x} r10 {:016x} r11 {:016x} r12 {:016x}\n", f.r9, f.r10, f.r11, f.r12);
    report.print("  r13 {:016x} r14 {:016x} r15 {:016x}\n", f.r13, f.r14, f.r15);
    if (cpu != nullptr && cpu->stacks != nullptr && cpu->stacks->in_guard(cr2) && (f.vector == 14 || f.vector == 8))
        report.put("  cr2 is in the guard page of a stack: it overflowed\n");
    put_backtrace(cpu, f.rbp);
    write(report.view());
    exit(exit_code::fault);
}

}  // namespace os
