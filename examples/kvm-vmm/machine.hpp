// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// A virtual machine that runs on a thread per vCPU, and can be saved and continued in another one.

#include <optional>
#include <thread>

#include "vcpu.hpp"

/// Who is told what the guest does. Called on any vCPU's thread.
struct surroundings {
    /// An access to ports. \return whether this vCPU goes on
    virtual bool on_port(kvm_run& exit, uint8_t* data) = 0;
    /// A vCPU cannot go on.
    virtual void on_failure(failure const& why) = 0;

protected:
    ~surroundings() = default;
};

/// The guest's TSC and the VM's clock, in nanoseconds, at one moment.
struct moment {
    uint64_t tsc, clock;
};

struct machine_state {
    std::vector<vcpu_state> vcpus;
    kvm_irqchip chips[3]{};  ///< Both PICs, the I/O APIC.
    kvm_pit_state2 pit{};
    moment now{};
    std::optional<guest_memory> memory{};
};

class machine {
public:
    /// In the state after RESET.
    machine(file const& kvm, cpu_model const& model, uint32_t vcpus, guest_memory memory);
    /// As it was when it was saved; its time has stood still.
    machine(file const& kvm, cpu_model const& model, machine_state saved);
    ~machine() { stop(); }

    vcpu const& first() const { return vcpus_.front(); }

    /// All vCPUs run, on new threads: KVM counts what is stolen from a new vCPU from its thread's beginning.
    /// \pre not started before
    void start(surroundings& world);
    /// \post no vCPU runs, none is in the middle of an access, and the threads are gone
    void stop();
    /// \pre stopped
    machine_state save() const;

private:
    void run(size_t index, surroundings& world);

    guest_memory memory_;
    file vm_;
    std::vector<vcpu> vcpus_;
    std::vector<std::thread> threads_;
    std::vector<moment> stopped_at_;  ///< Of each vCPU.
};
