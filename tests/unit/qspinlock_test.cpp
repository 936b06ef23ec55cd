// SPDX-License-Identifier: MIT
#include <pvx/guest/qspinlock.hpp>

#include <functional>
#include <mutex>
#include <vector>

#include "support/catch.hpp"
#include "support/recording_atomics.hpp"

using namespace pvx;
using namespace pvx::guest;
using namespace pvx_test;
using namespace pvx::guest::detail;
using kind = recorded::kind;

namespace {

constexpr uint32_t cpus = 4;
constexpr uint32_t free_lock = 0;

struct broken_lock {
    lock_invariant what;
};

/// What the machine of these tests has seen.
struct lock_log {
    recording notes;
    cpu_index self{0};
    uint32_t possible = cpus;
    std::vector<uint32_t> kicks;
    std::vector<lock_event> events;
    uint32_t pauses = 0;
    uint32_t waits = 0;
    std::function<void()> on_relax = [] { throw std::logic_error("nobody was to wait"); };
    std::function<void()> on_wait = [] { throw std::logic_error("nobody was to halt"); };
    std::function<void()> on_kick = [] {};

    size_t told(lock_event e) const {
        size_t n = 0;
        for (lock_event seen : events) n += seen == e;
        return n;
    }
};

struct machine : recording_atomics {
    lock_log* log;

    explicit machine(lock_log& l) : recording_atomics(l.notes), log(&l) {}

    cpu_index self() const { return log->self; }
    uint32_t possible_cpus() const { return log->possible; }
    apic_id apic(cpu_index cpu) const { return apic_id{cpu.value}; }
    void relax() const {
        ++log->pauses;
        log->on_relax();
    }
    void wait(uint32_t& watched, uint32_t mask, uint32_t value) const {
        if ((watched & mask) != value) return;
        ++log->waits;
        log->on_wait();
    }
    void kick(cpu_index cpu) const {
        log->kicks.push_back(cpu.value);
        log->on_kick();
    }
    void event(lock_event e) const { log->events.push_back(e); }
    [[noreturn]] void broken(lock_invariant what) const { throw broken_lock{what}; }
};

/// The same with byte stores.
struct byte_machine : machine {
    using machine::machine;
    void store_low_byte(uint32_t& w, uint8_t value, store_order auto o) const {
        w = (w & ~uint32_t{0xff}) | value;
        log->notes.add({kind::store, &w, w, o.builtin});
    }
};

/// The same with a mode that is known when it is compiled.
struct native_machine : machine {
    using machine::machine;
    static constexpr lock_mode fixed_lock_mode = lock_mode::native;
};

/// A domain of four CPUs.
template <class Machine, uint32_t Capacity = cpus* nodes_per_cpu>
struct domain_of {
    lock_log log;
    static_lock_storage<Machine, cpus, Capacity> storage;
    lock_domain<Machine> domain;
    uint32_t word = 0;

    explicit domain_of(lock_mode mode, lock_tuning tuning = {.spins = 4, .steals = 2, .head_polls = 2, .handover = 2})
        : domain(Machine{log}, storage, tuning) {
        REQUIRE(domain.go_live(mode) == status::ok);
        log.notes.steps.clear();
    }

    auto& first_node(uint32_t cpu) { return storage.nodes[cpu * nodes_per_cpu]; }
    wait_table<Machine> table() { return {Machine{log}, storage.entries, Capacity}; }
    uint64_t key() { return reinterpret_cast<uintptr_t>(&word); }
    bool in_table(cpu_index& cpu) { return table().remove(key(), cpu); }

    /// CPU 1 queues behind CPU 0, as far as CPU 0 can see, and does this.
    void queue_cpu_1(uint32_t state) {
        first_node(1).state = state;
        first_node(0).next = encode_tail(cpu_index{1}, 0);
        word = (word & ~lock_tail_mask) | encode_tail(cpu_index{1}, 0);
    }
    bool clean() const {
        bool all = word == free_lock;
        for (auto const& n : storage.nodes) all = all && n.in_use == 0;
        for (auto const& e : storage.entries) all = all && e.key == 0;
        return all;
    }
};

using pv_domain = domain_of<machine>;

lock_invariant how_it_breaks(pv_domain& t) {
    try {
        t.domain.unlock(t.word);
    } catch (broken_lock const& b) {
        return b.what;
    }
    FAIL("the lock did not find that it is broken");
    return {};
}

}  // namespace

TEST_CASE("A tail names each node of each CPU, up to the last one that fits", "[guest][qspinlock]") {
    for (uint32_t cpu : {0u, 1u, 2u, 255u, 256u, 8191u, 8192u, max_lock_cpus - 2, max_lock_cpus - 1})
        for (uint32_t node = 0; node < nodes_per_cpu; ++node) {
            CAPTURE(cpu, node);
            uint32_t const tail = encode_tail(cpu_index{cpu}, node);
            CHECK(tail != 0);
            CHECK((tail & ~lock_tail_mask) == 0);
            CHECK(tail_cpu(tail) == cpu_index{cpu});
            CHECK(node_index(tail) == cpu * nodes_per_cpu + node);
        }
    // One more CPU would be none.
    CHECK(encode_tail(cpu_index{max_lock_cpus}, 0) == 0);
    CHECK((lock_slow & lock_held) == lock_held);
    CHECK((lock_held_mask | lock_pending | lock_tail_mask) == 0xffff01ff);
}

TEST_CASE("A domain goes live only with storage for all CPUs, an entry, and waiters that look", "[guest][qspinlock]") {
    lock_log log;
    static_lock_storage<machine, cpus> storage;
    lock_storage<machine> const all = storage;
    auto const live = [&](lock_storage<machine> s, lock_tuning tuning = {}) {
        lock_domain<machine> domain(machine{log}, s, tuning);
        CHECK(domain.mode() == lock_mode::test_and_set);
        status const answer = domain.go_live(lock_mode::paravirtual);
        CHECK(domain.mode() == (answer == status::ok ? lock_mode::paravirtual : lock_mode::test_and_set));
        return answer;
    };
    CHECK(live(all) == status::ok);
    log.possible = cpus + 1;
    CHECK(live(all) == status::bad_argument);
    log.possible = 1;
    CHECK(live(all) == status::ok);
    CHECK(live({all.nodes, max_lock_cpus, all.entries, 1}) == status::ok);
    CHECK(live({all.nodes, max_lock_cpus + 1, all.entries, 1}) == status::bad_argument);
    CHECK(live({all.nodes, cpus, all.entries, 0}) == status::bad_argument);
    CHECK(live(all, {.spins = 0}) == status::bad_argument);
    CHECK(log.notes.steps.empty());
}

TEST_CASE("A lock that nobody else wants costs one exchange to take, and one to let go", "[guest][qspinlock]") {
    for (lock_mode mode : {lock_mode::test_and_set, lock_mode::native, lock_mode::paravirtual}) {
        pv_domain t(mode);
        t.domain.lock(t.word);
        CHECK(t.domain.is_locked(t.word));
        CHECK_FALSE(t.domain.is_contended(t.word));
        t.log.notes.steps.pop_back();
        t.log.notes.steps.pop_back();
        t.domain.unlock(t.word);
        CHECK(t.log.notes.steps == std::vector<recorded>{{kind::rmw, &t.word, lock_held, order::acquire.builtin},
                                                         {kind::rmw, &t.word, free_lock, order::release.builtin}});
        CHECK(t.clean());
        CHECK(t.log.events.empty());
    }
}

TEST_CASE("With byte stores a native lock is let go by one store, and one that may be slow is not",
          "[guest][qspinlock]") {
    domain_of<byte_machine> native(lock_mode::native);
    native.word = encode_tail(cpu_index{1}, 0) | lock_pending | lock_held;
    native.domain.unlock(native.word);
    CHECK(native.log.notes.steps ==
          std::vector<recorded>{
              {kind::store, &native.word, encode_tail(cpu_index{1}, 0) | lock_pending, order::release.builtin}});
    for (lock_mode mode : {lock_mode::test_and_set, lock_mode::paravirtual}) {
        domain_of<byte_machine> other(mode);
        other.word = lock_held;
        other.domain.unlock(other.word);
        CHECK(other.log.notes.count(kind::store) == 0);
        CHECK(other.log.notes.count(kind::rmw) == 1);
    }
}

TEST_CASE("Trying takes a free lock that nobody waits for, and writes to no other", "[guest][qspinlock]") {
    pv_domain t(lock_mode::paravirtual);
    REQUIRE(t.domain.try_lock(t.word));
    CHECK(t.word == lock_held);
    for (uint32_t found : {lock_held, lock_slow, lock_pending, encode_tail(cpu_index{0}, 0)}) {
        CAPTURE(found);
        t.word = found;
        t.log.notes.steps.clear();
        CHECK_FALSE(t.domain.try_lock(t.word));
        CHECK(t.word == found);
        CHECK(t.log.notes.steps == std::vector<recorded>{{kind::load, &t.word, found, order::relaxed.builtin}});
    }
}

TEST_CASE("A slow lock leaves the table before it is free, and its waiter is kicked after that", "[guest][qspinlock]") {
    pv_domain t(lock_mode::paravirtual);
    uint32_t const tail = encode_tail(cpu_index{2}, 1);
    uint32_t hops = 0;
    REQUIRE(t.table().insert(t.key(), cpu_index{2}, hops));
    t.word = tail | lock_pending | lock_slow;
    t.log.notes.steps.clear();
    t.log.on_kick = [&] { CHECK(t.word == (tail | lock_pending)); };
    t.log.notes.after = [&](recorded const& r) {
        if (r.word == &t.word && r.what == kind::rmw) {
            cpu_index cpu;
            CHECK_FALSE(t.in_table(cpu));
        }
    };
    t.domain.unlock(t.word);
    CHECK(t.log.kicks == std::vector<uint32_t>{2});
    CHECK(t.log.events == std::vector<lock_event>{lock_event::kick});
    CHECK(t.log.notes.count(kind::rmw, &t.word) == 1);
    CHECK(t.log.notes.count(kind::lost_cas) == 1);
    auto const& steps = t.log.notes.steps;
    CHECK(steps[1] == recorded{kind::fence, nullptr, 0, order::acquire.builtin});
    // From the release on the lock's memory may be gone.
    recorded const release{kind::rmw, &t.word, tail | lock_pending, order::release.builtin};
    auto at = steps.begin();
    while (at != steps.end() && !(*at == release)) ++at;
    REQUIRE(at != steps.end());
    for (++at; at != steps.end(); ++at) CHECK(at->word != &t.word);
}

TEST_CASE("An unlocker whose word changes goes on until it is let go, and sees a mark that comes meanwhile",
          "[guest][qspinlock]") {
    pv_domain t(lock_mode::paravirtual);
    t.word = lock_held | encode_tail(cpu_index{3}, 0);
    uint32_t changes = 0;
    t.log.notes.after = [&](recorded const&) {
        if (++changes > 2) return;
        t.word = (t.word & ~lock_tail_mask) | encode_tail(cpu_index{changes}, 0);
    };
    t.domain.unlock(t.word);
    CHECK(t.word == encode_tail(cpu_index{2}, 0));
    CHECK(t.log.notes.count(kind::lost_cas, &t.word) == 3);
    CHECK(t.log.kicks.empty());

    pv_domain marked(lock_mode::paravirtual);
    marked.word = lock_held | encode_tail(cpu_index{3}, 0);
    marked.log.notes.after = [&](recorded const& r) {
        uint32_t hops = 0;
        if (r.what != kind::lost_cas || r.word != &marked.word) return;
        marked.log.notes.after = nullptr;
        REQUIRE(marked.table().insert(marked.key(), cpu_index{3}, hops));
        marked.word |= lock_slow;
    };
    marked.domain.unlock(marked.word);
    CHECK(marked.word == encode_tail(cpu_index{3}, 0));
    CHECK(marked.log.kicks == std::vector<uint32_t>{3});
}

TEST_CASE("A word that no owner can have found breaks the lock", "[guest][qspinlock]") {
    for (uint32_t found : {free_lock, 2u, 0x80u, 0xffu, lock_pending, encode_tail(cpu_index{1}, 0)}) {
        CAPTURE(found);
        pv_domain t(lock_mode::paravirtual);
        t.word = found;
        CHECK(how_it_breaks(t) == lock_invariant::word_is_held);
        CHECK(t.word == found);
    }
}

TEST_CASE("A slow lock without an entry breaks", "[guest][qspinlock]") {
    pv_domain t(lock_mode::paravirtual);
    t.word = lock_slow;
    CHECK(how_it_breaks(t) == lock_invariant::slow_has_entry);
    CHECK(t.log.kicks.empty());
}

TEST_CASE("A fifth context of a CPU polls without a node, and leaves those of the others", "[guest][qspinlock]") {
    for (lock_mode mode : {lock_mode::native, lock_mode::paravirtual}) {
        pv_domain t(mode, {.spins = 4, .steals = 0, .head_polls = 2, .handover = 0});
        t.first_node(0).in_use = nodes_per_cpu;
        uint32_t const tail = encode_tail(cpu_index{1}, 0);
        t.word = tail | lock_held;
        t.log.on_relax = [&] {
            CHECK(t.word == (tail | lock_held));
            if (t.log.pauses == 3) t.word = tail;
        };
        t.domain.lock(t.word);
        CHECK(t.word == (tail | lock_held));
        CHECK(t.log.events == std::vector<lock_event>{lock_event::no_node});
        CHECK(t.first_node(0).in_use == nodes_per_cpu);
    }
}

TEST_CASE("The fourth context of a CPU has the last node", "[guest][qspinlock]") {
    pv_domain t(lock_mode::paravirtual, {.spins = 4, .steals = 0, .head_polls = 2, .handover = 0});
    t.first_node(0).in_use = nodes_per_cpu - 1;
    t.word = lock_held;
    t.log.on_relax = [&] {
        CHECK((t.word & lock_tail_mask) == encode_tail(cpu_index{0}, 3));
        CHECK(t.first_node(0).in_use == nodes_per_cpu);
        t.word &= ~lock_held_mask;
    };
    t.domain.lock(t.word);
    CHECK(t.word == lock_held);
    CHECK(t.first_node(0).in_use == nodes_per_cpu - 1);
}

TEST_CASE("A test-and-set lock asks no CPU who it is, and leaves a lock to a head that insists", "[guest][qspinlock]") {
    pv_domain t(lock_mode::test_and_set);
    t.log.self = cpu_index{0xffffffff};
    t.word = lock_held;
    t.log.on_relax = [&] {
        if (t.log.pauses == 2) t.word = lock_pending;
        if (t.log.pauses == 4) t.word = free_lock;
    };
    t.domain.lock(t.word);
    CHECK(t.word == lock_held);
    CHECK(t.log.pauses == 4);
    CHECK(t.log.events.empty());
}

TEST_CASE("A newcomer takes a lock past the queue within its looks, but not past a head that insists",
          "[guest][qspinlock]") {
    uint32_t const tail = encode_tail(cpu_index{1}, 0);
    pv_domain t(lock_mode::paravirtual);
    t.word = tail;
    t.domain.lock(t.word);
    CHECK(t.word == (tail | lock_held));
    CHECK(t.log.events == std::vector<lock_event>{lock_event::steal});

    for (uint32_t found : {tail | lock_pending, tail | lock_held}) {
        pv_domain late(lock_mode::paravirtual);
        late.word = found;
        bool queued = false;
        late.log.on_relax = [&] {
            if ((late.word & lock_tail_mask) == tail) return;
            queued = true;
            late.first_node(0).turn = 1;
            late.word &= lock_tail_mask;
        };
        late.domain.lock(late.word);
        CHECK(queued);
        CHECK(late.first_node(1).next == encode_tail(cpu_index{0}, 0));
        CHECK(late.log.told(lock_event::steal) == 0);
    }
}

TEST_CASE("A head declares pending with the look that the tuning says, also where it came too late each time",
          "[guest][qspinlock]") {
    for (bool comes_late : {false, true}) {
        CAPTURE(comes_late);
        pv_domain t(lock_mode::paravirtual, {.spins = 100, .steals = 0, .head_polls = 7, .handover = 0});
        t.word = lock_held;
        uint32_t looks = 0;
        uint32_t looks_at_pending = 0;
        bool queued = false;
        t.log.notes.after = [&](recorded const& r) {
            queued = queued || (r.what == kind::rmw && r.word == &t.word);
            if (!queued || r.word != &t.word) return;
            // The lock is free for each look, and taken when the head wants it.
            if (r.what == kind::load) ++looks;
            if (r.what == kind::load && comes_late) t.word |= lock_held;
            if (r.what == kind::rmw && (r.value & lock_pending) != 0 && looks_at_pending == 0) looks_at_pending = looks;
        };
        t.log.on_relax = [&] {
            if (comes_late) t.word &= ~lock_held_mask;
            if (looks_at_pending == 0) return;
            t.log.notes.after = nullptr;
            t.word &= ~lock_held_mask;
        };
        t.domain.lock(t.word);
        CHECK(looks_at_pending == 7);
        CHECK(t.word == lock_held);
    }
}

TEST_CASE("A head takes pending back for its first two marks, and keeps it from the third on", "[guest][qspinlock]") {
    // Also where it does not look so often between its halts as it may before it insists.
    for (unsigned how = 0; how < 4; ++how) {
        bool const marked_before = how % 2 != 0;
        uint32_t const head_polls = how < 2 ? 1 : 1000;
        CAPTURE(marked_before, head_polls);
        pv_domain t(lock_mode::paravirtual, {.spins = 3, .steals = 0, .head_polls = head_polls, .handover = 0});
        t.log.on_relax = [] {};
        std::vector<bool> pending;
        if (marked_before) {
            // CPU 1 is before us, sees us halted and hands on.
            t.word = encode_tail(cpu_index{1}, 0) | lock_held;
        } else {
            t.word = lock_held;
        }
        t.log.on_wait = [&] {
            if (marked_before && t.first_node(0).turn == 0) {
                uint32_t hops = 0;
                CHECK(t.first_node(0).state == waiter::halted);
                t.first_node(0).state = waiter::hashed;
                REQUIRE(t.table().insert(t.key(), cpu_index{0}, hops));
                t.word |= lock_slow;
                t.first_node(0).turn = 1;
                return;
            }
            pending.push_back((t.word & lock_pending) != 0);
            // A wake for no reason changes nothing; then the lock is let go, and taken past us.
            if (pending.size() % 2 == 1) return;
            if (pending.size() == 8) t.log.on_relax = [&] { FAIL("the lock is free"); };
            t.domain.unlock(t.word);
            if (pending.size() < 8) t.word |= lock_held;
        };
        t.domain.lock(t.word);
        CHECK(pending == std::vector<bool>{false, false, false, false, true, true, true, true});
        CHECK(t.log.kicks == std::vector<uint32_t>(4, 0));
        CHECK(t.word == lock_held);
        t.domain.unlock(t.word);
        CHECK(t.clean());
    }
}

TEST_CASE("An owner hands on to a waiter that runs without a kick", "[guest][qspinlock]") {
    for (lock_mode mode : {lock_mode::native, lock_mode::paravirtual}) {
        pv_domain t(mode, {.spins = 4, .steals = 0, .head_polls = 9, .handover = 0});
        t.word = encode_tail(cpu_index{2}, 0) | lock_held;
        t.log.on_relax = [&] {
            t.first_node(0).turn = 1;
            t.queue_cpu_1(waiter::running);
            t.word &= ~lock_held_mask;
        };
        t.domain.lock(t.word);
        CHECK(t.first_node(1).turn == 1);
        CHECK(t.word == (encode_tail(cpu_index{1}, 0) | lock_held));
        t.domain.unlock(t.word);
        CHECK(t.log.kicks.empty());
    }
}

TEST_CASE("An owner hands on to a waiter that halted by an entry and a mark, and its unlock has the only kick",
          "[guest][qspinlock]") {
    pv_domain t(lock_mode::paravirtual, {.spins = 4, .steals = 0, .head_polls = 9, .handover = 0});
    t.word = lock_held;
    t.log.on_relax = [&] {
        t.queue_cpu_1(waiter::halted);
        t.word &= ~lock_held_mask;
    };
    t.log.notes.after = [&](recorded const& r) {
        // Whatever the waiter can know from its turn on is in place before it.
        if (r.word != &t.first_node(1).turn) return;
        CHECK(t.first_node(1).state == waiter::hashed);
        CHECK((t.word & lock_held_mask) == lock_slow);
        CHECK(r.order == order::release.builtin);
    };
    t.domain.lock(t.word);
    CHECK(t.first_node(1).turn == 1);
    CHECK(t.log.kicks.empty());
    t.domain.unlock(t.word);
    CHECK(t.log.kicks == std::vector<uint32_t>{1});
    CHECK(t.word == encode_tail(cpu_index{1}, 0));
}

TEST_CASE("A waiter that fell asleep in the moment of the hand-over is kicked at once", "[guest][qspinlock]") {
    pv_domain t(lock_mode::paravirtual, {.spins = 4, .steals = 0, .head_polls = 9, .handover = 0});
    t.word = lock_held;
    t.log.on_relax = [&] {
        t.queue_cpu_1(waiter::running);
        t.word &= ~lock_held_mask;
    };
    t.log.notes.after = [&](recorded const& r) {
        if (r.word == &t.first_node(1).turn) t.first_node(1).state = waiter::halted;
    };
    t.log.on_kick = [&] {
        CHECK(t.first_node(1).turn == 1);
        CHECK(t.first_node(1).state == waiter::running);
    };
    t.domain.lock(t.word);
    CHECK(t.log.kicks == std::vector<uint32_t>{1});
    CHECK(t.log.told(lock_event::kick_early) == 1);
    t.domain.unlock(t.word);
    CHECK(t.log.kicks == std::vector<uint32_t>{1});
}

TEST_CASE("A waiter that halted and finds no entry is kicked with its turn, and cannot halt again before that",
          "[guest][qspinlock]") {
    domain_of<machine, 1> t(lock_mode::paravirtual, {.spins = 4, .steals = 0, .head_polls = 9, .handover = 0});
    t.storage.entries[0].key = 1;
    t.word = lock_held;
    t.log.on_relax = [&] {
        t.queue_cpu_1(waiter::halted);
        t.word &= ~lock_held_mask;
    };
    t.log.notes.after = [&](recorded const& r) {
        if (r.word == &t.first_node(1).turn) CHECK(t.first_node(1).state == waiter::hashed);
    };
    t.log.on_kick = [&] {
        CHECK(t.first_node(1).turn == 1);
        CHECK(t.first_node(1).state != waiter::halted);
    };
    t.domain.lock(t.word);
    CHECK(t.log.kicks == std::vector<uint32_t>{1});
    CHECK(t.log.told(lock_event::table_full) == 1);
    CHECK(t.word == (encode_tail(cpu_index{1}, 0) | lock_held));
}

TEST_CASE("A head that finds no entry neither marks the lock nor halts", "[guest][qspinlock]") {
    domain_of<machine, 1> t(lock_mode::paravirtual, {.spins = 4, .steals = 0, .head_polls = 2, .handover = 0});
    t.storage.entries[0].key = 1;
    t.word = lock_held;
    t.log.on_relax = [&] {
        CHECK((t.word & lock_held_mask) == lock_held);
        if (t.log.pauses == 10) t.word &= ~lock_held_mask;
    };
    t.domain.lock(t.word);
    CHECK(t.word == lock_held);
    CHECK(t.log.waits == 0);
    CHECK(t.log.told(lock_event::table_full) == 2);
}

TEST_CASE("A head whose mark finds the lock free has it, and takes mark and entry back", "[guest][qspinlock]") {
    pv_domain t(lock_mode::paravirtual, {.spins = 1, .steals = 0, .head_polls = 9, .handover = 0});
    t.word = lock_held;
    t.log.on_relax = [] {};
    t.log.notes.after = [&](recorded const& r) {
        if (r.what == kind::rmw && r.value == t.key()) t.word &= ~lock_held_mask;
    };
    t.domain.lock(t.word);
    CHECK(t.word == lock_held);
    t.domain.unlock(t.word);
    CHECK(t.clean());
    CHECK(t.log.waits == 0);
    CHECK(t.log.kicks.empty());
}

TEST_CASE("A waiter gives up spinning when the one before it has halted", "[guest][qspinlock]") {
    for (uint32_t before : {waiter::running, waiter::hashed, waiter::halted}) {
        pv_domain t(lock_mode::paravirtual, {.spins = 1000, .steals = 0, .head_polls = 2, .handover = 0});
        t.word = encode_tail(cpu_index{1}, 0) | lock_held;
        t.first_node(1).state = before;
        t.log.on_relax = [] {};
        t.log.on_wait = [&] {
            CHECK(t.log.pauses == (before == waiter::running ? 1000 : 255));
            t.first_node(0).state = waiter::running;
            t.first_node(0).turn = 1;
            t.word &= ~lock_held_mask;
        };
        t.domain.lock(t.word);
        CHECK(t.log.waits == 1);
        CHECK(t.log.told(lock_event::wait_early) == (before == waiter::running ? 0u : 1u));
    }
}

TEST_CASE("The second in line of a native lock waits without a node", "[guest][qspinlock]") {
    pv_domain t(lock_mode::native);
    t.word = lock_held;
    t.log.on_relax = [&] {
        CHECK(t.word == (lock_pending | lock_held));
        if (t.log.pauses == 3) t.word &= ~lock_held_mask;
    };
    t.domain.lock(t.word);
    CHECK(t.word == lock_held);
    CHECK(t.log.events.empty());
}

TEST_CASE("A native newcomer waits a moment for a hand-over, and does not keep a pending that it set by mistake",
          "[guest][qspinlock]") {
    pv_domain t(lock_mode::native);
    t.word = lock_pending;
    t.log.on_relax = [&] {
        if (t.log.pauses == 2) t.word = lock_held;
        if (t.log.pauses == 4) t.word &= ~lock_held_mask;
    };
    t.domain.lock(t.word);
    CHECK(t.word == lock_held);
    CHECK(t.log.events.empty());

    // Somebody queues between the look and the OR.
    pv_domain late(lock_mode::native);
    late.word = lock_held;
    late.log.notes.after = [&](recorded const&) {
        late.log.notes.after = nullptr;
        late.word = encode_tail(cpu_index{1}, 0) | lock_held;
    };
    late.log.on_relax = [&] {
        CHECK((late.word & lock_pending) == 0);
        late.first_node(0).turn = 1;
        late.word &= ~lock_held_mask;
    };
    late.domain.lock(late.word);
    CHECK(late.word == lock_held);
}

TEST_CASE("A native waiter sets pending by one exchange, however often the word changes", "[guest][qspinlock]") {
    pv_domain t(lock_mode::native);
    t.word = lock_held;
    t.log.notes.after = [&](recorded const&) {
        if (t.log.notes.steps.size() > 100) throw std::logic_error("it goes on for ever");
        // Owners come and go.
        if ((t.word & lock_pending) == 0) t.word ^= lock_held;
    };
    t.domain.lock(t.word);
    CHECK(t.log.notes.count(kind::lost_cas) == 1);
    CHECK(t.log.notes.count(kind::rmw) == 2);
}

TEST_CASE("The level of a CPU's nodes is written before a node is used, and after its last use", "[guest][qspinlock]") {
    pv_domain t(lock_mode::paravirtual, {.spins = 4, .steals = 0, .head_polls = 9, .handover = 0});
    t.word = lock_held;
    t.log.on_relax = [&] { t.word &= ~lock_held_mask; };
    t.domain.lock(t.word);
    auto& node = t.first_node(0);
    std::vector<recorded> const begin{{kind::lost_cas, &t.word, lock_held, order::relaxed.builtin},
                                      {kind::load, &node.in_use, 0, order::relaxed.builtin},
                                      {kind::store, &node.in_use, 1, order::relaxed.builtin},
                                      {kind::store, &node.next, 0, order::relaxed.builtin}};
    auto const& steps = t.log.notes.steps;
    REQUIRE(steps.size() > begin.size());
    CHECK(std::vector<recorded>(steps.begin(), steps.begin() + 4) == begin);
    CHECK(steps.back() == recorded{kind::store, &node.in_use, 0, order::relaxed.builtin});
}

TEST_CASE("An interrupt at any step takes another lock that is contended, and disturbs nothing", "[guest][qspinlock]") {
    for (lock_mode mode : {lock_mode::test_and_set, lock_mode::native, lock_mode::paravirtual}) {
        size_t step = 0;
        for (bool interrupted = true; interrupted; ++step) {
            CAPTURE(step);
            pv_domain t(mode, {.spins = 2, .steals = 0, .head_polls = 1, .handover = 1});
            uint32_t other = lock_held;
            bool inside = false;
            interrupted = false;
            // CPU 1 holds both, and lets go when somebody waits in vain.
            auto const let_go = [&] {
                uint32_t& held = inside ? other : t.word;
                if ((held & lock_held_mask) == 0) return;
                t.log.self = cpu_index{1};
                t.domain.unlock(held);
                t.log.self = cpu_index{0};
            };
            t.log.on_relax = [&] {
                if (t.log.pauses % 4 == 0) let_go();
            };
            t.log.on_wait = let_go;
            size_t done = 0;
            t.log.notes.after = [&](recorded const&) {
                if (t.log.self == cpu_index{1} || done++ != step) return;
                interrupted = inside = true;
                t.domain.lock(other);
                CHECK((other & lock_held_mask) != 0);
                t.domain.unlock(other);
                inside = false;
            };
            t.word = lock_held;
            t.domain.lock(t.word);
            CHECK((t.word & lock_held_mask) != 0);
            t.domain.unlock(t.word);
            t.log.notes.after = nullptr;
            if (!interrupted) t.domain.unlock(other);
            CHECK(other == free_lock);
            CHECK(t.clean());
        }
        CHECK(step > 4);
    }
}

TEST_CASE("A machine that knows its mode has it before the domain is live, and whatever it is told",
          "[guest][qspinlock]") {
    lock_log log;
    static_lock_storage<native_machine, cpus> storage;
    lock_domain<native_machine> domain(native_machine{log}, storage);
    CHECK(domain.mode() == lock_mode::native);
    CHECK(domain.go_live(lock_mode::paravirtual) == status::bad_argument);
    CHECK(domain.go_live(lock_mode::native) == status::ok);
    CHECK(domain.mode() == lock_mode::native);
}

namespace {

lock_log global_log;
static_lock_storage<machine, 1> global_storage;
lock_domain<machine> global_domain{machine{global_log}, global_storage};

}  // namespace

TEST_CASE("A bound lock is a lockable of four bytes", "[guest][qspinlock]") {
    using lock = bound_lock<global_domain>;
    static_assert(sizeof(lock) == 4);
    lock l;
    {
        std::lock_guard<lock> const guard(l);
        CHECK_FALSE(l.try_lock());
    }
    std::unique_lock<lock> const guard(l, std::try_to_lock);
    CHECK(guard.owns_lock());
}

TEST_CASE("The wait table finds what was put in, wraps around, and says when it is full", "[guest][qspinlock]") {
    constexpr uint32_t capacity = 7;
    recording notes;
    wait_entry<recording_atomics> entries[capacity]{};
    wait_table<recording_atomics> const table(recording_atomics{notes}, entries, capacity);
    uint32_t hops = 0;
    cpu_index cpu;
    CHECK_FALSE(table.remove(64, cpu));
    // Keys 64 bytes apart, as locks are, from each place on.
    for (uint64_t base = 1; base < 64; ++base) {
        for (uint32_t i = 0; i < capacity; ++i) {
            CHECK(table.insert((base + i) * 64, cpu_index{i}, hops));
            CHECK(hops < capacity);
        }
        CHECK_FALSE(table.insert(4096 * 64, cpu_index{9}, hops));
        CHECK(hops == capacity);
        for (uint32_t i = 0; i < capacity; ++i) {
            uint32_t const n = (i * 3 + 1) % capacity;
            REQUIRE(table.remove((base + n) * 64, cpu));
            CHECK(cpu == cpu_index{n});
            CHECK_FALSE(table.remove((base + n) * 64, cpu));
        }
        for (auto const& e : entries) CHECK(e.key == 0);
    }
}

TEST_CASE("The wait table wraps from its last place to its first", "[guest][qspinlock]") {
    constexpr uint32_t capacity = 4;
    recording notes;
    wait_entry<recording_atomics> entries[capacity]{};
    wait_table<recording_atomics> const table(recording_atomics{notes}, entries, capacity);
    uint32_t hops = 0;
    cpu_index cpu;
    // A key whose first place is the last one.
    uint64_t key = 64;
    for (;; key += 64) {
        REQUIRE(table.insert(key, cpu_index{1}, hops));
        if (entries[capacity - 1].key == key) break;
        REQUIRE(table.remove(key, cpu));
    }
    REQUIRE(table.remove(key, cpu));
    entries[capacity - 1].key = 1;
    REQUIRE(table.insert(key, cpu_index{2}, hops));
    CHECK(hops == 1);
    CHECK(entries[0].key == key);
    REQUIRE(table.remove(key, cpu));
    CHECK(cpu == cpu_index{2});
}

TEST_CASE("A wait table of one place holds one lock, and a place that is taken costs no exchange",
          "[guest][qspinlock]") {
    recording notes;
    wait_entry<recording_atomics> entry{};
    wait_table<recording_atomics> const table(recording_atomics{notes}, &entry, 1);
    uint32_t hops = 0;
    cpu_index cpu;
    REQUIRE(table.insert(64, cpu_index{1}, hops));
    CHECK(hops == 0);
    notes.steps.clear();
    CHECK_FALSE(table.insert(128, cpu_index{2}, hops));
    CHECK_FALSE(table.remove(128, cpu));
    CHECK(notes.count(kind::rmw) + notes.count(kind::lost_cas) + notes.count(kind::store) == 0);
    REQUIRE(table.remove(64, cpu));
    CHECK(cpu == cpu_index{1});
    CHECK(table.insert(128, cpu_index{2}, hops));
}
