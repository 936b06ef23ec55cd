// SPDX-License-Identifier: MIT

#include "flush_load.hpp"

#include "../os/apic.hpp"
#include "../os/atomics.hpp"
#include "../os/memory.hpp"
#include "../os/panic.hpp"
#include "../os/trap.hpp"

namespace flush_load {
namespace {

using os::atomics;
namespace order = pvx::order;

constinit participant participants[os::max_cpus] = {};
constinit uint32_t flushers = 0;
constinit uint32_t stop_word = 0;
constinit uint64_t all_shootdowns = 0;
constinit uint32_t any_stale = 0;

/// NMIs that flusher 0 has sent: one at a time, since an emulated CPU may take a second one in the handler of the
/// first.
constinit uint64_t nmis_sent = 0;
constinit uint64_t nmis_taken = 0;
constinit uint32_t nmi_target = 0;

constexpr uint64_t nmi_patience_us = 5'000'000;
/// A reader that does not run may take longer, but need not be waited for.
constexpr uint64_t follow_us = 1'000;

uint64_t virtual_page(uint32_t flusher) { return os::test_region + flusher * os::page_size; }

void on_nmi(os::trap_frame&) {
    participant& me = this_participant();
    me.look(me.in_nmi);
    ++me.in_nmi.nmis;
    atomics.ref(nmis_taken).fetch_add(uint64_t{1}, order::release);
}

}  // namespace

participant& this_participant() { return participants[os::cpu_self()]; }

void tally::add(tally const& other) {
    shootdowns += other.shootdowns;
    ns = ns > other.ns ? ns : other.ns;
    ipis += other.ipis;
    to_host += other.to_host;
    deferred += other.deferred;
    reads += other.reads;
    stale += other.stale;
    own_set += other.own_set;
    illegal += other.illegal;
    turns += other.turns;
    nmis += other.nmis;
}

void participant::look(tally& t) {
    for (uint32_t i = 0; i < flushers; ++i) {
        // order: acquire [load-over]; pairs with [load-over] in flush_all()
        uint64_t const over_before = atomics.ref(participants[i].over).load(order::acquire);
        uint64_t const found = atomics.ref(*reinterpret_cast<uint64_t*>(virtual_page(i))).load(order::relaxed);
        ++t.reads;
        if (found >= over_before) continue;
        ++t.stale;
        atomics.ref(any_stale).store(1u, order::relaxed);
    }
    uint32_t const self = os::cpu_self();
    uint32_t const other = static_cast<uint32_t>((t.reads + self) % os::cpu_count());
    uint32_t const watched[] = {self, other};
    for (uint32_t cpu : watched) {
        uint8_t const byte = atomics.ref(pv::steal_page(cpu).preempted).load(order::relaxed);
        bool const flush_alone = (byte & pvx::abi::steal_preempted) == 0 && byte != 0;
        t.illegal += flush_alone || byte > (pvx::abi::steal_preempted | pvx::abi::steal_flush_tlb);
        t.own_set += cpu == self && byte != 0;
    }
}

namespace detail {

void prepare(plan const& p) {
    flushers = p.flushers;
    if (flushers >= os::cpu_count()) os::panic("{} flushers leave no reader among {} vCPUs", flushers, os::cpu_count());
    stop_word = any_stale = 0;
    all_shootdowns = nmis_sent = nmis_taken = 0;
    nmi_target = flushers;
    for (uint32_t i = 0; i < os::cpu_count(); ++i) {
        participant& one = participants[i];
        one.sum = one.in_nmi = {};
        one.over = 0;
        one.seed = 0x9e3779b97f4a7c15 * (i + 1);
        if (i >= flushers) continue;
        for (uint64_t*& page : one.pages) {
            if (page == nullptr) page = static_cast<uint64_t*>(os::allocate_page());
            *page = 0;
        }
        os::map_test_page(virtual_page(i), os::physical_address(one.pages[0]), true);
    }
    if (p.nmis) os::set_nmi_handler(on_nmi);
}

tally finish(plan const& p) {
    if (p.nmis) {
        uint64_t const end = os::arch::rdtsc() + os::us_to_tsc(nmi_patience_us);
        while (atomics.ref(nmis_taken).load(order::acquire) != nmis_sent)
            if (os::arch::rdtsc() > end) os::panic("cpu {} did not take an NMI", nmi_target);
        os::set_nmi_handler(nullptr);
    }
    tally all;
    for (uint32_t i = 0; i < os::cpu_count(); ++i) {
        all.add(participants[i].sum);
        all.add(participants[i].in_nmi);
    }
    return all;
}

bool stopped() { return atomics.ref(stop_word).load(order::relaxed) != 0; }
void stop() { atomics.ref(stop_word).store(1u, order::relaxed); }

bool goes_on(plan const& p, uint64_t begin) {
    if (p.until_stale && atomics.ref(any_stale).load(order::relaxed) != 0) return false;
    if (os::arch::rdtsc() - begin > os::us_to_tsc(p.us)) return false;
    return atomics.ref(all_shootdowns).fetch_add(uint64_t{1}, order::relaxed) < p.shootdowns;
}

void remap(participant& me, uint64_t k) {
    uint64_t& page = *me.pages[k % ring];
    // order: release, and relaxed in map_test_page(): x86 keeps stores in order, and a page walk is ordered by the
    // flush
    atomics.ref(page).store(k, order::release);
    os::map_test_page(virtual_page(os::cpu_self()), os::physical_address(&page), true);
}

pvx::guest::flush_range own_page() {
    uint64_t const page = virtual_page(os::cpu_self());
    return {page, page + os::page_size};
}

void keep_pace(plan const& p, participant& me) {
    if (p.then == pace::work) return os::delay_us(100);
    if (p.then == pace::none || next_random(me.seed) % 4 != 0) return;
    uint32_t const reader = flushers + static_cast<uint32_t>(next_random(me.seed) % (os::cpu_count() - flushers));
    auto const turns = atomics.ref(participants[reader].sum.turns);
    uint64_t const before = turns.load(order::relaxed);
    if (pv::configuration().sched_yield)
        (void)machine{}.hypercall(pvx::abi::kvm_hypercall::sched_yield, os::cpu_apic_id(reader), 0, 0, 0);
    uint64_t const end = os::arch::rdtsc() + os::us_to_tsc(follow_us);
    while (turns.load(order::relaxed) == before && os::arch::rdtsc() < end) os::arch::pause();
}

void check_patience(plan const& p, uint64_t begin) {
    if (os::arch::rdtsc() - begin > os::us_to_tsc(p.us + os::job_timeout_us / 2))
        os::panic("the flushing vCPUs, 0 to {}, do not come to an end", p.flushers - 1);
}

void send_nmi_to_next() {
    if (atomics.ref(nmis_taken).load(order::acquire) != nmis_sent) return;
    nmi_target = nmi_target + 1 < os::cpu_count() ? nmi_target + 1 : flushers;
    ++nmis_sent;
    os::send_nmi(os::cpu_apic_id(nmi_target));
}

}  // namespace detail
}  // namespace flush_load
