// SPDX-License-Identifier: MIT
#include <pvx/host/runtime_cpuid.hpp>

#include <pvx/guest/features.hpp>
#include <pvx/host/kvm_leaves.hpp>
#include <pvx/host/xstate_layout.hpp>

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/catch.hpp"

using namespace pvx;
using namespace pvx::host;
using abi::cpuid_regs;

namespace {

using list = std::vector<cpuid_entry>;

constexpr apic_id id{0x105};
constexpr uint32_t osxsave = 1u << 27, xsave = 1u << 26, monitor = 1u << 3, apic = 1u << 9, ospke = 1u << 4;
constexpr uint64_t cr4_osxsave = 1 << 18, cr4_pke = 1 << 22, apic_on = 1 << 11, mwait_on = 1 << 18;

/// Sizes that tell which function was asked, and for what.
struct sizes {
    uint32_t* asked;

    uint32_t standard_size(uint64_t mask) const { return ++*asked, 0x10000 | static_cast<uint32_t>(mask); }
    uint32_t compacted_size(uint64_t mask) const { return ++*asked, 0x20000 | static_cast<uint32_t>(mask); }
};

struct vcpu_registers {
    cpuid_inputs inputs{};
    uint32_t reads = 0;
    uint32_t sizes_asked = 0;
    uint32_t updates = 0;
};

struct environment {
    vcpu_registers* of;

    cpuid_inputs read_cpuid_inputs() const { return ++of->reads, of->inputs; }
    sizes xstate_sizes() const { return {&of->sizes_asked}; }
    void event(cpuid_event e) const { of->updates += e == cpuid_event::brought_up_to_date; }
};

using guest_cpuid = runtime_cpuid<environment, 16>;

/// An Intel CPU with XSAVE and all that follows registers; each such bit is wrong in half of the registers' values.
list const offered{{0, 0, {0x1f, 0x756e6547, 0x6c65746e, 0x49656e69}},
                   {1, 0, {0x806f8, 0x800, xsave | monitor, 0x178bfbff}},
                   {7, 0, {1, 0x209c01a9, 0x8, 0}},
                   {7, 1, {0x10, 0, 0x10, 0}},
                   {0xb, 0, {1, 2, 0x100, 0}},
                   {0xb, 1, {7, 64, 0x201, 0}},
                   {0xd, 0, {0x2e7, 0x111, 0xa88, 0}},
                   {0xd, 1, {0xf, 0x222, 0x1900, 0}},
                   {0xd, 2, {0x100, 0x240, 0, 0}},
                   {0x80000000, 0, {0x80000008, 0, 0, 0}},
                   {0x80000008, 0, {0x3030, 0, 0, 0}}};

struct vcpu {
    vcpu_registers registers;
    guest_cpuid cpuid;

    explicit vcpu(list const& entries = offered, mwait_bit mwait = mwait_bit::follows_misc_enable)
        : cpuid(environment{&registers}, id, mwait) {
        REQUIRE(replace(entries) == status::ok);
    }
    vcpu(vcpu const&) = delete;

    status replace(list const& entries) { return cpuid.replace(entries.data(), static_cast<uint32_t>(entries.size())); }
    bool matches(list const& entries) { return cpuid.matches(entries.data(), static_cast<uint32_t>(entries.size())); }
    /// The guest writes registers.
    void writes(cpuid_inputs const& now) {
        registers.inputs = now;
        cpuid.mark_changed();
    }
};

cpuid_state<16> saved(guest_cpuid& cpuid) {
    cpuid_state<16> state;
    state.version = 77;
    for (cpuid_entry& e : state.entries) e = {1, 2, {3, 4, 5, 6}};  // what was in that memory before
    cpuid.save(state);
    return state;
}

constexpr cpuid_inputs all_on{cr4_osxsave | cr4_pke, 0xe7, 0x1900, apic_on, mwait_on};

cpuid_entry& entry(list& entries, uint32_t leaf, uint32_t subleaf) {
    for (cpuid_entry& e : entries)
        if (e.leaf == leaf && e.subleaf == subleaf) return e;
    throw std::logic_error("no such entry in the test");
}

/// What the entries must look like with these registers.
list resolved(list entries, cpuid_inputs const& in) {
    auto put = [](uint32_t& word, uint32_t mask, bool on) { word = on ? word | mask : word & ~mask; };
    for (cpuid_entry& e : entries) {
        if (e.leaf == 1) e.regs.ebx = (e.regs.ebx & 0xffffff) | (id.value & 0xff) << 24;
        if (e.leaf == 1) put(e.regs.ecx, osxsave, (in.cr4 & cr4_osxsave) != 0);
        if (e.leaf == 1) put(e.regs.ecx, monitor, (in.misc_enable & mwait_on) != 0);
        if (e.leaf == 1) put(e.regs.edx, apic, (in.apic_base & apic_on) != 0);
        if (e.leaf == 7 && e.subleaf == 0) put(e.regs.ecx, ospke, (in.cr4 & cr4_pke) != 0);
        if (e.leaf == 0xb) e.regs.edx = id.value;
        if (e.leaf == 0xd && e.subleaf == 0) e.regs.ebx = 0x10000 | static_cast<uint32_t>(in.xcr0);
        if (e.leaf == 0xd && e.subleaf == 1) e.regs.ebx = 0x20000 | static_cast<uint32_t>(in.xcr0 | in.xss);
    }
    return entries;
}

}  // namespace

// --- the bits --------------------------------------------------------------------------------------------------------

TEST_CASE("Each changing bit follows its own register, and no other bit changes", "[host][runtime_cpuid]") {
    list ones = offered;
    for (auto const& [leaf, subleaf] : {std::pair{1u, 0u}, {7u, 0u}, {7u, 1u}})
        entry(ones, leaf, subleaf).regs = {~0u, ~0u, ~0u, ~0u};
    for (list const& entries : {offered, ones}) {
        vcpu v(entries);
        for (unsigned row = 0; row < 32; ++row) {
            // The other bits of each register are the opposite of the one that counts.
            auto word = [&](unsigned bit, uint64_t mask) { return (row & bit) != 0 ? mask : ~mask; };
            uint64_t const cr4 = (row & 1 ? cr4_osxsave : 0) | (row & 2 ? cr4_pke : 0) | (row & 16 ? 0 : 0x620);
            cpuid_inputs const in{cr4, row, uint64_t{row} << 8, word(4, apic_on), word(8, mwait_on)};
            CAPTURE(row);
            v.writes(in);
            for (cpuid_entry const& e : resolved(entries, in)) CHECK(v.cpuid.read(e.leaf, e.subleaf) == e.regs);
        }
    }
}

TEST_CASE("On an AMD or Hygon CPU leaf 0x80000001 repeats the APIC bit, on others it stays as given",
          "[host][runtime_cpuid]") {
    constexpr cpuid_regs vendors[] = {{1, 0x68747541, 0x444d4163, 0x69746e65},
                                      {1, 0x6f677948, 0x656e6975, 0x6e65476e},
                                      {1, 0x756e6547, 0x6c65746e, 0x49656e69},
                                      {}};
    for (cpuid_regs const& vendor : vendors)
        for (uint32_t edx : {0u, apic, ~0u, ~apic})
            for (uint64_t base : {uint64_t{0}, apic_on, ~apic_on}) {
                bool const repeats = &vendor < &vendors[2];
                CAPTURE(vendor.ebx, edx, base);
                list const entries{{0, 0, vendor},
                                   {1, 0, {0, 0, 0, edx}},
                                   {0x80000000, 0, {0x80000001, 0, 0, 0}},
                                   {0x80000001, 0, {1, 2, 3, edx}}};
                vcpu v(entries);
                v.writes({0, 0, 0, base, 0});
                uint32_t const follows = base == apic_on ? edx | apic : edx & ~apic;
                CHECK(v.cpuid.read(0x80000001, 0) == cpuid_regs{1, 2, 3, repeats ? follows : edx});
                CHECK(v.cpuid.read(1, 0).edx == follows);
                CHECK(v.matches(entries));
                v.registers.inputs.apic_base ^= apic_on;
                CHECK_FALSE(v.cpuid.all_changes_marked());
            }
    list const alone{{0, 0, vendors[0]}, {0x80000001, 0, {0, 0, 0, apic}}};
    vcpu v(alone);
    CHECK(v.cpuid.read(0x80000001, 0).edx == 0);
    v.registers.inputs.apic_base = apic_on;
    CHECK_FALSE(v.cpuid.all_changes_marked());
}

TEST_CASE("MONITOR stays as it was given unless the VMM says otherwise", "[host][runtime_cpuid]") {
    vcpu_registers registers;
    registers.inputs.misc_enable = mwait_on;
    guest_cpuid plain(environment{&registers}, id);
    REQUIRE(plain.replace(offered.data(), 2) == status::ok);
    CHECK((plain.read(1, 0).ecx & monitor) != 0);
    list without = offered;
    entry(without, 1, 0).regs.ecx &= ~monitor;
    REQUIRE(plain.replace(without.data(), 2) == status::ok);
    CHECK((plain.read(1, 0).ecx & monitor) == 0);
}

TEST_CASE("MONITOR stays as it was given where the VMM says so", "[host][runtime_cpuid]") {
    for (uint32_t given : {0u, monitor})
        for (uint64_t misc_enable : {uint64_t{0}, mwait_on}) {
            list entries = offered;
            entry(entries, 1, 0).regs.ecx = given;
            vcpu v(entries, mwait_bit::as_given);
            v.writes({0, 1, 0, 0, misc_enable});
            CHECK(v.cpuid.read(1, 0).ecx == given);
        }
}

TEST_CASE("The size of the standard format is that of XCR0, and 0 for a guest without XSAVE", "[host][runtime_cpuid]") {
    list entries = offered;
    for (bool has : {true, false}) {
        entry(entries, 1, 0).regs.ecx = has ? xsave : ~xsave;
        vcpu v(entries);
        v.writes({0, 0x207, 0x1800, 0, 0});  // also while CR4.OSXSAVE is clear
        CHECK(v.cpuid.read(0xd, 0).ebx == (has ? 0x10207 : 0));
        CHECK(v.cpuid.read(0xd, 0).ecx == 0xa88);
    }
    list const no_features{{0, 0, offered[0].regs}, {0xd, 0, {7, 0x111, 0, 0}}};
    CHECK(vcpu(no_features).cpuid.read(0xd, 0) == cpuid_regs{7, 0, 0, 0});
}

TEST_CASE("The size of the compacted format is that of XCR0 and XSS, where XSAVES or XSAVEC can write it",
          "[host][runtime_cpuid]") {
    list entries = offered;
    for (uint32_t eax = 0; eax < 32; ++eax) {
        CAPTURE(eax);
        entry(entries, 0xd, 1).regs.eax = eax;
        vcpu v(entries);
        v.writes({0, 0x207, 0x1800, 0, 0});
        bool const compacts = (eax & 2) != 0 || (eax & 8) != 0;
        CHECK(v.cpuid.read(0xd, 1) == cpuid_regs{eax, compacts ? 0x21a07u : 0u, 0x1900, 0});
    }
}

TEST_CASE("A layout that is read from the guest's own table gives the sizes in it", "[host][runtime_cpuid]") {
    struct guest {
        cpuid_inputs const* registers;
        xstate_layout const* layout;
        cpuid_inputs read_cpuid_inputs() const { return *registers; }
        xstate_layout const& xstate_sizes() const { return *layout; }
    };
    auto const count = static_cast<uint32_t>(offered.size());
    cpuid_table<16> table(id);
    REQUIRE(table.assign(offered.data(), count) == status::ok);
    xstate_layout layout;
    REQUIRE(layout.set_up(table) == status::ok);
    cpuid_inputs registers{};
    runtime_cpuid<guest, 16> cpuid({&registers, &layout}, id);
    REQUIRE(cpuid.replace(offered.data(), count) == status::ok);
    for (auto const& [xcr0, bytes] : {std::pair{1u, 576u}, {3u, 576u}, {7u, 832u}}) {
        registers.xcr0 = xcr0;
        cpuid.mark_changed();
        CHECK(cpuid.read(0xd, 0).ebx == bytes);
        CHECK(cpuid.read(0xd, 1).ebx == bytes);
    }
}

TEST_CASE("A table stays marked until its layout is set up, also from itself", "[host][runtime_cpuid]") {
    struct guest {
        vcpu_registers* of;
        xstate_layout const* layout;
        cpuid_inputs read_cpuid_inputs() const { return ++of->reads, of->inputs; }
        xstate_layout const& xstate_sizes() const { return *layout; }
    };
    vcpu_registers registers;
    registers.inputs = {cr4_osxsave, 7, 0, 0, 0};
    xstate_layout layout;
    runtime_cpuid<guest, 16> cpuid({&registers, &layout}, id);
    REQUIRE(cpuid.replace(offered.data(), static_cast<uint32_t>(offered.size())) == status::ok);
    CHECK(cpuid.read(0xd, 0).ebx == 0);
    REQUIRE(layout.set_up(cpuid.table()) == status::ok);
    CHECK(cpuid.all_changes_marked());
    CHECK(cpuid.read(0xd, 0).ebx == 832);
    CHECK(cpuid.read(0xd, 1).ebx == 832);
    // From then on it is asked for no more.
    uint32_t const reads = registers.reads;
    for (int i = 0; i < 10; ++i) (void)cpuid.read(1, 0);
    CHECK(registers.reads == reads);

    // A guest without XSAVE, or without its leaf, has nothing to wait for.
    xstate_layout const none;
    for (bool leaf : {true, false}) {
        list entries = offered;
        if (leaf) entry(entries, 1, 0).regs.ecx = 0;
        if (!leaf) entry(entries, 0xd, 0).leaf = 0xe;
        runtime_cpuid<guest, 16> without({&registers, &none}, id);
        REQUIRE(without.replace(entries.data(), static_cast<uint32_t>(entries.size())) == status::ok);
        (void)without.table();
        registers.reads = 0;
        (void)without.read(1, 0);
        CHECK(registers.reads == 0);
    }
}

TEST_CASE("A table without the leaves that change is left alone", "[host][runtime_cpuid]") {
    list const few{{0, 0, {1, 0, 0, 0}}, {2, 0, {~0u, ~0u, ~0u, ~0u}}};
    vcpu v(few);
    v.writes(all_on);
    CHECK(v.cpuid.read(2, 0) == few[1].regs);
    CHECK(v.registers.sizes_asked == 0);
    CHECK(v.matches(few));
}

// --- laziness --------------------------------------------------------------------------------------------------------

TEST_CASE("Marking does nothing but mark, and however many marks are one update", "[host][runtime_cpuid]") {
    vcpu v;
    (void)v.cpuid.read(1, 0);
    v.registers = {};
    for (int i = 0; i < 100; ++i) v.writes(all_on);
    CHECK(v.registers.reads == 0);
    CHECK(v.registers.updates == 0);
    CHECK(v.registers.sizes_asked == 0);
    for (int i = 0; i < 100; ++i)
        for (cpuid_entry const& e : offered) (void)v.cpuid.read(e.leaf, e.subleaf);
    CHECK(v.registers.reads == 1);
    CHECK(v.registers.updates == 1);
    CHECK(v.registers.sizes_asked == 2);
}

TEST_CASE("Whoever reads, compares, copies or hands out a marked table gets it up to date", "[host][runtime_cpuid]") {
    list const now = resolved(offered, all_on);
    auto const same = [&](cpuid_entry const* entries) { return std::equal(now.begin(), now.end(), entries); };
    std::pair<char const*, std::function<bool(guest_cpuid&)>> const ways[] = {
        {"read", [&](guest_cpuid& t) { return t.read(1, 0) == now[1].regs; }},
        {"read of a leaf out of range", [&](guest_cpuid& t) { return t.read(0x20, 0) == cpuid_regs{}; }},
        {"table", [&](guest_cpuid& t) { return same(t.table().entries()); }},
        {"save", [&](guest_cpuid& t) { return same(saved(t).entries); }},
        {"matches", [&](guest_cpuid& t) { return t.matches(offered.data(), static_cast<uint32_t>(offered.size())); }}};
    for (auto const& [name, way] : ways) {
        CAPTURE(name);
        vcpu v;
        (void)v.cpuid.read(1, 0);
        v.writes(all_on);
        CHECK(way(v.cpuid));
        CHECK(v.registers.updates == 2);
        CHECK(v.cpuid.all_changes_marked());
        // And what it leaves behind is that too.
        CHECK(same(v.cpuid.table().entries()));
        CHECK(v.registers.updates == 2);
    }
}

TEST_CASE("A change that nobody marked is found", "[host][runtime_cpuid]") {
    cpuid_inputs const changes[] = {{cr4_osxsave, 0, 0, 0, 0}, {cr4_pke, 0, 0, 0, 0}, {0, 1, 0, 0, 0},
                                    {0, 0, 0x100, 0, 0},       {0, 0, 0, apic_on, 0}, {0, 0, 0, 0, mwait_on}};
    for (cpuid_inputs const& change : changes) {
        vcpu v;
        CHECK(v.cpuid.all_changes_marked());
        (void)v.cpuid.read(1, 0);
        CHECK(v.cpuid.all_changes_marked());
        v.registers.inputs = change;
        CHECK_FALSE(v.cpuid.all_changes_marked());
        v.cpuid.mark_changed();
        CHECK(v.cpuid.all_changes_marked());
    }
    vcpu v;
    (void)v.cpuid.read(1, 0);
    v.registers.inputs = {0x620, 0, 0, 0x100, 1};  // none that CPUID shows
    CHECK(v.cpuid.all_changes_marked());
}

// --- replacing -------------------------------------------------------------------------------------------------------

TEST_CASE("After the guest has run, the entries that it was given are still the same", "[host][runtime_cpuid]") {
    vcpu v;
    v.writes(all_on);
    CHECK(v.matches(offered));                    // as user space keeps them
    CHECK(v.matches(resolved(offered, all_on)));  // as it read them back
    v.writes({});
    CHECK(v.matches(resolved(offered, all_on)));  // before the guest changed its registers again
    v.registers.inputs = all_on;                  // and a mark was forgotten
    CHECK(v.matches(offered));
    CHECK((v.cpuid.read(1, 0).ecx & osxsave) != 0);
    list shuffled(offered.rbegin(), offered.rend());
    CHECK(v.matches(shuffled));
}

TEST_CASE("Any other bit, in any register of any entry, makes entries differ", "[host][runtime_cpuid]") {
    vcpu v;
    v.writes(all_on);
    auto changes = [](cpuid_entry const& e, int reg, uint32_t mask) {
        if (e.leaf == 1 && reg == 1) return mask >= 0x01000000;
        if (e.leaf == 1) return (reg == 2 && (mask & (osxsave | monitor)) != 0) || (reg == 3 && mask == apic);
        if (e.leaf == 7 && e.subleaf == 0) return reg == 2 && mask == ospke;
        if (e.leaf == 0xb) return reg == 3 || (reg == 2 && mask < 0x100);
        return e.leaf == 0xd && e.subleaf < 2 && reg == 1;
    };
    for (size_t n = 0; n < offered.size(); ++n)
        for (int reg = 0; reg < 4; ++reg)
            for (uint32_t bit = 0; bit < 32; ++bit) {
                CAPTURE(n, reg, bit);
                list other = offered;
                uint32_t* const words[] = {&other[n].regs.eax, &other[n].regs.ebx, &other[n].regs.ecx,
                                           &other[n].regs.edx};
                *words[reg] ^= 1u << bit;
                CHECK(v.matches(other) == changes(offered[n], reg, 1u << bit));
            }
}

TEST_CASE("Entries too few, too many, twice, or of another leaf or sub-leaf differ", "[host][runtime_cpuid]") {
    vcpu v;
    CHECK_FALSE(v.matches({}));
    for (size_t n = 0; n < offered.size(); ++n) {
        CAPTURE(n);
        list other = offered;
        other.erase(other.begin() + static_cast<long>(n));
        CHECK_FALSE(v.matches(other));
        other.push_back(other.front());
        CHECK_FALSE(v.matches(other));
        other.back() = offered[n];
        CHECK(v.matches(other));
        other.back().subleaf += 0x40;
        CHECK_FALSE(v.matches(other));
        other.back() = offered[n];
        other.back().leaf += 0x100;
        CHECK_FALSE(v.matches(other));
    }
    list more = offered;
    more.push_back({0x16, 0, {}});
    CHECK_FALSE(v.matches(more));
    list const one{{1, 0, {}}}, another{{0, 0, {}}};
    CHECK_FALSE(vcpu(one).matches(another));
}

TEST_CASE("A replacement that is refused loses no mark and no entry", "[host][runtime_cpuid]") {
    for (bool marked : {false, true}) {
        vcpu v;
        (void)v.cpuid.read(1, 0);
        if (marked) v.writes(all_on);
        CHECK(v.replace({{1, 0, {}}, {1, 0, {}}}) == status::bad_argument);
        CHECK(v.replace(list(17)) == status::bad_argument);
        CHECK(v.cpuid.table().size() == offered.size());
        list const expected = resolved(offered, v.registers.inputs);
        CHECK(std::equal(expected.begin(), expected.end(), v.cpuid.table().entries()));
        CHECK(v.registers.updates == (marked ? 2u : 1u));
    }
}

TEST_CASE("New entries get the bits that change at once, marked or not", "[host][runtime_cpuid]") {
    vcpu v;
    v.writes(all_on);
    (void)v.cpuid.read(1, 0);
    list other = offered;
    entry(other, 1, 0).regs.eax = 0x1234;
    REQUIRE(v.replace(other) == status::ok);
    list const expected = resolved(other, all_on);
    CHECK(std::equal(expected.begin(), expected.end(), v.cpuid.table().entries()));
    // Also the table's own, as user space read them.
    REQUIRE(v.cpuid.replace(v.cpuid.table().entries(), v.cpuid.table().size()) == status::ok);
    CHECK(std::equal(expected.begin(), expected.end(), v.cpuid.table().entries()));
}

// --- saving ----------------------------------------------------------------------------------------------------------

TEST_CASE("A saved table comes back on another vCPU with that one's registers and id", "[host][runtime_cpuid]") {
    vcpu from;
    from.writes(all_on);
    auto const state = saved(from.cpuid);
    static_assert(trivially_copyable<decltype(state)> && trivially_copyable<guest_cpuid>);

    vcpu_registers registers;
    guest_cpuid to(environment{&registers}, apic_id{7}, mwait_bit::follows_misc_enable);
    REQUIRE(to.restore(state) == status::ok);
    list expected = resolved(offered, {});
    for (cpuid_entry& e : expected)
        if (e.leaf == 0xb) e.regs.edx = 7;
    entry(expected, 1, 0).regs.ebx = 0x07000800;
    REQUIRE(to.table().size() == expected.size());
    CHECK(std::equal(expected.begin(), expected.end(), to.table().entries()));
    CHECK(to.read(0xb, 5) == cpuid_regs{0, 0, 5, 7});
    // Nothing of the old vCPU is left in the unused part, and saving again gives the same.
    CHECK(state.entries[offered.size()] == cpuid_entry{});
    CHECK(to.restore(saved(to)) == status::ok);
    CHECK(std::equal(expected.begin(), expected.end(), to.table().entries()));
}

TEST_CASE("A state that is not one is refused, and the table stays", "[host][runtime_cpuid]") {
    vcpu v;
    v.writes(all_on);
    auto const good = saved(v.cpuid);
    for (int defect = 0; defect < 4; ++defect) {
        CAPTURE(defect);
        auto bad = good;
        if (defect == 0) bad.version = 0;
        if (defect == 1) bad.version = 2;
        if (defect == 2) bad.count = 17;
        if (defect == 3) bad.entries[3] = bad.entries[2];
        CHECK(v.cpuid.restore(bad) == status::bad_argument);
        CHECK(std::equal(good.entries, good.entries + good.count, v.cpuid.table().entries()));
        CHECK(v.cpuid.table().size() == good.count);
    }
}

TEST_CASE("A reference to the table is out of date from the next mark until somebody asks", "[host][runtime_cpuid]") {
    vcpu v;
    auto const& kept = v.cpuid.table();
    v.writes(all_on);
    CHECK((kept.cpuid(1, 0).ecx & osxsave) == 0);
    (void)v.cpuid.table();
    CHECK((kept.cpuid(1, 0).ecx & osxsave) != 0);
}

TEST_CASE("A full table matches itself, in whatever order", "[host][runtime_cpuid]") {
    // In a constant expression, where an index beyond the notes that are kept of the entries does not compile.
    struct nothing {
        constexpr uint32_t standard_size(uint64_t) const { return 576; }
        constexpr uint32_t compacted_size(uint64_t) const { return 576; }
    };
    struct still {
        constexpr cpuid_inputs read_cpuid_inputs() const { return {}; }
        constexpr nothing xstate_sizes() const { return {}; }
    };
    constexpr auto full = [](auto capacity) {
        constexpr uint32_t n = decltype(capacity)::value;
        runtime_cpuid<still, n> table({}, apic_id{1});
        cpuid_entry entries[n]{}, reversed[n]{};
        for (uint32_t i = 0; i < n; ++i) entries[i] = {0x40000000 + i, 0, {i, 0, 0, 0}};
        for (uint32_t i = 0; i < n; ++i) reversed[i] = entries[n - 1 - i];
        bool const well = table.replace(entries, n) == status::ok && table.matches(reversed, n);
        reversed[0] = reversed[n - 1];
        return well && !table.matches(reversed, n);
    };
    static_assert(full(std::integral_constant<uint32_t, 63>()));
    static_assert(full(std::integral_constant<uint32_t, 64>()));
    static_assert(full(std::integral_constant<uint32_t, 65>()));
    CHECK(full(std::integral_constant<uint32_t, 128>()));
}

TEST_CASE("A CPUID table can be made and asked when the VMM is compiled", "[host][runtime_cpuid]") {
    struct fixed_sizes {
        constexpr uint32_t standard_size(uint64_t) const { return 576; }
        constexpr uint32_t compacted_size(uint64_t) const { return 640; }
    };
    struct fixed {
        constexpr cpuid_inputs read_cpuid_inputs() const { return {1 << 18, 1, 0, 0, 0}; }
        constexpr fixed_sizes xstate_sizes() const { return {}; }
    };
    constexpr auto ask = [](uint32_t leaf) {
        runtime_cpuid<fixed, 4> table({}, apic_id{1});
        cpuid_entry const entries[] = {{1, 0, {0, 0, xsave, 0}}, {0xd, 0, {3, 0, 0, 0}}};
        (void)table.replace(entries, 2);
        return table.read(leaf, 0);
    };
    static_assert(ask(1).ecx == (osxsave | xsave) && ask(0xd).ebx == 576);
    CHECK(ask(0xd) == cpuid_regs{3, 576, 0, 0});
}

// --- KVM's leaves ----------------------------------------------------------------------------------------------------

namespace {

/// What a host that can do all of it offers, without what `lacking` names, by the numbers of KVM's documentation.
bool offers(unsigned feature, bool hlt_exits, bool has_apic, std::vector<unsigned> const& lacking = {}) {
    uint32_t features = ~0u;
    for (unsigned n : lacking) features &= ~(1u << n);
    return (kvm_features_offered({features, hlt_exits, has_apic, false}) >> feature & 1) != 0;
}

constexpr bool exits = true, runs = false, ours = true, user_space = false;

}  // namespace

TEST_CASE("A kick is offered where HLT exits and the host has the APIC, and nowhere else", "[host][kvm_leaves]") {
    CHECK(offers(7, exits, ours));
    CHECK_FALSE(offers(7, runs, ours));
    CHECK_FALSE(offers(7, exits, user_space));
    CHECK_FALSE(offers(7, runs, user_space));
}

TEST_CASE("With the APIC in user space nothing is offered that names an APIC id, ends an interrupt or raises one",
          "[host][kvm_leaves]") {
    for (unsigned feature : {4u, 6u, 7u, 10u, 11u, 13u, 14u}) {
        CAPTURE(feature);
        CHECK(offers(feature, exits, ours));
        CHECK_FALSE(offers(feature, exits, user_space));
    }
    for (unsigned feature : {0u, 3u, 5u, 9u, 12u, 16u, 17u, 24u}) {
        CAPTURE(feature);
        CHECK(offers(feature, exits, user_space));
    }
}

TEST_CASE("A kind of asynchronous page fault is offered with asynchronous page faults only", "[host][kvm_leaves]") {
    for (unsigned kind : {10u, 14u}) {
        CHECK(offers(kind, exits, ours));
        CHECK_FALSE(offers(kind, exits, ours, {4}));
    }
    CHECK(offers(4, exits, ours, {10, 14}));
}

TEST_CASE("The TLB flush is offered with the steal-time page only", "[host][kvm_leaves]") {
    CHECK(offers(9, exits, ours));
    CHECK_FALSE(offers(9, exits, ours, {5}));
    CHECK(offers(5, exits, ours, {9}));
}

TEST_CASE("A host that has all that a feature needs offers what it can do, and never more", "[host][kvm_leaves]") {
    CHECK(kvm_features_offered({~0u, true, true, false}) == ~0u);
    for (unsigned feature = 0; feature < 32; ++feature)
        for (unsigned row = 0; row < 8; ++row) {
            CAPTURE(feature, row);
            kvm_host const host{1u << feature, (row & 1) != 0, (row & 2) != 0, (row & 4) != 0};
            CHECK((kvm_features_offered(host) & ~host.features) == 0);
            CHECK(kvm_features_offered({0, host.hlt_exits, host.apic_map, host.dedicated}) == 0);
        }
}

TEST_CASE("KVM's leaves are the signature, then what is offered and the hint", "[host][kvm_leaves]") {
    for (bool dedicated : {false, true}) {
        auto const leaves = make_kvm_leaves({0x01007efb, false, true, dedicated});
        CHECK(leaves.entries[0] == cpuid_entry{0x40000000, 0, {0x40000001, 0x4b4d564b, 0x564b4d56, 0x4d}});
        CHECK(leaves.entries[1] == cpuid_entry{0x40000001, 0, {0x01007e7b, 0, 0, dedicated ? 1u : 0u}});
    }
}

TEST_CASE("A guest finds KVM's leaves wherever they are, and the hint", "[host][kvm_leaves]") {
    for (uint8_t place : {uint8_t{0}, uint8_t{1}, uint8_t{255}})
        for (bool dedicated : {false, true}) {
            CAPTURE(place, dedicated);
            uint32_t const offer = mask(abi::kvm_feature::steal_time) | mask(abi::kvm_feature::pv_unhalt);
            auto const leaves = make_kvm_leaves({offer, false, true, dedicated}, place);
            list entries = offered;
            entry(entries, 1, 0).regs.ecx |= 1u << 31;
            entries.insert(entries.end(), std::begin(leaves.entries), std::end(leaves.entries));
            if (place != 0)  // Hyper-V's
                entries.push_back({0x40000000, 0, {0x4000000b, 0x7263694d, 0x666f736f, 0x76482074}});
            vcpu v(entries);
            struct machine {
                guest_cpuid* table;
                cpuid_regs cpuid(uint32_t leaf, uint32_t subleaf) const { return table->read(leaf, subleaf); }
            };
            auto const found = guest::detect_features(machine{&v.cpuid});
            CHECK(found.has(abi::kvm_feature::steal_time));
            CHECK_FALSE(found.has(abi::kvm_feature::pv_unhalt));
            CHECK(found.has(abi::kvm_hint::realtime) == dedicated);
        }
}
