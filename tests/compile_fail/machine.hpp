// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// A machine and an environment with every role there is, less one requirement: the subjects of the tests that must not
/// compile. Nothing is ever called, so nothing has a body.

#include <pvx/arch/x86_64.hpp>
#include <pvx/pvx.hpp>

/// What is wrong with the machine. NAME: it has no such member. NAME_type: the member returns something else.
enum class defect {
    nothing,
    cell,
    ref,
    ref_type,
    fence,
    load,
    load_type,
    store,
    exchange,
    exchange_type,
    fetch_or,
    fetch_and,
    fetch_add,
    compare_exchange,
    compare_exchange_type,
    cpuid,
    cpuid_type,
    read_msr,
    read_msr_type,
    write_msr,
    hypercall,
    hypercall_type,
    tsc,
    tsc_type,
    clamp_index,
    clamp_index_type,
    relax,
    irq_state,
    irq_save,
    irq_save_type,
    irq_restore,
    irqs_on,
    irqs_on_type,
    halt_irqs_off,
    enable_and_halt,
    fence_before_wrmsr,
    fence_stores,
    self,
    self_type,
    possible_cpus,
    possible_cpus_type,
    apic,
    apic_type,
    record,
    record_type,
    share,
    share_type,
    native_ipi,
    wait,
    kick,
    online_cpus,
    online_cpus_type,
    flush_all_local,
    flush_remote,
    deferral,
    deferral_type,
    kind,
    kind_type,

    read_guard,
    read_guard_type,
    map,
    map_type,
    memory_generation,
    memory_generation_type,
    mark_dirty,
    can_sleep,
    can_sleep_type,
    run_delay,
    run_delay_type,
    flush_guest_tlb,
    wake,
    wake_event,
    wake_event_type,
    rule_of_init,
    rule_of_init_type,
    event,
    guest_cr0,
    guest_cr0_type,
    direct_map,
    direct_map_type,
    refresh_permissions,
    reload_roots,
    reload_pdptes,
    reload_pdptes_type,
    read_cpuid_inputs,
    read_cpuid_inputs_type,
    xstate_sizes,
    xstate_sizes_type,
    guard_word,
    guard_word_type,
    storage,
    storage_type,
    retire,
    standard_size,
    standard_size_type,
    compacted_size,
    compacted_size_type,

    pv_features,
    pv_features_type,
    apic_map,
    apic_map_vcpu,
    apic_map_vcpu_type,
    apic_map_limit,
    apic_map_limit_type,
    host_kick,
    host_self,
    host_self_type,
    yield_to,
    deliver,
    deliver_type,
    pair_clocks,
    pair_clocks_type,
    map_gpa_range,
    map_gpa_range_type,
    read_clock,
    read_clock_type,
    wall_clock_at_zero,
    wall_clock_at_zero_type,
    set_halt_polling,
    set_pv_eoi,
    set_pv_eoi_type,
    has_local_apic,
    has_local_apic_type,
    set_async_pf,
    set_async_pf_type,
    acknowledge_async_pf,
    memory_encrypted,
    memory_encrypted_type,
    set_migration_ready,
};

/// Convertible to everything, and so the kind of result that a check by conversion would let pass.
struct anything {
    template <class T>
    operator T() const;
};

template <bool Wrong, class T, class Instead>
struct result_of {
    using type = T;
};
template <class T, class Instead>
struct result_of<true, T, Instead> {
    using type = Instead;
};
template <defect Is, defect Wrong, class T, class Instead = anything>
using result = typename result_of<Is == Wrong, T, Instead>::type;

/// The operations on a shared word.
template <defect D, class T>
struct reference {
    result<D, defect::load_type, T> load(pvx::load_order auto) const requires(D != defect::load);
    void store(T, pvx::store_order auto) const requires(D != defect::store);
    result<D, defect::exchange_type, T> exchange(T, pvx::rmw_order auto) const requires(D != defect::exchange);
    T fetch_or(T, pvx::rmw_order auto) const requires(D != defect::fetch_or);
    T fetch_and(T, pvx::rmw_order auto) const requires(D != defect::fetch_and);
    T fetch_add(T, pvx::rmw_order auto) const requires(D != defect::fetch_add);
    result<D, defect::compare_exchange_type, bool> compare_exchange(T&, T, pvx::rmw_order auto,
                                                                    pvx::load_order auto) const
        requires(D != defect::compare_exchange);
};

template <defect D>
struct cell_member {
    template <class T>
    using cell = T;
};
template <>
struct cell_member<defect::cell> {};

template <defect D>
struct irq_state_member {
    using irq_state = uint64_t;
};
template <>
struct irq_state_member<defect::irq_state> {};

template <defect D>
struct machine : cell_member<D>, irq_state_member<D> {
    template <class T>
    result<D, defect::ref_type, reference<D, T>> ref(T&) const requires(D != defect::ref);
    void fence(pvx::fence_order auto) const requires(D != defect::fence);

    result<D, defect::cpuid_type, pvx::abi::cpuid_regs> cpuid(uint32_t, uint32_t) const requires(D != defect::cpuid);
    result<D, defect::read_msr_type, uint64_t> read_msr(uint32_t) const requires(D != defect::read_msr);
    void write_msr(uint32_t, uint64_t) const requires(D != defect::write_msr);
    result<D, defect::hypercall_type, int64_t> hypercall(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t) const
        requires(D != defect::hypercall);
    result<D, defect::tsc_type, pvx::tsc_ticks> tsc() const requires(D != defect::tsc);
    result<D, defect::clamp_index_type, uint32_t> clamp_index(uint32_t, uint32_t) const
        requires(D != defect::clamp_index);
    void relax() const requires(D != defect::relax);
    result<D, defect::irq_save_type, uint64_t> irq_save() const requires(D != defect::irq_save);
    void irq_restore(uint64_t) const requires(D != defect::irq_restore);
    result<D, defect::irqs_on_type, bool> irqs_on(uint64_t) const requires(D != defect::irqs_on);
    void halt_irqs_off() const requires(D != defect::halt_irqs_off);
    void enable_and_halt(uint64_t) const requires(D != defect::enable_and_halt);
    void fence_before_wrmsr() const requires(D != defect::fence_before_wrmsr);
    void fence_stores() const requires(D != defect::fence_stores);

    result<D, defect::self_type, pvx::cpu_index> self() const requires(D != defect::self);
    result<D, defect::possible_cpus_type, uint32_t> possible_cpus() const requires(D != defect::possible_cpus);
    result<D, defect::apic_type, pvx::apic_id> apic(pvx::cpu_index) const requires(D != defect::apic);
    template <class T>
    result<D, defect::record_type, pvx::shared<T>> record(pvx::cpu_index) const requires(D != defect::record);
    template <class T>
    result<D, defect::share_type, pvx::status> share(pvx::shared<T>) const requires(D != defect::share);
    void native_ipi(pvx::apic_id, pvx::abi::apic_command) const requires(D != defect::native_ipi);
    template <class Cell>
    void wait(Cell&, uint32_t, uint32_t) const requires(D != defect::wait);
    void kick(pvx::cpu_index) const requires(D != defect::kick);

    result<D, defect::online_cpus_type, pvx::const_cpu_mask_view> online_cpus() const
        requires(D != defect::online_cpus);
    void flush_all_local() const requires(D != defect::flush_all_local);
    template <class Request>
    void flush_remote(pvx::const_cpu_mask_view, Request const&, uint32_t) const requires(D != defect::flush_remote);
    result<D, defect::deferral_type, uint8_t&> deferral(pvx::cpu_index) const requires(D != defect::deferral);
};

/// A request of which as much is wrong.
template <defect D>
struct request {
    result<D, defect::kind_type, pvx::guest::flush_kind> kind() const requires(D != defect::kind);
};

/// Sizes of which as much is wrong.
template <defect D>
struct xstate_sizes {
    result<D, defect::standard_size_type, uint32_t> standard_size(uint64_t) const requires(D != defect::standard_size);
    result<D, defect::compacted_size_type, uint32_t> compacted_size(uint64_t) const
        requires(D != defect::compacted_size);
};

/// A look at a map of which as much is wrong.
template <defect D>
struct apic_guard {
    result<D, defect::apic_map_vcpu_type, pvx::cpu_index> vcpu(pvx::apic_id) const requires(D != defect::apic_map_vcpu);
    result<D, defect::apic_map_limit_type, uint32_t> limit() const requires(D != defect::apic_map_limit);
};

/// A way to replace snapshots of which as much is wrong.
template <defect D>
struct snapshots {
    struct guard {
        result<D, defect::guard_word_type, uint64_t> word() const requires(D != defect::guard_word);
    };
    result<D, defect::read_guard_type, guard, void> read_guard(uint64_t&) const requires(D != defect::read_guard);
    result<D, defect::storage_type, uint32_t*> storage(uint32_t) const requires(D != defect::storage);
    void retire(uint32_t*) const requires(D != defect::retire);
};

/// An environment with every role there is, less one requirement.
template <defect D>
struct environment : cell_member<D> {
    template <class T>
    result<D, defect::ref_type, reference<D, T>> ref(T&) const requires(D != defect::ref);
    void fence(pvx::fence_order auto) const requires(D != defect::fence);
    result<D, defect::clamp_index_type, uint32_t> clamp_index(uint32_t, uint32_t) const
        requires(D != defect::clamp_index);

    result<D, defect::read_guard_type, int, void> read_guard() const requires(D != defect::read_guard);
    template <class T>
    result<D, defect::map_type, T*> map(pvx::guest_phys) const requires(D != defect::map);
    result<D, defect::memory_generation_type, uint64_t> memory_generation() const
        requires(D != defect::memory_generation);
    void mark_dirty(pvx::guest_phys) const requires(D != defect::mark_dirty);
    result<D, defect::can_sleep_type, bool> can_sleep() const requires(D != defect::can_sleep);
    result<D, defect::run_delay_type, pvx::nanoseconds> run_delay() const requires(D != defect::run_delay);
    void flush_guest_tlb() const requires(D != defect::flush_guest_tlb);
    void wake(pvx::cpu_index) const requires(D != defect::wake);
    result<D, defect::wake_event_type, bool> wake_event() const requires(D != defect::wake_event);
    result<D, defect::rule_of_init_type, pvx::host::init_rule> rule_of_init() const requires(D != defect::rule_of_init);
    void event(pvx::host::steal_event) const requires(D != defect::event);
    void event(pvx::host::cpuid_event) const requires(D != defect::event);

    result<D, defect::guest_cr0_type, uint64_t> guest_cr0() const requires(D != defect::guest_cr0);
    result<D, defect::direct_map_type, bool> direct_map() const requires(D != defect::direct_map);
    void refresh_permissions() const requires(D != defect::refresh_permissions);
    void reload_roots() const requires(D != defect::reload_roots);
    result<D, defect::reload_pdptes_type, bool> reload_pdptes() const requires(D != defect::reload_pdptes);
    result<D, defect::read_cpuid_inputs_type, pvx::host::cpuid_inputs> read_cpuid_inputs() const
        requires(D != defect::read_cpuid_inputs);
    result<D, defect::xstate_sizes_type, ::xstate_sizes<D>> xstate_sizes() const requires(D != defect::xstate_sizes);

    result<D, defect::pv_features_type, uint32_t> pv_features() const requires(D != defect::pv_features);
    apic_guard<D> apic_map() const requires(D != defect::apic_map);
    void kick(pvx::cpu_index) const requires(D != defect::host_kick);
    result<D, defect::host_self_type, pvx::cpu_index> self() const requires(D != defect::host_self);
    void yield_to(pvx::cpu_index) const requires(D != defect::yield_to);
    result<D, defect::deliver_type, bool> deliver(pvx::cpu_index, pvx::host::apic_ipi) const
        requires(D != defect::deliver);
    result<D, defect::pair_clocks_type, bool> pair_clocks(pvx::host::clock_pair&) const
        requires(D != defect::pair_clocks);
    result<D, defect::map_gpa_range_type, int64_t> map_gpa_range(pvx::host::gpa_range const&) const
        requires(D != defect::map_gpa_range);
    result<D, defect::read_clock_type, pvx::host::clock_reading> read_clock() const requires(D != defect::read_clock);
    result<D, defect::wall_clock_at_zero_type, pvx::nanoseconds> wall_clock_at_zero() const
        requires(D != defect::wall_clock_at_zero);
    void set_halt_polling(bool) const requires(D != defect::set_halt_polling);
    result<D, defect::set_pv_eoi_type, bool> set_pv_eoi(pvx::guest_phys, bool) const requires(D != defect::set_pv_eoi);
    result<D, defect::has_local_apic_type, bool> has_local_apic() const requires(D != defect::has_local_apic);
    result<D, defect::set_async_pf_type, bool> set_async_pf(pvx::host::async_pf_setting const&) const
        requires(D != defect::set_async_pf);
    void acknowledge_async_pf() const requires(D != defect::acknowledge_async_pf);
    result<D, defect::memory_encrypted_type, bool> memory_encrypted() const requires(D != defect::memory_encrypted);
    void set_migration_ready(bool) const requires(D != defect::set_migration_ready);
    void event(pvx::host::exit_event) const requires(D != defect::event);
};
