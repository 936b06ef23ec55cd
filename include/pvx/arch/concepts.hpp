// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The hardware roles of a machine object. Each is one small concept; a component asks for those that it uses. A port
/// to x86-64 inherits them all from arch/x86_64.hpp. On a compile error, the requirement that is not met is the line
/// that the compiler quotes.

#include <pvx/abi/cpuid.hpp>
#include <pvx/base/atomics.hpp>
#include <pvx/base/types.hpp>

namespace pvx::inline v0 {

/// Reading CPUID.
/// Axiom: one leaf and sub-leaf always gives the same answer during set-up. It may exit to the hypervisor (thousands of
/// cycles), so only set-up calls it, and it may be a table.
template <class M>
concept cpuid_policy = requires(M const m, uint32_t leaf, uint32_t subleaf) {
    { m.cpuid(leaf, subleaf) } -> same_as<abi::cpuid_regs>;  // cpuid(leaf, subleaf) gives the four registers
};

/// Access to model-specific registers of the CPU that calls.
/// Axiom: a compiler barrier. Hardware serialisation is not promised.
template <class M>
concept msr_policy = requires(M const m, uint32_t index, uint64_t value) {
    { m.read_msr(index) } -> same_as<uint64_t>;  // read_msr(index) gives all 64 bits
    m.write_msr(index, value);                   // write_msr(index, value)
};

/// Calls to the hypervisor with KVM's register convention.
/// Axiom: all earlier stores are visible to the host.
template <class M>
concept hypercall_policy = requires(M const m, uint64_t v) {
    { m.hypercall(v, v, v, v, v) } -> same_as<int64_t>;  // hypercall(number, a0, a1, a2, a3), negative on error
};

/// The time stamp counter.
/// Axiom: the reading is not taken before any earlier load of the same CPU has its value.
template <class M>
concept tsc_policy = requires(M const m) {
    { m.tsc() } -> same_as<tsc_ticks>;  // tsc() reads the counter, ordered after earlier loads
};

/// Indices that the other side chose.
/// Axiom: `clamp_index(i, n)` is i if i < n, and 0 otherwise, also while the CPU speculates.
template <class M>
concept index_policy = requires(M const m, uint32_t v) {
    { m.clamp_index(v, v) } -> same_as<uint32_t>;  // clamp_index(i, n)
};

/// A hint to the CPU that this is a spin loop.
template <class M>
concept relax_policy = requires(M const m) {
    m.relax();  // relax() pauses for a moment; does nothing else
};

/// The interrupt flag of the CPU that calls.
/// Axiom: a kernel that tracks the flag in a state of its own keeps both in step.
template <class M>
concept irq_policy = requires(M const m, typename M::irq_state state) {
    { m.irq_save() } -> same_as<typename M::irq_state>;  // irq_save() turns interrupts off and says how they were
    m.irq_restore(state);                                // irq_restore(state) makes them as they were
    { m.irqs_on(state) } -> same_as<bool>;               // irqs_on(state): they were on
};

/// Stopping the CPU until something happens.
/// Axiom: `enable_and_halt` lets no interrupt in between the enabling and the halt. Both may return for no reason.
template <class M>
concept halt_policy = relax_policy<M> && requires(M const m, typename M::irq_state state) {
    m.halt_irqs_off();         // halt_irqs_off() halts with interrupts off: only a kick, NMI or reset ends it
    m.enable_and_halt(state);  // enable_and_halt(state) enables interrupts and halts in one step
};

/// The fences around writes to interrupt-command and timer registers.
/// Axiom: `fence_before_wrmsr` makes earlier stores visible, and completes earlier loads, before a following WRMSR that
/// does not serialise by itself; `fence_stores` makes earlier stores, also uncached ones, visible before what follows.
template <class M>
concept wrmsr_fence_policy = msr_policy<M> && requires(M const m) {
    m.fence_before_wrmsr();  // fence_before_wrmsr(): MFENCE; LFENCE on x86
    m.fence_stores();        // fence_stores(): MFENCE on x86
};

}  // namespace pvx::inline v0
