// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The KVM clock, the guest's half: nanoseconds that go on over migration, the wall clock, and the TSC's rate.
/// Reading is lock-free; now() is monotonic over all CPUs, with one limit that it states. [kvm-msr]

#include <pvx/abi/kvm_clock.hpp>
#include <pvx/base/seqcount.hpp>
#include <pvx/guest/features.hpp>
#include <pvx/guest/record.hpp>

namespace pvx::inline v0::guest {

/// The two MSRs of the clock: there is an old and a new pair, which must not be mixed.
struct clock_msrs {
    uint32_t system_time;
    uint32_t wall_clock;
};

/// The pair that this host offers, the new one where there are both. \pre one of the clock features is offered.
constexpr clock_msrs choose_clock_msrs(features const& f) {
    return f.has(abi::kvm_feature::clocksource2)
               ? clock_msrs{abi::kvm_msr::system_time.index, abi::kvm_msr::wall_clock.index}
               : clock_msrs{abi::kvm_msr::system_time_old.index, abi::kvm_msr::wall_clock_old.index};
}

/// One reading of one CPU's clock.
struct clock_sample {
    nanoseconds time{};
    bool stable{};  ///< The host vouches that all CPUs' clocks agree.

    PVX_ENTRY_INLINE constexpr clock_sample() {}  // not defaulted: see strong_integer
};

/// The clock of one kernel. One object, shared by all CPUs: it holds the last time given out.
template <class Machine>
    requires atomics_policy<Machine> && msr_policy<Machine> && tsc_policy<Machine> && relax_policy<Machine> &&
        cpu_policy<Machine> && record_policy<Machine, abi::pvclock_vcpu_time_info>
class kvm_clock {
public:
    /// Attempts of the bounded reads. The host writes a vCPU's record only while that vCPU is not running, so for the
    /// own record more than two are never needed on KVM.
    static constexpr uint32_t default_attempts = 64;

    /// `believe_stable`: whether the host offers kvm_feature::clocksource_stable_bit. Without it the flag means
    /// nothing.
    constexpr kvm_clock(Machine machine, clock_msrs msrs, bool believe_stable)
        : machine_(machine), msrs_(msrs), believe_stable_(believe_stable) {}
    kvm_clock(kvm_clock const&) = delete;
    kvm_clock& operator=(kvm_clock const&) = delete;

    /// Register the record of the calling CPU, which is `cpu`. \return see register_record().
    /// \pre where memory is private by default: nothing on this CPU, NMI and tracers included, reads the clock until
    /// this returns, since opening the record may leave anything in it.
    status enable(cpu_index cpu) const {
        return register_record<abi::pvclock_vcpu_time_info>(
            machine_, cpu, msrs_.system_time, [&](abi::pvclock_vcpu_time_info& record) { clear(record); });
    }

    /// Withdraw the record of the calling CPU: before it goes offline, before kexec, reboot and suspend, in a crash.
    void disable() const { withdraw_record(machine_, msrs_.system_time); }

    /// Nanoseconds since an arbitrary start: never less than any CPU was given before this call began, unless the host
    /// took its stable flag back in between: times given out while it stood are not written down, since that would cost
    /// a shared line for each. Where the flag stands, no shared line is written.
    ///
    /// \pre the calling CPU's record is registered, and the caller cannot migrate.
    nanoseconds now() {
        clock_sample sample;
        while (!sample_bounded(machine_.self(), sample)) machine_.relax();
        return latest(sample);
    }

    /// The same without waiting; false: no consistent record was had, or none that the host has filled in, `out` is
    /// unchanged. For NMI and tracers.
    PVX_ENTRY_INLINE bool now_bounded(nanoseconds& out, uint32_t attempts = default_attempts) {
        clock_sample sample;
        if (!sample_bounded(machine_.self(), sample, attempts)) return false;
        out = latest(sample);
        return true;
    }

    /// The calling CPU's own clock, as it is: comparable between CPUs only where it says stable.
    /// \pre `cpu` is the calling CPU: the TSC that is read is its own.
    PVX_ENTRY_INLINE bool sample_bounded(cpu_index cpu, clock_sample& out, uint32_t attempts = default_attempts) const {
        abi::pvclock_vcpu_time_info& record = *machine_.template record<abi::pvclock_vcpu_time_info>(cpu).pointer;
        uint64_t timestamp = 0, base = 0, tsc = 0;
        uint32_t mul = 0;
        uint8_t shift = 0, flags = 0;
        bool const consistent = seqcount_read_bounded(machine_, record.version, attempts, [&]() PVX_ENTRY_LAMBDA {
            timestamp = machine_.ref(record.tsc_timestamp).load(order::relaxed);
            base = machine_.ref(record.system_time).load(order::relaxed);
            mul = machine_.ref(record.tsc_to_system_mul).load(order::relaxed);
            shift = machine_.ref(record.tsc_shift).load(order::relaxed);
            flags = machine_.ref(record.flags).load(order::relaxed);
            // Inside the counter: a vCPU that moves between the record and the TSC would mix two CPUs.
            tsc = machine_.tsc().value;
        });
        if (!consistent || mul == 0) return false;  // no rate: the host has not been here yet
        // A TSC below the timestamp is skew between CPUs: no time has passed, rather than 584 years.
        uint64_t const passed = tsc - timestamp;
        tsc_ticks const delta{(passed >> 63) == 0 ? passed : 0};
        out.time = nanoseconds{base + abi::pvclock_scale(delta, mul, static_cast<int8_t>(shift)).value};
        out.stable = believe_stable_ && (flags & abi::pvclock_tsc_stable) != 0;
        return true;
    }

    /// The TSC's rate in kHz, to 1 part in 10^6 or so; 0 if the record of `cpu` is not filled in.
    uint64_t tsc_khz(cpu_index cpu) const {
        abi::pvclock_vcpu_time_info& record = *machine_.template record<abi::pvclock_vcpu_time_info>(cpu).pointer;
        uint32_t mul = 0;
        uint8_t shift = 0;
        seqcount_read(
            machine_, record.version,
            [&] {
                mul = machine_.ref(record.tsc_to_system_mul).load(order::relaxed);
                shift = machine_.ref(record.tsc_shift).load(order::relaxed);
            },
            [&] { machine_.relax(); });
        return abi::pvclock_tsc_khz(mul, static_cast<int8_t>(shift));
    }

    /// Nanoseconds from 1970 to the moment when this clock was zero: add now() for the time of day. One exit. `scratch`
    /// is 4-byte aligned memory that the host can write (where memory is private, opened to it), not across a page; it
    /// is free again on return. No local variable: the compiler need not know that an address is one.
    ///
    /// \return no_record, misaligned, or no_answer if the host left it empty.
    status wall_clock_at_zero(shared<abi::pvclock_wall_clock> scratch, nanoseconds& out) const {
        if (scratch.pointer == nullptr || scratch.address.value == 0) return status::no_record;
        if (!is_aligned<uint64_t>(scratch.address.value, alignof(abi::pvclock_wall_clock))) return status::misaligned;
        *scratch.pointer = abi::pvclock_wall_clock{};
        machine_.write_msr(msrs_.wall_clock, scratch.address.value);  // the host has written when this returns
        uint32_t sec = 0, nsec = 0;
        abi::pvclock_wall_clock& answer = *scratch.pointer;
        bool const consistent = seqcount_read_bounded(machine_, answer.version, default_attempts, [&] {
            sec = machine_.ref(answer.sec).load(order::relaxed);
            nsec = machine_.ref(answer.nsec).load(order::relaxed);
        });
        bool const answered = machine_.ref(answer.version).load(order::relaxed) != 0;
        if (!consistent || !answered) return status::no_answer;
        out = nanoseconds{sec * uint64_t{1000000000} + nsec};
        return status::ok;
    }

private:
    // Under the counter: an NMI that reads meanwhile has no consistent record, and afterwards one without a rate.
    void clear(abi::pvclock_vcpu_time_info& record) const {
        (void)seqcount_write_begin(machine_, record.version);
        machine_.ref(record.tsc_timestamp).store(0, order::relaxed);
        machine_.ref(record.system_time).store(0, order::relaxed);
        machine_.ref(record.tsc_to_system_mul).store(0, order::relaxed);
        machine_.ref(record.tsc_shift).store(0, order::relaxed);
        machine_.ref(record.flags).store(0, order::relaxed);
        record.pad0 = 0;
        for (uint8_t& pad : record.pad) pad = 0;
        // order: release [seq-even] zeros before version 0, where the host begins; pairs with seqcount_try_read()
        machine_.ref(record.version).store(0, order::release);
    }

    // The larger of the sample and the latest time that was written down. Relaxed throughout: one word, so coherence
    // alone makes it rise, and a CPU that was told of an earlier reading sees that value or a later one.
    PVX_ENTRY_INLINE nanoseconds latest(clock_sample const& sample) {
        auto const last = machine_.ref(last_);
        uint64_t seen = last.load(order::relaxed);
        if (sample.time.value <= seen) return nanoseconds{seen};
        // One attempt: a time that another CPU wrote meanwhile is as good as ours, since this call had begun.
        if (sample.stable || last.compare_exchange(seen, sample.time.value, order::relaxed, order::relaxed))
            return sample.time;
        return nanoseconds{seen};
    }

    [[no_unique_address]] Machine machine_;
    clock_msrs msrs_;
    bool believe_stable_;
    // A line of its own: on hosts without the stable flag every reader writes it.
    alignas(64) typename Machine::template cell<uint64_t> last_{};
};

}  // namespace pvx::inline v0::guest
