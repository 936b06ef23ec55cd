// SPDX-License-Identifier: MIT
// Bound: one CPU that waits once or twice, an NMI at any step, two flushers of one page each: 3 preemptions (--full:
// 4); where its host preempts it at any step as well: 2 (--full: 3). Memory model: C++20 as Relacy has it (what that
// leaves out: support/relacy_atomics.hpp).

/// \file
/// Flushes that a waiting CPU owes itself: the shipped guest::deferred_flush, alone and under guest::tlb_flush together
/// with host::steal_time.

#include "flush_world.hpp"

namespace {

using namespace pvx;
using namespace pvx_test;

/// How a flusher asks.
enum class ask : uint8_t {
    defer,         ///< defer(): always the CAS.
    defer_fenced,  ///< defer_fenced(): may skip it.
    flush,         ///< tlb_flush::flush(): the same, and what does not defer may be left to the host.
    nothing,       ///< There is no such flusher.
};

/// What is wrong with a waiter.
enum class waiter_bug : uint8_t {
    none,
    no_hook,            ///< The NMI's entry does not call leave().
    no_draining,        ///< leave() exchanges with awake.
    flush_then_clear,   ///< leave() flushes what it found, then clears the byte.
    interrupts_on,      ///< Interrupts, whose entry has no hook, are on while it waits.
    walks,              ///< The pages hold page tables, which the waiting CPU walks when it speculates.
    flush_is_no_fence,  ///< The local flush orders nothing.
    enters_blindly,     ///< enter() does not look whether a flush is pending.
};

/// What a test varies.
struct shape {
    ask asks[flushers] = {ask::defer, ask::flush};
    guest::flush_kind kind = guest::flush_kind::leaves;
    unsigned waits = 1;
    unsigned spurious_wakes = 0;  ///< In each wait; the loop begins anew, enter() included.
    unsigned nmis = 1;
    unsigned preemptions = 0;  ///< By the host.
    bool in_host = false;      ///< The proposed ABI.
    waiter_bug bug = waiter_bug::none;
};
shape now{};

struct waiter;

/// CPU 0's byte. Each access of CPU 0 has whatever interrupts it in front.
struct byte_ref : relacy_ref<uint8_t, chosen> {
    using relacy_ref::relacy_ref;
    uint8_t load(load_order auto o, place where = {}) const;
    void store(uint8_t v, store_order auto o, place where = {}) const;
    uint8_t exchange(uint8_t v, rmw_order auto o, place where = {}) const;
};

struct machine : flush_machine {
    template <word T>
    using cell = rl::atomic<T>;

    using flush_machine::ref;
    byte_ref ref(rl::atomic<uint8_t>& byte) const { return byte_ref{byte}; }

    template <class T>
    shared<T> record(cpu_index cpu) const {
        if (cpu.value != cpu0.value) return {};
        return {&flush_world::steal[0], flush_world::address(0)};
    }
    rl::atomic<uint8_t>& deferral(cpu_index) const;
    void flush_all_local() const;
};

struct waiter : flush_world {
    static inline waiter* self = nullptr;

    rl::atomic<uint8_t> byte;
    bool waiting = false;
    bool in_nmi = false;
    bool in_host = false;
    unsigned nmis = now.nmis;
    unsigned preemptions = now.preemptions;

    guest::deferred_flush<machine> const deferred{machine{}};

    void before() {
        self = this;
        flush_world::before(now.in_host);
        byte.store(guest::deferral::awake, rl::mo_relaxed, place{}.info());
    }

    /// Between two instructions of CPU 0.
    void interruptible() {
        if (in_host) return;
        bool const nmi = nmis != 0 && !in_nmi && (now.bug != waiter_bug::interrupts_on || waiting);
        if (nmi && rl::rand(2) != 0) {
            nmis -= 1;
            in_nmi = true;
            if (now.bug != waiter_bug::no_hook && now.bug != waiter_bug::interrupts_on) (void)deferred.leave(cpu0);
            interruptible();
            pages.use();
            in_nmi = false;
        }
        if (preemptions != 0 && rl::rand(2) != 0) {
            preemptions -= 1;
            in_host = true;
            preempt();
            in_host = false;
        }
    }

    void run() {
        for (unsigned i = 0; i < now.waits; ++i) {
            pages.use();
            deferred.enter(cpu0);
            waiting = true;
            interruptible();
            for (unsigned wake = 0; wake < now.spurious_wakes; ++wake) deferred.enter(cpu0);
            if (now.bug == waiter_bug::walks) pages.use();
            waiting = false;
            (void)deferred.leave(cpu0);
            interruptible();
        }
        pages.use();
    }
};

rl::atomic<uint8_t>& machine::deferral(cpu_index) const { return waiter::self->byte; }

void machine::flush_all_local() const {
    waiter::self->interruptible();
    waiter::self->pages.drop();
    if (now.bug != waiter_bug::flush_is_no_fence) relacy_atomics<>{}.fence(order::seq_cst);
}

void interruptible() {
    if (rl::thread_index() == 0) waiter::self->interruptible();
}

uint8_t byte_ref::load(load_order auto o, place where) const {
    interruptible();
    bool const entering = std::string_view{where.function} == "enter";
    if (now.bug == waiter_bug::enters_blindly && entering) return guest::deferral::awake;
    return relacy_ref::load(o, where);
}

void byte_ref::store(uint8_t v, store_order auto o, place where) const {
    interruptible();
    relacy_ref::store(v, o, where);
}

uint8_t byte_ref::exchange(uint8_t v, rmw_order auto o, place where) const {
    interruptible();
    if (now.bug == waiter_bug::no_draining) return relacy_ref::exchange(guest::deferral::awake, o, where);
    if (now.bug != waiter_bug::flush_then_clear) return relacy_ref::exchange(v, o, where);
    if (relacy_ref::load(order::acquire, where) != guest::deferral::asleep) machine{}.flush_all_local();
    return guest::deferral::asleep;  // nothing more to do but to store awake
}

struct suite : rl::test_suite<suite, 1 + flushers>, waiter {
    void before() { waiter::before(); }

    void thread(unsigned cpu) {
        if (cpu == 0)
            run();
        else if (now.asks[cpu - 1] != ask::nothing)
            flush(cpu - 1);
    }

    bool left(ask how) {
        if (how == ask::defer) return deferred.defer(cpu0);
        if (how == ask::defer_fenced) {
            machine{}.fence(order::seq_cst);
            return deferred.defer_fenced(cpu0);
        }
        uint8_t const host_bits = abi::steal_preempted | (now.in_host ? abi::proposed::steal_in_host : 0);
        return flush_cpu0(machine{}, {.host_bits = host_bits}, now.kind);
    }

    void flush(unsigned i) {
        pages.unmap(i);
        if (left(now.asks[i])) pages.reuse(i);
    }
};

}  // namespace

int main(int argc, char** argv) {
    flush_models<suite, now> m{argc, argv};
    constexpr model_bound same{3, 3};
    constexpr model_bound few{2, 3};

    shape const both_defer{.asks = {ask::defer, ask::defer}, .nmis = 0};
    shape const both_flush{.asks = {ask::flush, ask::flush}, .nmis = 0};
    m.passes("an NMI, one flusher may skip the CAS", shape{});
    m.passes("an NMI, both do the CAS", shape{.asks = {ask::defer, ask::defer}});
    m.passes("an NMI, both may skip the CAS", shape{.asks = {ask::defer_fenced, ask::flush}});
    m.passes("two NMIs", shape{.nmis = 2}, same);
    m.passes("two waits and an NMI", shape{.waits = 2}, same);
    m.passes("two waits and an NMI, both may skip the CAS", shape{.asks = {ask::flush, ask::flush}, .waits = 2}, same);
    m.passes("a spurious wake", shape{.spurious_wakes = 1, .nmis = 0});
    m.passes("two spurious wakes and an NMI", shape{.spurious_wakes = 2}, few);
    m.passes("the host preempts", shape{.nmis = 0, .preemptions = 1});
    m.passes("the host preempts twice, both may skip the CAS",
             shape{.asks = {ask::flush, ask::flush}, .nmis = 0, .preemptions = 2}, few);
    m.passes("an NMI, and the host preempts", shape{.preemptions = 1}, few);
    m.passes("an NMI, and the host preempts, with H",
             shape{.asks = {ask::flush, ask::flush}, .preemptions = 1, .in_host = true}, few);
    m.passes("page tables in use, which are not deferred",
             shape{.asks = {ask::flush, ask::flush}, .kind = guest::flush_kind::tables, .bug = waiter_bug::walks},
             {3, 4}, false);

    m.caught("the entry of an NMI has no hook", shape{.bug = waiter_bug::no_hook});
    m.caught("awake at once, without draining", shape{.bug = waiter_bug::no_draining});
    m.caught("flush, then clear", shape{.nmis = 0, .bug = waiter_bug::flush_then_clear});
    m.caught("beginning to wait again, over a pending flush",
             shape{.spurious_wakes = 1, .nmis = 0, .bug = waiter_bug::enters_blindly});
    m.caught("interrupts are on during the wait", shape{.bug = waiter_bug::interrupts_on});
    m.caught("page tables are deferred as if they were leaves",
             shape{.asks = {ask::flush, ask::nothing}, .nmis = 0, .bug = waiter_bug::walks});

    // [defer-skip]: the fence of the CPU that skips the CAS, and the one in the flush.
    shape no_fence = both_flush;
    no_fence.bug = waiter_bug::flush_is_no_fence;
    m.caught<weaken<operation::fence, order::seq_cst>>("[defer-skip]: no fence before a CAS is skipped", both_flush);
    m.caught("[defer-skip]: the flush is no fence", no_fence);

    // [defer-pending]: where nobody skips, the CAS and the exchange alone order the tables.
    no_fence.asks[0] = no_fence.asks[1] = ask::defer;
    m.passes("the flush is no fence, both do the CAS", no_fence);
    m.caught<weaken<operation::rmw, order::acquire>>("[defer-pending]: exchange relaxed", no_fence);
    m.caught<weaken<operation::rmw, order::acq_rel, order::acquire>>("[defer-pending]: CAS acquire", both_defer);

    // [defer-asleep]: in a second wait, where the look before is of the first.
    shape waits_again = both_flush;
    waits_again.waits = 2;
    m.caught<weaken<operation::store, order::release, order::relaxed, "enter">>("[defer-asleep]: store relaxed",
                                                                                both_defer);
    m.caught<weaken<operation::load, order::acquire>>("[defer-asleep]: load relaxed", waits_again);
    m.caught<weaken<operation::rmw, order::acq_rel, order::release>>("[defer-asleep]: CAS release", waits_again);
    m.caught<weaken<operation::failed_cas, order::acquire>>("[defer-asleep]: failed CAS relaxed", waits_again);
    return m.result();
}
