// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Which vCPUs' APICs take interrupts, for whoever looks at many of them (a broadcast, the lowest priority, a kick of
/// all): the word of apic_state, one byte a vCPU, side by side. A cache line answers for 64 of them, where the vCPUs'
/// own structures would take a line each. Each byte is stored by its vCPU's thread; anybody reads.

#include <pvx/host/apic_state.hpp>

namespace pvx::inline v0::host {

/// The words of a VM's vCPUs. Holds no memory: `words` is `vcpus` bytes, zero at first, which means no APIC.
template <class Environment>
    requires atomics_policy<Environment>
class apic_words {
public:
    using byte = typename Environment::template cell<uint8_t>;

    constexpr apic_words(Environment environment, byte* words, uint32_t vcpus)
        : environment_(environment), words_(words), vcpus_(vcpus) {}

    /// The word of `vcpu` is now apic_state::word(): after each apic_change::map, and when the vCPU is made.
    /// \pre `vcpu` is below the number of vCPUs, and the calling thread's own or one that does not run. It has not
    /// entered the guest since the change.
    void publish(cpu_index vcpu, uint8_t word) const {
        // Relaxed, here and below: an interrupt that meets a change may find the APIC before or after it, as on
        // hardware. What it carries is in the IRR, which has its own order. One that the guest sends because it was
        // told of the change finds it: the store is before all that this vCPU stores in the guest, the load after all
        // that the sender loaded there. x86 keeps stores in order, and loads, and a VM entry or exit changes nothing in
        // that; release and acquire here would not add it.
        environment_.ref(words_[vcpu.value]).store(word, order::relaxed);
    }

    /// `vcpu` has the bit of apic_word, and so those before it. Any thread. \pre `vcpu` is below the number of vCPUs.
    bool test(cpu_index vcpu, uint8_t bit) const {
        return (environment_.ref(words_[vcpu.value]).load(order::relaxed) & bit) != 0;
    }

    /// Calls use(vcpu) for each vCPU that has the bit.
    template <class Use>
    void for_each(uint8_t bit, Use use) const {
        apic_words const self = *this;  // which `use` cannot change, so that it stays in registers
        for (uint32_t i = 0; i < self.vcpus_; ++i)
            if (self.test(cpu_index{i}, bit)) use(cpu_index{i});
    }

private:
    [[no_unique_address]] Environment environment_;
    byte* words_;
    uint32_t vcpus_;
};

}  // namespace pvx::inline v0::host
