// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Ways for a CPU to sleep until another one kicks it, each a base that a machine object inherits to fill wait_policy:
/// KVM's halt and kick, Hyper-V's idle register and IPI, and giving up the CPU. Guest, any CPU, interrupts on or off.
/// [kvm-hypercall] [tlfs 10.1]
///
/// What each asks of its machine stands in its functions: in the class the machine is not complete yet, and clang 14
/// would remember that it meets nothing.

#include <pvx/abi/kvm_hypercall.hpp>
#include <pvx/guest/concepts.hpp>
#include <pvx/guest/deferred_flush.hpp>

namespace pvx::inline v0::guest {

/// An optional ability: the machine knows that it runs in an NMI, or in a machine check, in which it must not halt.
template <class M>
concept nmi_policy = requires(M const m) {
    { m.nmi_context() } -> same_as<bool>;  // nmi_context() is true in NMI and machine-check context
};

namespace detail {
template <class Machine>
bool must_not_halt(Machine const& machine) {
    if constexpr (nmi_policy<Machine>)
        return machine.nmi_context();
    else
        return false;
}

// Look and halt, with interrupts off; flushes are left to the CPU meanwhile, where the machine can.
template <class Machine, class Cell>
void halt_while(Machine const& m, Cell& cell, uint32_t mask, uint32_t value) {
    if constexpr (deferral_policy<Machine> && local_flush_policy<Machine>) {
        deferred_flush<Machine> const deferred{m};
        cpu_index const cpu = m.self();
        deferred.enter(cpu);
        if ((m.ref(cell).load(order::relaxed) & mask) == value) m.halt_irqs_off();
        (void)deferred.leave(cpu);
    } else {
        if ((m.ref(cell).load(order::relaxed) & mask) == value) m.halt_irqs_off();
    }
}
}  // namespace detail

/// KVM: HLT ends by an interrupt or by the kick hypercall, which the host remembers if it comes before the HLT.
/// `Machine` derives from it, and adds `bool can_kick() const`: whether the host offers kvm_feature::pv_unhalt.
///
/// Where the host has no kick, the waiter spins: with interrupts off nothing would end a halt, and with interrupts on
/// only the next one, which a kernel without ticks may not have. A machine that has deferral_policy leaves TLB flushes
/// to a waiter that halts with interrupts off: see guest/deferred_flush.hpp for what its port must hold.
template <class Machine>
struct kvm_wait {
    template <class Cell>
    void wait(Cell& cell, uint32_t mask, uint32_t value) const {
        static_assert(halt_policy<Machine> && irq_policy<Machine> && cpu_policy<Machine>);
        Machine const& m = static_cast<Machine const&>(*this);
        if (detail::must_not_halt(m) || !m.can_kick()) return m.relax();
        typename Machine::irq_state const state = m.irq_save();
        if (m.irqs_on(state)) {
            // Off, look again, halt with interrupts on: an interrupt that came between would else go by unnoticed.
            if ((m.ref(cell).load(order::relaxed) & mask) == value) return m.enable_and_halt(state);
            return m.irq_restore(state);
        }
        detail::halt_while(m, cell, mask, value);
        m.irq_restore(state);
    }

    void kick(cpu_index cpu) const {
        static_assert(hypercall_policy<Machine> && cpu_policy<Machine>);
        // By APIC id: the index of a CPU is a number of ours.
        Machine const& m = static_cast<Machine const&>(*this);
        if (m.can_kick()) (void)m.hypercall(abi::kvm_hypercall::kick_cpu, 0, m.apic(cpu).value, 0, 0);
    }
};

/// Hyper-V: reading the idle register sleeps until an interrupt is pending, also with interrupts off; a kick is an IPI.
/// `Machine` derives from it, and adds `apic_command wake_command() const`: the IPI, of a vector whose handler only
/// ends the interrupt. \pre the partition has access to the idle register, and IPIs are cheap there (both are in the
/// leaves of the interface).
template <class Machine>
struct hyperv_wait {
    /// Sleeps when read.
    static constexpr uint32_t idle_msr = 0x400000f0;

    template <class Cell>
    void wait(Cell& cell, uint32_t mask, uint32_t value) const {
        static_assert(msr_policy<Machine> && irq_policy<Machine> && relax_policy<Machine>);
        Machine const& m = static_cast<Machine const&>(*this);
        if (detail::must_not_halt(m)) return m.relax();
        // Off around the look and the read: an IPI between them would be served, and its wake lost.
        typename Machine::irq_state const state = m.irq_save();
        if ((m.ref(cell).load(order::relaxed) & mask) == value) (void)m.read_msr(idle_msr);
        m.irq_restore(state);
    }

    void kick(cpu_index cpu) const {
        static_assert(native_ipi_policy<Machine> && cpu_policy<Machine>);
        Machine const& m = static_cast<Machine const&>(*this);
        m.native_ipi(m.apic(cpu), m.wake_command());
    }
};

/// No host that wakes anybody: a waiter gives up its CPU by `Machine::yield()`, and a kick has nothing to do.
template <class Machine>
struct yield_wait {
    template <class Cell>
    void wait(Cell& cell, uint32_t mask, uint32_t value) const {
        Machine const& m = static_cast<Machine const&>(*this);
        if ((m.ref(cell).load(order::relaxed) & mask) == value) m.yield();
    }
    void kick(cpu_index) const {}
};

}  // namespace pvx::inline v0::guest
