// SPDX-License-Identifier: MIT
// Bound: two CPUs, 5 to 6 preemptions, three CPUs 2 to 3, as each line of the output says (--full: up to two more).
// Memory model: C++20 as Relacy has it (what that leaves out: support/relacy_atomics.hpp).

/// \file
/// The shipped guest::lock_domain in all its modes. Not here, since Relacy has neither: the interrupt fences between
/// contexts of one CPU, and the byte store of native locks. See unit/qspinlock_test.cpp and
/// stress/qspinlock_stress.cpp.

#include "qspinlock_world.hpp"

namespace {

using namespace pvx;
using namespace pvx_test;
using guest::lock_event;
using guest::lock_mode;

struct suite : rl::test_suite<suite, lock_world::cpus>, lock_world {
    void before() { lock_world::before(); }
    void after() { lock_world::after(); }
    void thread(unsigned index) { play(lock_machine::now.scripts[index]); }
};

constexpr auto race = rl::test_result_data_race;
constexpr auto wrong = rl::test_result_user_assert_failed;
constexpr auto sleeps_for_ever = rl::test_result_deadlock;
constexpr auto spins_for_ever = rl::test_result_livelock;

class lock_models {
public:
    lock_models(int argc, char** argv) : model_(argc, argv) {}

    /// \pre in some schedule a lock changes hands, and each event of `events` happens.
    void passes(char const* name, shape const& s, model_bound bound, std::initializer_list<lock_event> events = {}) {
        choose<shipped>(s);
        model_.passes<suite>(name, bound);
        model_.reached(lock_machine::seen.handovers != 0, name, "no lock changed hands");
        for (lock_event e : events)
            model_.reached(lock_machine::seen.events[static_cast<unsigned>(e)] != 0, name, "an event did not happen");
    }

    /// What `seen` counted in the last one.
    void reached(bool holds, char const* name, char const* what) { model_.reached(holds, name, what); }

    template <mutation M = shipped>
    void caught(char const* name, shape const& s, rl::test_result_e expected) {
        choose<M>(s);
        model_.caught<suite>(name, {3, 3}, expected);
    }
    int result() const { return model_.result(); }

private:
    template <mutation M>
    void choose(shape const& s) {
        lock_machine::now = s;
        lock_machine::seen = {};
        chosen::now = &M::apply;
    }
    model model_;
};

}  // namespace

int main(int argc, char** argv) {
    lock_models m{argc, argv};
    using enum lock_event;
    using enum operation;
    lock_statistics const& seen = lock_machine::seen;

    shape const pair{};
    shape const triple{.scripts = {"Aa", "Aa", "Aa"}, .freed = true};
    shape pair_woken = pair;
    pair_woken.spurious = 1;
    shape triple_woken = triple;
    triple_woken.spurious = 1;
    shape stolen = triple;
    stolen.tuning.steals = 1;
    shape const again{.scripts = {"AaAa", "AaAa", ""}};
    // A newcomer that is quick, and lets the head look whenever that costs it the lock.
    shape const thief{.scripts = {"AyayAyayAya", "Aa", ""}, .tuning = {.spins = 2, .steals = 1, .head_polls = 1}};
    shape full = triple_woken;
    full.capacity = 0;
    shape patient = triple;  // A head that looks without a change of the word.
    patient.tuning.head_polls = 2;
    shape const nested{.scripts = {"ABba", "Aa", "Bb"}, .capacity = 1};
    shape const interrupted{.scripts = {"Aa", "Aa", "Bb"}, .interrupts = {"", "Bb", ""}, .spurious = 1};
    shape queue_interrupted = triple;
    queue_interrupted.interrupts[1] = queue_interrupted.interrupts[2] = "Bb";

    m.passes("two CPUs", pair, {6, 8}, {halt_head, kick});
    m.passes("two CPUs, woken for no reason", pair_woken, {5, 7}, {spurious_wake});
    m.passes("two CPUs, twice each", again, {2, 3}, {halt_node, kick});
    m.passes("three CPUs", triple, {3, 3}, {halt_node, kick});
    m.passes("three CPUs, woken for no reason", triple_woken, {2, 3}, {halt_node, spurious_wake});
    m.passes("three CPUs, of which each may take the lock past the queue", stolen, {2, 3}, {steal, halt_node});
    m.passes("a newcomer takes the lock past the head", thief, {2, 3}, {steal});
    m.reached(seen.passed_waiter != 0, "a newcomer", "never past a head that halts");
    m.passes("the table is full", full, {2, 3}, {table_full, kick_early});
    m.passes("one lock in another", nested, {3, 3}, {kick});
    m.passes("an interrupt that takes a lock, in a head", interrupted, {3, 4}, {spurious_wake, kick});
    m.passes("interrupts that take a lock, in the queue", queue_interrupted, {2, 3}, {halt_node, kick});

    shape live{.scripts = {"ALsa", "wAa", "wAa"}, .late = true};
    m.passes("going live with a lock held", live, {2, 3}, {halt_node});
    shape const early{.scripts = {"Aa", "Aa", "T"}, .late = true};
    m.passes("test-and-set", early, {3, 4});
    shape native = triple;
    native.mode = lock_mode::native;
    m.passes("native", native, {3, 4}, {queue});
    live.mode = lock_mode::native;
    m.passes("native, going live with a lock held", live, {2, 3}, {queue});

    // Logic.
    auto const with = [](shape s, lock_bug bug) {
        s.bug = bug;
        return s;
    };
    m.caught("the kick before the release", with(pair, lock_bug::kicks_before_release), sleeps_for_ever);
    m.caught("a look after the release", with(triple, lock_bug::touches_after_release), wrong);
    m.caught("a release by a store", with(pair, lock_bug::releases_by_store), spins_for_ever);
    m.caught("a slow release by a store", with(triple, lock_bug::releases_slow_by_store), sleeps_for_ever);
    m.caught("a mark by a store", with(pair, lock_bug::marks_by_store), sleeps_for_ever);
    m.caught("the mark before the entry", with(pair, lock_bug::marks_before_entry), wrong);
    m.caught("two entries", with(pair_woken, lock_bug::marks_twice), wrong);
    m.caught("a mark taken back without its entry", with(pair, lock_bug::unmarks_mark_only), wrong);
    m.caught("a head that does not insist", with(thief, lock_bug::never_insists), wrong);
    // Nothing breaks, but a free lock waits for who sleeps.
    m.passes("a head that insists while it halts", with(thief, lock_bug::always_insists), {2, 2});
    m.reached(seen.passed_waiter == 0, "a head that insists", "the lock is taken past it");
    m.caught("a waiter halts by a store", with(triple, lock_bug::sleeps_by_store), sleeps_for_ever);
    m.caught("an owner hands on by a store", with(triple, lock_bug::turns_by_store), sleeps_for_ever);
    m.caught("no look after the turn", with(triple, lock_bug::no_look_after_turn), sleeps_for_ever);
    m.caught("a look after the turn, and no kick", with(triple, lock_bug::no_kick_early), sleeps_for_ever);
    m.caught("no entry, and set running before the turn", with(full, lock_bug::wakes_before_turn), sleeps_for_ever);
    m.caught("an entry for a waiter whose state stays", with(triple, lock_bug::hashes_unseen), sleeps_for_ever);

    // Orders.
    m.caught<weaken<rmw, order::acquire, order::relaxed, "lock">>("[qsl-release]: lock()", pair, race);
    m.caught<weaken<rmw, order::acquire, order::relaxed, "try_lock">>("[qsl-release]: try_lock()", early, race);
    m.caught<weaken<rmw, order::acquire, order::relaxed, "take">>("[qsl-release]: take()", early, race);
    m.caught<weaken<rmw, order::acquire, order::relaxed, "take_as_head">>("[qsl-release]: take_as_head()", pair, race);
    m.caught<weaken<rmw, order::acquire, order::relaxed, "wait_as_pending">>("[qsl-release]: wait_as_pending()", native,
                                                                             race);
    m.caught<weaken<rmw, order::release, order::relaxed, "unlock">>("[qsl-release]: unlock()", pair, race);
    m.caught("[qsl-release]: unlock_contended(), again", with(pair, lock_bug::releases_again_relaxed), race);
    m.caught("[qsl-release]: unlock_contended(), slow", with(pair, lock_bug::releases_slow_relaxed), race);
    m.caught<weaken<rmw, order::acq_rel, order::acquire, "queue">>("[qsl-publish]: acquire only", triple, race);
    m.caught<weaken<rmw, order::acq_rel, order::release, "queue">>("[qsl-publish]: release only", triple, race);
    m.caught<weaken<store, order::release, order::relaxed, "queue">>("[qsl-next]: store relaxed", again, race);
    m.caught<weaken<load, order::acquire, order::relaxed, "next_of">>("[qsl-next]: load relaxed", again, race);
    m.caught<weaken<load, order::acquire, order::relaxed, "has_turn">>("[qsl-turn]: load relaxed", patient, wrong);
    m.caught<weaken<store, order::release, order::relaxed, "hand_on">>("[qsl-turn]: store relaxed", patient, wrong);
    m.caught<weaken<rmw, order::seq_cst, order::acq_rel, "wait_for_turn">>("[qsl-sleep]: exchange halted", triple,
                                                                           sleeps_for_ever);
    m.caught<weaken<load, order::seq_cst, order::acquire, "wait_for_turn">>("[qsl-sleep]: load turn", triple,
                                                                            sleeps_for_ever);
    m.caught<weaken<rmw, order::seq_cst, order::acq_rel, "hand_on">>("[qsl-sleep]: exchange turn", triple,
                                                                     sleeps_for_ever);
    m.caught<weaken<load, order::seq_cst, order::acquire, "hand_on">>("[qsl-sleep]: load state", triple,
                                                                      sleeps_for_ever);
    m.caught<weaken<rmw, order::acq_rel, order::acquire, "wait_as_head">>("[qsl-slow]: mark acquire", pair, race);
    m.caught<weaken<rmw, order::acq_rel, order::release, "wait_as_head">>("[qsl-slow]: mark release", thief, wrong);
    m.caught<weaken<fence, order::acquire>>("[qsl-slow]: fence", pair, race);
    m.caught<weaken<rmw, order::acquire, order::relaxed, "insert">>("[qsl-entry]: CAS relaxed", nested, race);
    m.caught<weaken<store, order::release, order::relaxed, "remove">>("[qsl-entry]: store relaxed", nested, race);
    return m.result();
}
