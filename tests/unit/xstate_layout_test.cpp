// SPDX-License-Identifier: MIT
#include <pvx/host/xstate_check.hpp>
#include <pvx/host/xstate_layout.hpp>

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"
#include "support/fake_machine.hpp"
#include "support/xstate_corpus.hpp"

using namespace pvx;
using namespace pvx::host;
using namespace pvx_test;

namespace {

using enum xsave_format;
namespace xf = abi::xfeature;

constexpr uint64_t all_masks = 1u << 18;  // of components 2 .. 19

// On the heap of the test: it is no object for a stack.
std::unique_ptr<xstate_layout> layout_of(xstate_cpu const& cpu) {
    auto layout = std::make_unique<xstate_layout>();
    REQUIRE(layout->set_up(xstate_cpuid{&cpu}) == status::ok);
    return layout;
}

template <xsave_format Format>
uint32_t size(xstate_layout const& layout, uint64_t mask) {
    return layout.required_size<Format>(mask).value;
}

// A machine whose CPUID is strict, so that a leaf which is not planned throws.
void plan(fake_state& state, xstate_cpu const& cpu) {
    xstate_cpuid const source{&cpu};
    for (uint32_t leaf : {0u, 1u}) state.cpuid_table[{leaf, 0}] = source.cpuid(leaf, 0);
    for (uint32_t n = 2; n < 20; ++n) state.cpuid_table[{0xd, n}] = source.cpuid(0xd, n);
}

// As above, in a constant expression.
consteval bool agrees(xstate_cpu const& cpu, uint32_t stride) {
    xstate_layout layout;
    if (layout.set_up(xstate_cpuid{&cpu}) != status::ok) return false;
    for (uint64_t i = 0; i < all_masks; i += stride) {
        uint64_t const mask = i << 2;
        if (layout.required_size<standard>(mask).value != xsave_bytes(cpu, mask, false)) return false;
        if (layout.required_size<compacted>(mask).value != xsave_bytes(cpu, mask, true)) return false;
    }
    return true;
}
static_assert(agrees(sapphire_rapids, 509));
static_assert(agrees(apx_cpu, 509));
static_assert(agrees(zen_4, 509));

}  // namespace

TEST_CASE("Sizes are what a loop over the components gives, for every mask, CPU and format", "[host][xstate_layout]") {
    for (xstate_cpu const& cpu : xstate_corpus) {
        CAPTURE(cpu.name);
        auto const layout = layout_of(cpu);
        uint64_t wrong = 0;
        for (uint64_t i = 0; i < all_masks; ++i) {
            uint64_t const mask = i << 2;
            if (size<standard>(*layout, mask) != xsave_bytes(cpu, mask, false)) ++wrong;
            if (size<compacted>(*layout, mask) != xsave_bytes(cpu, mask, true)) ++wrong;
        }
        CHECK(wrong == 0);
    }
}

TEST_CASE("The published sizes of known sets of components come out", "[host][xstate_layout]") {
    auto const intel = layout_of(sapphire_rapids), amd = layout_of(zen_3);
    for (uint64_t mask : {xcr0_at_reset, uint64_t{0x3}}) {
        CHECK(size<standard>(*intel, mask) == 576);
        CHECK(size<compacted>(*intel, mask) == 576);
    }
    CHECK(size<standard>(*intel, 0x7) == 832);
    CHECK(size<compacted>(*intel, 0x7) == 832);
    CHECK(size<standard>(*intel, 0xe7) == 2688);
    CHECK(size<compacted>(*intel, 0xe7) == 2432);
    CHECK(size<standard>(*intel, 0x2e7) == 2696);
    CHECK(size<compacted>(*intel, 0x2e7) == 2440);
    CHECK(size<standard>(*amd, 0x207) == 2440);
    CHECK(size<compacted>(*amd, 0x207) == 840);
    CHECK(size<standard>(*intel, 0x600e7) == 11008);
    CHECK(size<compacted>(*intel, 0x600e7) == 10688);
    // No XCR0 may be so, but arithmetic does not mind.
    CHECK(size<standard>(*intel, 0x20007) == 2816);
    CHECK(size<compacted>(*intel, 0x20007) == 896);
    // What the dumps say in EBX of sub-leaves 0 and 1 for what was on.
    CHECK(size<standard>(*intel, 0x602e7) == 0x2b00);
    CHECK(size<compacted>(*intel, 0x602e7 | xf::pasid | xf::lbr) == 0x2d00);
    auto const client = layout_of(xstate_corpus[0]), old_amd = layout_of(xstate_corpus[3]);
    CHECK(client->standard_size(0x1f) == 0x440);
    CHECK(client->compacted_size(0x1f) == 0x3c0);
    CHECK(size<standard>(*client, 0x1f) == 0x440);
    CHECK(size<compacted>(*client, 0x1f) == 0x3c0);
    CHECK(size<standard>(*old_amd, 0x207) == 0x380);
    CHECK(size<compacted>(*old_amd, 0x7) == 0x340);
}

TEST_CASE("Bits 0, 1 and 63 and bits without a sub-leaf change no size", "[host][xstate_layout]") {
    for (xstate_cpu const& cpu : xstate_corpus) {
        CAPTURE(cpu.name);
        auto const layout = layout_of(cpu);
        uint64_t const known = cpu.components(false) | cpu.components(true);
        for (uint64_t mask : {uint64_t{0}, known & 0x2e4, known & ~uint64_t{3}})
            for (uint32_t b = 0; b < 64; ++b) {
                CAPTURE(mask, b);
                if ((known & ~uint64_t{3} & bit<uint64_t>(b)) != 0) continue;
                CHECK(size<standard>(*layout, mask | bit<uint64_t>(b)) == size<standard>(*layout, mask));
                CHECK(size<compacted>(*layout, mask | bit<uint64_t>(b)) == size<compacted>(*layout, mask));
            }
        CHECK(size<standard>(*layout, 0) == 576);
        CHECK(size<compacted>(*layout, 0) == 576);
        CHECK(size<compacted>(*layout, ~uint64_t{0}) == xsave_bytes(cpu, ~uint64_t{0}, true));
    }
}

TEST_CASE("The offset field of a supervisor component is not looked at", "[host][xstate_layout]") {
    xstate_cpu const odd{"odd", "made up", {{2, 256, 576, 0}, {11, 16, 100000, 1}}};
    auto const layout = layout_of(odd);
    CHECK(size<standard>(*layout, 0x804) == 832);
    CHECK(size<compacted>(*layout, 0x804) == 848);
    CHECK(layout->offset<standard>(11, ~uint64_t{0}) == 0);
    CHECK(layout->offset<compacted>(11, ~uint64_t{0}) == 832);
}

TEST_CASE("Standard sizes are right where a higher component lies below a lower one", "[host][xstate_layout]") {
    auto const layout = layout_of(apx_cpu);
    CHECK(layout->offset<standard>(19, ~uint64_t{0}) == 960);
    CHECK(size<standard>(*layout, xf::apx) == 1088);
    CHECK(size<standard>(*layout, xf::apx | xf::ymm) == 1088);
    CHECK(size<standard>(*layout, xf::apx | xf::hi16_zmm) == 2688);
    CHECK(size<standard>(*layout, xf::apx | xf::xtiledata) == 11008);
    CHECK(size<compacted>(*layout, xf::apx | xf::xtiledata) == 576 + 8192 + 128);
}

TEST_CASE("A component lies where the size of those below it ends, at a multiple of 64 if it is aligned",
          "[host][xstate_layout]") {
    for (xstate_cpu const& cpu : xstate_corpus) {
        CAPTURE(cpu.name);
        auto const layout = layout_of(cpu);
        for (uint64_t mask : {uint64_t{0x7}, uint64_t{0x2e7}, uint64_t{0x1a2c7}, ~uint64_t{0}})
            for (uint32_t n = 0; n < 64; ++n) {
                CAPTURE(mask, n);
                xstate_subleaf const s = cpu.at(n);
                bool const in = s.size != 0 && (mask >> n & 1) != 0;
                uint32_t const before = xsave_bytes(cpu, mask & ((uint64_t{1} << n) - 1), true);
                bool const aligned = (s.flags & 2) != 0, user = in && (s.flags & 1) == 0;
                uint32_t const place = !in ? 0 : aligned ? (before + 63) / 64 * 64 : before;
                CHECK(layout->offset<compacted>(n, mask) == place);
                CHECK(layout->offset<standard>(n, mask) == (user ? s.offset : 0));
            }
    }
    // PKRU: the place that was once taken for a constant.
    CHECK(layout_of(sapphire_rapids)->offset<standard>(9, 0x200) == 2688);
    CHECK(layout_of(zen_3)->offset<standard>(9, 0x200) == 2432);
}

TEST_CASE("Set-up reads each sub-leaf once, never 0 and 1, and nothing reads CPUID after it", "[host][xstate_layout]") {
    fake_state state;
    plan(state, sapphire_rapids);
    auto const layout = std::make_unique<xstate_layout>();
    CHECK(layout->set_up(fake_machine(state)) == status::ok);  // strict: 0xD.0 and 0xD.1 would throw
    CHECK(state.cpuid_reads == 2 + 18);
    xsave_size_memo<compacted> memo;
    for (uint64_t i = 0; i < 1000; ++i) {
        (void)layout->required_size<standard>(i * 0x9e37);
        (void)layout->required_size<compacted>(i * 0x9e37, memo);
        (void)layout->offset<compacted>(18, i * 0x9e37);
    }
    CHECK(state.cpuid_reads == 2 + 18);
    CHECK(size<standard>(*layout, 0x2e7) == 2696);
}

TEST_CASE("Without XSAVE the area is that of FXSAVE, and leaf 0xD is not read", "[host][xstate_layout]") {
    for (bool old : {false, true}) {
        CAPTURE(old);
        fake_state state;
        if (old)
            state.cpuid_table = {{{0, 0}, {0xc, 0, 0, 0}}};  // leaf 1 says nothing of a leaf that does not exist
        else
            state.cpuid_table = {{{0, 0}, {0x20, 0, 0, 0}}, {{1, 0}, {0, 0, ~(1u << 26), 0}}};
        auto const layout = layout_of(sapphire_rapids);  // and nothing stays of a set-up before
        CHECK(layout->set_up(fake_machine(state)) == status::unsupported);
        for (uint64_t mask : {uint64_t{0}, uint64_t{0x602e7}, ~uint64_t{0}}) {
            CAPTURE(mask);
            CHECK(size<standard>(*layout, mask) == 512);
            CHECK(size<compacted>(*layout, mask) == 512);
            CHECK(layout->offset<standard>(2, mask) == 0);
            CHECK(layout->components() == 0);
            CHECK((*layout)[2].size == 0);
        }
    }
}

TEST_CASE("Before the set-up every size is 0, which no area has", "[host][xstate_layout]") {
    static constinit xstate_layout forgotten;
    auto const made = std::make_unique<xstate_layout>();
    for (xstate_layout const* layout : {&forgotten, made.get()})
        for (uint32_t b = 0; b < 64; ++b)
            for (uint64_t mask : {uint64_t{0}, uint64_t{1} << b, ~(uint64_t{1} << b)}) {
                CAPTURE(mask);
                CHECK(size<standard>(*layout, mask) == 0);
                CHECK(size<compacted>(*layout, mask) == 0);
                CHECK(layout->offset<compacted>(b, mask) == 0);
            }
    CHECK(forgotten.components() == 0);
    static_assert(std::is_trivially_destructible_v<xstate_layout> && std::is_trivially_copyable_v<xstate_layout>);
}

TEST_CASE("A second set-up leaves nothing of the first", "[host][xstate_layout]") {
    auto const layout = layout_of(apx_cpu);
    CHECK(layout->set_up(xstate_cpuid{&zen_3}) == status::ok);
    CHECK(layout->components() == 0x1a07);
    CHECK(layout->supervisor_components() == 0x1800);
    CHECK((*layout)[19].size == 0);
    CHECK(size<standard>(*layout, ~uint64_t{0}) == 2440);
    CHECK(size<compacted>(*layout, ~uint64_t{0}) == 880);
}

TEST_CASE("A component in the legacy area or beyond all reason is refused", "[host][xstate_layout]") {
    struct {
        xstate_subleaf s;
        bool good;
    } const cases[] = {{{2, 256, 576, 0}, true},
                       {{2, 256, 575, 0}, false},
                       {{2, 256, 0, 0}, false},
                       {{2, xstate_layout::most_bytes - 576, 576, 0}, true},
                       {{2, xstate_layout::most_bytes - 575, 576, 0}, false},
                       {{2, 256, 0xffffff00, 0}, false},
                       {{2, 0xffffffff, 576, 0}, false},
                       {{19, 256, 0, 1}, true},
                       {{19, xstate_layout::most_bytes + 1, 0, 1}, false}};
    for (auto const& c : cases) {
        CAPTURE(c.s.number, c.s.size, c.s.offset);
        xstate_cpu const cpu{"", "", {c.s}};
        xstate_layout layout;
        CHECK(layout.set_up(xstate_cpuid{&cpu}) == (c.good ? status::ok : status::bad_argument));
        CHECK(layout.required_size<compacted>(~uint64_t{0}).value == (c.good ? 576 + c.s.size : 512));
        CHECK(layout[c.s.number].size == (c.good ? c.s.size : 0));
        CHECK(layout.components() == (c.good ? 3 | bit<uint64_t>(c.s.number) : 0));
    }
    // As many of the largest as there are do not overflow.
    xstate_cpu large{"", "", {}};
    for (uint32_t i = 0; i < 16; ++i) large.list[i] = {i + 2, xstate_layout::most_bytes, 0, 3};
    CHECK(size<compacted>(*layout_of(large), ~uint64_t{0}) == 576 + 16 * xstate_layout::most_bytes);
}

TEST_CASE("Components say whether they are of XCR0 or of XSS", "[host][xstate_layout]") {
    for (xstate_cpu const& cpu : xstate_corpus) {
        CAPTURE(cpu.name);
        auto const layout = layout_of(cpu);
        CHECK(layout->user_components() == cpu.components(false));
        CHECK(layout->supervisor_components() == cpu.components(true));
        CHECK(layout->components() == (cpu.components(false) | cpu.components(true)));
    }
    auto const layout = layout_of(sapphire_rapids);
    CHECK((*layout)[12].supervisor);
    CHECK_FALSE((*layout)[17].supervisor);
    CHECK((*layout)[17].aligned);
    CHECK((*layout)[18].size == 8192);
}

TEST_CASE("A memo answers as the table does, whatever comes in which order, and a memo of zeros too",
          "[host][xstate_layout]") {
    static_assert(std::is_trivially_copyable_v<xsave_size_memo<standard>>);
    auto const layout = layout_of(sapphire_rapids);
    uint64_t const masks[] = {0, 1, 0, 0x2e7, 0x2e7, 0x2e6, 0x602e7, ~uint64_t{0}, 0, uint64_t{1} << 63, 0x602e7};
    for (uint64_t begin : masks) {
        xsave_size_memo<compacted> memo{};
        CHECK(layout->required_size(begin, memo) == layout->required_size<compacted>(begin));
        for (uint64_t mask : masks) {
            CAPTURE(begin, mask);
            CHECK(layout->required_size(mask, memo) == layout->required_size<compacted>(mask));
        }
    }
}

TEST_CASE("A repeated mask is answered by the memo, not by the table", "[host][xstate_layout]") {
    auto const layout = layout_of(sapphire_rapids);
    xsave_size_memo<standard> memo;
    (void)layout->required_size(0x7, memo);
    memo.size.value = 12345;
    CHECK(layout->required_size(0x7, memo).value == 12345);
    CHECK(layout->required_size(0xe7, memo).value == 2688);
}

TEST_CASE("An area of one format is not taken for one of the other", "[host][xstate_layout]") {
    static_assert(!std::is_same_v<xsave_size<standard>, xsave_size<compacted>>);
    static_assert(!std::is_convertible_v<xsave_size<compacted>, xsave_size<standard>>);
    static_assert(!std::is_invocable_v<decltype(make_xsave_buffer), xsave_size<compacted>>);
    static_assert(!std::is_invocable_v<decltype(make_xsave_buffer), uint32_t>);
    auto const layout = layout_of(sapphire_rapids);
    CHECK(size<compacted>(*layout, 0x2e7) < size<standard>(*layout, 0x2e7));
}

TEST_CASE("A buffer of the save interface has 4096 bytes at least, and is counted in words too",
          "[host][xstate_layout]") {
    auto const layout = layout_of(sapphire_rapids);
    auto const buffer = [&](uint64_t mask) { return make_xsave_buffer(layout->required_size<standard>(mask)); };
    CHECK(buffer(0x7).size == 4096);
    CHECK(buffer(0x7).words() == 1024);
    CHECK(buffer(0x602e7).size == 11008);
    CHECK(buffer(0x602e7).words() == 2752);
    CHECK(make_xsave_buffer(xsave_size<standard>{4095}).size == 4096);
    CHECK(make_xsave_buffer(xsave_size<standard>{4096}).size == 4096);
    CHECK(make_xsave_buffer(xsave_size<standard>{4096}).words() == 1024);
    CHECK(make_xsave_buffer(xsave_size<standard>{4097}).size == 4097);
    CHECK(make_xsave_buffer(xsave_size<standard>{4097}).words() == 1025);
    // Guest and host are not the same size, and the caller must say which.
    CHECK(buffer(layout->user_components()).size > buffer(0x2e7).size);
}

TEST_CASE("Hardware that agrees with the table passes the check, and the first mask that does not is told",
          "[host][xstate_layout]") {
    for (xstate_cpu const& cpu : xstate_corpus) {
        CAPTURE(cpu.name);
        auto const layout = layout_of(cpu);
        CHECK_FALSE(verify_xstate_layout(*layout, xstate_cpuid{&cpu, 7, 0}, {7, 0}));
        uint64_t const user = cpu.components(false), supervisor = cpu.components(true);
        CHECK_FALSE(verify_xstate_layout(*layout, xstate_cpuid{&cpu, user, supervisor}, {user, supervisor}));
    }
    // Alignment was forgotten: only the compacted format shows it.
    xstate_cpu packed = sapphire_rapids;
    for (xstate_subleaf& s : packed.list) s.flags &= ~2u;
    auto const layout = layout_of(packed);
    CHECK_FALSE(verify_xstate_layout(*layout, xstate_cpuid{&sapphire_rapids, 7, 0}, {7, 0}));
    xstate_mismatch const m =
        verify_xstate_layout(*layout, xstate_cpuid{&sapphire_rapids, 0x602e7, 0x1800}, {0x602e7, 0x1800});
    CHECK(m);
    CHECK(m.format == compacted);
    CHECK(m.mask == 0x61ae7);
    CHECK(m.computed == xsave_bytes(packed, 0x61ae7, true));
    CHECK(m.enumerated == xsave_bytes(sapphire_rapids, 0x61ae7, true));
    // The other format, by the other sub-leaf.
    xstate_cpu moved = sapphire_rapids;
    moved.list[0].offset = 640;
    xstate_mismatch const n =
        verify_xstate_layout(*layout_of(moved), xstate_cpuid{&sapphire_rapids, 7, 0x800}, {7, 0x800});
    CHECK(n);
    CHECK(n.format == standard);
    CHECK(n.mask == 7);
    CHECK(n.computed == 896);
    CHECK(n.enumerated == 832);
}

namespace {

// CPUID of a CPU without the compacted format, or of a table that says nothing of sizes.
struct plain_xsave : xstate_cpuid {
    uint32_t instructions;

    constexpr abi::cpuid_regs cpuid(uint32_t leaf, uint32_t subleaf) const {
        abi::cpuid_regs regs = xstate_cpuid::cpuid(leaf, subleaf);
        if (leaf == 0xd && subleaf == 1) regs = {instructions, regs.ebx, 0, 0};
        return regs;
    }
};

// A CPU whose XCR0 and XSS can be set, to what its sub-leaves 0 and 1 say. A template has taken bits out of those two,
// and left the other sub-leaves.
struct tunable {
    xstate_cpuid* now;
    std::vector<xstate_enabled>* tried;
    uint32_t xcr0_mask = ~0u;
    uint32_t instructions = 0xf;
    uint32_t xss_mask = ~0u;

    abi::cpuid_regs cpuid(uint32_t leaf, uint32_t subleaf) const {
        abi::cpuid_regs regs = now->cpuid(leaf, subleaf);
        if (leaf == 0xd && subleaf == 0) regs.eax &= xcr0_mask;
        if (leaf == 0xd && subleaf == 1) regs.eax &= instructions, regs.ecx &= xss_mask;
        return regs;
    }
    void enable_xstate(xstate_enabled value) const {
        REQUIRE(valid_xcr0(value.xcr0, now->cpu->components(false) & xcr0_mask));
        REQUIRE(valid_xss(value.xss, (instructions & 8) != 0 ? now->cpu->components(true) & xss_mask : 0));
        tried->push_back(value);
        now->xcr0 = value.xcr0;
        now->xss = value.xss;
    }
};

}  // namespace

TEST_CASE("The compacted size is checked only where the CPU has the format", "[host][xstate_layout]") {
    xstate_cpu packed = sapphire_rapids;
    for (xstate_subleaf& s : packed.list) s.flags &= ~2u;
    auto const layout = layout_of(packed);
    auto const check = [&](uint32_t instructions) {
        return static_cast<bool>(
            verify_xstate_layout(*layout, plain_xsave{{&sapphire_rapids, 0x602e7, 0}, instructions}, {0x602e7, 0}));
    };
    CHECK_FALSE(check(0));
    CHECK_FALSE(check(1));
    CHECK(check(2));
    CHECK(check(8));
    // Nor is there anything to compare without XSAVE, or to turn on.
    xstate_cpuid now{&sapphire_rapids, 7, 0};
    std::vector<xstate_enabled> tried;
    CHECK_FALSE(verify_xstate_layout(xstate_layout{}, tunable{&now, &tried}, {7, 0}));
    CHECK(tried.empty());
}

TEST_CASE("A machine that can turn components on is checked with every valid set of them, and left as it was",
          "[host][xstate_layout]") {
    for (xstate_cpu const& cpu : xstate_corpus) {
        if (std::string("made up") == cpu.name) continue;  // its XCR0 has no rules
        CAPTURE(cpu.name);
        auto const layout = layout_of(cpu);
        xstate_cpuid now{&cpu, 7, 0};
        std::vector<xstate_enabled> tried;
        CHECK_FALSE(verify_xstate_layout(*layout, tunable{&now, &tried}, {7, 0}));
        CHECK(now.xcr0 == 7);
        CHECK(now.xss == 0);
        size_t valid = 0;
        for (uint64_t mask = 0; mask < (1u << 20); ++mask) valid += valid_xcr0(mask, cpu.components(false));
        size_t const each = cpu.components(true) == 0 ? 1 : 2;
        CHECK(tried.size() == valid * each + 1);
    }
    // What is not on shows only so.
    xstate_cpu moved = sapphire_rapids;
    moved.list[5].offset = 2680;  // PKRU
    auto const layout = layout_of(moved);
    xstate_cpuid now{&sapphire_rapids, 7, 0x800};
    CHECK_FALSE(verify_xstate_layout(*layout, now, {7, 0x800}));
    std::vector<xstate_enabled> tried;
    xstate_mismatch const m = verify_xstate_layout(*layout, tunable{&now, &tried}, {7, 0x800});
    CHECK(m);
    CHECK(m.format == standard);
    CHECK((m.mask & xf::pkru) != 0);
    CHECK(now.xcr0 == 7);
    CHECK(now.xss == 0x800);
}

TEST_CASE("A component whose sub-leaf is there and whose bit is not is never turned on", "[host][xstate_layout]") {
    auto const layout = layout_of(sapphire_rapids);
    struct {
        uint32_t xcr0_mask, xss_mask;
        size_t valid;  // values of XCR0
        uint64_t xss;
    } const rows[] = {
        {0x7, ~0u, 3, 0x1800 | xf::pt | xf::pasid | xf::uintr | xf::lbr},
        {0x2e7, 0x1800, 8, 0x1800},
        {0x3, 0, 2, 0},
        {0x202e7, 0x800, 8, 0x800},
    };
    for (auto const& r : rows) {
        CAPTURE(r.xcr0_mask, r.xss_mask);
        xstate_cpuid now{&sapphire_rapids, 3, 0};
        std::vector<xstate_enabled> tried;
        CHECK_FALSE(verify_xstate_layout(*layout, tunable{&now, &tried, r.xcr0_mask, 0xf, r.xss_mask}, {3, 0}));
        CHECK(tried.size() == r.valid * (r.xss != 0 ? 2 : 1) + 1);
        uint64_t xcr0 = 0, xss = 0;
        for (xstate_enabled const& t : tried) xcr0 |= t.xcr0, xss |= t.xss;
        CHECK(xcr0 == constrain_xcr0(r.xcr0_mask, layout->user_components()));
        CHECK(xss == r.xss);
    }
}

TEST_CASE("Without XSAVES no supervisor component is turned on, for there is no IA32_XSS", "[host][xstate_layout]") {
    auto const layout = layout_of(sapphire_rapids);
    for (uint32_t instructions : {0x1u, 0x3u, 0x7u, 0xfu}) {
        CAPTURE(instructions);
        xstate_cpuid now{&sapphire_rapids, 7, 0};
        std::vector<xstate_enabled> tried;
        CHECK_FALSE(verify_xstate_layout(*layout, tunable{&now, &tried, ~0u, instructions}, {7, 0}));
        uint64_t xss = 0;
        for (xstate_enabled const& t : tried) xss |= t.xss;
        CHECK((xss != 0) == (instructions == 0xf));
        CHECK(tried.size() > 2);
    }
}
