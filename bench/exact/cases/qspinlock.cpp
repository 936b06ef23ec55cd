// SPDX-License-Identifier: MIT
#include "case.hpp"

// Who else would be needed, acts in a pause or in a halt of the one CPU that there is: the few instructions for that
// are among those that are counted.

namespace {

using exact::counting, exact::plain, exact::limit;
namespace detail = pvx::guest::detail;
using pvx::guest::lock_mode, pvx::guest::lock_tuning;

// CPU 3 runs (exact::this_cpu); CPU 5 queues behind it.
constexpr uint32_t behind = detail::encode_tail(pvx::cpu_index{5}, 0);
constexpr uint32_t waits_behind = 5 * detail::nodes_per_cpu;
constexpr uint32_t mine = 3 * detail::nodes_per_cpu;

constinit uint32_t word = 0;

template <class Machine>
constinit pvx::guest::static_lock_storage<Machine, exact::max_cpus> storage{};

template <class Machine>
constinit pvx::guest::lock_domain<Machine> domain{Machine{}, storage<Machine>};

/// Without byte_store_policy.
template <class Machine>
struct by_words : Machine {
    void store_low_byte() const;
};

/// While this CPU pauses, whoever holds the lock lets go of it.
template <class Machine>
struct let_in : Machine {
    void relax() const {
        Machine::relax();
        word &= ~detail::lock_held_mask;
    }
};

/// Meanwhile CPU 5 queues as well.
template <class Machine>
struct followed : Machine {
    void relax() const {
        Machine::relax();
        storage<followed>.nodes[mine].next = behind;
        word = behind;
    }
};

/// While this CPU halts, whoever holds the lock lets go of it, and kicks.
template <class Machine>
struct kicked : Machine {
    template <class Cell>
    void wait(Cell& watched, uint32_t mask, uint32_t value) const {
        Machine::wait(watched, mask, value);
        domain<kicked>.unlock(word);
    }
};

template <class Machine>
EXACT_OPERATION void lock(uint32_t& w) {
    domain<Machine>.lock(w);
}

template <class Machine>
EXACT_OPERATION bool try_lock(uint32_t& w) {
    return domain<Machine>.try_lock(w);
}

template <class Machine>
EXACT_OPERATION void unlock(uint32_t& w) {
    domain<Machine>.unlock(w);
}

template <class Machine>
EXACT_OPERATION void lock_and_unlock(uint32_t& w) {
    domain<Machine>.lock(w);
    domain<Machine>.unlock(w);
}

template <class Machine>
using as_it_is = Machine;

// Calls for a lock whose word is this.
template <template <class> class Changed = as_it_is, class Call>
void with(Call call, uint32_t value, lock_mode mode, lock_tuning const& tuning = {}) {
    using machine = Changed<typename Call::machine>;
    domain<machine> = {machine{}, storage<machine>, tuning};
    if (domain<machine>.go_live(mode) != pvx::status::ok) __builtin_trap();
    word = value;
    call(word);
}

exact::test_case const list[] = {
    {"qspinlock/lock and unlock, paravirtual", lock_and_unlock<plain>, lock_and_unlock<counting>,
     [](auto call) { with(call, 0, lock_mode::paravirtual); }, limit{"LOCK", 2}},
    {"qspinlock/lock and unlock, native", lock_and_unlock<plain>, lock_and_unlock<counting>,
     [](auto call) { with(call, 0, lock_mode::native); }, limit{"LOCK", 1}},
    {"qspinlock/lock and unlock, native, without byte stores", lock_and_unlock<by_words<plain>>,
     lock_and_unlock<by_words<counting>>, [](auto call) { with<by_words>(call, 0, lock_mode::native); },
     limit{"LOCK", 2}},
    {"qspinlock/lock and unlock, test-and-set", lock_and_unlock<plain>, lock_and_unlock<counting>,
     [](auto call) { with(call, 0, lock_mode::test_and_set); }, limit{"LOCK", 2}},
    {"qspinlock/try_lock, free", try_lock<plain>, try_lock<counting>,
     [](auto call) { with(call, 0, lock_mode::paravirtual); }},
    {"qspinlock/try_lock, held", try_lock<plain>, try_lock<counting>,
     [](auto call) { with(call, detail::lock_held, lock_mode::paravirtual); }},
    {"qspinlock/unlock, others queue and spin", unlock<plain>, unlock<counting>,
     [](auto call) { with(call, behind | detail::lock_held, lock_mode::paravirtual); }},
    {"qspinlock/unlock, the head halts", unlock<plain>, unlock<counting>,
     [](auto call) {
         using machine = typename decltype(call)::machine;
         uint32_t hops = 0;
         detail::wait_table<machine> const table{machine{}, storage<machine>.entries,
                                                 exact::max_cpus * detail::nodes_per_cpu};
         (void)table.insert(reinterpret_cast<uintptr_t>(&word), pvx::cpu_index{5}, hops);
         with(call, behind | detail::lock_slow, lock_mode::paravirtual);
     }},
    {"qspinlock/lock, steals", lock<plain>, lock<counting>,
     [](auto call) { with(call, behind, lock_mode::paravirtual); }},
    {"qspinlock/lock, native, pending, waits for one pause", lock<let_in<plain>>, lock<let_in<counting>>,
     [](auto call) { with<let_in>(call, detail::lock_held, lock_mode::native); }},
    {"qspinlock/lock, queues, waits for one pause", lock<let_in<plain>>, lock<let_in<counting>>,
     [](auto call) { with<let_in>(call, detail::lock_held, lock_mode::paravirtual, {.steals = 0}); }},
    {"qspinlock/lock, queues, next one spins", lock<followed<plain>>, lock<followed<counting>>,
     [](auto call) { with<followed>(call, detail::lock_held, lock_mode::paravirtual, {.steals = 0}); }},
    {"qspinlock/lock, queues, next one halts", lock<followed<plain>>, lock<followed<counting>>,
     [](auto call) {
         using machine = followed<typename decltype(call)::machine>;
         storage<machine>.nodes[waits_behind].state = detail::waiter::halted;
         with<followed>(call, detail::lock_held, lock_mode::paravirtual, {.steals = 0});
     }},
    {"qspinlock/lock, halts as head, with the unlock that kicks it", lock<kicked<plain>>, lock<kicked<counting>>,
     [](auto call) { with<kicked>(call, detail::lock_held, lock_mode::paravirtual, {.spins = 1, .steals = 0}); }},
};
exact::component const here{list};

}  // namespace
