// SPDX-License-Identifier: MIT
#include <pvx/host/apic_restore.hpp>
#include <pvx/host/apic_state.hpp>
#include <pvx/host/apic_words.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/recording_atomics.hpp"

using namespace pvx;
using namespace pvx::host;
using namespace pvx_test;
using abi::apic_delivery;
using enum apic_change;

namespace {

constexpr uint32_t base_msr = 0x1b;
constexpr uint64_t page = 0xfee00000, en = 0x800, extd = 0x400, bsp = 0x100;
constexpr apic_offer offer{.physical_bits = 46, .x2apic = true};
constexpr uint32_t on = 0x1ff, off = 0xff;  // of the SVR

constexpr apic_write done(apic_change changes) { return {msr_outcome::done, changes}; }
constexpr apic_write fault{msr_outcome::fault, {}};
constexpr apic_write not_ours{msr_outcome::not_ours, {}};

/// By the two bits of the manual's figure.
enum class state { disabled, xapic, x2apic };
constexpr state all_states[] = {state::disabled, state::xapic, state::x2apic};
constexpr uint64_t bits_of(state s) { return s == state::disabled ? 0 : s == state::xapic ? en : en | extd; }

bool write_base(apic_state<>& apic, uint64_t value) {
    return apic.write_msr(offer, base_msr, value).outcome == msr_outcome::done;
}

/// An AP's APIC in that state, software-enabled where that is possible, by ways that are legal.
apic_state<> apic_in(state s, uint32_t id = 5) {
    apic_state<> apic(apic_id{id}, false);
    if (s == state::disabled) {
        REQUIRE(write_base(apic, page));
        return apic;
    }
    REQUIRE(apic.write_page(offer, 0xf0, on) == done(map));
    if (s == state::x2apic) REQUIRE(write_base(apic, page | en | extd));
    return apic;
}

bool same(apic_state<> const& a, apic_state<> const& b) {
    apic_saved const x = a.save(), y = b.save();
    return std::memcmp(&x, &y, sizeof x) == 0 && a.word() == b.word();
}

}  // namespace

// --- IA32_APIC_BASE --------------------------------------------------------------------------------------------------

TEST_CASE("Modes follow one another as the manual's figure has it, and all else faults", "[host][apic_state]") {
    // From each state, to each value of the two bits: disabled, EXTD alone, xAPIC, x2APIC.
    constexpr bool legal[3][4] = {{true, false, true, false}, {true, false, true, true}, {true, false, false, true}};
    constexpr uint64_t written[4] = {0, extd, en, en | extd};
    for (state from : all_states)
        for (size_t to = 0; to < 4; ++to) {
            CAPTURE(static_cast<int>(from), to);
            bool const ok = legal[static_cast<size_t>(from)][to];
            apic_state<> apic = apic_in(from);
            apic_state<> const before = apic;
            CHECK(write_base(apic, page | written[to]) == ok);
            CHECK(apic.base() == page + (ok ? written[to] : bits_of(from)));
            if (!ok) CHECK(same(apic, before));
            CHECK(may_become(abi::apic_mode_of(bits_of(from)), abi::apic_mode_of(written[to])) == ok);
        }
}

TEST_CASE("What each change of the mode changes is said", "[host][apic_state]") {
    auto const from_to = [](state from, state to) {
        apic_state<> apic = apic_in(from);
        return apic.write_msr(offer, base_msr, page | bits_of(to));
    };
    using enum state;
    CHECK(from_to(disabled, disabled) == done(none));
    CHECK(from_to(xapic, xapic) == done(none));
    CHECK(from_to(x2apic, x2apic) == done(none));
    CHECK(from_to(disabled, xapic) == done(map | cpuid | reach | identity));
    CHECK(from_to(xapic, x2apic) == done(map | reach | identity | icr_high));
    CHECK(from_to(xapic, disabled) == done(map | cpuid | reach | registers));
    CHECK(from_to(x2apic, disabled) == done(map | cpuid | reach | registers));
}

TEST_CASE("A disabled APIC has forgotten all but its id, and comes back software-disabled", "[host][apic_state]") {
    for (state from : {state::xapic, state::x2apic}) {
        apic_state<> apic = apic_in(from, 300);
        REQUIRE(apic.usable());
        REQUIRE(write_base(apic, page));
        CHECK(apic.svr() == off);
        CHECK_FALSE(apic.hardware_enabled());
        REQUIRE(write_base(apic, page | en));
        CHECK(apic.svr() == off);
        CHECK(apic.hardware_enabled());
        CHECK_FALSE(apic.usable());
        CHECK(apic.id() == apic_id{300});
        REQUIRE(write_base(apic, page | en | extd));
        CHECK(apic.id_register() == 300);
    }
}

TEST_CASE("From xAPIC to x2APIC mode an APIC stays software-enabled", "[host][apic_state]") {
    apic_state<> apic = apic_in(state::xapic);
    CHECK(apic.usable());
    REQUIRE(write_base(apic, page | en | extd));
    CHECK(apic.usable());
    CHECK(apic.svr() == on);
}

TEST_CASE("A reserved bit of the base faults, and so does each one above the guest's physical addresses",
          "[host][apic_state]") {
    for (uint8_t physical : {uint8_t{32}, uint8_t{36}, uint8_t{40}, uint8_t{46}, uint8_t{52}})
        for (unsigned bit = 0; bit < 64; ++bit) {
            if (bit == 10 || bit == 11) continue;
            CAPTURE(physical, bit);
            bool const reserved = bit < 8 || bit == 9 || bit >= physical;
            apic_state<> apic = apic_in(state::xapic);
            apic_state<> const before = apic;
            uint64_t const value = (page | en) ^ uint64_t { 1 } << bit;
            bool const sets = (value & uint64_t{1} << bit) != 0;
            apic_write const result = apic.write_msr({physical, true}, base_msr, value);
            CHECK(result.outcome == (reserved && sets ? msr_outcome::fault : msr_outcome::done));
            CHECK(apic.base() == (reserved && sets ? before.base() : value));
        }
    // A width that no CPU has refuses everything rather than nothing.
    apic_state<> apic = apic_in(state::xapic);
    CHECK(apic.write_msr({64, true}, base_msr, page | en) == fault);
}

TEST_CASE("A guest whose CPUID has no x2APIC cannot enable one", "[host][apic_state]") {
    constexpr apic_offer old{.physical_bits = 46, .x2apic = false};
    apic_state<> apic = apic_in(state::xapic);
    CHECK(apic.write_msr(old, base_msr, page | en | extd) == fault);
    CHECK(apic.mode() == abi::apic_mode::xapic);
    CHECK(apic.write_msr(old, base_msr, page) == done(map | cpuid | reach | registers));
}

TEST_CASE("The page moves, and only the way to the registers is said to change", "[host][apic_state]") {
    for (state s : all_states) {
        apic_state<> apic = apic_in(s);
        uint64_t const moved = 0x42000000 | bits_of(s);
        CHECK(apic.write_msr(offer, base_msr, moved) == done(reach));
        CHECK(apic.base() == moved);
        CHECK(apic.write_msr(offer, base_msr, moved) == done(none));
    }
}

TEST_CASE("The bootstrap flag is what the guest writes, and changes nothing else", "[host][apic_state]") {
    apic_state<> apic(apic_id{0}, true);
    CHECK(apic.write_msr(offer, base_msr, page | en) == done(none));
    CHECK(apic.base() == (page | en));
    CHECK(apic.write_msr(offer, base_msr, page | en | bsp) == done(none));
    CHECK(apic.base() == (page | en | bsp));
}

// --- RESET, INIT -----------------------------------------------------------------------------------------------------

TEST_CASE("After RESET the base is 0xfee00900 on the bootstrap CPU and 0xfee00800 on the others",
          "[host][apic_state]") {
    CHECK(apic_state<>(apic_id{0}, true).base() == 0xfee00900);
    CHECK(apic_state<>(apic_id{1}, false).base() == 0xfee00800);
    CHECK(apic_state<>(apic_id{1}, false).svr() == 0xff);
    for (state s : all_states)
        for (bool bootstrap : {false, true}) {
            apic_state<> apic = apic_in(s, 300);
            REQUIRE(write_base(apic, 0x42000000 | bits_of(s)));
            (void)apic.reset(bootstrap);
            CHECK(same(apic, apic_state<>(apic_id{300}, bootstrap)));
        }
}

TEST_CASE("RESET says what it changed, from each mode", "[host][apic_state]") {
    auto const reset_from = [](state s) {
        apic_state<> apic = apic_in(s);
        return apic.reset(false);
    };
    CHECK(reset_from(state::xapic) == (registers | map));
    CHECK(reset_from(state::x2apic) == (registers | map | reach | identity));
    CHECK(reset_from(state::disabled) == (registers | map | reach | identity | cpuid));
    apic_state<> moved = apic_in(state::xapic);
    REQUIRE(write_base(moved, 0x42000000 | en));
    CHECK(moved.reset(false) == (registers | map | reach));
}

TEST_CASE("INIT keeps mode, place, bootstrap flag and id, and resets the other registers", "[host][apic_state]") {
    for (state s : all_states) {
        CAPTURE(static_cast<int>(s));
        apic_state<> apic = apic_in(s, 300);
        uint64_t const base = 0x42000000 | bsp | bits_of(s);
        REQUIRE(write_base(apic, base));
        uint32_t const id = apic.id_register();
        CHECK(apic.init() == (s == state::disabled ? none : registers | map));
        CHECK(apic.base() == base);
        CHECK(apic.id_register() == id);
        CHECK(apic.svr() == off);
        CHECK_FALSE(apic.usable());
        // The LDR is a register that is not reset in x2APIC mode.
        CHECK(apic.first_ldr() == (s == state::x2apic ? 0x00121000 : 0));
    }
}

// --- the id ----------------------------------------------------------------------------------------------------------

TEST_CASE("The ID register has 8 bits at the top, or 32 in x2APIC mode, and a mode switch changes its form",
          "[host][apic_state]") {
    CHECK(abi::apic_id_register(apic_id{5}, abi::apic_mode::xapic) == 0x05000000);
    CHECK(abi::apic_id_register(apic_id{300}, abi::apic_mode::x2apic) == 300);
    CHECK(abi::apic_id_register(apic_id{300}, abi::apic_mode::xapic) == 0x2c000000);
    CHECK(abi::apic_id_in(0x05000000, abi::apic_mode::xapic) == apic_id{5});
    CHECK(abi::apic_id_in(0x05000000, abi::apic_mode::x2apic) == apic_id{0x05000000});

    apic_state<> apic = apic_in(state::xapic, 0x105);
    CHECK(apic.id_register() == 0x05000000);
    CHECK(apic.id() == apic_id{0x105});  // under which it is found in every mode
    REQUIRE(write_base(apic, page | en | extd));
    CHECK(apic.id() == apic_id{0x105});
    CHECK(apic.id_register() == 0x105);
    REQUIRE(write_base(apic, page));
    REQUIRE(write_base(apic, page | en));
    CHECK(apic.id_register() == 0x05000000);
}

TEST_CASE("In x2APIC mode the LDR follows from the id, in the other modes it begins with 0", "[host][apic_state]") {
    CHECK(abi::x2apic_ldr(apic_id{0}) == 0x00000001);
    CHECK(abi::x2apic_ldr(apic_id{15}) == 0x00008000);
    CHECK(abi::x2apic_ldr(apic_id{16}) == 0x00010001);
    CHECK(abi::x2apic_ldr(apic_id{300}) == 0x00121000);
    CHECK(abi::x2apic_ldr(apic_id{0xffff}) == 0x0fff8000);
    CHECK(abi::x2apic_ldr(apic_id{0xabcfffff}) == 0xffff8000);  // bits from 20 on do not count
    CHECK(apic_in(state::x2apic, 300).first_ldr() == 0x00121000);
    CHECK(apic_in(state::xapic, 300).first_ldr() == 0);
    CHECK(apic_in(state::disabled, 300).first_ldr() == 0);
}

TEST_CASE("Id and LDR of an x2APIC are read-only, the xAPIC's ID ignores writes", "[host][apic_state]") {
    apic_state<> wide = apic_in(state::x2apic, 300);
    apic_state<> const before = wide;
    CHECK(wide.write_msr(offer, 0x802, 300) == fault);
    CHECK(wide.write_msr(offer, 0x80d, 0x00121000) == fault);
    CHECK(same(wide, before));
    apic_state<> narrow = apic_in(state::xapic, 5);
    CHECK(narrow.write_page(offer, 0x20, 0x07000000) == done(none));
    CHECK(narrow.id_register() == 0x05000000);
}

// --- who may write what ----------------------------------------------------------------------------------------------

TEST_CASE("x2APIC registers fault in any other mode, and MSRs around them are somebody else's", "[host][apic_state]") {
    for (state s : all_states)
        for (uint32_t index = 0x7f0; index < 0x910; ++index) {
            if (index == 0x802 || index == 0x80d || index == 0x80f) continue;
            CAPTURE(static_cast<int>(s), index);
            apic_state<> apic = apic_in(s);
            bool const ranged = index >= 0x800 && index <= 0x8ff;
            CHECK(apic.write_msr(offer, index, 0) == (ranged && s != state::x2apic ? fault : not_ours));
        }
    for (uint32_t index : {0x802u, 0x80du, 0x80fu}) {
        apic_state<> apic = apic_in(state::xapic);
        CHECK(apic.write_msr(offer, index, on) == fault);
        CHECK(apic.svr() == on);
    }
    for (uint32_t index : {0u, 0x1au, 0x1cu, 0x6e0u, 0x80000800u, 0xffffffffu}) {
        apic_state<> apic = apic_in(state::xapic);
        CHECK(apic.write_msr(offer, index, ~uint64_t{0}) == not_ours);
    }
}

TEST_CASE("x2APIC registers are read in x2APIC mode only, and EOI and SELF IPI never", "[host][apic_state]") {
    for (state s : all_states) {
        apic_state<> const apic = apic_in(s);
        for (uint32_t index = 0x7f0; index < 0x910; ++index) {
            CAPTURE(static_cast<int>(s), index);
            bool const ranged = index >= 0x800 && index <= 0x8ff, write_only = index == 0x80b || index == 0x83f;
            CHECK(apic.may_read_msr(index) == (!ranged || (s == state::x2apic && !write_only)));
        }
        for (uint32_t index : {0u, 0x1bu, 0x6e0u, 0x80000800u, 0xffffffffu}) CHECK(apic.may_read_msr(index));
    }
    CHECK_FALSE(apic_state<apic_presence::always>(apic_id{1}, false).may_read_msr(0x802));
}

TEST_CASE("There is a page in xAPIC mode only", "[host][apic_state]") {
    for (state s : {state::disabled, state::x2apic})
        for (uint32_t offset : {0x20u, 0xf0u}) {
            apic_state<> apic = apic_in(s);
            apic_state<> const before = apic;
            CHECK(apic.write_page(offer, offset, 0x100) == not_ours);
            CHECK(same(apic, before));
        }
    for (uint32_t offset : {0x30u, 0x80u, 0xd0u, 0xf4u, 0x300u, 0x320u}) {
        apic_state<> apic = apic_in(state::xapic);
        CHECK(apic.write_page(offer, offset, 0) == not_ours);
    }
}

TEST_CASE("A vCPU without an APIC answers not ours to everything, and nothing changes it", "[host][apic_state]") {
    apic_state<> none_here;
    apic_state<> const before = none_here;
    CHECK(none_here.word() == 0);
    CHECK_FALSE(none_here.present());
    for (uint32_t index : {0x1bu, 0x802u, 0x80fu, 0x830u})
        CHECK(none_here.write_msr(offer, index, page | en) == not_ours);
    CHECK(none_here.write_page(offer, 0xf0, on) == not_ours);
    CHECK(none_here.reset(true) == none);
    CHECK(none_here.init() == none);
    CHECK(none_here.restore(offer, apic_in(state::xapic, 0).save()) == status::unsupported);
    for (uint32_t index : {0x1bu, 0x802u, 0x80bu, 0x83fu, 0x8ffu}) CHECK(none_here.may_read_msr(index));
    CHECK(same(none_here, before));
    // Memory that nobody has written says the same.
    alignas(apic_state<>) unsigned char zero[sizeof(apic_state<>)] = {};
    std::memcpy(static_cast<void*>(&none_here), zero, sizeof zero);
    CHECK_FALSE(none_here.present());
    CHECK_FALSE(none_here.usable());
}

TEST_CASE("Where the APIC is always there, all but its presence is as elsewhere", "[host][apic_state]") {
    apic_state<apic_presence::always> apic(apic_id{7}, true);
    static_assert(!std::is_default_constructible_v<decltype(apic)>, "that one has no APIC");
    CHECK(apic.present());
    CHECK_FALSE(apic.usable());
    CHECK(apic.write_page(offer, 0xf0, on) == done(map));
    CHECK(apic.usable());
    CHECK(apic.write_msr(offer, base_msr, page | bsp) == done(map | cpuid | reach | registers));
    CHECK(apic.present());
    CHECK_FALSE(apic.hardware_enabled());
}

TEST_CASE("A change of one vCPU's mode is no other's", "[host][apic_state]") {
    std::array<apic_state<>, 2> vcpus{apic_in(state::xapic, 0), apic_in(state::xapic, 1)};
    apic_state<> const before = vcpus[1];
    CHECK(has(vcpus[0].write_msr(offer, base_msr, page | en | extd).changes, reach));
    CHECK(same(vcpus[1], before));
    CHECK(vcpus[1].write_msr(offer, 0x80f, on) == fault);
    CHECK(vcpus[0].write_msr(offer, 0x80f, on) == done(none));
}

// --- software enable -------------------------------------------------------------------------------------------------

TEST_CASE("Software-disabling masks the LVT and keeps what is pending, and enabling unmasks nothing",
          "[host][apic_state]") {
    for (state s : {state::xapic, state::x2apic}) {
        apic_state<> apic = apic_in(s);
        auto const write = [&](uint32_t svr) {
            return s == state::xapic ? apic.write_page(offer, 0xf0, svr) : apic.write_msr(offer, 0x80f, svr);
        };
        CHECK(apic.lvt(0x0ef) == 0x0ef);
        apic_write const result = write(off);
        CHECK(result == done(map | lvt_masks));
        CHECK_FALSE(has(result.changes, registers));  // IRR and ISR stay
        CHECK_FALSE(apic.usable());
        CHECK(apic.hardware_enabled());  // and what is in the IRR is delivered
        CHECK(apic.lvt(0x0ef) == 0x100ef);
        CHECK(apic.lvt(0x100ef) == 0x100ef);
        CHECK(write(off) == done(none));
        CHECK(write(on) == done(map));
        CHECK(apic.usable());
        CHECK(write(0x1fe) == done(none));  // another spurious vector
        CHECK(apic.svr() == 0x1fe);
    }
}

TEST_CASE("A software-disabled APIC takes NMI, SMI, INIT and SIPI, but no interrupt", "[host][apic_state]") {
    constexpr apic_delivery messages[] = {apic_delivery::nmi, apic_delivery::smi, apic_delivery::init,
                                          apic_delivery::startup};
    constexpr apic_delivery interrupts[] = {apic_delivery::fixed, apic_delivery::lowest_priority};
    for (state s : all_states)
        for (bool software : {false, true}) {
            apic_state<> apic = apic_in(s);
            if (s == state::xapic) (void)apic.write_page(offer, 0xf0, software ? on : off);
            if (s == state::x2apic) (void)apic.write_msr(offer, 0x80f, software ? on : off);
            for (apic_delivery how : messages) CHECK(apic.accepts(how) == (s != state::disabled));
            for (apic_delivery how : interrupts) CHECK(apic.accepts(how) == (s != state::disabled && software));
        }
}

TEST_CASE("Reserved bits of the SVR fault as an MSR and are dropped in the page", "[host][apic_state]") {
    for (bool no_broadcast : {false, true})
        for (unsigned bit = 0; bit < 64; ++bit) {
            CAPTURE(no_broadcast, bit);
            apic_offer const promised{.physical_bits = 46, .x2apic = true, .no_eoi_broadcast = no_broadcast};
            bool const defined = bit <= 9 || (bit == 12 && no_broadcast);
            uint64_t const value = uint64_t{1} << bit;
            apic_state<> wide = apic_in(state::x2apic);
            CHECK(wide.write_msr(promised, 0x80f, value).outcome == (defined ? msr_outcome::done : msr_outcome::fault));
            CHECK(wide.svr() == (defined ? value : on));
            if (bit >= 32) continue;
            apic_state<> narrow = apic_in(state::xapic);
            CHECK(narrow.write_page(promised, 0xf0, static_cast<uint32_t>(value)).outcome == msr_outcome::done);
            CHECK(narrow.svr() == (defined ? value : 0));
        }
}

// --- the word --------------------------------------------------------------------------------------------------------

TEST_CASE("In every order of writes, RESET and INIT the word says what base and SVR say, and every change is told",
          "[host][apic_state]") {
    std::mt19937 random(1);
    std::set<uint8_t> seen;
    for (int run = 0; run < 200; ++run) {
        apic_state<> apic(apic_id{static_cast<uint32_t>(random() % 600)}, run % 2 == 0);
        for (int step = 0; step < 60; ++step) {
            apic_state<> const before = apic;
            apic_change changes{};
            msr_outcome outcome = msr_outcome::done;
            auto const take = [&](apic_write w) { changes = w.changes, outcome = w.outcome; };
            switch (random() % 8) {
                case 0: changes = apic.reset(random() % 2 != 0); break;
                case 1: changes = apic.init(); break;
                case 2: take(apic.write_page(offer, 0xf0, static_cast<uint32_t>(random()) & 0x1ff)); break;
                case 3: take(apic.write_msr(offer, 0x80f, random() & 0x1ff)); break;
                default: take(apic.write_msr(offer, base_msr, (random() % 4 ? page : 0x42000000) | (random() & 0xf00)));
            }
            bool const hardware = (apic.base() & en) != 0, software = (apic.svr() & 0x100) != 0;
            CHECK(apic.word() == (1 | (hardware ? 2 : 0) | (hardware && software ? 4 : 0)));
            CHECK(apic.usable() == (hardware && software));
            CHECK(apic.hardware_enabled() == hardware);
            CHECK((apic.base() & 0xc00) != extd);
            seen.insert(apic.word());
            if (outcome != msr_outcome::done) CHECK((same(apic, before) && changes == none));
            // Whoever acts on the flags alone misses nothing.
            if (apic.word() != before.word() || apic.mode() != before.mode()) CHECK(has(changes, map));
            if (apic.hardware_enabled() != before.hardware_enabled()) CHECK(has(changes, cpuid));
            if (apic.mode() != before.mode() || (apic.base() ^ before.base()) >> 12 != 0) CHECK(has(changes, reach));
            if (apic.hardware_enabled() && apic.id_register() != before.id_register()) CHECK(has(changes, identity));
            if (!software && (before.svr() & 0x100) != 0) CHECK(has(changes, lvt_masks | registers));
            CHECK(has(changes, cpuid) == (apic.hardware_enabled() != before.hardware_enabled()));
        }
    }
    CHECK(seen == std::set<uint8_t>{1, 3, 7});
}

TEST_CASE("All of it is a constant expression", "[host][apic_state]") {
    constexpr auto enabled = [] {
        apic_state<> apic(apic_id{3}, true);
        (void)apic.write_page(offer, 0xf0, on);
        return apic;
    }();
    static_assert(enabled.usable() && enabled.word() == 7 && enabled.mode() == abi::apic_mode::xapic);
    CHECK(enabled.usable());
}

// --- save, restore ---------------------------------------------------------------------------------------------------

TEST_CASE("A saved state is restored in any mode, from any", "[host][apic_state]") {
    for (state from : all_states)
        for (state to : all_states) {
            apic_state<> const source = apic_in(to, 300);
            apic_state<> target = apic_in(from, 300);
            REQUIRE(target.restore(offer, source.save()) == status::ok);
            CHECK(same(target, source));
        }
}

TEST_CASE("A state that no guest could have written, or of another vCPU, is refused and changes nothing",
          "[host][apic_state]") {
    auto const refused = [](auto break_it) {
        apic_state<> target = apic_in(state::xapic, 300);
        apic_state<> const before = target;
        apic_saved saved = apic_in(state::x2apic, 300).save();
        break_it(saved);
        return target.restore(offer, saved) == status::bad_argument && same(target, before);
    };
    CHECK(refused([](apic_saved& s) { s.version = 2; }));
    CHECK(refused([](apic_saved& s) { s.version = 0; }));
    CHECK(refused([](apic_saved& s) { s.present = 2; }));
    CHECK(refused([](apic_saved& s) { s.present = 0; }));
    CHECK(refused([](apic_saved& s) { s.id = apic_id{301}; }));
    CHECK(refused([](apic_saved& s) { s.base = page | extd; }));
    CHECK(refused([](apic_saved& s) { s.base |= 1; }));
    CHECK(refused([](apic_saved& s) { s.base |= uint64_t{1} << 46; }));
    CHECK(refused([](apic_saved& s) { s.svr |= 0x1000; }));
    CHECK_FALSE(refused([](apic_saved&) {}));
    apic_state<> target = apic_in(state::xapic, 5);
    CHECK(target.restore({46, false}, apic_in(state::x2apic, 5).save()) == status::bad_argument);
}

TEST_CASE("A state without an APIC is none of one, and comes back only where there is none", "[host][apic_state]") {
    // The first vCPU's: with its id of 0 nothing else would tell it from a disabled APIC.
    apic_saved const without = apic_state<>().save();
    for (state s : all_states) {
        apic_state<> target = apic_in(s, 0);
        apic_state<> const before = target;
        CHECK(target.restore(offer, without) == status::bad_argument);
        CHECK(target.restore(offer, {}) == status::bad_argument);
        CHECK(same(target, before));
    }
    apic_state<apic_presence::always> always(apic_id{0}, true);
    CHECK(always.restore(offer, without) == status::bad_argument);
    CHECK(always.base() == 0xfee00900);
    CHECK(apic_state<apic_presence::always>(apic_id{0}, true).save().present == 1);

    apic_state<> none_here;
    CHECK(none_here.restore(offer, without) == status::ok);
    CHECK(same(none_here, apic_state<>()));
    apic_saved broken = without;
    broken.version = 2;
    CHECK(none_here.restore(offer, broken) == status::bad_argument);
    broken = without;
    broken.present = 2;
    CHECK(none_here.restore(offer, broken) == status::bad_argument);
}

TEST_CASE("A disabled APIC that was saved by somebody who keeps its SVR is not usable once it is enabled",
          "[host][apic_state]") {
    apic_saved saved = apic_in(state::disabled).save();
    saved.svr = on;
    apic_state<> target = apic_in(state::xapic);
    REQUIRE(target.restore(offer, saved) == status::ok);
    CHECK_FALSE(target.usable());
    REQUIRE(write_base(target, page | en));
    CHECK_FALSE(target.usable());
}

// --- many vCPUs ------------------------------------------------------------------------------------------------------

TEST_CASE("The words of many vCPUs answer as their states do", "[host][apic_words]") {
    constexpr uint32_t vcpus = 130;
    std::array<uint8_t, vcpus + 2> bytes{};
    bytes.front() = bytes.back() = 0xff;  // not of the table
    apic_words const words(builtin_atomics{}, bytes.data() + 1, vcpus);
    std::vector<uint32_t> expected_usable, expected_hardware;
    for (uint32_t i = 0; i < vcpus; ++i) {
        apic_state<> const apic = i % 7 == 0 ? apic_state<>() : apic_in(all_states[i % 3], i);
        words.publish(cpu_index{i}, apic.word());
        CHECK(words.test(cpu_index{i}, apic_word::usable) == apic.usable());
        CHECK(words.test(cpu_index{i}, apic_word::present) == apic.present());
        if (apic.usable()) expected_usable.push_back(i);
        if (apic.hardware_enabled()) expected_hardware.push_back(i);
    }
    auto const found = [&](uint8_t bits) {
        std::vector<uint32_t> list;
        words.for_each(bits, [&](cpu_index vcpu) { list.push_back(vcpu.value); });
        return list;
    };
    CHECK(found(apic_word::usable) == expected_usable);
    CHECK(found(apic_word::hardware) == expected_hardware);
    CHECK_FALSE(expected_usable.empty());
    words.publish(cpu_index{5}, 0);
    CHECK(found(apic_word::usable).size() == expected_usable.size() - 1);
}

TEST_CASE("A table that nobody has filled has no vCPU with an APIC", "[host][apic_words]") {
    std::array<uint8_t, 64> bytes{};
    apic_words const words(builtin_atomics{}, bytes.data(), 64);
    words.for_each(apic_word::present, [](cpu_index) { FAIL(); });
    apic_words const empty(builtin_atomics{}, bytes.data(), 0);
    bytes.fill(7);
    empty.for_each(apic_word::present, [](cpu_index) { FAIL(); });
}

TEST_CASE("A scan is one relaxed load a vCPU, a change one relaxed store", "[host][apic_words]") {
    recording notes;
    std::array<uint8_t, 3> bytes{7, 3, 7};
    apic_words const words(recording_atomics{notes}, bytes.data(), 3);
    uint32_t sum = 0;
    words.for_each(apic_word::usable, [&](cpu_index vcpu) { sum += vcpu.value; });
    CHECK(sum == 2);
    using kind = recorded::kind;
    CHECK(notes.steps == std::vector<recorded>{{kind::load, &bytes[0], 7, order::relaxed.builtin},
                                               {kind::load, &bytes[1], 3, order::relaxed.builtin},
                                               {kind::load, &bytes[2], 7, order::relaxed.builtin}});
    notes.steps.clear();
    words.publish(cpu_index{1}, 7);
    CHECK(notes.steps == std::vector<recorded>{{kind::store, &bytes[1], 7, order::relaxed.builtin}});
}

// --- the order of a restore ------------------------------------------------------------------------------------------

namespace {

constexpr uint32_t tsc = 0x10, deadline = 0x6e0, svr = 0x80f, cmci = 0x82f, lvt_timer = 0x832, lvt_error = 0x837,
                   initial = 0x838, divide = 0x83e;

restore_check check(std::vector<uint32_t> const& msrs) {
    return check_restore(msrs.data(), static_cast<uint32_t>(msrs.size()));
}

}  // namespace

TEST_CASE("The order of a restore: base, registers, TSC, deadline", "[host][apic_restore]") {
    static constexpr uint32_t good[] = {0xc0000080, tsc,  base_msr, svr,   divide,  lvt_timer,
                                        lvt_error,  cmci, initial,  0x808, 0x12345, deadline};
    static_assert(check_restore(good, 12).ok);
    CHECK(check({}).ok);
    CHECK(check({base_msr, lvt_timer, tsc, deadline}).ok);  // a VMM that restores the page as a whole
    CHECK(check({base_msr, base_msr, svr}).ok);
}

TEST_CASE("Every pair that must not change places is found, and named by its rule", "[host][apic_restore]") {
    struct pair {
        uint32_t before, after;
        size_t rule;
    };
    constexpr pair pairs[] = {{base_msr, 0x800, 0},    {base_msr, 0x8ff, 0}, {base_msr, deadline, 1},
                              {svr, lvt_timer, 2},     {svr, lvt_error, 2},  {svr, cmci, 3},
                              {lvt_timer, initial, 4}, {divide, initial, 5}, {lvt_timer, deadline, 6},
                              {tsc, deadline, 7},      {0x3b, deadline, 8},  {svr, 0x850, 9},
                              {svr, 0x853, 9},         {0x841, 0x848, 10},   {0x841, 0x84f, 10}};
    std::set<size_t> covered;
    for (pair const& p : pairs) {
        CAPTURE(p.before, p.after);
        CHECK(check({p.before, 1, p.after}).ok);
        CHECK(check({p.after, 1, p.before}) == restore_check{false, 2, &apic_restore_rules[p.rule]});
        covered.insert(p.rule);
    }
    CHECK(covered.size() == std::size(apic_restore_rules));
    for (restore_rule const& rule : apic_restore_rules) CHECK(std::string(rule.why).size() > 10);
}

TEST_CASE("In every order of seven MSRs the check finds what a look at each pair finds", "[host][apic_restore]") {
    // Who comes before whom, from the manual: positions in `list`.
    std::vector<uint32_t> list = {tsc, base_msr, deadline, svr, lvt_timer, initial, divide};
    auto const must = [](uint32_t a, uint32_t b) {
        if (a == base_msr) return b >= svr || b == deadline;
        if (a == tsc) return b == deadline;
        if (a == svr) return b == lvt_timer;
        if (a == lvt_timer) return b == initial || b == deadline;
        return a == divide && b == initial;
    };
    std::sort(list.begin(), list.end());
    size_t good = 0;
    do {
        bool right = true;
        for (size_t i = 0; i < list.size(); ++i)
            for (size_t j = i + 1; j < list.size(); ++j) right = right && !must(list[j], list[i]);
        if (check(list).ok != right) FAIL("order " << list[0] << " " << list[1] << " ...");
        good += right;
    } while (std::next_permutation(list.begin(), list.end()));
    CHECK(good > 10);
}

TEST_CASE("Restoring the base again after the registers is found", "[host][apic_restore]") {
    CHECK(check({base_msr, svr, lvt_timer, base_msr}) == restore_check{false, 3, &apic_restore_rules[0]});
}

TEST_CASE("A register whose write sends or ends an interrupt, or takes errors, is not restored by a write",
          "[host][apic_restore]") {
    for (uint32_t acts : {0x80bu, 0x828u, 0x830u, 0x83fu, 0x842u})
        CHECK(check({base_msr, svr, acts}) == restore_check{false, 2, nullptr});
    // No other register of the APIC is.
    for (uint32_t index = 0x800; index < 0x900; ++index)
        if (index != 0x80b && index != 0x828 && index != 0x830 && index != 0x83f && index != 0x842)
            CHECK(check({base_msr, index}).ok);
}

TEST_CASE("AMD's extended registers have their order, and nothing around them", "[host][apic_restore]") {
    CHECK(check({base_msr, svr, 0x841, 0x848, 0x84f, 0x850, 0x853}).ok);
    CHECK(check({0x847, 0x850, 0x840, 0x841}).ok);  // features, and an extended LVT
    CHECK(check({0x854, 0x84f, svr}).ok);
}
