// SPDX-License-Identifier: MIT
// Bound: one vCPU and one kicker: 4 preemptions (--full: every schedule); two that signal it: 2 or 3 (--full: 3 or 4).
// Memory model: C++20 as Relacy has it (what that leaves out: support/relacy_atomics.hpp).

/// \file
/// A vCPU that halts, and those who kick, interrupt, start, stop and reset it: the shipped host::vcpu_halt and
/// host::vcpu_signals. What sleeps and is not woken is a deadlock, which Relacy finds.

#include <optional>

#include <pvx/host/halt.hpp>

#include "support/model.hpp"

namespace {

using namespace pvx;
using namespace pvx_test;

constexpr unsigned others = 2;

/// What a thread beside the vCPU's does. `data` is the guest's: stored before, read by the vCPU when it is woken.
enum class does : uint8_t {
    nothing,
    kick,           ///< data, kick.
    kick_twice,     ///< the same once more, with data of its own
    interrupt,      ///< data, an interrupt.
    init_and_sipi,  ///< Code, INIT, SIPI.
    stop,           ///< Stop, wait until it stands still, look at it, resume.
};

/// What is wrong.
enum class bug : uint8_t {
    none,
    latch_by_store,     ///< The vCPU takes the latch by a load and a store.
    kick_by_store,      ///< A kicker stores into the latch.
    latch_taken_early,  ///< block() does not look at the latch: it was taken before.
    blocked_late,       ///< block() looks, then says that it is blocked.
    looks_first,        ///< A kicker looks whether the vCPU is blocked, then sets the latch.
    no_wake,            ///< A kicker sets the latch, and wakes nobody.
    requests_by_store,  ///< Who sends INIT or SIPI loads and stores.
    takes_by_store,     ///< The vCPU takes a request by storing what is left of what it found.
    takes_by_and,       ///< The vCPU takes a request by clearing bits, without comparing.
    wake_not_sticky,    ///< A wake is forgotten if the thread does not sleep yet.
    wake_by_store,      ///< The thread takes the wake back by a store.
    keeps_blocked,      ///< No bug: unblock() does nothing, so each signal wakes.
};

/// What a test varies.
struct shape {
    does what[others] = {does::kick, does::nothing};
    bool nested = false;       ///< The guest is in a nested guest's halt first, until the first event.
    bool resets = false;       ///< It is reset between two waits.
    bool application = false;  ///< It waits for SIPI at first.
    bug wrong = bug::none;
};
shape now{};

/// What was reached in all runs of a suite.
struct statistics {
    unsigned long long slept, kept_awake, starts, stops;
};
statistics seen{};

struct world;

struct machine : relacy_atomics<chosen> {
    static inline world* at = nullptr;

    struct word_ref : relacy_ref<uint32_t, chosen> {
        rl::atomic<uint32_t>* cell;

        explicit word_ref(rl::atomic<uint32_t>& a) : relacy_ref(a), cell(&a) {}
        uint32_t load(load_order auto o, place where = {}) const;
        void store(uint32_t v, store_order auto o, place where = {}) const;
        uint32_t exchange(uint32_t v, rmw_order auto o, place where = {}) const;
        bool compare_exchange(uint32_t& found, uint32_t v, rmw_order auto won, load_order auto lost,
                              place where = {}) const;
    };

    using relacy_atomics<chosen>::ref;
    word_ref ref(rl::atomic<uint32_t>& object) const { return word_ref{object}; }

    bool wake_event() const;
    host::init_rule rule_of_init() const { return host::init_rule::taken; }
    void wake(cpu_index, place where = {}) const;
};

struct world {
    host::halt_words_of<machine> words;
    std::optional<host::vcpu_halt<machine>> halt;
    rl::atomic<uint32_t> data[others][2];
    rl::atomic<uint32_t> irr;    ///< Bit per thread.
    rl::atomic<uint32_t> done;   ///< Threads that have nothing more to say.
    rl::atomic<uint32_t> still;  ///< The vCPU's thread says that it stands still.
    rl::atomic<uint32_t> door;   ///< Of the thread: as kvm_run::immediate_exit.
    rl::var<int> code[others];   ///< Written by who starts the vCPU, read when it starts.
    rl::var<int> guest;          ///< Written while the guest runs, read by who has stopped it.
    bool woken = false;
    bool asleep = false;
    bool skip_latch = false;
    std::optional<uint32_t> blocked_before[1 + others];
    uint32_t kicks = 0;
    uint32_t ended_by_kick = 0;

    void before() {
        machine::at = this;
        rl::debug_info const here = place{}.info();
        for (auto* w : {&words.latch, &words.requests, &words.blocked, &irr, &done, &still, &door})
            w->store(0, rl::mo_relaxed, here);
        for (auto& d : data)
            for (auto& each : d) each.store(0, rl::mo_relaxed, here);
        for (auto& c : code) c(here).store(0);
        guest(here).store(0);
        halt.emplace(machine{}, words, !now.application);
    }

    // --- the vCPU's thread ---

    void sleep(place where = {}) {
        if (now.wrong == bug::blocked_late) words.blocked.store(1, rl::mo_relaxed, where.info());
        if (!woken) {
            asleep = true;
            ++seen.slept;
            (void)rl::ctx().park_current_thread(false, false, false, where.info());
        }
        woken = false;
        if (now.wrong == bug::wake_by_store)
            door.store(0, rl::mo_relaxed, where.info());
        else
            (void)door.exchange(0, rl::mo_acquire, where.info());
    }

    static uint32_t counts(does what) { return what == does::init_and_sipi || what == does::stop; }

    // Until the guest runs.
    void wait() {
        for (;;) {
            bool const halted =
                halt->state() == host::mp_state::halted || halt->state() == host::mp_state::nested_halted;
            bool const interrupted = irr.load(rl::mo_relaxed, place{}.info()) != 0;
            host::halt_step const step = halt->next();
            switch (step.action) {
                case host::halt_action::run:
                    if (halted && !interrupted && irr.load(rl::mo_relaxed, place{}.info()) == 0) ++ended_by_kick;
                    guest(place{}.info()).store(1);
                    return;
                case host::halt_action::stop:
                    ++seen.stops;
                    still.store(1, rl::mo_release, place{}.info());
                    [[fallthrough]];
                case host::halt_action::sleep:
                    if (halt->block()) sleep();
                    halt->unblock();
                    still.store(0, rl::mo_relaxed, place{}.info());
                    break;
                case host::halt_action::start:
                    ++seen.starts;
                    require(step.vector < others, "the vector is one that was sent");
                    require(code[step.vector](place{}.info()).load() == 1, "the code is there");
                    break;
                case host::halt_action::init: break;
                default: require(false, "no such step");
            }
        }
    }

    // One HLT, and what comes after it.
    void hlt(bool nested = false) {
        if (!halt->hlt(nested)) {
            ++seen.kept_awake;
            ++ended_by_kick;
            return;
        }
        wait();
    }

    // What another thread gave, as the guest sees it: it reads again after each halt.
    void wait_for(unsigned other, unsigned which) {
        for (;;) {
            uint32_t const pending = irr.exchange(0, rl::mo_acquire, place{}.info());
            (void)pending;
            if (data[other][which].load(rl::mo_relaxed, place{}.info()) != 0) return;
            hlt();
        }
    }

    void vcpu() {
        wait();
        if (now.nested) {
            hlt(true);
            halt->nested_exit();
        }
        for (unsigned which = 0; which < 2; ++which)
            for (unsigned i = 0; i < others; ++i) {
                bool const gives = which == 0 ? now.what[i] == does::kick || now.what[i] == does::kick_twice ||
                                                    now.what[i] == does::interrupt
                                              : now.what[i] == does::kick_twice;
                if (gives) wait_for(i, which);
                if (gives && now.resets) require(halt->reset().action == host::halt_action::reset, "a reset is told");
            }
        require(ended_by_kick <= kicks, "a kick ends one halt at most");
        // The guest runs until nobody is left who stops or starts it: an INIT may still come, and its SIPI must not get
        // lost.
        uint32_t const all = counts(now.what[0]) + counts(now.what[1]);
        while (done.load(rl::mo_acquire, place{}.info()) != all) {
            wait();
            if (done.load(rl::mo_acquire, place{}.info()) != all) sleep();
        }
        wait();
        require(halt->state() == host::mp_state::runnable, "who was started runs");
    }

    // --- the others ---

    void give(unsigned i, unsigned which) { data[i][which].store(1, rl::mo_relaxed, place{}.info()); }

    void other(unsigned i) {
        host::vcpu_signals<machine> const signals{machine{}, words, cpu_index{0}};
        switch (now.what[i]) {
            case does::nothing: break;
            case does::kick:
            case does::kick_twice:
                for (unsigned which = 0; which <= (now.what[i] == does::kick_twice); ++which) {
                    give(i, which);
                    kicks += 1;
                    signals.kick();
                }
                break;
            case does::interrupt:
                give(i, 0);
                (void)irr.fetch_or(1u << i, rl::mo_release, place{}.info());
                (void)signals.notify();
                break;
            case does::init_and_sipi:
                code[i](place{}.info()).store(1);
                signals.init();
                signals.startup(static_cast<uint8_t>(i));
                break;
            case does::stop:
                signals.stop();
                while (still.load(rl::mo_acquire, place{}.info()) == 0) rl::yield(1, place{}.info());
                (void)guest(place{}.info()).load();
                signals.resume();
                break;
        }
        if (counts(now.what[i]) == 0) return;  // another wake would make good for one that was lost
        (void)done.fetch_add(1, rl::mo_release, place{}.info());
        machine{}.wake(cpu_index{0});
    }
};

bool where_is(place const& where, std::string_view function) {
    std::string_view const here = where.function;
    return here.substr(0, here.find('<')) == function;
}

bool machine::wake_event() const { return at->irr.load(rl::mo_relaxed, place{}.info()) != 0; }

void machine::wake(cpu_index, place where) const {
    if (now.wrong == bug::no_wake && where_is(where, "notify")) return;
    (void)at->door.exchange(1, rl::mo_release, where.info());
    if (at->asleep) {
        at->asleep = false;
        at->woken = true;
        rl::ctx().unpark_thread(0, false, where.info());
    } else {
        at->woken = now.wrong != bug::wake_not_sticky;
    }
}

uint32_t machine::word_ref::load(load_order auto o, place where) const {
    if (now.wrong == bug::latch_taken_early && at->skip_latch && where_is(where, "event")) return 0;
    if (now.wrong == bug::looks_first && where_is(where, "notify")) {
        auto& before = at->blocked_before[rl::thread_index()];
        if (before) {
            uint32_t const blocked = *before;
            before.reset();
            return blocked;
        }
    }
    return relacy_ref::load(o, where);
}

void machine::word_ref::store(uint32_t v, store_order auto o, place where) const {
    at->skip_latch = where_is(where, "block");
    if (now.wrong == bug::blocked_late && where_is(where, "block")) return;
    if (now.wrong == bug::keeps_blocked && where_is(where, "unblock")) return;
    relacy_ref::store(v, o, where);
}

uint32_t machine::word_ref::exchange(uint32_t v, rmw_order auto o, place where) const {
    if ((now.wrong == bug::latch_by_store && where_is(where, "take_kick")) ||
        (now.wrong == bug::kick_by_store && where_is(where, "kick"))) {
        relacy_ref::store(v, order::release, where);
        if (where_is(where, "take_kick")) relacy_atomics<>{}.fence(order::acquire);
        return 1 - v;
    }
    if (now.wrong == bug::looks_first && where_is(where, "kick"))
        at->blocked_before[rl::thread_index()] = at->words.blocked.load(rl::mo_relaxed, where.info());
    return relacy_ref::exchange(v, o, where);
}

bool machine::word_ref::compare_exchange(uint32_t& found, uint32_t v, rmw_order auto won, load_order auto lost,
                                         place where) const {
    bool const takes = where_is(where, "take");
    if ((now.wrong == bug::takes_by_store && takes) ||
        (now.wrong == bug::requests_by_store && where_is(where, "change"))) {
        relacy_ref::store(v, order::release, where);
        relacy_atomics<>{}.fence(order::acquire);
        return true;
    }
    if (now.wrong == bug::takes_by_and && takes) {
        (void)relacy_ref::fetch_and(~(found & ~v), won, where);
        return true;
    }
    return relacy_ref::compare_exchange(found, v, won, lost, where);
}

struct suite : rl::test_suite<suite, 1 + others>, world {
    void before() { world::before(); }
    void thread(unsigned i) {
        if (i == 0)
            vcpu();
        else
            other(i - 1);
    }
};

/// One sender kicks, then sends INIT; another sends SIPI, with which the vCPU's look may begin.
struct init_suite : rl::test_suite<init_suite, 3>, world {
    void before() { world::before(); }
    void thread(unsigned i) {
        host::vcpu_signals<machine> const signals{machine{}, words, cpu_index{0}};
        if (i == 1) {
            signals.kick();
            signals.init();
        } else if (i == 2) {
            signals.startup(7);
        } else {
            for (unsigned looks = 0; looks < 3; ++looks) {
                if (halt->next().action != host::halt_action::init) continue;
                ++seen.starts;
                return require(words.latch.load(rl::mo_seq_cst, place{}.info()) == 0, "INIT has cleared the latch");
            }
        }
    }
};

class models {
public:
    models(int argc, char** argv) : model_(argc, argv) {}

    void good(char const* name, shape const& s, model_bound bound = {3, 4}) {
        choose<shipped>(s);
        model_.passes<suite>(name, bound);
        model_.reached(seen.slept != 0, name, "nobody slept");
    }
    template <mutation M = shipped>
    void bad(char const* name, shape s, bug wrong = bug::none, rl::test_result_e how = rl::test_result_deadlock) {
        s.wrong = wrong;
        choose<M>(s);
        model_.caught<suite>(name, {2, 2}, how);
    }
    void good_init(char const* name) {
        choose<shipped>({.application = true});
        model_.passes<init_suite>(name, {3, 4});
        model_.reached(seen.starts != 0, name, "no INIT was taken");
    }
    template <mutation M>
    void bad_init(char const* name) {
        choose<M>({.application = true});
        model_.caught<init_suite>(name, {3, 4});
    }
    void reached(bool holds, char const* name, char const* what) { model_.reached(holds, name, what); }
    int result() const { return model_.result(); }

private:
    template <mutation M>
    static void choose(shape const& s) {
        now = s;
        chosen::now = &M::apply;
        seen = {};
    }

    model model_;
};

}  // namespace

int main(int argc, char** argv) {
    models m{argc, argv};
    using enum does;
    constexpr model_bound few{2, 3};

    shape const one{};
    shape const two{.what = {kick, kick}};
    shape const twice{.what = {kick_twice, kick}};
    shape const interrupted{.what = {kick, interrupt}};
    shape const nested{.what = {kick, interrupt}, .nested = true};
    shape const resets{.what = {kick, kick}, .resets = true};
    shape const start{.what = {init_and_sipi, nothing}, .application = true};
    shape const start_twice{.what = {init_and_sipi, init_and_sipi}, .application = true};
    shape const start_kicked{.what = {init_and_sipi, kick}, .application = true};
    shape const start_stopped{.what = {init_and_sipi, stop}, .application = true};
    shape const stopped{.what = {kick, stop}};

    m.good("a kick before, in and after a halt", one, {4, every_schedule});
    m.reached(seen.kept_awake != 0, "a kick before, in and after a halt", "no kick came before its halt");
    m.good("two kickers", two);
    m.good("three kicks", twice, few);
    m.good("an interrupt and a kick", interrupted);
    m.good("a nested guest's halt, an interrupt and a kick", nested, few);
    m.good("a reset after each of two waits", resets, few);
    m.good("INIT and SIPI", start);
    m.reached(seen.starts != 0, "INIT and SIPI", "never started");
    m.good("INIT and SIPI from two sides", start_twice, few);
    m.good("INIT, SIPI and a kick", start_kicked, few);
    m.good("a stop in a halt, and a kick", stopped, few);
    m.reached(seen.stops != 0, "a stop in a halt, and a kick", "never stood still");
    m.good("a stop and INIT, SIPI", start_stopped, few);
    m.good("one more wake than needed, from who still reads blocked",
           {.what = {kick, interrupt}, .wrong = bug::keeps_blocked});

    m.good_init("an INIT after a kick of the same sender, and a SIPI");

    // [halt-block]
    m.bad<weaken<operation::fence, order::seq_cst, order::relaxed, "notify">>("[halt-block]: kicker without fence",
                                                                              one);
    m.bad<weaken<operation::fence, order::seq_cst, order::relaxed, "block">>("[halt-block]: vCPU without fence", one);
    m.bad<weaken<operation::fence, order::seq_cst, order::acq_rel, "notify">>("[halt-block]: kicker's fence not full",
                                                                              one);
    m.bad<weaken<operation::fence, order::seq_cst, order::acq_rel, "block">>("[halt-block]: vCPU's fence not full",
                                                                             one);
    m.bad("the look before the latch", one, bug::looks_first);
    m.bad("blocked after the look", one, bug::blocked_late);
    m.bad("the latch taken before it is blocked", one, bug::latch_taken_early);
    m.bad("a kick wakes nobody", one, bug::no_wake);
    m.bad("a wake that is not sticky", one, bug::wake_not_sticky);

    // [halt-kick]
    m.bad<weaken<operation::rmw, order::release, order::relaxed, "kick">>("[halt-kick]: kick relaxed", two);
    m.bad<weaken<operation::rmw, order::acquire, order::relaxed, "take_kick">>("[halt-kick]: latch taken relaxed", two);
    m.bad("the latch cleared by a store", two, bug::latch_by_store);
    m.bad("the latch set by a store", two, bug::kick_by_store);

    // [halt-request]
    m.bad<weaken<operation::rmw, order::release, order::relaxed, "change">>("[halt-request]: request relaxed", start,
                                                                            bug::none, rl::test_result_data_race);
    m.bad<weaken<operation::load, order::acquire, order::relaxed, "next">>("[halt-request]: found relaxed", start,
                                                                           bug::none, rl::test_result_data_race);
    m.bad<weaken<operation::load, order::acquire, order::relaxed, "next">>("[halt-request]: resumed relaxed", stopped,
                                                                           bug::none, rl::test_result_data_race);
    m.bad_init<weaken<operation::load, order::acquire, order::relaxed, "take">>("[halt-request]: INIT found relaxed");
    m.bad("a request sent by a store", start_stopped, bug::requests_by_store);
    m.bad("a request taken by a store", start, bug::takes_by_store);
    m.bad("a request taken without comparing", start_twice, bug::takes_by_and);
    m.bad("the wake taken back by a store", start, bug::wake_by_store);
    return m.result();
}
