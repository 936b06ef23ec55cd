// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// KVM's MSRs, all of them: which there are for this guest, which values they take, and what they hold. Those that are
/// a component's (host/steal_time.hpp, host/clock.hpp) are its own, and are passed in; the others call a role of the
/// environment. What the VMM has neither a role nor a component for is not its MSR, without code.
///
/// One object per vCPU, on that vCPU's thread. [kvm-msr]

#include <pvx/abi/kvm_msr.hpp>
#include <pvx/base/status.hpp>
#include <pvx/host/concepts.hpp>

namespace pvx::inline v0::host {

/// Polling for a while before a halted vCPU's thread sleeps.
/// Axiom: a hint of the guest, which polls itself where it is off. On at first.
template <class E>
concept halt_polling_policy = requires(E const e, bool on) {
    e.set_halt_polling(on);  // set_halt_polling(on)
};

/// End of interrupt without an exit.
/// Axiom: false: `word` is not plain memory of the guest's, and nothing has changed. Off: a bit that is still out in
/// the old word is forgotten, and the old word is not looked at again.
template <class E>
concept pv_eoi_policy = requires(E const e, guest_phys word, bool on) {
    { e.set_pv_eoi(word, on) } -> same_as<bool>;  // set_pv_eoi(word, on): the four bytes whose bit 0 says it
};

/// How asynchronous page faults reach the guest.
struct async_pf_setting {
    guest_phys record{};  ///< 64 bytes.
    uint8_t vector{};     ///< Of the interrupt that announces an available page.
    bool enabled{};       ///< With announcement by interrupt, the only way there is.
    bool in_ring_0{};     ///< Also while the guest is in ring 0.
    bool as_vmexit{};     ///< In a nested guest: an exit to its hypervisor.
};

/// Asynchronous page faults.
/// Axiom: `set_async_pf` is false where the record is not plain memory of the guest's, and then nothing has changed.
/// Not enabled: what is outstanding is dropped. `acknowledge_async_pf` lets the next announcement through.
template <class E>
concept async_pf_policy = requires(E const e, async_pf_setting const& setting) {
    { e.has_local_apic() } -> same_as<bool>;       // has_local_apic(): the vCPU's APIC is here, and can interrupt it
    { e.set_async_pf(setting) } -> same_as<bool>;  // set_async_pf(setting)
    e.acknowledge_async_pf();                      // acknowledge_async_pf(): the guest has read the token
};

/// Leave to migrate.
/// Axiom: of the VM, not of one vCPU, so the VMM saves it with the VM: a restore() of one vCPU's MSRs does not tell it.
/// A guest whose memory is encrypted has to give it, others have given it.
template <class E>
concept migration_policy = requires(E const e, bool ready) {
    { e.memory_encrypted() } -> same_as<bool>;  // memory_encrypted(): so it has to be asked
    e.set_migration_ready(ready);               // set_migration_ready(ready)
};

/// State of one vCPU, for a snapshot, a fork or a migration. That of the components is their own.
struct msrs_state {
    static constexpr uint32_t current_version = 1;

    uint32_t version{current_version};
    uint32_t pad{};
    uint64_t async_pf_en{};
    uint64_t async_pf_int{};
    uint64_t pv_eoi_en{};
    uint64_t poll_control{1};
    uint64_t migration_control{};
};
static_assert(sizeof(msrs_state) == 48 && trivially_copyable<msrs_state>);

/// The MSRs of one vCPU.
template <class Environment>
    requires pv_features_policy<Environment>
class msrs {
    static constexpr bool has_polling = halt_polling_policy<Environment>;
    static constexpr bool has_eoi = pv_eoi_policy<Environment>;
    static constexpr bool has_async_pf = async_pf_policy<Environment>;
    static constexpr bool has_migration = migration_policy<Environment>;
    // A role whose form is not quite right would silently be an MSR less.
    static_assert(has_polling || !requires { &Environment::set_halt_polling; });
    static_assert(has_eoi || !requires { &Environment::set_pv_eoi; });
    static_assert(has_async_pf || !requires { &Environment::set_async_pf; });
    static_assert(has_migration || !requires { &Environment::set_migration_ready; });

public:
    /// As after RESET, without telling the environment.
    constexpr explicit msrs(Environment environment) : environment_(environment) {
        values_.migration_control = first_migration_control();
    }

    /// The guest writes MSR `index`. `components` are the vCPU's own that have one of KVM's, such as its steal_time.
    /// *Not ours*: another MSR, or one that the guest's CPUID does not offer: a fault, if it is nobody's.
    template <class... Components>
    msr_outcome write(uint32_t index, uint64_t value, Components&... components) {
        using namespace abi::kvm_msr;
        if (!offered(index)) return msr_outcome::not_ours;
        if constexpr (has_polling)
            if (index == poll_control.index) return write_poll_control(value);
        if constexpr (has_eoi)
            if (index == pv_eoi_en.index) return write_pv_eoi(value);
        if constexpr (has_async_pf) {
            if (index == async_pf_en.index) return write_async_pf(value, values_.async_pf_int);
            if (index == async_pf_int.index) return write_async_pf_int(value);
            if (index == async_pf_ack.index) return acknowledge(value);
        }
        if constexpr (has_migration)
            if (index == migration_control.index) return write_migration_control(value);
        msr_outcome outcome = msr_outcome::not_ours;
        (void)(((outcome = components.write_msr(index, value)) != msr_outcome::not_ours) || ...);
        return outcome;
    }

    /// The guest reads MSR `index`.
    template <class... Components>
    msr_read read(uint32_t index, Components const&... components) const {
        using namespace abi::kvm_msr;
        msr_read found{msr_outcome::not_ours, 0};
        if (!offered(index)) return found;
        auto const ours = [&](bool has, uint64_t value) {
            if (has) found = {msr_outcome::done, value};
        };
        switch (index) {
            case poll_control.index: ours(has_polling, values_.poll_control); break;
            case pv_eoi_en.index: ours(has_eoi, values_.pv_eoi_en); break;
            case async_pf_en.index: ours(has_async_pf, values_.async_pf_en); break;
            case async_pf_int.index: ours(has_async_pf, values_.async_pf_int); break;
            case async_pf_ack.index: ours(has_async_pf, 0); break;
            case migration_control.index: ours(has_migration, values_.migration_control); break;
            default: (void)(((found = components.read_msr(index)).outcome != msr_outcome::not_ours) || ...);
        }
        return found;
    }

    /// INIT of the vCPU: what it had registered is gone. That of the components too.
    template <class... Components>
    void init(Components&... components) {
        if constexpr (has_async_pf) (void)environment_.set_async_pf(async_pf_setting{});
        if constexpr (has_eoi) (void)environment_.set_pv_eoi(guest_phys{0}, false);
        if constexpr (has_polling) environment_.set_halt_polling(true);
        values_.async_pf_en = values_.async_pf_int = values_.pv_eoi_en = 0;
        values_.poll_control = 1;
        (components.reset(), ...);
    }

    /// RESET: also of what the vCPU had said for the whole VM.
    template <class... Components>
    void reset(Components&... components) {
        init(components...);
        values_.migration_control = first_migration_control();
        if constexpr (has_migration) environment_.set_migration_ready((values_.migration_control & 1) != 0);
    }

    /// For a snapshot or migration. \pre the vCPU does not run.
    constexpr msrs_state save() const {
        return {msrs_state::current_version, 0,
                values_.async_pf_en,         values_.async_pf_int,
                values_.pv_eoi_en,           values_.poll_control,
                values_.migration_control};
    }

    /// Take over a state that save() made, perhaps elsewhere, and tell the environment. \pre what the guest is offered
    /// is known. \return bad_argument for a version that is not known, or a value that the guest could not have written
    /// here, and then nothing has changed; no_record if the environment refuses a record, and then that one is off.
    status restore(msrs_state const& state) {
        using namespace abi::kvm_msr;
        bool const valid = state.version == msrs_state::current_version && state.pad == 0 &&
                           may_hold(async_pf_en.index, has_async_pf, state.async_pf_en, 0) &&
                           may_hold(async_pf_int.index, has_async_pf, state.async_pf_int, 0) &&
                           may_hold(pv_eoi_en.index, has_eoi, state.pv_eoi_en, 0) &&
                           may_hold(poll_control.index, has_polling, state.poll_control, 1) &&
                           // What it is at first depends on the VMM that saved it.
                           (state.migration_control <= 1 || (has_migration && offered(migration_control.index))) &&
                           legal_async_pf(state.async_pf_en) && has_apic_for(state.async_pf_en | state.async_pf_int);
        if (!valid) return status::bad_argument;
        init();
        bool all = true;
        if constexpr (has_polling) (void)write_poll_control(state.poll_control);
        values_.migration_control = state.migration_control;
        if constexpr (has_eoi)
            if (state.pv_eoi_en != 0) all = write_pv_eoi(state.pv_eoi_en) == msr_outcome::done;
        if constexpr (has_async_pf) {
            values_.async_pf_int = state.async_pf_int;
            if (state.async_pf_en != 0)
                all = write_async_pf(state.async_pf_en, state.async_pf_int) == msr_outcome::done && all;
        }
        return all ? status::ok : status::no_record;
    }

private:
    bool offers(abi::kvm_feature f) const { return (environment_.pv_features() & mask(f)) != 0; }
    bool offered(uint32_t index) const {
        abi::kvm_msr_row const row = abi::find_kvm_msr(index);
        return row.index != 0 && offers(row.gate);
    }
    static constexpr bool reserved(abi::kvm_msr_row const& row, uint64_t value) { return (value & row.reserved) != 0; }

    // A saved value is the first one, or one that could have been written.
    bool may_hold(uint32_t index, bool has, uint64_t value, uint64_t first) const {
        return value == first || (has && offered(index) && !reserved(abi::find_kvm_msr(index), value));
    }

    constexpr uint64_t first_migration_control() const {
        if constexpr (has_migration) return environment_.memory_encrypted() ? 0 : 1;
        return 0;
    }

    msr_outcome write_poll_control(uint64_t value) {
        if (reserved(abi::kvm_msr::poll_control, value)) return msr_outcome::fault;
        values_.poll_control = value;
        environment_.set_halt_polling(value != 0);
        return msr_outcome::done;
    }

    msr_outcome write_migration_control(uint64_t value) {
        values_.migration_control = value;
        environment_.set_migration_ready((value & 1) != 0);
        return msr_outcome::done;
    }

    msr_outcome write_pv_eoi(uint64_t value) {
        if (reserved(abi::kvm_msr::pv_eoi_en, value)) return msr_outcome::fault;
        bool const on = (value & abi::kvm_msr_enable) != 0;
        if (!environment_.set_pv_eoi(guest_phys{value & ~abi::kvm_msr_enable}, on)) return msr_outcome::fault;
        values_.pv_eoi_en = value;
        return msr_outcome::done;
    }

    bool legal_async_pf(uint64_t value) const {
        if ((value & abi::async_pf::as_vmexit) != 0 && !offers(abi::kvm_feature::async_pf_vmexit)) return false;
        return (value & abi::async_pf::as_interrupt) == 0 || offers(abi::kvm_feature::async_pf_int);
    }

    // Without an APIC here nothing is ever announced, and a guest that is made to wait waits for ever.
    bool has_apic_for(uint64_t value) const {
        if constexpr (has_async_pf) return value == 0 || environment_.has_local_apic();
        return true;
    }

    msr_outcome write_async_pf(uint64_t value, uint64_t vector) {
        if (reserved(abi::kvm_msr::async_pf_en, value) || !legal_async_pf(value)) return msr_outcome::fault;
        if (!has_apic_for(value)) return msr_outcome::fault;
        constexpr uint64_t on = abi::kvm_msr_enable | abi::async_pf::as_interrupt;
        async_pf_setting const setting{guest_phys{value & ~uint64_t{63}}, static_cast<uint8_t>(vector),
                                       (value & on) == on, (value & abi::async_pf::send_always) != 0,
                                       (value & abi::async_pf::as_vmexit) != 0};
        if (!environment_.set_async_pf(setting)) return msr_outcome::fault;
        values_.async_pf_en = value;
        return msr_outcome::done;
    }

    msr_outcome write_async_pf_int(uint64_t value) {
        if (reserved(abi::kvm_msr::async_pf_int, value) || !environment_.has_local_apic()) return msr_outcome::fault;
        // The guest sets the vector first; one that changes it later means what is already set up.
        if (values_.async_pf_en != 0 && write_async_pf(values_.async_pf_en, value) != msr_outcome::done)
            return msr_outcome::fault;
        values_.async_pf_int = value;
        return msr_outcome::done;
    }

    msr_outcome acknowledge(uint64_t value) const {
        if ((value & 1) != 0) environment_.acknowledge_async_pf();
        return msr_outcome::done;
    }

    [[no_unique_address]] Environment environment_;
    msrs_state values_{};
};

}  // namespace pvx::inline v0::host
