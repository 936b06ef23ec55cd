// SPDX-License-Identifier: MIT

/// \file
/// The components of the host half together, as a VMM joins them: a guest's hypercall finds its target in the map of
/// APIC ids, and the target's latch.

#include <pvx/host/apic_map.hpp>
#include <pvx/host/halt.hpp>
#include <pvx/host/hypercalls.hpp>

#include <vector>

#include "support/catch.hpp"
#include "support/fake_machine.hpp"

using namespace pvx;
using namespace pvx::host;

namespace {

constexpr uint32_t vcpus = 3, limit = 600;
constexpr uint32_t ids[vcpus] = {0, 7, 513};

struct vm;

struct map_environment : builtin_atomics {
    uint32_t clamp_index(uint32_t index, uint32_t count) const { return index < count ? index : 0; }
};
using map_type = apic_map<map_environment>;
using buffers = two_buffers<map_environment>;

/// What all other components of all vCPUs are given: a pointer to the VM, and who asks.
struct environment : map_environment {
    vm* of;
    uint32_t who;

    environment(vm& v, uint32_t vcpu) : of(&v), who(vcpu) {}
    uint32_t pv_features() const { return ~0u; }
    map_type::reader apic_map() const;
    cpu_index self() const { return cpu_index{who}; }
    void kick(cpu_index vcpu) const;
    void yield_to(cpu_index) const {}
    bool deliver(cpu_index vcpu, apic_ipi ipi) const;
    bool wake_event() const { return false; }
    init_rule rule_of_init() const { return init_rule::taken; }
    void wake(cpu_index vcpu) const;
};

struct vm {
    uint64_t shared[1 + vcpus]{};
    std::vector<uint32_t> storage = std::vector<uint32_t>(buffers::words_for(4096));
    map_type map;
    halt_words_of<environment> words[vcpus]{};
    std::vector<uint32_t> woken, interrupted;

    explicit vm(bool with_map)
        : map({}, shared, vcpus, with_map ? limit : 0, buffers({}, with_map ? storage.data() : nullptr, 4096)) {
        if (!with_map) return;
        REQUIRE(map.set_up() == status::ok);
        for (uint32_t i = 0; i < vcpus; ++i)
            REQUIRE(map.add(cpu_index{i}, make_apic_identity(apic_id{ids[i]}, abi::apic_mode::x2apic, 7)) ==
                    status::ok);
    }
    vm(vm const&) = delete;

    hypercall_answer call(uint64_t number, uint64_t a0, uint64_t a1, uint64_t a2 = 0, uint64_t a3 = 0) {
        return hypercalls<environment>(environment(*this, 0)).call({number, a0, a1, a2, a3, 0, true});
    }
};

map_type::reader environment::apic_map() const { return of->map.read_guard(); }
void environment::wake(cpu_index vcpu) const { of->woken.push_back(vcpu.value); }
void environment::kick(cpu_index vcpu) const { vcpu_signals<environment>(*this, of->words[vcpu.value], vcpu).kick(); }
bool environment::deliver(cpu_index vcpu, apic_ipi) const { return of->interrupted.push_back(vcpu.value), true; }

}  // namespace

TEST_CASE("A kick by hypercall ends the halt of the vCPU with that APIC id, whether or not the map is up to date",
          "[host][host_core]") {
    for (bool updated : {false, true}) {
        CAPTURE(updated);
        vm v(true);
        CHECK(!v.map.read_guard());
        if (updated) REQUIRE(v.map.update());
        vcpu_halt<environment> target(environment(v, 2), v.words[2], true);

        REQUIRE(target.hlt());
        REQUIRE(target.next().action == halt_action::sleep);
        REQUIRE(target.block());
        CHECK(v.call(abi::kvm_hypercall::kick_cpu, 0, 513).rax == 0);
        CHECK(v.woken == std::vector<uint32_t>{2});
        target.unblock();
        CHECK(target.next().action == halt_action::run);

        // And before the halt.
        CHECK(v.call(abi::kvm_hypercall::kick_cpu, 0, 513).rax == 0);
        CHECK(!target.hlt());
        CHECK(v.woken.size() == 1);
        // Nobody has this id.
        CHECK(v.call(abi::kvm_hypercall::kick_cpu, 0, 512).rax == 0);
        CHECK(target.hlt());
    }
}

TEST_CASE("IPIs by hypercall reach their vCPUs also while the map is built anew", "[host][host_core]") {
    for (bool updated : {false, true}) {
        CAPTURE(updated);
        vm v(true);
        if (updated) REQUIRE(v.map.update());
        CHECK(v.call(abi::kvm_hypercall::send_ipi, 0x81, 0, 0, 0x40).rax == 2);
        CHECK(v.call(abi::kvm_hypercall::send_ipi, 0, 2, 448, 0x40).rax == 1);
        CHECK(v.interrupted == std::vector<uint32_t>{0, 1, 2});
    }
}

TEST_CASE("A VMM without a map has kicks that reach nobody, and refuses many IPIs", "[host][host_core]") {
    vm v(false);
    CHECK(v.call(abi::kvm_hypercall::kick_cpu, 0, 0).rax == 0);
    CHECK(static_cast<int64_t>(v.call(abi::kvm_hypercall::send_ipi, 1, 0, 0, 0x40).rax) ==
          abi::kvm_error::not_supported);
    CHECK(v.woken.empty());
    CHECK(v.interrupted.empty());
}
