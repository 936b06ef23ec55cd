// SPDX-License-Identifier: MIT
#include <pvx/host/halt.hpp>

#include <pvx/host/apic_icr.hpp>

#include <functional>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/fake_machine.hpp"
#include "support/recording_atomics.hpp"

using namespace pvx;
using namespace pvx::host;
using namespace pvx_test;
using kind = recorded::kind;

namespace {

/// Behind the environment of one vCPU, and of those who signal it.
struct vm_state {
    bool event = false;
    init_rule rule = init_rule::taken;
    uint32_t wakes = 0;
    std::function<void()> on_look = [] {};  // at each call of the vCPU's roles
};

struct environment : recording_atomics {
    vm_state* vm;

    environment(recording& notes, vm_state& v) : recording_atomics(notes), vm(&v) {}
    bool wake_event() const {
        vm->on_look();
        return vm->event;
    }
    init_rule rule_of_init() const {
        vm->on_look();
        return vm->rule;
    }
    void wake(cpu_index vcpu) const {
        if (vcpu != cpu_index{5}) throw unplanned("another vCPU is woken");
        ++vm->wakes;
    }
};

/// A vCPU with its words.
struct vcpu {
    recording notes;
    vm_state vm;
    halt_words_of<environment> words;
    vcpu_halt<environment> halt;
    vcpu_signals<environment> from;

    explicit vcpu(bool bootstrap = true)
        : halt(environment(notes, vm), words, bootstrap), from(environment(notes, vm), words, cpu_index{5}) {}
    vcpu(vcpu const&) = delete;

    bool kicked() const { return words.latch != 0; }
    halt_action next() { return halt.next().action; }
};

constexpr halt_action acts(halt_step s) { return s.action; }

/// A vCPU in a state, by the ways that lead there.
void reach(vcpu& v, mp_state state) {
    switch (state) {
        case mp_state::runnable: break;
        case mp_state::halted: REQUIRE(v.halt.hlt()); break;
        case mp_state::nested_halted: REQUIRE(v.halt.hlt(true)); break;
        case mp_state::wait_for_sipi:
            v.from.init();
            REQUIRE(v.next() == halt_action::init);
            break;
    }
    REQUIRE(v.halt.state() == state);
    v.vm = {};
}

constexpr mp_state states[] = {mp_state::runnable, mp_state::halted, mp_state::nested_halted, mp_state::wait_for_sipi};

}  // namespace

TEST_CASE("Every event in every state: what the vCPU's thread does, waits for, and keeps of a kick", "[host][halt]") {
    using enum mp_state;
    using act = halt_action;
    enum class with { nothing, kick, event, init, sipi, init_sipi, sipi_init, stop, init_held, sipi_init_held, nested };
    struct row {
        mp_state from;
        with what;
        std::vector<act> does;  // until it runs or sleeps
        mp_state to;
        bool latch;  // if it was kicked, whether the latch is set afterwards; kicked before `what` comes
    };
    // An application processor: INIT makes it wait.
    row const table[] = {
        {runnable, with::nothing, {act::run}, runnable, true},
        {halted, with::nothing, {act::sleep}, halted, false},
        {nested_halted, with::nothing, {act::sleep}, nested_halted, false},
        {wait_for_sipi, with::nothing, {act::sleep}, wait_for_sipi, true},
        {runnable, with::event, {act::run}, runnable, true},
        {halted, with::event, {act::run}, runnable, false},
        {nested_halted, with::event, {act::run}, runnable, false},
        {wait_for_sipi, with::event, {act::sleep}, wait_for_sipi, true},
        {runnable, with::init, {act::init, act::sleep}, wait_for_sipi, false},
        {halted, with::init, {act::init, act::sleep}, wait_for_sipi, false},
        {nested_halted, with::init, {act::init, act::sleep}, wait_for_sipi, false},
        {wait_for_sipi, with::init, {act::init, act::sleep}, wait_for_sipi, false},
        {runnable, with::sipi, {act::run}, runnable, true},
        {halted, with::sipi, {act::sleep}, halted, false},
        {nested_halted, with::sipi, {act::sleep}, nested_halted, false},
        {wait_for_sipi, with::sipi, {act::start, act::run}, runnable, false},
        {runnable, with::init_sipi, {act::init, act::start, act::run}, runnable, false},
        {halted, with::init_sipi, {act::init, act::start, act::run}, runnable, false},
        {nested_halted, with::init_sipi, {act::init, act::start, act::run}, runnable, false},
        {wait_for_sipi, with::init_sipi, {act::init, act::start, act::run}, runnable, false},
        {runnable, with::sipi_init, {act::init, act::sleep}, wait_for_sipi, false},
        {wait_for_sipi, with::sipi_init, {act::init, act::sleep}, wait_for_sipi, false},
        {runnable, with::stop, {act::stop}, runnable, true},
        {halted, with::stop, {act::stop}, halted, true},
        {nested_halted, with::stop, {act::stop}, nested_halted, true},
        {wait_for_sipi, with::stop, {act::stop}, wait_for_sipi, true},
        {runnable, with::init_held, {act::run}, runnable, true},
        {halted, with::init_held, {act::sleep}, halted, false},
        {wait_for_sipi, with::init_held, {act::sleep}, wait_for_sipi, true},
        {runnable, with::sipi_init_held, {act::run}, runnable, true},
        {nested_halted, with::nested, {act::nested_init, act::run}, runnable, false},
        {runnable, with::nested, {act::nested_init, act::run}, runnable, true},
    };
    for (row const& r : table)
        for (bool const kick : {false, true}) {
            vcpu v(false);
            REQUIRE(v.halt.state() == wait_for_sipi);
            v.from.init();
            v.from.startup(1);
            REQUIRE(v.next() == act::init);
            REQUIRE(v.next() == act::start);
            reach(v, r.from);
            bool const ends_halt = kick && (r.from == halted || r.from == nested_halted);
            CAPTURE(static_cast<int>(r.from), static_cast<int>(r.what), kick);
            if (kick) v.from.kick();
            switch (r.what) {
                case with::nothing:
                case with::kick: break;
                case with::event: v.vm.event = true; break;
                case with::init_held:
                    v.vm.rule = init_rule::held;
                    v.from.init();
                    break;
                case with::sipi_init_held:
                    v.vm.rule = init_rule::held;
                    v.from.init();
                    v.from.startup(9);
                    break;
                case with::nested: v.vm.rule = init_rule::nested_exit; [[fallthrough]];
                case with::init: v.from.init(); break;
                case with::sipi: v.from.startup(9); break;
                case with::init_sipi:
                    v.from.init();
                    v.from.startup(9);
                    break;
                case with::sipi_init:
                    v.from.startup(9);
                    v.from.init();
                    break;
                case with::stop: v.from.stop(); break;
            }
            bool const goes_on = r.does[0] != act::sleep && r.does[0] != act::stop;
            CHECK(v.halt.may_run() == (goes_on || (ends_halt && r.does[0] != act::stop)));
            std::vector<act> does;
            do {
                halt_step const s = v.halt.next();
                if (s.action == act::start) CHECK(s.vector == 9);
                if (s.action == act::nested_init) v.halt.nested_exit();
                does.push_back(s.action);
            } while (does.back() != act::run && does.back() != act::sleep && does.back() != act::stop);
            if (ends_halt && r.does[0] == act::sleep) {
                CHECK(does == std::vector{act::run});
                CHECK(v.halt.state() == runnable);
                CHECK_FALSE(v.kicked());
            } else {
                CHECK(does == r.does);
                CHECK(v.halt.state() == r.to);
                CHECK(v.kicked() == (kick && r.latch));
            }
        }
}

TEST_CASE("A kick ends one halt: the one that the vCPU is in, or the next", "[host][halt]") {
    vcpu v;
    v.from.kick();
    v.from.kick();
    CHECK(v.vm.wakes == 0);
    CHECK_FALSE(v.halt.hlt());
    CHECK(v.halt.state() == mp_state::runnable);
    CHECK(v.halt.hlt());
    CHECK(v.next() == halt_action::sleep);
    REQUIRE(v.halt.block());
    v.from.kick();
    CHECK(v.vm.wakes == 1);
    v.halt.unblock();
    CHECK(v.next() == halt_action::run);
    CHECK(v.halt.hlt());
}

TEST_CASE("A halt that an interrupt ends takes the kick with it", "[host][halt]") {
    vcpu v;
    REQUIRE(v.halt.hlt());
    v.vm.event = true;
    v.from.kick();
    CHECK(v.next() == halt_action::run);
    v.vm.event = false;
    CHECK(v.halt.hlt());
    CHECK(v.next() == halt_action::sleep);
}

TEST_CASE("No way to running leaves a latch that would end the next halt", "[host][halt]") {
    enum class way { nested_exit, init, sipi, reset };
    for (way const w : {way::nested_exit, way::init, way::sipi, way::reset})
        for (bool const bootstrap : {false, true}) {
            if (w == way::sipi && bootstrap) continue;
            vcpu v(bootstrap);
            if (!bootstrap) {
                v.from.startup(1);
                REQUIRE(v.next() == halt_action::start);
            }
            if (w == way::nested_exit) REQUIRE(v.halt.hlt(true));
            v.from.kick();
            switch (w) {
                case way::nested_exit: v.halt.nested_exit(); break;
                case way::init:
                case way::sipi:
                    v.from.init();
                    REQUIRE(v.next() == halt_action::init);
                    CHECK_FALSE(v.kicked());
                    if (w == way::sipi) v.from.kick();
                    break;
                case way::reset:
                    REQUIRE(acts(v.halt.reset()) == halt_action::reset);
                    CHECK_FALSE(v.kicked());
                    break;
            }
            if (v.halt.state() == mp_state::wait_for_sipi) {
                v.from.startup(2);
                REQUIRE(v.next() == halt_action::start);
            }
            CHECK(v.next() == halt_action::run);
            CHECK(v.halt.hlt());
            CHECK(v.next() == halt_action::sleep);
        }
}

TEST_CASE("An exit from a nested guest that runs leaves the latch, and one from its halt takes it", "[host][halt]") {
    vcpu v;
    v.from.kick();
    v.halt.nested_exit();
    CHECK(v.kicked());
    CHECK_FALSE(v.halt.hlt());
    REQUIRE(v.halt.hlt(true));
    v.from.kick();
    v.halt.nested_exit();
    CHECK(v.halt.state() == mp_state::runnable);
    CHECK_FALSE(v.kicked());
    // Of the guest's own halt, and of waiting for SIPI, it is no end.
    REQUIRE(v.halt.hlt());
    v.halt.nested_exit();
    CHECK(v.halt.state() == mp_state::halted);
}

TEST_CASE("RESET and INIT lead the bootstrap CPU to its first instruction, and the others to wait for SIPI",
          "[host][halt]") {
    for (mp_state const from : states) {
        for (bool const bootstrap : {false, true}) {
            vcpu v(bootstrap);
            mp_state const expected = bootstrap ? mp_state::runnable : mp_state::wait_for_sipi;
            CHECK(v.halt.state() == expected);
            if (from == mp_state::wait_for_sipi && bootstrap) continue;
            if (!bootstrap) {
                v.from.startup(1);
                REQUIRE(v.next() == halt_action::start);
            }
            reach(v, from);
            v.from.init();
            v.from.startup(3);
            CHECK(v.halt.reset() == halt_step{halt_action::reset, 0});
            CHECK(v.halt.state() == expected);
            CHECK(v.words.requests == 0);
            v.from.init();
            CHECK(v.halt.next() == halt_step{halt_action::init, 0});
            CHECK(v.halt.state() == expected);
        }
    }
    vcpu v;
    v.from.stop();
    CHECK(acts(v.halt.reset()) == halt_action::reset);
    CHECK(v.next() == halt_action::stop);
}

TEST_CASE("A SIPI starts a vCPU once, and goes by where none waits for it", "[host][halt]") {
    vcpu v(false);
    v.from.startup(7);
    v.from.startup(8);
    CHECK(v.halt.next() == halt_step{halt_action::start, 7});
    CHECK(v.next() == halt_action::run);
    v.from.startup(0xff);
    CHECK(v.next() == halt_action::run);
    CHECK(v.words.requests == 0);
    // It is gone for good, also for an INIT that comes later.
    v.from.init();
    CHECK(v.next() == halt_action::init);
    CHECK(v.next() == halt_action::sleep);
    v.from.startup(0xff);
    CHECK(v.halt.next() == halt_step{halt_action::start, 0xff});
}

TEST_CASE("Two INITs are one, and the SIPI after them is not lost", "[host][halt]") {
    vcpu v(false);
    v.from.startup(4);  // of an earlier time
    v.from.init();
    v.from.init();
    v.from.startup(5);
    v.from.startup(6);
    CHECK(v.halt.next() == halt_step{halt_action::init, 0});
    CHECK(v.halt.next() == halt_step{halt_action::start, 5});
    CHECK(v.next() == halt_action::run);
}

TEST_CASE("An INIT and its SIPI that come while a SIPI is being taken are both kept", "[host][halt]") {
    vcpu v(false);
    v.from.startup(4);
    bool came = false;
    v.notes.after = [&](recorded const& r) {
        if (came || r.what != kind::load || r.word != &v.words.requests) return;
        came = true;
        v.from.init();
        v.from.startup(5);
    };
    CHECK(v.halt.next() == halt_step{halt_action::init, 0});
    CHECK(v.halt.next() == halt_step{halt_action::start, 5});
    CHECK(v.next() == halt_action::run);
}

TEST_CASE("An INIT that is held is taken when it is not held any more, and a SIPI that came meanwhile is lost",
          "[host][halt]") {
    vcpu v(false);
    v.from.startup(1);
    REQUIRE(v.next() == halt_action::start);
    REQUIRE(v.halt.hlt());
    v.vm.rule = init_rule::held;
    v.from.init();
    CHECK(v.halt.block());
    v.halt.unblock();
    CHECK(v.next() == halt_action::sleep);
    v.from.startup(9);
    CHECK(v.next() == halt_action::sleep);
    v.vm.rule = init_rule::taken;
    CHECK_FALSE(v.halt.block());
    CHECK(v.next() == halt_action::init);
    CHECK(v.next() == halt_action::sleep);
}

TEST_CASE("INIT and SIPI are ours of all interrupt commands", "[host][halt]") {
    using enum abi::apic_delivery;
    for (unsigned how = 0; how < 8; ++how) {
        vcpu v;
        auto const delivery = static_cast<abi::apic_delivery>(how);
        bool const ours = delivery == init || delivery == startup;
        CHECK(v.from.deliver(delivery, 0x10) == ours);
        CHECK((v.words.requests != 0) == ours);
        CHECK(v.vm.wakes == ours);
    }
    // As a guest writes them.
    vcpu v(false);
    for (uint32_t const low : {0x4500u, 0x4607u}) {
        icr_write const w = write_icr_msr(abi::apic_mode::x2apic, 0, 0x830, uint64_t{5} << 32 | low);
        REQUIRE(w.verdict == ipi_verdict::send);
        CHECK(v.from.deliver(w.ipi.delivery, w.ipi.vector));
    }
    CHECK(v.next() == halt_action::init);
    CHECK(v.halt.next() == halt_step{halt_action::start, 7});
}

TEST_CASE("A stop keeps what the vCPU waits for, and what comes meanwhile", "[host][halt]") {
    vcpu v(false);
    v.from.startup(1);
    REQUIRE(v.next() == halt_action::start);
    REQUIRE(v.halt.hlt());
    v.from.stop();
    v.from.stop();
    CHECK(v.next() == halt_action::stop);
    v.from.kick();
    CHECK(v.halt.block());
    v.halt.unblock();
    CHECK(v.next() == halt_action::stop);
    v.from.resume();
    CHECK_FALSE(v.halt.block());
    CHECK(v.words.blocked == 0);
    CHECK(v.next() == halt_action::run);
    v.from.stop();
    v.from.init();
    v.from.startup(3);
    CHECK(v.next() == halt_action::stop);
    v.from.resume();
    CHECK(v.next() == halt_action::init);
    v.from.stop();
    CHECK(v.next() == halt_action::stop);
    v.from.resume();
    CHECK(v.halt.next() == halt_step{halt_action::start, 3});
}

TEST_CASE("Who signals wakes a vCPU that is blocked, and INIT, SIPI and stops wake it wherever it is", "[host][halt]") {
    vcpu v;
    CHECK_FALSE(v.from.notify());
    CHECK(v.vm.wakes == 0);
    v.from.init(), v.from.startup(1), v.from.stop(), v.from.resume();
    CHECK(v.vm.wakes == 4);
    CHECK(v.next() == halt_action::init);
    CHECK(v.next() == halt_action::run);
    REQUIRE(v.halt.hlt());
    REQUIRE(v.halt.block());
    CHECK(v.from.notify());
    CHECK(v.vm.wakes == 5);
    v.halt.unblock();
    CHECK_FALSE(v.from.notify());
}

TEST_CASE("A kick at any step between HLT and sleep keeps the vCPU awake or wakes it", "[host][halt]") {
    for (size_t at = 0;; ++at) {
        vcpu v;
        size_t step = 0;
        bool came = false;
        auto const comes = [&] {
            if (came || step++ != at) return;
            came = true;
            v.from.kick();
        };
        v.notes.after = [&](recorded const&) { comes(); };
        v.vm.on_look = comes;
        bool awake = !v.halt.hlt();
        for (int round = 0; !awake && round < 2; ++round) {
            awake = v.next() == halt_action::run;
            if (awake) break;
            bool const sleeps = v.halt.block();
            if (sleeps && v.vm.wakes == 0) break;
            v.halt.unblock();
        }
        if (!came) {
            CHECK_FALSE(awake);
            CHECK(at > 6);
            break;
        }
        CAPTURE(at);
        CHECK((awake || v.vm.wakes == 1));
        v.notes.after = nullptr;
        if (!awake) CHECK(v.next() == halt_action::run);
        CHECK(v.halt.state() == mp_state::runnable);
    }
}

TEST_CASE("The look whether a vCPU may run changes nothing", "[host][halt]") {
    for (mp_state const from : states)
        for (bool const kick : {false, true})
            for (bool const event : {false, true})
                for (bool const init : {false, true})
                    for (bool const stop : {false, true}) {
                        vcpu v(false);
                        v.from.startup(1);
                        REQUIRE(v.next() == halt_action::start);
                        reach(v, from);
                        if (kick) v.from.kick();
                        v.vm.event = event;
                        if (init) v.from.init(), v.from.startup(2);
                        if (stop) v.from.stop();
                        auto const before = v.words;
                        v.notes.steps.clear();
                        uint32_t const wakes = v.vm.wakes;
                        vcpu_halt<environment> const& look = v.halt;
                        bool const may = look.may_run();
                        for (recorded const& r : v.notes.steps) CHECK(r.what == kind::load);
                        CHECK(v.words.latch == before.latch);
                        CHECK(v.words.requests == before.requests);
                        CHECK(v.halt.state() == from);
                        CHECK(v.vm.wakes == wakes);
                        // And it is right.
                        halt_action const next = v.next();
                        CHECK(may == (next != halt_action::sleep && next != halt_action::stop));
                    }
}

TEST_CASE("Orders of a kick: latch, full fence, look; of a halt: blocked, full fence, look", "[host][halt]") {
    vcpu v;
    v.from.kick();
    int const release = order::release.builtin, seq_cst = order::seq_cst.builtin, relaxed = order::relaxed.builtin;
    CHECK(v.notes.steps == std::vector<recorded>{{kind::rmw, &v.words.latch, 1, release},
                                                 {kind::fence, nullptr, 0, seq_cst},
                                                 {kind::load, &v.words.blocked, 0, relaxed}});
    CHECK_FALSE(v.halt.hlt());
    CHECK(v.notes.steps.back() == recorded{kind::rmw, &v.words.latch, 0, order::acquire.builtin});
    REQUIRE(v.halt.hlt());
    v.notes.steps.clear();
    REQUIRE(v.halt.block());
    CHECK(v.notes.steps == std::vector<recorded>{{kind::store, &v.words.blocked, 1, relaxed},
                                                 {kind::fence, nullptr, 0, seq_cst},
                                                 {kind::load, &v.words.requests, 0, relaxed},
                                                 {kind::load, &v.words.latch, 0, relaxed}});
}

TEST_CASE("A state that was saved goes on elsewhere, kick, INIT and SIPI with it", "[host][halt]") {
    for (mp_state const from : states)
        for (bool const kick : {false, true})
            for (uint32_t const requests : {0u, 1u, 0x502u, 0x503u}) {
                vcpu v(false);
                v.from.startup(1);
                REQUIRE(v.next() == halt_action::start);
                reach(v, from);
                if (kick) v.from.kick();
                if ((requests & 1) != 0) v.from.init();
                if ((requests & 2) != 0) v.from.startup(5);
                v.from.stop();
                halt_saved const saved = v.halt.save();
                CHECK(saved.version == 1);
                CHECK(saved.state == from);
                CHECK(saved.kicked == kick);
                CHECK(saved.requests == requests);

                vcpu other(false);
                other.from.kick();
                other.from.startup(0xaa);
                other.from.stop();
                REQUIRE(other.halt.restore(saved) == status::ok);
                CHECK(other.halt.state() == from);
                CHECK(other.kicked() == kick);
                CHECK(other.next() == halt_action::stop);
                v.from.resume();
                other.from.resume();
                for (int i = 0; i < 3; ++i) CHECK(other.halt.next() == v.halt.next());
                CHECK(other.halt.state() == v.halt.state());
            }
}

TEST_CASE("A saved state that there is not is refused, and nothing changes", "[host][halt]") {
    halt_saved const good{1, 0xff03, mp_state::halted, 1, 0, 0};
    std::vector<halt_saved> bad(10, good);
    bad[9].pad2 = 1;
    bad[0].version = 0;
    bad[1].version = 2;
    bad[2].state = static_cast<mp_state>(4);
    bad[3].kicked = 2;
    bad[4].pad = 1;
    bad[5].requests = 0x107;  // a stop
    bad[6].requests = 0x101;  // a vector without its SIPI
    bad[7].requests = 0x10003;
    bad[8].requests = 0x13;
    for (halt_saved const& b : bad) {
        vcpu v;
        v.from.startup(6);
        v.from.kick();
        CHECK(v.halt.restore(b) == status::bad_argument);
        CHECK(v.halt.state() == mp_state::runnable);
        CHECK(v.kicked());
        CHECK(v.words.requests == 0x602);
    }
    vcpu v;
    CHECK(v.halt.restore(good) == status::ok);
    CHECK(v.halt.state() == mp_state::halted);
}

namespace {

/// A thread that runs KVM_RUN: the flag is polled once as that begins, and a signal ends it later.
struct kvm_thread : environment {
    struct shared_state {
        uint32_t immediate_exit = 0;
        bool in_run = false, signalled = false;
    };
    shared_state* thread;

    kvm_thread(recording& notes, vm_state& v, shared_state& t) : environment(notes, v), thread(&t) {}
    void wake(cpu_index) const {
        thread->immediate_exit = 1;
        if (thread->in_run) thread->signalled = true;
    }
};

}  // namespace

TEST_CASE("A VMM in user space: a stop at any point of the loop around KVM_RUN ends it within one round",
          "[host][halt]") {
    for (int at = 0; at < 4; ++at) {
        recording notes;
        vm_state vm;
        kvm_thread::shared_state thread;
        halt_words_of<kvm_thread> words;
        kvm_thread const env(notes, vm, thread);
        vcpu_halt<kvm_thread> halt(env, words, true);
        vcpu_signals<kvm_thread> const from(env, words, cpu_index{5});
        int runs_after = 0, cleared = 0;
        bool sent = false;
        auto const point = [&](int here) {
            if (here != at || sent) return;
            sent = true;
            from.stop();
        };
        bool stopped = false;
        for (int round = 0; round < 3 && !stopped; ++round) {
            cleared += thread.immediate_exit != 0;
            thread.immediate_exit = 0;
            point(0);
            stopped = acts(halt.next()) == halt_action::stop;
            if (stopped) break;
            point(1);
            if (thread.immediate_exit == 0) {
                thread.in_run = true;
                runs_after += sent;
                point(2);
                if (!thread.signalled && at == 2) FAIL("the guest runs on");
                thread.in_run = thread.signalled = false;
            }
            point(3);
        }
        CAPTURE(at);
        CHECK(stopped);
        CHECK(runs_after == 0);
        CHECK(cleared <= 1);
    }
}
