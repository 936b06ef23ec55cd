// SPDX-License-Identifier: MIT

/// \file
/// TLB flushes that are left to the host, and those that a waiting vCPU leaves to itself. A stale translation shows
/// only where nothing repairs it by chance, so each case about staleness first makes a mistake on purpose; where that
/// shows nothing, it has no right to pass. [kvm-cpuid] [kvm-msr]

#include "../../os/console.hpp"
#include "../../os/memory.hpp"
#include "../flush_load.hpp"
#include "case.hpp"

namespace conform {
namespace {

namespace abi = pvx::abi;
using flush_load::plan;
using flush_load::tally;

constexpr uint64_t short_us = 300'000;
/// A mistake shows at once or hardly ever.
constexpr uint64_t mistake_us = 1'000'000;

/// Of each case; 0: what it can do in `short_us`.
constinit uint64_t wanted_shootdowns = 0;

constexpr pvx::guest::flush_options by_host{.host_bits = abi::steal_preempted, .deferral = false};
constexpr pvx::guest::flush_options by_waiter{.host_bits = 0, .deferral = true};
constexpr pvx::guest::flush_options by_both{.host_bits = abi::steal_preempted, .deferral = true};

/// Runs it for a short while, or in pieces until there were as many shootdowns as wanted, with a line for each.
template <class Turn>
tally observe(plan p, Turn const& turn) {
    tally all;
    do {
        p.us = wanted_shootdowns == 0 ? short_us : 4'000'000;
        if (wanted_shootdowns != 0) p.shootdowns = wanted_shootdowns - all.shootdowns;
        all.add(flush_load::run(p, turn));
        if (wanted_shootdowns != 0) os::print("# {} of {} shootdowns\n", all.shootdowns, wanted_shootdowns);
    } while (all.shootdowns < wanted_shootdowns && all.stale == 0);
    os::set_nmi_handler(ignore_nmi);
    return all;
}

/// The stale reads of a run that is wrong on purpose.
template <class Machine = machine, class Turn>
uint64_t stale_reads_of_mistake(plan p, Turn const& turn) {
    p.us = mistake_us;
    p.until_stale = true;
    uint64_t const stale = flush_load::run<Machine>(p, turn).stale;
    os::set_nmi_handler(ignore_nmi);
    return stale;
}

outcome unused_flush() { return skip("TLB flush: {}", pvx::guest::to_string(pv::configuration().tlb_flush.why)); }
outcome nobody_preempted(tally const& t) { return skip("no vCPU was preempted in {} shootdowns", t.shootdowns); }
outcome nobody_waiting(tally const& t) { return skip("no vCPU was waiting in {} shootdowns", t.shootdowns); }
outcome blind(char const* mistake) { return skip("cannot see staleness here: {} shows no stale read", mistake); }

/// What no run may have seen.
outcome judge(tally const& t) {
    if (t.stale != 0) return fail("{} of {} reads after a flush used an old translation", t.stale, t.reads);
    if (t.own_set != 0) return fail("{} times, a vCPU that runs saw a bit in its own preempted byte", t.own_set);
    if (t.illegal != 0) return fail("{} times, a preempted byte was not 0, P or P|F", t.illegal);
    return pass("{} shootdowns: {} times left to the host, {} times deferred, {} IPIs; {} reads", t.shootdowns,
                t.to_host, t.deferred, t.ipis, t.reads);
}

constexpr plan host_plan{.options = by_host, .then = flush_load::pace::follow};

outcome taken_before_the_next_instruction() {
    if (!pv::configuration().tlb_flush) return unused_flush();
    tally const t = observe(host_plan, flush_load::read_turn);
    return t.to_host == 0 ? nobody_preempted(t) : judge(t);
}

outcome stays_until_the_vcpu_runs() {
    if (!pv::configuration().tlb_flush) return unused_flush();
    machine const m;
    pvx::guest::tlb_flush<machine> const flush{machine{}, by_host};
    uint32_t stop = 0, left = 0, alone = 0, stuck = 0, lost = 0;
    auto busy = [&] {
        while (m.ref(stop).load(pvx::order::relaxed) == 0) m.relax();
    };
    for (uint32_t cpu = 1; cpu < os::cpu_count(); ++cpu) os::start_job(cpu, busy);
    uint64_t const end = m.tsc().value + os::us_to_tsc(short_us);
    while (m.tsc().value < end && stuck == 0) {
        for (uint32_t cpu = 1; cpu < os::cpu_count(); ++cpu) {
            abi::kvm_steal_time& page = pv::steal_page(cpu);
            // The host writes the page whenever the vCPU begins to run after it was preempted, if only the time stolen.
            uint32_t const before = m.ref(page.version).load(pvx::order::acquire);
            if (!flush.leave_to_host(pvx::cpu_index{cpu})) continue;
            ++left;
            uint64_t const limit = m.tsc().value + os::us_to_tsc(patience_us);
            uint8_t byte = 0;
            while (((byte = m.ref(page.preempted).load(pvx::order::acquire)) & abi::steal_flush_tlb) != 0) {
                alone += byte == abi::steal_flush_tlb;
                if (m.tsc().value > limit) {
                    ++stuck;
                    break;
                }
                m.relax();
            }
            if (stuck != 0) break;
            // P without F: it has run and was preempted again, or never ran. Only the version tells.
            lost += byte == abi::steal_preempted && m.ref(page.version).load(pvx::order::acquire) == before;
        }
    }
    m.ref(stop).store(1, pvx::order::relaxed);
    for (uint32_t cpu = 1; cpu < os::cpu_count(); ++cpu) os::wait_job(cpu);
    if (stuck != 0) return fail("a busy vCPU had a flush pending for {} ms", patience_us / 1000);
    if (alone != 0) return fail("F alone was seen {} times", alone);
    if (lost != 0) return fail("{} of {} flushes were gone, and the vCPU had not run", lost, left);
    return left == 0 ? skip("no vCPU was preempted") : pass("{} flushes", left);
}

outcome no_old_translation_by_host() {
    if (!pv::configuration().tlb_flush) return unused_flush();
    uint64_t const mistakes =
        stale_reads_of_mistake<flush_load::machine_without_flush_bit>(host_plan, flush_load::read_turn);
    if (mistakes == 0) return blind("pruning without the flush bit");
    tally const t = observe(host_plan, flush_load::read_turn);
    return t.to_host == 0 ? nobody_preempted(t) : judge(t);
}

constexpr plan waiter_plan{.options = by_waiter, .then = flush_load::pace::follow};

outcome no_old_translation_by_waiter() {
    uint64_t const mistakes = stale_reads_of_mistake(
        waiter_plan, [] { flush_load::waiting_turn<flush_load::machine_without_local_flush>(); });
    if (mistakes == 0) return blind("a wait that ends without its flush");
    tally const t = observe(waiter_plan, [] { flush_load::waiting_turn(); });
    return t.deferred == 0 ? nobody_waiting(t) : judge(t);
}

outcome no_old_translation_in_nmi() {
    plan p = waiter_plan;
    p.nmis = true;
    auto const turn = [] { flush_load::waiting_turn(); };
    os::set_entry_hook(nullptr);
    uint64_t const mistakes = stale_reads_of_mistake(p, turn);
    pv::set_flush_hook();
    if (mistakes == 0) return blind("an NMI entry without its flush");
    tally const t = observe(p, turn);
    if (outcome const o = judge(t); o.what() != outcome::kind::pass) return o;
    if (t.deferred == 0 || t.nmis == 0) return nobody_waiting(t);
    return pass("{} shootdowns, {} times deferred, {} NMIs", t.shootdowns, t.deferred, t.nmis);
}

/// The entries that come also where interrupts are off, one by one.
constexpr struct {
    uint8_t vector;
    void (*raise)();
} entries[] = {
    {os::vector_nmi, os::software_interrupt<os::vector_nmi>},
    {os::vector_debug, os::software_interrupt<os::vector_debug>},
    {os::vector_breakpoint, os::software_interrupt<os::vector_breakpoint>},
    {os::vector_machine_check, os::software_interrupt<os::vector_machine_check>},
};

uint64_t volatile& case_page() {
    return *reinterpret_cast<uint64_t volatile*>(os::test_region + os::test_region_size - os::page_size);
}
constinit uint64_t read_in_entry = 0;

void read_in_nmi(os::trap_frame&) { read_in_entry = case_page(); }
bool read_in_exception(os::trap_frame&) {
    read_in_entry = case_page();
    return true;
}

/// Maps a page that holds k where the case looks.
void map_case_page(uint64_t k) {
    static constinit uint64_t* pages[2] = {};
    uint64_t*& page = pages[k % 2];
    if (page == nullptr) page = static_cast<uint64_t*>(os::allocate_page());
    *page = k;
    os::map_test_page(reinterpret_cast<uint64_t>(&case_page()), os::physical_address(page), false);
}

/// A vCPU has used the page, and waits; the page changes, and the flush is deferred; then the wait is interrupted. One
/// bit for each of `entries` that has read the old page.
uint32_t entries_that_are_stale() {
    machine const m;
    pvx::guest::tlb_flush<machine> const flush{machine{}, by_waiter};
    uint32_t const cpu = os::cpu_count() - 1;
    uint32_t stale = 0, step = 0, entry = 0;
    auto waiter = [&] {
        auto const irqs = m.irq_save();
        [[maybe_unused]] uint64_t const used = case_page();
        pv::deferred.enter(m.self());
        m.ref(step).store(1, pvx::order::release);
        while (m.ref(step).load(pvx::order::acquire) != 2) m.relax();
        entries[entry].raise();
        (void)pv::deferred.leave(m.self());
        m.irq_restore(irqs);
    };
    unsigned long targets[1] = {1ul << cpu};
    unsigned long scratch[1];
    for (auto const& e : entries)
        if (e.vector != os::vector_nmi) os::set_exception_handler(e.vector, read_in_exception);
    os::set_nmi_handler(read_in_nmi);
    for (entry = 0; entry < sizeof entries / sizeof entries[0]; ++entry) {
        step = 0;
        map_case_page(2 * entry);
        os::run_on(cpu, [] { os::flush_all_local(); });
        os::start_job(cpu, waiter);
        while (m.ref(step).load(pvx::order::acquire) != 1) m.relax();
        map_case_page(2 * entry + 1);
        (void)flush.flush({targets, os::cpu_count()}, pvx::guest::flush_request{}, {scratch, os::cpu_count()});
        m.ref(step).store(2, pvx::order::release);
        os::wait_job(cpu);
        if (read_in_entry != 2 * entry + 1) stale |= 1u << entry;
    }
    for (auto const& e : entries)
        if (e.vector != os::vector_nmi) os::set_exception_handler(e.vector, nullptr);
    os::set_nmi_handler(ignore_nmi);
    return stale;
}

outcome entries_flush_first() {
    os::set_entry_hook(nullptr);
    uint32_t const without = entries_that_are_stale();
    pv::set_flush_hook();
    if (without != 0xf) return blind("an entry without its flush");
    uint32_t const stale = entries_that_are_stale();
    for (auto const& e : entries)
        if ((stale >> (&e - entries) & 1) != 0) return fail("the entry of vector {} used an old translation", e.vector);
    return pass();
}

/// Half of the vCPUs flush, the other half read and wait, by all the ways there are.
outcome many_at_once() {
    plan p{.options = pv::configuration().tlb_flush ? by_both : by_waiter, .then = flush_load::pace::follow};
    p.flushers = os::cpu_count() / 2;
    return judge(observe(p, [] { flush_load::waiting_turn(); }));
}

/// In turns, so that it takes no luck: every vCPU has used the page, the page changes, every vCPU looks again.
outcome whole_flush() {
    uint64_t const address = reinterpret_cast<uint64_t>(&case_page());
    // A page of its own, and one of which a flush names the first or the last byte only.
    pvx::guest::flush_range const ranges[] = {{address, address + os::page_size},
                                              {address - os::page_size + 1, address + 1},
                                              {address + os::page_size - 1, address + os::page_size}};
    unsigned long all[1] = {pvx::bit_range<unsigned long>(0, os::cpu_count() - 1)};
    unsigned long scratch[1];
    for (uint64_t k = 1; k <= 20; ++k) {
        map_case_page(k);
        // With this vCPU among the targets, and by turns for one page, whole or in part, and for everything.
        bool const one_page = k % 4 < 3;
        pvx::guest::flush_request const request{one_page ? &ranges[k % 4] : nullptr, one_page ? 1u : 0u,
                                                pvx::guest::flush_kind::leaves};
        (void)pv::flush().flush({all, os::cpu_count()}, request, {scratch, os::cpu_count()});
        uint64_t found[os::max_cpus] = {};
        os::run_on_all([&] { found[os::cpu_self()] = case_page(); });
        for (uint32_t cpu = 0; cpu < os::cpu_count(); ++cpu)
            if (found[cpu] != k) return fail("after flush {}, vCPU {} read {}", k, cpu, found[cpu]);
    }
    return pass();
}

constexpr requirement flushing{.features = mask(abi::kvm_feature::pv_tlb_flush), .cpus = 2, .steal = true};
constexpr requirement anywhere{.kvm = false, .cpus = 2};

constexpr test_case cases[] = {
    {"after a flush every vCPU sees the new page", {.kvm = false}, whole_flush},
    {"a vCPU that runs has taken the flush that was left to the host: its byte is clear", flushing,
     taken_before_the_next_instruction},
    {"a flush that was left to the host stays until the vCPU runs, and F is never alone", flushing,
     stays_until_the_vcpu_runs},
    {"after a flush that was left to the host, no old translation is used", flushing, no_old_translation_by_host},
    {"after a flush that a waiting vCPU deferred, no old translation is used", anywhere, no_old_translation_by_waiter},
    {"an NMI in a wait uses no old translation", anywhere, no_old_translation_in_nmi},
    {"NMI, #DB, #BP and #MC in a wait do first what is deferred", anywhere, entries_flush_first},
    {"many flush at once, to the host, to waiting vCPUs and by IPI", anywhere, many_at_once},
};

}  // namespace

constinit const case_list flush_cases = list_of(cases);

void set_wanted_shootdowns(uint64_t count) { wanted_shootdowns = count; }

}  // namespace conform
