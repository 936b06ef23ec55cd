// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// KVM's hypercalls, the host's half. A role that the environment does not have is a hypercall that this host does not
/// have, without code; one whose feature the guest's CPUID does not offer is unknown as well. Every id that the guest
/// gives is compared with the map's limit in 64 bits, and clamped under speculation, each time one is looked up.
///
/// No state. Runs on the thread of the vCPU that calls. [kvm-hypercall]

#include <pvx/abi/kvm_clock.hpp>
#include <pvx/abi/kvm_hypercall.hpp>
#include <pvx/host/apic_icr.hpp>

namespace pvx::inline v0::host {

/// A hypercall, as the vCPU's registers have it.
struct hypercall {
    uint64_t number;  ///< RAX
    uint64_t a0;      ///< RBX
    uint64_t a1;      ///< RCX
    uint64_t a2;      ///< RDX
    uint64_t a3;      ///< RSI
    uint8_t cpl;      ///< The caller's privilege level.
    bool wide;        ///< The caller is in 64-bit mode. True for a guest whose registers the host cannot see.
};

/// What a hypercall comes to.
enum class [[nodiscard]] hypercall_outcome : uint8_t{
    done,      ///< RAX has the answer, and RIP goes past the instruction.
    pending,   ///< The answer comes later: hypercall_rax() makes RAX of it, by the `wide` of the call, kept until then.
    not_ours,  ///< Unknown: ask the next. RAX has the answer if there is none.
};

/// The answer to a hypercall.
struct [[nodiscard]] hypercall_answer {
    hypercall_outcome outcome{};
    uint64_t rax{};

    friend constexpr bool operator==(hypercall_answer const&, hypercall_answer const&) = default;
};

/// RAX for a result, which a caller in 32-bit mode gets truncated.
constexpr uint64_t hypercall_rax(bool wide, int64_t result) {
    return wide ? static_cast<uint64_t>(result) : static_cast<uint32_t>(result);
}

/// A look at the map of APIC ids.
/// Axiom: what it finds stays while it lives. While the map is built anew, vcpu() takes longer and finds all the same:
/// a kick that is lost is a guest that hangs, and Linux does not send again what SEND_IPI refuses. A limit of 0 is a
/// host without a map, for good; its guests are offered none of this, see kvm_features_offered().
template <class G>
concept apic_map_guard = requires(G const& g, apic_id id) {
    { g.vcpu(id) } -> same_as<cpu_index>;  // vcpu(id) is who has this id, below limit(), or no_vcpu
    { g.limit() } -> same_as<uint32_t>;    // limit() is one more than the largest id, or 0
};

/// How vCPUs are found by their APIC ids.
/// Axiom: `apic_map` does not sleep.
template <class E>
concept apic_lookup_policy = index_policy<E> && requires(E const e) {
    { e.apic_map() } -> apic_map_guard;  // apic_map() holds off the reuse of the map while it lives
};

/// Ending a vCPU's halt.
/// Axiom: a latch: a vCPU that is about to halt does not, and one that runs does not halt the next time. All that the
/// caller stored before is visible to it.
template <class E>
concept kick_policy = apic_lookup_policy<E> && requires(E const e, cpu_index vcpu) {
    e.kick(vcpu);  // kick(vcpu) wakes it
};

/// Giving the CPU to another vCPU.
/// Axiom: a hint. It does nothing for one that runs, or that would not; it may sleep, and is called without a guard.
template <class E>
concept directed_yield_policy = apic_lookup_policy<E> && requires(E const e, cpu_index vcpu) {
    { e.self() } -> same_as<cpu_index>;  // self() is the vCPU that calls
    e.yield_to(vcpu);                    // yield_to(vcpu)
};

/// Interrupting a vCPU.
/// Axiom: called under the map's guard, so it does not sleep. False: the vCPU's APIC takes nothing of the kind.
template <class E>
concept ipi_delivery_policy = apic_lookup_policy<E> && requires(E const e, cpu_index vcpu, apic_ipi ipi) {
    { e.deliver(vcpu, ipi) } -> same_as<bool>;  // deliver(vcpu, ipi): to this one vCPU, whatever else `ipi` says
};

/// The host's time of day and the guest's TSC at one moment.
struct clock_pair {
    uint64_t sec{};  ///< Since 1970.
    uint64_t nsec{};
    tsc_ticks tsc{};
};

/// Reading both at once.
/// Axiom: false: the host's clock does not go by the TSC, so that there is no such moment.
template <class E>
concept clock_pairing_policy = atomics_policy<E> && guest_memory_policy<E, abi::kvm_clock_pairing> &&
    requires(E const e, clock_pair& pair) {
    { e.pair_clocks(pair) } -> same_as<bool>;  // pair_clocks(pair) fills it in
};

/// Memory whose encryption the guest changes.
struct gpa_range {
    guest_phys first{};
    uint64_t pages{};     ///< Of 4 KiB, at least one. The range ends at 2^64 at most.
    uint8_t page_size{};  ///< See abi::gpa_attributes.
    bool encrypted{};
};

/// In place of an answer: it comes later.
inline constexpr int64_t hypercall_pending = 1;

/// Changing it.
/// Axiom: 0, an error of abi::kvm_error, or hypercall_pending.
template <class E>
concept gpa_range_policy = requires(E const e, gpa_range const& range) {
    { e.map_gpa_range(range) } -> same_as<int64_t>;  // map_gpa_range(range)
};

/// The hypercalls of one vCPU.
template <class Environment>
    requires pv_features_policy<Environment>
class hypercalls {
    // A role whose form is not quite right would silently be a hypercall less.
    static_assert(kick_policy<Environment> || !requires { &Environment::kick; });
    static_assert(directed_yield_policy<Environment> || !requires { &Environment::yield_to; });
    static_assert(ipi_delivery_policy<Environment> || !requires { &Environment::deliver; });
    static_assert(clock_pairing_policy<Environment> || !requires { &Environment::pair_clocks; });
    static_assert(gpa_range_policy<Environment> || !requires { &Environment::map_gpa_range; });

public:
    constexpr explicit hypercalls(Environment environment) : environment_(environment) {}

    /// The vCPU made this call, which no Xen or Hyper-V interface of its guest has claimed.
    hypercall_answer call(hypercall const& with) const {
        // First: ring 3 learns nothing, not even which numbers there are.
        if (with.cpl != 0) return done(with, abi::kvm_error::not_permitted);
        uint64_t const cut = with.wide ? ~uint64_t{0} : 0xffffffff;
        uint64_t const a0 = with.a0 & cut, a1 = with.a1 & cut;
        switch (with.number & cut) {
            // The exit is all there is to it.
            case abi::kvm_hypercall::vapic_poll_irq: return done(with, 0);
            case abi::kvm_hypercall::kick_cpu:
                if constexpr (kick_policy<Environment>)
                    if (offers(abi::kvm_feature::pv_unhalt)) return done(with, kick(a1));
                break;
            case abi::kvm_hypercall::clock_pairing:
                if constexpr (clock_pairing_policy<Environment>) return done(with, pair_clocks(guest_phys{a0}, a1));
                break;
            case abi::kvm_hypercall::send_ipi:
                if constexpr (ipi_delivery_policy<Environment>)
                    if (offers(abi::kvm_feature::pv_send_ipi))
                        return done(
                            with, send_ipi(with.wide ? 64 : 32, a0, a1, with.a2 & cut, static_cast<uint32_t>(with.a3)));
                break;
            case abi::kvm_hypercall::sched_yield:
                if constexpr (directed_yield_policy<Environment>)
                    if (offers(abi::kvm_feature::pv_sched_yield)) return done(with, yield(find(a0)));
                break;
            case abi::kvm_hypercall::map_gpa_range:
                if constexpr (gpa_range_policy<Environment>)
                    if (offers(abi::kvm_feature::hc_map_gpa_range))
                        return map_gpa_range(with, guest_phys{a0}, a1, with.a2 & cut);
                break;
        }
        return {hypercall_outcome::not_ours, hypercall_rax(with.wide, abi::kvm_error::no_such_hypercall)};
    }

private:
    static constexpr hypercall_answer done(hypercall const& with, int64_t result) {
        return {hypercall_outcome::done, hypercall_rax(with.wide, result)};
    }
    bool offers(abi::kvm_feature f) const { return (environment_.pv_features() & mask(f)) != 0; }

    // Who has the id. In 64 bits: one above 32 is nobody's, and must not become a small one.
    cpu_index find(uint64_t id) const {
        auto const map = environment_.apic_map();
        uint32_t const limit = map.limit();
        if (id >= limit) return no_vcpu;
        return map.vcpu(apic_id{environment_.clamp_index(static_cast<uint32_t>(id), limit)});
    }

    int64_t kick(uint64_t id) const {
        cpu_index const target = find(id);
        if (target == no_vcpu) return 0;
        environment_.kick(target);
        // Who kicks has let go of what the other waits for.
        if constexpr (directed_yield_policy<Environment>) return yield(target);
        return 0;
    }

    int64_t yield(cpu_index target) const {
        if (!(target == no_vcpu) && !(target == environment_.self())) environment_.yield_to(target);
        return 0;
    }

    int64_t send_ipi(uint32_t word_bits, uint64_t low, uint64_t high, uint64_t first, uint32_t icr) const {
        constexpr uint32_t shorthands = bit_range<uint32_t>(18, 19);
        if ((icr & (abi::icr_logical | shorthands)) != 0) return abi::kvm_error::invalid;
        auto const map = environment_.apic_map();
        if (map.limit() == 0) return abi::kvm_error::not_supported;
        // Also keeps the sums below from wrapping.
        if (first >= map.limit() || judge_icr(icr) != ipi_verdict::send) return 0;
        apic_ipi const ipi = read_icr(abi::apic_mode::x2apic, icr);
        return send_word(map, low, first, ipi) + send_word(map, high, first + word_bits, ipi);
    }

    template <class Map>
    int64_t send_word(Map const& map, uint64_t targets, uint64_t first, apic_ipi ipi) const {
        uint32_t const limit = map.limit();
        int64_t delivered = 0;
        for (; targets != 0; targets &= targets - 1) {
            uint64_t const id = first + lowest_bit(targets);
            if (id >= limit) break;
            apic_id const clamped{environment_.clamp_index(static_cast<uint32_t>(id), limit)};
            cpu_index const target = map.vcpu(clamped);
            if (target == no_vcpu) continue;
            ipi.destination = apic_destination{clamped.value};
            if (environment_.deliver(target, ipi)) ++delivered;
        }
        return delivered;
    }

    int64_t pair_clocks(guest_phys address, uint64_t type) const {
        clock_pair pair;
        if (type != abi::kvm_clock_pairing_wall || !environment_.pair_clocks(pair))
            return abi::kvm_error::not_supported;
        if (!may_map<abi::kvm_clock_pairing>(address)) return abi::kvm_error::fault;
        [[maybe_unused]] auto const held = environment_.read_guard();
        auto* const out = environment_.template map<abi::kvm_clock_pairing>(address);
        if (out == nullptr) return abi::kvm_error::fault;
        // Relaxed: the vCPU that asked for it reads it when this call has returned.
        environment_.ref(reinterpret_cast<uint64_t&>(out->sec)).store(pair.sec, order::relaxed);
        environment_.ref(reinterpret_cast<uint64_t&>(out->nsec)).store(pair.nsec, order::relaxed);
        environment_.ref(out->tsc).store(pair.tsc.value, order::relaxed);
        environment_.ref(out->flags).store(0, order::relaxed);
        for (uint32_t& pad : out->pad) environment_.ref(pad).store(0, order::relaxed);
        environment_.mark_dirty(address);
        return 0;
    }

    hypercall_answer map_gpa_range(hypercall const& with, guest_phys first, uint64_t pages, uint64_t attributes) const {
        constexpr uint64_t page = 4096, all_pages = uint64_t{1} << 52;
        bool const valid = is_aligned<uint64_t>(first.value, page) && pages != 0 &&
                           pages <= all_pages - first.value / page && (attributes & abi::gpa_attributes::reserved) == 0;
        if (!valid) return done(with, abi::kvm_error::invalid);
        gpa_range const range{first, pages, static_cast<uint8_t>(attributes & abi::gpa_attributes::page_size),
                              (attributes & abi::gpa_attributes::encrypted) != 0};
        int64_t const result = environment_.map_gpa_range(range);
        if (result == hypercall_pending) return {hypercall_outcome::pending, 0};
        return done(with, result);
    }

    [[no_unique_address]] Environment environment_;
};

}  // namespace pvx::inline v0::host
