// SPDX-License-Identifier: MIT
#include <pvx/guest/configuration.hpp>
#include <pvx/guest/lock_mode.hpp>

#include <utility>

#include "vectors.hpp"

using namespace pvx;
using namespace pvx::guest;
using pvx_test::hex;
using json = nlohmann::ordered_json;

namespace {

constexpr uint32_t everything = abi::mask(abi::kvm_feature::clocksource2) | abi::mask(abi::kvm_feature::steal_time) |
                                abi::mask(abi::kvm_feature::pv_unhalt) | abi::mask(abi::kvm_feature::pv_tlb_flush) |
                                abi::mask(abi::kvm_feature::pv_send_ipi) | abi::mask(abi::kvm_feature::pv_sched_yield) |
                                abi::mask(abi::kvm_feature::clocksource_stable_bit);

features kvm(uint32_t bits, uint32_t hints = 0) {
    features f;
    f.hypervisor_present = true;
    f.signatures[f.signature_count++] = {hypervisor::kvm, 0x40000000, 0x40000001, abi::kvm_signature};
    f.kvm_bits = bits;
    f.kvm_hints = hints;
    return f;
}
template <class Change>
features with(features f, Change change) {
    return change(f), f;
}

char const* name(lock_mode mode) {
    switch (mode) {
        case lock_mode::native: return "native";
        case lock_mode::paravirtual: return "paravirtual";
        case lock_mode::test_and_set: return "test and set";
    }
    return "";
}

void make(json& out) {
    out["about"] =
        "What a guest uses of its host, and why: kvm is EAX and hints EDX of KVM's features leaf, proposed EAX of that "
        "of the proposed extensions, mwait CPUID.1:ECX[3], cpus all that may ever run. 'on', or the first reason "
        "against "
        "it. lock: how locks wait, and the reason against halting.";
    auto const add = [&](char const* about, features const& f, uint32_t cpus = 4, bool allowed = true) {
        switches const user{allowed, allowed, allowed, allowed, allowed, allowed, allowed};
        configuration const c = configure(f, cpus, user);
        lock_choice const lock = choose_lock_mode(f, cpus, {.paravirtual = allowed});
        json uses = json::object();
        for (auto const& [what, decided] : {std::pair{"clock", c.clock},
                                            {"clock_stable", c.clock_stable},
                                            {"steal_time", c.steal_time},
                                            {"tlb_flush", c.tlb_flush},
                                            {"in_host", c.in_host},
                                            {"send_ipi", c.send_ipi},
                                            {"sched_yield", c.sched_yield},
                                            {"kick", c.kick}})
            uses[what] = to_string(decided.why);
        out["cases"].push_back({{"about", about},
                                {"hypervisor", f.hypervisor_present},
                                {"is_kvm", f.find(hypervisor::kvm) != nullptr},
                                {"kvm", hex(f.kvm_bits)},
                                {"hints", hex(f.kvm_hints)},
                                {"proposed", hex(f.proposed_bits)},
                                {"mwait", f.mwait},
                                {"cpus", cpus},
                                {"user_allows", allowed},
                                {"uses", uses},
                                {"lock", {name(lock.mode), to_string(lock.why)}}});
    };
    auto const in_host = [](features& f) { f.proposed_bits = abi::proposed::feature_in_host; };
    auto const mwait = [](features& f) { f.mwait = true; };
    add("bare metal", features{});
    add("a hypervisor that is not KVM", with(features{}, [](features& f) { f.hypervisor_present = true; }));
    add("KVM that offers nothing", kvm(0));
    add("KVM that offers everything", kvm(everything));
    add("and the proposed extension", with(kvm(everything), in_host));
    add("the user wants nothing of it", with(kvm(everything), in_host), 4, false);
    add("one CPU", with(kvm(everything), in_host), 1);
    add("two CPUs", with(kvm(everything), in_host), 2);
    add("dedicated CPUs", with(kvm(everything, abi::mask(abi::kvm_hint::realtime)), in_host));
    add("one dedicated CPU", kvm(everything, abi::mask(abi::kvm_hint::realtime)), 1);
    add("a hint that is not known", kvm(everything, ~abi::mask(abi::kvm_hint::realtime)));
    add("the guest has MWAIT", with(with(kvm(everything), in_host), mwait));
    add("MWAIT on one dedicated CPU", with(kvm(everything, 1), mwait), 1);
    for (uint32_t b = 0; b < 32; ++b) {
        if ((everything >> b & 1) == 0) continue;
        add("without one feature", with(kvm(everything & ~bit<uint32_t>(b)), in_host));
        add("with one feature only", with(kvm(bit<uint32_t>(b)), in_host));
    }
    add("the old clock", kvm(abi::mask(abi::kvm_feature::clocksource)));
    add("bits that mean nothing here", kvm(~everything & ~abi::mask(abi::kvm_feature::clocksource)));
}
vector_file const here{"feature_selection", make};

}  // namespace
