// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Whether, and in which mode, a vCPU's local APIC works: IA32_APIC_BASE, the software enable bit, RESET and INIT, and
/// what else a change of them changes. The registers themselves stay the VMM's. [sdm3a 11.4.3] [sdm3a 11.12.5]
///
/// One object per vCPU, plain data, on that vCPU's thread. Others see what apic_words (host/apic_words.hpp) publishes.

#include <pvx/abi/apic_fields.hpp>
#include <pvx/base/status.hpp>
#include <pvx/host/concepts.hpp>

namespace pvx::inline v0::host {

/// What became different, as a set: the VMM has something to do for each.
enum class apic_change : uint8_t {
    none = 0,
    map = 1,         ///< Who can be reached, or by which id: rebuild what finds destinations; apic_words::publish().
    cpuid = 2,       ///< CPUID.1:EDX.APIC follows the enable bit: runtime_cpuid::mark_changed().
    reach = 4,       ///< The way to the registers (page, MSRs, none; the page's place). Of this vCPU, not of others.
    identity = 8,    ///< The ID register has another form, the LDR another value: id_register(), first_ldr().
    icr_high = 16,   ///< The high half of the ICR is 0.
    registers = 32,  ///< All registers but the ID, and in x2APIC mode but the LDR, which is first_ldr(), are as after
                     ///< RESET: IRR and ISR are empty, the timer is stopped.
    lvt_masks = 64,  ///< Every LVT register is masked, see lvt(). IRR and ISR stay as they are.
};
constexpr apic_change operator|(apic_change a, apic_change b) {
    return static_cast<apic_change>(static_cast<uint8_t>(a) | static_cast<uint8_t>(b));
}
/// One of `which` is in `changes`.
constexpr bool has(apic_change changes, apic_change which) {
    return (static_cast<uint8_t>(changes) & static_cast<uint8_t>(which)) != 0;
}

/// What a write comes to.
struct [[nodiscard]] apic_write {
    msr_outcome outcome{};
    apic_change changes{};

    friend constexpr bool operator==(apic_write const&, apic_write const&) = default;
};

/// What the guest's CPUID and the APIC's version register promise.
struct apic_offer {
    uint8_t physical_bits;  ///< MAXPHYADDR, 32 .. 52.
    bool x2apic;
    bool no_eoi_broadcast{};
};

/// The word: each bit is set only if those before it are. Zero, as forgotten memory is, means no APIC.
namespace apic_word {
inline constexpr uint8_t present = 1;   ///< The vCPU has an APIC, and it is here.
inline constexpr uint8_t hardware = 2;  ///< Enabled in IA32_APIC_BASE: takes NMI, SMI, INIT, SIPI, hands over its IRR.
inline constexpr uint8_t usable = 4;    ///< Software-enabled as well: takes interrupts.
}  // namespace apic_word

/// What the VMM knows when it is compiled.
enum class apic_presence : uint8_t { varies, always };

/// IA32_APIC_BASE may lead from one mode to the other. [sdm3a 11.12.5]
constexpr bool may_become(abi::apic_mode from, abi::apic_mode to) {
    using enum abi::apic_mode;
    if (to == invalid) return false;
    return from == xapic || from == to || to == (from == disabled ? xapic : disabled);
}

/// State of one vCPU, for a snapshot, a fork or a migration. Of zeros it is no state of an APIC.
struct apic_saved {
    static constexpr uint32_t current_version = 1;

    uint32_t version{current_version};
    apic_id id{};
    uint64_t base{};
    uint32_t svr{};
    uint32_t present{};  ///< 1, or 0 for a vCPU that has no APIC, or not this one.
};
static_assert(sizeof(apic_saved) == 24);

/// The state of one vCPU's APIC.
template <apic_presence Presence = apic_presence::varies>
class apic_state {
public:
    /// A vCPU that has no APIC, or one that is emulated elsewhere: each write is somebody else's.
    constexpr apic_state() requires(Presence == apic_presence::varies) {}
    /// As after RESET.
    constexpr apic_state(apic_id id, bool bootstrap) : id_(id), word_(apic_word::present) { (void)reset(bootstrap); }

    /// Takes interrupts. One load and one test.
    constexpr bool usable() const { return (word_ & apic_word::usable) != 0; }
    /// Enabled in IA32_APIC_BASE: what is pending in the IRR is delivered, also while it is software-disabled.
    constexpr bool hardware_enabled() const { return (word_ & apic_word::hardware) != 0; }
    constexpr bool present() const { return Presence == apic_presence::always || (word_ & apic_word::present) != 0; }
    /// For apic_words.
    constexpr uint8_t word() const { return word_; }

    /// Takes a message of this kind. Software-disabled it takes all but interrupts. [sdm3a 11.4.7.2]
    constexpr bool accepts(abi::apic_delivery how) const {
        return (word_ & (abi::is_interrupt(how) ? apic_word::usable : apic_word::hardware)) != 0;
    }

    /// IA32_APIC_BASE, for a read.
    constexpr uint64_t base() const { return base_; }
    constexpr abi::apic_mode mode() const { return abi::apic_mode_of(base_); }
    constexpr apic_id id() const { return id_; }
    constexpr uint32_t svr() const { return svr_; }
    /// The ID register. No guest and no saved state changes what is in it, only its form.
    constexpr uint32_t id_register() const { return abi::apic_id_register(id_, mode()); }
    /// The logical destination register after a change of the mode; in x2APIC mode it has no other value ever.
    constexpr uint32_t first_ldr() const { return mode() == abi::apic_mode::x2apic ? abi::x2apic_ldr(id_) : 0; }
    /// What an LVT register holds when the guest writes `value`: software-disabled, it stays masked. [sdm3a 11.4.7.2]
    constexpr uint32_t lvt(uint32_t value) const {
        return (svr_ & abi::svr_enable) != 0 ? value : value | abi::lvt_masked;
    }

    /// The guest writes MSR `index`. An x2APIC register that is *not ours* is the VMM's, and the mode is right for it.
    constexpr apic_write write_msr(apic_offer const& offer, uint32_t index, uint64_t value) {
        if (!present()) return {msr_outcome::not_ours, {}};
        if (index == abi::msr::ia32_apic_base) {
            if (!legal(offer, value) || !may_become(mode(), abi::apic_mode_of(value))) return {msr_outcome::fault, {}};
            return {msr_outcome::done, replace(value)};
        }
        if (!abi::is_x2apic_msr(index)) return {msr_outcome::not_ours, {}};
        if (mode() != abi::apic_mode::x2apic) return {msr_outcome::fault, {}};
        switch (index) {
            case abi::apic_msr(abi::apic_reg::id):
            case abi::apic_msr(abi::apic_reg::ldr): return {msr_outcome::fault, {}};  // read-only
            case abi::apic_msr(abi::apic_reg::svr):
                if ((value & ~uint64_t{svr_fields(offer)}) != 0) return {msr_outcome::fault, {}};
                return {msr_outcome::done, set_svr(static_cast<uint32_t>(value))};
        }
        return {msr_outcome::not_ours, {}};
    }

    /// The guest may read MSR `index`: if not, the read faults. The x2APIC's registers are there in x2APIC mode only,
    /// and EOI and SELF IPI can only be written. Which of the others the APIC has is the VMM's. [sdm3a 11.12.1.2]
    constexpr bool may_read_msr(uint32_t index) const {
        if (!present() || !abi::is_x2apic_msr(index)) return true;
        return mode() == abi::apic_mode::x2apic && index != abi::apic_msr(abi::apic_reg::eoi) &&
               index != abi::apic_msr(abi::apic_reg::self_ipi);
    }

    /// The guest writes the xAPIC page. *Not ours*: another register, or no page, as in x2APIC mode [sdm3a 11.12.2].
    constexpr apic_write write_page(apic_offer const& offer, uint32_t offset, uint32_t value) {
        if (!present() || mode() != abi::apic_mode::xapic) return {msr_outcome::not_ours, {}};
        if (offset == abi::apic_reg::id) return {msr_outcome::done, {}};  // read-only, and the page does not fault
        if (offset != abi::apic_reg::svr) return {msr_outcome::not_ours, {}};
        return {msr_outcome::done, set_svr(value & svr_fields(offer))};
    }

    /// RESET: xAPIC mode at the default place. `bootstrap`: this is the CPU that starts. As on Intel's CPUs and in KVM;
    /// an AMD CPU comes out of RESET with its APIC disabled, for firmware to enable [apm2 16.10].
    constexpr apic_change reset(bool bootstrap) {
        if (!present()) return {};
        uint64_t const base =
            abi::apic_base_default | abi::msr::apic_base::enable | (bootstrap ? abi::msr::apic_base::bootstrap_cpu : 0);
        svr_ = abi::svr_reset;
        return replace(base) | apic_change::registers | apic_change::map;
    }

    /// INIT: mode, place and id stay. [sdm3a 11.4.7.3] [sdm3a 11.12.5.1]
    constexpr apic_change init() {
        if (!hardware_enabled()) return {};
        svr_ = abi::svr_reset;
        return replace(base_) | apic_change::registers | apic_change::map;
    }

    /// \pre the vCPU does not run.
    constexpr apic_saved save() const { return {apic_saved::current_version, id_, base_, svr_, present() ? 1u : 0u}; }

    /// Take over what save() made, perhaps elsewhere: any mode, from any. The other registers are restored after it,
    /// see host/apic_restore.hpp. \return bad_argument for another version, another vCPU's id, a state without an APIC,
    /// or a value that the guest could not have written; unsupported, where there is no APIC, for a state that has one.
    /// \post whatever apic_change names may differ.
    constexpr status restore(apic_offer const& offer, apic_saved const& saved) {
        if (saved.version != apic_saved::current_version || saved.present > 1) return status::bad_argument;
        if (!present()) return saved.present != 0 ? status::unsupported : status::ok;
        if (saved.present == 0 || saved.id != id_ || !legal(offer, saved.base) ||
            (saved.svr & ~svr_fields(offer)) != 0 || abi::apic_mode_of(saved.base) == abi::apic_mode::invalid)
            return status::bad_argument;
        svr_ = saved.svr;
        (void)replace(saved.base);
        return status::ok;
    }

private:
    static constexpr bool legal(apic_offer const& offer, uint64_t base) {
        uint64_t const reserved = abi::apic_base_reserved | bit_range<uint64_t>(offer.physical_bits, 63) |
                                  (offer.x2apic ? 0 : abi::msr::apic_base::x2apic_enable);
        return (base & reserved) == 0;
    }
    static constexpr uint32_t svr_fields(apic_offer const& offer) {
        return abi::svr_always | (offer.no_eoi_broadcast ? abi::svr_no_eoi_broadcast : 0);
    }

    constexpr apic_change replace(uint64_t base) {
        using enum apic_change;
        abi::apic_mode const from = mode(), to = abi::apic_mode_of(base);
        apic_change changes = ((base_ ^ base) & abi::apic_base_address) != 0 ? reach : none;
        if (from != to) {
            changes = changes | map | reach;
            if (((base_ ^ base) & abi::msr::apic_base::enable) != 0) changes = changes | cpuid;
            if (to != abi::apic_mode::disabled) changes = changes | identity;
            if (to == abi::apic_mode::x2apic) changes = changes | icr_high;
            // What a disabled APIC still knows is left open; forgetting all at once leaves nothing to get wrong.
            if (to == abi::apic_mode::disabled) changes = changes | registers;
        }
        base_ = base;
        if (to == abi::apic_mode::disabled) svr_ = abi::svr_reset;
        settle();
        return changes;
    }

    constexpr apic_change set_svr(uint32_t value) {
        bool const toggled = ((svr_ ^ value) & abi::svr_enable) != 0;
        svr_ = value;
        settle();
        if (!toggled) return {};
        return usable() ? apic_change::map : apic_change::map | apic_change::lvt_masks;
    }

    // The SVR of a disabled APIC has been reset, so it alone says the rest.
    constexpr void settle() {
        word_ = static_cast<uint8_t>(apic_word::present |
                                     ((base_ & abi::msr::apic_base::enable) != 0 ? apic_word::hardware : 0) |
                                     ((svr_ & abi::svr_enable) != 0 ? apic_word::usable : 0));
    }

    uint64_t base_{};
    apic_id id_{};
    uint32_t svr_{abi::svr_reset};
    uint8_t word_{};
};

static_assert(trivially_copyable<apic_state<>> && sizeof(apic_state<>) == 24);

}  // namespace pvx::inline v0::host
