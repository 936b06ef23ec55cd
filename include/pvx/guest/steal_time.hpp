// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Steal time, the guest's half: registering the page of each CPU, reading it, and charging what was stolen.
/// Reading is lock-free, from any CPU and in any context. [kvm-msr]

#include <pvx/abi/proposed.hpp>
#include <pvx/base/seqcount.hpp>
#include <pvx/guest/record.hpp>

namespace pvx::inline v0::guest {

/// The steal-time pages of all CPUs. \pre the host offers kvm_feature::steal_time.
template <class Machine>
    requires atomics_policy<Machine> && msr_policy<Machine> && relax_policy<Machine> &&
        record_policy<Machine, abi::kvm_steal_time>
class steal_time {
public:
    /// Attempts of read_bounded(); each is a few cycles, an update of the host is a few dozen.
    static constexpr uint32_t default_attempts = 64;

    /// `ask_in_host`: whether to ask for abi::proposed::steal_in_host. \pre if so: the host offers
    /// abi::proposed::feature_in_host; every other host faults.
    constexpr explicit steal_time(Machine machine, bool ask_in_host = false)
        : machine_(machine), ask_in_host_(ask_in_host) {}

    /// Register the page of the calling CPU, which is `cpu`; again after the page moved or the CPU came back.
    /// \return see register_record().
    status enable(cpu_index cpu) const {
        return register_record<abi::kvm_steal_time>(
            machine_, cpu, abi::kvm_msr::steal_time.index, [&](abi::kvm_steal_time& page) { clear(page); },
            ask_in_host_ ? abi::proposed::steal_time_in_host : 0);
    }

    /// Withdraw the page of the calling CPU: before it goes offline, before kexec, reboot and suspend, in a crash.
    void disable() const { withdraw_record(machine_, abi::kvm_msr::steal_time.index); }

    // \pre of what follows: `cpu` has a record, that is a pointer which is not null.

    /// Nanoseconds for which `cpu` wanted to run and did not, since the host began to count. As the host tells it: it
    /// may jump, also back, over a migration; steal_account makes that harmless. Waits while the host is in an update,
    /// which for another CPU's page may be as long as its host thread is preempted.
    nanoseconds read(cpu_index cpu) const {
        abi::kvm_steal_time& page = *machine_.template record<abi::kvm_steal_time>(cpu).pointer;
        uint64_t steal = 0;
        seqcount_read(
            machine_, page.version, [&] { steal = machine_.ref(page.steal).load(order::relaxed); },
            [&] { machine_.relax(); });
        return nanoseconds{steal};
    }

    /// The same without waiting. False: the host is in an update, `out` is unchanged, keep the last value. For readers
    /// with interrupts off, in NMI, or under a tracer.
    PVX_ENTRY_INLINE bool read_bounded(cpu_index cpu, nanoseconds& out, uint32_t attempts = default_attempts) const {
        abi::kvm_steal_time& page = *machine_.template record<abi::kvm_steal_time>(cpu).pointer;
        uint64_t steal = 0;
        bool const consistent = seqcount_read_bounded(machine_, page.version, attempts, [&]() PVX_ENTRY_LAMBDA {
            steal = machine_.ref(page.steal).load(order::relaxed);
        });
        if (consistent) out = nanoseconds{steal};
        return consistent;
    }

    /// The host has descheduled `cpu` although it wants to run. A hint: it may change at any moment. Bit 0 only, so
    /// that no other bit, now or later, is taken for it.
    PVX_ENTRY_INLINE bool preempted(cpu_index cpu) const {
        abi::kvm_steal_time& page = *machine_.template record<abi::kvm_steal_time>(cpu).pointer;
        // Relaxed: a hint that orders nothing.
        return (machine_.ref(page.preempted).load(order::relaxed) & abi::steal_preempted) != 0;
    }

private:
    // Under the counter: another CPU that reads meanwhile tries again.
    void clear(abi::kvm_steal_time& page) const {
        (void)seqcount_write_begin(machine_, page.version);
        machine_.ref(page.steal).store(0, order::relaxed);
        machine_.ref(page.flags).store(0, order::relaxed);
        machine_.ref(page.preempted).store(0, order::relaxed);
        for (uint8_t& pad : page.pad8) pad = 0;
        for (uint32_t& pad : page.pad32) pad = 0;
        // order: release [seq-even] zeros before version 0, where the host begins; pairs with seqcount_try_read()
        machine_.ref(page.version).store(0, order::release);
    }

    [[no_unique_address]] Machine machine_;
    bool ask_in_host_;
};

/// Turns readings of one CPU's steal time into charges that never exceed the time that passed, never go back, and
/// survive any jump of the host's counter. Plain state of the CPU's scheduler; not shared.
class steal_account {
public:
    /// What is carried over at most. A vCPU that is preempted between the caller's look at the clock and at its steal
    /// time finds far more stolen than passed; a step beyond this is no steal but a new baseline (migration, restore,
    /// host suspend), which would otherwise be charged as full steal for as long as it is large.
    static constexpr uint64_t max_carry = 1000000000;

    constexpr explicit steal_account(nanoseconds reading) : charged_(reading.value) {}

    /// The part of the `elapsed` time since the last call that was stolen, given the reading now. What exceeds
    /// `elapsed` is carried over to the next call, up to max_carry. A step back charges nothing, one beyond max_carry
    /// `elapsed`.
    constexpr nanoseconds charge(nanoseconds reading, nanoseconds elapsed) {
        uint64_t const delta = reading.value - charged_;
        bool const went_back = (delta >> 63) != 0;
        uint64_t const charge = went_back ? 0 : delta < elapsed.value ? delta : elapsed.value;
        bool const carried = !went_back && delta - charge <= max_carry;
        charged_ = carried ? charged_ + charge : reading.value;
        return nanoseconds{charge};
    }

private:
    uint64_t charged_;  // the reading up to which everything is charged
};

}  // namespace pvx::inline v0::guest
