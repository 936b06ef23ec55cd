// SPDX-License-Identifier: MIT

/// \file
/// Locks under contention: every vCPU but the first takes the same lock with interrupts off, works for a microsecond,
/// lets go, works for another. The first sleeps, and says so if one of them does not come back. The locks take turns of
/// a quarter of a second, so that a disturbance meets all of them. That two were inside at once is a failure.

#include "../os/clock.hpp"
#include "../os/command_line.hpp"
#include "../os/console.hpp"
#include "../os/job.hpp"
#include "../os/panic.hpp"
#include "../suites.hpp"
#include "bench/histogram.hpp"
#include "bench/samples.hpp"
#include "lock_contest.hpp"

namespace {

namespace order = pvx::order;
using pvx::guest::lock_event;
using pvx::guest::lock_mode;

constexpr uint64_t slice_us = 250'000;
constexpr uint64_t work_us = 1;
constexpr uint64_t default_s = 10;

// --- the locks ---

/// In the order of their arrival, each by looking at one word: what spins best where nobody is preempted.
class ticket_lock {
public:
    void lock() {
        machine const m;
        uint32_t const mine = m.ref(next_).fetch_add(1u, order::relaxed);
        // order: acquire [ticket] what the last owner wrote; pairs with unlock()
        while (m.ref(serving_).load(order::acquire) != mine) m.relax();
    }
    void unlock() {
        machine const m;
        // order: release [ticket] what the owner wrote; pairs with lock()
        m.ref(serving_).store(m.ref(serving_).load(order::relaxed) + 1, order::release);
    }

private:
    alignas(64) uint32_t next_ = 0;
    alignas(64) uint32_t serving_ = 0;
};

/// One of pvx's locks.
template <lock_mode Mode>
class domain_lock {
public:
    explicit domain_lock(uint32_t spins) : domain_(counting_machine{}, storage_, {.spins = spins}) {
        if (domain_.go_live(Mode) != pvx::status::ok) os::panic("lock: the locks do not go live");
    }
    void lock() { domain_.lock(word_); }
    void unlock() { domain_.unlock(word_); }

private:
    static inline constinit pvx::guest::static_lock_storage<counting_machine, os::max_cpus> storage_{};
    pvx::guest::lock_domain<counting_machine> domain_;
    alignas(64) uint32_t word_ = 0;
};

// --- a round ---

/// One vCPU in it.
struct alignas(64) contender {
    uint64_t operations;
    uint64_t longest;  // ticks that a wait took
    uint64_t errors;
    bench_suites::histogram waits;
};
constinit contender contenders[os::max_cpus] = {};
constinit guarded data = {};
constinit uint64_t work_steps = 0;

/// Work that nothing can shorten: a chain of dependent steps.
void work(uint64_t steps) {
    uint64_t value = steps;
    for (uint64_t i = 0; i < steps; ++i) {
        value = value * 0x5851f42d4c957f2d + 1;
        __asm__ volatile("" : "+r"(value));
    }
}

/// The least that it took, since others take time away.
uint64_t steps_in(uint64_t us) {
    constexpr uint64_t steps = 1000;
    uint64_t least = ~uint64_t{0};
    for (uint32_t i = 0; i < 50; ++i) {
        uint64_t const begin = os::arch::rdtsc();
        work(steps);
        uint64_t const took = os::arch::rdtsc() - begin;
        least = took < least ? took : least;
    }
    return os::us_to_tsc(us) * steps / (least == 0 ? 1 : least) + 1;
}

template <class Lock>
void contend(Lock& lock, uint64_t end) {
    machine const m;
    uint32_t const cpu = m.self().value;
    contender& me = contenders[cpu];
    for (;;) {
        auto const irqs = m.irq_save();
        uint64_t const begin = os::arch::rdtsc();
        if (begin >= end) return m.irq_restore(irqs);
        lock.lock();
        uint64_t const waited = os::arch::rdtsc() - begin;
        me.errors += !data.enter(cpu);
        work(work_steps);
        me.errors += !data.leave(cpu);
        lock.unlock();
        m.irq_restore(irqs);
        ++me.operations;
        me.waits.add(waited);
        me.longest = waited > me.longest ? waited : me.longest;
        work(work_steps);
    }
}

/// A lock and what came of it.
struct contest {
    char const* name;
    void (*contend)(uint64_t end);
    char const* why_not = nullptr;  // null: it takes part
    uint64_t ns = 0, operations = 0, longest = 0, errors = 0, halts = 0, kicks = 0, steals = 0;
    uint64_t of_cpu[os::max_cpus] = {};
    bench_suites::histogram waits = {};

    uint64_t per_second() const { return ns == 0 ? 0 : operations * 1'000'000'000 / ns; }
    /// Jain's index: 1 if all had it as often, 1/n if one had it always; in 1/1000.
    uint64_t fairness() const {
        uint64_t sum = 0, squares = 0;
        for (uint64_t n : of_cpu) sum += n, squares += n * n;
        return squares == 0 ? 0 : sum * 1000 / (os::cpu_count() - 1) * sum / squares;
    }
    /// In 1/100,000 of an operation.
    uint64_t per_operation(uint64_t count) const { return operations == 0 ? 0 : count * 100'000 / operations; }
};

void run_round(contest& c) {
    for (contender& one : contenders) one = {};
    counting_machine::reset();
    uint32_t const cpus = os::cpu_count();
    os::meeting everyone(cpus - 1);
    uint64_t const begin = os::arch::rdtsc();
    auto const take_part = [&] {
        everyone.wait();
        c.contend(begin + os::us_to_tsc(slice_us));
    };
    for (uint32_t cpu = 1; cpu < cpus; ++cpu) os::start_job(cpu, take_part);
    for (uint32_t cpu = 1; cpu < cpus; ++cpu) os::wait_job(cpu);
    // To the end of the last one's turn: a lock that lets some wait for long pays for it.
    c.ns += os::tsc_to_ns(os::arch::rdtsc() - begin);
    for (uint32_t cpu = 1; cpu < cpus; ++cpu) {
        contender const& one = contenders[cpu];
        c.operations += one.operations;
        c.of_cpu[cpu] += one.operations;
        c.longest = one.longest > c.longest ? one.longest : c.longest;
        c.errors += one.errors;
        c.waits.add(one.waits);
    }
    c.halts += counting_machine::halts();
    c.kicks += counting_machine::kicks();
    c.steals += counting_machine::total(lock_event::steal);
}

// --- the report ---

os::fixed decimals(uint64_t n, uint32_t places) { return {static_cast<int64_t>(n), places}; }

void print_header(uint32_t spins) {
    os::print("\nlocks: {} vCPUs, {} us inside, {} us outside, {} looks before a halt\n", os::cpu_count() - 1, work_us,
              work_us, spins);
    os::print("{:<13} {:>9} {:>9} {:>6} {:>10} {:>10} {:>11} {:>9} {:>9}\n", "lock", "ops/s", "to native", "Jain",
              "median us", "99% us", "longest us", "halts/op", "kicks/op");
}

void print_row(contest const& c, contest const& native) {
    if (c.why_not != nullptr) return os::print("{:<13} not: {}\n", c.name, c.why_not);
    auto const us = [](uint64_t ticks) { return decimals(os::tsc_to_ns(ticks) / 10, 2); };
    uint64_t const base = native.per_second();
    os::print("{:<13} {:>9} {:>9} {:>6} {:>10} {:>10} {:>11} {:>9} {:>9}\n", c.name, c.per_second(),
              decimals(base == 0 ? 0 : c.per_second() * 100 / base, 2), decimals(c.fairness(), 3),
              us(c.waits.permille(500)), us(c.waits.permille(990)), us(c.longest),
              decimals(c.per_operation(c.halts), 5), decimals(c.per_operation(c.kicks), 5));
}

/// Ticks are those of one wait for the lock.
void print_row_for_programs(contest const& c) {
    if (c.why_not != nullptr) return os::print("bench-skip\tlocks, {}\t{}\n", c.name, c.why_not);
    os::print(
        "bench\tlocks, {}\t{}\t{}\t{}\t{}\tp99={}\tlongest={}\tns={}\tops={}\tjain={}\thalts={}\tkicks={}\tsteals={}"
        "\terrors={}\n",
        c.name, c.waits.permille(500), c.waits.permille(100), c.waits.permille(900), c.waits.count(),
        c.waits.permille(990), c.longest, c.ns, c.operations, c.fairness(), c.halts, c.kicks, c.steals, c.errors);
}

}  // namespace

bool lock() {
    uint64_t const seconds = os::option_number("seconds", default_s);
    auto const spins = static_cast<uint32_t>(os::option_number("spins", pvx::guest::lock_tuning{}.spins));
    if (os::cpu_count() < 3 || seconds == 0 || spins == 0) {
        os::print("lock: needs three vCPUs, a second or more, and one look or more\n");
        return false;
    }
    static domain_lock<lock_mode::test_and_set> test_and_set{spins};
    static ticket_lock ticket;
    static domain_lock<lock_mode::native> native{spins};
    static domain_lock<lock_mode::paravirtual> paravirtual{spins};
    static contest contests[] = {
        {"test-and-set", [](uint64_t end) { contend(test_and_set, end); }},
        {"ticket", [](uint64_t end) { contend(ticket, end); }},
        {"native", [](uint64_t end) { contend(native, end); }},
        {"paravirtual", [](uint64_t end) { contend(paravirtual, end); }},
    };
    contest const& by_queue = contests[2];
    pvx::guest::decision const kick = pv::configuration().kick;
    if (!kick) contests[3].why_not = pvx::guest::to_string(kick.why);

    bool const table = !bench_suites::for_programs();
    work_steps = steps_in(work_us);
    if (table) {
        os::print("lock: takes {} s and more\n", seconds * sizeof contests / sizeof contests[0]);
    } else {
        bench_suites::print_fact("tsc_khz", os::tsc_hz() / 1000);
        bench_suites::print_fact("vcpus", os::cpu_count() - 1);
    }
    for (uint64_t second = 1; second <= seconds; ++second) {
        for (uint64_t us = 0; us < 1'000'000; us += slice_us)
            for (contest& c : contests)
                if (c.why_not == nullptr) run_round(c);
        if (table) {
            os::print("# second {} of {}\n", second, seconds);
        } else {
            for (contest const& c : contests) print_row_for_programs(c);
        }
    }
    if (table) print_header(spins);
    uint64_t errors = 0;
    for (contest const& c : contests) {
        if (table) print_row(c, by_queue);
        errors += c.errors;
    }
    if (table) os::print("\n");
    if (errors != 0) os::print("FAILED: {} times, two vCPUs were inside\n", errors);
    return errors == 0;
}
