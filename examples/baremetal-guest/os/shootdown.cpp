// SPDX-License-Identifier: MIT

/// \file
/// A slot per CPU. `asked` has a bit for each CPU that waits for this one: set by that CPU, taken by this one.
/// `request` and `unanswered` are of the CPU that waits: it writes both before it sets a bit, the others count
/// `unanswered` down.

#include "shootdown.hpp"

#include "atomics.hpp"
#include "clock.hpp"
#include "panic.hpp"
#include "per_cpu.hpp"

namespace os {
namespace {

static_assert(max_cpus <= pvx::bit_size<uint64_t>);

constexpr uint64_t cr4_global_pages = 1 << 7;
constexpr uint64_t cr4_pcids = 1 << 17;

/// A translation may outlive a load of CR3. This kernel makes none that does, but a loader may have left the bits on.
constinit bool outlives_cr3 = true;

/// More pages than this are not dropped one by one.
constexpr uint64_t max_single_pages = 32;

/// How many pages have a byte of the range, which may end with the address space: then its end is 0.
uint64_t pages_of(pvx::guest::flush_range r) { return (r.end - 1) / page_size - r.begin / page_size + 1; }

bool few_pages(pvx::guest::flush_request const& request) {
    uint64_t room = max_single_pages;
    for (uint32_t i = 0; i < request.range_count; ++i) {
        uint64_t const pages = pages_of(request.ranges[i]);
        if (pages > room) return false;
        room -= pages;
    }
    return !request.everything();
}

void flush_local(pvx::guest::flush_request const& request) {
    if (!few_pages(request)) return flush_all_local();
    for (uint32_t i = 0; i < request.range_count; ++i) {
        // Any address in a page will do.
        uint64_t a = request.ranges[i].begin;
        for (uint64_t left = pages_of(request.ranges[i]); left != 0; --left, a += page_size) invlpg(a);
    }
}

void on_shootdown(trap_frame&) {
    // order: acquire [os-flush-ask] request and page tables; pairs with [os-flush-ask] in ask_for_flush()
    uint64_t asked = atomics.ref(this_cpu().shootdown.asked).exchange(uint64_t{0}, order::acquire);
    for (; asked != 0; asked &= asked - 1) {
        shootdown_slot& from = cpu_record(pvx::lowest_bit(asked)).shootdown;
        flush_local(*from.request);
        // order: release [os-flush-done] the flush before the answer; pairs with [os-flush-done] in wait_for_flush()
        atomics.ref(from.unanswered).fetch_add(~0u, order::release);
    }
}

/// A CPU of the mask that has not even taken the interrupt; any if all have.
uint32_t silent_cpu(pvx::const_cpu_mask_view mask) {
    uint32_t silent = max_cpus;
    mask.for_each([&](pvx::cpu_index cpu) {
        bool const asked = (atomics.ref(cpu_record(cpu.value).shootdown.asked).load(order::relaxed) &
                            pvx::bit<uint64_t>(cpu_self())) != 0;
        if (asked || silent == max_cpus) silent = cpu.value;
    });
    return silent;
}

}  // namespace

void flush_all_local() {
    // Both ways are serialising. A change of PGE drops everything, in both directions, so an NMI that does the same in
    // between does no harm. Without global pages and PCIDs a load of CR3 does so too, and under SVM with nested paging
    // it is no exit, where each look at CR4 is one. [sdm3a 4.10.4.1] [apm2 5.5.2]
    if (!outlives_cr3) return write_cr3(read_cr3());
    uint64_t const cr4 = read_cr4();
    write_cr4(cr4 ^ cr4_global_pages);
    write_cr4(cr4);
}

void ask_for_flush(pvx::const_cpu_mask_view mask, pvx::guest::flush_request const& request) {
    if ((arch::read_rflags() & arch::rflags_if) == 0) panic("a shootdown with interrupts off would deadlock");
    shootdown_slot& mine = this_cpu().shootdown;
    mine.request = &request;
    atomics.ref(mine.unanswered).store(mask.count(), order::relaxed);
    mask.for_each([](pvx::cpu_index cpu) {
        // order: release [os-flush-ask] request and page tables before the bit; pairs with [os-flush-ask] in
        // on_shootdown()
        atomics.ref(cpu_record(cpu.value).shootdown.asked).fetch_or(pvx::bit<uint64_t>(cpu_self()), order::release);
    });
}

void wait_for_flush(pvx::const_cpu_mask_view mask) {
    auto const unanswered = atomics.ref(this_cpu().shootdown.unanswered);
    uint64_t const begin = arch::rdtsc();
    // order: acquire [os-flush-done]; pairs with [os-flush-done] in on_shootdown()
    while (unanswered.load(order::acquire) != 0) {
        if (arch::rdtsc() - begin > us_to_tsc(job_timeout_us)) {
            uint32_t const cpu = silent_cpu(mask);
            panic("cpu {} (apic id {}) does not answer a TLB shootdown", cpu, cpu_apic_id(cpu));
        }
        arch::pause();
    }
}

void initialise_shootdown() {
    outlives_cr3 = (read_cr4() & (cr4_global_pages | cr4_pcids)) != 0;
    set_irq_handler(vector_shootdown, on_shootdown);
}

}  // namespace os
