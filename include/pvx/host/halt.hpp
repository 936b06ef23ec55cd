// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// What a vCPU waits for, and what ends it: HLT, the kick latch, INIT, SIPI, a stop by the VMM, a halt inside a nested
/// guest. How others signal it is in host/kick.hpp. One object per vCPU, on that vCPU's thread:
///
///     for (;;) {
///         halt_step const step = halt.next();
///         switch (step.action) {
///             case halt_action::run: enter the guest, handle its exit, hlt() if it was a HLT; break;
///             case halt_action::sleep:
///             case halt_action::stop:
///                 if (halt.block()) sleep until wake();
///                 halt.unblock();
///                 break;
///             case halt_action::init: reset registers, apic_state::init(), clear the PV MSRs (steal_time::reset());
///             ...
///         }
///     }
///
/// Each way from waiting to running takes the latch, by an exchange: a kick that ended this wait, or came while another
/// event did, does not end the next one. A guest that halts for a kick looks again before it halts, so nothing is lost.
/// RESET and INIT clear it. [sdm2a HLT] [sdm3a 9.4] [sdm3a 11.4.7.3]

#include <pvx/base/status.hpp>
#include <pvx/host/kick.hpp>

namespace pvx::inline v0::host {

/// What a vCPU waits for. Stopped is not among them: it goes beside each. VMX's activity state wait-for-SIPI of a
/// nested guest is not either: a VMM does not offer it.
enum class mp_state : uint8_t {
    runnable,       ///< Nothing.
    halted,         ///< HLT: a kick, or an event.
    nested_halted,  ///< The same of a nested guest, whose halt is over when the guest under it runs.
    wait_for_sipi,  ///< SIPI, after RESET or INIT.
};

/// What the vCPU's thread does next.
enum class halt_action : uint8_t {
    run,          ///< Enter the guest.
    sleep,        ///< block(), and sleep.
    stop,         ///< The VMM's stop: the thread may say that it stands still; then as `sleep`.
    init,         ///< INIT was taken: registers, apic_state::init(), and all PV MSRs are cleared.
    reset,        ///< RESET, the same with apic_state::reset().
    nested_init,  ///< INIT was taken for an exit from the nested guest: make it, and call nested_exit(). On SVM, where
                  ///< the INIT stays pending behind the exit, call vcpu_signals::init() again before.
    start,        ///< SIPI: the vCPU begins at page number `vector`, CS base vector << 12, IP 0.
};

struct [[nodiscard]] halt_step {
    halt_action action{};
    uint8_t vector{};

    friend constexpr bool operator==(halt_step, halt_step) = default;
};

/// State of one vCPU, for a snapshot, a fork or a migration. That it was stopped is not in it.
struct halt_saved {
    static constexpr uint32_t current_version = 1;

    uint32_t version{current_version};
    uint32_t requests{};  ///< INIT, SIPI and its vector, as in halt_request.
    mp_state state{};
    uint8_t kicked{};
    uint16_t pad{};
    uint32_t pad2{};
};
static_assert(sizeof(halt_saved) == 16 && trivially_copyable<halt_saved>);

/// The halt of one vCPU.
template <class Environment>
    requires atomics_policy<Environment> && wake_event_policy<Environment>
class vcpu_halt {
public:
    /// `bootstrap`: RESET and INIT lead this vCPU to its first instruction, and the others to wait for SIPI.
    /// \post as after RESET.
    constexpr vcpu_halt(Environment environment, halt_words_of<Environment>& words, bool bootstrap)
        : environment_(environment), words_(&words), bootstrap_(bootstrap), state_(after_reset()) {}

    constexpr mp_state state() const { return state_; }

    /// The guest executes HLT; `nested`: a nested guest does, whose HLT is not the guest's to see, or is entered
    /// halted. \return whether the vCPU has halted. If not, the latch was set, and it goes on behind the HLT. \pre it
    /// runs, and its RIP is past the HLT.
    bool hlt(bool nested = false) {
        if (take_kick()) return false;
        state_ = nested ? mp_state::nested_halted : mp_state::halted;
        return true;
    }

    /// The nested guest gave way to the guest under it, which runs. A latch that is set then stays unless the nested
    /// guest was halted: only the end of a wait takes it.
    void nested_exit() {
        if (state_ == mp_state::nested_halted) become_runnable();
    }

    /// What to do now, in each round of the vCPU's loop. Takes one request at a time: ask again after init,
    /// nested_init and start.
    halt_step next() {
        // order: acquire [halt-request] what the sender stored before: the code that a SIPI starts, and what was
        // changed while the vCPU stood still; pairs with change() in vcpu_signals
        uint32_t now = environment_.ref(words_->requests).load(order::acquire);
        while (now != 0) {
            if ((now & halt_request::stop) != 0) return {halt_action::stop, 0};
            init_rule const rule = init_rule_of(now);
            if (rule != init_rule::held) {
                // A SIPI that came after it stays.
                if (!take(now, now & ~halt_request::init)) continue;
                if (rule == init_rule::nested_exit) return {halt_action::nested_init, 0};
                (void)take_kick();
                state_ = after_reset();
                return {halt_action::init, 0};
            }
            if ((now & halt_request::startup) == 0) break;
            uint8_t const vector = halt_request::vector_of(now);
            if (!take(now, now & halt_request::init)) continue;
            if (state_ == mp_state::wait_for_sipi) {
                become_runnable();
                return {halt_action::start, vector};
            }
            break;
        }
        if (halted() && event()) become_runnable();
        return {state_ == mp_state::runnable ? halt_action::run : halt_action::sleep, 0};
    }

    /// Whether next() would have something else to do than to sleep. Changes nothing, here or in the guest; for a loop
    /// that polls before it sleeps, and for block().
    bool may_run() const {
        uint32_t const now = environment_.ref(words_->requests).load(order::relaxed);
        if ((now & halt_request::stop) != 0) return false;
        if (init_rule_of(now) != init_rule::held) return true;
        if (state_ == mp_state::wait_for_sipi) return (now & halt_request::startup) != 0;
        return !halted() || event();
    }

    /// Before the thread sleeps. \return whether it is to sleep: from here on whoever signals the vCPU wakes it.
    bool block() const {
        environment_.ref(words_->blocked).store(1, order::relaxed);
        // order: seq_cst [halt-block] pairs with the fence in vcpu_signals::notify(), where the picture is
        environment_.fence(order::seq_cst);
        if (!may_run()) return true;
        unblock();
        return false;
    }

    /// The thread does not sleep any more. Relaxed: who still reads "blocked" wakes once too often, and before the next
    /// sleep there is a fence.
    void unblock() const { environment_.ref(words_->blocked).store(0, order::relaxed); }

    /// RESET. What was sent before it is gone. \pre of vCPUs that are reset together, none runs before all have been.
    halt_step reset() {
        (void)environment_.ref(words_->requests).fetch_and(halt_request::stop, order::relaxed);
        (void)take_kick();
        state_ = after_reset();
        return {halt_action::reset, 0};
    }

    /// \pre the vCPU is stopped, and nobody signals it but to stop or resume it; for restore() as well.
    halt_saved save() const {
        uint32_t const requests = environment_.ref(words_->requests).load(order::relaxed) & ~halt_request::stop;
        uint8_t const kicked = environment_.ref(words_->latch).load(order::relaxed) != 0;
        return {halt_saved::current_version, requests, state_, kicked, {}, 0};
    }

    /// Take over what save() made, perhaps elsewhere. \return bad_argument, and nothing changed, for another version or
    /// a state that there is not.
    status restore(halt_saved const& saved) {
        bool const sipi = (saved.requests & halt_request::startup) != 0;
        uint32_t const known = halt_request::init | halt_request::startup | (sipi ? halt_request::vector : 0);
        if (saved.version != halt_saved::current_version || saved.pad != 0 || saved.pad2 != 0 || saved.kicked > 1 ||
            saved.state > mp_state::wait_for_sipi || (saved.requests & ~known) != 0)
            return status::bad_argument;
        auto const requests = environment_.ref(words_->requests);
        (void)requests.fetch_and(halt_request::stop, order::relaxed);
        (void)requests.fetch_or(saved.requests, order::relaxed);
        environment_.ref(words_->latch).store(saved.kicked, order::relaxed);
        state_ = saved.state;
        return status::ok;
    }

private:
    constexpr mp_state after_reset() const { return bootstrap_ ? mp_state::runnable : mp_state::wait_for_sipi; }
    constexpr bool halted() const { return state_ == mp_state::halted || state_ == mp_state::nested_halted; }

    // What an INIT that is pending comes to; none is as one that is held.
    init_rule init_rule_of(uint32_t requests) const {
        return (requests & halt_request::init) != 0 ? environment_.rule_of_init() : init_rule::held;
    }

    // Whether a halt is over. The latch is read here, and taken by who acts on it.
    bool event() const {
        return environment_.ref(words_->latch).load(order::relaxed) != 0 || environment_.wake_event();
    }

    // The look before it saves the exchange where nobody has kicked. A kick that it misses ends the next halt: block()
    // looks again, behind its fence.
    bool take_kick() {
        auto const latch = environment_.ref(words_->latch);
        if (latch.load(order::relaxed) == 0) return false;
        // order: acquire [halt-kick] what each kicker stored before; pairs with vcpu_signals::kick()
        return latch.exchange(0, order::acquire) != 0;
    }

    // Change the requests, or see in `now` what they have become. By comparing: an INIT and its SIPI may have taken the
    // place of what was found.
    bool take(uint32_t& now, uint32_t left) {
        auto const requests = environment_.ref(words_->requests);
        // Relaxed: what is taken was found with its acquire, in next() or below.
        if (requests.compare_exchange(now, left, order::relaxed, order::relaxed)) return true;
        // order: acquire [halt-request] what the sender of an INIT or SIPI that was found on the way did before, such
        // as a kick, which INIT clears; pairs with change() in vcpu_signals
        now = requests.load(order::acquire);
        return false;
    }

    void become_runnable() {
        (void)take_kick();
        state_ = mp_state::runnable;
    }

    [[no_unique_address]] Environment environment_;
    halt_words_of<Environment>* words_;
    bool bootstrap_;
    mp_state state_;
};

}  // namespace pvx::inline v0::host
