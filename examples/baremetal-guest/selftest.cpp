// SPDX-License-Identifier: MIT

/// \file
/// A suite that tests the OS itself: no paravirtual feature is used.

#include <pvx/abi/msr.hpp>

#include "os/atomics.hpp"
#include "os/os.hpp"
#include "suites.hpp"

namespace {

using os::arch::rdtsc;

/// Prints one line for one check.
bool check(bool good, os::string_view what) {
    os::print("{} {}\n", good ? "ok    " : "FAILED", what);
    return good;
}

os::fixed milliseconds(uint64_t ns) { return {static_cast<int64_t>(ns / 1000), 3}; }

bool every_cpu_runs_jobs() {
    struct {
        uint32_t apic_id;
        uint32_t runs;
    } seen[os::max_cpus]{};
    os::meeting everyone(os::cpu_count());
    os::run_on_all([&] {
        everyone.wait();  // so all of them do run at once
        auto& mine = seen[os::cpu_self()];
        mine.apic_id = os::read_apic_id();
        ++mine.runs;
        everyone.wait();
    });
    bool good = true;
    for (uint32_t i = 0; i < os::cpu_count(); ++i) good &= seen[i].runs == 1 && seen[i].apic_id == os::cpu_apic_id(i);
    return good;
}

bool jobs_run_where_they_should() {
    bool good = true;
    for (uint32_t i = 0; i < os::cpu_count(); ++i) {
        uint32_t index = os::max_cpus;
        os::run_on(i, [&] { index = os::cpu_self(); });
        good &= index == i;
    }
    return good;
}

bool spinning_cpus_run_jobs() {
    os::set_idle(os::idle_kind::spin);
    bool const good = every_cpu_runs_jobs();
    os::set_idle(os::idle_kind::halt);
    return good && every_cpu_runs_jobs();
}

constinit uint32_t timer_fired[os::max_cpus]{};

bool timers_fire() {
    constexpr uint64_t us = 3'000;
    bool good = true;
    auto const one = [&] {
        uint32_t const me = os::cpu_self();
        uint64_t const begin = rdtsc();
        os::arm_timer_us(us, [] { os::atomics.ref(timer_fired[os::cpu_self()]).store(1u, os::order::relaxed); });
        os::sleep_us(2 * us);
        uint64_t const slept = rdtsc() - begin;
        if (os::atomics.ref(timer_fired[me]).load(os::order::relaxed) != 1 || slept < os::us_to_tsc(2 * us))
            good = false;
        os::arm_timer_us(us, [] { os::atomics.ref(timer_fired[os::cpu_self()]).store(2u, os::order::relaxed); });
        os::cancel_timer();
    };
    os::run_on_all(one);
    return good;
}

bool attempts_catch_faults() {
    bool good = true;
    os::run_on_all([&] {
        uint64_t value = 1;
        bool mine = os::try_rdmsr(pvx::abi::msr::ia32_apic_base, value) && value != 1;
        uint64_t const not_canonical = uint64_t{1} << 62;
        auto const protection =
            os::attempt([&] { *static_cast<uint32_t volatile*>(os::opaque_memory(not_canonical)) = 1; });
        mine = mine && protection.is(os::vector_general_protection);
        auto const opcode = os::attempt([] { os::undefined_instruction(); });
        mine = mine && opcode.is(os::vector_invalid_opcode);
        uint64_t const nowhere = 8;
        auto const null = os::attempt([&] { *static_cast<uint32_t volatile*>(os::opaque_memory(nowhere)) = 1; });
        mine = mine && null.is(os::vector_page_fault) && null.address == nowhere && null.error_code == 2;
        // Nested: the inner fault ends only the inner attempt.
        bool went_on = false;
        auto const outer = os::attempt([&] {
            auto const inner = os::attempt([] { os::undefined_instruction(); });
            went_on = inner.raised;
        });
        mine = mine && !outer && went_on && (os::arch::read_rflags() & os::arch::rflags_if) != 0;
        if (!mine) good = false;
    });
    return good;
}

bool unknown_msr_faults() {
    constexpr uint32_t no_such_msr = 0x4fffffff;
    uint64_t value = 0;
    return !os::try_wrmsr(no_such_msr, 0) && !os::try_rdmsr(no_such_msr, value);
}

bool text_is_read_only() {
    auto const function = reinterpret_cast<uint64_t>(&selftest);
    auto const fault = os::attempt([&] { *reinterpret_cast<uint8_t volatile*>(function) = 0; });
    return fault.is(os::vector_page_fault) && (fault.error_code & 3) == 3;
}

bool data_is_not_executable() {
    alignas(16) static constinit uint8_t code[16]{0xc3};
    auto const fault = os::attempt([] { reinterpret_cast<void (*)()>(reinterpret_cast<uint64_t>(code))(); });
    return fault.is(os::vector_page_fault) && (fault.error_code & 0x10) != 0;
}

bool test_pages_map() {
    auto* const page = static_cast<uint64_t volatile*>(os::allocate_page());
    *page = 42;
    os::map_test_page(os::test_region, os::physical_address(const_cast<uint64_t const*>(page)), false);
    auto* const alias = reinterpret_cast<uint64_t volatile*>(os::test_region);
    bool good = *alias == 42;
    good &= os::attempt([&] { *alias = 1; }).is(os::vector_page_fault);
    os::map_test_page(os::test_region, os::physical_address(const_cast<uint64_t const*>(page)), true);
    os::invlpg(os::test_region);
    *alias = 43;
    good &= *page == 43;
    os::unmap_test_page(os::test_region);
    os::invlpg(os::test_region);
    return good && os::attempt([&] { *alias = 1; }).is(os::vector_page_fault);
}

constinit uint32_t nmis[os::max_cpus]{};

bool nmis_arrive() {
    os::set_nmi_handler(
        [](os::trap_frame&) { os::atomics.ref(nmis[os::cpu_self()]).fetch_add(1u, os::order::relaxed); });
    bool good = true;
    for (uint32_t i = 0; i < os::cpu_count(); ++i) {
        os::send_nmi(os::cpu_apic_id(i));
        uint64_t const begin = rdtsc();
        while (os::atomics.ref(nmis[i]).load(os::order::relaxed) == 0) {
            if (rdtsc() - begin > os::us_to_tsc(5'000'000)) {
                good = false;
                break;
            }
            os::arch::pause();
        }
        good &= os::atomics.ref(nmis[i]).load(os::order::relaxed) == 1;
    }
    os::set_nmi_handler(nullptr);
    return good;
}

}  // namespace

bool selftest() {
    uint64_t const booted_ns = os::uptime_ns();
    os::print("{} CPUs, {}, timer by {}, TSC {} MHz ({}), RAM {} KiB\n", os::cpu_count(),
              os::apic_is_x2apic() ? "x2APIC" : "xAPIC", os::timer_is_tsc_deadline() ? "TSC deadline" : "APIC counter",
              os::fixed{static_cast<int64_t>(os::tsc_hz() / 1000), 3}, os::tsc_hz_source(), os::memory_size() / 1024);
    os::print("apic ids");
    for (uint32_t i = 0; i < os::cpu_count(); ++i) os::print(" {}", os::cpu_apic_id(i));
    os::print("\n");
    bool good = check(every_cpu_runs_jobs(), "each CPU runs jobs, all of them at once");
    good &= check(jobs_run_where_they_should(), "each CPU runs a job of its own");
    good &= check(spinning_cpus_run_jobs(), "the same where idle CPUs spin");
    good &= check(timers_fire(), "each CPU's timer fires, and sleeps are not too short");
    good &= check(attempts_catch_faults(), "#GP, #UD and #PF are caught on each CPU");
    os::print("      an unknown MSR {}\n", unknown_msr_faults() ? "is #GP" : "is no fault here (as QEMU's TCG has it)");
    good &= check(text_is_read_only(), "text is read-only");
    good &= check(data_is_not_executable(), "data is not executable");
    good &= check(test_pages_map(), "test pages can be mapped, protected and unmapped");
    good &= check(nmis_arrive(), "each CPU takes an NMI");
    os::print("booted in {} ms, up for {} ms\n", milliseconds(booted_ns), milliseconds(os::uptime_ns()));
    return good;
}
