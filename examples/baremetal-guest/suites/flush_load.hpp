// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// TLB shootdowns in earnest: flushers remap pages and flush, and readers look whether a flush that is over has left an
/// old translation behind. CPUs 0 .. flushers - 1 flush, the others read.
///
/// Each flusher has one virtual page and a ring of physical ones. For shootdown k it writes k into the next page of the
/// ring, maps that one, flushes all other CPUs, and then says that k is over. A reader that finds less than what was
/// over before its read has used an old translation. It takes a ring, because the page before is the one after, in a
/// ring of two, and would soon be as new.
///
/// A flusher never touches the pages that it maps, by their virtual address, and never flushes its own translations:
/// with shadow paging that would repair those of every vCPU.

#include "../os/clock.hpp"
#include "../os/job.hpp"
#include "../os/paging.hpp"
#include "../pv.hpp"
#include "bench/histogram.hpp"

namespace flush_load {

/// What a flusher does after a shootdown.
enum class pace : uint8_t {
    none,    ///< The next one.
    follow,  ///< It often waits until a reader has had a turn, and yields to it where the host helps.
    work,    ///< It computes for 100 us, as somebody who had a reason to unmap something.
};

/// What one run is to do.
struct plan {
    pvx::guest::flush_options options;
    uint32_t flushers = 1;
    uint64_t shootdowns = ~uint64_t{0};  ///< all flushers together
    uint64_t us = 1'000'000;             ///< and no longer than this
    pace then = pace::none;
    bool nmis = false;                         ///< flusher 0 sends NMIs to the readers, who read in the handler as well
    bool until_stale = false;                  ///< the first stale read ends the run
    bench_suites::histogram* times = nullptr;  ///< TSC ticks of each shootdown of flusher 0
};

/// What happened, on one CPU or on all.
struct tally {
    uint64_t shootdowns = 0;
    uint64_t ns = 0;        ///< that the longest flusher took for them
    uint64_t ipis = 0;      ///< CPUs that were interrupted
    uint64_t to_host = 0;   ///< CPUs that were left to the host
    uint64_t deferred = 0;  ///< CPUs that defer
    uint64_t reads = 0;
    uint64_t stale = 0;    ///< reads through an old translation
    uint64_t own_set = 0;  ///< a CPU that runs saw a bit in its own preempted byte
    uint64_t illegal = 0;  ///< any byte that is not 0, P or P|F
    uint64_t turns = 0;    ///< of the readers' loops
    uint64_t nmis = 0;     ///< that readers took

    void add(tally const& other);
};

/// A number that depends on the last one.
inline uint64_t next_random(uint64_t& seed) {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return seed;
}

/// One CPU in a run.
struct alignas(64) participant {
    tally sum;
    tally in_nmi;  // apart, since an NMI may come in the middle of an addition to the other
    uint64_t over;
    uint64_t seed;
    uint64_t* pages[16];

    /// Reads all pages once, and looks at two preempted bytes. Interrupts may be on or off.
    void look() { look(sum); }
    void look(tally& t);
};

participant& this_participant();

namespace detail {

inline constexpr uint32_t ring = sizeof(participant::pages) / sizeof(participant::pages[0]);

void prepare(plan const& p);
tally finish(plan const& p);
/// All flushers are done.
bool stopped();
void stop();
bool goes_on(plan const& p, uint64_t begin);
/// Writes k into the page that is to be mapped for it, and maps it.
void remap(participant& me, uint64_t k);
pvx::guest::flush_range own_page();
void keep_pace(plan const& p, participant& me);
void send_nmi_to_next();
/// Ends the run if the flushers do not come to an end.
void check_patience(plan const& p, uint64_t begin);

template <class Machine>
void flush_all(plan const& p) {
    machine const m;
    pvx::guest::tlb_flush<Machine> const flush{Machine{}, p.options};
    participant& me = this_participant();
    pvx::guest::flush_range const range = own_page();
    pvx::guest::flush_request const request{&range, 1, pvx::guest::flush_kind::leaves};
    unsigned long others[1] = {pvx::bit_range<unsigned long>(0, os::cpu_count() - 1) & ~(1ul << m.self().value)};
    unsigned long rest_of_them[1];
    uint64_t const begin = m.tsc().value;
    for (uint64_t k = 1; goes_on(p, begin); ++k) {
        remap(me, k);
        uint64_t const start = m.tsc().value;
        uint32_t left = 0;
        pvx::cpu_mask_view const to_interrupt{rest_of_them, os::cpu_count()};
        bool const any = flush.prune({others, os::cpu_count()}, to_interrupt, request.kind(), [&](pvx::cpu_index cpu) {
            // The host comes first where both are possible. It may have taken the bit away again by now, but rarely.
            uint8_t const byte = m.ref(pv::steal_page(cpu.value).preempted).load(pvx::order::relaxed);
            bool const to_host =
                !p.options.deferral || (p.options.host_bits != 0 && (byte & pvx::abi::steal_flush_tlb));
            ++(to_host ? me.sum.to_host : me.sum.deferred);
            ++left;
        });
        if (any) m.flush_remote(to_interrupt, request, left);
        if (p.times != nullptr && m.self().value == 0) p.times->add(m.tsc().value - start);
        // order: release [load-over] the flush before the word that it is over; pairs with look()
        m.ref(me.over).store(k, pvx::order::release);
        me.sum.ipis += any ? pvx::popcount(rest_of_them[0]) : 0;
        ++me.sum.shootdowns;
        if (p.nmis && m.self().value == 0) send_nmi_to_next();
        keep_pace(p, me);
    }
    me.sum.ns = os::tsc_to_ns(m.tsc().value - begin);
}

}  // namespace detail

/// Runs it. `turn()` is called by each reader over and over, with interrupts on. `Machine` is what the flushers prune
/// with. \pre the pages of steal time are registered, if the plan has host bits
template <class Machine = machine, class Turn>
tally run(plan const& p, Turn const& turn) {
    detail::prepare(p);
    os::meeting everyone(os::cpu_count());
    uint32_t flushing = p.flushers;
    os::run_on_all([&] {
        os::flush_all_local();
        everyone.wait();
        machine const m;
        if (m.self().value < p.flushers) {
            detail::flush_all<Machine>(p);
            if (m.ref(flushing).fetch_add(~0u, pvx::order::relaxed) == 1) detail::stop();
            return;
        }
        uint64_t const begin = m.tsc().value;
        for (participant& me = this_participant(); !detail::stopped();) {
            detail::check_patience(p, begin);
            turn();
            m.ref(me.sum.turns).store(me.sum.turns + 1, pvx::order::relaxed);
        }
    });
    return detail::finish(p);
}

/// A turn of readers that only read.
inline void read_turn() { this_participant().look(); }

/// A turn of readers that read with interrupts on, then wait a random while with interrupts off, and read again before
/// an interrupt can repair anything. `Machine` is what the wait defers with; with `machine` and `deferring` false the
/// wait is the same, but for the deferral.
template <class Machine = machine>
void waiting_turn(bool deferring = true) {
    machine const m;
    pvx::guest::deferred_flush<Machine> const deferred{Machine{}};
    participant& me = this_participant();
    me.look();
    uint64_t const us = next_random(me.seed) % 64;
    auto const irqs = m.irq_save();
    if (deferring) deferred.enter(m.self());
    for (uint64_t const end = os::arch::rdtsc() + os::us_to_tsc(us); os::arch::rdtsc() < end;) m.relax();
    if (deferring) (void)deferred.leave(m.self());
    me.look();
    m.irq_restore(irqs);
}

// --- machines that are wrong, to prove that a run can see it ---

/// Says that it has set the flush bit, and has not.
struct machine_without_flush_bit : machine {
    struct lying_byte : pvx::builtin_atomic_ref<uint8_t> {
        using builtin_atomic_ref::builtin_atomic_ref;
        bool compare_exchange(uint8_t&, uint8_t, pvx::rmw_order auto, pvx::load_order auto) const { return true; }
    };
    using machine::ref;
    lying_byte ref(uint8_t& byte) const { return lying_byte{byte}; }
};

/// Does not flush.
struct machine_without_local_flush : machine {
    void flush_all_local() const {}
};

}  // namespace flush_load
