// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// TLB shootdown without waking who is not running. A vCPU that the host has descheduled cannot use a translation
/// before the host runs it again, so its flush is left to the host, which does it at that moment; the flush IPI, and
/// the wait for a CPU that does not run, are saved. CPUs that wait with interrupts off and defer their flushes
/// (guest/deferred_flush.hpp) are left out in the same way. [kvm-cpuid] [kvm-msr]
///
///     flusher                                        host, the vCPU's thread
///     page-table stores                              preempted |= P     (out)   [flush-out]
///     b = preempted           [flush-out]            old = exchange(preempted, 0)   (before entry)   [flush-set]
///     CAS b -> b|F            [flush-set]            old has F: flush all of the guest's translations
///     won: no IPI                                    run the guest
///
/// Won means that the exchange will see F, since only that exchange clears the byte. Lost means that the vCPU is on its
/// way in: it gets the IPI. Only bits that the host owns are taken for "not running": a bit of the guest's own could
/// still be set while the host is past its last look.
///
/// What pruning takes away: after a pruned flush, "flush returned" does not mean "every CPU has taken an interrupt".
/// Code that walks page tables in software with interrupts off, and counts on that, must be protected by other means
/// (RCU, a count of walkers). Until a kernel says that it is (flush_options::walkers_protected), flushes that free
/// tables are not pruned at all.
///
/// Runs on the flushing CPU, which must not migrate meanwhile; any number of CPUs flush at once.

#include <pvx/abi/proposed.hpp>
#include <pvx/guest/configuration.hpp>
#include <pvx/guest/deferred_flush.hpp>
#include <pvx/guest/flush_request.hpp>

namespace pvx::inline v0::guest {

/// How flushes are pruned. Set once; by itself it prunes nothing, see choose_flush_options().
struct flush_options {
    /// The bits of `preempted` that say that the host owes the flush: abi::steal_preempted where the host offers
    /// kvm_feature::pv_tlb_flush, and abi::proposed::steal_in_host too where the guest asked for it. Others are
    /// ignored.
    uint8_t host_bits{};
    /// Leave flushes to CPUs that defer theirs. Without effect where the machine has no deferral_policy.
    bool deferral{true};
    /// Software page-table walkers do not depend on being waited for: flushes that free tables may be pruned.
    bool walkers_protected{false};
};

/// What the host allows.
constexpr flush_options choose_flush_options(configuration const& c) {
    flush_options o;
    if (c.tlb_flush) o.host_bits = abi::steal_preempted;
    if (c.in_host) o.host_bits |= abi::proposed::steal_in_host;
    return o;
}

/// Flushing the TLBs of many CPUs.
template <class Machine>
    requires atomics_policy<Machine> && cpu_policy<Machine> && record_policy<Machine, abi::kvm_steal_time>
class tlb_flush {
public:
    constexpr tlb_flush(Machine machine, flush_options options) : machine_(machine), options_(options) {
        // A bit of the guest's own, or F itself, never says that the host owes anything.
        options_.host_bits &= abi::steal_preempted | abi::proposed::steal_in_host;
    }

    /// Leave a flush of everything to the host. True: the host does it before `cpu` runs again; send no IPI and expect
    /// no acknowledgement. False: `cpu` may be running. For a kernel that keeps its own list of CPUs.
    /// \pre the page-table stores are before this in program order; the kind of flush may be pruned, see prunes().
    PVX_ALWAYS_INLINE bool leave_to_host(cpu_index cpu) const { return leave_to_host(cpu, false); }

    /// Whether flushes of this kind may be left to the host.
    constexpr bool prunes(flush_kind kind) const {
        if (kind == flush_kind::roots) return false;
        return options_.host_bits != 0 && (kind != flush_kind::tables || options_.walkers_protected);
    }
    /// Whether flushes of this kind may be left to CPUs that defer theirs.
    constexpr bool defers(flush_kind kind) const {
        return deferral_policy<Machine> && options_.deferral && kind == flush_kind::leaves;
    }

    /// Write to `dst` the CPUs of `src` that must be interrupted: those that are online, less those that were left to
    /// the host or defer. The calling CPU stays if it is in. `on_left(cpu_index)` is called for each that was left out
    /// in either way, for a kernel that counts acknowledgements; not for one that is offline. \return whether `dst` has
    /// any CPU.
    ///
    /// `src` may be shared and change meanwhile: each word is read once. `dst` is the caller's own, with room for the
    /// bits of `src`; it may be `src`, but no mask that others look at, such as that of CPUs that are online. A word of
    /// it is written when all its CPUs are decided. Bits beyond the end of `src`, and those of CPUs that are not
    /// possible, are ignored, and clear in `dst`.
    /// \pre the page-table stores are before this in program order, and `src` names every CPU that may use what they
    /// replaced: where CPUs join it, or those online, on their own, both they and the caller need a full fence between
    /// mask and tables.
    template <class OnLeft>
    bool prune(const_cpu_mask_view src, cpu_mask_view dst, flush_kind kind, OnLeft&& on_left) const {
        bool const to_host = prunes(kind);
        bool const deferring = defers(kind);
        uint32_t const self = machine_.self().value;
        // One full fence, once a CPU is found that may be left out: then those that have a flush pending cost a load.
        bool fenced = false;
        unsigned long any = 0;
        uint32_t const possible = machine_.possible_cpus();
        const_cpu_mask_view const cpus{src.words, src.bits < possible ? src.bits : possible};
        for (uint32_t i = 0; i < src.word_count(); ++i) {
            unsigned long const targets = i < cpus.word_count() ? load_word(cpus, i) & online_word(i) : 0;
            unsigned long rest = targets;
            unsigned long others = to_host || deferring ? targets : 0;
            if (i == self / const_cpu_mask_view::word_bits) others &= ~bit<unsigned long>(self);
            for (; others != 0; others &= others - 1) {
                cpu_index const cpu{i * const_cpu_mask_view::word_bits + lowest_bit(others)};
                if (!(to_host && in_host(cpu)) && !(deferring && waits(cpu))) continue;
                // order: seq_cst fence [flush-skip] page-table stores before the look at a byte that has a flush
                // pending; pairs with the fence in flush_guest_tlb(), and [defer-skip] with flush_all_local()
                if (!fenced) machine_.fence(order::seq_cst);
                fenced = true;
                if (!(to_host && leave_to_host(cpu, true)) && !(deferring && defer_fenced(cpu))) continue;
                rest &= ~bit<unsigned long>(cpu.value);
                on_left(cpu);
            }
            dst.words[i] = rest;
            any |= rest;
        }
        return any != 0;
    }

    /// Flush `request` on the CPUs of `targets`; returns when all of them have done it, or will before they use a
    /// translation again. `scratch` is the caller's own and has room for the bits of `targets`: a kernel with thousands
    /// of CPUs has no room for a mask on its stack. \return how many CPUs were left out.
    template <flush_request_policy Request>
    uint32_t flush(const_cpu_mask_view targets, Request const& request, cpu_mask_view scratch) const
        requires(remote_flush_policy<Machine, Request>) {
        uint32_t left = 0;
        cpu_mask_view const rest{scratch.words, targets.bits};
        bool const any = prune(targets, rest, request.kind(), [&](cpu_index) { ++left; });
        if (any) machine_.flush_remote(const_cpu_mask_view{rest}, request, left);
        return left;
    }

private:
    // Word i of a mask that others may change, without what is beyond its end.
    PVX_ALWAYS_INLINE unsigned long load_word(const_cpu_mask_view mask, uint32_t i) const {
        // Relaxed: how a CPU comes into the mask and goes is the kernel's own protocol. Nothing is written here.
        return machine_.ref(const_cast<unsigned long&>(mask.words[i])).load(order::relaxed) & mask.valid_bits(i);
    }

    PVX_ALWAYS_INLINE unsigned long online_word(uint32_t i) const {
        if constexpr (names_online_cpus<Machine>) static_assert(online_policy<Machine>);
        if constexpr (online_policy<Machine>) {
            const_cpu_mask_view const online = machine_.online_cpus();
            return i < online.word_count() ? load_word(online, i) : 0;
        } else {
            return ~0ul;
        }
    }

    // Hints: leave_to_host() and defer() decide.
    PVX_ALWAYS_INLINE bool in_host(cpu_index cpu) const {
        abi::kvm_steal_time* const page = machine_.template record<abi::kvm_steal_time>(cpu).pointer;
        return page != nullptr && (machine_.ref(page->preempted).load(order::relaxed) & options_.host_bits) != 0;
    }
    PVX_ALWAYS_INLINE bool waits(cpu_index cpu) const {
        if constexpr (deferral_policy<Machine>)
            return deferred_flush<Machine>(machine_).waits(cpu);
        else
            return false;
    }
    PVX_ALWAYS_INLINE bool defer_fenced(cpu_index cpu) const {
        if constexpr (deferral_policy<Machine>)
            return deferred_flush<Machine>(machine_).defer_fenced(cpu);
        else
            return false;
    }

    PVX_ALWAYS_INLINE bool leave_to_host(cpu_index cpu, bool fenced) const {
        abi::kvm_steal_time* const page = machine_.template record<abi::kvm_steal_time>(cpu).pointer;
        if (page == nullptr) return false;
        auto const byte = machine_.ref(page->preempted);
        // order: acquire [flush-out] here and where the CAS fails: F was reached from the host's P
        uint8_t seen = byte.load(order::acquire);
        if ((seen & options_.host_bits) == 0) return false;
        if (fenced && (seen & abi::steal_flush_tlb) != 0) return true;
        uint8_t const owing = static_cast<uint8_t>(seen | abi::steal_flush_tlb);
        // One attempt. If it fails, the host is on its way in, or another flusher came first.
        // order: acq_rel [flush-set] page-table stores before F, pairs with the exchange in host::steal_time::enter();
        // [flush-out] pairs with the OR in host::steal_time::put()
        if (byte.compare_exchange(seen, owing, order::acq_rel, order::acquire)) return true;
        return fenced && (seen & options_.host_bits) != 0 && (seen & abi::steal_flush_tlb) != 0;
    }

    [[no_unique_address]] Machine machine_;
    flush_options options_;
};

}  // namespace pvx::inline v0::guest
