// SPDX-License-Identifier: MIT
// Every class template instantiated with all its members, every function template called, with machines that have only
// what the component asks for. Compiled twice, with another name for PVX_PART each time, and linked. A template that is
// not named here is reported by check.sh.

#include "machines.hpp"

// --- base ------------------------------------------------------------------------------------------------------------

template class pvx::builtin_atomic_ref<uint8_t>;
template class pvx::builtin_atomic_ref<uint32_t>;
template class pvx::builtin_atomic_ref<uint64_t>;
template struct pvx::basic_cpu_mask_view<unsigned long>;
template struct pvx::strong_integer<pvx::cpu_index_tag, uint32_t>;
template struct pvx::strong_integer<pvx::guest_phys_tag, uint64_t>;
template struct pvx::shared<uint64_t>;

// --- guest -----------------------------------------------------------------------------------------------------------

template class pvx::guest::steal_time<machines::steal_time>;
template class pvx::guest::kvm_clock<machines::clock>;
template class pvx::guest::ipi<machines::ipi>;
template class pvx::guest::x2apic<machines::x2apic>;
template class pvx::guest::deferred_flush<machines::deferred_flush>;
template class pvx::guest::tlb_flush<machines::leave_to_host>;
template class pvx::guest::tlb_flush<machines::tlb_flush>;
template class pvx::guest::tlb_flush<machines::whole_flush>;
template class pvx::guest::flush_batch<4>;
template struct pvx::guest::dense_records<pvx::abi::kvm_steal_time, 4>;

// --- host ------------------------------------------------------------------------------------------------------------

template class pvx::host::steal_time<machines::host_steal_time>;
template class pvx::host::steal_time<machines::host_steal_time_observed>;

template class pvx::guest::detail::wait_table<machines::lock>;
template class pvx::guest::lock_domain<machines::lock>;
template class pvx::guest::lock_domain<machines::kvm_lock>;
template class pvx::guest::lock_domain<machines::hyperv_lock>;
template class pvx::guest::lock_domain<machines::yield_lock>;
template struct pvx::guest::static_lock_storage<machines::lock, 2>;

template class pvx::host::apic_state<pvx::host::apic_presence::varies>;
template class pvx::host::apic_state<pvx::host::apic_presence::always>;
template class pvx::host::apic_words<machines::apic_words>;
template class pvx::host::exit_stats<machines::exit_stats>;
template class pvx::host::hypercalls<machines::all_hypercalls>;
template class pvx::host::kvm_clock<machines::host_clock>;
template class pvx::host::msrs<machines::all_msrs>;
template class pvx::host::vcpu_halt<machines::halt>;
template class pvx::host::vcpu_signals<machines::kicker>;
template struct pvx::host::halt_words<archetype::cell<uint32_t>>;
template class pvx::host::two_buffers<machines::apic_map>;
template class pvx::host::detail::apic_table<machines::apic_map>;
template class pvx::host::apic_map<machines::apic_map>;
template class pvx::host::apic_map<machines::apic_map, archetype::snapshots_role>;
template class pvx::host::cpuid_table<8>;
template struct pvx::host::cpuid_state<8>;
template class pvx::host::runtime_cpuid<machines::host_cpuid, 8>;
template class pvx::host::runtime_cpuid<machines::host_cpuid_observed, 8>;
template struct pvx::strong_integer<pvx::host::xsave_size_tag<pvx::host::xsave_format::standard>, uint32_t>;
template struct pvx::host::xsave_size_memo<pvx::host::xsave_format::compacted>;

// Functions of this part, external so that all they use is in the object.
namespace PVX_PART {

uint32_t bit_arithmetic(uint64_t v, uint32_t n) {
    v ^= pvx::bit<uint64_t>(n) ^ pvx::bit_range<uint64_t>(1, n);
    v = pvx::is_aligned<uint64_t>(v, 8) ? v : pvx::align_up<uint64_t>(v, 64);
    uint8_t const byte = pvx::bit<uint8_t>(n);
    return pvx::popcount(v) + pvx::lowest_bit(v) + pvx::bit_width(v) + pvx::popcount(byte);
}

// Not by explicit instantiation: clang before 16 then also compiles the members that only a writable mask has.
uint32_t masks(pvx::const_cpu_mask_view mask) {
    uint32_t sum = mask.count() + mask.empty() + mask.test(pvx::cpu_index{3});
    mask.for_each([&](pvx::cpu_index cpu) { sum += cpu.value; });
    return sum;
}

bool seqcount(uint32_t& version, uint64_t& field) {
    archetype::atomics_role const atomics;
    uint64_t out = 0;
    auto const copy = [&] { out += atomics.ref(field).load(pvx::order::relaxed); };
    uint32_t const odd = pvx::seqcount_write_begin(atomics, version);
    atomics.ref(field).store(out, pvx::order::relaxed);
    pvx::seqcount_write_end(atomics, version, odd);
    pvx::seqcount_read(atomics, version, copy, [] { archetype::write_outside(0); });
    return pvx::seqcount_try_read(atomics, version, copy) && pvx::seqcount_read_bounded(atomics, version, 4, copy);
}

bool builtin_atomics(uint32_t& word, pvx::builtin_atomics::cell<uint64_t>& cell) {
    static_assert(pvx::atomics_policy<pvx::builtin_atomics>);
    pvx::builtin_atomics const atomics;
    uint32_t found = atomics.ref(word).exchange(1, pvx::order::acq_rel);
    atomics.fence(pvx::order::seq_cst);
    atomics.ref(cell).store(found, pvx::order::release);
    found += atomics.ref(word).fetch_or(2, pvx::order::relaxed) + atomics.ref(word).fetch_and(4, pvx::order::acquire);
    found += atomics.ref(word).fetch_add(2, pvx::order::release) + atomics.ref(word).load(pvx::order::acquire);
    return atomics.ref(word).compare_exchange(found, 7, pvx::order::seq_cst, pvx::order::relaxed);
}

pvx::guest::configuration detect(machines::detection const& machine) {
    pvx::guest::features const found = pvx::guest::detect_features(machine);
    (void)pvx::guest::choose_clock_msrs(found);
    return pvx::guest::configure(found, 2);
}

static_assert(sizeof(pvx::guest::detail::may_have_two<machines::private_memory, pvx::guest::detail::has_share>) != 0);
static_assert(sizeof(pvx::guest::detail::may_have_two<machines::whole_flush, pvx::guest::detail::has_online_cpus>) !=
              0);
static_assert(pvx::guest::names_online_cpus<machines::whole_flush> &&
              !pvx::guest::names_online_cpus<machines::tlb_flush>);
static_assert(pvx::guest::names_share<machines::private_memory> && !pvx::guest::names_share<machines::registration>);

pvx::status register_records(machines::registration const& open, machines::private_memory const& closed) {
    auto const zero = [](pvx::abi::kvm_steal_time& page) { page.steal = 0; };
    pvx::status const first = pvx::guest::register_record<pvx::abi::kvm_steal_time>(open, pvx::cpu_index{0}, 1, zero);
    pvx::guest::withdraw_record(open, 1);
    pvx::status const second =
        pvx::guest::register_record<pvx::abi::kvm_steal_time>(closed, pvx::cpu_index{0}, 1, zero);
    return first == pvx::status::ok ? second : first;
}

const char* words(pvx::status s, pvx::guest::reason r, pvx::guest::hypervisor h) {
    constexpr pvx::abi::cpuid_name name = pvx::abi::make_cpuid_name("KVMKVMKVM");
    if (pvx::guest::identify_hypervisor(name) == h) return to_string(h);
    return s == pvx::status::ok ? to_string(r) : to_string(s);
}

uint64_t account(pvx::guest::steal_account& account, uint64_t reading, uint64_t elapsed) {
    return account.charge(pvx::nanoseconds{reading}, pvx::nanoseconds{elapsed}).value;
}

template <class Machine>
uint32_t flush(pvx::guest::tlb_flush<Machine> const& with, pvx::const_cpu_mask_view targets, pvx::cpu_mask_view rest) {
    uint32_t left = 0;
    bool const any = with.prune(targets, rest, pvx::guest::flush_kind::tables, [&](pvx::cpu_index) { ++left; });
    if constexpr (pvx::guest::remote_flush_policy<Machine, archetype::request>)
        left += with.flush(targets, archetype::request{0}, rest);
    return left + any + with.leave_to_host(pvx::cpu_index{1});
}

uint32_t flushes(pvx::guest::tlb_flush<machines::leave_to_host> const& one,
                 pvx::guest::tlb_flush<machines::tlb_flush> const& many,
                 pvx::guest::tlb_flush<machines::whole_flush> const& all, pvx::const_cpu_mask_view targets,
                 pvx::cpu_mask_view rest) {
    return flush(one, targets, rest) + flush(many, targets, rest) + flush(all, targets, rest);
}

bool batch(pvx::guest::flush_batch<4>& ranges, uint64_t begin) {
    ranges.add({begin, begin + 1}, pvx::guest::flush_kind::leaves);
    ranges.add_everything(pvx::guest::flush_kind::attributes);
    pvx::guest::flush_request const request = ranges.request();
    ranges.clear();
    return request.everything() && request.kind() == pvx::guest::flush_kind::tables && ranges.empty();
}

// The machine base fills every hardware role.
bool hardware(pvx::arch::x86_64 const& machine, pvx::abi::cpu_vendor vendor) {
    using base = pvx::arch::x86_64;
    static_assert(pvx::atomics_policy<base> && pvx::cpuid_policy<base> && pvx::msr_policy<base>);
    static_assert(pvx::tsc_policy<base> && pvx::index_policy<base> && pvx::irq_policy<base>);
    static_assert(pvx::halt_policy<base> && pvx::wrmsr_fence_policy<base>);

    base::irq_state const state = machine.irq_save();
    machine.write_msr(1, machine.read_msr(2) + machine.cpuid(0, machine.clamp_index(3, 4)).eax + machine.tsc().value);
    machine.fence_before_wrmsr();
    machine.fence_stores();
    machine.relax();
    machine.halt_irqs_off();
    machine.enable_and_halt(state);
    machine.irq_restore(state);
    pvx::guest::order_xapic_deadline_mode(machine);
    pvx::guest::arm_tsc_deadline(machines::timer{0}, pvx::tsc_ticks{1});
    auto const instruction = pvx::arch::hypercall_instruction_of(vendor);
    return pvx::arch::hypercall(instruction, pvx::arch::rdtsc(), 0, 0, 0, 0) == 0;
}

pvx::status locks(pvx::guest::lock_domain<machines::lock>& domain, pvx::guest::features const& found) {
    static_assert(!pvx::guest::nmi_policy<machines::lock> && !pvx::guest::byte_store_policy<machines::lock>);
    static_assert(sizeof(pvx::guest::lock_storage<machines::lock>) != 0);
    static_assert(sizeof(pvx::guest::detail::mcs_node<machines::lock>) == 64);
    static_assert(sizeof(pvx::guest::detail::wait_entry<machines::lock>) != 0);
    static_assert(sizeof(pvx::guest::kvm_wait<machines::kvm_lock>) == 1);
    static_assert(sizeof(pvx::guest::hyperv_wait<machines::hyperv_lock>) == 1);
    static_assert(sizeof(pvx::guest::yield_wait<machines::yield_lock>) == 1);
    (void)pvx::guest::detail::must_not_halt(machines::kvm_lock{0});
    uint32_t word = 0;
    pvx::guest::detail::halt_while(machines::kvm_lock{0}, word, 1, 1);
    return domain.go_live(pvx::guest::choose_lock_mode(found, 2).mode);
}

pvx::guest::static_lock_storage<machines::lock, 1> bound_storage{};
pvx::guest::lock_domain<machines::lock> bound_domain{machines::lock{0}, bound_storage};
void bound(pvx::guest::bound_lock<bound_domain>& lock) {
    lock.lock();
    if (lock.try_lock()) lock.unlock();
}

uint32_t apic(pvx::host::apic_words<machines::apic_words> const& words, uint32_t const* msrs, uint32_t count) {
    uint32_t found = 0;
    words.for_each(pvx::host::apic_word::usable, [&](pvx::cpu_index vcpu) { found += vcpu.value; });
    found += has(pvx::host::apic_state<>().init(), pvx::host::apic_change::map);
    return found + pvx::host::check_restore(msrs, count).position;
}

template <class Map>
uint32_t apic_look_up(Map const& map, pvx::host::apic_ipi const& ipi, uint32_t number) {
    auto const guard = map.read_guard();
    uint32_t found = guard ? guard.vcpu(pvx::apic_id{number}).value : guard.limit();
    guard.for_each(ipi, pvx::cpu_index{number}, [&](pvx::cpu_index vcpu) { found += vcpu.value; });
    return found;
}

uint32_t apic_maps(pvx::host::apic_map<machines::apic_map> const& own,
                   pvx::host::apic_map<machines::apic_map, archetype::snapshots_role> const& vmm,
                   pvx::host::apic_state<> const& apic, pvx::host::apic_ipi const& ipi, uint32_t number) {
    auto const who = pvx::host::make_apic_identity(apic, number, pvx::abi::dfr_reset);
    own.publish(pvx::cpu_index{number}, who);
    return apic_look_up(own, ipi, number) + apic_look_up(vmm, ipi, number) + own.update();
}

pvx::host::icr_write apic_command(pvx::abi::apic_mode mode, uint64_t icr, uint64_t value) {
    pvx::host::icr_write const page = pvx::host::write_icr_page(mode, icr, 0x300, static_cast<uint32_t>(value));
    return page.outcome == pvx::host::msr_outcome::not_ours ? pvx::host::write_icr_msr(mode, icr, 0x830, value) : page;
}

uint32_t cpuid_facts(pvx::host::kvm_host const& host, uint32_t leaf) {
    auto const leaves = pvx::host::make_kvm_leaves(host, static_cast<uint8_t>(leaf));
    return leaves.entries[1].regs.eax + static_cast<uint32_t>(pvx::abi::cpuid_range_of(leaf)) +
           pvx::abi::cpuid_has_subleaves(leaf) + pvx::abi::cpuid_ignores_subleaf(leaf);
}

// What is compiled in follows from the roles, so these two are called: all members together need all roles.
uint64_t fewer_roles(pvx::host::hypercalls<machines::no_hypercalls> const& none,
                     pvx::host::hypercalls<machines::kicks_only> const& kicks,
                     pvx::host::msrs<machines::no_hypercalls>& msrs, pvx::host::hypercall const& call, uint32_t index) {
    msrs.reset();
    if (msrs.restore(msrs.save()) != pvx::status::ok) return 0;
    if (msrs.write(index, 1) == pvx::host::msr_outcome::done) return msrs.read(index).value;
    return none.call(call).rax + kicks.call(call).rax;
}

uint64_t paravirtual_msrs(pvx::host::msrs<machines::all_msrs>& msrs,
                          pvx::host::steal_time<machines::host_steal_time>& steal,
                          pvx::host::kvm_clock<machines::host_clock>& clock, uint32_t index, uint64_t value) {
    static_assert(pvx::host::apic_map_guard<archetype::apic_lookup_role::guard>);
    msrs.init(steal, clock);
    msrs.reset(steal, clock);
    if (msrs.write(index, value, steal, clock) == pvx::host::msr_outcome::done) return value;
    value += pvx::host::make_clock_rate(value).mul + pvx::host::hypercall_rax(false, -1);
    return value + msrs.read(index, steal, clock).value + pvx::abi::find_kvm_msr(index).reserved;
}

void exits(machines::exits_observed const& observes, machines::exit_stats const& does_not, uint32_t reason) {
    static_assert(pvx::host::exit_stats_words(3) == 8);
    static_assert(pvx::host::may_map<uint64_t>(pvx::guest_phys{0xff8}));
    pvx::host::tell_exit(observes, {reason, pvx::host::exit_path::fast});
    pvx::host::tell_exit(does_not, {reason, pvx::host::exit_path::slow});
}

uint64_t guest_cr0(pvx::host::lazy_cr0& cr0, machines::cr0 const& environment, uint64_t bits) {
    cr0.exited();
    cr0.give(pvx::host::ownable_cr0(pvx::host::virtualization::vmx, true, bits), environment);
    return cr0.read(bits, environment) | cr0.owned() | pvx::host::selective_cr0_exit(bits, 0) |
           pvx::host::nested_vmx_cr0_write(
               pvx::host::lmsw_written(pvx::host::clts_written(pvx::host::nested_vmx_cr0_seen(bits, 1, 2)), 3), 1, 2, 3)
               .value;
}

bool cr0_write(pvx::host::lazy_cr0& cr0, pvx::host::cr0_inputs const& in, machines::mmu const& mmu,
               machines::cr0_writes const& environment) {
    return apply(pvx::host::decide(in), cr0, mmu) &&
           write_cr0(cr0, in, environment).refusal == pvx::host::cr0_refusal::none;
}

uint32_t access_rights(pvx::host::lazy_cr0& cr0, machines::cr0 const& environment, uint64_t cr4, uint64_t efer,
                       pvx::host::page_access access, pvx::host::page_rights page) {
    return access_fault(cr0, cr4, efer, access, page, environment);
}

template <pvx::host::xsave_format Format>
bool xstate_of(pvx::host::xstate_layout const& layout, uint64_t mask, pvx::host::xsave_size_memo<Format>& memo) {
    bool const same = layout.required_size<Format>(mask) == layout.required_size(mask, memo);
    mask &= pvx::host::supported_xcr0({7, 0, 0, 0}) | pvx::host::supported_xss({8, 0, 1, 0});
    auto const header = pvx::host::make_xsave_header<Format>(mask, mask, layout.components());
    return same && layout.offset<Format>(9, mask) != 0 && pvx::host::valid_xsave_header<Format>(header, mask);
}

bool xstate(pvx::host::xstate_layout& layout, machines::detection const& machine, machines::tunable_cpu const& cpu,
            uint64_t mask) {
    pvx::host::xsave_size_memo<pvx::host::xsave_format::standard> standard{};
    pvx::host::xsave_size_memo<pvx::host::xsave_format::compacted> compacted{};
    (void)layout.set_up(machine);
    return xstate_of(layout, mask, standard) && xstate_of(layout, mask, compacted) &&
           !verify_xstate_layout(layout, machine, {mask, 0}) && !verify_xstate_layout(layout, cpu, {mask, 0});
}

}  // namespace PVX_PART
