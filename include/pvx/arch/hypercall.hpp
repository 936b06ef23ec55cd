// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Which instruction calls the hypervisor. VMCALL faults on AMD and VMMCALL on Intel; KVM repairs a wrong one by
/// writing into the guest's text, which fails where text is read-only, encrypted or measured. So choose the right one.

#include <pvx/arch/concepts.hpp>

namespace pvx::inline v0::arch {

/// The two instructions.
enum class hypercall_instruction : uint8_t { vmcall, vmmcall };

/// The instruction of a CPU vendor. An unknown vendor gets Intel's, as the older and wider spread.
constexpr hypercall_instruction hypercall_instruction_of(abi::cpu_vendor vendor) {
    bool const is_amd = vendor == abi::cpu_vendor::amd || vendor == abi::cpu_vendor::hygon;
    return is_amd ? hypercall_instruction::vmmcall : hypercall_instruction::vmcall;
}

}  // namespace pvx::inline v0::arch
