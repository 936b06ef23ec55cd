// SPDX-License-Identifier: MIT
#include <pvx/guest/tlb_flush.hpp>
#include <pvx/host/steal_time.hpp>

#include <thread>
#include <vector>

#include "support/catch.hpp"
#include "support/fake_environment.hpp"
#include "support/flush_machine.hpp"
#include "support/tsan_atomics.hpp"

using namespace pvx;
using namespace pvx_test;

namespace {

// ThreadSanitizer costs a factor of a hundred.
constexpr uint32_t rounds = PVX_TEST_TSAN ? 20000 : 1000000;
constexpr uint32_t flushers = 3;
constexpr cpu_index victim{1};

/// Page tables, the translations of one CPU, and what flushers were told. Each flusher has a page-table entry of its
/// own, and counts it up by a plain store, so that nothing but the code under test orders it.
class translations {
public:
    void change_entry(uint32_t flusher, uint64_t version) {
        a_.ref(tables_[flusher].value).store(version, order::relaxed);
    }
    void was_left(uint32_t flusher, uint64_t version) { a_.ref(left_[flusher].value).store(version, order::release); }

    /// By the CPU itself.
    void flush() {
        a_.fence(order::seq_cst);
        for (uint32_t f = 0; f < flushers; ++f) cached_[f] = a_.ref(tables_[f].value).load(order::relaxed);
        ++flushes;
    }
    /// By the CPU itself while it runs: a flush that was left to it has been done.
    void use() {
        for (uint32_t f = 0; f < flushers; ++f) stale += cached_[f] < a_.ref(left_[f].value).load(order::acquire);
    }

    uint64_t flushes = 0;
    uint64_t stale = 0;

private:
    struct alignas(64) line {
        uint64_t value = 0;
    };
    thread_atomics a_;
    line tables_[flushers];
    line left_[flushers];
    uint64_t cached_[flushers] = {};
};

/// The owner goes out and comes in `rounds` times; meanwhile flushers change their entries and try to leave the flush:
/// `leave(flusher)` says whether they could.
template <class Out, class In, class Leave>
void run(translations& t, Out out, In in, Leave leave) {
    thread_atomics const a;
    uint32_t started = 0;
    uint32_t ended = 0;
    std::vector<uint64_t> left(flushers, 0);
    std::vector<std::thread> threads;
    for (uint32_t f = 0; f < flushers; ++f)
        threads.emplace_back([&, f] {
            a.ref(started).fetch_add(1, order::seq_cst);
            for (uint64_t version = 1; a.ref(ended).load(order::relaxed) == 0; ++version) {
                t.change_entry(f, version);
                if (leave(f)) {
                    t.was_left(f, version);
                    ++left[f];
                }
                if (version % 64 == 0) std::this_thread::yield();
            }
        });
    while (a.ref(started).load(order::acquire) != flushers) std::this_thread::yield();
    for (uint32_t round = 0; round < rounds; ++round) {
        out();
        if (round % 16 == 0) std::this_thread::yield();
        in();
        t.use();
        t.use();
    }
    a.ref(ended).store(1, order::relaxed);
    for (std::thread& thread : threads) thread.join();
    CHECK(t.stale == 0);
    CHECK(t.flushes > 0);
    for (uint64_t n : left) CHECK(n > 0);
}

/// A flush by a mask in which only the victim is.
template <class Machine>
bool prune_one(guest::tlb_flush<Machine> const& flush) {
    unsigned long const targets = 1ul << victim.value;
    unsigned long rest = 0;
    return !flush.prune(const_cpu_mask_view{&targets, 2}, cpu_mask_view{&rest, 2}, guest::flush_kind::leaves,
                        [](cpu_index) {});
}

struct environment : fake_environment<thread_atomics> {
    translations* tlb;

    environment(host_state& s, translations& t) : fake_environment(s), tlb(&t) {}
    void mark_dirty(guest_phys) const {}
    void flush_guest_tlb() const { tlb->flush(); }
};

struct waiting_machine : with_deferral<flush_machine<thread_atomics>> {
    translations* tlb;

    waiting_machine(flush_state& s, translations& t)
        : with_deferral<flush_machine<thread_atomics>>(s, thread_atomics{}), tlb(&t) {}
    void flush_all_local() const { tlb->flush(); }
};

}  // namespace

TEST_CASE("no flush that is left to the host is missed by the vCPU when it runs", "[guest][host][tlb_flush]") {
    using machine = flush_machine<thread_atomics>;
    translations t;
    flush_state state(2);
    host_state host;
    host.memory[0x1000] = &state.pages[victim.value];
    host::steal_time<environment> vcpu(environment(host, t), true);
    REQUIRE(vcpu.write_msr(abi::kvm_msr::steal_time.index, 0x1003) == host::msr_outcome::done);
    vcpu.enter();
    guest::tlb_flush<machine> const flush(machine(state, thread_atomics{}),
                                          {.host_bits = abi::steal_preempted | abi::proposed::steal_in_host});
    uint32_t round = 0;
    run(
        t,
        [&] {
            // Blocked first, and in every other round then preempted: the second must not erase a flush.
            vcpu.put({.at_instruction_boundary = true, .preempted = false, .wants_to_run = true});
            if (++round % 2 == 0) vcpu.put({.at_instruction_boundary = true, .preempted = true, .wants_to_run = true});
        },
        [&] {
            vcpu.load();
            vcpu.enter();
        },
        [&](uint32_t flusher) { return flusher == 0 ? flush.leave_to_host(victim) : prune_one(flush); });
}

TEST_CASE("no deferred flush is missed by the CPU that was waiting", "[guest][deferred_flush]") {
    translations t;
    flush_state state(2);
    waiting_machine const machine(state, t);
    guest::deferred_flush<waiting_machine> const deferred(machine);
    guest::tlb_flush<waiting_machine> const flush(machine, {.host_bits = 0});
    run(
        t, [&] { deferred.enter(victim); },
        [&] {
            (void)deferred.leave(victim);
            (void)deferred.leave(victim);
        },
        [&](uint32_t flusher) { return flusher == 0 ? deferred.defer(victim) : prune_one(flush); });
}
