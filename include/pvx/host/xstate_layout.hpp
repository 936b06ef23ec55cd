// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// How many bytes a set of state components takes in a save area, and where each lies, without a CPUID: a table that is
/// filled once from the sub-leaves 2 .. 19 of CPUID.0xD and answers in constant time. The size fields of sub-leaves 0
/// and 1 depend on what is on at the moment, and are not read. No state but the table: after set_up() any CPU, any
/// context. Guests use it too, see host/xstate_rules.hpp;
/// host/xstate_check.hpp compares it with the hardware. [sdm1 13.2] [sdm1 13.4.3] [sdm2a CPUID] [apm3 E] [apx]
///
/// Why it is fast. In the standard format a size is the largest end of a component: the larger of two look-ups, each
/// for half of the components. In the compacted one each component takes the size x so far to x + s, or, if it is
/// aligned, to align64(x) + s, and any sequence of such steps is ((x + before) & keep) + after: no aligned one, keep is
/// all ones; one or more, keep clears six bits. So a look-up gives the size with the lower half, another the step of
/// the upper half.

#include <pvx/arch/concepts.hpp>
#include <pvx/base/status.hpp>
#include <pvx/host/xstate_rules.hpp>

namespace pvx::inline v0::host {

template <xsave_format Format>
struct xsave_size_tag;
/// Bytes of a save area in one format. One that is sized for the one format is no area for the other.
template <xsave_format Format>
using xsave_size = strong_integer<xsave_size_tag<Format>, uint32_t>;

/// The last answer, for a caller whose mask seldom changes: one of each vCPU, zero at first, or after a copy to a host
/// with another layout.
template <xsave_format Format>
struct xsave_size_memo {
    uint64_t key{};
    xsave_size<Format> size{};
};

/// What a save and restore interface such as KVM_GET_XSAVE2 takes.
struct xsave_buffer {
    uint32_t size;  ///< Bytes.

    /// For interfaces that count in 32-bit words.
    constexpr uint32_t words() const { return (size + 3) / 4; }
};

/// The buffer for a state in the standard format: never less than the 4096 bytes of the first interfaces, whose callers
/// know nothing else. KVM_GET_XSAVE2 fills what KVM_CAP_XSAVE2 answers for the VM, by what the kernel permits it, and
/// not by the guest's XCR0: where that is more, take it. [kvm-api]
constexpr xsave_buffer make_xsave_buffer(xsave_size<xsave_format::standard> size) {
    return {size.value < 4096 ? 4096 : size.value};
}

/// The sizes and places of the state components of one CPU model. Before set_up() there are no components, and every
/// size is 0, which no area has. 12 KB of zeros: a global or a part of the VM, not for a kernel's stack.
class xstate_layout {
public:
    /// The components in the table: first .. end - 1. Those from `end` on count for nothing in a size: a VMM does not
    /// offer them, see user_components().
    static constexpr uint32_t first = 2;
    static constexpr uint32_t end = 20;
    /// No component of any CPU ends behind this, and no size overflows below.
    static constexpr uint32_t most_bytes = 1 << 20;

    /// One component, as CPUID enumerates it.
    struct component {
        uint32_t size{};    ///< Bytes; 0 if it does not exist.
        uint32_t offset{};  ///< In the standard format; 0 for a supervisor component, which has no place there.
        bool supervisor{};  ///< In IA32_XSS, not in XCR0.
        bool aligned{};     ///< At a multiple of 64 in the compacted format.
    };

    /// Read CPUID: the instruction, or the table that a VMM has from its kernel. All CPUs that share the layout must
    /// have the same sub-leaves. \return unsupported without XSAVE (then 0xD is not read), bad_argument for a
    /// component that lies in the legacy area or behind `most_bytes`. \post if it is not ok, there are no components,
    /// and every size is the 512 bytes of FXSAVE
    template <cpuid_policy Cpuid>
    constexpr status set_up(Cpuid const& cpuid) {
        forget();
        status const outcome = read(cpuid);
        if (outcome != status::ok) forget();
        uint32_t const least = outcome == status::ok ? abi::xsave_extended_offset : abi::xsave_legacy_bytes;
        // The lower half as steps, and then as sizes; the upper half takes their room.
        compose(first);
        for (uint32_t m = 0; m < slice_size; ++m) {
            step const& s = upper_[m];
            lower_[m] = {s.end > least ? s.end : least, s.from(least)};
        }
        compose(first + slice_bits);
        return outcome;
    }

    /// Bytes for the components in `mask`: XCR0 in the standard format, XCR0 | XSS in the compacted one, of the guest
    /// or of the host, as the area is for the one or the other. At least 576 after a set_up() that was ok. Bits 0, 1
    /// and 63 and those of components that do not exist are ignored, supervisor components too in the standard format.
    template <xsave_format Format>
    constexpr xsave_size<Format> required_size(uint64_t mask) const {
        // A guest may have chosen the mask: indices are cut, not compared, so speculation stays inside as well.
        half const& lower = lower_[(mask >> first) & slice_mask];
        step const& upper = upper_[(mask >> (first + slice_bits)) & slice_mask];
        if constexpr (Format == xsave_format::compacted)
            return xsave_size<Format>{upper.from(lower.compacted)};
        else
            return xsave_size<Format>{lower.end > upper.end ? lower.end : upper.end};
    }

    /// The same, remembered. \pre the memo is of this layout, and the caller's own
    template <xsave_format Format>
    constexpr xsave_size<Format> required_size(uint64_t mask, xsave_size_memo<Format>& memo) const {
        // Bit 0 changes no size, and a memo of zeros has seen no mask.
        uint64_t const key = mask | abi::xfeature::x87;
        if (memo.key != key) memo = {key, required_size<Format>(mask)};
        return memo.size;
    }

    /// As CPUID.0xD enumerates them, for host/runtime_cpuid.hpp: EBX of sub-leaf 0, for XCR0.
    constexpr uint32_t standard_size(uint64_t mask) const { return required_size<xsave_format::standard>(mask).value; }
    /// EBX of sub-leaf 1, for XCR0 | XSS.
    constexpr uint32_t compacted_size(uint64_t mask) const {
        return required_size<xsave_format::compacted>(mask).value;
    }

    /// Bytes from the start of the area to a component of 2 .. 19; 0 if it has no place in an area for `mask`. It looks
    /// the component up and tests it, besides the size of what lies before: for set-up and copies, not for each exit.
    /// \pre a number that a guest chose is clamped
    template <xsave_format Format>
    constexpr uint32_t offset(uint32_t number, uint64_t mask) const {
        if (number < first || number >= end || (components() & mask & bit<uint64_t>(number)) == 0) return 0;
        component const& c = list_[number - first];
        if constexpr (Format == xsave_format::standard) return c.offset;
        uint32_t const before = required_size<Format>(mask & (bit<uint64_t>(number) - 1)).value;
        return c.aligned ? align_up(before, alignment) : before;
    }

    /// All components, with x87 and SSE; 0 without XSAVE.
    constexpr uint64_t components() const { return components_; }
    /// Those of XCR0 that have a place. XSETBV takes no more than supported_xcr0() says: AND with it before. What is in
    /// both, constrain_xcr0() makes what may be on together.
    constexpr uint64_t user_components() const { return components_ & ~supervisor_; }
    /// Those of IA32_XSS that have a size. AND with supported_xss() before WRMSR.
    constexpr uint64_t supervisor_components() const { return supervisor_; }
    /// \pre first <= number < end
    constexpr component const& operator[](uint32_t number) const { return list_[number - first]; }

private:
    static constexpr uint32_t alignment = 64;
    // In ECX of a sub-leaf.
    static constexpr uint32_t in_xss = bit<uint32_t>(0);
    static constexpr uint32_t is_aligned = bit<uint32_t>(1);

    static constexpr uint32_t slice_bits = (end - first) / 2;
    static constexpr uint32_t slice_size = 1 << slice_bits;
    static constexpr uint32_t slice_mask = slice_size - 1;
    static_assert(first + 2 * slice_bits == end);

    // How some components change the size.
    struct step {
        uint32_t before{};
        uint32_t keep{};
        uint32_t after{};
        uint32_t end{};  // in the standard format

        constexpr uint32_t from(uint32_t size) const { return ((size + before) & keep) + after; }
    };
    struct half {
        uint32_t end{};
        uint32_t compacted{};
    };

    constexpr void forget() {
        for (component& c : list_) c = {};
        components_ = supervisor_ = 0;
    }

    template <class Cpuid>
    constexpr status read(Cpuid const& cpuid) {
        // On some CPUs a leaf that is not there answers like another.
        if (cpuid.cpuid(abi::cpuid_leaf::vendor, 0).eax < abi::cpuid_leaf::xstate) return status::unsupported;
        if (!abi::has(cpuid.cpuid(abi::cpuid_leaf::features, 0), abi::cpuid_feature::xsave)) return status::unsupported;
        components_ = abi::xfeature::x87 | abi::xfeature::sse;
        for (uint32_t number = first; number < end; ++number) {
            abi::cpuid_regs const regs = cpuid.cpuid(abi::cpuid_leaf::xstate, number);
            if (regs.eax == 0) continue;
            component c{regs.eax, regs.ebx, (regs.ecx & in_xss) != 0, (regs.ecx & is_aligned) != 0};
            if (c.supervisor) c.offset = 0;
            if (!c.supervisor && c.offset < abi::xsave_extended_offset) return status::bad_argument;
            if (c.size > most_bytes || c.offset > most_bytes - c.size) return status::bad_argument;
            list_[number - first] = c;
            components_ |= bit<uint64_t>(number);
            if (c.supervisor) supervisor_ |= bit<uint64_t>(number);
        }
        return status::ok;
    }

    // The steps of all subsets of the half that begins with component `from`, into upper_.
    constexpr void compose(uint32_t from) {
        upper_[0] = {0, ~uint32_t{0}, 0, 0};
        for (uint32_t m = 1; m < slice_size; ++m) {
            uint32_t const highest = bit_width(m) - 1;
            upper_[m] = then(upper_[m ^ bit<uint32_t>(highest)], from + highest);
        }
    }

    // `s`, and then one component more.
    constexpr step then(step s, uint32_t number) const {
        component const& c = list_[number - first];
        if ((components_ & bit<uint64_t>(number)) == 0) return s;
        if (c.aligned && s.keep == ~uint32_t{0})
            s = {s.after + (alignment - 1), ~(alignment - 1), 0, s.end};
        else if (c.aligned)
            s.after = align_up(s.after, alignment);
        s.after += c.size;
        if (!c.supervisor && c.offset + c.size > s.end) s.end = c.offset + c.size;
        return s;
    }

    step upper_[slice_size]{};
    half lower_[slice_size]{};
    component list_[end - first]{};
    uint64_t components_{};
    uint64_t supervisor_{};
};

}  // namespace pvx::inline v0::host
