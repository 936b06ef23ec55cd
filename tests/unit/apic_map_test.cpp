// SPDX-License-Identifier: MIT
#include <pvx/host/apic_map.hpp>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/fake_machine.hpp"
#include "support/recording_atomics.hpp"

using namespace pvx;
using namespace pvx::host;
using namespace pvx_test;
using abi::apic_delivery;
using abi::apic_mode;
using abi::apic_shorthand;

namespace {

constexpr uint8_t usable = 7, software_disabled = 3, hardware_disabled = 1;
constexpr uint32_t flat = 0xffffffff, cluster = 0x0fffffff;

constexpr apic_identity x2apic(uint32_t id, uint8_t word = usable) {
    return make_apic_identity(apic_id{id}, apic_mode::x2apic, word);
}
constexpr apic_identity xapic(uint32_t id, uint32_t logical = 0, uint32_t dfr = flat, uint8_t word = usable) {
    return make_apic_identity(apic_id{id}, apic_mode::xapic, word, logical << 24, dfr);
}

constexpr apic_ipi to_id(uint32_t id, apic_delivery how = apic_delivery::fixed) {
    return {apic_destination{id}, apic_shorthand::none, how, 0x40, false};
}
constexpr apic_ipi to_logical(uint32_t mask, apic_delivery how = apic_delivery::fixed) {
    return {apic_destination{mask}, apic_shorthand::none, how, 0x40, true};
}
constexpr apic_ipi to_all(apic_shorthand whom, apic_delivery how = apic_delivery::fixed) {
    return {{}, whom, how, 0x40, false};
}

/// What a VM hands over, guarded: an access to any other word throws, and so does one to the table, in a look-up, at an
/// index that was not clamped right before.
struct guarded_memory {
    std::vector<uint64_t> shared;
    std::vector<uint32_t> words;
    recording notes;
    bool looking_up = false;
    uint32_t clamped = 0xffffffff;
    uint32_t table_reads = 0, identity_reads = 0;
};

struct guarded_environment : recording_atomics {
    guarded_memory* memory;

    explicit guarded_environment(guarded_memory& m) : recording_atomics(m.notes), memory(&m) {}

    template <word T>
    auto ref(T& object) const {
        auto const inside = [&](auto& of) { return &object >= of.data() && &object < of.data() + of.size(); };
        if constexpr (sizeof(T) == 8) {
            if (!inside(memory->shared)) throw unplanned("a shared word that is not the map's");
            memory->identity_reads += &object != memory->shared.data();
        }
        if constexpr (sizeof(T) == 4) {
            if (!inside(memory->words)) throw unplanned("a word beyond what was handed over");
            auto const index = static_cast<size_t>(&object - memory->words.data());
            if (memory->looking_up && index >= 16) {
                ++memory->table_reads;
                size_t const each = (memory->words.size() - 16) / 2;
                if ((index - 16) % each != memory->clamped) throw unplanned("an index that was not clamped");
                memory->clamped = 0xffffffff;
            }
        }
        return recording_atomics::ref(object);
    }
    uint32_t clamp_index(uint32_t i, uint32_t n) const {
        if (i >= n) throw unplanned("an index that is not bounded");
        return memory->clamped = i;
    }
};
static_assert(index_policy<guarded_environment> && atomics_policy<guarded_environment>);

using map_type = apic_map<guarded_environment>;

/// A VM with the APICs of its vCPUs as they should be, from which the tests work out what is right.
class machine {
public:
    explicit machine(std::vector<apic_identity> apics, uint32_t limit = 512, bool with_storage = true)
        : apics_(std::move(apics)), limit_(limit) {
        memory.shared.resize(1 + apics_.size());
        if (with_storage) memory.words.resize(two_buffers<guarded_environment>::words_for(apic_map_words(limit)));
        guarded_environment const e(memory);
        uint32_t* const words = with_storage ? memory.words.data() : nullptr;
        uint32_t const each = with_storage ? apic_map_words(limit) : 0;
        map_.emplace(e, memory.shared.data(), vcpus(), limit, two_buffers<guarded_environment>(e, words, each));
        if (with_storage) REQUIRE(map().set_up() == status::ok);
        for (uint32_t i = 0; i < apics_.size(); ++i) REQUIRE(map().add(cpu_index{i}, apics_[i]) == status::ok);
        if (with_storage) REQUIRE(map().update());
    }

    guarded_memory memory;

    map_type const& map() const { return *map_; }
    apic_identity apic(uint32_t i) const { return apics_[i]; }
    uint32_t vcpus() const { return static_cast<uint32_t>(apics_.size()); }
    uint64_t published() const { return memory.shared[0]; }

    /// vCPU i's APIC changes; the map is told.
    void change(uint32_t i, apic_identity to) {
        apics_[i] = to;
        map().publish(cpu_index{i}, to);
    }

    template <class Look>
    auto looking(Look look) {
        bool const was = memory.looking_up;
        memory.looking_up = true;
        auto const result = look();
        memory.looking_up = was;
        return result;
    }

    struct answer {
        std::vector<uint32_t> vcpus;  // in order, each as often as it was visited
        bool by_table;
    };
    answer find(apic_ipi const& ipi, cpu_index sender = no_vcpu) {
        return looking([&] {
            answer a{};
            auto const guard = map().read_guard();
            guard.for_each(ipi, sender, [&](cpu_index v) { a.vcpus.push_back(v.value); });
            a.by_table = static_cast<bool>(guard);
            std::sort(a.vcpus.begin(), a.vcpus.end());
            return a;
        });
    }
    uint32_t vcpu(uint32_t id) {
        return looking([&] { return map().read_guard().vcpu(apic_id{id}).value; });
    }
    bool has_table() { return static_cast<bool>(map().read_guard()); }

    /// Everybody whom the manual has answer, written down anew: by arithmetic on the registers.
    std::vector<uint32_t> right(apic_ipi const& ipi, cpu_index sender = no_vcpu) const {
        std::vector<uint32_t> all;
        for (uint32_t i = 0; i < vcpus(); ++i) {
            uint64_t const bits = apics_[i].bits;
            uint32_t const id = static_cast<uint32_t>(bits), ldr = bits >> 32 & 0xff, model = bits >> 40 & 15;
            bool const wide = (bits >> 48 & 3) == 3;
            bool const interrupt = ipi.delivery <= apic_delivery::lowest_priority;
            if ((bits >> 56 & (interrupt ? 4 : 2)) == 0) continue;
            uint32_t const d = ipi.destination.value;
            bool meant = false;
            if (ipi.shorthand != apic_shorthand::none)
                meant = ipi.shorthand == apic_shorthand::all ||
                        (i == sender.value) == (ipi.shorthand == apic_shorthand::self);
            else if (!ipi.logical)
                meant = d == id || (!wide && d == id % 256);
            else if (wide)
                meant = d / 65536 == id / 16 && (d >> id % 16) % 2 == 1;
            else if (d < 256 && model == 15)
                meant = (d & ldr) != 0;
            else if (d < 256 && model == 0)
                meant = (d / 16 == ldr / 16 || d == 255) && (d & ldr & 15) != 0;
            if (meant) all.push_back(i);
        }
        return all;
    }
    uint32_t right_vcpu(uint32_t id) const {
        if (id >= limit_) return no_vcpu.value;
        auto const all = right(to_id(id, apic_delivery::nmi));
        return all.empty() ? no_vcpu.value : all.front();
    }

    /// The destination and kind for which a look-up is wrong, or nothing.
    std::string wrong(std::vector<apic_ipi> const& commands) {
        for (apic_ipi const& ipi : commands) {
            if (find(ipi, cpu_index{0}).vcpus != right(ipi, cpu_index{0}))
                return "destination " + hex(ipi.destination.value) + (ipi.logical ? " logical" : "") + " kind " +
                       std::to_string(static_cast<int>(ipi.delivery)) + " shorthand " +
                       std::to_string(static_cast<int>(ipi.shorthand));
            uint32_t const d = ipi.destination.value;
            if (!ipi.logical && vcpu(d) != right_vcpu(d)) return "vcpu " + hex(d);
        }
        return {};
    }

private:
    std::vector<apic_identity> apics_;
    uint32_t limit_;
    std::optional<map_type> map_;
};

using list = std::vector<uint32_t>;

/// Destinations that touch each edge, in each kind of command.
std::vector<apic_ipi> commands() {
    std::vector<apic_ipi> all;
    for (auto how : {apic_delivery::fixed, apic_delivery::lowest_priority, apic_delivery::nmi, apic_delivery::init}) {
        for (auto whom : {apic_shorthand::self, apic_shorthand::all, apic_shorthand::others})
            all.push_back(to_all(whom, how));
        for (uint32_t id :
             {0u,   1u,   2u,   5u,   15u,     16u,      44u,       254u,        255u,        256u,       257u,
              300u, 510u, 511u, 512u, 0xffffu, 0x10000u, 0x100005u, 0x7fffffffu, 0xfffffffeu, 0xffffffffu})
            all.push_back(to_id(id, how));
        for (uint32_t mask = 0; mask <= 0x100; ++mask) all.push_back(to_logical(mask, how));
        for (uint32_t c : {0u, 1u, 15u, 16u, 18u, 31u, 32u, 0xffffu})
            for (uint32_t bits : {0x0u, 0x1u, 0x8000u, 0x1001u, 0x00ffu, 0xffffu})
                all.push_back(to_logical(c << 16 | bits, how));
    }
    return all;
}

}  // namespace

// --- who answers -----------------------------------------------------------------------------------------------------

TEST_CASE("An identity is what the registers say, and forgotten memory is no APIC", "[host][apic_map]") {
    apic_state<> apic(apic_id{0x12345}, false);
    apic_identity who = make_apic_identity(apic, 0x5a000000, 0xfcba9876);
    CHECK(who.id() == apic_id{0x12345});
    CHECK(who.short_id() == 0x45);
    CHECK(who.mode() == apic_mode::xapic);
    CHECK(who.logical_id() == 0x5a);
    CHECK(who.model() == 0xf);
    CHECK(who.reachable());
    CHECK_FALSE(who.accepts(apic_delivery::fixed));
    CHECK(who.accepts(apic_delivery::nmi));
    CHECK(make_apic_identity(apic, 0, 0x4fffffff).model() == 4);

    apic_offer const offer{46, true};
    REQUIRE(apic.write_page(offer, 0xf0, 0x1ff).outcome == msr_outcome::done);
    CHECK(make_apic_identity(apic, 0, flat).accepts(apic_delivery::lowest_priority));
    REQUIRE(apic.write_msr(offer, 0x1b, 0xfee00c00).outcome == msr_outcome::done);
    CHECK(make_apic_identity(apic, 0, flat).mode() == apic_mode::x2apic);
    REQUIRE(apic.write_msr(offer, 0x1b, 0xfee00000).outcome == msr_outcome::done);
    CHECK_FALSE(make_apic_identity(apic, 0, flat).reachable());

    CHECK_FALSE(apic_identity{}.reachable());
    CHECK_FALSE(apic_identity{}.accepts(apic_delivery::init));
    CHECK(make_apic_identity(apic_state<>(), 0, 0).bits >> 56 == 0);
}

TEST_CASE("An APIC answers to the physical ids of its mode", "[host][apic_map]") {
    auto const answers = [](apic_identity who, uint32_t id) { return who.answers(apic_id{id}); };
    CHECK(answers(x2apic(255), 255));
    CHECK_FALSE(answers(x2apic(256), 0));
    CHECK_FALSE(answers(x2apic(511), 255));
    CHECK_FALSE(answers(x2apic(5), 0xffffffff));
    CHECK(answers(xapic(255), 255));
    CHECK(answers(xapic(256), 0));
    CHECK(answers(xapic(300), 44));
    CHECK(answers(xapic(300), 300));
    CHECK_FALSE(answers(xapic(44), 300));
    CHECK_FALSE(answers(xapic(5), 0x105));
}

TEST_CASE("An APIC answers to the logical destinations of its mode and model", "[host][apic_map]") {
    // Flat: eight bits, of which one in common is enough.
    for (uint32_t bit = 0; bit < 8; ++bit)
        for (uint32_t to = 0; to <= 0x1ff; ++to)
            CHECK(xapic(1, 1u << bit).answers_logical(to) == (to < 256 && (to >> bit & 1) != 0));
    CHECK(xapic(1, 0x41).answers_logical(0x40));
    CHECK_FALSE(xapic(1, 0).answers_logical(0xff));
    // Clusters: their own, and all of them.
    CHECK(xapic(1, 0x32, cluster).answers_logical(0x32));
    CHECK(xapic(1, 0x32, cluster).answers_logical(0x3f));
    CHECK_FALSE(xapic(1, 0x32, cluster).answers_logical(0x22));
    CHECK_FALSE(xapic(1, 0x32, cluster).answers_logical(0x3d));
    CHECK(xapic(1, 0x32, cluster).answers_logical(0xff));
    CHECK_FALSE(xapic(1, 0x30, cluster).answers_logical(0xff));
    CHECK_FALSE(xapic(1, 0xe2, cluster).answers_logical(0xf2));
    CHECK(xapic(1, 0xf2, cluster).answers_logical(0xf2));
    CHECK_FALSE(xapic(1, 0xf2, cluster).answers_logical(0xe2));
    // A model that there is not.
    CHECK_FALSE(xapic(1, 0xff, 0x7fffffff).answers_logical(0xff));
    // x2APIC: the LDR that follows from the id, and no other.
    CHECK(x2apic(0x123).answers_logical(0x00120008));
    CHECK(x2apic(0x123).answers_logical(0x0012ffff));
    CHECK_FALSE(x2apic(0x123).answers_logical(0x0012fff7));
    CHECK_FALSE(x2apic(0x123).answers_logical(0x00130008));
    apic_identity const stale = make_apic_identity(apic_id{3}, apic_mode::x2apic, usable, 0xff000000, flat);
    CHECK_FALSE(stale.answers_logical(0xf0));
    CHECK(stale.answers_logical(0x08));
}

// --- what is found ---------------------------------------------------------------------------------------------------

TEST_CASE("With ids that step by two each vCPU is found by its id, and nobody in between", "[host][apic_map]") {
    std::vector<apic_identity> apics;
    for (uint32_t i = 0; i < 32; ++i) apics.push_back(i % 2 == 0 ? xapic(2 * i, 1u << i % 8) : x2apic(2 * i));
    machine vm(apics, 64);
    for (uint32_t id = 0; id < 64; ++id) {
        CAPTURE(id);
        CHECK(vm.vcpu(id) == (id % 2 == 0 ? id / 2 : no_vcpu.value));
        CHECK(vm.find(to_id(id)).vcpus == (id % 2 == 0 ? list{id / 2} : list{}));
    }
    CHECK(vm.map().read_guard().limit() == 64);
}

TEST_CASE("288 vCPUs are found by ids of eight bits and of more", "[host][apic_map]") {
    std::vector<apic_identity> apics;
    for (uint32_t i = 0; i < 288; ++i) apics.push_back(x2apic(i));
    machine vm(apics, 288);
    for (uint32_t id : {0u, 1u, 254u, 255u, 256u, 257u, 286u, 287u}) {
        CHECK(vm.vcpu(id) == id);
        CHECK(vm.find(to_id(id)).vcpus == list{id});
        CHECK(vm.find(to_logical((id >> 4) << 16 | 1u << (id & 15))).vcpus == list{id});
    }
    CHECK(vm.vcpu(288) == no_vcpu.value);
    list whole_cluster(16);
    for (uint32_t i = 0; i < 16; ++i) whole_cluster[i] = 256 + i;
    CHECK(vm.find(to_logical(0x0010ffff)).vcpus == whole_cluster);
    CHECK(vm.find(to_logical(0x0011ffff)).vcpus == [] {
        list l(16);
        for (uint32_t i = 0; i < 16; ++i) l[i] = 272 + i;
        return l;
    }());
    CHECK(vm.find(to_logical(0x00120001)).vcpus.empty());
    CHECK(vm.find(to_logical(0xffffffff)).vcpus.empty());  // a command says it by a shorthand
    CHECK(vm.find(to_all(apic_shorthand::all)).vcpus.size() == 288);
}

TEST_CASE("A cluster that the limit cuts is searched to the limit", "[host][apic_map]") {
    std::vector<apic_identity> apics;
    for (uint32_t i = 0; i < 20; ++i) apics.push_back(x2apic(i));
    machine vm(apics, 20);
    CHECK(vm.find(to_logical(0x0001ffff)).vcpus == list{16, 17, 18, 19});
    CHECK(vm.find(to_logical(0x0001fff0)).vcpus.empty());
}

TEST_CASE("What is several for one kind of destination costs the others no scan", "[host][apic_map]") {
    auto const cost = [](machine& vm, uint32_t to) {
        vm.memory.identity_reads = 0;
        CHECK(vm.find(to_logical(to)).vcpus == vm.right(to_logical(to)));
        return vm.memory.identity_reads;
    };
    // Two with the first flat bit, whose word comes after that of the last id.
    machine vm({xapic(10, 0x01), xapic(11, 0x01), x2apic(16), xapic(12, 0x80)}, 20);
    CHECK(cost(vm, 0x00010001) == 1);
    CHECK(cost(vm, 0x00010011) == 1);
    CHECK(cost(vm, 0x80) == 1);
    CHECK(cost(vm, 0x01) == 4);
    machine clusters({xapic(10, 0x11, cluster), xapic(11, 0x21, cluster), xapic(12, 0x21, cluster)}, 20);
    CHECK(cost(clusters, 0x11) == 1);
    CHECK(cost(clusters, 0x21) == 3);
    // No clusters, any more: all bits are eight.
    machine all({xapic(10, 0x01), xapic(11, 0x02), x2apic(12), x2apic(13)}, 20);
    CHECK(cost(all, 0xff) == 2);
    for (unsigned i = 0; i < 4; ++i) {
        all.change(1, xapic(11, 0x11, cluster));
        CHECK(all.map().update());
        CHECK(cost(all, 0xff) == 4);
        all.change(1, xapic(11, 0x02));
        CHECK(all.map().update());
        CHECK(cost(all, 0xff) == 2);
    }
}

TEST_CASE("An x2APIC reaches an xAPIC by its id, and an xAPIC an x2APIC", "[host][apic_map]") {
    machine vm({x2apic(0), xapic(1), x2apic(2), xapic(255, 0x80), x2apic(256)});
    for (uint32_t i = 0; i < 3; ++i) CHECK(vm.find(to_id(i), cpu_index{2 - i}).vcpus == list{i});
    CHECK(vm.find(to_id(255), cpu_index{0}).vcpus == list{3});
    CHECK(vm.find(to_id(256), cpu_index{1}).vcpus == list{4});
}

TEST_CASE("Everybody, the others and the sender itself are those whose APIC takes the kind", "[host][apic_map]") {
    machine vm({x2apic(0), x2apic(1, software_disabled), xapic(2), xapic(3, 1, flat, hardware_disabled),
                apic_identity{}, x2apic(300)});
    using enum apic_shorthand;
    CHECK(vm.find(to_all(all), cpu_index{0}).vcpus == list{0, 2, 5});
    CHECK(vm.find(to_all(all, apic_delivery::nmi), cpu_index{0}).vcpus == list{0, 1, 2, 5});
    CHECK(vm.find(to_all(others), cpu_index{2}).vcpus == list{0, 5});
    CHECK(vm.find(to_all(others, apic_delivery::init), cpu_index{0}).vcpus == list{1, 2, 5});
    CHECK(vm.find(to_all(self), cpu_index{2}).vcpus == list{2});
    CHECK(vm.find(to_all(self), cpu_index{1}).vcpus.empty());
    CHECK(vm.find(to_all(self, apic_delivery::nmi), cpu_index{1}).vcpus == list{1});
    CHECK(vm.find(to_all(self), cpu_index{3}).vcpus.empty());
}

TEST_CASE("A command that no vCPU sent has no self, and everybody is the others", "[host][apic_map]") {
    machine vm({x2apic(0), x2apic(1)});
    CHECK(vm.find(to_all(apic_shorthand::self), no_vcpu).vcpus.empty());
    CHECK(vm.find(to_all(apic_shorthand::self), cpu_index{2}).vcpus.empty());
    CHECK(vm.find(to_all(apic_shorthand::others), no_vcpu).vcpus == list{0, 1});
}

TEST_CASE("What a guest writes as everybody is everybody in its mode only", "[host][apic_map]") {
    machine vm({x2apic(0), xapic(1, 2), x2apic(255), xapic(3, 8)});
    auto const sent = [&](apic_mode mode, uint64_t icr) { return vm.find(read_icr(mode, icr), cpu_index{0}).vcpus; };
    CHECK(sent(apic_mode::xapic, 0xff000000'00004040) == list{0, 1, 2, 3});
    CHECK(sent(apic_mode::x2apic, 0xffffffff'00004040) == list{0, 1, 2, 3});
    CHECK(sent(apic_mode::x2apic, 0x000000ff'00004040) == list{2});
    CHECK(sent(apic_mode::x2apic, 0xffffffff'00004840) == list{0, 1, 2, 3});
    // All bits of a logical destination of eight: who has set one. To an x2APIC it is eight members of cluster 0.
    CHECK(sent(apic_mode::xapic, 0xff000000'00004840) == list{0, 1, 3});
}

TEST_CASE("All eight bits mean each member of each cluster, and without clusters need no scan", "[host][apic_map]") {
    machine clusters({xapic(0, 0x01, cluster), xapic(1, 0xe8, cluster), xapic(2, 0x20, cluster), xapic(3, 0x10)});
    CHECK(clusters.find(to_logical(0xff)).vcpus == list{0, 1, 3});
    CHECK(clusters.find(to_logical(0x0f)).vcpus == list{0});
    CHECK(clusters.find(to_logical(0xe8)).vcpus == list{1});
    CHECK(clusters.find(to_logical(0xf8)).vcpus == list{3});  // no cluster 15, but a bit of the flat one's

    std::vector<apic_identity> many(200, x2apic(0));
    for (uint32_t i = 0; i < many.size(); ++i) many[i] = i < 8 ? xapic(100 + i, 1u << i) : x2apic(200 + i);
    machine flats(many);
    flats.memory.identity_reads = 0;
    CHECK(flats.find(to_logical(0xff)).vcpus == list{0, 1, 2, 3, 4, 5, 6, 7});
    CHECK(flats.memory.identity_reads == 8);
}

TEST_CASE("Two vCPUs with one id are both found, by a scan for that id alone", "[host][apic_map]") {
    // 300 looks like 44 as long as it is an xAPIC.
    machine vm({xapic(44), xapic(300), xapic(45), x2apic(301)});
    CHECK(vm.has_table());
    CHECK(vm.find(to_id(44)).vcpus == list{0, 1});
    CHECK(vm.vcpu(44) == 0);
    CHECK(vm.find(to_id(300)).vcpus == list{1});
    CHECK(vm.find(to_id(45)).vcpus == list{2});

    vm.memory.identity_reads = 0;
    CHECK(vm.vcpu(45) == 2);
    CHECK(vm.vcpu(300) == 1);
    CHECK(vm.memory.identity_reads == 2);

    vm.change(1, x2apic(300));
    CHECK(vm.map().update());
    CHECK(vm.find(to_id(44)).vcpus == list{0});
    CHECK(vm.find(to_id(300)).vcpus == list{1});
    vm.memory.identity_reads = 0;
    CHECK(vm.vcpu(44) == 0);
    CHECK(vm.memory.identity_reads == 1);
}

TEST_CASE("Three vCPUs with one id are all found, and one of them disabled is not", "[host][apic_map]") {
    machine vm({xapic(1), xapic(257), x2apic(2), xapic(1, 0, flat, hardware_disabled), xapic(1 + 256, 4)}, 600);
    CHECK(vm.find(to_id(1)).vcpus == list{0, 1, 4});
    CHECK(vm.vcpu(257) == 1);
    CHECK(vm.find(to_id(257)).vcpus == list{1, 4});
    // One that is disabled costs nobody a scan.
    machine half({xapic(1, 0x10), xapic(257, 0x10, flat, hardware_disabled), xapic(9, 0x20)}, 600);
    half.memory.identity_reads = 0;
    CHECK(half.vcpu(1) == 0);
    CHECK(half.find(to_logical(0x10)).vcpus == list{0});
    CHECK(half.memory.identity_reads == 2);
}

TEST_CASE("Two vCPUs with one logical bit are both found, and one with two bits is found once", "[host][apic_map]") {
    machine flats({xapic(0, 0x01), xapic(1, 0x01), xapic(2, 0x0c), xapic(3, 0x10)});
    CHECK(flats.find(to_logical(0x01)).vcpus == list{0, 1});
    CHECK(flats.find(to_logical(0x0c)).vcpus == list{2});
    CHECK(flats.find(to_logical(0x1d)).vcpus == list{0, 1, 2, 3});
    flats.memory.identity_reads = 0;
    CHECK(flats.find(to_logical(0x10)).vcpus == list{3});
    CHECK(flats.memory.identity_reads == 1);

    machine clusters(
        {xapic(100, 0x21, cluster), xapic(101, 0x21, cluster), xapic(102, 0x2c, cluster), xapic(103, 0x31, cluster)});
    CHECK(clusters.find(to_logical(0x21)).vcpus == list{0, 1});
    CHECK(clusters.find(to_logical(0x2c)).vcpus == list{2});
    clusters.memory.identity_reads = 0;
    CHECK(clusters.find(to_logical(0x31)).vcpus == list{3});
    CHECK(clusters.memory.identity_reads == 1);
}

TEST_CASE("Flat, cluster and x2APIC vCPUs beside each other are found by one destination", "[host][apic_map]") {
    machine vm({xapic(10, 0x02), xapic(11, 0x02, cluster), x2apic(1), x2apic(2)});
    CHECK(vm.find(to_logical(0x02)).vcpus == list{0, 1, 2});
    CHECK(vm.find(to_logical(0x06)).vcpus == list{0, 1, 2, 3});
    CHECK(vm.find(to_logical(0x10002)).vcpus.empty());
}

TEST_CASE("A software-disabled APIC gets no interrupts, and that takes no new table", "[host][apic_map]") {
    machine vm({x2apic(0), xapic(1, 0x02)});
    uint64_t const before = vm.published();
    vm.change(1, xapic(1, 0x02, flat, software_disabled));
    CHECK(vm.published() == before);
    CHECK(vm.find(to_id(1)).vcpus.empty());
    CHECK(vm.find(to_logical(2)).vcpus.empty());
    CHECK(vm.find(to_logical(2, apic_delivery::smi)).vcpus == list{1});
    CHECK(vm.find(to_id(1, apic_delivery::nmi)).vcpus == list{1});
    CHECK(vm.vcpu(1) == 1);
    vm.change(1, xapic(1, 0x02));
    CHECK(vm.published() == before);
    CHECK(vm.find(to_id(1)).vcpus == list{1});
    // Any other difference does.
    vm.change(1, xapic(1, 0x04));
    CHECK(vm.published() == (before | 1));
    REQUIRE(vm.map().update());
    uint64_t const again = vm.published();
    vm.change(1, xapic(1, 0x04, cluster));
    CHECK(vm.published() == (again | 1));
    REQUIRE(vm.map().update());
    vm.change(1, xapic(1, 0x04, cluster, hardware_disabled));
    CHECK((vm.published() & 1) == 1);
    CHECK(vm.vcpu(1) == no_vcpu.value);
}

TEST_CASE("By table, by scan and by the manual the same vCPUs are found, whatever their APICs", "[host][apic_map]") {
    std::mt19937 random(1);
    auto const commands_ = commands();
    for (unsigned round = 0; round < 25; ++round) {
        std::vector<apic_identity> apics(1 + random() % 24);
        std::vector<uint32_t> ids;
        for (uint32_t i = 0; i < 512; ++i) ids.push_back(i);
        std::shuffle(ids.begin(), ids.end(), random);
        auto const any = [&](uint32_t i) {
            uint8_t const words[] = {usable, usable, usable, software_disabled, hardware_disabled, 0};
            uint8_t const word = words[random() % 6];
            uint32_t const id = round % 3 == 0 ? ids[i] % 64 : ids[i];
            switch (random() % 4) {
                case 0: return x2apic(id, word);
                case 1: return xapic(id, static_cast<uint32_t>(random() % 256), flat, word);
                case 2: return xapic(id, 1u << random() % 8, flat, word);
                default:
                    return xapic(id, static_cast<uint32_t>(random() % 256), random() % 4 != 0 ? cluster : 0x70000000,
                                 word);
            }
        };
        for (uint32_t i = 0; i < apics.size(); ++i) apics[i] = any(i);
        machine vm(apics);
        CHECK(vm.has_table());
        CHECK(vm.wrong(commands_).empty());
        for (uint32_t i = 0; i < apics.size(); i += 3)
            vm.change(i, apic_identity{(any(i).bits & ~uint64_t{0xffffffff}) | vm.apic(i).id().value});
        if (vm.published() % 4 != 0) {
            CHECK_FALSE(vm.has_table());
            CHECK(vm.wrong(commands_).empty());
        }
        CHECK(vm.map().update());
        CHECK(vm.has_table());
        CHECK(vm.wrong(commands_).empty());
    }
}

TEST_CASE("A look-up costs the same among two vCPUs and among four hundred", "[host][apic_map]") {
    auto const cost = [](uint32_t n, auto look) {
        std::vector<apic_identity> apics;
        for (uint32_t i = 0; i < n; ++i) apics.push_back(i < 2 ? xapic(i, 1u << i) : x2apic(i));
        machine vm(apics);
        vm.memory.notes.steps.clear();
        look(vm);
        return vm.memory.notes.steps.size();
    };
    auto const same = [&](auto look) { CHECK(cost(2, look) == cost(400, look)); };
    same([](machine& vm) { CHECK(vm.vcpu(1) == 1); });
    same([](machine& vm) { CHECK(vm.find(to_id(1)).vcpus == list{1}); });
    same([](machine& vm) { CHECK(vm.find(to_logical(2)).vcpus == list{1}); });
    same([](machine& vm) { CHECK(vm.vcpu(511) == no_vcpu.value); });
    same([](machine& vm) { CHECK(vm.find(to_all(apic_shorthand::self), cpu_index{1}).vcpus == list{1}); });
    // And the guard alone: two looks at the published word, and the count up and down.
    CHECK(cost(400, [](machine& vm) { CHECK(vm.has_table()); }) == 4);
}

// --- set-up, and no map ----------------------------------------------------------------------------------------------

TEST_CASE("A map too small for a vCPU or its id is refused at set-up", "[host][apic_map]") {
    machine vm({x2apic(0), x2apic(7)}, 8);
    CHECK(vm.map().add(cpu_index{1}, x2apic(8)) == status::bad_argument);
    CHECK(vm.map().add(cpu_index{1}, x2apic(0xffffffff)) == status::bad_argument);
    CHECK(vm.map().add(cpu_index{2}, x2apic(1)) == status::bad_argument);
    CHECK(vm.map().add(no_vcpu, x2apic(1)) == status::bad_argument);
    CHECK(vm.vcpu(7) == 1);  // as before
    CHECK(vm.has_table());
    CHECK(vm.map().add(cpu_index{1}, x2apic(6)) == status::ok);
    CHECK(vm.vcpu(6) == 1);
}

TEST_CASE("A table needs storage for its limit, and a limit whose ids differ in their logical destinations",
          "[host][apic_map]") {
    auto const set_up = [](uint32_t limit, uint32_t each) {
        guarded_memory memory;
        memory.shared.resize(2);
        memory.words.resize(two_buffers<guarded_environment>::words_for(each));
        guarded_environment const e(memory);
        map_type const map(e, memory.shared.data(), 1, limit,
                           two_buffers<guarded_environment>(e, memory.words.data(), each));
        status const result = map.set_up();
        REQUIRE(map.add(cpu_index{0}, x2apic(0)) == (limit == 0 ? status::bad_argument : status::ok));
        CHECK(map.update() == (result == status::ok));
        CHECK(static_cast<bool>(map.read_guard()) == (result == status::ok));
        return result;
    };
    CHECK(set_up(8, apic_map_words(8)) == status::ok);
    CHECK(set_up(8, apic_map_words(8) - 1) == status::bad_argument);
    CHECK(set_up(8, 0) == status::bad_argument);
    CHECK(set_up(0, 4096) == status::bad_argument);
    CHECK(set_up(1 << 20, apic_map_words(1 << 20)) == status::ok);
    CHECK(set_up((1 << 20) + 1, apic_map_words((1 << 20) + 1)) == status::bad_argument);
    CHECK(set_up(0xffffffff, 4096) == status::bad_argument);
}

TEST_CASE("Without any map every look-up answers", "[host][apic_map]") {
    machine vm({xapic(0, 1), xapic(300, 3), x2apic(44), x2apic(257), xapic(4, 0xf1, cluster)}, 512, false);
    CHECK_FALSE(vm.has_table());
    CHECK_FALSE(vm.map().update());
    CHECK_FALSE(vm.find(to_id(0)).by_table);
    CHECK(vm.map().read_guard().limit() == 512);
    CHECK(vm.wrong(commands()).empty());
    // And there is nothing to bring up to date, whatever changes.
    vm.change(1, x2apic(300));
    CHECK(vm.published() == 0);
    CHECK(vm.wrong(commands()).empty());
}

TEST_CASE("Before anything is published there is nobody", "[host][apic_map]") {
    guarded_memory memory;
    memory.shared.resize(4);
    guarded_environment const e(memory);
    map_type const map(e, memory.shared.data(), 3, 16, two_buffers<guarded_environment>(e, nullptr, 100));
    CHECK(map.set_up() == status::bad_argument);
    auto const guard = map.read_guard();
    CHECK_FALSE(guard);
    CHECK(guard.vcpu(apic_id{0}) == no_vcpu);
    guard.for_each(to_all(apic_shorthand::all, apic_delivery::nmi), no_vcpu,
                   [](cpu_index) { FAIL("nobody is there"); });
    CHECK_FALSE(map.update());
}

TEST_CASE("An id beyond the limit is nobody, by table and by scan", "[host][apic_map]") {
    for (bool with_storage : {true, false}) {
        machine vm({x2apic(0), xapic(15, 1)}, 16, with_storage);
        for (uint32_t id : {16u, 17u, 89u, 255u, 256u, 0x7fffffffu, 0xffffffefu, 0xffffffffu}) {
            CHECK(vm.vcpu(id) == no_vcpu.value);
            CHECK(vm.find(to_id(id)).vcpus.empty());
            CHECK(vm.wrong({to_logical(id << 16 | 1)}).empty());
        }
    }
}

// --- changes ---------------------------------------------------------------------------------------------------------

TEST_CASE("A change counts at once, before the table is made anew", "[host][apic_map]") {
    machine vm({x2apic(0), xapic(300, 1)});
    vm.change(1, x2apic(300));
    CHECK_FALSE(vm.has_table());
    CHECK(vm.vcpu(44) == no_vcpu.value);
    CHECK(vm.find(to_logical(0x00121000)).vcpus == list{1});
    CHECK(vm.map().update());
    CHECK(vm.has_table());
    CHECK(vm.vcpu(44) == no_vcpu.value);
    CHECK(vm.find(to_logical(0x00121000)).vcpus == list{1});
}

TEST_CASE("Between the two steps of a change nobody is taken for what it was", "[host][apic_map]") {
    machine vm({x2apic(0), xapic(300, 0x02), xapic(40, 0x31, cluster)});
    vm.memory.shared[1 + 1] = xapic(301, 0x04).bits;  // the table is not marked yet
    vm.memory.shared[1 + 2] = x2apic(40).bits;
    CHECK(vm.has_table());
    CHECK(vm.find(to_id(300)).vcpus.empty());
    CHECK(vm.vcpu(300) == no_vcpu.value);
    CHECK(vm.find(to_logical(0x02)).vcpus.empty());
    CHECK(vm.find(to_logical(0x31)).vcpus == list{0});
    CHECK(vm.find(to_id(40)).vcpus == list{2});
}

TEST_CASE("Where nothing has changed, updating is one load", "[host][apic_map]") {
    machine vm({x2apic(0), x2apic(1)});
    vm.memory.notes.steps.clear();
    CHECK(vm.map().update());
    CHECK(vm.memory.notes.steps.size() == 1);
    vm.change(1, x2apic(1));  // as it was
    vm.memory.notes.steps.clear();
    CHECK(vm.map().update());
    CHECK(vm.memory.notes.steps.size() == 1);
}

TEST_CASE("At every step of a rebuild every look-up is right", "[host][apic_map]") {
    machine vm({x2apic(0), xapic(300, 0x02), xapic(5, 0x31, cluster), x2apic(44)}, 320);
    apic_identity const changes[] = {xapic(300, 0x04), x2apic(300), xapic(300, 0x21, cluster),
                                     xapic(300, 0, flat, hardware_disabled)};
    std::vector<apic_ipi> const some = {
        to_id(0), to_id(44), to_id(300), to_logical(2), to_logical(4), to_logical(0x21), to_logical(0x00121000)};
    for (apic_identity const& change : changes) {
        vm.change(1, change);
        unsigned looks = 0;
        vm.memory.notes.after = [&](recorded const&) {
            ++looks;
            std::string const wrong = vm.wrong(some);
            if (!wrong.empty()) FAIL(wrong);
        };
        CHECK(vm.map().update());
        vm.memory.notes.after = nullptr;
        CHECK(looks > 300);
    }
}

TEST_CASE("A change at any step of a rebuild is in the table that is published", "[host][apic_map]") {
    bool finished = false;
    unsigned own = 0, rebuilt = 0;
    for (size_t step = 0; !finished; ++step) {
        machine vm({x2apic(0), xapic(300, 0x02), x2apic(2), x2apic(44)}, 320);
        vm.change(1, x2apic(300));
        size_t now = 0;
        bool told = false;
        vm.memory.notes.after = [&](recorded const&) {
            if (now++ != step) return;
            told = true;
            vm.change(2, xapic(2, 0x04));
            own += vm.map().update();  // by that vCPU's thread: somebody builds, mostly
        };
        bool const done = vm.map().update();
        vm.memory.notes.after = nullptr;
        finished = !told;
        rebuilt += done;
        CHECK(vm.has_table() == (vm.published() % 4 == 0));
        CHECK((vm.has_table() || vm.published() == 1 || vm.published() % 4 == 1));
        CHECK(vm.wrong({to_id(2), to_id(300), to_logical(4), to_logical(0x00121000), to_id(44)}).empty());
        CHECK(vm.map().update());
        CHECK(vm.has_table());
        CHECK(vm.wrong({to_id(2), to_id(300), to_logical(4), to_logical(0x00121000), to_id(44)}).empty());
    }
    CHECK(own != 0);
    CHECK(rebuilt > 300);
}

TEST_CASE("A vCPU that is added at any step of a rebuild is found, and nothing beyond the size is touched",
          "[host][apic_map]") {
    bool finished = false;
    for (size_t step = 0; !finished; ++step) {
        // The environment throws for any word that is not the map's.
        machine vm({x2apic(0), xapic(1, 0x02), apic_identity{}}, 16);
        vm.change(1, x2apic(1));
        size_t now = 0;
        bool told = false;
        vm.memory.notes.after = [&](recorded const&) {
            if (now++ != step) return;
            told = true;
            REQUIRE(vm.map().add(cpu_index{2}, x2apic(16)) == status::bad_argument);
            vm.change(2, x2apic(15));
        };
        (void)vm.map().update();
        vm.memory.notes.after = nullptr;
        finished = !told;
        if (!told) break;
        CHECK(vm.vcpu(15) == 2);
        CHECK(vm.map().update());
        CHECK(vm.vcpu(15) == 2);
    }
}

TEST_CASE("An id beyond the size, published against the rule, is not built into the table", "[host][apic_map]") {
    machine vm({x2apic(0), x2apic(1)}, 16);
    for (uint32_t id : {16u, 24u, 88u, 89u, 1000u, 0xffffffffu}) {
        vm.change(1, x2apic(id));
        CHECK(vm.find(to_id(id)).vcpus.empty());
        CHECK(vm.map().update());
        CHECK(vm.vcpu(0) == 0);
        CHECK(vm.vcpu(id) == no_vcpu.value);
        CHECK(vm.find(to_logical(0xff)).vcpus == list{0});
        vm.change(1, xapic(id));
        CHECK(vm.map().update());
        CHECK(vm.vcpu(0) == 0);
    }
}

TEST_CASE("While one vCPU builds the others leave it to it", "[host][apic_map]") {
    machine vm({x2apic(0), x2apic(1)});
    vm.change(1, xapic(1));
    bool asked = false;
    vm.memory.notes.after = [&](recorded const& r) {
        if (r.what != recorded::kind::store || asked) return;
        asked = true;
        vm.memory.notes.steps.clear();
        CHECK_FALSE(vm.map().update());
        CHECK(vm.memory.notes.steps.size() == 1);
        CHECK_FALSE(vm.has_table());
        // Nor does anybody else begin once it has to begin again.
        vm.change(0, xapic(0));
        vm.memory.notes.steps.clear();
        CHECK_FALSE(vm.map().update());
        CHECK(vm.memory.notes.steps.size() == 1);
    };
    CHECK(vm.map().update());
    CHECK(asked);
}

TEST_CASE("Changes that keep coming cost look-ups their table, and no thread its time", "[host][apic_map]") {
    machine vm({x2apic(0), xapic(1, 1)});
    uint32_t bit = 0;
    vm.change(1, xapic(1, 2));
    vm.memory.notes.steps.clear();
    vm.memory.notes.after = [&](recorded const& r) {
        // Whenever the table has been cleared.
        if (r.what == recorded::kind::store && r.value == 1) vm.change(1, xapic(1, 1u << (++bit % 8)));
    };
    CHECK_FALSE(vm.map().update());
    vm.memory.notes.after = nullptr;
    CHECK(bit >= 2);
    CHECK(vm.published() == 1);
    CHECK(vm.memory.notes.steps.size() < 3000);
    CHECK(vm.wrong(commands()).empty());
    CHECK(vm.map().update());
    CHECK(vm.wrong(commands()).empty());
    // Both buffers are there again.
    auto const guard = vm.map().read_guard();
    vm.change(1, xapic(1, 1u << (bit + 1) % 8));
    CHECK(vm.map().update());
}

// --- snapshots -------------------------------------------------------------------------------------------------------

TEST_CASE("A table that is read stays as it is, and with both read there is none until one is let go",
          "[host][apic_map]") {
    machine vm({x2apic(0), xapic(1, 1), x2apic(2)});
    using guard = map_type::reader;
    auto first = std::unique_ptr<guard>(new guard(vm.map().read_guard()));
    vm.change(1, x2apic(1));
    CHECK(vm.map().update());
    auto second = std::unique_ptr<guard>(new guard(vm.map().read_guard()));
    CHECK((*first && *second));
    std::vector<uint32_t> const before = vm.memory.words;

    vm.change(1, xapic(1, 4));
    CHECK_FALSE(vm.map().update());
    CHECK(vm.published() == 1);
    CHECK_FALSE(vm.has_table());
    CHECK(vm.wrong(commands()).empty());
    CHECK(std::equal(before.begin() + 16, before.end(), vm.memory.words.begin() + 16));
    CHECK(second->vcpu(apic_id{2}).value == 2);
    CHECK_FALSE(vm.map().update());

    first.reset();
    CHECK(vm.map().update());
    CHECK(vm.has_table());
    CHECK(vm.wrong(commands()).empty());
    size_t const each = apic_map_words(512);
    CHECK(std::equal(before.begin() + 16 + each, before.end(), vm.memory.words.begin() + 16 + each));
    CHECK(second->vcpu(apic_id{2}).value == 2);
    second.reset();
    CHECK(vm.memory.words[0] == 0);
    CHECK(vm.memory.words[1] == 0);
}

TEST_CASE("Two buffers are lent once each, if they are large enough, and again when they came back",
          "[host][snapshot]") {
    std::vector<uint32_t> words(two_buffers<builtin_atomics>::words_for(10));
    two_buffers<builtin_atomics> const buffers({}, words.data(), 10);
    CHECK(buffers.storage(11) == nullptr);
    uint32_t* const first = buffers.storage(10);
    uint32_t* const second = buffers.storage(1);
    REQUIRE(first != nullptr);
    REQUIRE(second != nullptr);
    CHECK(second - first == 10);
    CHECK(first >= words.data() + 16);
    CHECK(second + 10 == words.data() + words.size());
    CHECK(buffers.storage(1) == nullptr);
    buffers.retire(first);
    CHECK(buffers.storage(10) == first);
    CHECK(buffers.storage(10) == nullptr);
    // One that is read comes back later.
    uint64_t published = reinterpret_cast<uintptr_t>(second);
    {
        auto const guard = buffers.read_guard(published);
        CHECK(guard.word() == published);
        published = 0;
        CHECK(buffers.read_guard(published).word() == 0);
        buffers.retire(second);
        CHECK(buffers.storage(10) == nullptr);
    }
    CHECK(buffers.storage(10) == second);
    // A word with a flag names nothing to read.
    published = reinterpret_cast<uintptr_t>(second) | 1;
    CHECK(buffers.read_guard(published).word() == 0);
}

TEST_CASE("A publication between the two looks of a reader leaves it with nothing, and counts it nowhere",
          "[host][apic_map]") {
    machine vm({x2apic(0), xapic(1, 1)});
    bool changed = false;
    vm.memory.notes.after = [&](recorded const& r) {
        if (r.what != recorded::kind::rmw || r.value != 1 || changed) return;
        changed = true;
        vm.change(1, x2apic(1));
        CHECK(vm.map().update());
    };
    {
        auto const guard = vm.map().read_guard();
        CHECK(changed);
        CHECK_FALSE(guard);
        CHECK(guard.vcpu(apic_id{1}) == cpu_index{1});
    }
    vm.memory.notes.after = nullptr;
    CHECK(vm.memory.words[0] + vm.memory.words[1] == 0);
}

TEST_CASE("At every step of a look-up a vCPU that stays is found once, whoever else changes", "[host][apic_map]") {
    // xAPICs 1 and 2, which stay; 0 changes twice, with rebuilds.
    bool finished = false;
    for (size_t step = 0; !finished; ++step) {
        machine vm({x2apic(0), xapic(1, 0x02), xapic(2, 0x04)}, 16);
        size_t now = 0;
        finished = true;
        vm.memory.notes.after = [&](recorded const&) {
            if (now++ != step) return;
            finished = false;
            bool const was = vm.memory.looking_up;
            vm.memory.looking_up = false;
            vm.change(0, xapic(0, 0x06));
            (void)vm.map().update();
            vm.change(0, x2apic(0));
            (void)vm.map().update();
            vm.memory.looking_up = was;
        };
        list const found = vm.find(to_logical(0x06)).vcpus;
        vm.memory.notes.after = nullptr;
        CHECK(std::count(found.begin(), found.end(), 1u) == 1);
        CHECK(std::count(found.begin(), found.end(), 2u) == 1);
        CHECK(vm.map().update());
    }
}

TEST_CASE("Who goes from xAPIC to x2APIC mode in the middle of a look-up is not missed, nor found twice",
          "[host][apic_map]") {
    // Logical 2 means it in both modes.
    for (apic_ipi const& ipi :
         {to_id(1), to_id(1, apic_delivery::nmi), to_logical(0x02), to_logical(0x02, apic_delivery::init)}) {
        bool finished = false;
        for (size_t step = 0; !finished; ++step) {
            CAPTURE(ipi.logical, step);
            machine vm({x2apic(0), xapic(1, 0x02)}, 16);
            size_t now = 0;
            finished = true;
            vm.memory.notes.after = [&](recorded const&) {
                if (now++ != step) return;
                finished = false;
                vm.change(1, x2apic(1));
            };
            CHECK(vm.find(ipi).vcpus == list{1});
            vm.memory.notes.after = nullptr;
        }
    }
}

namespace {

/// As a VMM with an allocator and RCU has it: storage that is never used twice, and readers that cost nothing.
struct heap_state {
    std::vector<std::unique_ptr<std::vector<uint32_t>>> all;
    std::vector<uint32_t*> retired;
    uint32_t guards = 0;
    bool empty = false;
    uint64_t* published = nullptr;
};
struct heap_snapshots {
    heap_state* heap;

    struct guard {
        heap_state* heap;
        uint64_t seen;
        guard(heap_state* h, uint64_t w) : heap(h), seen(w) { ++heap->guards; }
        ~guard() { --heap->guards; }
        guard(guard const&) = delete;
        guard& operator=(guard const&) = delete;
        uint64_t word() const { return seen; }
    };
    guard read_guard(uint64_t& published) const {
        return guard(heap, builtin_atomics{}.ref(published).load(order::acquire));
    }
    uint32_t* storage(uint32_t words) const {
        if (heap->empty) return nullptr;
        heap->all.push_back(std::make_unique<std::vector<uint32_t>>(words, 0xdeadbeef));
        return heap->all.back()->data();
    }
    void retire(uint32_t* old) const {
        if (*heap->published == reinterpret_cast<uintptr_t>(old)) throw unplanned("retired while it is published");
        heap->retired.push_back(old);
    }
};
struct plain_environment : builtin_atomics {
    uint32_t clamp_index(uint32_t i, uint32_t n) const { return i < n ? i : 0; }
};

}  // namespace

TEST_CASE("With storage from an allocator every table is new, and each is retired once", "[host][apic_map]") {
    heap_state heap;
    std::array<uint64_t, 3> shared{};
    heap.published = shared.data();
    apic_map<plain_environment, heap_snapshots> const map({}, shared.data(), 2, 400, {&heap});
    REQUIRE(map.set_up() == status::ok);
    REQUIRE(map.add(cpu_index{0}, x2apic(0)) == status::ok);
    REQUIRE(map.add(cpu_index{1}, xapic(300)) == status::ok);
    CHECK(map.update());
    CHECK(heap.all.size() == 2);  // and the one of set_up()
    CHECK(heap.retired.size() == 1);
    {
        auto const guard = map.read_guard();
        CHECK(heap.guards == 1);
        CHECK(guard);
        CHECK(guard.vcpu(apic_id{44}) == cpu_index{1});
    }
    CHECK(heap.guards == 0);
    map.publish(cpu_index{1}, x2apic(300));
    {
        // Dirty: the address is there, and the table is not used.
        auto const guard = map.read_guard();
        CHECK_FALSE(guard);
        CHECK(guard.vcpu(apic_id{44}) == no_vcpu);
    }
    CHECK(map.update());
    CHECK(heap.retired.size() == 2);
    CHECK(heap.retired[1] == heap.all[1]->data());

    map.publish(cpu_index{1}, xapic(300));
    heap.empty = true;
    CHECK_FALSE(map.update());
    CHECK(shared[0] == 1);
    CHECK(heap.retired.size() == 3);
    CHECK_FALSE(map.read_guard());
    CHECK(map.read_guard().vcpu(apic_id{44}) == cpu_index{1});
    heap.empty = false;
    CHECK(map.update());
    CHECK(map.read_guard());
    CHECK(heap.retired.size() == 3);
}
