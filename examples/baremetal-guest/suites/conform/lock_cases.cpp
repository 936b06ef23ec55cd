// SPDX-License-Identifier: MIT

/// \file
/// Kicks in earnest: a vCPU that waits with interrupts off sleeps until it is kicked, so one kick that is lost is a
/// vCPU that sleeps for ever. CPU 0 watches, and wakes by NMI what nobody else wakes, so that a failure is no hang.
/// [kvm-hypercall]

#include "../../os/console.hpp"
#include "../flush_load.hpp"
#include "../lock_contest.hpp"
#include "case.hpp"

namespace conform {
namespace {

namespace abi = pvx::abi;
namespace order = pvx::order;

constexpr uint64_t short_us = 300'000;

/// Of each case; 0: what it can do in `short_us`.
constinit uint64_t wanted_kicks = 0;

/// When a case has had enough, and what it says until then.
class quota {
public:
    bool reached(uint64_t count) {
        if (wanted_kicks == 0) return os::arch::rdtsc() - begin_ > os::us_to_tsc(short_us);
        if (count >= next_report_ && count < wanted_kicks) {
            os::print("# {} of {}\n", count, wanted_kicks);
            next_report_ = count + wanted_kicks / 10 + 1;
        }
        return count >= wanted_kicks;
    }

private:
    uint64_t begin_ = os::arch::rdtsc();
    uint64_t next_report_ = wanted_kicks / 10;
};

/// Notices a vCPU whose count stands still.
class watch {
public:
    /// The one for which `count_of(cpu)` has not changed for long; 0: none. \pre called over and over
    template <class F>
    uint32_t stuck(F const& count_of) {
        uint64_t const now = os::arch::rdtsc();
        for (uint32_t cpu = 1; cpu < os::cpu_count(); ++cpu) {
            if (uint64_t const count = count_of(cpu); count != seen_[cpu].count) seen_[cpu] = {count, now};
            if (now - seen_[cpu].since > os::us_to_tsc(2 * patience_us)) return cpu;
        }
        return 0;
    }

private:
    struct seen {
        uint64_t count = ~uint64_t{0};
        uint64_t since = 0;
    };
    seen seen_[os::max_cpus];
};

/// The last vCPU of which `done(cpu)` is not true; 0: none.
template <class F>
uint32_t not_done(F const& done) {
    uint32_t last = 0;
    for (uint32_t cpu = 1; cpu < os::cpu_count(); ++cpu)
        if (!done(cpu)) last = cpu;
    return last;
}

/// Gives it the time that a vCPU needs which is awake, and says for which one it was not enough.
template <class F>
uint32_t late(F const& done) {
    uint64_t const end = os::arch::rdtsc() + os::us_to_tsc(2 * patience_us);
    while (not_done(done) != 0 && os::arch::rdtsc() < end) os::arch::pause();
    return not_done(done);
}

/// Ends every halt by an NMI, over and over, until all are done.
template <class F>
void rescue(F const& done) {
    for (uint32_t i = 0; i < 1000 && not_done(done) != 0; ++i) {
        for (uint32_t cpu = 1; cpu < os::cpu_count(); ++cpu) os::send_nmi(os::cpu_apic_id(cpu));
        os::delay_us(20'000);
    }
}

outcome unused_kick() { return skip("kick: {}", pvx::guest::to_string(pv::configuration().kick.why)); }

void wait_random(uint64_t& seed) {
    for (uint64_t n = flush_load::next_random(seed) % 64; n > 0; --n) os::arch::pause();
}

// --- one wait, one kick ---

/// What CPU 0 and one sleeper say to each other: the number of the last kick, and of the last one that was noticed.
struct alignas(64) exchange {
    uint32_t asked;
    uint32_t answered;
    uint64_t seed;
};
constinit exchange exchanges[os::max_cpus] = {};
constexpr uint32_t enough = ~uint32_t{0};

/// Waits for each kick in turn, by pvx's own wait: a look and a halt, between which the kick may come.
void answer_kicks() {
    machine const m;
    exchange& mine = exchanges[m.self().value];
    auto const irqs = m.irq_save();
    for (uint32_t last = 0;; ++last) {
        // order: acquire [kick-asked] pairs with the store before the kick
        while (m.ref(mine.asked).load(order::acquire) == last) m.wait(mine.asked, ~uint32_t{0}, last);
        bool const is_last = m.ref(mine.asked).load(order::acquire) == enough;
        m.ref(mine.answered).store(is_last ? enough : last + 1, order::release);
        if (is_last) break;
        wait_random(mine.seed);
    }
    m.irq_restore(irqs);
}

outcome no_kick_is_lost() {
    if (!pv::configuration().kick) return unused_kick();
    machine const m;
    uint32_t const cpus = os::cpu_count();
    for (uint32_t cpu = 0; cpu < cpus; ++cpu) exchanges[cpu] = {0, 0, 0x9e3779b97f4a7c15 * (cpu + 1)};
    auto const job = [] { answer_kicks(); };
    for (uint32_t cpu = 1; cpu < cpus; ++cpu) os::start_job(cpu, job);

    auto const ask = [&](uint32_t cpu, uint32_t what) {
        m.ref(exchanges[cpu].asked).store(what, order::release);
        m.kick(pvx::cpu_index{cpu});
    };
    auto const answers = [&](uint32_t cpu) { return m.ref(exchanges[cpu].answered).load(order::acquire); };
    uint64_t kicks = 0;
    uint32_t asleep = 0;
    quota enough_kicks;
    watch watched;
    while (!enough_kicks.reached(kicks) && asleep == 0) {
        for (uint32_t cpu = 1; cpu < cpus; ++cpu) {
            uint32_t const asked = exchanges[cpu].asked;
            if (answers(cpu) != asked) continue;
            wait_random(exchanges[0].seed);
            ask(cpu, asked + 1);
            ++kicks;
        }
        asleep = watched.stuck(answers);
    }
    // Before anybody is kicked once more, which would hide a loss.
    auto const answered = [&](uint32_t cpu) { return answers(cpu) == exchanges[cpu].asked; };
    if (asleep == 0) asleep = late(answered);
    for (uint32_t cpu = 1; cpu < cpus; ++cpu) ask(cpu, enough);
    if (asleep == 0) asleep = late(answered);
    rescue(answered);
    for (uint32_t cpu = 1; cpu < cpus; ++cpu) os::wait_job(cpu);
    if (asleep != 0) return fail("after {} kicks, vCPU {} slept on", kicks, asleep);
    return pass("{} kicks of {} vCPUs", kicks, cpus - 1);
}

// --- a lock whose waiters halt at once ---

constinit pvx::guest::static_lock_storage<counting_machine, os::max_cpus> storage{};
constinit pvx::guest::lock_domain<counting_machine> impatient{
    counting_machine{}, storage, {.spins = 1, .steals = 1, .head_polls = 1}};
constinit uint32_t contended = 0;
constinit guarded data = {};
constinit uint32_t stop = 0;

struct alignas(64) contender {
    uint64_t operations;
    uint64_t errors;
    uint64_t seed;
    uint32_t done;
};
constinit contender contenders[os::max_cpus] = {};

/// Lets another vCPU run, where the host helps, so that it comes to want the lock while it is held.
void yield_to_another(uint64_t& seed) {
    if (!pv::configuration().sched_yield) return;
    uint64_t const other = flush_load::next_random(seed) % os::cpu_count();
    (void)hypercall(abi::kvm_hypercall::sched_yield, os::cpu_apic_id(static_cast<uint32_t>(other)));
}

/// With interrupts off, and every fourth time on: two ways to halt.
void contend() {
    machine const m;
    uint32_t const cpu = m.self().value;
    contender& me = contenders[cpu];
    while (m.ref(stop).load(order::relaxed) == 0) {
        bool const irqs_off = me.operations % 4 != 0;
        auto const irqs = m.irq_save();
        if (!irqs_off) m.irq_restore(irqs);
        impatient.lock(contended);
        me.errors += !data.enter(cpu);
        wait_random(me.seed);
        if (flush_load::next_random(me.seed) % 4 == 0) yield_to_another(me.seed);
        me.errors += !data.leave(cpu);
        impatient.unlock(contended);
        if (irqs_off) m.irq_restore(irqs);
        m.ref(me.operations).store(me.operations + 1, order::relaxed);
        wait_random(me.seed);
    }
    m.ref(me.done).store(1u, order::release);
}

outcome every_waiter_is_woken() {
    if (!pv::configuration().kick) return unused_kick();
    machine const m;
    uint32_t const cpus = os::cpu_count();
    (void)impatient.go_live(pvx::guest::lock_mode::paravirtual);
    counting_machine::reset();
    stop = 0;
    for (uint32_t cpu = 0; cpu < cpus; ++cpu) contenders[cpu] = {0, 0, 0x9e3779b97f4a7c15 * (cpu + 1), 0};
    auto const job = [] { contend(); };
    for (uint32_t cpu = 1; cpu < cpus; ++cpu) os::start_job(cpu, job);

    auto const operations_of = [&](uint32_t cpu) { return m.ref(contenders[cpu].operations).load(order::relaxed); };
    auto const sum = [&] {
        uint64_t operations = 0;
        for (uint32_t cpu = 1; cpu < cpus; ++cpu) operations += operations_of(cpu);
        return operations;
    };
    uint32_t asleep = 0;
    quota enough_operations;
    watch watched;
    while (!enough_operations.reached(sum()) && asleep == 0) {
        asleep = watched.stuck(operations_of);
        m.relax();
    }
    m.ref(stop).store(1u, order::relaxed);
    auto const done = [&](uint32_t cpu) { return m.ref(contenders[cpu].done).load(order::acquire) != 0; };
    if (asleep == 0) asleep = late(done);
    rescue(done);
    for (uint32_t cpu = 1; cpu < cpus; ++cpu) os::wait_job(cpu);
    uint64_t errors = 0;
    for (contender const& c : contenders) errors += c.errors;
    uint64_t const halts = counting_machine::halts(), kicks = counting_machine::kicks();
    if (asleep != 0) return fail("after {} times in all, vCPU {} waited on", sum(), asleep);
    if (errors != 0) return fail("{} times, two were inside", errors);
    if (contended != 0) return fail("the word is {:#x} in the end", contended);
    if (halts == 0 || kicks == 0) return skip("nobody halted in {} times", sum());
    return pass("{} times; {} halts, {} kicks", sum(), halts, kicks);
}

constexpr uint32_t kick = mask(abi::kvm_feature::pv_unhalt);

constexpr test_case cases[] = {
    {"no kick is lost, however close it comes to the halt", {.features = kick, .cpus = 2}, no_kick_is_lost},
    {"a lock whose waiters halt at once lets in one, and in the end everybody",
     {.features = kick, .cpus = 3},
     every_waiter_is_woken},
};

}  // namespace

constinit const case_list lock_cases = list_of(cases);

void set_wanted_kicks(uint64_t count) { wanted_kicks = count; }

}  // namespace conform
