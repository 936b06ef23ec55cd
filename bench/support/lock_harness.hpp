// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// What a lock does under T threads: throughput, CPU time, fairness, the longest wait. Rounds of all locks alternate,
/// so that a machine that changes within seconds changes for all of them; each round checks that the lock excluded.
///
/// A lock has lock() and unlock(), or lock(thread) and unlock(thread) if it keeps a node for each thread; threads are
/// numbered from 0, and their number is the first argument of its constructor, if it takes any. If it has join(thread),
/// each thread calls that first. If it has halts() and kicks(), numbers since it was made, they are counted too.

#include <pvx/arch/x86_64.hpp>

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/machine_state.hpp"

namespace pvx_bench {

enum class stage : uint32_t { wait, run, stop };

/// Read in every spin loop, written twice a round.
alignas(64) inline std::atomic<stage> round_stage{stage::wait};

/// A turn of a spin loop. After a round's end it yields: a fair lock with more threads than CPUs would otherwise need
/// seconds to let all of them through.
inline void spin_wait() {
    if (round_stage.load(std::memory_order_relaxed) == stage::stop)
        sched_yield();
    else
        pvx::arch::pause();
}

/// Work that takes a given time: a chain of dependent steps, no memory, no system call.
class busy_work {
public:
    explicit busy_work(probe& machine);
    uint64_t steps(uint32_t ns) const { return static_cast<uint64_t>(ns / step_ns_); }
    /// Goes on from `value`, the result of the work before: the CPU would otherwise do both at once.
    static uint64_t run(uint64_t steps, uint64_t value);

private:
    double step_ns_;
};

/// What one thread counts; nobody else looks before it has ended.
struct alignas(64) thread_tally {
    uint64_t operations{};  ///< In the time of the round.
    uint64_t after_end{};
    uint64_t last_tsc{};
    uint64_t longest_tsc{};
    uint64_t errors{};

    void had_lock_at(uint64_t tsc) {
        if (tsc <= last_tsc) return;  // the counters of two CPUs may differ by a few ticks
        longest_tsc = std::max(longest_tsc, tsc - last_tsc);
        last_tsc = tsc;
    }
};

/// What the lock guards. Plain memory, volatile so that each access is made: if two threads are inside, the owner
/// changes under one of them, or the two counters come apart, or an update is lost.
struct alignas(64) guarded {
    uint32_t volatile owner{};
    uint64_t volatile first{};
    uint64_t volatile second{};

    bool enter(uint32_t thread) {
        bool const alone = owner == 0;
        owner = thread + 1;
        first = first + 1;
        return alone;
    }
    bool leave(uint32_t thread) {
        second = second + 1;
        bool const alone = owner == thread + 1 && first == second;
        owner = 0;
        return alone;
    }
};

/// One thread of a round.
struct contender {
    uint32_t thread;
    uint64_t inside_steps;
    uint64_t outside_steps;
    guarded& data;
    thread_tally& tally;
};

/// What a thread does from the start of the round to its end.
template <class Lock>
void contend(Lock& lock, contender const& me) {
    constexpr bool has_nodes = requires { lock.lock(me.thread); };
    if constexpr (requires { lock.join(me.thread); }) lock.join(me.thread);
    uint64_t value = 1;
    for (bool running = true; running;) {
        if constexpr (has_nodes)
            lock.lock(me.thread);
        else
            lock.lock();
        running = round_stage.load(std::memory_order_relaxed) == stage::run;
        me.tally.errors += !me.data.enter(me.thread);
        value = busy_work::run(me.inside_steps, value);
        me.tally.errors += !me.data.leave(me.thread);
        if constexpr (has_nodes)
            lock.unlock(me.thread);
        else
            lock.unlock();
        ++(running ? me.tally.operations : me.tally.after_end);
        if (running) me.tally.had_lock_at(pvx::arch::rdtsc());  // here, so that nobody waits for the counter
        value = busy_work::run(me.outside_steps, value);
    }
}

/// A lock whose type is forgotten, but not in the loop that is measured.
struct any_lock {
    std::function<void(contender const&)> contend;
    std::function<uint64_t()> halts;  ///< Empty: not counted.
    std::function<uint64_t()> kicks;
};

struct named_lock {
    std::string name;
    std::function<any_lock(uint32_t threads)> make;
};

template <class Lock, class... More>
named_lock lock_named(std::string name, More... more) {
    return {std::move(name), [more...](uint32_t threads) {
                auto const lock = [&] {
                    if constexpr (std::is_constructible_v<Lock, uint32_t, More...>)
                        return std::make_shared<Lock>(threads, more...);
                    else
                        return std::make_shared<Lock>(more...);
                }();
                any_lock any{[lock](contender const& me) { contend(*lock, me); }, {}, {}};
                if constexpr (requires { lock->halts(); }) any.halts = [lock] { return lock->halts(); };
                if constexpr (requires { lock->kicks(); }) any.kicks = [lock] { return lock->kicks(); };
                return any;
            }};
}

struct lock_options {
    uint32_t threads = 1;
    uint32_t inside_ns = 100;   ///< Work with the lock held.
    uint32_t outside_ns = 100;  ///< Work between two times.
    uint32_t rounds = 8;
    uint32_t round_ms = 100;
    double foreign_limit = 0.1;
    uint32_t patience = 2;  ///< Rounds are measured at most so many times as are needed.
};

/// One round of one lock.
struct lock_round {
    double mops{};
    double cpu_ns_per_op{};
    double jain{};
    double longest_gap_us{};  ///< The longest time that any thread was without the lock, waiting or working outside.
    std::optional<double> halts_per_op;
    std::optional<double> kicks_per_op;
    uint64_t exclusion_errors{};
    disturbance disturbed{};
};

/// Below this two runs of one lock differ by where its memory lies, however alike their rounds are.
inline constexpr double least_lock_error = 0.005;

/// The medians over the rounds.
struct lock_result {
    std::string lock;
    lock_round middle;
    double mops_low{};  ///< mops_low .. mops_high: bootstrap interval of the median, 95 %
    double mops_high{};
    /// How far the medians of every other round and of those between lie apart, as a share: what the lock differs from
    /// itself. At least least_lock_error.
    double aa_error{};
    double far_share{};
    double foreign_share{};
    uint32_t rejected{};
    bool contaminated{};
};

lock_round run_round(probe& machine, any_lock const& lock, busy_work const& work, lock_options const& options);

/// One result a lock, in the order of the list. `step(name)` is called before each round.
std::vector<lock_result> compare_locks(probe& machine, std::vector<named_lock> const& locks,
                                       lock_options const& options,
                                       std::function<void(std::string const&)> const& step = {});

}  // namespace pvx_bench
