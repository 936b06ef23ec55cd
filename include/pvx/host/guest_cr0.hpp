// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The guest's CR0 where the guest owns some of its bits: it writes them without an exit, so the host's copy of them is
/// out of date after each run, and reading hardware costs. Which bits it may own, and the copy that is filled when one
/// of them is asked for. On the vCPU's thread; hardware and host agree on whose bits they are. [sdm3c 25.6.6]
/// [apm2 15.9]

#include <pvx/abi/cr.hpp>
#include <pvx/host/concepts.hpp>

namespace pvx::inline v0::host {

/// CR0 where hardware keeps it for the guest.
/// Axiom: in the bits that the guest owns, what the guest has had since its last exit, or what the host has put there
/// since. Called on the vCPU's thread, while the vCPU is out.
template <class E>
concept guest_cr0_policy = requires(E const e) {
    { e.guest_cr0() } -> same_as<uint64_t>;  // guest_cr0() reads CR0 in the VMCS or VMCB
};

/// What happens to a guest's CR0, for the observer.
enum class cr0_event : uint8_t {
    fetched,                ///< CR0 was read from hardware.
    refused,                ///< A write ends in a general-protection fault.
    permissions_refreshed,  ///< What the guest's page tables permit was computed anew.
    roots_reloaded,         ///< Other roots of shadow page tables are used.
    pdptes_reloaded,        ///< The four entries of PAE paging were read.
    tlb_flushed,            ///< All translations of the guest were dropped.
};

/// Which writes to CR0 exit.
enum class virtualization : uint8_t {
    vmx,            ///< Those that change a bit of the host's, by a mask.
    svm,            ///< All.
    svm_selective,  ///< Those of selective_cr0_exit(): the host has that intercept, and not the one of all writes.
};

/// Bits of CR0 that a guest may write without an exit. `direct`: hardware walks the guest's page tables, which are not
/// shadowed. `l1_mask`: while a nested guest runs, what its hypervisor wants to see, which wins: on VMX its CR0
/// guest/host mask, on SVM all bits if it intercepts writes to CR0.
///
/// - VMX has a mask. WP may be owned only without shadow page tables, since those are made for one value of it, and
///   every look at it must then read it anew. No bit but TS and WP: the host has to act on it.
/// - SVM has none: every write exits, or only one that changes more than TS and MP, which then are the guest's, whether
///   the host likes it or not. A host without either intercept has given away all of CR0, and PG with it. [apm2 15.9]
///
/// TS needs nothing of a host that switches FPU state with the vCPU. One that sets TS under a guest, to be told of the
/// guest's first use of the FPU, keeps TS for itself: on VMX it takes TS out of this, on SVM it has all writes exit.
constexpr uint64_t ownable_cr0(virtualization by, bool direct, uint64_t l1_mask = 0) {
    switch (by) {
        case virtualization::vmx: return (direct ? abi::cr0::ts | abi::cr0::wp : abi::cr0::ts) & ~l1_mask;
        case virtualization::svm: return 0;
        case virtualization::svm_selective: return (abi::cr0::ts | abi::cr0::mp) & ~l1_mask;
    }
    return 0;
}

/// What CR0 holds after `written` was moved to it: its reserved low bits stay clear, and ET stays set, whatever is
/// written. Bits 63:32 are kept, for the check that refuses them. [sdm2b MOV]
constexpr uint64_t cr0_kept(uint64_t written) {
    constexpr uint64_t low_reserved = bit_range<uint64_t>(6, 15) | bit<uint64_t>(17) | bit_range<uint64_t>(19, 28);
    return (written & ~low_reserved) | abi::cr0::et;
}

/// What an LMSW of `operand` writes: PE, MP, EM and TS, and it never clears PE. `seen` is the CR0 that the guest reads:
/// its own, and of a nested guest on VMX nested_vmx_cr0_seen(). A bit that LMSW does not touch is thus written as it is
/// seen, and is no change. [sdm2a LMSW]
constexpr uint64_t lmsw_written(uint64_t seen, uint64_t operand) {
    constexpr uint64_t replaced = abi::cr0::mp | abi::cr0::em | abi::cr0::ts;
    return (seen & ~replaced) | (operand & (replaced | abi::cr0::pe));
}

/// What CLTS writes, with the same `seen`. [sdm2a CLTS]
constexpr uint64_t clts_written(uint64_t seen) { return seen & ~abi::cr0::ts; }

/// A MOV to CR0 meets SVM's selective intercept. CLTS never does, LMSW always. For a nested guest: it is its
/// hypervisor's, if that has set the intercept. [apm2 15.9]
constexpr bool selective_cr0_exit(uint64_t old_cr0, uint64_t written) {
    return ((old_cr0 ^ cr0_kept(written)) & ~(abi::cr0::ts | abi::cr0::mp)) != 0;
}

/// What a write to CR0 by a nested guest on VMX comes to.
struct nested_cr0_write {
    bool to_l1;      ///< It is an exit to the guest's own hypervisor, and nothing else happens.
    uint64_t value;  ///< Otherwise: what is written, with that hypervisor's bits as it has set them.

    friend constexpr bool operator==(nested_cr0_write const&, nested_cr0_write const&) = default;
};

/// What a nested guest on VMX reads: in the bits of its hypervisor's mask the read shadow, in others `cr0`, which is
/// what it has as of now. [sdm3c 25.6.6]
constexpr uint64_t nested_vmx_cr0_seen(uint64_t cr0, uint64_t l1_mask, uint64_t l1_shadow) {
    return (cr0 & ~l1_mask) | (l1_shadow & l1_mask);
}

/// Whose exit it is, of a MOV, or of what lmsw_written() and clts_written() make of the other two. `l1_mask`,
/// `l1_shadow` and `l1_cr0` are the mask, the read shadow and guest CR0 in the VMCS that the guest's hypervisor made.
/// [sdm3c 26.1.3]
constexpr nested_cr0_write nested_vmx_cr0_write(uint64_t written, uint64_t l1_mask, uint64_t l1_shadow,
                                                uint64_t l1_cr0) {
    return {((written ^ l1_shadow) & l1_mask) != 0, (written & ~l1_mask) | (l1_cr0 & l1_mask)};
}

/// CR0 of one vCPU. Bits of the host's cost a load; the guest's are fetched once after each exit, and only if one of
/// them is asked for. For a snapshot, read all of it first. So too before an entry to a nested guest and
/// an exit from it: they switch the VMCS or VMCB, and what was not fetched by then is gone. give() fetches it, and is
/// due there anyway, since what the guest may own changes with its hypervisor's mask.
class lazy_cr0 {
public:
    /// All bits are the host's at first.
    constexpr explicit lazy_cr0(uint64_t value) : value_(value) {}

    /// `bits` of CR0, as they are now.
    template <guest_cr0_policy Environment>
    constexpr uint64_t read(uint64_t bits, Environment const& environment) {
        if ((bits & stale_) != 0) fetch(environment);
        return value_ & bits;
    }

    /// The guest has run, and may have written what it owns. \pre what set() took has reached hardware
    constexpr void exited() { stale_ = owned_; }

    /// CR0 is another, by the guest's write or the VMM's. The VMM puts it into hardware before the guest runs.
    constexpr void set(uint64_t value) {
        value_ = value;
        stale_ = 0;
    }

    /// From now on the guest owns `bits`. \pre a subset of ownable_cr0(); hardware is told before the guest runs
    template <guest_cr0_policy Environment>
    constexpr void give(uint64_t bits, Environment const& environment) {
        (void)read(owned_, environment);  // what is taken away must be known
        owned_ = bits;
    }

    /// The bits that the guest owns.
    constexpr uint64_t owned() const { return owned_; }

private:
    template <class Environment>
    constexpr void fetch(Environment const& environment) {
        value_ = (value_ & ~owned_) | (environment.guest_cr0() & owned_);
        stale_ = 0;
        if constexpr (observer_policy<Environment, cr0_event>) environment.event(cr0_event::fetched);
    }

    uint64_t value_;
    uint64_t owned_{};
    uint64_t stale_{};  // none of them, or all that are owned
};
static_assert(trivially_copyable<lazy_cr0>);

}  // namespace pvx::inline v0::host
