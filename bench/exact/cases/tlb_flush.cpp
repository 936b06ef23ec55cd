// SPDX-License-Identifier: MIT
#include "case.hpp"

namespace {

using exact::counting, exact::plain;
using pvx::guest::flush_kind;

/// A kernel that has not adopted deferred flushes.
template <class Machine>
struct without_deferral : Machine {
    void deferral() const;
};

template <class Machine>
constexpr pvx::guest::tlb_flush<Machine> flusher{Machine{}, {.host_bits = pvx::abi::steal_preempted}};

template <class Machine>
EXACT_OPERATION bool leave(uint32_t cpu) {
    return flusher<Machine>.leave_to_host(pvx::cpu_index{cpu});
}

template <class Machine>
EXACT_OPERATION bool prune(unsigned long const* from, unsigned long* to, uint32_t bits, flush_kind kind) {
    return flusher<without_deferral<Machine>>.prune({from, bits}, {to, bits}, kind, [](pvx::cpu_index) {});
}

template <class Machine>
EXACT_OPERATION bool prune_both(unsigned long const* from, unsigned long* to, uint32_t bits, flush_kind kind) {
    return flusher<Machine>.prune({from, bits}, {to, bits}, kind, [](pvx::cpu_index) {});
}

constinit unsigned long targets[exact::max_cpus / 64] = {};
constinit unsigned long rest[exact::max_cpus / 64] = {};

// Prunes a mask of the first n CPUs, of which every `every`th has this in its page.
template <class Call>
void prune_of(Call call, uint32_t n, uint8_t preempted, uint32_t every, flush_kind kind = flush_kind::leaves) {
    pvx::cpu_mask_view const mask{targets, n};
    exact::this_cpu = exact::max_cpus - 1;
    for (uint32_t i = 0; i < n; ++i) {
        mask.set(pvx::cpu_index{i});
        if (i % every == 0) exact::steal_pages[i].preempted = preempted;
    }
    call(targets, rest, n, kind);
}

constexpr uint8_t preempted = pvx::abi::steal_preempted;
constexpr uint8_t flagged = pvx::abi::steal_preempted | pvx::abi::steal_flush_tlb;

exact::test_case const list[] = {
    {"tlb_flush/leave_to_host, running", leave<plain>, leave<counting>, [](auto call) { call(5u); }},
    {"tlb_flush/leave_to_host, preempted", leave<plain>, leave<counting>,
     [](auto call) {
         exact::steal_pages[5].preempted = preempted;
         call(5u);
     }},
    {"tlb_flush/prune, 64 running", prune<plain>, prune<counting>, [](auto call) { prune_of(call, 64, 0, 1); }},
    {"tlb_flush/prune, 64, half preempted", prune<plain>, prune<counting>,
     [](auto call) { prune_of(call, 64, preempted, 2); }},
    {"tlb_flush/prune, 64 preempted", prune<plain>, prune<counting>,
     [](auto call) { prune_of(call, 64, preempted, 1); }},
    {"tlb_flush/prune, 64 with a flush pending", prune<plain>, prune<counting>,
     [](auto call) { prune_of(call, 64, flagged, 1); }},
    {"tlb_flush/prune, 64 preempted, tables freed", prune<plain>, prune<counting>,
     [](auto call) { prune_of(call, 64, preempted, 1, flush_kind::tables); }},
    {"tlb_flush/prune, 64 running, none defers", prune_both<plain>, prune_both<counting>,
     [](auto call) { prune_of(call, 64, 0, 1); }},
};
exact::component const here{list};

}  // namespace
