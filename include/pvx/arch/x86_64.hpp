// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// x86-64: the only inline assembly of pvx, and `arch::x86_64`, a ready base for a machine object. For ring 0, guest or
/// host. It is written for both assembler dialects (-masm=intel). Each statement is volatile and, where it can make
/// another side act, a compiler barrier.

#if !defined(__x86_64__)
#error "pvx/arch/x86_64.hpp is for x86-64 only"
#endif

#include <pvx/arch/concepts.hpp>
#include <pvx/arch/hypercall.hpp>

namespace pvx::inline v0::arch {

PVX_ALWAYS_INLINE abi::cpuid_regs cpuid(uint32_t leaf, uint32_t subleaf) {
    abi::cpuid_regs r;
    __asm__ volatile("cpuid" : "=a"(r.eax), "=b"(r.ebx), "=c"(r.ecx), "=d"(r.edx) : "a"(leaf), "c"(subleaf));
    return r;
}

PVX_ALWAYS_INLINE uint64_t read_msr(uint32_t index) {
    uint32_t low, high;
    __asm__ volatile("rdmsr" : "=a"(low), "=d"(high) : "c"(index) : "memory");
    return uint64_t{high} << 32 | low;
}

PVX_ALWAYS_INLINE void write_msr(uint32_t index, uint64_t value) {
    __asm__ volatile("wrmsr"
                     :
                     : "c"(index), "a"(static_cast<uint32_t>(value)), "d"(static_cast<uint32_t>(value >> 32))
                     : "memory");
}

/// The counter as it is now; the CPU may read it early or late.
PVX_ALWAYS_INLINE uint64_t rdtsc() {
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high)::"memory");
    return uint64_t{high} << 32 | low;
}

/// The counter, not before earlier loads have their values. LFENCE is dispatch-serialising on Intel, and on AMD under
/// every kernel and hypervisor that is not from before 2018. [sdm2b RDTSC] [apm3 LFENCE]
PVX_ALWAYS_INLINE uint64_t rdtsc_ordered() {
    uint32_t low, high;
    __asm__ volatile("lfence; rdtsc" : "=a"(low), "=d"(high)::"memory");
    return uint64_t{high} << 32 | low;
}

PVX_ALWAYS_INLINE void pause() { __asm__ volatile("pause" ::: "memory"); }
PVX_ALWAYS_INLINE void irq_disable() { __asm__ volatile("cli" ::: "memory"); }
PVX_ALWAYS_INLINE void irq_enable() { __asm__ volatile("sti" ::: "memory"); }
PVX_ALWAYS_INLINE void hlt() { __asm__ volatile("hlt" ::: "memory"); }
/// STI holds interrupts off for one more instruction, so none can slip in before the HLT. [sdm2b STI]
PVX_ALWAYS_INLINE void sti_hlt() { __asm__ volatile("sti; hlt" ::: "memory"); }
PVX_ALWAYS_INLINE void mfence() { __asm__ volatile("mfence" ::: "memory"); }
PVX_ALWAYS_INLINE void mfence_lfence() { __asm__ volatile("mfence; lfence" ::: "memory"); }

/// RFLAGS. Pushes them, so not for code with a red zone: a kernel has none.
PVX_ALWAYS_INLINE uint64_t read_rflags() {
    uint64_t flags;
    __asm__ volatile("pushfq; pop{q %0| %0}" : "=r"(flags)::"memory");
    return flags;
}

/// RFLAGS: interrupts are enabled.
inline constexpr uint64_t rflags_if = bit<uint64_t>(9);

PVX_ALWAYS_INLINE int64_t vmcall(uint64_t number, uint64_t a0, uint64_t a1, uint64_t a2, uint64_t a3) {
    int64_t result;
    __asm__ volatile("vmcall" : "=a"(result) : "a"(number), "b"(a0), "c"(a1), "d"(a2), "S"(a3) : "memory");
    return result;
}

PVX_ALWAYS_INLINE int64_t vmmcall(uint64_t number, uint64_t a0, uint64_t a1, uint64_t a2, uint64_t a3) {
    int64_t result;
    __asm__ volatile("vmmcall" : "=a"(result) : "a"(number), "b"(a0), "c"(a1), "d"(a2), "S"(a3) : "memory");
    return result;
}

/// A hypercall by the instruction that was chosen at set-up.
PVX_ALWAYS_INLINE int64_t hypercall(hypercall_instruction instruction, uint64_t number, uint64_t a0, uint64_t a1,
                                    uint64_t a2, uint64_t a3) {
    return instruction == hypercall_instruction::vmmcall ? vmmcall(number, a0, a1, a2, a3)
                                                         : vmcall(number, a0, a1, a2, a3);
}

/// i if i < n, else 0, by a data dependency that speculation cannot bypass: the mask comes from the borrow of i - n.
PVX_ALWAYS_INLINE uint32_t clamp_index(uint32_t i, uint32_t n) {
    uint32_t mask;
    __asm__ volatile("cmp{l %2, %1| %1, %2}; sbb{l %0, %0| %0, %0}" : "=r"(mask) : "r"(i), "r"(n) : "cc");
    return i & mask;
}

/// The hardware roles of a machine: a kernel's own machine object inherits this and adds what its OS owns. Empty.
/// The hypercall role is not here, since the instruction depends on the CPU: see arch/hypercall.hpp.
struct x86_64 : builtin_atomics {
    /// RFLAGS as irq_save() found it.
    using irq_state = uint64_t;

    PVX_ALWAYS_INLINE abi::cpuid_regs cpuid(uint32_t leaf, uint32_t subleaf) const {
        return arch::cpuid(leaf, subleaf);
    }
    PVX_ALWAYS_INLINE uint64_t read_msr(uint32_t index) const { return arch::read_msr(index); }
    PVX_ALWAYS_INLINE void write_msr(uint32_t index, uint64_t value) const { arch::write_msr(index, value); }
    PVX_ALWAYS_INLINE tsc_ticks tsc() const { return tsc_ticks{rdtsc_ordered()}; }
    PVX_ALWAYS_INLINE uint32_t clamp_index(uint32_t i, uint32_t n) const { return arch::clamp_index(i, n); }
    PVX_ALWAYS_INLINE void relax() const { pause(); }
    /// See guest::byte_store_policy. The first byte is the lowest.
    PVX_ALWAYS_INLINE void store_low_byte(uint32_t& word, uint8_t value, store_order auto o) const {
        ref(reinterpret_cast<uint8_t&>(word)).store(value, o);
    }

    PVX_ALWAYS_INLINE irq_state irq_save() const {
        irq_state const state = read_rflags();
        irq_disable();
        return state;
    }
    PVX_ALWAYS_INLINE bool irqs_on(irq_state state) const { return (state & rflags_if) != 0; }
    PVX_ALWAYS_INLINE void irq_restore(irq_state state) const {
        if (irqs_on(state)) irq_enable();
    }

    PVX_ALWAYS_INLINE void halt_irqs_off() const { hlt(); }
    PVX_ALWAYS_INLINE void enable_and_halt(irq_state) const { sti_hlt(); }

    PVX_ALWAYS_INLINE void fence_before_wrmsr() const { mfence_lfence(); }
    PVX_ALWAYS_INLINE void fence_stores() const { mfence(); }
};

}  // namespace pvx::inline v0::arch
