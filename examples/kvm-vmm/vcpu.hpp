// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// One vCPU of KVM: its registers as a value, entering it, and making it leave. [kvm-api]

#include <csignal>
#include <memory>

#include "boot.hpp"
#include "cpu_model.hpp"

/// Interrupts KVM_RUN, with immediate_exit set before.
inline constexpr int kick_signal = SIGUSR1;

/// All that a vCPU is.
struct vcpu_state {
    kvm_regs regs;
    kvm_sregs sregs;  ///< with IA32_APIC_BASE and EFER
    kvm_xcrs xcrs;
    std::vector<uint32_t> xsave;
    kvm_debugregs debugregs;
    kvm_lapic_state lapic;
    kvm_mp_state mp_state;
    kvm_vcpu_events events;
    std::vector<kvm_msr_entry> msrs;
};

class vcpu {
public:
    /// With the CPU's state after RESET.
    vcpu(file const& vm, cpu_model const& model, uint32_t id, size_t run_size);

    /// PVH's state for the first vCPU.
    void start_at(boot_entry const& entry);

    /// The state, in two steps, since the clock is to be read beside the MSRs. \pre enter() returned false
    void save_msrs(vcpu_state& state) const;
    void save_rest(vcpu_state& state) const;
    /// The same backwards. \pre a new vCPU
    void restore_rest(vcpu_state& state) const;
    void restore_msrs(vcpu_state const& state) const;

    /// Runs the guest. \return whether there is an exit to handle: false after a kick, and then nothing is under way.
    bool enter() const;
    kvm_run& exit() const { return *run_; }

    /// Makes enter() return false as soon as the last exit is done with, also if it is called later. For any thread.
    /// \pre `thread` is the one that calls enter(), and was not joined
    void kick(pthread_t thread) const;

private:
    struct unmap {
        size_t size;
        void operator()(kvm_run* run) const { munmap(run, size); }
    };

    file file_;
    cpu_model const* model_;
    uint32_t id_;
    std::unique_ptr<kvm_run, unmap> run_;
};
