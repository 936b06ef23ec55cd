// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Whether xstate_layout and the hardware agree, for a look at start-up: CPUID enumerates the sizes for what is on at
/// the moment, which is the one thing that the table is not made of. Executes CPUID, on the CPU that it is called on.
/// [sdm2a CPUID] [apm3 E]

#include <pvx/host/xstate_layout.hpp>

namespace pvx::inline v0::host {

/// What is on.
struct xstate_enabled {
    uint64_t xcr0;
    uint64_t xss;
};

/// Turning components on, for a check of all sets of them. An optional role.
/// Axiom: `enable_xstate` is given values that XSETBV and WRMSR take, and changes this CPU only. Without XSAVES there
/// is no IA32_XSS: `xss` is 0 then, and must not be written.
template <class M>
concept xstate_enable_policy = requires(M const m, xstate_enabled value) {
    m.enable_xstate(value);  // enable_xstate({xcr0, xss}) writes both, IA32_XSS only with XSAVES
};

/// Where hardware and arithmetic disagree: true if they do.
struct xstate_mismatch {
    xsave_format format{};
    uint64_t mask{};        ///< XCR0, or XCR0 | XSS.
    uint32_t computed{};    ///< Bytes.
    uint32_t enumerated{};  ///< Bytes.

    constexpr explicit operator bool() const { return computed != enumerated; }
};

/// Compare with the sizes that CPUID enumerates. \pre `live` is on, on this CPU, or where the machine's table was made;
/// without XSAVES, live.xss is 0. \return the first mask on which they disagree. A machine that can turn components on
/// gets every valid XCR0, with no and with all supervisor components, and `live` again: some hundred CPUIDs. Only what
/// sub-leaves 0 and 1 say can be on is turned on, whatever other sub-leaves there are. Without XSAVE there is nothing
/// to compare.
template <cpuid_policy Machine>
constexpr xstate_mismatch verify_xstate_layout(xstate_layout const& layout, Machine const& machine,
                                               xstate_enabled live) {
    if (layout.components() == 0) return {};
    auto const compare = [&](xstate_enabled on) -> xstate_mismatch {
        uint32_t const ebx = machine.cpuid(abi::cpuid_leaf::xstate, 0).ebx;
        xstate_mismatch const m{xsave_format::standard, on.xcr0, layout.standard_size(on.xcr0), ebx};
        abi::cpuid_regs const regs = machine.cpuid(abi::cpuid_leaf::xstate, 1);
        bool const compacts = abi::has(regs, abi::cpuid_feature::xsavec) || abi::has(regs, abi::cpuid_feature::xsaves);
        if (m || !compacts) return m;
        uint64_t const all = on.xcr0 | on.xss;
        return {xsave_format::compacted, all, layout.compacted_size(all), regs.ebx};
    };
    xstate_mismatch found = compare(live);
    if constexpr (xstate_enable_policy<Machine>) {
        uint64_t const user = layout.user_components() & supported_xcr0(machine.cpuid(abi::cpuid_leaf::xstate, 0));
        uint64_t const supervisor =
            layout.supervisor_components() & supported_xss(machine.cpuid(abi::cpuid_leaf::xstate, 1));
        for (uint64_t xcr0 = user; !found && xcr0 != 0; xcr0 = (xcr0 - 1) & user) {  // every subset
            if (!valid_xcr0(xcr0, user)) continue;
            for (uint64_t xss = supervisor;; xss = 0) {
                machine.enable_xstate({xcr0, xss});
                found = compare({xcr0, xss});
                if (found || xss == 0) break;
            }
        }
        machine.enable_xstate(live);
    }
    return found;
}

}  // namespace pvx::inline v0::host
