// SPDX-License-Identifier: MIT

/// \file
/// The conformance suite for the hypervisor's side of the KVM ABI: runs all cases and prints TAP version 14. What is
/// not offered is skipped with its reason. [kvm-msr] [kvm-cpuid] [kvm-hypercall]

#include "../../os/clock.hpp"
#include "../../os/command_line.hpp"
#include "../../os/console.hpp"
#include "../../os/job.hpp"
#include "../../os/trap.hpp"
#include "../../suites.hpp"
#include "case.hpp"

namespace conform {
namespace {

namespace abi = pvx::abi;

constexpr case_list const* all_parts[] = {&msr_cases, &steal_cases, &clock_cases, &hypercall_cases,
                                          &ipi_cases, &flush_cases, &lock_cases};
constexpr case_list const* flush_part[] = {&flush_cases};
constexpr case_list const* lock_part[] = {&lock_cases};

/// The vector of an interrupt that came and that no case waits for; 0 if there was none.
constinit uint32_t stray = 0;

void note_stray(os::trap_frame& frame) {
    machine{}.ref(stray).store(static_cast<uint32_t>(frame.vector), pvx::order::relaxed);
}

/// What a faulty host delivers late, or by another vector than it was told, fails a case instead of ending the run.
void set_stray_handlers(os::irq_handler irq, os::nmi_handler nmi) {
    for (uint32_t v = os::first_free_vector; v <= os::last_free_vector; ++v)
        os::set_irq_handler(static_cast<uint8_t>(v), irq);
    os::set_nmi_handler(nmi);
}

/// True if the TSC, or by more than the host's own corrections the clock, is behind what it was at the call before: the
/// machine was moved, and its time was not. \pre on CPU 0
bool time_went_back() {
    static constinit uint64_t last_tsc = 0, last_ns = 0;
    constexpr uint64_t corrections_ns = 10'000'000;
    machine const m;
    pvx::guest::clock_sample now;
    bool const has_clock = bool(pv::configuration().clock) && pv::clock().sample_bounded(m.self(), now);
    uint64_t const tsc = m.tsc().value, ns = has_clock ? now.time.value : last_ns;
    bool const back = tsc < last_tsc || ns + corrections_ns < last_ns;
    last_tsc = tsc;
    last_ns = ns;
    return back;
}

outcome run(test_case const& c) {
    outcome o = c.run();
    os::run_on_all([] {});  // whatever is pending for a vCPU comes before its next job
    if (time_went_back() && o.what() != outcome::kind::fail) return fail("the TSC or the clock went back");
    uint32_t const vector = machine{}.ref(stray).exchange(0u, pvx::order::relaxed);
    if (vector != 0 && o.what() != outcome::kind::fail) return fail("an interrupt {:#x} that nobody sent", vector);
    return o;
}

/// The reason not to run a case, if there is one.
bool missing(requirement const& needs, outcome& why) {
    pvx::guest::features const& f = pv::features();
    pvx::guest::configuration const& c = pv::configuration();
    if (needs.kvm && f.find(pvx::guest::hypervisor::kvm) == nullptr) {
        why.say("{}", f.hypervisor_present ? "the hypervisor is not KVM" : "no hypervisor");
        return true;
    }
    for (uint8_t n = 0; n < 32; ++n) {
        if ((needs.features & ~f.kvm_bits & pvx::bit<uint32_t>(n)) == 0) continue;
        why.say("the host does not offer {}", abi::to_string(static_cast<abi::kvm_feature>(n)));
        return true;
    }
    if (needs.steal && !c.steal_time) {
        why.say("steal time: {}", pvx::guest::to_string(c.steal_time.why));
        return true;
    }
    if (needs.clock && !c.clock) {
        why.say("clock: {}", pvx::guest::to_string(c.clock.why));
        return true;
    }
    bool const have_steal = !needs.steal || all_registered(pv::steal_status).what() == outcome::kind::pass;
    bool const have_clock = !needs.clock || all_registered(pv::clock_status).what() == outcome::kind::pass;
    if (!have_steal || !have_clock) {
        why.say("the host has refused a record");
        return true;
    }
    if (os::cpu_count() < needs.cpus) {
        why.say("needs {} vCPUs", needs.cpus);
        return true;
    }
    return false;
}

void print_result(uint32_t number, test_case const& c, outcome const& o, uint64_t ns) {
    bool const ok = o.what() != outcome::kind::fail;
    os::string_view const ending = o.what() == outcome::kind::skip ? " # SKIP " : "";
    os::print("{}ok {} - {}{}{}\n", ok ? "" : "not ", number, c.sentence, ending,
              o.what() == outcome::kind::skip ? o.text() : os::string_view{});
    if (o.what() != outcome::kind::skip && !o.text().empty()) os::print("# {}\n", o.text());
    if (ns > 1'000'000'000) os::print("# took {} s\n", os::fixed{static_cast<int64_t>(ns / 10'000'000), 2});
}

template <uint32_t N>
bool run(os::string_view name, case_list const* const (&parts)[N]) {
    uint32_t total = 0;
    for (case_list const* part : parts) total += part->count;
    os::print("TAP version 14\n1..{}\n", total);

    set_stray_handlers(note_stray, ignore_nmi);
    uint32_t number = 0, passed = 0, failed = 0, skipped = 0;
    for (case_list const* part : parts)
        for (uint32_t i = 0; i < part->count; ++i) {
            test_case const& c = part->first[i];
            uint64_t const begin = os::uptime_ns();
            outcome o = outcome::kind::skip;
            if (!missing(c.needs, o)) o = run(c);
            print_result(++number, c, o, os::uptime_ns() - begin);
            passed += o.what() == outcome::kind::pass;
            failed += o.what() == outcome::kind::fail;
            skipped += o.what() == outcome::kind::skip;
        }
    set_stray_handlers(nullptr, nullptr);
    os::print("# {}: {} passed, {} failed, {} skipped\n", name, passed, failed, skipped);
    return failed == 0;
}

}  // namespace
}  // namespace conform

bool conformance() { return conform::run("conform", conform::all_parts); }

bool torture() {
    os::string_view const part = os::option_value("part", "both");
    bool good = true;
    if (!(part == "locks")) {
        conform::set_wanted_shootdowns(os::option_number("shootdowns", 100'000));
        good &= conform::run("torture", conform::flush_part);
        conform::set_wanted_shootdowns(0);
    }
    if (!(part == "flushes")) {
        conform::set_wanted_kicks(os::option_number("kicks", 100'000));
        good &= conform::run("torture", conform::lock_part);
        conform::set_wanted_kicks(0);
    }
    return good;
}
