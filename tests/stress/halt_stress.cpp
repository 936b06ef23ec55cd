// SPDX-License-Identifier: MIT
#include <pvx/host/halt.hpp>

#include <thread>
#include <vector>

#include "support/catch.hpp"
#include "support/futex_machine.hpp"
#include "support/tsan_atomics.hpp"

using namespace pvx;
using namespace pvx_test;

namespace {

constexpr uint32_t rounds = PVX_TEST_TSAN ? 20000 : 50000;

/// What others reach of a vCPU.
struct alignas(64) vcpu_words {
    host::halt_words<uint32_t> halt;
    uint32_t door = 0;  ///< Somebody wakes the thread: what makes a wake sticky.
    uint32_t irr = 0;
};

struct vm {
    explicit vm(uint32_t n) : cpus(n), vcpus(n) {}

    futex_cpus cpus;
    std::vector<vcpu_words> vcpus;
};

struct environment : thread_atomics {
    vm* of;
    uint32_t vcpu;

    environment(vm& v, uint32_t i) : of(&v), vcpu(i) {}

    bool wake_event() const { return ref(of->vcpus[vcpu].irr).load(order::relaxed) != 0; }
    host::init_rule rule_of_init() const { return host::init_rule::taken; }
    void wake(cpu_index to) const {
        (void)ref(of->vcpus[to.value].door).exchange(1, order::release);
        futex_machine<thread_atomics>(of->cpus).kick(to);
    }
    /// Until a wake, which may have been before.
    void sleep() const {
        uint32_t& door = of->vcpus[vcpu].door;
        futex_machine<thread_atomics>(of->cpus).wait(door, ~0u, 0);
        (void)ref(door).exchange(0, order::acquire);
    }
};

host::vcpu_signals<environment> signals(vm& v, uint32_t to) {
    return {environment(v, to), v.vcpus[to].halt, cpu_index{to}};
}

/// A vCPU's thread.
class vcpu {
public:
    vcpu(vm& v, uint32_t i, bool bootstrap) : environment_(v, i), halt_(environment_, v.vcpus[i].halt, bootstrap) {
        futex_cpus::become(cpu_index{i});
    }

    /// HLT, and what comes before the guest goes on.
    void hlt() {
        if (halt_.hlt()) (void)run_until([](host::halt_action a) { return a == host::halt_action::run; });
    }

    template <class Until>
    host::halt_step run_until(Until until) {
        for (;;) {
            host::halt_step const step = halt_.next();
            if (until(step.action)) return step;
            if (step.action == host::halt_action::run) {
                environment_.sleep();  // the guest has nothing to do, and stays until it is called out
            } else if (step.action == host::halt_action::sleep) {
                if (halt_.block()) environment_.sleep(), ++slept;
                halt_.unblock();
            }
        }
    }

    uint32_t slept = 0;

private:
    environment environment_;
    host::vcpu_halt<environment> halt_;
};

}  // namespace

TEST_CASE("No kick is lost between vCPUs that halt for one another", "[host][halt]") {
    constexpr uint32_t vcpus = 3;
    vm v(vcpus);
    thread_atomics const a;
    uint32_t turn = 0;
    uint64_t plain = 0;  // of whose turn it is
    std::vector<uint32_t> slept(vcpus);
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < vcpus; ++i)
        threads.emplace_back([&, i] {
            vcpu self(v, i, true);
            for (uint32_t round = i; round < rounds; round += vcpus) {
                while (a.ref(turn).load(order::acquire) != round) self.hlt();
                ++plain;
                a.ref(turn).store(round + 1, order::release);
                signals(v, (i + 1) % vcpus).kick();
            }
            slept[i] = self.slept;
        });
    for (std::thread& t : threads) t.join();
    CHECK(plain == rounds);
    for (uint32_t n : slept) CHECK(n > 0);
}

TEST_CASE("No interrupt and no kick is lost when both come at once", "[host][halt]") {
    vm v(3);
    thread_atomics const a;
    uint32_t asked[2] = {}, answered = 0;
    std::vector<std::thread> threads;
    // Two that signal vCPU 0, one by kicks and one by interrupts, and wait for its answer to both.
    for (uint32_t i = 0; i < 2; ++i)
        threads.emplace_back([&, i] {
            for (uint32_t round = 1; round <= rounds; ++round) {
                a.ref(asked[i]).store(round, order::relaxed);
                if (i == 0) {
                    signals(v, 0).kick();
                } else {
                    (void)a.ref(v.vcpus[0].irr).fetch_or(1, order::release);
                    (void)signals(v, 0).notify();
                }
                while (a.ref(answered).load(order::acquire) < round) std::this_thread::yield();
            }
        });
    vcpu self(v, 0, true);
    for (uint32_t round = 1; round <= rounds; ++round) {
        for (uint32_t& each : asked)
            for (;;) {
                (void)a.ref(v.vcpus[0].irr).exchange(0, order::acquire);
                if (a.ref(each).load(order::relaxed) == round) break;
                self.hlt();
            }
        a.ref(answered).store(round, order::release);
    }
    for (std::thread& t : threads) t.join();
    CHECK(self.slept > 0);
}

TEST_CASE("Each INIT and SIPI starts the vCPU, with the code that was stored before", "[host][halt]") {
    vm v(1);
    thread_atomics const a;
    uint32_t code = 0;  // plain
    uint32_t started = 0;
    std::thread starter([&] {
        auto const to = signals(v, 0);
        for (uint32_t round = 1; round <= rounds; ++round) {
            code = round;
            to.init();
            to.startup(static_cast<uint8_t>(round));
            if (round % 2 == 0) to.startup(static_cast<uint8_t>(round + 1));  // as kernels do: goes by
            to.kick();
            while (a.ref(started).load(order::acquire) != round) std::this_thread::yield();
        }
    });
    vcpu self(v, 0, false);
    uint32_t wrong = 0;
    for (uint32_t round = 1; round <= rounds; ++round) {
        auto const step = self.run_until([](host::halt_action action) { return action == host::halt_action::start; });
        wrong += code != round || step.vector != static_cast<uint8_t>(round);
        a.ref(started).store(round, order::release);
    }
    starter.join();
    CHECK(wrong == 0);
}
