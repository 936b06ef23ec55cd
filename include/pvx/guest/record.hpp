// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// How every per-CPU record is made known to the host and withdrawn: by an MSR that takes its guest-physical address
/// and an enable bit. Set-up only; runs on the CPU whose record it is. Works before per-CPU data does: the CPU is
/// passed in.

#include <pvx/abi/kvm_msr.hpp>
#include <pvx/guest/concepts.hpp>

namespace pvx::inline v0::guest {

/// Records of all CPUs side by side: the placement to begin with. Code that looks at every CPU's record, as a flush
/// does, runs through consecutive lines; records at a stride of a page or more all fall into a few sets of the cache,
/// and the same code took three to five times as long.
template <class T, uint32_t Cpus>
struct dense_records {
    T records[Cpus]{};

    /// The record of `cpu`, for a machine's record(); none beyond the end. `base` is the guest-physical address of
    /// the whole, which must be contiguous there.
    constexpr shared<T> at(cpu_index cpu, guest_phys base) {
        if (cpu.value >= Cpus) return {};
        return {&records[cpu.value], guest_phys{base.value + cpu.value * sizeof(T)}};
    }
};

/// Withdraw the record of the calling CPU. Harmless if there is none, also if an earlier kernel left one (kexec).
/// \post The host writes no more to the memory that was registered.
template <msr_policy Machine>
void withdraw_record(Machine const& machine, uint32_t msr) {
    // Asking the MSR, not a flag of our own, is what makes this right after kexec and idempotent.
    if ((machine.read_msr(msr) & abi::kvm_msr_enable) != 0) machine.write_msr(msr, 0);
}

/// Register the record of the calling CPU, which is `cpu`: withdraw an earlier one, open the memory to the host where
/// it is private, zero it by `zero(record)`, tell the host. `zero` uses the atomics policy: other CPUs may look at the
/// record of a CPU that comes up again. `flags` are more bits for the MSR.
///
/// \return no_record, misaligned, or what the machine's share() said; then nothing is registered.
template <class T, msr_policy Machine, class Zero>
    requires(record_policy<Machine, T>)
status register_record(Machine const& machine, cpu_index cpu, uint32_t msr, Zero&& zero, uint64_t flags = 0) {
    if constexpr (names_share<Machine>) static_assert(sharing_policy<Machine, T>);
    withdraw_record(machine, msr);

    shared<T> const record = machine.template record<T>(cpu);
    if (record.pointer == nullptr) return status::no_record;
    // The alignment of T is chosen so that an aligned record cannot cross a page.
    bool const aligned = is_aligned<uint64_t>(record.address.value, alignof(T)) &&
                         is_aligned<uint64_t>(reinterpret_cast<uintptr_t>(record.pointer), alignof(T));
    if (!aligned) return status::misaligned;

    if constexpr (sharing_policy<Machine, T>) {
        status const opened = machine.share(record);
        if (opened != status::ok) return opened;
    }
    zero(*record.pointer);  // last: opening memory may have changed what it holds
    machine.write_msr(msr, record.address.value | abi::kvm_msr_enable | flags);
    return status::ok;
}

}  // namespace pvx::inline v0::guest
