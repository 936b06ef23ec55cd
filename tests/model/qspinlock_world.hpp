// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The world of the models of guest::lock_domain: three CPUs, two locks, and ghosts that know what must hold. What a
/// test varies, mutations as well, is chosen at run time: one suite type a program.
///
/// A wait is as weak as wait_policy allows. A kick wakes a CPU that sleeps, and is forgotten if it does not: only the
/// stores in front of it count. So a waiter that nobody wakes is a deadlock, which Relacy finds.

#include <optional>

#include <pvx/guest/qspinlock.hpp>

#include "support/model.hpp"

namespace pvx_test {

/// What is wrong with the lock, beside orders.
enum class lock_bug : uint8_t {
    none,
    kicks_before_release,    ///< The unlocker kicks first.
    touches_after_release,   ///< The unlocker looks at the word once more.
    releases_by_store,       ///< The unlocker stores what it saw, without the held byte.
    releases_again_relaxed,  ///< The second release, when the first one found the word changed, is relaxed.
    releases_slow_relaxed,   ///< The release where the unlocker has to kick is relaxed.
    releases_slow_by_store,  ///< The same where it has to kick.
    marks_by_store,          ///< The head marks slow by a load and a store.
    marks_before_entry,      ///< The head marks slow, then goes into the table.
    marks_twice,             ///< The head does not see that it is in the table.
    unmarks_mark_only,       ///< A head whose mark took the lock stays in the table.
    never_insists,           ///< The head does not declare pending.
    always_insists,          ///< The head keeps pending while it halts.
    sleeps_by_store,         ///< A waiter says that it halts by a plain store.
    turns_by_store,          ///< An owner hands on by a plain store.
    no_look_after_turn,      ///< An owner hands on and does not look whether the waiter halted.
    no_kick_early,           ///< It looks, and does nothing.
    wakes_before_turn,       ///< An owner without an entry for the waiter sets it running before it has its turn.
    hashes_unseen,           ///< An owner puts the waiter in the table, and leaves its state.
};

/// What a test varies.
struct shape {
    /// What each CPU does: A, B lock; a, b unlock; T try_lock; y let others run; L go live; s say so; w wait for that.
    char const* scripts[3] = {"Aa", "Aa", ""};
    char const* interrupts[3] = {"", "", ""};  ///< The same, once, at any wait or pause of that CPU.
    guest::lock_mode mode = guest::lock_mode::paravirtual;
    guest::lock_tuning tuning{.spins = 1, .steals = 0, .head_polls = 1, .handover = 1};
    uint32_t capacity = 4;  ///< Of the wait table. 0: one place, which is always taken.
    uint32_t spurious = 0;  ///< Waits of each CPU that may end for no reason.
    bool late = false;      ///< The domain is not live at first.
    bool freed = false;     ///< The last user of a lock frees it.
    lock_bug bug = lock_bug::none;
};

/// A site is in this function.
inline bool where_is(place const& where, std::string_view function) {
    std::string_view const here = where.function;
    return here.substr(0, here.find('<')) == function;
}

struct lock_world;

/// What happened in all runs of a suite.
struct lock_statistics {
    unsigned long long events[16];
    unsigned long long passed_waiter;  ///< A lock was taken past a head that has taken pending back.
    unsigned long long handovers;      ///< A thread took a lock that another one had.
};

/// The kernel of all CPUs. Every access goes through the ghosts of lock_world.
struct lock_machine : relacy_atomics<chosen> {
    static inline lock_world* world = nullptr;
    static inline shape now{};
    static inline lock_statistics seen{};

    /// A lock.
    struct word_ref : relacy_ref<uint32_t, chosen> {
        uint32_t lock;

        word_ref(rl::atomic<uint32_t>& a, uint32_t l) : relacy_ref(a), lock(l) {}
        uint32_t load(load_order auto o, place where = {}) const;
        uint32_t fetch_or(uint32_t v, rmw_order auto o, place where = {}) const;
        uint32_t fetch_and(uint32_t v, rmw_order auto o, place where = {}) const;
        uint32_t fetch_add(uint32_t v, rmw_order auto o, place where = {}) const;
        bool compare_exchange(uint32_t& found, uint32_t v, rmw_order auto won, load_order auto lost,
                              place where = {}) const;
    };
    /// A field of a node, or the CPU of an entry.
    struct cell_ref : relacy_ref<uint32_t, chosen> {
        rl::atomic<uint32_t>* cell;

        explicit cell_ref(rl::atomic<uint32_t>& a) : relacy_ref(a), cell(&a) {}
        uint32_t load(load_order auto o, place where = {}) const;
        void store(uint32_t v, store_order auto o, place where = {}) const;
        uint32_t exchange(uint32_t v, rmw_order auto o, place where = {}) const;
        bool compare_exchange(uint32_t& found, uint32_t v, rmw_order auto won, load_order auto lost,
                              place where = {}) const;
    };
    /// The lock of an entry.
    struct key_ref : relacy_ref<uint64_t, chosen> {
        using relacy_ref::relacy_ref;
        void store(uint64_t v, store_order auto o, place where = {}) const;
        bool compare_exchange(uint64_t& found, uint64_t v, rmw_order auto won, load_order auto lost,
                              place where = {}) const;
    };

    using relacy_atomics<chosen>::ref;
    word_ref ref(uint32_t& plain) const;
    cell_ref ref(rl::atomic<uint32_t>& object) const { return cell_ref{object}; }
    key_ref ref(rl::atomic<uint64_t>& object) const { return key_ref{object}; }

    cpu_index self() const { return cpu_index{static_cast<uint32_t>(rl::thread_index())}; }
    uint32_t possible_cpus() const { return 3; }
    apic_id apic(cpu_index cpu) const { return apic_id{cpu.value}; }
    void relax(place where = {}) const;
    template <class Cell>
    void wait(Cell& watched, uint32_t mask, uint32_t value) const;
    void kick(cpu_index cpu, place where = {}) const;

    void event(guest::lock_event e) const { ++seen.events[static_cast<unsigned>(e)]; }
    [[noreturn]] void broken(guest::lock_invariant) const {
        rl::ctx().fail_test("the lock found itself broken", rl::test_result_user_assert_failed, place{}.info());
        abort();
    }
};

/// Shared state, made anew for each run.
struct lock_world {
    static constexpr uint32_t cpus = 3;
    static constexpr uint32_t most_entries = 4;
    static constexpr uint32_t locks = 2;
    // Static, so that they hash the same in each run.
    static inline uint32_t words[locks]{};

    using storage = guest::static_lock_storage<lock_machine, cpus, most_entries>;

    /// Relacy puts a suite at malloc's alignment, which is less than a node's.
    class aligned_storage {
    public:
        aligned_storage() : at_(new (place_in(room_)) storage) {}
        ~aligned_storage() { at_->~storage(); }
        aligned_storage(aligned_storage const&) = delete;
        aligned_storage& operator=(aligned_storage const&) = delete;
        storage* operator->() const { return at_; }

    private:
        static void* place_in(unsigned char* room) {
            uintptr_t const a = alignof(storage);
            return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(room) + a - 1) & ~(a - 1));
        }
        unsigned char room_[sizeof(storage) + alignof(storage)];
        storage* at_;
    };

    /// What the head of a lock's queue has done.
    struct head {
        bool active = false;
        uint32_t looks = 0;       ///< At the word, since it became head.
        uint32_t marks = 0;       ///< By itself, and by the owner that handed on.
        bool open = false;        ///< It took pending back, and has not looked twice since.
        uint32_t looks_open = 0;  ///< Since then.
    };

    /// A CPU.
    struct cpu_state {
        rl::atomic<uint32_t> door;  ///< Orders what a kicker did before what the CPU does once it can be woken.
        uint32_t pauses = 0;        ///< Since its last wait.
        bool kicked = false;        ///< Since it can be woken.
        bool asleep = false;
        bool interrupted = false;   ///< There is no second interrupt.
        bool taking_back = false;   ///< Its mark took the lock.
        bool marked_early = false;  ///< For marks_before_entry, with what the mark found.
        uint32_t early_found = 0;
        bool kicked_early = false;  ///< For kicks_before_release.
        uint32_t spurious = lock_machine::now.spurious;
    };

    /// A lock.
    struct lock_state {
        rl::var<int> data;  ///< What it protects.
        int owner = -1;
        int last_owner = -1;
        uint32_t entries = 0;
        uint32_t users = 0;
        bool gone = false;
        head first{};
    };

    relacy_memory memory;
    aligned_storage store;
    rl::var<int> lives[cpus * guest::detail::nodes_per_cpu];  ///< Written when a node is taken, read by who uses it.
    rl::var<int> entry_users[most_entries];                   ///< In step with an entry's CPU.
    rl::atomic<uint32_t> live;
    cpu_state cpu[cpus];
    lock_state lock[locks];
    std::optional<guest::lock_domain<lock_machine>> domain;

    static uint32_t me() { return static_cast<uint32_t>(rl::thread_index()); }

    void before() {
        lock_machine::world = this;
        shape const& now = lock_machine::now;
        for (auto& n : store->nodes) n.in_use.store(0, rl::mo_relaxed, place{}.info());
        for (auto& e : store->entries) e.key.store(now.capacity == 0, rl::mo_relaxed, place{}.info());
        for (auto& v : lives) v(place{}.info()).store(0);
        for (auto& v : entry_users) v(place{}.info()).store(0);
        for (auto& c : cpu) c.door.store(0, rl::mo_relaxed, place{}.info());
        live.store(0, rl::mo_relaxed, place{}.info());
        for (uint32_t i = 0; i < locks; ++i) {
            memory.adopt(words[i]);
            lock[i].data(place{}.info()).store(0);
            for (char const* s : now.scripts)
                for (; *s != '\0'; ++s) lock[i].users += *s == static_cast<char>('A' + i);
        }
        domain.emplace(
            lock_machine{},
            guest::lock_storage<lock_machine>{store->nodes, cpus, store->entries, now.capacity != 0 ? now.capacity : 1},
            now.tuning);
        if (!now.late) go_live();
    }

    void after() {
        for (uint32_t& w : words)
            require(relacy_memory::behind(w).load(rl::mo_relaxed, place{}.info()) == 0, "a lock is zero at the end");
        for (auto& n : store->nodes)
            require(n.in_use.load(rl::mo_relaxed, place{}.info()) == 0, "no node is in use at the end");
        for (auto& e : store->entries)
            require(e.key.load(rl::mo_relaxed, place{}.info()) == (lock_machine::now.capacity == 0),
                    "the wait table is empty at the end");
    }

    void go_live() { require(domain->go_live(lock_machine::now.mode) == status::ok, "the domain goes live"); }

    void play(char const* script, place where = {}) {
        for (char const* s = script; *s != '\0'; ++s) switch (*s) {
                case 'A':
                case 'B': {
                    uint32_t const l = static_cast<uint32_t>(*s - 'A');
                    domain->lock(words[l]);
                    hold(l);
                    break;
                }
                case 'a':
                case 'b': {
                    uint32_t const l = static_cast<uint32_t>(*s - 'a');
                    bool const last = --lock[l].users == 0;
                    domain->unlock(words[l]);
                    if (!last || !lock_machine::now.freed) break;
                    require(lock[l].entries == 0, "a lock that is freed has no entry");
                    lock[l].gone = true;
                    break;
                }
                case 'T':
                    if (!domain->try_lock(words[0])) break;
                    hold(0);
                    domain->unlock(words[0]);
                    break;
                case 'y': rl::yield(1, where.info()); break;
                case 'L': go_live(); break;
                case 's': live.store(1, rl::mo_release, where.info()); break;
                case 'w':
                    while (live.load(rl::mo_acquire, where.info()) == 0) rl::yield(1, where.info());
                    break;
                default: require(false, "a script has letters that mean something");
            }
    }

    void hold(uint32_t l, place where = {}) {
        int const was = lock[l].data(where.info()).load();
        lock[l].data(where.info()).store(was + 1);
    }

    /// Another context of this CPU, which takes a lock itself.
    void interruptible() {
        char const* const script = lock_machine::now.interrupts[me()];
        if (*script == '\0' || cpu[me()].interrupted || rl::rand(2) == 0) return;
        cpu[me()].interrupted = true;
        play(script);
    }

    // --- the ghosts ------------------------------------------------------------------------------------------------

    /// In the moment of an access to a lock's word.
    void touch(uint32_t l) const { require(!lock[l].gone, "nobody touches a lock that is freed"); }

    /// A change of a lock's word, in the moment of it.
    void changed(uint32_t l, uint32_t from, uint32_t to, std::string_view function) {
        using namespace guest::detail;
        touch(l);
        lock_state& s = lock[l];
        bool const was = (from & lock_held_mask) != 0;
        bool const is = (to & lock_held_mask) != 0;
        if (!was && is) {
            require(s.owner == -1, "a lock has one owner");
            s.owner = static_cast<int>(me());
            lock_machine::seen.handovers += s.last_owner != -1 && s.last_owner != s.owner;
            s.last_owner = s.owner;
            if (function == "take" && (from & lock_tail_mask) != 0)
                stolen(s.first);
            else
                s.first = {};
        }
        if (was && !is) {
            require(s.owner == static_cast<int>(me()), "its owner lets go of a lock");
            // One that is not marked belongs to a head that is about to take it out again.
            require((from & lock_held_mask) != lock_slow || s.entries == 0, "the entry goes before the mark");
            s.owner = -1;
        }
        if ((to & lock_held_mask) == lock_slow && (from & lock_held_mask) != lock_slow) {
            require(s.entries == 1, "a lock that is marked slow has an entry");
            s.first.marks += 1;
        }
    }

    /// The calling CPU took a lock past its queue.
    void stolen(head const& h) const {
        lock_machine::seen.passed_waiter += h.active && h.open;
        require(!h.active || h.looks <= lock_machine::now.tuning.head_polls || h.open,
                "the lock is taken past the head in its first looks and two waits only");
    }

    void head_looks(uint32_t l) {
        head& h = lock[l].first;
        h.active = true;
        h.looks += 1;
        if (h.open && ++h.looks_open == 2) h.open = false;
    }
    void head_takes_back(uint32_t l) {
        head& h = lock[l].first;
        h.open = true;
        h.looks_open = 0;
        require(h.marks <= 2, "the head takes pending back for two marks at most");
    }

    void entered(uint64_t key, int change) {
        for (uint32_t i = 0; i < locks; ++i)
            if (key == reinterpret_cast<uintptr_t>(&words[i])) {
                lock[i].entries += static_cast<uint32_t>(change);
                require(lock[i].entries <= 1, "a lock has one entry");
            }
    }

    /// An access to a cell of a node or an entry, in front of it. Who uses a node of another CPU must have seen the
    /// node's first stores, and its next user must know that he is done: more than what single accesses show.
    void use(rl::atomic<uint32_t> const* cell, bool is_store, place const& where) {
        auto const at = reinterpret_cast<uintptr_t>(cell);
        auto const node = at - reinterpret_cast<uintptr_t>(store->nodes);
        if (node < sizeof store->nodes) {
            uint32_t const i = static_cast<uint32_t>(node / sizeof store->nodes[0]);
            if (i / guest::detail::nodes_per_cpu != me())
                (void)lives[i](where.info()).load();
            else if (cell == &store->nodes[i].next && is_store)
                lives[i](where.info()).store(1);
            return;
        }
        auto const entry = at - reinterpret_cast<uintptr_t>(store->entries);
        auto& user = entry_users[entry / sizeof store->entries[0]];
        if (is_store)
            user(where.info()).store(1);
        else
            (void)user(where.info()).load();
    }
};

// --- a lock's word --------------------------------------------------------------------------------------------------

inline lock_machine::word_ref lock_machine::ref(uint32_t& plain) const {
    return {relacy_memory::behind(plain), static_cast<uint32_t>(&plain - lock_world::words)};
}

inline uint32_t lock_machine::word_ref::load(load_order auto o, place where) const {
    uint32_t const found = relacy_ref::load(o, where);
    world->touch(lock);
    if (where_is(where, "wait_as_head")) world->head_looks(lock);
    if (now.bug == lock_bug::marks_twice && where_is(where, "marked")) return 0;
    return found;
}

inline uint32_t lock_machine::word_ref::fetch_or(uint32_t v, rmw_order auto o, place where) const {
    using namespace guest::detail;
    auto& cpu = world->cpu[world->me()];
    bool const in_head = where_is(where, "wait_as_head");
    if (now.bug == lock_bug::never_insists && in_head && v == lock_pending) return 0;
    if (cpu.marked_early) {
        cpu.marked_early = false;
        return cpu.early_found;
    }
    uint32_t found = 0;
    if (now.bug == lock_bug::marks_by_store && in_head && v == lock_slow) {
        found = relacy_ref::load(order::acquire, where);
        store(found | v, order::release, where);
    } else {
        found = relacy_ref::fetch_or(v, o, where);
    }
    world->changed(lock, found, found | v, where.function);
    if (in_head && v == lock_slow) cpu.taking_back = (found & lock_held_mask) == 0;
    return found;
}

inline uint32_t lock_machine::word_ref::fetch_and(uint32_t v, rmw_order auto o, place where) const {
    using namespace guest::detail;
    bool const in_head = where_is(where, "wait_as_head");
    bool const in_unlock = where_is(where, "unlock_contended");
    if (now.bug == lock_bug::always_insists && in_head) return 0;
    if (now.bug == lock_bug::kicks_before_release && in_unlock) {
        for (uint32_t i = 0; i < lock_world::cpus; ++i)
            if (i != world->me()) lock_machine{}.kick(cpu_index{i}, place{"early", where.file, where.line});
        world->cpu[world->me()].kicked_early = true;
    }
    uint32_t found = 0;
    if (now.bug == lock_bug::releases_slow_by_store && in_unlock) {
        found = relacy_ref::load(order::relaxed, where);
        store(found & v, order::release, where);
    } else if (now.bug == lock_bug::releases_slow_relaxed && in_unlock) {
        found = relacy_ref::fetch_and(v, order::relaxed, where);
    } else {
        found = relacy_ref::fetch_and(v, o, where);
    }
    world->changed(lock, found, found & v, where.function);
    if (in_head && v == ~lock_pending) world->head_takes_back(lock);
    if (now.bug == lock_bug::touches_after_release && in_unlock) (void)load(order::relaxed, where);
    return found;
}

inline uint32_t lock_machine::word_ref::fetch_add(uint32_t v, rmw_order auto o, place where) const {
    uint32_t const found = relacy_ref::fetch_add(v, o, where);
    world->changed(lock, found, found + v, where.function);
    return found;
}

inline bool lock_machine::word_ref::compare_exchange(uint32_t& found, uint32_t v, rmw_order auto won,
                                                     load_order auto lost, place where) const {
    uint32_t const expected = found;
    bool done = true;
    if (now.bug == lock_bug::releases_by_store && where_is(where, "unlock"))
        store(v, order::release, where);
    else if (now.bug == lock_bug::releases_again_relaxed && where_is(where, "unlock_contended"))
        done = relacy_ref::compare_exchange(found, v, order::relaxed, lost, where);
    else
        done = relacy_ref::compare_exchange(found, v, won, lost, where);
    world->touch(lock);
    if (done) world->changed(lock, expected, v, where.function);
    return done;
}

// --- nodes and entries ----------------------------------------------------------------------------------------------

inline uint32_t lock_machine::cell_ref::load(load_order auto o, place where) const {
    world->use(cell, false, where);
    uint32_t const found = relacy_ref::load(o, where);
    bool const last_look = same_as<decltype(o), order::seq_cst_t> && where_is(where, "hand_on");
    return last_look && now.bug == lock_bug::no_look_after_turn ? guest::detail::waiter::running : found;
}

inline void lock_machine::cell_ref::store(uint32_t v, store_order auto o, place where) const {
    world->use(cell, true, where);
    if (now.bug == lock_bug::wakes_before_turn && where_is(where, "hand_on") && v == 1 && world->lock[0].entries == 0) {
        for (auto& n : world->store->nodes)
            if (&n.turn == cell) n.state.store(guest::detail::waiter::running, rl::mo_relaxed, where.info());
    }
    relacy_ref::store(v, o, where);
}

inline uint32_t lock_machine::cell_ref::exchange(uint32_t v, rmw_order auto o, place where) const {
    world->use(cell, false, where);
    if ((now.bug == lock_bug::sleeps_by_store && where_is(where, "wait_for_turn")) ||
        (now.bug == lock_bug::turns_by_store && where_is(where, "hand_on"))) {
        relacy_ref::store(v, order::release, where);
        return 0;
    }
    return relacy_ref::exchange(v, o, where);
}

inline bool lock_machine::cell_ref::compare_exchange(uint32_t& found, uint32_t v, rmw_order auto won,
                                                     load_order auto lost, place where) const {
    using namespace guest::detail;
    world->use(cell, false, where);
    if (now.bug == lock_bug::hashes_unseen && v == waiter::hashed) return true;
    if (now.bug == lock_bug::no_kick_early && v == waiter::running && where_is(where, "hand_on")) return false;
    return relacy_ref::compare_exchange(found, v, won, lost, where);
}

inline void lock_machine::key_ref::store(uint64_t v, store_order auto o, place where) const {
    auto& cpu = world->cpu[world->me()];
    bool const taking_back = cpu.taking_back;
    cpu.taking_back = false;
    if (taking_back && now.bug == lock_bug::unmarks_mark_only) return;
    // In the moment of the store, which for who looks at the table afterwards is not before this.
    uint64_t const was = relacy_ref::load(order::relaxed, where);
    relacy_ref::store(v, o, where);
    world->entered(was, -1);
}

inline bool lock_machine::key_ref::compare_exchange(uint64_t& found, uint64_t v, rmw_order auto won,
                                                    load_order auto lost, place where) const {
    uint32_t const l = static_cast<uint32_t>((v - reinterpret_cast<uintptr_t>(lock_world::words)) / sizeof(uint32_t));
    auto& cpu = world->cpu[world->me()];
    if (now.bug == lock_bug::marks_before_entry && world->lock[l].owner != static_cast<int>(world->me())) {
        cpu.early_found = relacy_memory::behind(lock_world::words[l])
                              .fetch_or(guest::detail::lock_slow, rl::mo_acq_rel, where.info());
        cpu.marked_early = true;
        cpu.taking_back = (cpu.early_found & guest::detail::lock_held_mask) == 0;
    }
    if (!relacy_ref::compare_exchange(found, v, won, lost, where)) return false;
    world->entered(v, 1);
    return true;
}

// --- waiting --------------------------------------------------------------------------------------------------------

inline void lock_machine::relax(place where) const {
    world->interruptible();
    // A spin that ends by itself goes on without the others; only one that may not end must let them run.
    if (++world->cpu[world->me()].pauses > 2 * (now.tuning.spins + now.tuning.steals)) rl::yield(1, where.info());
}

template <class Cell>
void lock_machine::wait(Cell& watched, uint32_t mask, uint32_t value) const {
    place const where{};
    lock_world::cpu_state& cpu = world->cpu[world->me()];
    world->interruptible();
    cpu.pauses = 0;
    (void)cpu.door.fetch_add(0, rl::mo_acquire, where.info());
    cpu.kicked = false;
    if ((ref(watched).load(order::relaxed) & mask) != value) return;
    if (cpu.spurious != 0 && rl::rand(2) != 0) {
        cpu.spurious -= 1;
        rl::yield(1, where.info());
        return;
    }
    if (!cpu.kicked) {
        cpu.asleep = true;
        (void)rl::ctx().park_current_thread(false, false, false, where.info());
    }
    (void)cpu.door.fetch_add(0, rl::mo_acquire, where.info());
}

inline void lock_machine::kick(cpu_index target, place where) const {
    if (now.bug == lock_bug::kicks_before_release && where_is(where, "unlock_contended") &&
        world->cpu[world->me()].kicked_early)
        return;
    lock_world::cpu_state& cpu = world->cpu[target.value];
    (void)cpu.door.fetch_add(1, rl::mo_release, where.info());
    cpu.kicked = true;
    if (cpu.asleep) {
        cpu.asleep = false;
        rl::ctx().unpark_thread(static_cast<rl::thread_id_t>(target.value), false, where.info());
    }
}

}  // namespace pvx_test
