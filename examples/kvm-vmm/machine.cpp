// SPDX-License-Identifier: MIT

#include "machine.hpp"

#include <algorithm>

machine::machine(file const& kvm, cpu_model const& model, uint32_t vcpus, guest_memory memory)
    : memory_(std::move(memory)), vm_(PVX_VMM_CALL(kvm, KVM_CREATE_VM, 0)) {
    // Three pages for real mode on CPUs that cannot do it: anywhere but in the guest's memory.
    uint64_t identity_map = 0xfffbc000;
    PVX_VMM_CALL(vm_, KVM_SET_IDENTITY_MAP_ADDR, &identity_map);
    PVX_VMM_CALL(vm_, KVM_SET_TSS_ADDR, identity_map + 0x1000);
    PVX_VMM_CALL(vm_, KVM_CREATE_IRQCHIP, 0);
    kvm_pit_config pit{};
    pit.flags = KVM_PIT_SPEAKER_DUMMY;  // port 0x61, with the gate of channel 2
    PVX_VMM_CALL(vm_, KVM_CREATE_PIT2, &pit);
    kvm_userspace_memory_region region{};
    region.memory_size = memory_.size();
    region.userspace_addr = reinterpret_cast<uintptr_t>(memory_.bytes());
    PVX_VMM_CALL(vm_, KVM_SET_USER_MEMORY_REGION, &region);
    auto const run_size = static_cast<size_t>(PVX_VMM_CALL(kvm, KVM_GET_VCPU_MMAP_SIZE, 0));
    for (uint32_t id = 0; id < vcpus; ++id) vcpus_.emplace_back(vm_, model, id, run_size);
}

machine::machine(file const& kvm, cpu_model const& model, machine_state saved)
    : machine(kvm, model, static_cast<uint32_t>(saved.vcpus.size()), std::move(saved.memory)) {
    for (kvm_irqchip& chip : saved.chips) PVX_VMM_CALL(vm_, KVM_SET_IRQCHIP, &chip);
    PVX_VMM_CALL(vm_, KVM_SET_PIT2, &saved.pit);
    for (size_t i = 0; i < vcpus_.size(); ++i) vcpus_[i].restore_rest(saved.vcpus[i]);
    // Clock and TSC go on together: from here, where both are set.
    kvm_clock_data clock{};
    clock.clock = saved.clock;
    PVX_VMM_CALL(vm_, KVM_SET_CLOCK, &clock);
    for (size_t i = 0; i < vcpus_.size(); ++i) vcpus_[i].restore_msrs(saved.vcpus[i]);
    // A kick of a vCPU that was not halted yet is in none of the states that KVM gives. So each gets one more, as an
    // MSI of the delivery mode that KVM has for it: a waiter that wakes without reason looks, and waits again.
    for (size_t i = 0; i < vcpus_.size(); ++i) {
        kvm_msi kick{};
        kick.address_lo = 0xfee00000 | static_cast<uint32_t>(i) << 12;
        kick.data = 3 << 8;
        PVX_VMM_CALL(vm_, KVM_SIGNAL_MSI, &kick);
    }
}

void machine::start(port_handler const& on_port, failure_handler const& on_failure) {
    for (vcpu const& cpu : vcpus_)
        threads_.emplace_back([&, on_port, on_failure] {
            try {
                run(cpu, on_port);
            } catch (failure const& f) {
                on_failure(f);
            }
        });
}

void machine::stop() {
    for (size_t i = 0; i < threads_.size(); ++i) vcpus_[i].kick(threads_[i].native_handle());
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
}

machine_state machine::save() {
    std::vector<vcpu_state> states(vcpus_.size());
    for (size_t i = 0; i < states.size(); ++i) vcpus_[i].save_msrs(states[i]);
    kvm_clock_data clock{};
    PVX_VMM_CALL(vm_, KVM_GET_CLOCK, &clock);
    for (size_t i = 0; i < states.size(); ++i) vcpus_[i].save_rest(states[i]);

    // The TSC went on while it was read from one vCPU after the other, and on a host whose own is not reliable KVM
    // shows that of a vCPU which has not run for long as it was then. The latest of all is the machine's.
    auto const tsc = [](vcpu_state & s) -> auto& { return s.msrs.front().data; };
    uint64_t latest = 0;
    for (vcpu_state& s : states) latest = std::max<uint64_t>(latest, tsc(s));
    for (vcpu_state& s : states) tsc(s) = latest;

    kvm_irqchip chips[3]{};
    for (uint32_t i = 0; i < 3; ++i) {
        chips[i].chip_id = i;
        PVX_VMM_CALL(vm_, KVM_GET_IRQCHIP, &chips[i]);
    }
    kvm_pit_state2 pit{};
    PVX_VMM_CALL(vm_, KVM_GET_PIT2, &pit);
    // Last: to read a vCPU's state is enough for KVM to write to its steal-time page.
    machine_state result(memory_.copy());
    result.vcpus = std::move(states);
    std::copy(std::begin(chips), std::end(chips), std::begin(result.chips));
    result.pit = pit;
    result.clock = clock.clock;
    return result;
}

void machine::run(vcpu const& cpu, port_handler const& on_port) {
    while (cpu.enter()) {
        kvm_run& exit = cpu.exit();
        switch (exit.exit_reason) {
            case KVM_EXIT_IO:
                if (!on_port(exit, reinterpret_cast<uint8_t*>(&exit) + exit.io.data_offset)) return;
                break;
            case KVM_EXIT_MMIO:
                if (exit.mmio.is_write == 0) std::memset(exit.mmio.data, 0xff, sizeof exit.mmio.data);
                break;
            case KVM_EXIT_INTR: break;
            case KVM_EXIT_SHUTDOWN:
            case KVM_EXIT_SYSTEM_EVENT:
                throw failure(no_value, "the guest ended without an exit value: a triple fault or a reset");
            case KVM_EXIT_FAIL_ENTRY:
                throw failure(machine_failed, "the CPU refuses to enter the guest, with reason " +
                                                  std::to_string(exit.fail_entry.hardware_entry_failure_reason));
            case KVM_EXIT_INTERNAL_ERROR:
                throw failure(machine_failed, "KVM internal error " + std::to_string(exit.internal.suberror));
            default: throw failure(machine_failed, "exit " + std::to_string(exit.exit_reason) + " is not known here");
        }
    }
}
