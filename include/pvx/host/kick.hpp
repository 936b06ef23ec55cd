// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// What others want of a vCPU: a kick, INIT, SIPI, a stop. Each is left in a word of the vCPU's and found there by its
/// thread (host/halt.hpp), so none is lost, whatever the vCPU does at that moment. Any thread. [kvm-hypercall]
/// [sdm3a 9.4]
///
/// A kick is a *latch*: it ends the halt that the vCPU is in, or the next one. It counts to one.
///
/// An environment in user space, on KVM without an APIC in the kernel, where each HLT comes out: `wake` sets
/// kvm_run::immediate_exit, sends the thread a signal, and posts the semaphore or the like on which the thread sleeps.
/// A KVM_RUN that begins later returns at once, which is what makes the wake sticky. The thread takes the flag back
/// when it is out of KVM_RUN or its sleep, *before* it asks vcpu_halt::next(), and by an exchange: a plain store may
/// become visible after the look, and wipe out a wake that came in between. With the APIC in the kernel all of this is
/// KVM's. [kvm-api 5]

#include <pvx/abi/apic.hpp>
#include <pvx/host/concepts.hpp>

namespace pvx::inline v0::host {

/// The words of one vCPU, zero at first: cells of the environments that share them. Written by others: best in a cache
/// line that holds nothing which the vCPU needs while it runs.
template <class Cell>
struct halt_words {
    Cell latch{};     ///< 1: kicked.
    Cell requests{};  ///< A set of halt_request.
    Cell blocked{};   ///< 1: the vCPU's thread sleeps, or is about to.
};

template <class Environment>
    requires atomics_policy<Environment>
using halt_words_of = halt_words<typename Environment::template cell<uint32_t>>;

/// What is asked of a vCPU. A SIPI that is in the word came after the INIT that is.
namespace halt_request {
inline constexpr uint32_t init = bit<uint32_t>(0);
inline constexpr uint32_t startup = bit<uint32_t>(1);
inline constexpr uint32_t stop = bit<uint32_t>(2);
/// Of the SIPI; 0 without one.
inline constexpr uint32_t vector = bit_range<uint32_t>(8, 15);
constexpr uint8_t vector_of(uint32_t word) { return static_cast<uint8_t>(word >> 8); }
}  // namespace halt_request

/// How one vCPU is reached. Made where it is needed: it holds a reference.
template <class Environment>
    requires atomics_policy<Environment> && vcpu_wake_policy<Environment>
class vcpu_signals {
public:
    constexpr vcpu_signals(Environment environment, halt_words_of<Environment>& words, cpu_index vcpu)
        : environment_(environment), words_(&words), vcpu_(vcpu) {}

    /// The kick hypercall names this vCPU. \post its halt ends, or the next one does not begin.
    void kick() const {
        // An exchange: a store would cut off the kick that it overwrites, and the vCPU would see the last kicker's
        // stores only.
        // order: release [halt-kick] what the kicker stored before; pairs with take_kick() in vcpu_halt
        (void)environment_.ref(words_->latch).exchange(1, order::release);
        (void)notify();
    }

    /// Something that wake_event() of wake_event_policy sees has come: an interrupt, an NMI. To be called when it can
    /// be seen. \return whether the vCPU was woken. If not, it may be running, and the VMM interrupts the guest as it
    /// does.
    bool notify() const {
        //     this side            the vCPU, in block()
        //     latch := 1           blocked := 1
        //     full fence           full fence
        //     blocked?             latch?
        // One of the two sees the other's store, so it is never "not blocked" here and "not kicked" there. Without
        // either fence the kick is lost until the next event.
        // order: seq_cst [halt-block] pairs with the fence in vcpu_halt::block()
        environment_.fence(order::seq_cst);
        if (environment_.ref(words_->blocked).load(order::relaxed) == 0) return false;
        environment_.wake(vcpu_);
        return true;
    }

    /// An interrupt command reaches this vCPU, see apic_ipi in host/apic_icr.hpp. \return whether it is one of ours,
    /// INIT or SIPI. \pre the vCPU's APIC takes it: apic_state::accepts().
    bool deliver(abi::apic_delivery how, uint8_t vector) const {
        if (how == abi::apic_delivery::init)
            init();
        else if (how == abi::apic_delivery::startup)
            startup(vector);
        else
            return false;
        return true;
    }

    /// INIT. Two of them are one, and no SIPI from before counts any more.
    void init() const {
        change([](uint32_t now) { return (now & halt_request::stop) | halt_request::init; });
    }

    /// SIPI. Starts the vCPU if that waits for one when it comes to look, which it does after an INIT that is pending;
    /// and otherwise goes by. Of two that are pending the first counts, since the vCPU would be running at the second.
    void startup(uint8_t vector) const {
        change([&](uint32_t now) {
            if ((now & halt_request::startup) != 0) return now;
            return now | halt_request::startup | uint32_t{vector} << 8;
        });
    }

    /// The VMM wants the vCPU to stand still: next() answers `stop`, until resume(). Whatever it waits for it goes on
    /// to wait for; what comes meanwhile is kept. It is a flag: who stops for several reasons counts them.
    void stop() const {
        change([](uint32_t now) { return now | halt_request::stop; });
    }
    void resume() const {
        change([](uint32_t now) { return now & ~halt_request::stop; });
    }

private:
    template <class To>
    void change(To to) const {
        auto const requests = environment_.ref(words_->requests);
        uint32_t now = requests.load(order::relaxed);
        // order: release [halt-request] what the sender stored before, such as the code that a SIPI starts; pairs with
        // the load in vcpu_halt::next()
        while (!requests.compare_exchange(now, to(now), order::release, order::relaxed)) {
        }
        // Blocked or not: the vCPU has to come out of the guest, too.
        environment_.wake(vcpu_);
    }

    [[no_unique_address]] Environment environment_;
    halt_words_of<Environment>* words_;
    cpu_index vcpu_;
};

}  // namespace pvx::inline v0::host
