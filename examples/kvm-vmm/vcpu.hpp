// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// One vCPU of KVM: its registers as a value, entering it, and making it leave. [kvm-api]

#include <csignal>

#include "boot.hpp"
#include "cpu_model.hpp"

/// Interrupts KVM_RUN. Its handler does nothing.
inline constexpr int kick_signal = SIGUSR1;

/// All that a vCPU is.
struct vcpu_state {
    kvm_regs regs;
    kvm_sregs sregs;  ///< with IA32_APIC_BASE and EFER
    kvm_xcrs xcrs;
    std::vector<uint32_t> xsave;
    kvm_debugregs debugregs;
    kvm_lapic_state lapic;
    kvm_vcpu_events events;
    kvm_mp_state mp_state;
    std::vector<kvm_msr_entry> msrs;  ///< The first is the TSC.
};

class vcpu {
public:
    /// With the CPU's state after RESET. `run_size`, `xsave_size`: bytes of kvm_run and of KVM_GET_XSAVE2, 0 for a KVM
    /// without it.
    vcpu(file const& vm, cpu_model const& model, uint32_t id, size_t run_size, uint32_t xsave_size);

    /// PVH's state for the first vCPU.
    void start_at(boot_entry const& entry) const;

    /// \pre enter() returned false
    vcpu_state save() const;
    /// All but the MSRs and what follows them, then these: the VM's clock is to be set between. \pre a new vCPU
    void restore_registers(vcpu_state& state) const;
    void restore_msrs(vcpu_state& state) const;

    /// The guest's TSC.
    uint64_t tsc() const;

    /// Runs the guest. \return whether there is an exit to handle: false after a kick, and then no access is half done.
    bool enter() const;
    kvm_run& exit() const { return *reinterpret_cast<kvm_run*>(run_.bytes()); }

    /// Makes enter() return false as soon as the last exit is done with, also if it is called only later. For any
    /// thread. \pre `thread` is the one that calls enter(), and was not joined
    void kick(pthread_t thread) const;

private:
    file file_;
    cpu_model const* model_;
    uint32_t id_, xsave_size_;
    mapping run_;
};
