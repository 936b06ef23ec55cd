// SPDX-License-Identifier: MIT
#include <pvx/guest/pv_wait.hpp>

#include <functional>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/recording_atomics.hpp"

using namespace pvx;
using namespace pvx::guest;
using namespace pvx_test;
using strings = std::vector<std::string>;

namespace {

constexpr uint32_t waited_for = 3;
constexpr uint32_t mask = 0xff;

/// One CPU, and what it does.
struct cpu_log {
    recording notes;
    strings done;
    bool interrupts = true;
    bool nmi = false;
    bool kicks = true;
    uint32_t word = 0x50000 | waited_for;
    uint8_t deferral = deferral::awake;
    uint32_t flushes = 0;
    std::function<void()> on_halt = [] {};
    std::function<void()> on_save = [] {};
    strings sent;

    cpu_log() {
        notes.after = [this](recorded const& r) {
            if (r.word == &word) done.emplace_back("look");
        };
    }
};

/// The hardware of that CPU. APIC ids are twice the index.
struct hardware : recording_atomics {
    cpu_log* log;

    struct irq_state {
        bool on;
    };

    explicit hardware(cpu_log& l) : recording_atomics(l.notes), log(&l) {}

    irq_state irq_save() const {
        irq_state const was{log->interrupts};
        log->interrupts = false;
        log->done.emplace_back("save");
        log->on_save();
        return was;
    }
    void irq_restore(irq_state state) const {
        log->done.emplace_back("restore");
        log->interrupts = state.on;
    }
    bool irqs_on(irq_state state) const { return state.on; }
    void relax() const { log->done.emplace_back("relax"); }
    void halt_irqs_off() const {
        CHECK_FALSE(log->interrupts);
        log->done.emplace_back("hlt");
        log->on_halt();
    }
    void enable_and_halt(irq_state state) const {
        CHECK(state.on);
        CHECK_FALSE(log->interrupts);
        log->done.emplace_back("sti;hlt");
        log->interrupts = true;
        log->on_halt();
    }
    uint64_t read_msr(uint32_t index) const {
        CHECK_FALSE(log->interrupts);
        log->done.emplace_back(index == 0x400000f0 ? "idle" : "another MSR");
        return 0;
    }
    void write_msr(uint32_t, uint64_t) const { FAIL("no MSR is written"); }
    void yield() const { log->done.emplace_back("yield"); }
    bool nmi_context() const { return log->nmi; }
    int64_t hypercall(uint64_t number, uint64_t a0, uint64_t a1, uint64_t a2, uint64_t a3) const {
        for (uint64_t v : {number, a0, a1, a2, a3}) log->sent.push_back(std::to_string(v));
        return 0;
    }
    void native_ipi(apic_id id, abi::apic_command command) const {
        log->sent.push_back(std::to_string(id.value));
        log->sent.push_back(std::to_string(command.value));
    }
    cpu_index self() const { return cpu_index{1}; }
    uint32_t possible_cpus() const { return 4; }
    apic_id apic(cpu_index cpu) const { return apic_id{cpu.value * 2}; }
};

struct kvm_machine : hardware, kvm_wait<kvm_machine> {
    using hardware::hardware;
    bool can_kick() const { return log->kicks; }
};

/// That has deferred flushes as well.
struct deferring_machine : hardware, kvm_wait<deferring_machine> {
    using hardware::hardware;
    bool can_kick() const { return log->kicks; }
    uint8_t& deferral(cpu_index cpu) const {
        CHECK(cpu == self());
        return log->deferral;
    }
    void flush_all_local() const { ++log->flushes; }
};

struct hyperv_machine : hardware, hyperv_wait<hyperv_machine> {
    using hardware::hardware;
    abi::apic_command wake_command() const { return abi::make_apic_command(abi::apic_delivery::fixed, 0xf3); }
};

struct yield_machine : hardware, yield_wait<yield_machine> {
    using hardware::hardware;
};

static_assert(wait_policy<kvm_machine> && wait_policy<deferring_machine> && wait_policy<hyperv_machine> &&
              wait_policy<yield_machine>);

template <class Machine>
strings wait(cpu_log& log) {
    log.done.clear();
    Machine{log}.wait(log.word, mask, waited_for);
    return log.done;
}

}  // namespace

TEST_CASE("A KVM guest that waits with interrupts on looks with them off, and halts with them on", "[guest][pv_wait]") {
    cpu_log log;
    CHECK(wait<kvm_machine>(log) == strings{"save", "look", "sti;hlt"});
    CHECK(log.interrupts);
    log.word = 1;
    CHECK(wait<kvm_machine>(log) == strings{"save", "look", "restore"});
    CHECK(log.interrupts);
}

TEST_CASE("A KVM guest that waits with interrupts off keeps them off", "[guest][pv_wait]") {
    cpu_log log;
    log.interrupts = false;
    CHECK(wait<kvm_machine>(log) == strings{"save", "look", "hlt", "restore"});
    CHECK_FALSE(log.interrupts);
    log.word = 1;
    CHECK(wait<kvm_machine>(log) == strings{"save", "look", "restore"});
    CHECK_FALSE(log.interrupts);
}

TEST_CASE("A KVM guest never halts without a kick, in an NMI, or for another value", "[guest][pv_wait]") {
    for (unsigned bits = 0; bits < 16; ++bits) {
        CAPTURE(bits);
        cpu_log log;
        bool const before = log.interrupts = (bits & 1) != 0;
        bool const same = (bits & 2) != 0;
        log.nmi = (bits & 4) != 0;
        log.kicks = (bits & 8) != 0;
        if (!same) log.word = 1;
        strings const done = wait<kvm_machine>(log);
        CHECK(log.interrupts == before);
        bool halted = false;
        bool paused = false;
        for (std::string const& what : done) {
            halted = halted || what == "hlt" || what == "sti;hlt";
            paused = paused || what == "relax";
        }
        bool const never = log.nmi || !log.kicks;
        CHECK(halted == (same && !never));
        CHECK(paused == never);
        if (never) CHECK(done == strings{"relax"});
    }
}

TEST_CASE("A change that comes before interrupts are off is seen", "[guest][pv_wait]") {
    cpu_log log;
    log.on_save = [&] { log.word = 1; };
    CHECK(wait<kvm_machine>(log) == strings{"save", "look", "restore"});
    log.word = waited_for;
    CHECK(wait<hyperv_machine>(log) == strings{"save", "look", "restore"});
}

TEST_CASE("A wait compares what the mask leaves", "[guest][pv_wait]") {
    for (uint32_t upper : {0u, 0x100u, 0xffff0000u}) {
        cpu_log log;
        log.word = upper | waited_for;
        CHECK(wait<kvm_machine>(log).back() == "sti;hlt");
        CHECK(wait<hyperv_machine>(log)[2] == "idle");
        CHECK(wait<yield_machine>(log).back() == "yield");
    }
}

TEST_CASE("A KVM kick names the APIC id, not the index", "[guest][pv_wait]") {
    for (uint32_t cpu : {0u, 1u, 2u}) {
        cpu_log log;
        kvm_machine{log}.kick(cpu_index{cpu});
        CHECK(log.sent == strings{"5", "0", std::to_string(2 * cpu), "0", "0"});
        log.sent.clear();
        log.kicks = false;
        kvm_machine{log}.kick(cpu_index{cpu});
        CHECK(log.sent.empty());
    }
}

TEST_CASE("Flushes are left to a halt with interrupts off, from before the look until after the halt",
          "[guest][pv_wait]") {
    cpu_log log;
    log.interrupts = false;
    uint8_t at_look = deferral::awake;
    uint8_t at_halt = deferral::awake;
    log.notes.after = [&](recorded const& r) {
        if (r.word == &log.word) at_look = log.deferral;
    };
    log.on_halt = [&] {
        at_halt = log.deferral;
        log.deferral |= deferral::pending;
    };
    CHECK(wait<deferring_machine>(log) == strings{"save", "hlt", "restore"});
    CHECK(at_look == deferral::asleep);
    CHECK(at_halt == deferral::asleep);
    CHECK(log.deferral == deferral::awake);
    CHECK(log.flushes == 1);

    // Also where it does not halt.
    log.word = 1;
    at_look = deferral::awake;
    CHECK(wait<deferring_machine>(log) == strings{"save", "restore"});
    CHECK(at_look == deferral::asleep);
    CHECK(log.deferral == deferral::awake);
}

TEST_CASE("No flush is left to a waiter that answers interrupts, cannot be kicked, or runs in an NMI",
          "[guest][pv_wait]") {
    for (unsigned how : {0u, 1u, 2u}) {
        cpu_log log;
        log.interrupts = how == 0;
        log.kicks = how != 1;
        log.nmi = how == 2;
        log.deferral = 0x80;
        static_cast<void>(wait<deferring_machine>(log));
        CHECK(log.deferral == 0x80);
        CHECK(log.flushes == 0);
    }
}

TEST_CASE("A Hyper-V guest looks and sleeps with interrupts off, whatever they were", "[guest][pv_wait]") {
    for (bool interrupts : {false, true}) {
        cpu_log log;
        log.interrupts = interrupts;
        CHECK(wait<hyperv_machine>(log) == strings{"save", "look", "idle", "restore"});
        CHECK(log.interrupts == interrupts);
        log.word = 1;
        CHECK(wait<hyperv_machine>(log) == strings{"save", "look", "restore"});
        CHECK(log.interrupts == interrupts);
        log.nmi = true;
        CHECK(wait<hyperv_machine>(log) == strings{"relax"});
    }
}

TEST_CASE("A Hyper-V kick is an IPI to the APIC id", "[guest][pv_wait]") {
    cpu_log log;
    hyperv_machine{log}.kick(cpu_index{2});
    CHECK(log.sent == strings{"4", std::to_string(0xf3)});
}

TEST_CASE("Without a host that wakes, a waiter gives up its CPU, and a kick does nothing", "[guest][pv_wait]") {
    cpu_log log;
    CHECK(wait<yield_machine>(log) == strings{"look", "yield"});
    log.word = 1;
    CHECK(wait<yield_machine>(log) == strings{"look"});
    yield_machine{log}.kick(cpu_index{1});
    CHECK(log.sent.empty());
}
