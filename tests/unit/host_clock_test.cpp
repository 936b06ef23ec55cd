// SPDX-License-Identifier: MIT
#include <pvx/host/clock.hpp>

#include <pvx/guest/clock.hpp>

#include <cstring>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/fake_environment.hpp"
#include "support/fake_machine.hpp"
#include "support/recording_atomics.hpp"

using namespace pvx;
using namespace pvx::host;
using namespace pvx_test;
using kind = recorded::kind;

namespace {

constexpr uint32_t system_time = 0x4b564d01, system_time_old = 0x12, wall_clock = 0x4b564d00, wall_clock_old = 0x11;
constexpr uint64_t page = 0x1000;
constexpr uint8_t stable = abi::pvclock_tsc_stable, stopped = abi::pvclock_guest_stopped;

struct clock_plan {
    recording notes;
    host_state host;
    clock_reading now{tsc_ticks{0x1122334455667788}, nanoseconds{0x99aabbccddeeff00}, 3000000000, true};
    nanoseconds at_zero{};
    uint32_t readings = 0;
};

struct clock_host : fake_environment<recording_atomics> {
    clock_plan* plan;

    explicit clock_host(clock_plan& p) : fake_environment(p.host, recording_atomics{p.notes}), plan(&p) {}
    clock_reading read_clock() const {
        ++plan->readings;
        return plan->now;
    }
    nanoseconds wall_clock_at_zero() const { return plan->at_zero; }
};

struct vcpu {
    clock_plan plan;
    abi::pvclock_vcpu_time_info record{};
    host::kvm_clock<clock_host> clock{clock_host(plan)};

    vcpu() { plan.host.memory = {{page, &record}}; }
    vcpu(vcpu const&) = delete;

    void registers(uint64_t value, uint32_t index = system_time) {
        REQUIRE(clock.write_msr(index, value) == msr_outcome::done);
    }
    void enters() {
        plan.notes.steps.clear();
        plan.host.log.clear();
        clock.enter();
    }
};

/// The same by wide arithmetic.
clock_rate by_division(uint64_t hz) {
    __extension__ typedef unsigned __int128 wide;
    for (int shift = 30; shift > -40; --shift) {
        wide const mul = (wide{1000000000} << 72) / (wide{hz} << (40 + shift));
        if (mul >= uint64_t{1} << 31 && mul < uint64_t{1} << 32)
            return {static_cast<uint32_t>(mul), static_cast<int8_t>(shift)};
    }
    return {};
}

}  // namespace

// --- the rate --------------------------------------------------------------------------------------------------------

TEST_CASE("The clock's rate is the exact fraction, cut to 32 significant bits, for any TSC", "[host][clock]") {
    CHECK(make_clock_rate(0) == clock_rate{0, 0});
    CHECK(make_clock_rate(1000000000) == clock_rate{0x80000000, 1});
    CHECK(make_clock_rate(2000000000) == clock_rate{0x80000000, 0});
    CHECK(make_clock_rate(3000000000) == clock_rate{0xaaaaaaaa, -1});
    CHECK(make_clock_rate(4000000000) == clock_rate{0x80000000, -1});
    CHECK(make_clock_rate(1) == clock_rate{0xee6b2800, 30});
    CHECK(make_clock_rate(999999999) == clock_rate{0x80000002, 1});
    CHECK(make_clock_rate(1000000001) == clock_rate{0xfffffffb, 0});
    CHECK(make_clock_rate(~uint64_t{0}) == clock_rate{0xee6b2800, -34});
    static_assert(make_clock_rate(2400000000) == clock_rate{0xd5555555, -1});
    uint64_t hz = 1;
    for (int i = 0; i < 20000; ++i) {
        hz = hz * 6364136223846793005u + 1442695040888963407u;
        for (uint64_t rate : {hz, hz >> 32, hz >> 30, (hz >> 33) + 1, hz >> 52}) {
            if (rate == 0) continue;
            CAPTURE(rate);
            REQUIRE(make_clock_rate(rate) == by_division(rate));
        }
    }
}

TEST_CASE("A guest gets back the kHz that the rate was made of", "[host][clock]") {
    for (uint64_t khz = 500000; khz < 6000000; khz += 33334) {
        CAPTURE(khz);
        clock_rate const rate = make_clock_rate(khz * 1000);
        uint64_t const read = abi::pvclock_tsc_khz(rate.mul, rate.shift);
        // What is shifted out on the way to a rate below 2 GHz does not come back.
        CHECK((read <= khz && read + (1u << (rate.shift < 0 ? -rate.shift : 0)) > khz));
    }
    CHECK(abi::pvclock_tsc_khz(0xaaaaaaaa, -1) == 3000000);
}

TEST_CASE("A day of ticks is never too long, and short by 41 microseconds at most", "[host][clock]") {
    for (uint64_t hz :
         {uint64_t{1000000}, uint64_t{999999999}, uint64_t{2399999123}, uint64_t{3000000000}, uint64_t{5100000007}}) {
        CAPTURE(hz);
        clock_rate const rate = make_clock_rate(hz);
        uint64_t const ns = abi::pvclock_scale(tsc_ticks{hz * 86400}, rate.mul, rate.shift).value;
        uint64_t const day = 86400000000000;
        CHECK(ns <= day);
        CHECK(day - ns <= 41000);
    }
}

// --- the record ------------------------------------------------------------------------------------------------------

TEST_CASE("The record is written at the next entry, by its version protocol, and once", "[host][clock]") {
    vcpu v;
    std::memset(static_cast<void*>(&v.record), 0, sizeof v.record);
    v.registers(page | 1);
    CHECK(v.plan.notes.steps.empty());
    CHECK(v.plan.host.maps == 0);
    v.enters();
    CHECK(v.record.version == 2);
    CHECK(v.record.pad0 == 0);
    CHECK(v.record.tsc_timestamp == 0x1122334455667788);
    CHECK(v.record.system_time == 0x99aabbccddeeff00);
    CHECK(v.record.tsc_to_system_mul == 0xaaaaaaaa);
    CHECK(v.record.tsc_shift == 0xff);
    CHECK(v.record.flags == stable);
    CHECK((v.record.pad[0] == 0 && v.record.pad[1] == 0));
    CHECK(v.plan.host.log == std::vector<std::string>{"dirty " + hex(page)});

    // version odd, fence, the fields, version even: nothing before, nothing between, nothing after.
    auto const& steps = v.plan.notes.steps;
    REQUIRE(steps.size() == 12);
    CHECK(steps[0].what == kind::load);
    CHECK((steps[1].what == kind::store && steps[1].value == 1));
    CHECK((steps[2].what == kind::fence && steps[2].order == order::release.builtin));
    for (size_t i = 3; i < 11; ++i) CHECK((steps[i].what != kind::store || steps[i].word != &v.record.version));
    CHECK((steps[11].what == kind::store && steps[11].value == 2 && steps[11].order == order::release.builtin));

    v.enters();
    CHECK(v.plan.notes.steps.empty());
    CHECK(v.plan.readings == 1);
}

TEST_CASE("A record with an odd version, or one that wraps, becomes even again", "[host][clock]") {
    for (uint32_t was : {0u, 1u, 2u, 7u, 0xfffffffdu, 0xfffffffeu, 0xffffffffu}) {
        CAPTURE(was);
        vcpu v;
        v.record.version = was;
        v.registers(page | 1);
        v.enters();
        CHECK(v.record.version % 2 == 0);
        CHECK(v.record.version != was);
    }
}

TEST_CASE("The guest's half reads what the host's half writes", "[host][clock]") {
    vcpu v;
    v.plan.now = {tsc_ticks{1000}, nanoseconds{5000}, 2000000000, true};
    v.registers(page | 1);
    v.enters();
    fake_state machine;
    machine.apic_ids = {apic_id{0}};
    machine.records = {{0, &v.record}};
    machine.on_tsc = [] { return uint64_t{3000}; };
    guest::kvm_clock<fake_machine> const guest(fake_machine(machine), {system_time, wall_clock}, true);
    guest::clock_sample sample;
    REQUIRE(guest.sample_bounded(cpu_index{0}, sample));
    CHECK(sample.time == nanoseconds{6000});
    CHECK(sample.stable);
    CHECK(guest.tsc_khz(cpu_index{0}) == 2000000);
}

TEST_CASE("The stable flag is the VMM's to give, and not for the deprecated number", "[host][clock]") {
    for (bool said : {true, false})
        for (uint32_t index : {system_time, system_time_old}) {
            CAPTURE(said, index);
            vcpu v;
            v.plan.now.stable = said;
            v.record.flags = 0xfd;
            v.registers(page | 1, index);
            v.enters();
            CHECK(v.record.flags == (said && index == system_time ? stable : 0));
        }
    vcpu v;  // the number that was used last decides
    v.registers(page | 1, system_time_old);
    v.registers(page | 1, system_time);
    v.enters();
    CHECK(v.record.flags == stable);
}

TEST_CASE("A pause is told once, and stays told until the guest has seen it", "[host][clock]") {
    vcpu v;
    CHECK(v.clock.guest_stopped() == status::no_record);
    v.registers(page | 1);
    v.enters();
    REQUIRE(v.clock.guest_stopped() == status::ok);
    CHECK(v.record.flags == stable);
    v.enters();
    CHECK(v.record.flags == (stable | stopped));
    v.clock.mark_changed();
    v.enters();
    CHECK(v.record.flags == (stable | stopped));
    v.record.flags &= static_cast<uint8_t>(~stopped);  // the guest's watchdog
    v.clock.mark_changed();
    v.enters();
    CHECK(v.record.flags == stable);
}

TEST_CASE("A pause is not forgotten while the record is out of reach, nor carried over a reset", "[host][clock]") {
    vcpu v;
    v.registers(page | 1);
    v.plan.host.memory.clear();
    REQUIRE(v.clock.guest_stopped() == status::ok);
    v.enters();
    v.plan.host.memory = {{page, &v.record}};
    v.clock.mark_changed();
    v.enters();
    CHECK(v.record.flags == (stable | stopped));

    REQUIRE(v.clock.guest_stopped() == status::ok);
    v.clock.reset();
    v.record.flags = 0;
    v.registers(page | 1);
    v.enters();
    CHECK(v.record.flags == stable);
}

TEST_CASE("A change of the clock is written at the next entry, with the new rate", "[host][clock]") {
    vcpu v;
    v.registers(page | 1);
    v.enters();
    v.plan.now.tsc_hz = 2000000000;
    v.plan.now.time = nanoseconds{7};
    v.enters();
    CHECK(v.record.system_time != 7);
    v.clock.mark_changed();
    v.enters();
    CHECK(v.record.system_time == 7);
    CHECK(v.record.tsc_to_system_mul == 0x80000000);
    CHECK(v.record.tsc_shift == 0);
    CHECK(v.record.version == 4);
}

TEST_CASE("A record of four-byte alignment is written, one across a page or not aligned is not", "[host][clock]") {
    for (uint64_t address : {0x1004u, 0x1fe0u, 0x1fdcu}) {
        CAPTURE(address);
        vcpu v;
        alignas(8) unsigned char memory[36] = {};
        v.plan.host.memory = {{address, memory + 4}};
        v.registers(address | 1);
        v.enters();
        uint64_t tsc = 0;
        std::memcpy(&tsc, memory + 12, 8);
        CHECK(tsc == 0x1122334455667788);
    }
    for (uint64_t address : {0x1002u, 0x1fe4u, 0x1ffcu}) {
        CAPTURE(address);
        vcpu v;
        v.registers(address | 1);
        v.enters();
        CHECK(v.plan.host.maps == 0);
        CHECK(v.clock.read_msr(system_time).value == (address | 1));
    }
}

TEST_CASE("Where the vCPU cannot sleep the record is looked for again, else when something changes", "[host][clock]") {
    for (bool sleepy : {true, false}) {
        CAPTURE(sleepy);
        vcpu v;
        v.plan.host.memory.clear();
        v.plan.host.sleepy = sleepy;
        v.registers(page | 1);
        v.enters();
        v.enters();
        CHECK(v.plan.host.maps == (sleepy ? 1 : 2));
        v.plan.host.memory = {{page, &v.record}};
        v.clock.mark_changed();
        v.enters();
        CHECK(v.record.version == 2);
    }
}

// --- the MSRs --------------------------------------------------------------------------------------------------------

TEST_CASE("The clock's MSRs take any value and read back as written, by both numbers", "[host][clock]") {
    for (uint32_t bit = 0; bit < 64; ++bit) {
        CAPTURE(bit);
        uint64_t const value = uint64_t{1} << bit;
        for (uint32_t index : {system_time, system_time_old, wall_clock, wall_clock_old}) {
            vcpu v;
            v.registers(value, index);
            bool const wall = index == wall_clock || index == wall_clock_old;
            for (uint32_t read : {system_time, system_time_old})
                CHECK(v.clock.read_msr(read) == msr_read{msr_outcome::done, wall ? 0 : value});
            for (uint32_t read : {wall_clock, wall_clock_old})
                CHECK(v.clock.read_msr(read) == msr_read{msr_outcome::done, wall ? value : 0});
        }
    }
    vcpu v;
    for (uint32_t index : {0x10u, 0x13u, 0x4b564cffu, 0x4b564d02u, 0x4b564d03u}) {
        CHECK(v.clock.write_msr(index, ~uint64_t{0}) == msr_outcome::not_ours);
        CHECK(v.clock.read_msr(index) == msr_read{msr_outcome::not_ours, 0});
    }
}

TEST_CASE("A clock that is not enabled, withdrawn or reset writes nothing", "[host][clock]") {
    vcpu v;
    v.registers(page);
    v.enters();
    v.registers(page | 1);
    v.registers(0);
    v.enters();
    v.registers(page | 1);
    v.clock.reset();
    v.enters();
    v.clock.mark_changed();
    v.enters();
    CHECK(v.plan.host.maps == 0);
    CHECK(v.clock.read_msr(system_time) == msr_read{msr_outcome::done, 0});
}

TEST_CASE("A clock that is registered elsewhere leaves its old record alone", "[host][clock]") {
    vcpu v;
    abi::pvclock_vcpu_time_info second{};
    v.plan.host.memory[0x2000] = &second;
    v.registers(page | 1);
    v.enters();
    v.registers(0x2000 | 1);
    v.enters();
    CHECK(v.record.version == 2);
    CHECK(second.version == 2);
    CHECK(v.plan.host.log == std::vector<std::string>{"dirty 0x2000"});
}

// --- the wall clock --------------------------------------------------------------------------------------------------

TEST_CASE("The wall clock is written once, when it is asked for", "[host][clock]") {
    for (uint32_t index : {wall_clock, wall_clock_old}) {
        vcpu v;
        abi::pvclock_wall_clock out{3, 9, 9};
        v.plan.host.memory[0x3004] = &out;
        v.plan.at_zero = nanoseconds{1700000000'123456789};
        v.registers(0x3004, index);
        CHECK(out.version == 6);
        CHECK(out.sec == 1700000000);
        CHECK(out.nsec == 123456789);
        CHECK(v.plan.host.log == std::vector<std::string>{"dirty 0x3004"});
        CHECK(v.plan.notes.count(kind::fence) == 1);
        auto const& steps = v.plan.notes.steps;
        REQUIRE(steps.size() == 6);
        CHECK((steps[1].value == 5 && steps[2].what == kind::fence && steps[5].value == 6));
        CHECK(steps[5].order == order::release.builtin);
        v.enters();
        v.clock.mark_changed();
        v.enters();
        CHECK(out.version == 6);
        v.plan.at_zero = nanoseconds{4294967295'999999999};  // in 2106
        v.registers(0x3004, index);
        CHECK(out.version == 8);
        CHECK(out.sec == 0xffffffff);
    }
}

TEST_CASE("A wall clock at 0, misaligned, across a page or nowhere is not written", "[host][clock]") {
    vcpu v;
    abi::pvclock_wall_clock out{};
    v.plan.host.memory[0] = &out;
    for (uint64_t address : {0x0u, 0x3001u, 0x3002u, 0x3ff8u, 0x3ffcu}) {
        v.registers(address, wall_clock);
        CHECK(v.plan.host.maps == 0);
    }
    v.registers(0x5000, wall_clock);
    CHECK(v.plan.host.maps == 1);
    CHECK(v.plan.notes.steps.empty());
    v.plan.host.memory[0x3ff4] = &out;
    v.registers(0x3ff4, wall_clock);
    CHECK(out.version == 2);
}

TEST_CASE("A wall clock that is out of reach where nothing may sleep is written by the next entry", "[host][clock]") {
    vcpu v;
    abi::pvclock_wall_clock out{};
    v.plan.at_zero = nanoseconds{7'000'000'009};
    v.plan.host.sleepy = false;
    v.registers(0x3004, wall_clock);
    v.enters();
    CHECK(out.version == 0);
    v.plan.host.memory[0x3004] = &out;
    v.plan.host.sleepy = true;
    v.enters();
    CHECK(out.version == 2);
    CHECK(out.sec == 7);
    CHECK(out.nsec == 9);
    v.enters();
    CHECK(out.version == 2);

    v.plan.host.memory.erase(0x3004);
    v.plan.host.sleepy = false;
    v.registers(0x3004, wall_clock);
    v.clock.reset();
    v.plan.host.memory[0x3004] = &out;
    v.enters();
    CHECK(out.version == 2);
}

TEST_CASE("A wall clock that is still to be written is so after a save, and forgotten by another state",
          "[host][clock]") {
    for (bool saved : {false, true}) {
        vcpu v;
        abi::pvclock_wall_clock out{}, at_zero{};
        v.plan.host.sleepy = false;
        v.registers(0x3004, wall_clock);
        host::clock_state const state = saved ? v.clock.save() : host::clock_state{};
        vcpu other;
        vcpu& to = saved ? other : v;
        to.plan.host.sleepy = true;
        to.plan.host.memory[0x3004] = &out;
        to.plan.host.memory[0] = &at_zero;
        REQUIRE(to.clock.restore(state) == status::ok);
        to.enters();
        CHECK(out.version == (saved ? 2 : 0));
        CHECK(at_zero.version == 0);
    }
    vcpu v;
    host::clock_state nowhere{};
    nowhere.wall_pending = 1;
    CHECK(v.clock.restore(nowhere) == status::bad_argument);
}

// --- saving ----------------------------------------------------------------------------------------------------------

TEST_CASE("A clock that is saved goes on elsewhere, with what it had still to say", "[host][clock]") {
    vcpu from, to;
    from.registers(page | 1, system_time_old);
    from.registers(0x3004, wall_clock);
    REQUIRE(from.clock.guest_stopped() == status::ok);
    clock_state const state = from.clock.save();
    REQUIRE(to.clock.restore(state) == status::ok);
    CHECK(to.clock.read_msr(system_time).value == (page | 1));
    CHECK(to.clock.read_msr(wall_clock).value == 0x3004);
    CHECK(to.plan.host.maps == 0);  // not the wall clock's: the guest's memory holds it
    to.enters();
    CHECK(to.record.version == 2);
    CHECK(to.record.flags == stopped);
    CHECK(to.clock.save().stopped == 0);
    CHECK(to.clock.save().old_msr == 1);
}

TEST_CASE("A clock's state that no save made is refused and changes nothing", "[host][clock]") {
    vcpu v;
    v.registers(page | 1);
    v.enters();
    clock_state const good = v.clock.save();
    std::vector<clock_state> bad(5, good);
    bad[0].version = 0;
    bad[1].version = 2;
    bad[2].pad = 1;
    bad[3].old_msr = 2;
    bad[4].stopped = 2;
    for (clock_state state : bad) {
        state.system_time = 0x2001;
        CHECK(v.clock.restore(state) == status::bad_argument);
        CHECK(v.clock.read_msr(system_time).value == (page | 1));
    }
    v.enters();
    CHECK(v.plan.readings == 1);
}
