// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Interrupts to many CPUs in one exit: the send-IPI hypercall names 128 APIC ids at once. Any set of ids is covered by
/// as few windows as its order allows; whatever the host refuses is sent natively, so nothing is lost.
/// No state: any CPU, any context in which the native way may be used. [kvm-hypercall]

#include <pvx/abi/kvm_hypercall.hpp>
#include <pvx/guest/concepts.hpp>

namespace pvx::inline v0::guest {

/// A set of APIC ids that one hypercall can name: a 128-bit map above a lowest id. It grows in both directions.
class ipi_window {
public:
    constexpr ipi_window() {}  // not defaulted: see strong_integer

    constexpr bool empty() const { return (low_ | high_) == 0; }
    constexpr uint32_t count() const { return popcount(low_) + popcount(high_); }
    /// Exactly one id: bit 0 is always the lowest one.
    constexpr bool single() const { return low_ == 1 && high_ == 0; }
    constexpr uint64_t low() const { return low_; }
    constexpr uint64_t high() const { return high_; }
    constexpr apic_id lowest() const { return apic_id{base_}; }

    /// Put an id in. False, and unchanged, if it would be further than 127 from one that is in.
    constexpr bool add(apic_id id) {
        if (empty()) {
            base_ = id.value;
            low_ = 1;
            return true;
        }
        if (id.value >= base_) {
            uint32_t const distance = id.value - base_;
            if (distance >= abi::kvm_send_ipi_window) return false;
            (distance < 64 ? low_ : high_) |= bit<uint64_t>(distance);
            return true;
        }
        uint32_t const distance = base_ - id.value;
        uint32_t const used = high_ != 0 ? 64 + bit_width(high_) : bit_width(low_);
        if (distance > abi::kvm_send_ipi_window - used) return false;
        shift_up(distance);
        base_ = id.value;
        low_ |= 1;
        return true;
    }

    /// Call `visit(apic_id)` for each id, in rising order.
    template <class Visit>
    constexpr void for_each(Visit&& visit) const {
        for (uint64_t left = low_; left != 0; left &= left - 1) visit(apic_id{base_ + lowest_bit(left)});
        for (uint64_t left = high_; left != 0; left &= left - 1) visit(apic_id{base_ + 64 + lowest_bit(left)});
    }

private:
    // \pre 0 < n < 128, and no bit is lost
    constexpr void shift_up(uint32_t n) {
        if (n >= 64) {
            high_ = low_ << (n - 64);
            low_ = 0;
        } else {
            high_ = (high_ << n) | (low_ >> (64 - n));
            low_ <<= n;
        }
    }

    uint64_t low_{};
    uint64_t high_{};
    uint32_t base_{};
};

/// The send-IPI hypercall with the machine's own way behind it. \pre the host offers kvm_feature::pv_send_ipi.
template <class Machine>
    requires hypercall_policy<Machine> && cpu_policy<Machine> && native_ipi_policy<Machine>
class ipi {
public:
    constexpr explicit ipi(Machine machine) : machine_(machine) {}

    /// Send to every CPU in the mask, a fixed vector or an NMI. Includes the caller if it is in the mask.
    /// \return how many hypercalls the host refused; those targets were reached natively. A host that refuses always
    /// (an interrupt controller in user space) is one to stop using this on: each refusal is a wasted exit.
    uint32_t send(const_cpu_mask_view targets, abi::apic_command command) const {
        uint32_t refused = 0;
        ipi_window window;
        targets.for_each([&](cpu_index cpu) {
            apic_id const id = machine_.apic(cpu);
            if (window.add(id)) return;
            refused += flush(window, command);
            window = ipi_window{};
            (void)window.add(id);
        });
        if (!window.empty()) refused += flush(window, command);
        return refused;
    }

private:
    // Sends a window; 1 if the host refused the hypercall.
    uint32_t flush(ipi_window const& window, abi::apic_command command) const {
        // For one target the native write is one exit too, and none where the CPU virtualises IPIs.
        bool const alone = window.single();
        if (!alone) {
            int64_t const delivered = machine_.hypercall(abi::kvm_hypercall::send_ipi, window.low(), window.high(),
                                                         window.lowest().value, command.value);
            // An error means that nobody was reached. A short count does not mean that anybody was missed: the rest are
            // absent or have their APIC off, and would not hear the native way either.
            if (delivered >= 0) return 0;
        }
        window.for_each([&](apic_id id) { machine_.native_ipi(id, command); });
        return alone ? 0 : 1;
    }

    [[no_unique_address]] Machine machine_;
};

}  // namespace pvx::inline v0::guest
