// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The least that each policy concept asks for, and nothing beyond: no more members, conversions, default constructors
/// or assignments than the concept names. A component that compiles with these uses only what it says it needs.
/// Freestanding. The bodies touch one volatile word, so that no call can be optimised away and none needs a symbol.

#include <pvx/arch/concepts.hpp>
#include <pvx/guest/concepts.hpp>
#include <pvx/guest/flush_request.hpp>
#include <pvx/host/clock.hpp>
#include <pvx/host/concepts.hpp>
#include <pvx/host/hypercalls.hpp>
#include <pvx/host/msrs.hpp>
#include <pvx/host/snapshot.hpp>

namespace archetype {

using namespace pvx;

/// Where every archetype's results come from, and its effects go.
inline uint64_t volatile outside;

PVX_ENTRY_INLINE uint64_t read_outside() { return outside; }
PVX_ENTRY_INLINE void write_outside(uint64_t v) { outside = v; }

/// A machine is copied in, and that is all: nothing may default-construct it or assign to it.
struct machine_base {
    constexpr explicit machine_base(int) {}
    machine_base(machine_base const&) = default;
    machine_base& operator=(machine_base const&) = delete;
};

/// Storage of a shared word that is not the word itself.
template <word T>
class cell {
public:
    constexpr cell() = default;
    cell(cell const&) = delete;
    cell& operator=(cell const&) = delete;

private:
    friend struct atomics_role;
    T value_{};
};

/// The operations on one shared word. Every order is spelled out at the call: none has a default, and each takes only
/// those that it can have.
template <word T>
class reference {
public:
    PVX_ENTRY_INLINE constexpr explicit reference(T& object) : object_(&object) {}
    reference& operator=(reference const&) = delete;

    PVX_ENTRY_INLINE T load(load_order auto) const { return *object_; }
    PVX_ENTRY_INLINE void store(T v, store_order auto) const { *object_ = v; }
    PVX_ENTRY_INLINE T exchange(T v, rmw_order auto) const { return replace(v); }
    PVX_ENTRY_INLINE T fetch_or(T v, rmw_order auto) const { return replace(static_cast<T>(*object_ | v)); }
    PVX_ENTRY_INLINE T fetch_and(T v, rmw_order auto) const { return replace(static_cast<T>(*object_ & v)); }
    PVX_ENTRY_INLINE T fetch_add(T v, rmw_order auto) const { return replace(static_cast<T>(*object_ + v)); }
    PVX_ENTRY_INLINE bool compare_exchange(T& expected, T desired, rmw_order auto, load_order auto) const {
        if (*object_ == expected) {
            *object_ = desired;
            return true;
        }
        expected = *object_;
        return false;
    }

private:
    PVX_ENTRY_INLINE T replace(T v) const {
        T const old = *object_;
        *object_ = v;
        return old;
    }

    T volatile* object_;
};

struct atomics_role {
    template <word T>
    using cell = archetype::cell<T>;

    template <word T>
    PVX_ENTRY_INLINE reference<T> ref(cell<T>& object) const {
        return reference<T>{object.value_};
    }
    /// Fields of records in shared memory are plain integers.
    template <word T>
    PVX_ENTRY_INLINE reference<T> ref(T& object) const {
        return reference<T>{object};
    }
    PVX_ENTRY_INLINE void fence(fence_order auto) const { write_outside(0); }
};

struct cpuid_role {
    PVX_ENTRY_INLINE abi::cpuid_regs cpuid(uint32_t leaf, uint32_t subleaf) const {
        write_outside(leaf + subleaf);
        return {static_cast<uint32_t>(outside), 0, 0, 0};
    }
};

struct msr_role {
    PVX_ENTRY_INLINE uint64_t read_msr(uint32_t) const { return read_outside(); }
    PVX_ENTRY_INLINE void write_msr(uint32_t, uint64_t value) const { write_outside(value); }
};

struct hypercall_role {
    PVX_ENTRY_INLINE int64_t hypercall(uint64_t number, uint64_t, uint64_t, uint64_t, uint64_t) const {
        write_outside(number);
        return static_cast<int64_t>(read_outside());
    }
};

struct tsc_role {
    PVX_ENTRY_INLINE tsc_ticks tsc() const { return tsc_ticks{read_outside()}; }
};

struct index_role {
    PVX_ENTRY_INLINE uint32_t clamp_index(uint32_t i, uint32_t n) const { return i < n ? i : 0; }
};

struct relax_role {
    PVX_ENTRY_INLINE void relax() const { write_outside(0); }
};

struct irq_role {
    class irq_state {
        friend struct irq_role;
        uint64_t value{};
    };
    PVX_ENTRY_INLINE irq_state irq_save() const { return {}; }
    PVX_ENTRY_INLINE void irq_restore(irq_state state) const { write_outside(state.value); }
    PVX_ENTRY_INLINE bool irqs_on(irq_state state) const { return state.value != 0; }
};

struct halt_role : irq_role, relax_role {
    PVX_ENTRY_INLINE void halt_irqs_off() const { write_outside(0); }
    PVX_ENTRY_INLINE void enable_and_halt(irq_state) const { write_outside(0); }
};

struct wrmsr_fence_role : msr_role {
    PVX_ENTRY_INLINE void fence_before_wrmsr() const { write_outside(0); }
    PVX_ENTRY_INLINE void fence_stores() const { write_outside(0); }
};

struct cpu_role {
    PVX_ENTRY_INLINE cpu_index self() const { return cpu_index{static_cast<uint32_t>(read_outside())}; }
    PVX_ENTRY_INLINE uint32_t possible_cpus() const { return static_cast<uint32_t>(read_outside()); }
    PVX_ENTRY_INLINE apic_id apic(cpu_index i) const { return apic_id{i.value}; }
};

/// Where record<T>() points.
template <class T>
inline T the_record{};

template <class T, class... Ts>
concept one_of = (same_as<T, Ts> || ...);

/// Records of the types that are listed, and of no other.
template <class... Ts>
struct records {
    template <one_of<Ts...> T>
    PVX_ENTRY_INLINE shared<T> record(cpu_index) const {
        return {&the_record<T>, guest_phys{read_outside()}};
    }
};

/// An optional ability: a machine has it or not.
struct sharing_role {
    template <class T>
    PVX_ENTRY_INLINE status share(shared<T> record) const {
        write_outside(record.address.value);
        return status::ok;
    }
};

struct native_ipi_role {
    PVX_ENTRY_INLINE void native_ipi(apic_id id, abi::apic_command command) const {
        write_outside(id.value + command.value);
    }
};

/// An optional ability: a machine has it or not.
struct online_role {
    PVX_ENTRY_INLINE const_cpu_mask_view online_cpus() const { return {&online, 64}; }

private:
    static inline unsigned long online{};
};

struct local_flush_role {
    PVX_ENTRY_INLINE void flush_all_local() const { write_outside(0); }
};

/// A request tells its kind, and that is all.
struct request {
    constexpr explicit request(int) {}
    request(request const&) = delete;
    request& operator=(request const&) = delete;

    PVX_ENTRY_INLINE guest::flush_kind kind() const { return static_cast<guest::flush_kind>(read_outside() % 4); }
};

struct remote_flush_role {
    PVX_ENTRY_INLINE void flush_remote(const_cpu_mask_view mask, request const&, uint32_t left_out) const {
        write_outside(mask.bits + left_out);
    }
};

/// The bytes are cells of the machine's atomics.
template <class Cell>
struct deferral_role {
    PVX_ENTRY_INLINE Cell& deferral(cpu_index) const { return byte; }

private:
    static inline Cell byte{};
};

/// Of any cell, and of the plain word.
struct wait_role {
    template <class Cell>
    PVX_ENTRY_INLINE void wait(Cell&, uint32_t mask, uint32_t value) const {
        write_outside(mask ^ value);
    }
    PVX_ENTRY_INLINE void kick(cpu_index cpu) const { write_outside(cpu.value); }
};

/// The guest's memory as a host reaches it: objects of the types that are listed, and of no other.
template <class... Ts>
struct guest_memory_role {
    class guard {
    public:
        guard(guard const&) = delete;
        guard& operator=(guard const&) = delete;
        PVX_ENTRY_INLINE ~guard() { write_outside(0); }

    private:
        friend struct guest_memory_role;
        PVX_ENTRY_INLINE guard() {}
    };

    PVX_ENTRY_INLINE guard read_guard() const { return {}; }
    template <one_of<Ts...> T>
    PVX_ENTRY_INLINE T* map(guest_phys address) const {
        return address.value < read_outside() ? &the_record<T> : nullptr;
    }
    PVX_ENTRY_INLINE uint64_t memory_generation() const { return read_outside(); }
    PVX_ENTRY_INLINE void mark_dirty(guest_phys address) const { write_outside(address.value); }
    PVX_ENTRY_INLINE bool can_sleep() const { return read_outside() != 0; }
};

/// Snapshots of a VMM that has RCU: of any cell.
struct snapshots_role {
    struct guard {
        uint64_t seen;
        PVX_ENTRY_INLINE uint64_t word() const { return seen; }
    };
    template <class Cell>
    PVX_ENTRY_INLINE guard read_guard(Cell& published) const {
        return {reinterpret_cast<uintptr_t>(&published) * read_outside()};
    }
    PVX_ENTRY_INLINE cell<uint32_t>* storage(uint32_t words) const {
        return words < read_outside() ? &the_record<cell<uint32_t>> : nullptr;
    }
    template <class Cell>
    PVX_ENTRY_INLINE void retire(Cell* old) const {
        write_outside(reinterpret_cast<uintptr_t>(old));
    }
};

struct run_clock_role {
    PVX_ENTRY_INLINE nanoseconds run_delay() const { return nanoseconds{read_outside()}; }
};

struct guest_tlb_role {
    PVX_ENTRY_INLINE void flush_guest_tlb() const { write_outside(0); }
};

struct guest_cr0_role {
    PVX_ENTRY_INLINE uint64_t guest_cr0() const { return read_outside(); }
};

struct mmu_role : guest_tlb_role {
    PVX_ENTRY_INLINE bool direct_map() const { return read_outside() != 0; }
    PVX_ENTRY_INLINE void refresh_permissions() const { write_outside(0); }
    PVX_ENTRY_INLINE void reload_roots() const { write_outside(1); }
    PVX_ENTRY_INLINE bool reload_pdptes() const { return read_outside() != 0; }
};

struct vcpu_wake_role {
    PVX_ENTRY_INLINE void wake(cpu_index vcpu) const { write_outside(vcpu.value); }
};

struct wake_event_role {
    PVX_ENTRY_INLINE bool wake_event() const { return read_outside() != 0; }
    PVX_ENTRY_INLINE host::init_rule rule_of_init() const { return static_cast<host::init_rule>(read_outside() % 3); }
};

/// The registers that CPUID shows, and sizes of save areas.
struct cpuid_inputs_role {
    struct sizes {
        PVX_ENTRY_INLINE uint32_t standard_size(uint64_t mask) const {
            return static_cast<uint32_t>(mask ^ read_outside());
        }
        PVX_ENTRY_INLINE uint32_t compacted_size(uint64_t mask) const {
            return static_cast<uint32_t>(mask ^ read_outside());
        }
    };
    PVX_ENTRY_INLINE host::cpuid_inputs read_cpuid_inputs() const {
        return {read_outside(), read_outside(), read_outside(), read_outside(), read_outside()};
    }
    PVX_ENTRY_INLINE sizes xstate_sizes() const { return {}; }
};

struct pv_features_role {
    PVX_ENTRY_INLINE uint32_t pv_features() const { return static_cast<uint32_t>(read_outside()); }
};

/// Finding vCPUs by their APIC ids.
struct apic_lookup_role : index_role {
    class guard {
    public:
        guard(guard const&) = delete;
        guard& operator=(guard const&) = delete;
        PVX_ENTRY_INLINE ~guard() { write_outside(0); }

        PVX_ENTRY_INLINE cpu_index vcpu(apic_id id) const {
            return cpu_index{static_cast<uint32_t>(id.value ^ read_outside())};
        }
        PVX_ENTRY_INLINE uint32_t limit() const { return static_cast<uint32_t>(read_outside()); }

    private:
        friend struct apic_lookup_role;
        PVX_ENTRY_INLINE guard() {}
    };
    PVX_ENTRY_INLINE guard apic_map() const { return {}; }
};

struct host_kick_role {
    PVX_ENTRY_INLINE void kick(cpu_index vcpu) const { write_outside(vcpu.value); }
};
struct directed_yield_role {
    PVX_ENTRY_INLINE cpu_index self() const { return cpu_index{static_cast<uint32_t>(read_outside())}; }
    PVX_ENTRY_INLINE void yield_to(cpu_index vcpu) const { write_outside(vcpu.value); }
};
struct ipi_delivery_role {
    PVX_ENTRY_INLINE bool deliver(cpu_index vcpu, host::apic_ipi ipi) const {
        write_outside(vcpu.value ^ ipi.vector);
        return read_outside() != 0;
    }
};
struct clock_pairing_role {
    PVX_ENTRY_INLINE bool pair_clocks(host::clock_pair& pair) const {
        pair.sec = read_outside();
        return pair.sec != 0;
    }
};
struct gpa_range_role {
    PVX_ENTRY_INLINE int64_t map_gpa_range(host::gpa_range const& range) const {
        write_outside(range.pages);
        return static_cast<int64_t>(read_outside());
    }
};

struct guest_clock_role {
    PVX_ENTRY_INLINE host::clock_reading read_clock() const {
        return {tsc_ticks{read_outside()}, nanoseconds{read_outside()}, read_outside(), read_outside() != 0};
    }
    PVX_ENTRY_INLINE nanoseconds wall_clock_at_zero() const { return nanoseconds{read_outside()}; }
};

struct halt_polling_role {
    PVX_ENTRY_INLINE void set_halt_polling(bool on) const { write_outside(on); }
};
struct pv_eoi_role {
    PVX_ENTRY_INLINE bool set_pv_eoi(guest_phys word, bool on) const {
        write_outside(word.value + on);
        return read_outside() != 0;
    }
};
struct async_pf_role {
    PVX_ENTRY_INLINE bool has_local_apic() const { return read_outside() != 0; }
    PVX_ENTRY_INLINE bool set_async_pf(host::async_pf_setting const& setting) const {
        write_outside(setting.record.value);
        return read_outside() != 0;
    }
    PVX_ENTRY_INLINE void acknowledge_async_pf() const { write_outside(0); }
};
struct migration_role {
    PVX_ENTRY_INLINE bool memory_encrypted() const { return read_outside() != 0; }
    PVX_ENTRY_INLINE void set_migration_ready(bool ready) const { write_outside(ready); }
};

/// An optional ability: events of one type.
template <class Event>
struct observer_role {
    PVX_ENTRY_INLINE void event(Event e) const {
        if constexpr (requires { static_cast<uint64_t>(e); })
            write_outside(static_cast<uint64_t>(e));
        else
            write_outside(e.reason);
    }
};

/// A machine, or an environment, of exactly these roles.
template <class... Roles>
struct machine : machine_base, Roles... {
    using machine_base::machine_base;
};

static_assert(atomics_policy<atomics_role> && cpuid_policy<cpuid_role> && msr_policy<msr_role>);
static_assert(hypercall_policy<hypercall_role> && tsc_policy<tsc_role> && index_policy<index_role>);
static_assert(relax_policy<relax_role> && irq_policy<irq_role> && halt_policy<halt_role>);
static_assert(wrmsr_fence_policy<wrmsr_fence_role>);
static_assert(guest::cpu_policy<cpu_role> && guest::native_ipi_policy<native_ipi_role>);
static_assert(guest::record_policy<records<int>, int> && !guest::record_policy<records<int>, long>);
static_assert(guest::sharing_policy<sharing_role, int>);
static_assert(guest::online_policy<online_role> && guest::local_flush_policy<local_flush_role>);
static_assert(guest::flush_request_policy<request> && guest::remote_flush_policy<remote_flush_role, request>);
static_assert(guest::deferral_policy<machine<atomics_role, local_flush_role, deferral_role<cell<uint8_t>>>>);
static_assert(!guest::deferral_policy<machine<atomics_role, local_flush_role, deferral_role<uint8_t>>>,
              "a cell, and not the word");
static_assert(guest::wait_policy<machine<atomics_role, wait_role>>);
static_assert(host::guest_memory_policy<guest_memory_role<int>, int> &&
              !host::guest_memory_policy<guest_memory_role<int>, long>);
static_assert(host::snapshot_policy<snapshots_role, atomics_role>);
static_assert(host::run_clock_policy<run_clock_role> && host::guest_tlb_policy<guest_tlb_role>);
static_assert(host::vcpu_wake_policy<vcpu_wake_role> && host::wake_event_policy<wake_event_role>);
static_assert(host::guest_cr0_policy<guest_cr0_role> && host::mmu_policy<mmu_role>);
static_assert(host::cpuid_inputs_policy<cpuid_inputs_role> && host::xstate_sizes_policy<cpuid_inputs_role::sizes>);
static_assert(host::pv_features_policy<pv_features_role> && host::apic_lookup_policy<apic_lookup_role>);
static_assert(host::kick_policy<machine<apic_lookup_role, host_kick_role>> && !host::kick_policy<host_kick_role>);
static_assert(host::directed_yield_policy<machine<apic_lookup_role, directed_yield_role>>);
static_assert(host::ipi_delivery_policy<machine<apic_lookup_role, ipi_delivery_role>>);
static_assert(
    host::clock_pairing_policy<machine<atomics_role, guest_memory_role<abi::kvm_clock_pairing>, clock_pairing_role>>);
static_assert(host::gpa_range_policy<gpa_range_role> && host::guest_clock_policy<guest_clock_role>);
static_assert(host::halt_polling_policy<halt_polling_role> && host::pv_eoi_policy<pv_eoi_role>);
static_assert(host::async_pf_policy<async_pf_role> && host::migration_policy<migration_role>);
static_assert(host::observer_policy<observer_role<int>, int> && !host::observer_policy<guest_tlb_role, int>);

}  // namespace archetype
