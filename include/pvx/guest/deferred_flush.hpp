// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Deferred TLB flushes, between guest CPUs alone: a CPU that waits with interrupts off cannot answer a flush IPI, and
/// the flusher burns its own CPU until the wait ends. Here the waiter says so in a byte of its own, flushers leave
/// their flush there, and the waiter does it before it touches anything that could be stale. Works on any hypervisor,
/// and on none. Each byte is written by its CPU, except that a flusher may turn asleep into asleep|pending.
///
///     waiter                                    flusher
///     byte = asleep          [defer-asleep]     page-table stores
///     ... halted or spinning ...                CAS asleep -> asleep|pending   [defer-asleep] [defer-pending]
///     old = exchange(draining)  [defer-pending] CAS won: no IPI, the waiter owes a flush
///     old != asleep: flush everything           CAS lost: IPI
///     byte = awake
///
/// Draining is a state of its own for the sake of NMIs. One that lands between the exchange and the end of the flush
/// must see that a flush is owed, and does it itself. To flush first and clear the byte afterwards would lose a second
/// flusher's request.
///
/// The contract, in all of which the CPU is the one between enter() and the end of leave():
/// 1. enter() with interrupts off, not in NMI or machine-check context, not nested. Every way out of the wait (kick,
///    spurious wake, value changed before the halt) goes through leave() first.
/// 2. It touches only *pinned* mappings: entry text, IDT, GDT, TSS, interrupt stacks, per-CPU area, its own stack, lock
///    words, queue nodes, and the code of halting, kicking and flushing. Pinned: neither address, nor page size,
///    permissions or memory type is ever changed by a flush that may be deferred.
/// 3. Every entry that can be taken with interrupts off and may touch anything that is not pinned calls leave() first:
///    NMI, machine check, debug, breakpoint, and the exceptions of virtualised memory (VC, VE, HV) where they exist;
///    after the registers are saved, the per-CPU base and CR3 are the kernel's. SMI and INIT need none. On SEV-ES and
///    TDX the wait halts by a direct hypercall: a HLT that traps would run the hook and end the deferral.
/// 4. Only flushes of leaf entries that keep page size, memory type and encryption are deferred: see flush_kind.
/// 5. A CPU that owes a flush has not reached the flusher's generation until leave() said that it flushed.
/// 6. A CPU that comes online has its byte awake, enters the masks, then passes a full fence and does one full flush,
///    before it uses anything that a flush could be about. One that goes offline is out of every mask first.
/// 7. A flusher holds no lock that any CPU takes with interrupts off.
///
/// What the state promises is "touches pinned memory only", so a waiter that spins may hold it as well as one that
/// halts. Waiters with interrupts on, and idle loops, do not need it: they answer. A hook that runs in a wait ends what
/// is deferred: from then on flushers interrupt and wait for this CPU, until it calls enter() again.

#include <pvx/guest/concepts.hpp>

namespace pvx::inline v0::guest {

/// A CPU's byte. Zero, awake, is the start.
namespace deferral {
inline constexpr uint8_t awake = 0;     ///< Flushes are asked for by IPI.
inline constexpr uint8_t asleep = 1;    ///< Flushes may be left here.
inline constexpr uint8_t pending = 2;   ///< With asleep: one was.
inline constexpr uint8_t draining = 4;  ///< On the way out: flushes are asked for by IPI, and none has been done yet.
}  // namespace deferral

/// Flushes that waiting CPUs owe themselves.
template <deferral_policy Machine>
class deferred_flush {
public:
    constexpr explicit deferred_flush(Machine machine) : machine_(machine) {}

    /// The CPU `cpu` begins to wait. \pre `cpu` is the calling CPU; points 1 and 2 of the contract.
    /// Where the CPU is waiting already, this changes nothing.
    PVX_ENTRY_INLINE void enter(cpu_index cpu) const {
        auto const byte = machine_.ref(machine_.deferral(cpu));
        // Not over pending. Relaxed: awake is changed by this CPU alone.
        if (byte.load(order::relaxed) != deferral::awake) return;
        // order: release [defer-asleep] accesses through old translations before asleep; pairs with the CAS in defer()
        byte.store(deferral::asleep, order::release);
    }

    /// The CPU `cpu` is about to touch memory that is not pinned: at the end of a wait, and in the entries of point 3.
    /// One load and one test where nothing is deferred. \return whether it flushed everything: then it has caught up
    /// with every flush whose page-table stores came before its byte was read.
    /// \pre `cpu` is the calling CPU; interrupts are off.
    PVX_ENTRY_INLINE bool leave(cpu_index cpu) const {
        auto const byte = machine_.ref(machine_.deferral(cpu));
        // Relaxed: what another CPU may change here, asleep to asleep|pending, does not change the answer.
        if (byte.load(order::relaxed) == deferral::awake) return false;
        // order: acquire [defer-pending] the flusher's page-table stores; pairs with the CAS in defer(). A flusher that
        // skips the CAS relies on the fence in flush_all_local() [defer-skip].
        bool const owed = byte.exchange(deferral::draining, order::acquire) != deferral::asleep;
        if (owed) machine_.flush_all_local();
        // Relaxed: the flush is a full fence, and without one nothing was done that awake could announce.
        byte.store(deferral::awake, order::relaxed);
        return owed;
    }

    /// `cpu` waits, so that a flush can be left to it. A hint: defer() decides.
    PVX_ALWAYS_INLINE bool waits(cpu_index cpu) const {
        return (machine_.ref(machine_.deferral(cpu)).load(order::relaxed) & deferral::asleep) != 0;
    }

    /// Leave a flush to `cpu`. True: it flushes everything before it touches anything that is not pinned; send it no
    /// IPI and expect no acknowledgement. False: it is not waiting.
    /// \pre the flush is of a kind that may be deferred; the page-table stores are before this in program order.
    PVX_ALWAYS_INLINE bool defer(cpu_index cpu) const { return defer(cpu, false); }

    /// The same where a full fence (order::seq_cst) stands between the last page-table store and the call: where a
    /// flush is pending already, this is one load.
    PVX_ALWAYS_INLINE bool defer_fenced(cpu_index cpu) const { return defer(cpu, true); }

private:
    PVX_ALWAYS_INLINE bool defer(cpu_index cpu, bool fenced) const {
        constexpr uint8_t owing = deferral::asleep | deferral::pending;
        auto const byte = machine_.ref(machine_.deferral(cpu));
        // order: acquire [defer-asleep] here and where the CAS fails: pending was reached from the waiter's asleep
        uint8_t seen = byte.load(order::acquire);
        if (fenced && seen == owing) return true;
        if ((seen & deferral::asleep) == 0) return false;
        // One attempt. If it fails, the waiter is on its way out, or another flusher came first.
        // order: acq_rel [defer-pending] page-table stores before pending, pairs with the exchange in leave();
        // [defer-asleep] pairs with the store in enter()
        if (byte.compare_exchange(seen, owing, order::acq_rel, order::acquire)) return true;
        return fenced && seen == owing;
    }

    [[no_unique_address]] Machine machine_;
};

}  // namespace pvx::inline v0::guest
