// SPDX-License-Identifier: MIT
#include <pvx/guest/qspinlock.hpp>

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <thread>
#include <vector>

#include "support/catch.hpp"
#include "support/futex_machine.hpp"
#include "support/tsan_atomics.hpp"

using namespace pvx;
using namespace pvx::guest;
using namespace pvx_test;

namespace {

/// Rounds are multiplied by PVX_STRESS_FACTOR: 100 takes five to ten minutes.
uint64_t factor() {
    char const* const text = getenv("PVX_STRESS_FACTOR");
    return text == nullptr ? 1 : strtoull(text, nullptr, 10);
}

/// A generator for each thread: delays need no quality, and a shared one would order the threads.
class delays {
public:
    explicit delays(uint64_t seed) : state_(seed * 2 + 1) {}
    uint32_t below(uint32_t limit) {
        state_ = state_ * 6364136223846793005u + 1442695040888963407u;
        return static_cast<uint32_t>((state_ >> 33) % limit);
    }
    /// Mostly nothing, now and then the rest of a time slice.
    void delay() {
        uint32_t const n = below(64);
        if (n == 0) sched_yield();
        for (uint32_t i = n; i < 8; ++i) __builtin_ia32_pause();
    }

private:
    uint64_t state_;
};

thread_local delays* mine = nullptr;

/// The lock's own steps are delayed wherever it tells or asks something.
struct slow_machine : futex_machine<thread_atomics> {
    uint64_t* halts;
    uint64_t* kicks;

    slow_machine(futex_cpus& c, uint64_t& h, uint64_t& k) : futex_machine(c), halts(&h), kicks(&k) {}

    void relax() const {
        // There may be more threads than CPUs, and no end to a spin.
        if (mine->below(16) == 0) sched_yield();
        futex_machine::relax();
    }
    template <class Cell>
    void wait(Cell& watched, uint32_t mask, uint32_t value) const {
        mine->delay();
        ref(*halts).fetch_add(1, order::relaxed);
        if (mine->below(32) == 0) return;  // for no reason
        futex_machine::wait(watched, mask, value);
    }
    void kick(cpu_index cpu) const {
        mine->delay();
        ref(*kicks).fetch_add(1, order::relaxed);
        futex_machine::kick(cpu);
    }
    void event(lock_event) const { mine->delay(); }
    [[noreturn]] void broken(lock_invariant what) const {
        fprintf(stderr, "broken lock: invariant %u\n", static_cast<unsigned>(what));
        abort();
    }
};

/// Lets go of a native lock by a store of its byte: two sizes of access to one word, which no model covers.
struct byte_machine : slow_machine {
    using slow_machine::slow_machine;
    void store_low_byte(uint32_t& word, uint8_t value, store_order auto o) const {
        ref(reinterpret_cast<uint8_t&>(word)).store(value, o);
    }
};

static_assert(byte_store_policy<byte_machine> && !byte_store_policy<slow_machine>);

/// What a test varies.
struct setting {
    lock_mode mode;
    uint32_t threads;
    uint32_t locks = 1;
    uint32_t capacity = 0;  ///< Of the wait table; 0: one entry for each node.
    lock_tuning tuning{.spins = 16, .steals = 4, .head_polls = 8, .handover = 8};
    bool signals = false;  ///< Threads are interrupted, and take a lock then.
    uint64_t rounds = 400000;
};

template <class Machine>
class stress_run {
public:
    explicit stress_run(setting const& s)
        : setting_(s),
          cpus_(s.threads),
          nodes_(s.threads * detail::nodes_per_cpu),
          entries_(s.capacity != 0 ? s.capacity : s.threads * detail::nodes_per_cpu),
          locks_(s.locks + 1),
          progress_(s.threads),
          domain_(machine(), {nodes_.data(), s.threads, entries_.data(), static_cast<uint32_t>(entries_.size())},
                  s.tuning) {
        REQUIRE(domain_.go_live(s.mode) == status::ok);
        // ThreadSanitizer costs a factor of ten.
        rounds_ = s.rounds * factor() / s.threads / (PVX_TEST_TSAN ? 10 : 1);
    }

    void go() {
        current() = this;
        struct sigaction on {};
        on.sa_handler = [](int) { current()->interrupt(); };
        on.sa_flags = SA_RESTART;
        sigaction(SIGUSR1, &on, &before_);
        std::vector<std::thread> threads;
        for (uint32_t i = 0; i < setting_.threads; ++i) threads.emplace_back([this, i] { run(i); });
        std::thread watchdog([this] { watch(); });
        if (setting_.signals) annoy(threads);
        for (std::thread& t : threads) t.join();
        atomics_.ref(over_).store(1, order::relaxed);
        watchdog.join();
        sigaction(SIGUSR1, &before_, nullptr);
        check();
    }

    uint64_t halts() const { return halts_; }

private:
    struct alignas(64) guarded {
        uint32_t word = 0;
        uint64_t first = 0;
        uint64_t second = 0;
    };
    struct alignas(64) counter {
        uint64_t rounds = 0;
        uint32_t waits_for = 0;  ///< Index of a lock, plus one.
    };

    Machine machine() { return {cpus_, halts_, kicks_}; }
    static stress_run*& current() {
        static stress_run* run = nullptr;
        return run;
    }
    // The last lock belongs to interrupts alone.
    guarded& lock_of_interrupts() { return locks_.back(); }

    void use(guarded& g) {
        ++g.first;
        mine->delay();
        ++g.second;
    }

    void take(uint32_t index, uint32_t i) {
        atomics_.ref(progress_[i].waits_for).store(index + 1, order::relaxed);
        domain_.lock(locks_[index].word);
        atomics_.ref(progress_[i].waits_for).store(0, order::relaxed);
    }

    void run(uint32_t i) {
        futex_cpus::become(cpu_index{i});
        delays d(i + 1);
        mine = &d;
        atomics_.ref(started_).fetch_add(1, order::release);
        while (atomics_.ref(started_).load(order::acquire) != setting_.threads) sched_yield();
        for (uint64_t round = 0; round < rounds_ || wants_interrupts(); ++round) {
            uint32_t const one = d.below(setting_.locks);
            take(one, i);
            use(locks_[one]);
            // A second one inside, in a fixed order.
            if (one + 1 < setting_.locks && d.below(4) == 0) {
                take(one + 1, i);
                use(locks_[one + 1]);
                domain_.unlock(locks_[one + 1].word);
            }
            domain_.unlock(locks_[one].word);
            d.delay();
            atomics_.ref(progress_[i].rounds).store(round + 1, order::relaxed);
        }
        // Signals may come until all have ended, and find the thread's delays.
        atomics_.ref(ended_).fetch_add(1, order::relaxed);
        while (atomics_.ref(ended_).load(order::relaxed) != setting_.threads) sched_yield();
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, nullptr);
    }

    // In a signal handler: another context of the same CPU.
    void interrupt() {
        domain_.lock(lock_of_interrupts().word);
        use(lock_of_interrupts());
        sched_yield();  // long, so that interrupted CPUs queue
        domain_.unlock(lock_of_interrupts().word);
        atomics_.ref(interrupts_).fetch_add(1, order::relaxed);
    }
    bool wants_interrupts() {
        return setting_.signals && atomics_.ref(interrupts_).load(order::relaxed) < 50 * setting_.threads;
    }

    void annoy(std::vector<std::thread>& threads) {
        while (atomics_.ref(started_).load(order::acquire) != setting_.threads) sched_yield();
        while (atomics_.ref(ended_).load(order::relaxed) == 0) {
            for (std::thread& t : threads) pthread_kill(t.native_handle(), SIGUSR1);
            timespec const pause{0, 20000};
            nanosleep(&pause, nullptr);
        }
    }

    uint64_t sum() {
        uint64_t n = 0;
        for (counter& c : progress_) n += atomics_.ref(c.rounds).load(order::relaxed);
        return n;
    }

    // Nobody has done anything for a minute: say who waits for whom.
    void watch() {
        uint64_t last = ~uint64_t{0};
        for (unsigned idle = 0; atomics_.ref(over_).load(order::relaxed) == 0; ++idle) {
            uint64_t const now = sum();
            if (now != last) idle = 0;
            last = now;
            if (idle == 6000) {
                report();
                abort();
            }
            timespec const pause{0, 10000000};
            nanosleep(&pause, nullptr);
        }
    }

    void report() {
        fprintf(stderr, "no progress for a minute after %llu rounds\n", static_cast<unsigned long long>(sum()));
        for (size_t l = 0; l < locks_.size(); ++l) {
            uint32_t const w = locks_[l].word;
            fprintf(stderr, "lock %zu at %p: locked %u pending %u tail", l, static_cast<void*>(&locks_[l].word),
                    w & 0xff, w >> 8 & 0xff);
            if (w >> 16 != 0)
                fprintf(stderr, " CPU %u node %u\n", detail::tail_cpu(w).value, w >> 16 & 3);
            else
                fprintf(stderr, " none\n");
        }
        for (uint32_t i = 0; i < setting_.threads; ++i) {
            fprintf(stderr, "CPU %u: waits for lock %d, kicks %u, nodes in use %u\n", i,
                    static_cast<int>(progress_[i].waits_for) - 1, cpus_.kicks(cpu_index{i}),
                    nodes_[i * detail::nodes_per_cpu].in_use);
            for (uint32_t n = 0; n < nodes_[i * detail::nodes_per_cpu].in_use && n < detail::nodes_per_cpu; ++n) {
                auto const& node = nodes_[i * detail::nodes_per_cpu + n];
                fprintf(stderr, "  node %u: turn %u, state %u, next %#x\n", n, node.turn, node.state, node.next);
            }
        }
        for (auto const& e : entries_)
            if (e.key != 0)
                fprintf(stderr, "entry: lock %#llx, CPU %u\n", static_cast<unsigned long long>(e.key), e.cpu);
    }

    void check() {
        uint64_t uses = 0;
        for (guarded const& g : locks_) {
            CHECK(g.word == 0);
            CHECK(g.first == g.second);
            uses += g.first;
        }
        CHECK(uses >= rounds_ * setting_.threads + interrupts_);
        // An owner kicks at most its successor, and whoever it finds in the table.
        CHECK(kicks_ <= 2 * uses);
        CHECK(lock_of_interrupts().first == interrupts_);
        CHECK((interrupts_ != 0) == setting_.signals);
        for (auto const& n : nodes_) CHECK(n.in_use == 0);
        for (auto const& e : entries_) CHECK(e.key == 0);
    }

    setting setting_;
    thread_atomics atomics_;
    futex_cpus cpus_;
    std::vector<detail::mcs_node<Machine>> nodes_;
    std::vector<detail::wait_entry<Machine>> entries_;
    std::vector<guarded> locks_;
    std::vector<counter> progress_;
    uint64_t interrupts_ = 0;
    uint64_t halts_ = 0;
    uint64_t kicks_ = 0;
    lock_domain<Machine> domain_;
    uint64_t rounds_ = 0;
    uint32_t started_ = 0;
    uint32_t ended_ = 0;
    uint32_t over_ = 0;
    struct sigaction before_ {};
};

template <class Machine = slow_machine>
void run(setting const& s) {
    stress_run<Machine> r(s);
    r.go();
    bool const halts = s.mode == lock_mode::paravirtual;
    if (!halts) CHECK(r.halts() == 0);
    // Who looks often may never have to.
    if (halts && s.tuning.spins < 100) CHECK(r.halts() != 0);
}

}  // namespace

TEST_CASE("Threads that halt and kick each other exclude each other, and nobody sleeps for ever",
          "[guest][qspinlock]") {
    for (uint32_t threads : {2u, 3u, 8u, 64u}) {
        CAPTURE(threads);
        run({.mode = lock_mode::paravirtual, .threads = threads});
    }
    // Long enough to look at what the waiter before does.
    run({.mode = lock_mode::paravirtual,
         .threads = 8,
         .tuning = {.spins = 600, .steals = 4, .head_polls = 8, .handover = 8},
         .rounds = 50000});
}

TEST_CASE("So they do with several locks, one in another, and entries for few of them", "[guest][qspinlock]") {
    for (uint32_t capacity : {0u, 1u, 2u}) {
        CAPTURE(capacity);
        run({.mode = lock_mode::paravirtual, .threads = 8, .locks = 4, .capacity = capacity});
    }
}

TEST_CASE("So they do where each look is the last", "[guest][qspinlock]") {
    run({.mode = lock_mode::paravirtual,
         .threads = 8,
         .tuning = {.spins = 1, .steals = 0, .head_polls = 1, .handover = 0}});
}

TEST_CASE("So they do while interrupts take a lock in the middle of anything", "[guest][qspinlock]") {
    run({.mode = lock_mode::paravirtual, .threads = 4, .signals = true, .rounds = 4000});
    run({.mode = lock_mode::native, .threads = 4, .signals = true, .rounds = 4000});
}

TEST_CASE("Threads that only spin exclude each other", "[guest][qspinlock]") {
    for (lock_mode mode : {lock_mode::native, lock_mode::test_and_set})
        for (uint32_t threads : {2u, 3u, 8u}) run({.mode = mode, .threads = threads, .rounds = 50000});
}

TEST_CASE("So they do where a byte is stored to let go", "[guest][qspinlock]") {
    for (uint32_t threads : {2u, 3u, 8u})
        run<byte_machine>({.mode = lock_mode::native, .threads = threads, .rounds = 50000});
    run<byte_machine>({.mode = lock_mode::native, .threads = 4, .signals = true, .rounds = 4000});
}
