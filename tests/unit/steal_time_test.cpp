// SPDX-License-Identifier: MIT
#include <pvx/guest/steal_time.hpp>

#include <pvx/abi/kvm_clock.hpp>

#include <cstring>

#include "support/catch.hpp"
#include "support/fake_machine.hpp"

using namespace pvx::guest;
using pvx::cpu_index;
using pvx::nanoseconds;
using pvx::status;
using pvx::abi::kvm_steal_time;
using pvx_test::fake_machine;
using pvx_test::fake_state;

namespace {

constexpr uint32_t steal_msr = 0x4b564d03;

/// Two CPUs with a page each, filled with junk.
struct two_cpus {
    kvm_steal_time pages[2];
    fake_state state;

    two_cpus() {
        std::memset(static_cast<void*>(pages), 0xee, sizeof pages);
        state.apic_ids = {pvx::apic_id{0}, pvx::apic_id{4}};
        state.msrs[steal_msr] = 0;
        state.records = {{0, &pages[0]}, {1, &pages[1]}};
        state.physical_offset = 0x1000000;
    }
    uint64_t address(unsigned cpu) const { return reinterpret_cast<uintptr_t>(&pages[cpu]) + state.physical_offset; }
};

bool all_zero(kvm_steal_time const& page) {
    unsigned char bytes[sizeof page];
    std::memcpy(bytes, &page, sizeof page);
    for (unsigned char b : bytes)
        if (b != 0) return false;
    return true;
}

}  // namespace

TEST_CASE("Registering zeroes the page before the host is told its address", "[guest][steal_time]") {
    two_cpus t;
    bool zero_when_told = false;
    t.state.on_wrmsr = [&](uint32_t, uint64_t) { zero_when_told = all_zero(t.pages[1]); };
    REQUIRE(steal_time(fake_machine{t.state}).enable(cpu_index{1}) == status::ok);
    CHECK(zero_when_told);
    CHECK(t.state.msrs[steal_msr] == (t.address(1) | 1));
    CHECK(t.state.log.size() == 1);
    CHECK(t.pages[0].version == 0xeeeeeeee);
}

TEST_CASE("A guest that asks for the in-host bit says so in the MSR, and only then", "[guest][steal_time]") {
    for (bool ask : {false, true}) {
        two_cpus t;
        REQUIRE(steal_time(fake_machine{t.state}, ask).enable(cpu_index{1}) == status::ok);
        CHECK(t.state.msrs[steal_msr] == (t.address(1) | (ask ? 3 : 1)));
    }
}

TEST_CASE("Halted is not preempted: the in-host bit does not count", "[guest][steal_time]") {
    two_cpus t;
    t.pages[1].preempted = pvx::abi::proposed::steal_in_host;
    CHECK_FALSE(steal_time(fake_machine{t.state}, true).preempted(cpu_index{1}));
}

TEST_CASE("Dense records lie side by side, each where both sides look for it, and none beyond the last CPU",
          "[guest][record]") {
    static dense_records<kvm_steal_time, 3> all;
    constexpr pvx::guest_phys base{0xffffff000};
    for (uint32_t cpu = 0; cpu < 3; ++cpu) {
        pvx::shared<kvm_steal_time> const record = all.at(cpu_index{cpu}, base);
        CHECK(record.pointer == &all.records[cpu]);
        CHECK(record.address == pvx::guest_phys{base.value + 64 * cpu});
        CHECK(all_zero(*record.pointer));
    }
    for (uint32_t cpu : {3u, 4u, ~0u}) CHECK(all.at(cpu_index{cpu}, base).pointer == nullptr);
    CHECK(sizeof all == 3 * 64);
}

TEST_CASE("A page that was registered before is withdrawn first, so that the host never writes into the zeroing",
          "[guest][steal_time]") {
    two_cpus t;
    t.state.msrs[steal_msr] = 0xabc000 | 1;
    REQUIRE(steal_time(fake_machine{t.state}).enable(cpu_index{0}) == status::ok);
    REQUIRE(t.state.log.size() == 2);
    CHECK(t.state.log[0] == "wrmsr 0x4b564d03 0x0");
    CHECK(t.state.log[1] == "wrmsr 0x4b564d03 " + pvx_test::hex(t.address(0) | 1));
}

TEST_CASE("Going offline withdraws the page exactly once, and coming back zeroes and registers it again",
          "[guest][steal_time]") {
    two_cpus t;
    steal_time const steal(fake_machine{t.state});
    REQUIRE(steal.enable(cpu_index{0}) == status::ok);
    steal.disable();
    steal.disable();
    CHECK(t.state.log ==
          std::vector<std::string>{"wrmsr 0x4b564d03 " + pvx_test::hex(t.address(0) | 1), "wrmsr 0x4b564d03 0x0"});
    t.pages[0].steal = 77;
    REQUIRE(steal.enable(cpu_index{0}) == status::ok);
    CHECK(all_zero(t.pages[0]));
    CHECK(t.state.msrs[steal_msr] == (t.address(0) | 1));
}

TEST_CASE("A CPU without a page is refused and the host is told nothing", "[guest][steal_time]") {
    two_cpus t;
    CHECK(steal_time(fake_machine{t.state}).enable(cpu_index{7}) == status::no_record);
    CHECK(t.state.log.empty());
}

TEST_CASE("An address that is not a multiple of 64 is refused, for the guest or for the host", "[guest][steal_time]") {
    two_cpus t;
    t.state.physical_offset = 0x1000020;
    CHECK(steal_time(fake_machine{t.state}).enable(cpu_index{0}) == status::misaligned);
    CHECK(t.state.log.empty());
    t.state.physical_offset = 0x1000000;
    t.state.records[0] = reinterpret_cast<char*>(&t.pages[0]) + 32;
    CHECK(steal_time(fake_machine{t.state}).enable(cpu_index{0}) == status::misaligned);
    CHECK(t.state.log.empty());
}

TEST_CASE("The last 64 bytes of a page are a legal place", "[guest][steal_time]") {
    two_cpus t;
    alignas(4096) static unsigned char page[4096];
    t.state.records[0] = page + 0xfc0;
    t.state.physical_offset = 0;
    CHECK(steal_time(fake_machine{t.state}).enable(cpu_index{0}) == status::ok);
}

TEST_CASE("Private memory is opened to the host, then zeroed, then announced", "[guest][steal_time]") {
    two_cpus t;
    status answer = status::ok;
    REQUIRE(steal_time(pvx_test::private_machine{t.state, answer}).enable(cpu_index{0}) == status::ok);
    CHECK(t.state.log == std::vector<std::string>{"share " + pvx_test::hex(t.address(0)),
                                                  "wrmsr 0x4b564d03 " + pvx_test::hex(t.address(0) | 1)});
    CHECK(all_zero(t.pages[0]));
}

namespace {

struct share_not_const : fake_machine {
    template <class T>
    status share(pvx::shared<T>);
};
struct share_by_reference : fake_machine {
    template <class T>
    status share(pvx::shared<T>&) const;
};
struct share_of_two_arguments : fake_machine {
    status share(void*, uint64_t) const;
};
struct share_of_one_record : fake_machine {
    status share(pvx::shared<kvm_steal_time>) const;
};

}  // namespace

TEST_CASE("A share() that is not quite right is noticed by its name, and not taken for none", "[guest][steal_time]") {
    STATIC_REQUIRE_FALSE(names_share<fake_machine>);
    STATIC_REQUIRE(names_share<pvx_test::private_machine>);
    STATIC_REQUIRE(names_share<share_not_const>);
    STATIC_REQUIRE(names_share<share_by_reference>);
    STATIC_REQUIRE(names_share<share_of_two_arguments>);
    STATIC_REQUIRE(names_share<share_of_one_record>);
    STATIC_REQUIRE_FALSE(sharing_policy<share_not_const, kvm_steal_time>);
    STATIC_REQUIRE_FALSE(sharing_policy<share_of_one_record, pvx::abi::pvclock_vcpu_time_info>);
}

TEST_CASE("Memory that cannot be opened to the host is never announced", "[guest][steal_time]") {
    two_cpus t;
    status answer = status::not_shared;
    CHECK(steal_time(pvx_test::private_machine{t.state, answer}).enable(cpu_index{0}) == status::not_shared);
    CHECK(t.state.log.size() == 1);
    CHECK(t.state.msrs[steal_msr] == 0);
}

TEST_CASE("Reading another CPU's page waits while its host is in an update and then gives the new value",
          "[guest][steal_time]") {
    two_cpus t;
    t.pages[1] = {};
    t.pages[1].version = 5;
    t.pages[1].steal = 1;
    unsigned waits = 0;
    t.state.on_relax = [&] {
        if (++waits < 3) return;
        t.pages[1].steal = 12345;
        t.pages[1].version = 6;
    };
    CHECK(steal_time(fake_machine{t.state}).read(cpu_index{1}) == nanoseconds{12345});
    CHECK(waits == 3);
}

TEST_CASE("A bounded read gives up in an update and leaves the last value alone", "[guest][steal_time]") {
    two_cpus t;
    t.pages[0] = {};
    t.pages[0].version = 1;
    steal_time const steal(fake_machine{t.state});
    nanoseconds last{42};
    CHECK_FALSE(steal.read_bounded(cpu_index{0}, last));
    CHECK(last == nanoseconds{42});
    t.pages[0].version = 2;
    t.pages[0].steal = 50;
    CHECK(steal.read_bounded(cpu_index{0}, last));
    CHECK(last == nanoseconds{50});
}

TEST_CASE("Only bit 0 of the byte means preempted", "[guest][steal_time]") {
    two_cpus t;
    steal_time const steal(fake_machine{t.state});
    for (unsigned value = 0; value < 256; ++value) {
        t.pages[1].preempted = static_cast<uint8_t>(value);
        CHECK(steal.preempted(cpu_index{1}) == ((value & 1) != 0));
    }
}

TEST_CASE("What was stolen is charged exactly where it fits into the time that passed", "[guest][steal_account]") {
    steal_account account(nanoseconds{1000});
    CHECK(account.charge(nanoseconds{1000}, nanoseconds{10}) == nanoseconds{0});
    CHECK(account.charge(nanoseconds{1007}, nanoseconds{10}) == nanoseconds{7});
    CHECK(account.charge(nanoseconds{1017}, nanoseconds{10}) == nanoseconds{10});
}

TEST_CASE("More than the time that passed is carried over, not lost", "[guest][steal_account]") {
    steal_account account(nanoseconds{0});
    CHECK(account.charge(nanoseconds{15}, nanoseconds{10}) == nanoseconds{10});
    CHECK(account.charge(nanoseconds{15}, nanoseconds{10}) == nanoseconds{5});
    CHECK(account.charge(nanoseconds{15}, nanoseconds{10}) == nanoseconds{0});
}

TEST_CASE("A preemption between the caller's look at the clock and at its steal time is charged in full",
          "[guest][steal_account]") {
    constexpr uint64_t ms = 1000000;
    steal_account account(nanoseconds{0});
    uint64_t charged = account.charge(nanoseconds{100 * ms}, nanoseconds{1 * ms}).value;
    charged += account.charge(nanoseconds{100 * ms}, nanoseconds{101 * ms}).value;
    CHECK(charged == 100 * ms);
}

TEST_CASE("A preemption between the looks in the other order is made up by the ticks that follow",
          "[guest][steal_account]") {
    constexpr uint64_t ms = 1000000;
    steal_account account(nanoseconds{0});
    uint64_t charged = account.charge(nanoseconds{0}, nanoseconds{101 * ms}).value;
    for (unsigned tick = 0; tick < 100; ++tick)
        charged += account.charge(nanoseconds{100 * ms}, nanoseconds{1 * ms}).value;
    CHECK(charged == 100 * ms);
}

TEST_CASE("A jump of the host's counter is not charged for ever after", "[guest][steal_account]") {
    constexpr uint64_t jump = 10 * steal_account::max_carry;
    steal_account account(nanoseconds{0});
    CHECK(account.charge(nanoseconds{jump}, nanoseconds{10}) == nanoseconds{10});
    CHECK(account.charge(nanoseconds{jump}, nanoseconds{10}) == nanoseconds{0});
    CHECK(account.charge(nanoseconds{jump + 3}, nanoseconds{10}) == nanoseconds{3});
}

TEST_CASE("A counter that goes back is a new baseline and charges nothing", "[guest][steal_account]") {
    steal_account account(nanoseconds{5000});
    CHECK(account.charge(nanoseconds{40}, nanoseconds{10}) == nanoseconds{0});
    CHECK(account.charge(nanoseconds{44}, nanoseconds{10}) == nanoseconds{4});
}

TEST_CASE("Nothing is charged, and nothing is lost, where no time has passed", "[guest][steal_account]") {
    steal_account account(nanoseconds{0});
    CHECK(account.charge(nanoseconds{5}, nanoseconds{0}) == nanoseconds{0});
    CHECK(account.charge(nanoseconds{5}, nanoseconds{10}) == nanoseconds{5});
}

TEST_CASE("A charge never exceeds the time that passed, whatever the host writes", "[guest][steal_account]") {
    uint64_t const readings[] = {0,           1, 9, 10, 11, 19, 20, 21, 1u << 20, uint64_t{1} << 63, ~uint64_t{0} - 3,
                                 ~uint64_t{0}};
    for (uint64_t start : readings)
        for (uint64_t first : readings)
            for (uint64_t second : readings)
                for (uint64_t elapsed : {uint64_t{0}, uint64_t{1}, uint64_t{10}, uint64_t{1} << 63, ~uint64_t{0}}) {
                    steal_account account(nanoseconds{start});
                    CHECK_FALSE(elapsed < account.charge(nanoseconds{first}, nanoseconds{elapsed}).value);
                    CHECK_FALSE(elapsed < account.charge(nanoseconds{second}, nanoseconds{elapsed}).value);
                }
}
