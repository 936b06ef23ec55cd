// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The machine object of this kernel: all that pvx needs of an operating system, in one file. To port pvx, copy it and
/// replace what is in namespace os. Eight functions, a byte and one table are the OS's own; the rest comes from the
/// x86-64 base and from KVM's way to wait.

#include <pvx/arch/x86_64.hpp>
#include <pvx/guest.hpp>

#include "os/apic.hpp"
#include "os/memory.hpp"
#include "os/per_cpu.hpp"
#include "os/shootdown.hpp"

/// One record of each kind per CPU, 64 bytes apart. Dense, because flushing looks at all of them at once.
template <class T>
inline constinit T shared_records[os::max_cpus] = {};

/// Empty: components hold it by value, and it costs nothing.
struct machine : pvx::arch::x86_64, pvx::guest::kvm_wait<machine> {
    /// Chosen once, at set-up: VMCALL or VMMCALL.
    static inline constinit auto hypercall_by = pvx::arch::hypercall_instruction::vmcall;
    /// The same: IPIs to many CPUs by hypercall, or each by its own command.
    static inline constinit bool ipis_by_hypercall = false;
    /// The same: the host wakes a halted CPU by hypercall.
    static inline constinit bool host_kicks = false;

    // --- who the CPUs are ---

    pvx::cpu_index self() const { return pvx::cpu_index{os::cpu_self()}; }
    uint32_t possible_cpus() const { return os::cpu_count(); }
    pvx::apic_id apic(pvx::cpu_index cpu) const { return pvx::apic_id{os::cpu_apic_id(cpu.value)}; }

    // --- memory that the host writes ---

    template <class T>
    pvx::shared<T> record(pvx::cpu_index cpu) const {
        T& r = shared_records<T>[cpu.value];
        return {&r, pvx::guest_phys{os::physical_address(&r)}};
    }

    // --- calls to the host, and interrupts without its help ---

    int64_t hypercall(uint64_t number, uint64_t a0, uint64_t a1, uint64_t a2, uint64_t a3) const {
        return pvx::arch::hypercall(hypercall_by, number, a0, a1, a2, a3);
    }
    void native_ipi(pvx::apic_id id, pvx::abi::apic_command command) const { os::send_command(id.value, command); }

    // --- waiting for a lock ---

    bool can_kick() const { return host_kicks; }
    /// In a machine check nothing here takes a lock.
    bool nmi_context() const { return os::this_cpu().in_nmi; }

    // --- translations ---

    void flush_all_local() const { os::flush_all_local(); }

    void flush_remote(pvx::const_cpu_mask_view mask, pvx::guest::flush_request const& request, uint32_t) const {
        os::ask_for_flush(mask, request);
        if (ipis_by_hypercall)
            (void)pvx::guest::ipi<machine>{*this}.send(mask, os::shootdown_command);
        else
            mask.for_each([&](pvx::cpu_index cpu) { native_ipi(apic(cpu), os::shootdown_command); });
        os::wait_for_flush(mask);
    }

    uint8_t& deferral(pvx::cpu_index cpu) const { return os::cpu_record(cpu.value).deferral; }
};
