// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// A queued spin lock that does not spin on CPUs that are not there. Waiters queue (MCS), each on a node of its own
/// CPU; after a bounded spin they halt and are kicked when it is their turn. Where the host can wake nobody it is a
/// plain queued lock or a test-and-set lock (lock_mode.hpp chooses), before the other CPUs run the latter, all on the
/// same word.
///
///     unlocker                                     head of the queue
///     CAS held -> 0                                table[lock] = my CPU
///     word says slow instead:     [qsl-slow]       word |= slow             [qsl-slow]
///       cpu = table[lock], take out                halt while the word says slow
///       word -= slow              [qsl-release]
///       kick cpu
///
///     owner that hands on                          waiter behind it
///     next.turn = 1               [qsl-sleep]      state = halted           [qsl-sleep]
///     next.state halted? kick                      turn == 0? halt while state says halted
///
/// The second is the store-buffer shape: with any of the four operations weaker than seq_cst both may read the old
/// value, and the waiter sleeps for ever. The first is not: both sides change the same word.
///
/// Fairness: a newcomer may take a free lock past the queue ("steal") only while the head has not declared pending,
/// and tries a bounded number of times before it queues. The head declares pending at the latest after
/// lock_tuning::head_polls looks since it became head, and takes it back while it halts, but not any more after two
/// unlocks that had to wake it. So what passes a head is what fits in those looks and two wakes.
///
/// The caller cannot migrate between lock() and unlock(), and where a lock is taken in interrupts, it holds them off as
/// with any spin lock. A fifth context nested in four that all wait has no node; it polls without queueing. Two waits
/// are not bounded by a halt: an owner's for a successor that is preempted between its two first steps, and that of a
/// waiter which woke for no reason while the owner hands on.

#include <pvx/guest/concepts.hpp>
#include <pvx/guest/detail/lock_word.hpp>
#include <pvx/guest/detail/mcs_node.hpp>
#include <pvx/guest/detail/wait_table.hpp>

namespace pvx::inline v0::guest {

/// How a domain's locks wait.
enum class lock_mode : uint8_t {
    test_and_set,  ///< Polls the word. Needs no CPU identity; for start-up, and for hosts without kicks under
                   ///< overcommit.
    native,        ///< Queues and spins: for CPUs that are not preempted.
    paravirtual,   ///< Queues, and halts after a while.
};

/// Its name in plain words.
constexpr const char* to_string(lock_mode mode) {
    switch (mode) {
        case lock_mode::test_and_set: return "test-and-set";
        case lock_mode::native: return "native";
        case lock_mode::paravirtual: return "paravirtual";
    }
    return "unknown";
}

/// How long waiters spin. The defaults are measured: bench_locks tries others, and so does the bare-metal guest.
struct lock_tuning {
    /// Looks of a queued waiter before it halts; not 0. Some tens of microseconds, which is what a halt and a kick cost
    /// together: a waiter that looks for longer mostly keeps the owner from its CPU.
    uint32_t spins{1024};
    uint32_t steals{64};        ///< Looks of a newcomer before it queues.
    uint32_t head_polls{1024};  ///< Looks of the head before it declares pending, if not woken twice before.
    uint32_t handover{512};     ///< Native: looks of a newcomer that sees the lock about to be handed over.
};

/// What the observer of a machine is told. It takes no lock.
enum class lock_event : uint8_t {
    steal,          ///< A newcomer took the lock past the queue.
    queue,          ///< A waiter queues.
    no_node,        ///< More contexts nested than there are nodes.
    halt_node,      ///< A waiter in the queue calls wait().
    halt_head,      ///< The head of the queue calls wait().
    wait_early,     ///< A waiter gives up spinning, since the one before it halted.
    spurious_wake,  ///< A halt ended, and it was nobody's turn.
    kick,           ///< An unlocker has kicked.
    kick_early,     ///< An owner has kicked its successor at once: it fell asleep in the moment of the hand-over.
    table_full,     ///< No entry was free.
    hash_hop,       ///< On the way to an entry, a place was taken.
};

/// What must hold, and did not: a lock word is corrupt, or is unlocked by somebody who does not hold it.
enum class lock_invariant : uint8_t {
    word_is_held,    ///< An unlocker finds its lock neither held nor slow.
    slow_has_entry,  ///< A lock is marked slow and is not in the wait table.
};

/// Storage of a domain: handed over by the kernel, zero at first, for as long as the domain lives.
template <class Machine>
struct lock_storage {
    detail::mcs_node<Machine>* nodes;      ///< detail::nodes_per_cpu for each CPU.
    uint32_t cpus;                         ///< CPUs that may lock.
    detail::wait_entry<Machine>* entries;  ///< The wait table.
    uint32_t capacity;                     ///< Of the table. One for each node is enough, but for races.
};

/// Ready-made storage for up to Cpus CPUs.
template <class Machine, uint32_t Cpus, uint32_t Capacity = Cpus* detail::nodes_per_cpu>
    requires(Cpus >= 1 && Cpus <= detail::max_lock_cpus && Capacity >= 1)
struct static_lock_storage {
    detail::mcs_node<Machine> nodes[Cpus * detail::nodes_per_cpu]{};
    detail::wait_entry<Machine> entries[Capacity]{};

    constexpr operator lock_storage<Machine>() { return {nodes, Cpus, entries, Capacity}; }
};

/// The locks of one kernel. A lock is any 32-bit word that is zero at first, at an address that is the same for all
/// CPUs, its own as long as anybody locks it, and not null.
template <class Machine>
    requires atomics_policy<Machine> && cpu_policy<Machine> && relax_policy<Machine> && wait_policy<Machine>
class lock_domain {
public:
    /// Not live: all locks are test-and-set locks, for which no CPU needs to know who it is. (With a fixed mode they
    /// are what that says from the start.)
    constexpr lock_domain(Machine machine, lock_storage<Machine> storage, lock_tuning tuning = {})
        : machine_(machine), storage_(storage), tuning_(tuning) {}

    /// From now on locks wait in this mode. Locks may be held meanwhile. \pre no other CPU uses the domain yet, and
    /// none of this CPU's contexts waits. \return bad_argument if the storage is smaller than the machine, waiters were
    /// not to look at all, or the machine has another mode fixed.
    status go_live(lock_mode mode) {
        bool const fits = storage_.cpus <= detail::max_lock_cpus && machine_.possible_cpus() <= storage_.cpus;
        if (!fits || storage_.capacity == 0 || tuning_.spins == 0) return status::bad_argument;
        if constexpr (requires { Machine::fixed_lock_mode; })
            if (mode != Machine::fixed_lock_mode) return status::bad_argument;
        mode_ = mode;
        return status::ok;
    }

    lock_mode mode() const {
        if constexpr (requires { Machine::fixed_lock_mode; })
            return Machine::fixed_lock_mode;
        else
            return mode_;
    }

    /// Take the lock. \pre not held by the calling CPU
    PVX_ALWAYS_INLINE void lock(uint32_t& word) {
        uint32_t found = 0;
        // order: acquire [qsl-release] what the last owner wrote; pairs with unlock(). So does each way of taking it.
        if (!machine_.ref(word).compare_exchange(found, detail::lock_held, order::acquire, order::relaxed))
            lock_contended(word, found);
    }

    /// Take the lock if it is free and nobody waits.
    PVX_ALWAYS_INLINE bool try_lock(uint32_t& word) const {
        uint32_t found = 0;
        if (machine_.ref(word).load(order::relaxed) != 0) return false;
        // order: acquire [qsl-release] as in lock()
        return machine_.ref(word).compare_exchange(found, detail::lock_held, order::acquire, order::relaxed);
    }

    /// Let go of the lock. Its memory may be freed by whoever takes it next. \pre held
    PVX_ALWAYS_INLINE void unlock(uint32_t& word) {
        if constexpr (byte_store_policy<Machine>) {
            // Nobody marks a lock slow in native mode, so the owner alone writes this byte.
            // order: release [qsl-release] as below
            if (mode() == lock_mode::native) return machine_.store_low_byte(word, 0, order::release);
        }
        // No look first: it would take as long again, and where somebody waits, the word is here after the first try.
        uint32_t found = detail::lock_held;
        // order: release [qsl-release] what the owner wrote before the lock is free; pairs with lock()
        if (!machine_.ref(word).compare_exchange(found, 0, order::release, order::relaxed))
            unlock_contended(word, found);
    }

    /// Somebody holds it. A hint.
    bool is_locked(uint32_t& word) const {
        return (machine_.ref(word).load(order::relaxed) & detail::lock_held_mask) != 0;
    }
    /// Somebody waits for it. A hint; waiters that poll are not seen.
    bool is_contended(uint32_t& word) const {
        return (machine_.ref(word).load(order::relaxed) & ~detail::lock_held_mask) != 0;
    }

private:
    using node = detail::mcs_node<Machine>;

    // --- (tail, pending, locked) -------------------------------------------------------------------------------------

    [[__gnu__::__noinline__]] void lock_contended(uint32_t& word, uint32_t found) {
        switch (mode()) {
            case lock_mode::test_and_set: return poll(word);
            case lock_mode::native:
                if (!wait_as_pending(word, found)) queue<false>(word);
                return;
            case lock_mode::paravirtual:
                if (!steal(word)) queue<true>(word);
                return;
        }
    }

    // A free lock, whoever queues.  x,0,0 -> x,0,1
    bool take(uint32_t& word, uint32_t seen) const {
        if ((seen & (detail::lock_held_mask | detail::lock_pending)) != 0) return false;
        // order: acquire [qsl-release] as in lock()
        return machine_.ref(word).compare_exchange(seen, seen | detail::lock_held, order::acquire, order::relaxed);
    }

    void poll(uint32_t& word) const {
        while (!take(word, machine_.ref(word).load(order::relaxed))) machine_.relax();
    }

    // A newcomer's bounded tries. False: queue.
    bool steal(uint32_t& word) const {
        for (uint32_t i = 0; i < tuning_.steals; ++i) {
            uint32_t const seen = machine_.ref(word).load(order::relaxed);
            if ((seen & detail::lock_pending) != 0) return false;  // the head insists
            if (take(word, seen)) {
                if ((seen & detail::lock_tail_mask) != 0) tell(lock_event::steal);
                return true;
            }
            machine_.relax();
        }
        return false;
    }

    // Native: the second in line waits without a node. False: queue.
    bool wait_as_pending(uint32_t& word, uint32_t seen) const {
        auto const lock = machine_.ref(word);
        // 0,1,0: the lock is being handed to a pending waiter, which takes a moment.
        for (uint32_t i = 0; seen == detail::lock_pending && i < tuning_.handover; ++i) {
            machine_.relax();
            seen = lock.load(order::relaxed);
        }
        if ((seen & ~detail::lock_held_mask) != 0) return false;
        // 0,0,x -> 0,1,x. Of one bit, and only that bit is asked for: where the compiler knows BTS (g++ does, clang 14
        // makes a CAS loop of it) this ends however busy the word is.
        bool const had = (lock.fetch_or(detail::lock_pending, order::relaxed) & detail::lock_pending) != 0;
        if (had || (lock.load(order::relaxed) & detail::lock_tail_mask) != 0) {
            if (!had) lock.fetch_and(~detail::lock_pending, order::relaxed);
            return false;
        }
        while ((lock.load(order::relaxed) & detail::lock_held_mask) != 0) machine_.relax();
        // x,1,0 -> x,0,1. order: acquire [qsl-release] as in lock()
        lock.fetch_add(detail::lock_held - detail::lock_pending, order::acquire);
        return true;
    }

    // --- the queue ---------------------------------------------------------------------------------------------------

    node& node_of(uint32_t tail) const { return storage_.nodes[detail::node_index(tail)]; }

    template <bool Halts>
    void queue(uint32_t& word) {
        cpu_index const cpu = machine_.self();
        auto const in_use = machine_.ref(storage_.nodes[cpu.value * detail::nodes_per_cpu].in_use);
        uint32_t const level = in_use.load(order::relaxed);
        if (level >= detail::nodes_per_cpu) {
            tell(lock_event::no_node);
            return poll(word);
        }
        tell(lock_event::queue);
        in_use.store(level + 1, order::relaxed);
        // A context of this CPU that interrupts from here on takes the next node.
        interrupt_fence();
        uint32_t const mine = detail::encode_tail(cpu, level);
        node& self = node_of(mine);
        machine_.ref(self.next).store(0, order::relaxed);
        machine_.ref(self.turn).store(0, order::relaxed);
        machine_.ref(self.state).store(detail::waiter::running, order::relaxed);

        // p,x,y -> n,x,y
        uint32_t seen = machine_.ref(word).load(order::relaxed);
        // order: acq_rel [qsl-publish] the node's first stores before its name; pairs with itself in the CPU behind
        while (!machine_.ref(word).compare_exchange(seen, (seen & ~detail::lock_tail_mask) | mine, order::acq_rel,
                                                    order::relaxed)) {
        }
        uint32_t const before = seen & detail::lock_tail_mask;
        if (before != 0) {
            // order: release [qsl-next] what this CPU does with the node before it, which may then be used for another
            // lock, so that a look at its state from here on is a hint; pairs with the load in next_of()
            machine_.ref(node_of(before).next).store(mine, order::release);
            wait_for_turn<Halts>(self, node_of(before));
        }
        bool const last = Halts ? wait_as_head(word, self, mine, cpu) : spin_as_head(word, mine);
        if (!last) hand_on<Halts>(word, next_of(self));
        // A context that interrupts from here on takes this node.
        interrupt_fence();
        in_use.store(level, order::relaxed);
    }

    // The waiter behind. \pre there is one; it is about to say so
    uint32_t next_of(node& self) const {
        for (;;) {
            // order: acquire [qsl-next] pairs with the store in queue()
            uint32_t const next = machine_.ref(self.next).load(order::acquire);
            if (next != 0) return next;
            machine_.relax();
        }
    }

    bool has_turn(node& self) const {
        // order: acquire [qsl-turn] what the owner did to the state, the table and the word; pairs with hand_on()
        return machine_.ref(self.turn).load(order::acquire) != 0;
    }

    template <bool Halts>
    void wait_for_turn(node& self, node& before) const {
        for (;;) {
            for (uint32_t i = 0; !Halts || i < tuning_.spins; ++i) {
                if (has_turn(self)) return;
                if (Halts && i % 256 == 255 &&
                    machine_.ref(before.state).load(order::relaxed) != detail::waiter::running) {
                    tell(lock_event::wait_early);
                    break;
                }
                machine_.relax();
            }
            auto const state = machine_.ref(self.state);
            if (state.load(order::relaxed) == detail::waiter::hashed) {
                // Woken for no reason while the owner hands on: the turn is a few instructions away.
                machine_.relax();
                continue;
            }
            // order: seq_cst [qsl-sleep] store-buffer shape, see the top; pairs with hand_on()
            (void)state.exchange(detail::waiter::halted, order::seq_cst);
            if (machine_.ref(self.turn).load(order::seq_cst) == 0) {
                tell(lock_event::halt_node);
                machine_.wait(self.state, ~uint32_t{0}, detail::waiter::halted);
                if (!has_turn(self)) tell(lock_event::spurious_wake);
            }
            uint32_t halted = detail::waiter::halted;
            // Relaxed: what the owner made of it is acquired with the turn. It stays hashed if it is.
            (void)state.compare_exchange(halted, detail::waiter::running, order::relaxed, order::relaxed);
        }
    }

    // The head's way to take the lock.  n,*,0 -> n,0,1, or 0,0,1 if it is the last. True: taken, and `last` says so.
    bool take_as_head(uint32_t& word, uint32_t seen, uint32_t mine, bool& last) const {
        last = (seen & detail::lock_tail_mask) == mine;
        uint32_t const taken = (last ? 0 : seen & detail::lock_tail_mask) | detail::lock_held;
        // order: acquire [qsl-release] as in lock()
        return machine_.ref(word).compare_exchange(seen, taken, order::acquire, order::relaxed);
    }

    // Native. \return whether it was the last in the queue
    bool spin_as_head(uint32_t& word, uint32_t mine) const {
        bool last = false;
        for (;;) {
            uint32_t const seen = machine_.ref(word).load(order::relaxed);
            bool const is_free = (seen & (detail::lock_held_mask | detail::lock_pending)) == 0;
            if (is_free && take_as_head(word, seen, mine, last)) return last;
            machine_.relax();
        }
    }

    // Paravirtual. \return whether it was the last in the queue
    bool wait_as_head(uint32_t& word, node& self, uint32_t mine, cpu_index cpu) const {
        auto const lock = machine_.ref(word);
        auto const state = machine_.ref(self.state);
        bool insisting = false;  // pending is ours
        uint32_t looks = 0;
        // How often the lock was marked for us. Each mark is one unlock, and so one wake in vain at most.
        uint32_t marks = state.load(order::relaxed) == detail::waiter::hashed ? 1 : 0;
        bool last = false;
        for (;;) {
            state.store(detail::waiter::running, order::relaxed);
            for (uint32_t i = 0; i < tuning_.spins; ++i) {
                uint32_t const seen = lock.load(order::relaxed);
                if ((seen & detail::lock_held_mask) == 0 && take_as_head(word, seen, mine, last)) return last;
                // A look that finds it free and comes too late counts as well: somebody passed.
                if (!insisting && (++looks >= tuning_.head_polls || marks >= 2)) {
                    lock.fetch_or(detail::lock_pending, order::relaxed);
                    insisting = true;
                }
                machine_.relax();
            }
            // The mark says that we are in the table: the owner puts it there for us before it hands on, otherwise only
            // we do, and the unlocker takes both away together.
            if (!marked(word)) {
                if (!enter_table(word, cpu)) continue;  // no entry: spin on
                // n,x,1 -> n,x,3 waits, n,x,0 -> n,x,3 took the lock.
                // order: acq_rel [qsl-slow] the entry before the mark; pairs with unlock_contended(). Acquire as in
                // lock(): unmark() must not find an entry that the last owner took out.
                uint32_t const seen = lock.fetch_or(detail::lock_slow, order::acq_rel);
                if ((seen & detail::lock_held_mask) == 0) return unmark(word, mine);
                ++marks;
            }
            if (insisting && marks <= 2) {
                lock.fetch_and(~detail::lock_pending, order::relaxed);
                insisting = false;
            }
            state.store(detail::waiter::hashed, order::relaxed);
            tell(lock_event::halt_head);
            machine_.wait(word, detail::lock_held_mask, detail::lock_slow);
            if (marked(word)) tell(lock_event::spurious_wake);
        }
    }

    bool marked(uint32_t& word) const {
        return (machine_.ref(word).load(order::relaxed) & detail::lock_held_mask) == detail::lock_slow;
    }

    // The lock came free in the moment of marking it, and is ours: take the mark back.
    bool unmark(uint32_t& word, uint32_t mine) const {
        cpu_index unused;
        if (!table().remove(key(word), unused)) broken(lock_invariant::slow_has_entry);
        uint32_t seen = machine_.ref(word).load(order::relaxed);
        bool last = false;
        while (!take_as_head(word, seen, mine, last)) seen = machine_.ref(word).load(order::relaxed);
        return last;
    }

    // The owner gives the turn to the waiter behind, and sees to it that it will be woken.
    template <bool Halts>
    void hand_on(uint32_t& word, uint32_t next) const {
        node& waiter = node_of(next);
        auto const turn = machine_.ref(waiter.turn);
        if constexpr (!Halts) {
            // Relaxed: what the waiter needs is in the word.
            turn.store(1, order::relaxed);
        } else {
            auto const state = machine_.ref(waiter.state);
            uint32_t halted = detail::waiter::halted;
            if (state.load(order::relaxed) == halted &&
                state.compare_exchange(halted, detail::waiter::hashed, order::relaxed, order::relaxed)) {
                // It sleeps on until the lock is free: put it in the table in its place, before it can know.
                bool const entered = enter_table(word, detail::tail_cpu(next));
                // Relaxed: who unlocks is the one that marks, and the waiter acquires both with its turn.
                if (entered) machine_.ref(word).fetch_or(detail::lock_slow, order::relaxed);
                // The state stays hashed also without an entry. Were it running, a waiter that woke for no reason could
                // halt again after the kick, since it need not see its turn yet.
                // order: release [qsl-turn] state, entry and mark before the turn; pairs with has_turn()
                turn.store(1, order::release);
                if (!entered) kick(next, lock_event::kick_early);
                return;
            }
            // order: seq_cst [qsl-sleep] store-buffer shape, see the top; pairs with wait_for_turn()
            (void)turn.exchange(1, order::seq_cst);
            if (state.load(order::seq_cst) != detail::waiter::halted) return;
            // It fell asleep in this moment. It need not be woken twice, nor if it saw the turn.
            halted = detail::waiter::halted;
            if (state.compare_exchange(halted, detail::waiter::running, order::relaxed, order::relaxed))
                kick(next, lock_event::kick_early);
        }
    }

    // --- the unlocker ------------------------------------------------------------------------------------------------

    [[__gnu__::__noinline__]] void unlock_contended(uint32_t& word, uint32_t found) {
        auto const lock = machine_.ref(word);
        // n,x,1 -> n,x,0, again where only the rest of the word has changed
        while ((found & detail::lock_held_mask) == detail::lock_held)
            // order: release [qsl-release] as in unlock()
            if (lock.compare_exchange(found, found & ~detail::lock_held_mask, order::release, order::relaxed)) return;
        if ((found & detail::lock_held_mask) != detail::lock_slow) broken(lock_invariant::word_is_held);
        // order: acquire fence [qsl-slow] the entry; pairs with the mark in wait_as_head()
        machine_.fence(order::acquire);
        cpu_index cpu;
        if (!table().remove(key(word), cpu)) broken(lock_invariant::slow_has_entry);
        // n,x,3 -> n,x,0. order: release [qsl-release] as in unlock(). From here on the lock's memory may be gone.
        lock.fetch_and(~detail::lock_held_mask, order::release);
        machine_.kick(cpu);
        tell(lock_event::kick);
    }

    void kick(uint32_t tail, lock_event why) const {
        machine_.kick(detail::tail_cpu(tail));
        tell(why);
    }

    // --- the rest ----------------------------------------------------------------------------------------------------

    static uint64_t key(uint32_t& word) { return reinterpret_cast<uintptr_t>(&word); }
    detail::wait_table<Machine> table() const { return {machine_, storage_.entries, storage_.capacity}; }

    bool enter_table(uint32_t& word, cpu_index cpu) const {
        uint32_t hops = 0;
        bool const entered = table().insert(key(word), cpu, hops);
        if (!entered)
            tell(lock_event::table_full);
        else
            for (uint32_t i = 0; i < hops; ++i) tell(lock_event::hash_hop);
        return entered;
    }

    void tell(lock_event event) const {
        if constexpr (requires { machine_.event(event); }) machine_.event(event);
    }

    [[__gnu__::__noreturn__]] void broken(lock_invariant what) const {
        if constexpr (requires { machine_.broken(what); }) machine_.broken(what);
        __builtin_trap();
    }

    [[no_unique_address]] Machine machine_;
    lock_storage<Machine> storage_;
    lock_tuning tuning_;
    lock_mode mode_{lock_mode::test_and_set};
};

/// A lock as an object of four bytes, for std::lock_guard and its like. `Domain` is the kernel's one domain.
template <auto& Domain>
class bound_lock {
public:
    bound_lock() = default;
    bound_lock(bound_lock const&) = delete;
    bound_lock& operator=(bound_lock const&) = delete;

    void lock() { Domain.lock(word_); }
    bool try_lock() { return Domain.try_lock(word_); }
    void unlock() { Domain.unlock(word_); }

private:
    uint32_t word_{};
};

}  // namespace pvx::inline v0::guest
