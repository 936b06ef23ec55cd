// SPDX-License-Identifier: MIT
#include <pvx/guest/lock_mode.hpp>

#include "support/catch.hpp"

using namespace pvx;
using namespace pvx::guest;

namespace {

features host(bool kvm, bool kick, bool dedicated) {
    features f;
    f.hypervisor_present = true;
    if (kvm) f.signatures[f.signature_count++] = {hypervisor::kvm, 0x40000000, 0x40000001, abi::kvm_signature};
    if (kick) f.kvm_bits = abi::mask(abi::kvm_feature::pv_unhalt);
    if (dedicated) f.kvm_hints = abi::mask(abi::kvm_hint::realtime);
    return f;
}

bool is(lock_choice c, lock_mode mode, reason why) { return c.mode == mode && c.why == why; }

constexpr lock_switches off{.paravirtual = false};
constexpr lock_switches queue{.poll_without_kick = false};

}  // namespace

TEST_CASE("Waiters halt where the host can kick, CPUs are shared, and nobody objects", "[guest][lock_mode]") {
    CHECK(is(choose_lock_mode(host(true, true, false), 2), lock_mode::paravirtual, reason::on));
    CHECK(is(choose_lock_mode(host(true, true, false), 2, queue), lock_mode::paravirtual, reason::on));
}

TEST_CASE("Bare metal queues and spins", "[guest][lock_mode]") {
    CHECK(is(choose_lock_mode(features{}, 2), lock_mode::native, reason::no_hypervisor));
    CHECK(is(choose_lock_mode(features{}, 1), lock_mode::native, reason::no_hypervisor));
}

TEST_CASE("Dedicated CPUs queue and spin, also where the host can kick, and never poll", "[guest][lock_mode]") {
    for (bool kick : {false, true})
        for (uint32_t cpus : {1u, 2u})
            CHECK(is(choose_lock_mode(host(true, kick, true), cpus), lock_mode::native, reason::dedicated_cpus));
}

TEST_CASE("One CPU has nobody to wait for", "[guest][lock_mode]") {
    for (bool kick : {false, true})
        CHECK(is(choose_lock_mode(host(true, kick, false), 1), lock_mode::native, reason::single_cpu));
}

TEST_CASE("The user's switch beats all that the host offers", "[guest][lock_mode]") {
    for (bool kvm : {false, true})
        for (bool kick : {false, true})
            for (bool dedicated : {false, true})
                for (uint32_t cpus : {1u, 2u}) {
                    CAPTURE(kvm, kick, dedicated, cpus);
                    CHECK(choose_lock_mode(host(kvm, kick, dedicated), cpus, off).mode == lock_mode::native);
                }
    CHECK(is(choose_lock_mode(host(true, true, false), 2, off), lock_mode::native, reason::switched_off));
}

TEST_CASE("Without kicks the user chooses between polling and a queue", "[guest][lock_mode]") {
    CHECK(is(choose_lock_mode(host(true, false, false), 2), lock_mode::test_and_set, reason::not_offered));
    CHECK(is(choose_lock_mode(host(true, false, false), 2, queue), lock_mode::native, reason::not_offered));
    CHECK(is(choose_lock_mode(host(false, false, false), 2), lock_mode::test_and_set, reason::no_kvm));
    CHECK(is(choose_lock_mode(host(false, false, false), 2, queue), lock_mode::native, reason::no_kvm));
}

TEST_CASE("Waiters halt only in the one case that the table names", "[guest][lock_mode]") {
    for (unsigned bits = 0; bits < 128; ++bits) {
        CAPTURE(bits);
        auto const bit = [&](unsigned n) { return (bits >> n & 1) != 0; };
        features f = host(true, bit(0), bit(1));
        f.hypervisor_present = bit(2);
        uint32_t const cpus = bit(3) ? 64 : 1;
        lock_switches const user{.paravirtual = bit(4), .poll_without_kick = bit(5)};
        f.mwait = bit(6);
        lock_choice const c = choose_lock_mode(f, cpus, user);
        CHECK((c.mode == lock_mode::paravirtual) == (bit(0) && !bit(1) && bit(2) && bit(3) && bit(4)));
        CHECK((c.mode == lock_mode::test_and_set) == (!bit(0) && !bit(1) && bit(2) && bit(3) && bit(4) && bit(5)));
        CHECK((c.why == reason::on) == (c.mode == lock_mode::paravirtual));
    }
    static_assert(choose_lock_mode(features{}, 2).mode == lock_mode::native);
}
