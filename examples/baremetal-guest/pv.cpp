// SPDX-License-Identifier: MIT

#include "pv.hpp"

#include "os/attempt.hpp"
#include "os/command_line.hpp"
#include "os/job.hpp"
#include "os/panic.hpp"
#include "os/trap.hpp"

namespace pv {
namespace {

namespace guest = pvx::guest;
using pvx::status;

constinit guest::features found;
constinit guest::configuration chosen;
constinit guest::lock_choice chosen_locks{guest::lock_mode::test_and_set, guest::reason::no_hypervisor};
constinit status steal_results[os::max_cpus] = {};
constinit status clock_results[os::max_cpus] = {};

/// `flush=` names the way, or both.
bool prunes_by(os::string_view way) {
    os::string_view const chosen_way = os::option_value("flush", "both");
    return chosen_way == way || chosen_way == "both";
}

guest::switches user_switches() {
    auto const on = [](os::string_view name) { return !(os::option_value(name, "on") == "off"); };
    guest::switches s;
    s.clock = on("clock");
    s.steal_time = on("steal");
    s.tlb_flush = prunes_by("host");
    s.send_ipi = on("ipi");
    s.sched_yield = on("yield");
    s.kick = on("kick");
    return s;
}

/// A host that offers a record and then refuses its MSR must not end the run: `unsupported`.
template <class F>
status unless_it_faults(F const& enable) {
    status result = status::unsupported;
    (void)os::attempt([&] { result = enable(); });
    return result;
}

}  // namespace

void initialise() {
    found = guest::detect_features(machine{});
    machine::hypercall_by = pvx::arch::hypercall_instruction_of(found.vendor);
    chosen = guest::configure(found, os::cpu_count(), user_switches());
    machine::ipis_by_hypercall = bool(chosen.send_ipi);
    machine::host_kicks = bool(chosen.kick);
    chosen_locks = guest::choose_lock_mode(found, os::cpu_count(), {.paravirtual = user_switches().kick});
    if (locks.go_live(chosen_locks.mode) != status::ok) os::panic("more CPUs than the locks have nodes for");
    (void)clock();  // constructed before another CPU can come along
    (void)flush();
    set_flush_hook();
    os::run_on_all([] { enable_this_cpu(); });
}

guest::features const& features() { return found; }
guest::configuration const& configuration() { return chosen; }
guest::lock_choice lock_mode() { return chosen_locks; }
status steal_status(uint32_t cpu) { return steal_results[cpu]; }
status clock_status(uint32_t cpu) { return clock_results[cpu]; }

void enable_this_cpu() {
    pvx::cpu_index const self = machine{}.self();
    steal_results[self.value] =
        chosen.steal_time ? unless_it_faults([&] { return steal.enable(self); }) : status::unsupported;
    clock_results[self.value] =
        chosen.clock ? unless_it_faults([&] { return clock().enable(self); }) : status::unsupported;
}

guest::tlb_flush<machine> const& flush() {
    static guest::tlb_flush<machine> const object{machine{}, [] {
                                                      guest::flush_options options =
                                                          guest::choose_flush_options(chosen);
                                                      options.deferral = prunes_by("deferred");
                                                      return options;
                                                  }()};
    return object;
}

void set_flush_hook() {
    os::set_entry_hook([](uint32_t cpu) { (void)deferred.leave(pvx::cpu_index{cpu}); });
}

guest::kvm_clock<machine>& clock() {
    static guest::kvm_clock<machine> object{machine{}, guest::choose_clock_msrs(found), bool(chosen.clock_stable)};
    return object;
}

}  // namespace pv
