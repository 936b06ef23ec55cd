// SPDX-License-Identifier: MIT
#include <pvx/host/halt.hpp>
#include <pvx/host/kick.hpp>

#include "case.hpp"

namespace {

using exact::counting, exact::plain;

/// A host whose vCPUs' threads are woken by a flag, and where nothing else ends a halt.
template <class Machine>
struct environment : Machine {
    bool wake_event() const { return false; }
    pvx::host::init_rule rule_of_init() const { return pvx::host::init_rule::taken; }
    void wake(pvx::cpu_index) const { exact::host.msr = 1; }
    void yield_to(pvx::cpu_index) const {}
};

template <class Machine>
using words = pvx::host::halt_words_of<environment<Machine>>;
template <class Machine>
using vcpu_halt = pvx::host::vcpu_halt<environment<Machine>>;
template <class Machine>
using vcpu_signals = pvx::host::vcpu_signals<environment<Machine>>;

template <class Machine>
EXACT_OPERATION void kick(words<Machine>& target) {
    vcpu_signals<Machine>{{}, target, pvx::cpu_index{3}}.kick();
}

template <class Machine>
EXACT_OPERATION bool hlt(vcpu_halt<Machine>& halt) {
    return halt.hlt();
}

template <class Machine>
EXACT_OPERATION pvx::host::halt_step next(vcpu_halt<Machine>& halt) {
    return halt.next();
}

template <class Machine>
EXACT_OPERATION bool block(vcpu_halt<Machine> const& halt) {
    return halt.block();
}

// Calls with a vCPU that runs.
template <class Call, class Prepare>
void with(Call call, Prepare prepare) {
    words<typename Call::machine> of{};
    vcpu_halt<typename Call::machine> halt{{}, of, true};
    prepare(halt, of);
    call(halt);
}

template <class Call>
void kick_of(Call call, bool blocked) {
    words<typename Call::machine> of{};
    of.blocked = blocked;
    call(of);
}

exact::test_case const list[] = {
    {"halt/kick, not blocked", kick<plain>, kick<counting>, [](auto call) { kick_of(call, false); }},
    {"halt/kick, blocked", kick<plain>, kick<counting>, [](auto call) { kick_of(call, true); }},
    {"halt/HLT, not kicked", hlt<plain>, hlt<counting>, [](auto call) { with(call, [](auto&, auto&) {}); }},
    {"halt/HLT, kicked before", hlt<plain>, hlt<counting>,
     [](auto call) { with(call, [](auto&, auto& of) { of.latch = 1; }); }},
    {"halt/next, runs on", next<plain>, next<counting>, [](auto call) { with(call, [](auto&, auto&) {}); }},
    {"halt/next, halted and kicked", next<plain>, next<counting>,
     [](auto call) { with(call, [](auto& halt, auto& of) { (void)halt.hlt(), of.latch = 1; }); }},
    {"halt/block, halted", block<plain>, block<counting>,
     [](auto call) { with(call, [](auto& halt, auto&) { (void)halt.hlt(); }); }},
};
exact::component const here{list};

}  // namespace
