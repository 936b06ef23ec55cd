// SPDX-License-Identifier: MIT
#include <pvx/host/apic_icr.hpp>

#include "support/catch.hpp"

using namespace pvx;
using namespace pvx::host;
using abi::apic_delivery;
using abi::apic_mode;
using abi::apic_shorthand;
using enum ipi_verdict;

namespace {

constexpr uint64_t old_icr = 0x12000000000040fd;

icr_write to_msr(uint64_t value) { return write_icr_msr(apic_mode::x2apic, old_icr, 0x830, value); }
icr_write to_self(uint64_t value) { return write_icr_msr(apic_mode::x2apic, old_icr, 0x83f, value); }
/// Both halves, as a guest writes them.
icr_write to_page(uint32_t high, uint32_t low) {
    icr_write const first = write_icr_page(apic_mode::xapic, old_icr, 0x310, high);
    CHECK(first.outcome == msr_outcome::done);
    CHECK(first.verdict == nothing);
    return write_icr_page(apic_mode::xapic, first.icr, 0x300, low);
}

constexpr icr_write untouched(msr_outcome outcome) { return {outcome, {}, {}, old_icr}; }

}  // namespace

TEST_CASE("The fields of a command are found in both forms", "[host][apic_icr]") {
    struct row {
        uint32_t low;
        apic_delivery delivery;
        apic_shorthand shorthand;
        bool logical;
        uint8_t vector;
    };
    constexpr row rows[] = {
        {0x000040fd, apic_delivery::fixed, apic_shorthand::none, false, 0xfd},
        {0x00004930, abi::apic_delivery::lowest_priority, apic_shorthand::none, true, 0x30},
        {0x00004200, apic_delivery::smi, apic_shorthand::none, false, 0},
        {0x000c4400, apic_delivery::nmi, apic_shorthand::others, false, 0},
        {0x0000c500, apic_delivery::init, apic_shorthand::none, false, 0},
        {0x000c4608, apic_delivery::startup, apic_shorthand::others, false, 8},
        {0x00044010, apic_delivery::fixed, apic_shorthand::self, false, 0x10},
        {0x000848ff, apic_delivery::fixed, apic_shorthand::all, true, 0xff},
    };
    for (row const& r : rows) {
        CAPTURE(r.low);
        icr_write const wide = to_msr(uint64_t{0x12345678} << 32 | r.low);
        CHECK(wide == icr_write{msr_outcome::done,
                                send,
                                {apic_destination{0x12345678}, r.shorthand, r.delivery, r.vector, r.logical},
                                uint64_t{0x12345678} << 32 | r.low});
        icr_write const narrow = to_page(0x56000000, r.low);
        CHECK(narrow == icr_write{msr_outcome::done,
                                  send,
                                  {apic_destination{0x56}, r.shorthand, r.delivery, r.vector, r.logical},
                                  uint64_t{0x56000000} << 32 | r.low});
    }
}

TEST_CASE("A reserved bit of the x2APIC's ICR faults and sends nothing, the busy bit is dropped", "[host][apic_icr]") {
    for (unsigned bit = 0; bit < 64; ++bit) {
        CAPTURE(bit);
        bool const reserved = bit == 13 || bit == 16 || bit == 17 || (bit >= 20 && bit <= 31);
        uint64_t const value = uint64_t{1} << bit | 0x40;
        icr_write const result = to_msr(value);
        if (reserved)
            CHECK(result == untouched(msr_outcome::fault));
        else
            CHECK(result.icr == (bit == 12 ? 0x40 : value));
    }
}

TEST_CASE("The xAPIC's halves keep what is defined, never fault, and only the low one sends", "[host][apic_icr]") {
    for (unsigned bit = 0; bit < 32; ++bit) {
        CAPTURE(bit);
        uint32_t const value = uint32_t{1} << bit;
        bool const defined = bit <= 11 || bit == 14 || bit == 15 || bit == 18 || bit == 19;
        icr_write const low = write_icr_page(apic_mode::xapic, old_icr, 0x300, value);
        CHECK(low.outcome == msr_outcome::done);
        CHECK(low.icr == ((old_icr >> 32) << 32 | (defined ? value : 0)));
        icr_write const high = write_icr_page(apic_mode::xapic, old_icr, 0x310, value);
        CHECK(
            high ==
            icr_write{msr_outcome::done, nothing, {}, uint64_t{bit >= 24 ? value : 0} << 32 | (old_icr & 0xffffffff)});
    }
}

TEST_CASE("Garbage faults as an MSR, and leaves the defined bits in the page", "[host][apic_icr]") {
    for (uint64_t garbage : {0xa5a5a5a5a5a5a5a5u, 0x5a5a5a5a5a5a5a5au, ~uint64_t{0}}) {
        CHECK(to_msr(garbage) == untouched(msr_outcome::fault));
        icr_write const narrow = to_page(static_cast<uint32_t>(garbage >> 32), static_cast<uint32_t>(garbage));
        CHECK(narrow.icr == (garbage & 0xff000000000ccfff));
    }
}

TEST_CASE("Each vector, mode and shorthand gets the verdict of the manual's tables", "[host][apic_icr]") {
    for (uint32_t vector = 0; vector < 256; ++vector)
        for (uint32_t delivery = 0; delivery < 8; ++delivery)
            for (uint32_t shorthand = 0; shorthand < 4; ++shorthand)
                for (uint32_t level : {0u, 1u, 2u, 3u}) {
                    uint32_t const low = vector | delivery << 8 | level << 14 | shorthand << 18;
                    ipi_verdict expected = send;
                    if ((shorthand == 1 || shorthand == 2) && delivery != 0) expected = send_invalid;
                    if (delivery == 5 && level == 2) expected = nothing;  // triggered by level, not asserted
                    if (delivery <= 1 && vector < 16) expected = illegal_vector;
                    if (delivery == 3 || delivery == 7) expected = nothing;
                    if (judge_icr(low) != expected) {
                        CAPTURE(low);
                        CHECK(judge_icr(low) == expected);
                    }
                    // Nothing of it is a fault, in either mode.
                    if (vector % 64 == 0) {
                        CHECK(to_msr(uint64_t{3} << 32 | low).verdict == expected);
                        CHECK(to_page(0x03000000, low).verdict == expected);
                        CHECK(to_msr(uint64_t{3} << 32 | low).outcome == msr_outcome::done);
                    }
                }
}

TEST_CASE("INIT is sent when it is asserted, and its de-assertion is not a second one", "[host][apic_icr]") {
    CHECK(to_page(0x01000000, 0xc500).verdict == send);     // level, assert
    CHECK(to_page(0x01000000, 0x8500).verdict == nothing);  // level, de-assert
    CHECK(to_page(0x01000000, 0x4500).verdict == send);     // edge
    CHECK(to_page(0x01000000, 0x0500).verdict == send);     // edge: the level does not count
    CHECK(to_page(0x01000000, 0x8031).verdict == send);     // nor for anything that is not INIT
}

TEST_CASE("A guest cannot send in the mode by which a kick is passed on", "[host][apic_icr]") {
    CHECK(to_msr(uint64_t{1} << 32 | 0x4300).verdict == nothing);
    CHECK(to_page(0x01000000, 0x4330).verdict == nothing);
}

TEST_CASE("Everybody is 0xff to an xAPIC and 0xffffffff to an x2APIC, and neither to the other", "[host][apic_icr]") {
    auto const shorthand = [](icr_write const& w) { return w.ipi.shorthand; };
    CHECK(shorthand(to_page(0xff000000, 0x4030)) == apic_shorthand::all);
    CHECK(shorthand(to_page(0xfe000000, 0x4030)) == apic_shorthand::none);
    // A logical 0xff is for whoever matches LDRs, by the model of each.
    CHECK(shorthand(to_page(0xff000000, 0x4830)) == apic_shorthand::none);
    CHECK(to_page(0xff000000, 0x4830).ipi.destination == apic_destination{0xff});

    CHECK(shorthand(to_msr(0xffffffff00004030)) == apic_shorthand::all);
    CHECK(shorthand(to_msr(0xffffffff00004830)) == apic_shorthand::all);  // logical as well
    CHECK(shorthand(to_msr(0x000000ff00004030)) == apic_shorthand::none);
    CHECK(to_msr(0x000000ff00004030).ipi.destination == apic_destination{255});
    CHECK(shorthand(to_msr(0xff00000000004030)) == apic_shorthand::none);
    // A shorthand goes before the destination.
    CHECK(shorthand(to_msr(0xffffffff000c4030)) == apic_shorthand::others);
    CHECK(shorthand(to_page(0xff000000, 0x44030)) == apic_shorthand::self);
    // It is no shorthand of the guest's, so every mode is valid with it.
    CHECK(to_page(0xff000000, 0x4500).verdict == send);
}

TEST_CASE("SELF IPI sends a fixed interrupt to the sender and leaves the ICR alone", "[host][apic_icr]") {
    for (uint32_t vector = 0; vector < 256; ++vector) {
        icr_write const result = to_self(vector);
        CHECK(result == icr_write{msr_outcome::done,
                                  vector < 16 ? illegal_vector : send,
                                  {{}, apic_shorthand::self, apic_delivery::fixed, static_cast<uint8_t>(vector), false},
                                  old_icr});
    }
    for (unsigned bit = 8; bit < 64; ++bit) CHECK(to_self(uint64_t{1} << bit | 0x40) == untouched(msr_outcome::fault));
}

TEST_CASE("A destination of 32 bits is one register, not two", "[host][apic_icr]") {
    icr_write const result = to_msr(0xdeadbeef000040fd);
    CHECK(result.icr == 0xdeadbeef000040fd);
    CHECK(result.ipi.destination == apic_destination{0xdeadbeef});
    CHECK(read_icr(apic_mode::x2apic, result.icr) == result.ipi);
    icr_write const narrow = to_page(0xbe000000, 0x40fd);
    CHECK(read_icr(apic_mode::xapic, narrow.icr) == narrow.ipi);
    CHECK(narrow.ipi.destination == apic_destination{0xbe});
}

TEST_CASE("The ICR's MSRs fault outside of x2APIC mode, the page is there in xAPIC mode only, the rest is not ours",
          "[host][apic_icr]") {
    for (apic_mode mode : {apic_mode::disabled, apic_mode::xapic})
        for (uint32_t index : {0x830u, 0x83fu})
            CHECK(write_icr_msr(mode, old_icr, index, 0x40) == untouched(msr_outcome::fault));
    for (uint32_t index = 0x800; index < 0x900; ++index)
        if (index != 0x830 && index != 0x83f)
            CHECK(write_icr_msr(apic_mode::x2apic, old_icr, index, 0x40) == untouched(msr_outcome::not_ours));
    for (apic_mode mode : {apic_mode::disabled, apic_mode::x2apic})
        for (uint32_t offset : {0x300u, 0x310u})
            CHECK(write_icr_page(mode, old_icr, offset, 0x40) == untouched(msr_outcome::not_ours));
    for (uint32_t offset : {0x0u, 0x2f0u, 0x304u, 0x320u, 0x3f0u})
        CHECK(write_icr_page(apic_mode::xapic, old_icr, offset, 0x40) == untouched(msr_outcome::not_ours));
}

TEST_CASE("A command is understood in a constant expression", "[host][apic_icr]") {
    constexpr icr_write result = write_icr_msr(apic_mode::x2apic, 0, 0x830, 0x500004040);
    static_assert(result.verdict == send && result.ipi.destination == apic_destination{5} && result.ipi.vector == 0x40);
    CHECK(result.outcome == msr_outcome::done);
}
