// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The CPU that the guest sees: what KVM supports, made consistent by pvx/host.

#include <pvx/host.hpp>

#include "kvm.hpp"

class cpu_model {
public:
    cpu_model(file const& kvm, uint32_t vcpus);

    /// For KVM_SET_CPUID2 of the vCPU with this id. The bits that follow registers are as those are.
    with_entries<kvm_cpuid2, kvm_cpuid_entry2> cpuid(uint32_t id, pvx::host::cpuid_inputs const& registers) const;

    /// For KVM_GET_XSAVE2.
    pvx::host::xsave_buffer xsave() const;

private:
    static constexpr uint32_t capacity = 256;

    uint32_t vcpus_;
    uint64_t components_{};  ///< XCR0 at its fullest
    pvx::host::xstate_layout layout_;
    std::vector<pvx::host::cpuid_entry> entries_;
};
