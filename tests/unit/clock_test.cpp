// SPDX-License-Identifier: MIT
#include <pvx/guest/clock.hpp>

#include <cstring>

#include "support/catch.hpp"
#include "support/fake_machine.hpp"

using namespace pvx::guest;
using pvx::cpu_index;
using pvx::nanoseconds;
using pvx::status;
using pvx::abi::pvclock_vcpu_time_info;
using pvx::abi::pvclock_wall_clock;
using pvx_test::fake_machine;
using pvx_test::fake_state;

namespace {

constexpr clock_msrs new_msrs{0x4b564d01, 0x4b564d00};

/// Two CPUs whose clocks run at 1 GHz: one tick is one nanosecond.
struct two_clocks {
    pvclock_vcpu_time_info records[2];
    fake_state state;
    uint64_t tsc = 0;

    two_clocks() {
        for (auto& r : records) {
            r = {};
            r.version = 2;
            r.tsc_to_system_mul = 1u << 31;
            r.tsc_shift = 1;
        }
        state.apic_ids = {pvx::apic_id{0}, pvx::apic_id{1}};
        state.msrs = {{0x4b564d00, 0}, {0x4b564d01, 0}};
        state.records = {{0, &records[0]}, {1, &records[1]}};
        state.on_tsc = [this] { return tsc; };
    }
};

}  // namespace

TEST_CASE("The new clock MSRs are chosen where both pairs are offered", "[guest][clock]") {
    features f;
    f.kvm_bits = (1u << 0) | (1u << 3);
    CHECK(choose_clock_msrs(f).system_time == 0x4b564d01);
    CHECK(choose_clock_msrs(f).wall_clock == 0x4b564d00);
    f.kvm_bits = 1u << 0;
    CHECK(choose_clock_msrs(f).system_time == 0x12);
    CHECK(choose_clock_msrs(f).wall_clock == 0x11);
}

TEST_CASE("Registering a clock zeroes its record and gives address and enable bit", "[guest][clock]") {
    two_clocks t;
    kvm_clock c(fake_machine{t.state}, new_msrs, true);
    REQUIRE(c.enable(cpu_index{1}) == status::ok);
    CHECK(t.records[1].version == 0);
    CHECK(t.state.msrs[0x4b564d01] == (reinterpret_cast<uintptr_t>(&t.records[1]) | 1));
    c.disable();
    c.disable();
    CHECK(t.state.log.size() == 2);
    CHECK(t.state.msrs[0x4b564d01] == 0);
}

TEST_CASE("Time is the record's time plus the scaled ticks since", "[guest][clock]") {
    two_clocks t;
    t.records[0].tsc_timestamp = 1000;
    t.records[0].system_time = 500000;
    t.tsc = 1300;
    kvm_clock c(fake_machine{t.state}, new_msrs, true);
    CHECK(c.now() == nanoseconds{500300});
}

TEST_CASE("A TSC below the record's timestamp gives the record's time", "[guest][clock]") {
    two_clocks t;
    t.records[0].tsc_timestamp = 1000;
    t.records[0].system_time = 500000;
    t.tsc = 990;
    kvm_clock c(fake_machine{t.state}, new_msrs, true);
    CHECK(c.now() == nanoseconds{500000});
}

TEST_CASE("The TSC is read inside the counter, so a vCPU that moves in between reads again", "[guest][clock]") {
    two_clocks t;
    unsigned reads = 0;
    t.state.on_tsc = [&]() -> uint64_t {
        if (++reads == 1) {  // the host moves the vCPU: another TSC, another record
            t.records[0].version += 2;
            t.records[0].tsc_timestamp = 9000000;
            t.records[0].system_time = 2000;
        }
        return 9000010;
    };
    kvm_clock c(fake_machine{t.state}, new_msrs, true);
    CHECK(c.now() == nanoseconds{2010});
    CHECK(reads == 2);
}

TEST_CASE("Without the stable flag no CPU gets a time before one that another was given", "[guest][clock]") {
    two_clocks t;
    t.records[0].system_time = 1000;
    t.records[1].system_time = 400;
    kvm_clock c(fake_machine{t.state}, new_msrs, true);
    CHECK(c.now() == nanoseconds{1000});
    t.state.self = cpu_index{1};
    CHECK(c.now() == nanoseconds{1000});
    t.tsc = 601;
    CHECK(c.now() == nanoseconds{1001});
    t.state.self = cpu_index{0};
    t.tsc = 0;
    CHECK(c.now() == nanoseconds{1001});
}

TEST_CASE("With the stable flag each CPU's own time is given out as it is", "[guest][clock]") {
    two_clocks t;
    for (auto& r : t.records) r.flags = pvx::abi::pvclock_tsc_stable;
    t.records[0].system_time = 1000;
    t.records[1].system_time = 999;
    kvm_clock c(fake_machine{t.state}, new_msrs, true);
    CHECK(c.now() == nanoseconds{1000});
    t.state.self = cpu_index{1};
    CHECK(c.now() == nanoseconds{999});
}

TEST_CASE("A host that sets its stable flag later does not undercut a time that was given out before",
          "[guest][clock]") {
    two_clocks t;
    t.records[0].system_time = 1000;
    kvm_clock c(fake_machine{t.state}, new_msrs, true);
    CHECK(c.now() == nanoseconds{1000});
    for (auto& r : t.records) {
        r.system_time = 950;
        r.flags = pvx::abi::pvclock_tsc_stable;
        r.version += 2;
    }
    t.state.self = cpu_index{1};
    CHECK(c.now() == nanoseconds{1000});
}

TEST_CASE("A host that takes its stable flag back is the stated limit: what was given out before is not written down",
          "[guest][clock]") {
    two_clocks t;
    for (auto& r : t.records) r.flags = pvx::abi::pvclock_tsc_stable;
    t.records[0].system_time = 1000;
    kvm_clock c(fake_machine{t.state}, new_msrs, true);
    CHECK(c.now() == nanoseconds{1000});
    t.records[1].flags = 0;
    t.records[1].system_time = 990;
    t.state.self = cpu_index{1};
    CHECK(c.now() == nanoseconds{990});
}

TEST_CASE("A record that the host has not filled in gives no time", "[guest][clock]") {
    two_clocks t;
    t.records[0] = {};
    t.tsc = 12345;
    kvm_clock c(fake_machine{t.state}, new_msrs, true);
    nanoseconds last{7};
    CHECK_FALSE(c.now_bounded(last));
    CHECK(last == nanoseconds{7});
}

namespace {

/// Another CPU wins every race for a word: each compare-and-swap finds it a little higher.
struct losing_ref : pvx::builtin_atomic_ref<uint64_t> {
    uint64_t* word;
    unsigned* attempts;

    losing_ref(uint64_t& w, unsigned& a) : builtin_atomic_ref(w), word(&w), attempts(&a) {}
    bool compare_exchange(uint64_t& found, uint64_t, pvx::rmw_order auto, pvx::load_order auto) const {
        ++*attempts;
        found = ++*word;
        return false;
    }
};
struct losing_machine : fake_machine {
    unsigned* attempts;

    losing_machine(fake_state& s, unsigned& a) : fake_machine(s), attempts(&a) {}
    using fake_machine::ref;
    losing_ref ref(uint64_t& w) const { return {w, *attempts}; }
};

}  // namespace

TEST_CASE("The bounded read is bounded too where other CPUs always write the latest time first", "[guest][clock]") {
    two_clocks t;
    t.records[0].system_time = 1000;
    unsigned attempts = 0;
    kvm_clock c(losing_machine{t.state, attempts}, new_msrs, true);
    nanoseconds time;
    REQUIRE(c.now_bounded(time));
    CHECK(attempts == 1);
    CHECK(time == nanoseconds{1});  // what the other CPU wrote: newer than anything before this call
}

TEST_CASE("A stable flag that the host does not offer is not believed", "[guest][clock]") {
    two_clocks t;
    for (auto& r : t.records) r.flags = pvx::abi::pvclock_tsc_stable;
    t.records[0].system_time = 1000;
    kvm_clock c(fake_machine{t.state}, new_msrs, false);
    CHECK(c.now() == nanoseconds{1000});
    t.state.self = cpu_index{1};
    CHECK(c.now() == nanoseconds{1000});
}

TEST_CASE("The bounded read gives up in an update and leaves the last time alone", "[guest][clock]") {
    two_clocks t;
    t.records[0].version = 3;
    kvm_clock c(fake_machine{t.state}, new_msrs, true);
    nanoseconds last{5};
    CHECK_FALSE(c.now_bounded(last));
    CHECK(last == nanoseconds{5});
    t.state.on_relax = [&] { t.records[0].version = 4; };
    CHECK(c.now() == nanoseconds{0});
    CHECK(c.now_bounded(last));
    CHECK(last == nanoseconds{0});
}

TEST_CASE("The rate of the TSC comes from the record, and is 0 before the host filled it in", "[guest][clock]") {
    two_clocks t;
    kvm_clock c(fake_machine{t.state}, new_msrs, true);
    CHECK(c.tsc_khz(cpu_index{0}) == 1000000);
    t.records[1].tsc_to_system_mul = 0;
    CHECK(c.tsc_khz(cpu_index{1}) == 0);
}

TEST_CASE("Junk from the host in every field of a record is harmless", "[guest][clock]") {
    two_clocks t;
    std::memset(static_cast<void*>(&t.records[0]), 0xff, sizeof t.records[0]);
    t.records[0].version = 0xfffffffe;
    kvm_clock c(fake_machine{t.state}, new_msrs, true);
    for (unsigned shift = 0; shift < 256; ++shift) {
        t.records[0].tsc_shift = static_cast<uint8_t>(shift);
        t.tsc = ~uint64_t{0};
        (void)c.now();
        (void)c.tsc_khz(cpu_index{0});
    }
    SUCCEED("no undefined behaviour, which the sanitizers would have caught");
}

TEST_CASE("The wall clock is what the host wrote while the MSR was written", "[guest][clock]") {
    two_clocks t;
    pvclock_wall_clock scratch{9, 9, 9};
    kvm_clock c(fake_machine{t.state}, new_msrs, true);
    t.state.on_wrmsr = [&](uint32_t, uint64_t) { scratch = {2, 4000000000u, 7}; };
    nanoseconds at_zero;
    REQUIRE(c.wall_clock_at_zero({&scratch, pvx::guest_phys{0x2004}}, at_zero) == status::ok);
    CHECK(at_zero == nanoseconds{4000000000000000007u});
    CHECK(t.state.log == std::vector<std::string>{"wrmsr 0x4b564d00 0x2004"});
}

TEST_CASE("A wall clock that the host does not fill in, or leaves half written, is no answer", "[guest][clock]") {
    two_clocks t;
    pvclock_wall_clock scratch{};
    kvm_clock c(fake_machine{t.state}, new_msrs, true);
    nanoseconds at_zero{1};
    CHECK(c.wall_clock_at_zero({&scratch, pvx::guest_phys{0x2000}}, at_zero) == status::no_answer);
    t.state.on_wrmsr = [&](uint32_t, uint64_t) { scratch = {3, 1, 1}; };
    CHECK(c.wall_clock_at_zero({&scratch, pvx::guest_phys{0x2000}}, at_zero) == status::no_answer);
    CHECK(at_zero == nanoseconds{1});
}

TEST_CASE("The wall clock's place must be there and a multiple of 4", "[guest][clock]") {
    two_clocks t;
    pvclock_wall_clock scratch{};
    kvm_clock c(fake_machine{t.state}, new_msrs, true);
    nanoseconds at_zero;
    CHECK(c.wall_clock_at_zero({&scratch, pvx::guest_phys{0x2002}}, at_zero) == status::misaligned);
    CHECK(c.wall_clock_at_zero({&scratch, pvx::guest_phys{0}}, at_zero) == status::no_record);
    CHECK(c.wall_clock_at_zero({}, at_zero) == status::no_record);
    CHECK(t.state.log.empty());
}
