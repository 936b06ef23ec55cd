// SPDX-License-Identifier: MIT
#include <pvx/guest/features.hpp>

#include <pvx/guest/configuration.hpp>

#include "support/catch.hpp"
#include "support/fake_machine.hpp"

using namespace pvx::guest;
using pvx::abi::cpuid_regs;
using pvx::abi::kvm_feature;
using pvx_test::fake_machine;
using pvx_test::fake_state;

namespace {

constexpr uint32_t hypervisor_bit = 1u << 31;
constexpr uint32_t mwait_bit = 1u << 3;
constexpr cpuid_regs kvm_base(uint32_t last) { return {last, 0x4b4d564b, 0x564b4d56, 0x0000004d}; }
constexpr cpuid_regs hyperv_base{0x4000000c, 0x7263694d, 0x666f736f, 0x76482074};
constexpr cpuid_regs xen_base{0x40000004, 0x566e6558, 0x65584d4d, 0x4d4d566e};
constexpr cpuid_regs pvx_base(uint32_t last) { return {last, 0x70787670, 0x76707876, 0x78767078}; }
constexpr cpuid_regs tcg_base{0x40000001, 0x54474354, 0x43544743, 0x47435447};
constexpr cpuid_regs intel_leaf0{0x1f, 0x756e6547, 0x6c65746e, 0x49656e69};
constexpr cpuid_regs amd_leaf0{0x10, 0x68747541, 0x444d4163, 0x69746e65};

/// A CPU without hypervisor leaves: reading one is unplanned, and fails the test.
fake_state cpu(cpuid_regs leaf0, uint32_t ecx) {
    fake_state s;
    s.cpuid_table[{0, 0}] = leaf0;
    s.cpuid_table[{1, 0}] = {0, 0, ecx, 0};
    s.cpuid_table[{0x80000000, 0}] = {0x80000008, 0, 0, 0};
    s.cpuid_table[{0x80000007, 0}] = {0, 0, 0, 1u << 8};
    return s;
}

/// All bases of the hypervisor range answer with `other`, as Intel CPUs answer absent leaves.
void fill_range(fake_state& s, cpuid_regs other) {
    for (uint32_t base = 0x40000000; base <= 0x4000ff00; base += 0x100) s.cpuid_table[{base, 0}] = other;
}

constexpr uint32_t bits(std::initializer_list<kvm_feature> list) {
    uint32_t v = 0;
    for (kvm_feature f : list) v |= pvx::abi::mask(f);
    return v;
}

features kvm_guest(uint32_t offered, uint32_t hints = 0) {
    features f;
    f.hypervisor_present = true;
    f.signatures[f.signature_count++] = {hypervisor::kvm, 0x40000000, 0x40000001, pvx::abi::kvm_signature};
    f.kvm_bits = offered;
    f.kvm_hints = hints;
    return f;
}

}  // namespace

TEST_CASE("No hypervisor leaf is read where the CPU says that there is no hypervisor", "[guest][features]") {
    fake_state s = cpu(intel_leaf0, 0);
    features const f = detect_features(fake_machine{s});
    CHECK_FALSE(f.hypervisor_present);
    CHECK(f.signature_count == 0);
    CHECK(s.cpuid_reads == 4);
    CHECK(f.vendor == pvx::abi::cpu_vendor::intel);
    CHECK(f.invariant_tsc);
}

TEST_CASE("Extended leaves beyond the last one are not read", "[guest][features]") {
    fake_state s = cpu(amd_leaf0, 0);
    s.cpuid_table[{0x80000000, 0}].eax = 0x80000006;
    s.cpuid_table.erase({0x80000007, 0});
    CHECK_FALSE(detect_features(fake_machine{s}).invariant_tsc);
}

TEST_CASE("KVM at the first leaf is found with two reads, and the scan ends at the first free base behind it",
          "[guest][features]") {
    fake_state s = cpu(amd_leaf0, hypervisor_bit | mwait_bit);
    s.cpuid_table[{0x40000000, 0}] = kvm_base(0x40000001);
    s.cpuid_table[{0x40000100, 0}] = {};
    s.cpuid_table[{0x40000001, 0}] = {0x01007efb, 0, 0, 1};
    features const f = detect_features(fake_machine{s});
    CHECK(f.vendor == pvx::abi::cpu_vendor::amd);
    CHECK(f.mwait);
    REQUIRE(f.signature_count == 1);
    CHECK(f.signatures[0].kind == hypervisor::kvm);
    CHECK(f.signatures[0].last == 0x40000001);
    CHECK(f.kvm_bits == 0x01007efb);
    CHECK(f.has(kvm_feature::steal_time));
    CHECK_FALSE(f.has(kvm_feature::migration_control));
    CHECK(f.has(pvx::abi::kvm_hint::realtime));
    CHECK(s.cpuid_reads == 7);
    CHECK(f.proposed_bits == 0);
}

TEST_CASE("KVM has a features leaf, whatever it gives as its last one", "[guest][features]") {
    for (uint32_t last : {0u, 0x40000000u, 0x40000001u, 0x40000100u, 0x40000101u}) {
        fake_state s = cpu(amd_leaf0, hypervisor_bit);
        s.cpuid_table[{0x40000000, 0}] = hyperv_base;
        s.cpuid_table[{0x40000100, 0}] = kvm_base(last);
        s.cpuid_table[{0x40000101, 0}] = {0x20, 0, 0, 0};
        s.cpuid_table[{0x40000200, 0}] = {};
        features const f = detect_features(fake_machine{s});
        CAPTURE(last);
        REQUIRE(f.find(hypervisor::kvm) != nullptr);
        CHECK(f.find(hypervisor::kvm)->last == 0x40000101);
        CHECK(f.has(kvm_feature::steal_time));
    }
}

TEST_CASE("KVM behind Hyper-V leaves is found at the next base, and both are reported", "[guest][features]") {
    fake_state s = cpu(intel_leaf0, hypervisor_bit);
    s.cpuid_table[{0x40000000, 0}] = hyperv_base;
    s.cpuid_table[{0x40000100, 0}] = kvm_base(0x40000101);
    s.cpuid_table[{0x40000101, 0}] = {0x01000020, 0, 0, 0};
    s.cpuid_table[{0x40000200, 0}] = intel_leaf0;
    features const f = detect_features(fake_machine{s});
    REQUIRE(f.signature_count == 2);
    CHECK(f.signatures[0].kind == hypervisor::hyperv);
    CHECK(f.signatures[1].kind == hypervisor::kvm);
    CHECK(f.signatures[1].base == 0x40000100);
    CHECK(f.find(hypervisor::kvm) == &f.signatures[1]);
    CHECK(f.has(kvm_feature::clocksource_stable_bit));
}

TEST_CASE("KVM in the last place of the range is found", "[guest][features]") {
    fake_state s = cpu(intel_leaf0, hypervisor_bit);
    fill_range(s, {});
    s.cpuid_table[{0x4000ff00, 0}] = kvm_base(0x4000ff01);
    s.cpuid_table[{0x4000ff01, 0}] = {0x20, 0, 0, 0};
    features const f = detect_features(fake_machine{s});
    REQUIRE(f.find(hypervisor::kvm) != nullptr);
    CHECK(f.find(hypervisor::kvm)->base == 0x4000ff00);
}

TEST_CASE("The scan reads all 256 bases and not one more where KVM hides", "[guest][features]") {
    fake_state s = cpu(intel_leaf0, hypervisor_bit);
    fill_range(s, {});
    features const f = detect_features(fake_machine{s});
    CHECK(f.hypervisor_present);
    CHECK(f.signature_count == 0);
    CHECK(s.cpuid_reads == 4 + 256);
}

TEST_CASE("Other leaves' data at absent bases is not taken for hypervisors", "[guest][features]") {
    fake_state s = cpu(intel_leaf0, hypervisor_bit);
    fill_range(s, {7, 0x340, 0x340, 0});
    s.cpuid_table[{0x40000000, 0}] = tcg_base;
    features const f = detect_features(fake_machine{s});
    REQUIRE(f.signature_count == 1);
    CHECK(f.signatures[0].kind == hypervisor::tcg);
}

TEST_CASE("A hypervisor that is not in the table is reported by its name", "[guest][features]") {
    fake_state s = cpu(intel_leaf0, hypervisor_bit);
    fill_range(s, {});
    s.cpuid_table[{0x40000000, 0}] = {0x40000000, 0x61626364, 0x65666768, 0x696a6b6c};
    features const f = detect_features(fake_machine{s});
    REQUIRE(f.signature_count == 1);
    CHECK(f.signatures[0].kind == hypervisor::unknown);
    CHECK(f.signatures[0].name.at(0) == 'd');
}

TEST_CASE("More signatures than there is room for lose none of KVM's features", "[guest][features]") {
    fake_state s = cpu(intel_leaf0, hypervisor_bit);
    for (uint32_t i = 0; i < 6; ++i) s.cpuid_table[{0x40000000 + i * 0x100, 0}] = hyperv_base;
    s.cpuid_table[{0x40000600, 0}] = kvm_base(0x40000601);
    s.cpuid_table[{0x40000601, 0}] = {0x20, 0, 0, 0};
    s.cpuid_table[{0x40000700, 0}] = {};
    features const f = detect_features(fake_machine{s});
    CHECK(f.signature_count == features::max_signatures);
    CHECK(f.find(hypervisor::kvm) != nullptr);
    CHECK(f.has(kvm_feature::steal_time));
}

TEST_CASE("The proposed extensions are found at the first free base behind KVM, whatever stands between",
          "[guest][features]") {
    fake_state s = cpu(amd_leaf0, hypervisor_bit);
    s.cpuid_table[{0x40000000, 0}] = hyperv_base;
    s.cpuid_table[{0x40000100, 0}] = kvm_base(0x40000101);
    s.cpuid_table[{0x40000101, 0}] = {0x20, 0, 0, 0};
    s.cpuid_table[{0x40000200, 0}] = xen_base;
    s.cpuid_table[{0x40000300, 0}] = pvx_base(0x40000301);
    s.cpuid_table[{0x40000301, 0}] = {1, 0, 0, 0};
    features const f = detect_features(fake_machine{s});
    REQUIRE(f.find(hypervisor::pvx) != nullptr);
    CHECK(f.find(hypervisor::pvx)->base == 0x40000300);
    CHECK(f.find(hypervisor::pvx)->last == 0x40000301);
    CHECK(f.proposed_bits == 1);
    CHECK(f.kvm_bits == 0x20);
    CHECK(s.cpuid_reads == 4 + 6);
}

TEST_CASE("The signature of the proposed extensions counts only behind KVM's, and not behind a gap",
          "[guest][features]") {
    fake_state before = cpu(amd_leaf0, hypervisor_bit);
    before.cpuid_table[{0x40000000, 0}] = pvx_base(0x40000001);
    before.cpuid_table[{0x40000001, 0}] = {1, 0, 0, 0};
    before.cpuid_table[{0x40000100, 0}] = kvm_base(0x40000101);
    before.cpuid_table[{0x40000101, 0}] = {0x20, 0, 0, 0};
    before.cpuid_table[{0x40000200, 0}] = {};
    CHECK(detect_features(fake_machine{before}).proposed_bits == 0);

    fake_state beyond = cpu(amd_leaf0, hypervisor_bit);
    beyond.cpuid_table[{0x40000000, 0}] = kvm_base(0x40000001);
    beyond.cpuid_table[{0x40000001, 0}] = {0x20, 0, 0, 0};
    beyond.cpuid_table[{0x40000100, 0}] = {};
    beyond.cpuid_table[{0x40000200, 0}] = pvx_base(0x40000201);
    CHECK(detect_features(fake_machine{beyond}).proposed_bits == 0);
    CHECK(beyond.cpuid_reads == 7);

    fake_state alone = cpu(amd_leaf0, hypervisor_bit);
    fill_range(alone, {});
    alone.cpuid_table[{0x40000000, 0}] = pvx_base(0x40000001);
    CHECK(detect_features(fake_machine{alone}).proposed_bits == 0);
}

TEST_CASE("Where KVM's signature is there twice, the first is the one that counts", "[guest][features]") {
    fake_state s = cpu(amd_leaf0, hypervisor_bit);
    s.cpuid_table[{0x40000000, 0}] = kvm_base(0x40000001);
    s.cpuid_table[{0x40000001, 0}] = {0x20, 0, 0, 1};
    s.cpuid_table[{0x40000100, 0}] = kvm_base(0x40000101);
    s.cpuid_table[{0x40000101, 0}] = {0x01000000, 0, 0, 0};
    s.cpuid_table[{0x40000200, 0}] = {};
    features const f = detect_features(fake_machine{s});
    REQUIRE(f.find(hypervisor::kvm) != nullptr);
    CHECK(f.find(hypervisor::kvm)->base == 0x40000000);
    CHECK(f.kvm_bits == 0x20);
    CHECK(f.kvm_hints == 1);
}

TEST_CASE("The in-host extension is used where it and PV TLB flush are, unless the user says no",
          "[guest][configuration]") {
    uint32_t const flushing = bits({kvm_feature::pv_tlb_flush, kvm_feature::steal_time});
    features f = kvm_guest(flushing);
    CHECK(configure(f, 2).in_host.why == reason::not_offered);
    for (uint32_t proposed : {2u, 0x80000000u, ~1u}) {
        f.proposed_bits = proposed;
        CHECK(configure(f, 2).in_host.why == reason::not_offered);
    }
    f.proposed_bits = 1;
    CHECK(bool(configure(f, 2).in_host));
    switches user;
    user.in_host = false;
    CHECK(configure(f, 2, user).in_host.why == reason::switched_off);
    CHECK(bool(configure(f, 2, user).tlb_flush));

    // Without PV TLB flush for its reason, whatever the extension's own switch says.
    user.tlb_flush = false;
    CHECK(configure(f, 2, user).in_host.why == reason::switched_off);
    CHECK(configure(f, 1).in_host.why == reason::single_cpu);
    f.kvm_hints = 1;
    CHECK(configure(f, 2).in_host.why == reason::dedicated_cpus);
    f = kvm_guest(bits({kvm_feature::steal_time}));
    f.proposed_bits = 1;
    CHECK(configure(f, 2).in_host.why == reason::not_offered);
    f = kvm_guest(bits({kvm_feature::pv_tlb_flush}));
    f.proposed_bits = 1;
    CHECK(configure(f, 2).in_host.why == reason::needs_steal_time);
    f = kvm_guest(flushing);
    f.proposed_bits = 1;
    f.mwait = true;
    CHECK(configure(f, 2).in_host.why == reason::waits_in_mwait);
}

TEST_CASE("PV TLB flush needs flush and steal time, and no hint, no MWAIT and more than one CPU",
          "[guest][configuration]") {
    for (unsigned row = 0; row < 32; ++row) {
        bool const flush = row & 1, steal = row & 2, realtime = row & 4, mwait = row & 8, alone = row & 16;
        features f =
            kvm_guest((flush ? bits({kvm_feature::pv_tlb_flush}) : 0) | (steal ? bits({kvm_feature::steal_time}) : 0),
                      realtime ? 1 : 0);
        f.mwait = mwait;
        configuration const c = configure(f, alone ? 1 : 2);
        CAPTURE(flush, steal, realtime, mwait, alone);
        CHECK(bool(c.tlb_flush) == (flush && steal && !realtime && !mwait && !alone));
        CHECK(bool(c.steal_time) == steal);
        if (!flush) {
            CHECK(c.tlb_flush.why == reason::not_offered);
        } else if (alone) {
            CHECK(c.tlb_flush.why == reason::single_cpu);
        } else if (realtime) {
            CHECK(c.tlb_flush.why == reason::dedicated_cpus);
        } else if (!steal) {
            CHECK(c.tlb_flush.why == reason::needs_steal_time);
        } else if (mwait) {
            CHECK(c.tlb_flush.why == reason::waits_in_mwait);
        }
    }
}

TEST_CASE("Directed yield follows the same rule as PV TLB flush", "[guest][configuration]") {
    for (unsigned row = 0; row < 32; ++row) {
        bool const yield = row & 1, steal = row & 2, realtime = row & 4, mwait = row & 8, alone = row & 16;
        features f =
            kvm_guest((yield ? bits({kvm_feature::pv_sched_yield}) : 0) | (steal ? bits({kvm_feature::steal_time}) : 0),
                      realtime ? 1 : 0);
        f.mwait = mwait;
        CHECK(bool(configure(f, alone ? 1 : 2).sched_yield) == (yield && steal && !realtime && !mwait && !alone));
    }
}

TEST_CASE("IPIs by hypercall need the feature and a second CPU, whatever the hints", "[guest][configuration]") {
    features f = kvm_guest(bits({kvm_feature::pv_send_ipi}), 1);
    f.mwait = true;
    CHECK(bool(configure(f, 2).send_ipi));
    CHECK(configure(f, 1).send_ipi.why == reason::single_cpu);
    CHECK(configure(kvm_guest(0), 2).send_ipi.why == reason::not_offered);
}

TEST_CASE("The kick is for hosts that offer it and CPUs that are shared", "[guest][configuration]") {
    CHECK(bool(configure(kvm_guest(bits({kvm_feature::pv_unhalt})), 2).kick));
    CHECK(configure(kvm_guest(bits({kvm_feature::pv_unhalt}), 1), 2).kick.why == reason::dedicated_cpus);
    CHECK(configure(kvm_guest(bits({kvm_feature::pv_unhalt})), 1).kick.why == reason::single_cpu);
    CHECK(configure(kvm_guest(0), 2).kick.why == reason::not_offered);
}

TEST_CASE("Either clock feature gives a clock, and its stable flag needs a bit of its own", "[guest][configuration]") {
    CHECK(bool(configure(kvm_guest(bits({kvm_feature::clocksource})), 1).clock));
    CHECK(bool(configure(kvm_guest(bits({kvm_feature::clocksource2})), 1).clock));
    CHECK(configure(kvm_guest(bits({kvm_feature::clocksource2})), 1).clock_stable.why == reason::not_offered);
    CHECK(bool(
        configure(kvm_guest(bits({kvm_feature::clocksource2, kvm_feature::clocksource_stable_bit})), 1).clock_stable));
    CHECK(configure(kvm_guest(bits({kvm_feature::clocksource_stable_bit})), 1).clock_stable.why == reason::not_offered);
}

TEST_CASE("The user's switch beats every bit of the host, and its reason is the one that is given",
          "[guest][configuration]") {
    features const f = kvm_guest(~0u & ~bits({kvm_feature::mmu_op}));
    switches off;
    off.clock = off.steal_time = off.tlb_flush = off.in_host = off.send_ipi = off.sched_yield = off.kick = false;
    configuration const c = configure(f, 4, off);
    for (decision d :
         {c.clock, c.clock_stable, c.steal_time, c.tlb_flush, c.in_host, c.send_ipi, c.sched_yield, c.kick})
        CHECK(d.why == reason::switched_off);

    switches no_steal;
    no_steal.steal_time = false;
    CHECK(configure(f, 4, no_steal).tlb_flush.why == reason::needs_steal_time);
    CHECK(configure(f, 4, no_steal).sched_yield.why == reason::needs_steal_time);
    CHECK(bool(configure(f, 4, no_steal).kick));
}

TEST_CASE("Without a hypervisor, or with one that is not KVM, everything is off for that reason",
          "[guest][configuration]") {
    features bare;
    configuration const none = configure(bare, 4);
    features other;
    other.hypervisor_present = true;
    configuration const foreign = configure(other, 4);
    for (decision d :
         {none.clock, none.steal_time, none.tlb_flush, none.in_host, none.send_ipi, none.sched_yield, none.kick})
        CHECK(d.why == reason::no_hypervisor);
    for (decision d :
         {foreign.clock, foreign.steal_time, foreign.tlb_flush, foreign.in_host, foreign.send_ipi, foreign.kick})
        CHECK(d.why == reason::no_kvm);
}

TEST_CASE("Every reason and every interface has words of its own", "[guest][configuration]") {
    std::vector<std::string> words;
    for (int i = 0; i <= int(reason::waits_in_mwait); ++i) words.emplace_back(to_string(reason(i)));
    for (int i = 0; i <= int(hypervisor::pvx); ++i) words.emplace_back(to_string(hypervisor(i)));
    std::sort(words.begin(), words.end());
    words.erase(std::remove(words.begin(), words.end(), "unknown"), words.end());
    CHECK(std::adjacent_find(words.begin(), words.end()) == words.end());
}

TEST_CASE("Detection and configuration are constant expressions over a table", "[guest][features]") {
    struct table {
        constexpr cpuid_regs cpuid(uint32_t leaf, uint32_t) const {
            if (leaf == 1) return {0, 0, hypervisor_bit, 0};
            if (leaf == 0x40000000) return kvm_base(0x40000001);
            if (leaf == 0x40000001) return {0xffff, 0, 0, 0};
            return {};
        }
    };
    static_assert(bool(configure(detect_features(table{}), 8).tlb_flush));
    SUCCEED();
}
