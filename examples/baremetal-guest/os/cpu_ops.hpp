// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The instructions that this OS needs beside those in pvx/arch/x86_64.hpp, and the only inline assembly in it.

#include <pvx/arch/x86_64.hpp>

namespace os {

namespace arch = pvx::arch;

/// What LGDT and LIDT take.
struct [[gnu::packed]] table_pointer {
    uint16_t limit;
    uint64_t base;
};

inline void out8(uint16_t port, uint8_t value) { asm volatile("outb %0, %1" ::"a"(value), "Nd"(port) : "memory"); }

inline uint8_t in8(uint16_t port) {
    uint8_t value;
    asm volatile("inb %1, %0" : "=a"(value) : "Nd"(port) : "memory");
    return value;
}

inline uint32_t in32(uint16_t port) {
    uint32_t value;
    asm volatile("inl %1, %0" : "=a"(value) : "Nd"(port) : "memory");
    return value;
}

/// Loads the GDT and its selectors. CS is the same in every GDT of this kernel, so it needs no reload.
inline void load_gdt(table_pointer const& gdt, uint16_t data_selector) {
    asm volatile("lgdt %0; movl %1, %%ds; movl %1, %%es; movl %1, %%ss" ::"m"(gdt), "r"(uint32_t{data_selector})
                 : "memory");
}

inline void load_idt(table_pointer const& idt) { asm volatile("lidt %0" ::"m"(idt) : "memory"); }
inline void load_task(uint16_t selector) { asm volatile("ltr %0" ::"r"(selector) : "memory"); }

/// The selector of this CPU's TSS: its own from the first instructions on, before it has an index.
inline uint16_t task_selector() {
    uint16_t value;
    asm volatile("str %0" : "=r"(value));
    return value;
}

inline uint64_t read_cr2() {
    uint64_t value;
    asm volatile("movq %%cr2, %0" : "=r"(value)::"memory");
    return value;
}

inline uint64_t read_cr3() {
    uint64_t value;
    asm volatile("movq %%cr3, %0" : "=r"(value)::"memory");
    return value;
}

/// Loads a page map, which flushes this CPU's non-global translations.
inline void write_cr3(uint64_t value) { asm volatile("movq %0, %%cr3" ::"r"(value) : "memory"); }

inline uint64_t read_cr4() {
    uint64_t value;
    asm volatile("movq %%cr4, %0" : "=r"(value)::"memory");
    return value;
}

inline void write_cr4(uint64_t value) { asm volatile("movq %0, %%cr4" ::"r"(value) : "memory"); }

/// Drops this CPU's translation of one page.
inline void invlpg(uint64_t address) {
    asm volatile("invlpg (%0)" ::"r"(reinterpret_cast<void const*>(address)) : "memory");
}

/// INT n: enters as the exception or interrupt of that vector would, without an error code.
template <uint8_t Vector>
inline void software_interrupt() {
    asm volatile("int %0" ::"i"(Vector) : "memory");
}

/// Raises #UD.
[[noreturn]] inline void undefined_instruction() {
    asm volatile("ud2");
    __builtin_unreachable();
}

/// Keeps the compiler from merging what is before with what is after.
inline void compiler_barrier() { asm volatile("" ::: "memory"); }

/// Copies, sets: `rep movsb` and `rep stosb`, which cannot become calls to memcpy and memset again.
inline void copy_bytes(void* to, void const* from, size_t size) {
    asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(size)::"memory");
}

inline void set_bytes(void* to, uint8_t value, size_t size) {
    asm volatile("rep stosb" : "+D"(to), "+c"(size) : "a"(value) : "memory");
}

/// Memory that the compiler knows nothing about: at an address that it would otherwise take for null plus an offset.
inline void* opaque_memory(uint64_t address) {
    asm("" : "+r"(address));
    return reinterpret_cast<void*>(address);
}

/// The caller's frame pointer.
inline uint64_t frame_pointer() {
    uint64_t value;
    asm volatile("movq %%rbp, %0" : "=r"(value));
    return value;
}

/// The first and third word of this CPU's os::per_cpu, by GS.
inline uint64_t gs_self() {
    uint64_t value;
    asm volatile("movq %%gs:0, %0" : "=r"(value));
    return value;
}

inline uint32_t gs_index() {
    uint32_t value;
    asm volatile("movl %%gs:8, %0" : "=r"(value));
    return value;
}

/// Interrupts off for a scope, then as they were.
class irq_guard {
public:
    irq_guard() : state_(arch::read_rflags()) { arch::irq_disable(); }
    ~irq_guard() {
        if ((state_ & arch::rflags_if) != 0) arch::irq_enable();
    }
    irq_guard(irq_guard const&) = delete;
    irq_guard& operator=(irq_guard const&) = delete;

private:
    uint64_t state_;
};

}  // namespace os
