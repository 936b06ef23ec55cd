// SPDX-License-Identifier: MIT

#include "trap.hpp"

#include <pvx/abi/cpuid.hpp>

#include "apic.hpp"
#include "atomics.hpp"
#include "exit.hpp"
#include "panic.hpp"
#include "per_cpu.hpp"

extern "C" {
void os_trap(os::trap_frame* frame);
void os_attempt_fault();
}

namespace os {
namespace {

constexpr uint32_t exception_count = 32;
/// Where the masked PICs would deliver a spurious interrupt: IRQ 7 of each.
constexpr uint64_t vector_pic_spurious_1 = 0x27;
constexpr uint64_t vector_pic_spurious_2 = 0x2f;

constinit irq_handler irq_handlers[256]{};
constinit exception_handler exception_handlers[exception_count]{};
constinit nmi_handler the_nmi_handler = nullptr;
constinit entry_hook the_entry_hook = nullptr;

constexpr string_view exception_names[exception_count] = {
    "#DE divide error",
    "#DB debug",
    "NMI",
    "#BP breakpoint",
    "#OF overflow",
    "#BR bound range",
    "#UD invalid opcode",
    "#NM no FPU",
    "#DF double fault",
    "coprocessor segment overrun",
    "#TS invalid TSS",
    "#NP segment not present",
    "#SS stack segment",
    "#GP general protection",
    "#PF page fault",
    "reserved exception 15",
    "#MF x87",
    "#AC alignment check",
    "#MC machine check",
    "#XM SIMD",
    "#VE virtualisation",
    "#CP control protection",
    "reserved exception 22",
    "reserved exception 23",
    "reserved exception 24",
    "reserved exception 25",
    "reserved exception 26",
    "reserved exception 27",
    "#HV hypervisor injection",
    "#VC VMM communication",
    "#SX security",
    "reserved exception 31",
};

/// What runs in an interrupt must not end in an attempt of the code that it interrupted.
class outside_attempt {
public:
    explicit outside_attempt(per_cpu& cpu) : cpu_(cpu), attempt_(cpu.attempt) { cpu_.attempt = nullptr; }
    ~outside_attempt() { cpu_.attempt = attempt_; }
    outside_attempt(outside_attempt const&) = delete;
    outside_attempt& operator=(outside_attempt const&) = delete;

private:
    per_cpu& cpu_;
    attempt_record* attempt_;
};

/// Also where interrupts are off.
constexpr bool comes_any_time(uint64_t vector) {
    return vector == vector_nmi || vector == vector_machine_check || vector == vector_debug ||
           vector == vector_breakpoint;
}

void call_entry_hook() {
    if (the_entry_hook == nullptr) return;
    if (per_cpu const* const cpu = this_cpu_or_null(); cpu != nullptr) the_entry_hook(cpu->index);
}

void handle_nmi(trap_frame& frame) {
    if (is_panicking()) halt_for_ever();
    per_cpu* const cpu = this_cpu_or_null();
    if (cpu == nullptr || the_nmi_handler == nullptr) report_fault(frame, "NMI that nobody asked for");
    if (cpu->in_nmi) report_fault(frame, "NMI inside an NMI handler: NMIs are not blocked until IRET");
    cpu->in_nmi = true;
    {
        outside_attempt const guard(*cpu);
        the_nmi_handler(frame);
    }
    cpu->in_nmi = false;
}

void handle_irq(trap_frame& frame) {
    if (frame.vector == vector_spurious || frame.vector == vector_pic_spurious_1 ||
        frame.vector == vector_pic_spurious_2)
        return;
    irq_handler const handler = irq_handlers[frame.vector];
    if (handler == nullptr) report_fault(frame, "interrupt that nobody handles");
    outside_attempt const guard(this_cpu());
    handler(frame);
    end_of_interrupt();
}

/// True if a handler of the exception is there and took it.
bool handle_exception(trap_frame& frame) {
    exception_handler const handler = exception_handlers[frame.vector];
    per_cpu* const cpu = this_cpu_or_null();
    if (handler == nullptr || cpu == nullptr) return false;
    outside_attempt const guard(*cpu);
    return handler(frame);
}

/// Resumes an attempt that raised this exception; false if there is none.
bool end_attempt(trap_frame& frame) {
    per_cpu* const cpu = this_cpu_or_null();
    if (cpu == nullptr || cpu->attempt == nullptr) return false;
    if (frame.vector == vector_double_fault || frame.vector == vector_machine_check) return false;
    attempt_record& record = *cpu->attempt;
    record.fault.raised = true;
    record.fault.vector = static_cast<uint8_t>(frame.vector);
    record.fault.error_code = static_cast<uint32_t>(frame.error_code);
    record.fault.rip = frame.rip;
    record.fault.address = frame.vector == vector_page_fault ? read_cr2() : 0;
    frame.rip = reinterpret_cast<uint64_t>(&os_attempt_fault);
    frame.rsp = record.stack;
    frame.rflags = record.flags;
    return true;
}

}  // namespace

void set_irq_handler(uint8_t vector, irq_handler handler) { irq_handlers[vector] = handler; }
void set_nmi_handler(nmi_handler handler) { the_nmi_handler = handler; }
void set_exception_handler(uint8_t vector, exception_handler handler) { exception_handlers[vector] = handler; }
void set_entry_hook(entry_hook hook) { the_entry_hook = hook; }

void enable_machine_checks() {
    constexpr pvx::abi::cpuid_bit machine_check{1, 0, pvx::abi::cpuid_reg::edx, 7};
    constexpr uint64_t cr4_machine_check = 1 << 6;
    if (pvx::abi::has(arch::cpuid(machine_check.leaf, 0), machine_check)) write_cr4(read_cr4() | cr4_machine_check);
}

}  // namespace os

void os_trap(os::trap_frame* frame) {
    using namespace os;
    if (comes_any_time(frame->vector)) call_entry_hook();
    if (frame->vector == vector_nmi) return handle_nmi(*frame);
    if (frame->vector >= exception_count) return handle_irq(*frame);
    if (handle_exception(*frame) || end_attempt(*frame)) return;
    report_fault(*frame, exception_names[frame->vector]);
}
