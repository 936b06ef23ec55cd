// SPDX-License-Identifier: MIT

#include "machine.hpp"

#include <algorithm>

namespace abi = pvx::abi;

machine::machine(file const& kvm, cpu_model const& model, uint32_t vcpus, guest_memory memory)
    : memory_(std::move(memory)), vm_(PVX_VMM_CALL(kvm, KVM_CREATE_VM, 0)) {
    // Four pages for real mode on CPUs that do not have it in a guest: anywhere but in the guest's memory.
    uint64_t const identity_map = 0xfffbc000;
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
    auto const xsave_size = static_cast<uint32_t>(PVX_VMM_CALL(vm_, KVM_CHECK_EXTENSION, KVM_CAP_XSAVE2));
    for (uint32_t id = 0; id < vcpus; ++id) vcpus_.emplace_back(vm_, model, id, run_size, xsave_size);
}

machine::machine(file const& kvm, cpu_model const& model, machine_state saved)
    : machine(kvm, model, static_cast<uint32_t>(saved.vcpus.size()), std::move(*saved.memory)) {
    for (kvm_irqchip& chip : saved.chips) PVX_VMM_CALL(vm_, KVM_SET_IRQCHIP, &chip);
    for (size_t i = 0; i < vcpus_.size(); ++i) vcpus_[i].restore_registers(saved.vcpus[i]);
    // Clock and TSC go on together. A TSC less than a second from what KVM expects it takes for an attempt to write the
    // same to all vCPUs, and does not take over. So the first one is written twice, and far off at first.
    for (vcpu_state& v : saved.vcpus) v.msrs.front().data = saved.now.tsc;
    auto& first = saved.vcpus.front().msrs;
    first.insert(first.begin(), {abi::msr::ia32_tsc, 0, saved.now.tsc + (uint64_t{1} << 45)});
    kvm_clock_data clock{};
    clock.clock = saved.now.clock;
    PVX_VMM_CALL(vm_, KVM_SET_CLOCK, &clock);
    for (size_t i = 0; i < vcpus_.size(); ++i) vcpus_[i].restore_msrs(saved.vcpus[i]);
    PVX_VMM_CALL(vm_, KVM_SET_PIT2, &saved.pit);
    // A kick that came before the halt is in no state that KVM gives out. So each vCPU that may have one gets one more,
    // as an MSI of the delivery mode that KVM has for it: a waiter that wakes without reason looks, and waits again. A
    // vCPU that halts has none, because with one it counts as runnable. One that was not started must not get any:
    // while it has a kick, KVM_RUN returns at once.
    for (uint32_t id = 0; id < vcpus_.size(); ++id) {
        if (saved.vcpus[id].mp_state.mp_state != KVM_MP_STATE_RUNNABLE) continue;
        kvm_msi const kick{0xfee00000 | id << 12, 0, 3 << 8, 0, 0, {}};
        PVX_VMM_CALL(vm_, KVM_SIGNAL_MSI, &kick);
    }
}

machine_state machine::save() const {
    // What sends interrupts before what takes them: one that comes in between is then there twice and not lost.
    machine_state state;
    PVX_VMM_CALL(vm_, KVM_GET_PIT2, &state.pit);
    for (uint32_t i = 0; i < 3; ++i) {
        state.chips[i].chip_id = i;
        PVX_VMM_CALL(vm_, KVM_GET_IRQCHIP, &state.chips[i]);
    }
    for (vcpu const& cpu : vcpus_) state.vcpus.push_back(cpu.save());
    // A TSC that is read now has gone on, or where the host's own is not reliable has stood still, since the vCPU
    // stopped. The machine's are the latest ones, so that no vCPU sees either go back.
    for (moment const& m : stopped_at_)
        state.now = {std::max(state.now.tsc, m.tsc), std::max(state.now.clock, m.clock)};
    // Last: to read a vCPU's state is reason enough for KVM to write to its steal-time page.
    state.memory = memory_.copy();
    return state;
}

void machine::run(size_t index, surroundings& world) try {
    vcpu const& cpu = vcpus_[index];
    while (cpu.enter()) {
        kvm_run& exit = cpu.exit();
        if (exit.exit_reason == KVM_EXIT_IO) {
            if (!world.on_port(exit, reinterpret_cast<uint8_t*>(&exit) + exit.io.data_offset)) return;
        } else if (exit.exit_reason == KVM_EXIT_MMIO) {
            if (exit.mmio.is_write == 0) std::memset(exit.mmio.data, 0xff, sizeof exit.mmio.data);  // nobody answers
        } else if (exit.exit_reason == KVM_EXIT_SHUTDOWN || exit.exit_reason == KVM_EXIT_SYSTEM_EVENT) {
            throw failure(no_value, "the guest ended without an exit value: a triple fault or a reset");
        } else if (exit.exit_reason != KVM_EXIT_INTR) {
            std::string text = "KVM gives up: exit reason " + std::to_string(exit.exit_reason);
            if (exit.exit_reason == KVM_EXIT_INTERNAL_ERROR)
                text += ", error " + std::to_string(exit.internal.suberror);
            throw failure(machine_failed, text);
        }
    }
    kvm_clock_data clock{};
    uint64_t const tsc = cpu.tsc();
    PVX_VMM_CALL(vm_, KVM_GET_CLOCK, &clock);
    stopped_at_[index] = {tsc, clock.clock};
} catch (failure const& why) {
    world.on_failure(why);
}

void machine::start(surroundings& world) {
    stopped_at_.resize(vcpus_.size());
    for (size_t i = 0; i < vcpus_.size(); ++i) threads_.emplace_back(&machine::run, this, i, std::ref(world));
}

void machine::stop() {
    for (size_t i = 0; i < threads_.size(); ++i) vcpus_[i].kick(threads_[i].native_handle());
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
}
