// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// A virtual machine that runs on a thread per vCPU, and can be saved and continued in another one.

#include <functional>
#include <thread>

#include "vcpu.hpp"

/// What the guest does to ports. Called on any vCPU's thread.
/// \return whether that vCPU goes on
using port_handler = std::function<bool(kvm_run&, uint8_t* data)>;
/// Told when a vCPU cannot go on.
using failure_handler = std::function<void(failure const&)>;

struct machine_state {
    explicit machine_state(guest_memory m) : memory(std::move(m)) {}
    guest_memory memory;
    std::vector<vcpu_state> vcpus;
    kvm_irqchip chips[3]{};  ///< both PICs, the I/O APIC
    kvm_pit_state2 pit{};
    uint64_t clock{};  ///< Nanoseconds of the KVM clock.
};

class machine {
public:
    /// In the state after RESET.
    machine(file const& kvm, cpu_model const& model, uint32_t vcpus, guest_memory memory);
    /// As it was when it was saved; its time has stood still.
    machine(file const& kvm, cpu_model const& model, machine_state saved);
    ~machine() { stop(); }

    vcpu& first() { return vcpus_.front(); }

    /// All vCPUs run, on new threads. \pre stopped
    void start(port_handler const& on_port, failure_handler const& on_failure);
    /// \post no vCPU runs, none is in the middle of an access, and the threads are gone
    void stop();
    /// \pre stopped
    machine_state save();

private:
    void run(vcpu const& cpu, port_handler const& on_port);

    guest_memory memory_;
    file vm_;
    std::vector<vcpu> vcpus_;
    std::vector<std::thread> threads_;
};
