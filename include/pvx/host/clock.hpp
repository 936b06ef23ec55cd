// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The KVM clock, the host's half: the record of one vCPU, from which its guest makes nanoseconds of the TSC, and the
/// wall clock. The guest's half is guest/clock.hpp; what both share is the version protocol of base/seqcount.hpp.
///
/// One object per vCPU, on that vCPU's thread, and only while the vCPU is out: its record then has one writer, and no
/// reader on the vCPU itself is stopped in the middle. Guest memory is only trusted to hold bytes. [kvm-msr]

#include <pvx/abi/kvm_clock.hpp>
#include <pvx/abi/kvm_msr.hpp>
#include <pvx/base/seqcount.hpp>
#include <pvx/base/status.hpp>
#include <pvx/host/concepts.hpp>

namespace pvx::inline v0::host {

/// A TSC's rate as the record has it: nanoseconds are (ticks << shift) * mul / 2^32, a shift below 0 being to the
/// right.
struct clock_rate {
    uint32_t mul{};
    int8_t shift{};

    friend constexpr bool operator==(clock_rate, clock_rate) = default;
};

/// The rate for a TSC of `per_second` ticks a second: the exact fraction, cut to its first 32 significant bits. Not
/// rounded, so that a guest which makes kHz of it again, and cuts too, gets back what it was made of. No rate, which
/// guests take for "not filled in", for 0. No division, so that a 32-bit host needs no library for it; the wall clock
/// does.
constexpr clock_rate make_clock_rate(uint64_t per_second) {
    if (per_second == 0) return {};
    // left/right is nanoseconds a tick, brought to 1/2 or more and below 1. Compared so that nothing is doubled too
    // far.
    uint64_t left = 1000000000, right = per_second;
    int shift = 0;
    for (; left >= right; ++shift) right *= 2;
    for (; left < right - left; --shift) left *= 2;
    uint32_t quotient = 0;
    for (int i = 0; i < 32; ++i) {
        bool const one = left >= right - left;
        left = one ? left - (right - left) : left * 2;
        quotient = quotient * 2 + one;
    }
    return {quotient, static_cast<int8_t>(shift)};
}

/// The VM's clock at one moment.
struct clock_reading {
    tsc_ticks tsc{};     ///< As this vCPU's guest reads it.
    nanoseconds time{};  ///< Of the VM. Goes on over migrations, and never back.
    uint64_t tsc_hz{};   ///< Of the guest's TSC.
    bool stable{};       ///< All vCPUs' records were made of one pair of TSC and time, and their TSCs agree.
};

/// The time that guests are given.
/// Axiom: `read_clock` reads both at once, on the vCPU's thread. Where it says stable, that is one pair of the VM's,
/// the same for all vCPUs until all of them have been stopped; otherwise it is the time now. Never is it below what the
/// record before gives at that TSC, so it goes by a raw clock, or its rate follows one that is slewed. A change of its
/// rate or its base is followed by mark_changed() for every vCPU, and before by a stop of all of them if it says
/// stable.
template <class E>
concept guest_clock_policy = requires(E const e) {
    { e.read_clock() } -> same_as<clock_reading>;        // read_clock() is a moment of the clock
    { e.wall_clock_at_zero() } -> same_as<nanoseconds>;  // wall_clock_at_zero(): from 1970 to when it was zero
};

/// The record as words: it is aligned to four bytes only.
struct alignas(4) clock_words {
    uint32_t words[8];
};
static_assert(sizeof(clock_words) == sizeof(abi::pvclock_vcpu_time_info));

/// State of one vCPU, for a snapshot, a fork or a migration.
struct clock_state {
    static constexpr uint32_t current_version = 1;

    uint32_t version{current_version};
    uint8_t old_msr{};       ///< 1: the guest has used the deprecated number.
    uint8_t stopped{};       ///< 1: the guest has not been told yet that it was paused.
    uint8_t wall_pending{};  ///< 1: the wall clock is still to be written.
    uint8_t pad{};
    uint64_t system_time{};  ///< As the guest wrote it.
    uint64_t wall_clock{};
};
static_assert(sizeof(clock_state) == 24 && trivially_copyable<clock_state>);

/// The clock of one vCPU.
template <class Environment>
    requires atomics_policy<Environment> && guest_memory_policy<Environment, clock_words> &&
        guest_memory_policy<Environment, abi::pvclock_wall_clock> && guest_clock_policy<Environment>
class kvm_clock {
public:
    constexpr explicit kvm_clock(Environment environment) : environment_(environment) {}

    /// The guest writes MSR `index`. Takes any value; what cannot be written to is not. The wall clock is written at
    /// once, or by the next enter() where this may not sleep, and for the whole VM; the record by the next enter().
    /// \pre the feature is offered to the guest
    msr_outcome write_msr(uint32_t index, uint64_t value) {
        if (is_wall_clock(index)) {
            wall_clock_ = value;
            wall_pending_ = value != 0 && !write_wall_clock(guest_phys{value});
            pending_ = pending_ || wall_pending_;
            return msr_outcome::done;
        }
        if (!is_system_time(index)) return msr_outcome::not_ours;
        system_time_ = value;
        old_msr_ = index == abi::kvm_msr::system_time_old.index;
        pending_ = true;
        return msr_outcome::done;
    }

    /// The guest reads MSR `index`. Of the wall clock, what this vCPU wrote.
    constexpr msr_read read_msr(uint32_t index) const {
        if (is_wall_clock(index)) return {msr_outcome::done, wall_clock_};
        if (is_system_time(index)) return {msr_outcome::done, system_time_};
        return {msr_outcome::not_ours, 0};
    }

    /// INIT or RESET of the vCPU: nothing is written any more.
    constexpr void reset() {
        system_time_ = 0;
        old_msr_ = stopped_ = pending_ = wall_pending_ = false;
    }

    /// The clock's rate or base, the memory map, or the vCPU's TSC is another: the next enter() writes the record.
    constexpr void mark_changed() { pending_ = true; }

    /// The VM was paused, so that its watchdogs should be patient: said once, by the next enter().
    /// \return no_record if the guest has no clock.
    status guest_stopped() {
        if (!enabled()) return status::no_record;
        stopped_ = pending_ = true;
        return status::ok;
    }

    /// Before the vCPU runs, in the entry path. Does nothing where nothing is to do. May sleep if the environment can.
    void enter() {
        if (!pending_) return;
        if (wall_pending_) wall_pending_ = !write_wall_clock(guest_phys{wall_clock_});
        pending_ = wall_pending_;
        if (!enabled() || !may_map<clock_words>(address())) return;
        [[maybe_unused]] auto const held = environment_.read_guard();
        clock_words* const record = environment_.template map<clock_words>(address());
        if (record != nullptr) return write(*record);
        // That there is none is final, until mark_changed(), only if it was looked for in earnest.
        pending_ = pending_ || !environment_.can_sleep();
    }

    /// For a snapshot or migration. \pre the vCPU does not run.
    constexpr clock_state save() const {
        return {clock_state::current_version, old_msr_, stopped_, wall_pending_, 0, system_time_, wall_clock_};
    }

    /// Take over a state that save() made, perhaps elsewhere; the next enter() writes the record.
    /// \return bad_argument for a version that is not known, or what no save() makes; then nothing has changed.
    constexpr status restore(clock_state const& state) {
        if (state.version != clock_state::current_version || state.pad != 0 || state.old_msr > 1 || state.stopped > 1 ||
            state.wall_pending > (state.wall_clock != 0))
            return status::bad_argument;
        system_time_ = state.system_time;
        wall_clock_ = state.wall_clock;
        old_msr_ = state.old_msr != 0;
        stopped_ = state.stopped != 0;
        wall_pending_ = state.wall_pending != 0;
        pending_ = true;
        return status::ok;
    }

private:
    static constexpr bool is_wall_clock(uint32_t index) {
        return index == abi::kvm_msr::wall_clock.index || index == abi::kvm_msr::wall_clock_old.index;
    }
    static constexpr bool is_system_time(uint32_t index) {
        return index == abi::kvm_msr::system_time.index || index == abi::kvm_msr::system_time_old.index;
    }
    constexpr bool enabled() const { return (system_time_ & abi::kvm_msr_enable) != 0; }
    constexpr guest_phys address() const { return guest_phys{system_time_ & ~abi::kvm_msr_enable}; }

    // Relaxed stores throughout: behind the counter.
    void put(uint32_t& word, uint32_t value) const { environment_.ref(word).store(value, order::relaxed); }

    void write(clock_words& record) {
        clock_reading const now = environment_.read_clock();
        if (rate_of_ != now.tsc_hz) {
            rate_ = make_clock_rate(now.tsc_hz);
            rate_of_ = now.tsc_hz;
        }
        auto& [version, pad, tsc_low, tsc_high, time_low, time_high, mul, last] = record.words;
        uint32_t const odd = seqcount_write_begin(environment_, version);
        // What the guest has not seen yet of an earlier pause stays; it alone clears the flag, so it is not said again.
        uint32_t flags = (environment_.ref(last).load(order::relaxed) >> 8) & abi::pvclock_guest_stopped;
        if (stopped_) flags |= abi::pvclock_guest_stopped;
        // A guest that uses the deprecated number may be too old to know what the flag takes away.
        if (now.stable && !old_msr_) flags |= abi::pvclock_tsc_stable;
        put(pad, 0);
        put(tsc_low, static_cast<uint32_t>(now.tsc.value));
        put(tsc_high, static_cast<uint32_t>(now.tsc.value >> 32));
        put(time_low, static_cast<uint32_t>(now.time.value));
        put(time_high, static_cast<uint32_t>(now.time.value >> 32));
        put(mul, rate_.mul);
        put(last, static_cast<uint8_t>(rate_.shift) | flags << 8);
        seqcount_write_end(environment_, version, odd);
        stopped_ = false;
        environment_.mark_dirty(address());
    }

    // False: it has to be tried again, where sleeping is allowed.
    bool write_wall_clock(guest_phys where) const {
        constexpr uint64_t second = 1000000000;
        if (!may_map<abi::pvclock_wall_clock>(where)) return true;
        [[maybe_unused]] auto const held = environment_.read_guard();
        auto* const record = environment_.template map<abi::pvclock_wall_clock>(where);
        if (record == nullptr) return environment_.can_sleep();
        uint64_t const time = environment_.wall_clock_at_zero().value;
        uint32_t const odd = seqcount_write_begin(environment_, record->version);
        put(record->sec, static_cast<uint32_t>(time / second));
        put(record->nsec, static_cast<uint32_t>(time % second));
        seqcount_write_end(environment_, record->version, odd);
        environment_.mark_dirty(where);
        return true;
    }

    [[no_unique_address]] Environment environment_;
    bool pending_{};  // the record is to be written
    bool old_msr_{};
    bool stopped_{};  // the guest is to be told of a pause
    bool wall_pending_{};
    clock_rate rate_{};
    uint64_t rate_of_{};
    uint64_t system_time_{};
    uint64_t wall_clock_{};
};

}  // namespace pvx::inline v0::host
