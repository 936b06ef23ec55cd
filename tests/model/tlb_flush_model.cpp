// SPDX-License-Identifier: MIT
// Bound: one vCPU that leaves up to twice, or comes online, two flushers of one page each: 3 preemptions (--full: 4).
// Memory model: C++20 as Relacy has it (what that leaves out: support/relacy_atomics.hpp).

/// \file
/// Flushes that are left to the host: the shipped guest::tlb_flush, guest::steal_time and host::steal_time together.

#include "flush_world.hpp"

namespace {

using namespace pvx;
using namespace pvx_test;

/// What CPU 0 and its host do.
enum class step : uint8_t {
    end,
    use,            ///< The guest uses its pages; directly behind `enter` that is an NMI.
    preempt,        ///< put(): descheduled.
    block,          ///< put(): of its own accord.
    leave,          ///< put(): any of these, once or twice, also with an entry that is abandoned between.
    load,           ///< Gets a CPU.
    enter,          ///< Is about to run.
    translate,      ///< The host begins to emulate: it holds translations from here...
    emulate,        ///< ... and uses them here, where it ends.
    set_waiting,    ///< The guest halts and says so by a bit of its own...
    clear_waiting,  ///< ... which it clears when it goes on.
    move,           ///< The guest registers its other page.
    unregister,     ///< The guest withdraws its page.
    reset,          ///< It gets an INIT.
    restore,        ///< Another host object takes over from a saved state.
    join,           ///< The guest's CPU joins those that are online.
    fence,          ///< A full fence of its own.
    drop,           ///< It flushes its TLB.
    speculate,      ///< Its TLB fills, and nobody asked.
};

/// How a flusher asks.
enum class ask : uint8_t {
    leave,                  ///< leave_to_host(): always the CAS.
    flush,                  ///< flush(): fenced, so that the CAS may be skipped.
    flush_online,           ///< flush() by a mask of CPUs that are online, behind a full fence of the caller's.
    flush_online_no_fence,  ///< The same without the fence.
};

/// What a test varies.
struct shape {
    step steps[16];
    ask asks[flushers] = {ask::leave, ask::flush};
    bool in_host = false;  ///< The proposed ABI.
    map_change change = map_change::none;
    host_bug bug = host_bug::none;
    bool says_boundary = false;  ///< The host says "instruction boundary" while it emulates.
    bool waiting_bit = false;    ///< Flushers take the guest's own bit for the host's.

    shape but(ask both) const {
        shape s = *this;
        s.asks[0] = s.asks[1] = both;
        return s;
    }
    shape but(map_change c) const {
        shape s = *this;
        s.change = c;
        return s;
    }
    shape but(host_bug b) const {
        shape s = *this;
        s.bug = b;
        return s;
    }
};
shape now{};

/// The guest's own bit.
constexpr uint8_t waiting = abi::proposed::steal_in_host;  // on a host that does not know it

struct machine : flush_machine {
    template <class T>
    shared<T> record(cpu_index cpu) const {
        if (cpu.value != cpu0.value) return {};
        unsigned const page = world().registered.load(rl::mo_relaxed, place{}.info());
        return {&flush_world::steal[page], flush_world::address(page)};
    }
    uint64_t read_msr(uint32_t) const { return world().host->msr(); }
    void write_msr(uint32_t index, uint64_t value) const { world().write_msr(index, value); }
};

/// The same with CPUs that come online, of which CPU 0 is one.
struct joined_machine : machine {
    static inline unsigned long online;  // lends its address: see relacy_memory

    /// A word of a mask: that of the CPUs that are online, or one that nobody changes.
    struct mask_ref : builtin_atomic_ref<unsigned long> {
        unsigned long* word;

        explicit mask_ref(unsigned long& w) : builtin_atomic_ref(w), word(&w) {}
        unsigned long load(load_order auto o, place where = {}) const {
            return word == &online ? relacy_atomics<chosen>{}.ref(online).load(o, where) : builtin_atomic_ref::load(o);
        }
    };

    using machine::ref;
    mask_ref ref(unsigned long& word) const { return mask_ref{word}; }
    const_cpu_mask_view online_cpus() const { return {&online, 1 + flushers}; }
};

struct suite : rl::test_suite<suite, 1 + flushers>, flush_world {
    bool emulating = false;

    void before() {
        host_environment::bug = now.bug;
        host_environment::change = now.change;
        flush_world::before(now.in_host);
        joined_machine::online = 0;
        memory.adopt(joined_machine::online);
    }

    void thread(unsigned cpu) {
        if (cpu == 0)
            run();
        else
            flush(cpu - 1);
    }

    void put(bool preempted) {
        host->put(
            {.at_instruction_boundary = !emulating || now.says_boundary, .preempted = preempted, .wants_to_run = true});
    }

    void leave() {
        switch (rl::rand(5)) {
            case 0: return put(true);
            case 1: return put(false);
            case 2: put(false); return put(true);
            case 3: put(true); return put(true);
            default:
                put(true);
                host->load();
                return put(true);
        }
    }

    auto byte() { return machine{}.ref(steal[0].preempted); }

    void run() {
        for (step const s : now.steps) switch (s) {
                case step::end: return;
                case step::use: pages.use(); break;
                case step::preempt: put(true); break;
                case step::block: put(false); break;
                case step::leave: leave(); break;
                case step::load: host->load(); break;
                case step::enter: host->enter(); break;
                case step::translate:
                    pages.translate();
                    emulating = true;
                    break;
                case step::emulate:
                    pages.use_translated();
                    emulating = false;
                    break;
                case step::set_waiting: (void)byte().fetch_or(waiting, order::release); break;
                case step::clear_waiting: (void)byte().fetch_and(static_cast<uint8_t>(~waiting), order::seq_cst); break;
                case step::move:
                    guest::steal_time<machine>{machine{}}.disable();
                    registered.store(1, rl::mo_relaxed, place{}.info());
                    require(guest::steal_time<machine>{machine{}, now.in_host}.enable(cpu0) == status::ok,
                            "the other page is registered");
                    break;
                case step::unregister: guest::steal_time<machine>{machine{}}.disable(); break;
                case step::reset: reset(); break;
                case step::join: relacy_atomics<>{}.ref(joined_machine::online).store(1, order::relaxed); break;
                case step::fence: relacy_atomics<>{}.fence(order::seq_cst); break;
                case step::drop: pages.drop(); break;
                case step::speculate: pages.fill(); break;
                case step::restore: {
                    host::steal_time_state const state = host->save();
                    host.emplace(host_environment{}, now.in_host);
                    require(host->restore(state) == status::ok, "a state that was saved is taken");
                    break;
                }
            }
    }

    /// Whether it may go on without an interrupt.
    bool flush_as(ask how, guest::flush_options const& options) {
        constexpr auto kind = guest::flush_kind::leaves;
        if (how == ask::leave) return guest::tlb_flush<machine>{machine{}, options}.leave_to_host(cpu0);
        if (how == ask::flush) return flush_cpu0(machine{}, options, kind);
        if (how == ask::flush_online) relacy_atomics<>{}.fence(order::seq_cst);
        return flush_cpu0(joined_machine{}, options, kind);
    }

    void flush(unsigned i) {
        uint8_t const host_bits = static_cast<uint8_t>(
            abi::steal_preempted | (now.in_host ? abi::proposed::steal_in_host : 0) | (now.waiting_bit ? waiting : 0));
        guest::flush_options const options{.host_bits = host_bits};
        pages.unmap(i);
        if (flush_as(now.asks[i], options)) pages.reuse(i);
        if (now.change != map_change::none && done.fetch_add(1, rl::mo_acq_rel, place{}.info()) + 1 == flushers)
            generation.store(1, rl::mo_release, place{}.info());
    }
};

}  // namespace

int main(int argc, char** argv) {
    using enum step;
    flush_models<suite, now> m{argc, argv};

    shape const preempted{.steps = {use, preempt, load, enter, use}};
    shape const preempted_twice{.steps = {preempt, load, enter, use, preempt, load, enter, use}};
    shape const out_twice{.steps = {leave, load, enter, use, leave, load, enter, use}};
    shape const moves{.steps = {use, preempt, load, enter, move, preempt, load, enter, use}};
    shape const restored{.steps = {use, preempt, restore, load, enter, use}};
    m.passes("P: out twice, one flusher may skip the CAS", out_twice);
    m.passes("P: out twice, both do the CAS", out_twice.but(ask::leave));
    m.passes("P: out twice, both may skip the CAS", out_twice.but(ask::flush));
    m.passes("P: the guest moves its page", moves);
    m.passes("P: the guest withdraws its page",
             shape{.steps = {use, preempt, load, enter, use, unregister, preempt, load, enter, use}});
    shape const withdrawn{.steps = {use, preempt, unregister, use}};
    m.passes("P: withdrawn while it is out", withdrawn);
    m.passes("P: moved while it is out", shape{.steps = {use, preempt, move, use, preempt, load, enter, use}});
    m.passes("P: reset while it is out", shape{.steps = {use, preempt, reset, load, enter, use}});
    m.passes("P: restored from a saved state", restored);
    m.passes("P: the page is unmapped meanwhile", preempted.but(map_change::unmapped));
    m.passes("P: the memory map changes meanwhile", preempted_twice.but(map_change::remapped));
    m.passes("P: restored, and the page is unmapped", restored.but(map_change::unmapped));
    m.passes("P: out in the middle of an emulation",
             shape{.steps = {use, translate, preempt, load, emulate, enter, use}}, {3, 4}, false);

    shape const blocked{.steps = {use, block, load, enter, use}, .in_host = true};
    shape const woken{.steps = {use, block, preempt, load, enter, use}, .in_host = true};
    shape const h_out_twice{.steps = {leave, load, enter, use, leave, load, enter, use}, .in_host = true};
    m.passes("H: out twice, one flusher may skip the CAS", h_out_twice);
    m.passes("H: out twice, both may skip the CAS", h_out_twice.but(ask::flush));
    m.passes("H: blocked, then preempted", woken);
    m.passes("H: blocked, and never descheduled", shape{.steps = {use, block, enter, use}, .in_host = true});
    m.passes("H: the guest moves its page",
             shape{.steps = {use, block, load, enter, move, block, preempt, load, enter, use}, .in_host = true});
    m.passes("H: the page is unmapped meanwhile", woken.but(map_change::unmapped));
    m.passes("H: the memory map changes meanwhile", woken.but(map_change::remapped));
    m.passes("H: out in the middle of an emulation",
             shape{.steps = {use, translate, block, load, emulate, enter, use}, .in_host = true}, {3, 4}, false);

    // A CPU that comes online: its mask against the tables, both sides fenced.
    shape const joins = shape{.steps = {drop, join, fence, drop, use}}.but(ask::flush_online);
    shape const flushes_then_joins = shape{.steps = {drop, fence, speculate, join, fence, use}}.but(ask::flush_online);
    m.passes("a CPU joins, fences, flushes", joins);
    m.passes("a CPU joins, fences, flushes, and is preempted",
             shape{.steps = {drop, join, fence, drop, use, preempt, load, enter, use}}.but(ask::flush_online));
    m.caught("a CPU flushes, then joins", flushes_then_joins);
    m.caught("a CPU joins and flushes without a fence", shape{.steps = {drop, join, drop, use}}.but(ask::flush_online));
    m.caught("the flusher has no fence before it looks who is online", joins.but(ask::flush_online_no_fence));

    m.caught("the host clears by a plain store", preempted.but(host_bug::clears_by_store));
    m.caught("the host acts on a copy, then clears", preempted.but(host_bug::acts_then_clears));
    m.caught("the host sets P by a plain store", woken.but(host_bug::stores_over_flush));
    m.caught("the host compares with H, then stores H|P", woken.but(host_bug::adds_by_comparing));
    m.caught("marked in an emulation that ends before the entry",
             shape{.steps = {use, translate, preempt, load, emulate, enter}, .says_boundary = true});
    m.caught("marked in an emulation that ends after the entry",
             shape{.steps = {translate, preempt, load, enter, emulate}, .says_boundary = true});
    m.caught("marked H in an emulation",
             shape{.steps = {translate, block, load, enter, emulate}, .in_host = true, .says_boundary = true});
    m.caught("P, no fail-safe: the page is unmapped", preempted.but(map_change::unmapped).but(host_bug::no_fail_safe));
    m.caught("H, no fail-safe: the page is unmapped", blocked.but(map_change::unmapped).but(host_bug::no_fail_safe));
    m.caught("no fail-safe: restored, and the page is unmapped",
             restored.but(map_change::unmapped).but(host_bug::no_fail_safe));
    m.caught("a page that is withdrawn goes on to say that the vCPU is out", withdrawn.but(host_bug::no_take_back));
    m.caught("a flush that is found in a page that is withdrawn is not done", withdrawn.but(host_bug::takes_back_only));
    m.caught("the host marks the page that was registered before", moves.but(host_bug::old_page));
    m.caught("the guest has a waiting bit of its own",
             shape{.steps = {use, set_waiting, enter, clear_waiting, use}, .waiting_bit = true});

    // [flush-skip]: the fence of the CPU that skips the CAS, and the host's, before anybody reads the tables.
    shape const skips = preempted.but(ask::flush);
    m.caught<weaken<operation::fence, order::seq_cst>>("[flush-skip]: no fence before a CAS is skipped", skips);
    m.caught("[flush-skip]: the host's flush is no fence", skips.but(host_bug::flush_is_no_fence));
    m.caught("[flush-skip]: the tables are read before the fence", skips.but(host_bug::reads_before_fence));

    // [flush-set]: where nobody skips, the CAS and the exchange alone order the tables.
    shape const no_fence = preempted.but(ask::leave).but(host_bug::reads_and_is_no_fence);
    m.passes("P: the host's flush is no fence, both do the CAS", no_fence);
    m.caught<weaken<operation::rmw, order::acquire, order::relaxed, "exchange">>("[flush-set]: exchange relaxed",
                                                                                 no_fence);
    m.caught<weaken<operation::rmw, order::acq_rel, order::acquire>>("[flush-set]: CAS acquire", preempted);

    // [flush-out]: each with a second time out, where the look before is of the first.
    shape const out_again = shape{.steps = {preempt, load, enter, use, preempt}}.but(ask::flush);
    m.caught<weaken<operation::rmw, order::release>>("[flush-out]: OR relaxed", preempted);
    m.caught<weaken<operation::load, order::acquire>>("[flush-out]: load relaxed", out_again);
    m.caught<weaken<operation::rmw, order::acq_rel, order::release>>("[flush-out]: CAS release", out_again);
    m.caught<weaken<operation::failed_cas, order::acquire>>("[flush-out]: failed CAS relaxed", out_again);
    return m.result();
}
