// SPDX-License-Identifier: MIT
// Each hot path in an external function of its own. Nothing here may need a symbol, not even memcpy or memset.

#include "machines.hpp"

bool hot_seqcount_try_read(uint32_t& version, uint64_t& field, uint64_t& out) {
    pvx::builtin_atomics const atomics;
    return pvx::seqcount_try_read(atomics, version, [&] { out = atomics.ref(field).load(pvx::order::relaxed); });
}

void hot_seqcount_write(uint32_t& version, uint64_t& field, uint64_t value) {
    pvx::builtin_atomics const atomics;
    uint32_t const odd = pvx::seqcount_write_begin(atomics, version);
    atomics.ref(field).store(value, pvx::order::relaxed);
    pvx::seqcount_write_end(atomics, version, odd);
}

uint64_t hot_steal_read(machines::components const& with, uint32_t cpu) {
    return with.steal_time_.read(pvx::cpu_index{cpu}).value;
}

bool hot_steal_preempted(machines::components const& with, uint32_t cpu) {
    return with.steal_time_.preempted(pvx::cpu_index{cpu});
}

uint64_t hot_steal_charge(pvx::guest::steal_account& account, uint64_t reading, uint64_t elapsed) {
    return account.charge(pvx::nanoseconds{reading}, pvx::nanoseconds{elapsed}).value;
}

uint64_t hot_clock_now(machines::components& with) { return with.clock_.now().value; }

uint32_t hot_ipi_send(machines::components const& with, unsigned long* words, uint32_t bits, uint32_t command) {
    return with.ipi_.send(pvx::cpu_mask_view{words, bits}, pvx::abi::apic_command{command});
}

void hot_x2apic_send(machines::components const& with, uint32_t id, uint32_t command) {
    with.x2apic_.send(pvx::apic_id{id}, pvx::abi::apic_command{command});
}

void hot_x2apic_local(machines::components const& with, uint8_t vector) {
    with.x2apic_.send_self(vector);
    with.x2apic_.end_of_interrupt();
}

void hot_arm_tsc_deadline(machines::kernel const& machine, uint64_t when) {
    pvx::guest::arm_tsc_deadline(machine, pvx::tsc_ticks{when});
}

bool hot_flush_leave_to_host(machines::components const& with, uint32_t cpu) {
    return with.tlb_flush_.leave_to_host(pvx::cpu_index{cpu});
}

bool hot_flush_prune(machines::components const& with, unsigned long const* from, unsigned long* to, uint32_t bits,
                     pvx::guest::flush_kind kind) {
    return with.tlb_flush_.prune(pvx::const_cpu_mask_view{from, bits}, pvx::cpu_mask_view{to, bits}, kind,
                                 [](pvx::cpu_index cpu) { archetype::write_outside(cpu.value); });
}

uint32_t hot_flush(machines::components const& with, unsigned long const* from, unsigned long* to, uint32_t bits,
                   archetype::request const& request) {
    return with.tlb_flush_.flush(pvx::const_cpu_mask_view{from, bits}, request, pvx::cpu_mask_view{to, bits});
}

bool hot_flush_defer(machines::components const& with, uint32_t cpu, bool fenced) {
    auto const& deferred = with.deferred_flush_;
    return fenced ? deferred.defer_fenced(pvx::cpu_index{cpu}) : deferred.defer(pvx::cpu_index{cpu});
}

pvx::guest::flush_request hot_flush_batch(pvx::guest::flush_batch<8>& batch, uint64_t begin, uint64_t end,
                                          pvx::guest::flush_kind kind) {
    batch.add({begin, end}, kind);
    return batch.request();
}

void hot_host_put(machines::components& with, pvx::host::departure const& how) { with.host_steal_time_.put(how); }

void hot_host_enter(machines::components& with) {
    with.host_steal_time_.load();
    with.host_steal_time_.enter();
}

void hot_lock(machines::components& with, uint32_t& word) { with.locks_.lock(word); }

bool hot_try_lock(machines::components const& with, uint32_t& word) { return with.locks_.try_lock(word); }

void hot_unlock(machines::components& with, uint32_t& word) { with.locks_.unlock(word); }

bool hot_apic_usable(pvx::host::apic_state<> const& a) { return a.usable(); }

bool hot_apic_accepts(pvx::host::apic_state<> const& a, pvx::abi::apic_delivery how) { return a.accepts(how); }

bool hot_apic_may_read_msr(pvx::host::apic_state<> const& a, uint32_t index) { return a.may_read_msr(index); }

pvx::host::apic_write hot_apic_write_msr(pvx::host::apic_state<>& a, pvx::host::apic_offer const& offer, uint32_t index,
                                         uint64_t value) {
    return a.write_msr(offer, index, value);
}

pvx::host::apic_write hot_apic_write_page(pvx::host::apic_state<>& a, pvx::host::apic_offer const& offer,
                                          uint32_t index, uint32_t value) {
    return a.write_page(offer, index, value);
}

pvx::host::icr_write hot_icr_write_msr(pvx::abi::apic_mode mode, uint64_t icr, uint32_t index, uint64_t value) {
    return pvx::host::write_icr_msr(mode, icr, index, value);
}

pvx::host::icr_write hot_icr_write_page(pvx::abi::apic_mode mode, uint64_t icr, uint32_t index, uint32_t value) {
    return pvx::host::write_icr_page(mode, icr, index, value);
}

uint32_t hot_apic_scan(pvx::host::apic_words<pvx::builtin_atomics> const& words) {
    uint32_t n = 0;
    words.for_each(pvx::host::apic_word::usable, [&](pvx::cpu_index) { ++n; });
    return n;
}

void hot_kick(pvx::host::vcpu_signals<machines::hypervisor> const& vcpu) { vcpu.kick(); }

bool hot_notify(pvx::host::vcpu_signals<machines::hypervisor> const& vcpu) { return vcpu.notify(); }

bool hot_deliver(pvx::host::vcpu_signals<machines::hypervisor> const& vcpu, pvx::abi::apic_delivery how,
                 uint8_t vector) {
    return vcpu.deliver(how, vector);
}

bool hot_hlt(pvx::host::vcpu_halt<machines::hypervisor>& halt, bool nested) { return halt.hlt(nested); }

pvx::host::halt_step hot_next(pvx::host::vcpu_halt<machines::hypervisor>& halt) { return halt.next(); }

bool hot_block(pvx::host::vcpu_halt<machines::hypervisor> const& halt) { return halt.block(); }

void hot_unblock(pvx::host::vcpu_halt<machines::hypervisor> const& halt) { halt.unblock(); }

uint32_t hot_apic_map_vcpu(machines::components const& with, uint32_t id) {
    return with.apic_map_.read_guard().vcpu(pvx::apic_id{id}).value;
}

uint32_t hot_apic_map_for_each(machines::components const& with, pvx::host::apic_ipi const& ipi, uint32_t sender) {
    uint32_t sum = 0;
    with.apic_map_.read_guard().for_each(ipi, pvx::cpu_index{sender}, [&](pvx::cpu_index vcpu) { sum += vcpu.value; });
    return sum;
}

bool hot_apic_map_change(machines::components const& with, uint32_t vcpu, pvx::host::apic_identity who) {
    with.apic_map_.publish(pvx::cpu_index{vcpu}, who);
    return with.apic_map_.update();
}

void hot_guest_exited(pvx::host::lazy_cr0& cr0) { cr0.exited(); }

uint64_t hot_guest_cr0(pvx::host::lazy_cr0& cr0, uint64_t bits, machines::hypervisor const& environment) {
    return cr0.read(bits, environment);
}

bool hot_write_cr0(pvx::host::lazy_cr0& cr0, pvx::host::cr0_inputs const& in, machines::hypervisor const& environment) {
    return write_cr0(cr0, in, environment).refusal == pvx::host::cr0_refusal::none;
}

uint32_t hot_access_fault(pvx::host::lazy_cr0& cr0, uint64_t cr4, uint64_t efer, pvx::host::page_access access,
                          pvx::host::page_rights page, machines::hypervisor const& environment) {
    return access_fault(cr0, cr4, efer, access, page, environment);
}

void hot_host_cpuid_mark(machines::components& with) { with.host_cpuid_.mark_changed(); }

pvx::abi::cpuid_regs hot_host_cpuid_read(machines::components& with, uint32_t leaf, uint32_t subleaf) {
    return with.host_cpuid_.read(leaf, subleaf);
}

uint32_t hot_xsave_size(pvx::host::xstate_layout const& layout, uint64_t mask) {
    using enum pvx::host::xsave_format;
    return layout.required_size<standard>(mask).value + layout.required_size<compacted>(mask).value;
}

uint32_t hot_xsave_size_again(pvx::host::xstate_layout const& layout, uint64_t mask,
                              pvx::host::xsave_size_memo<pvx::host::xsave_format::compacted>& memo) {
    return layout.required_size(mask, memo).value;
}

bool hot_xcr0(uint64_t& value, uint64_t supported) {
    bool const valid = pvx::host::valid_xcr0(value, supported);
    value = pvx::host::constrain_xcr0(value, supported);
    return valid;
}

pvx::host::hypercall_answer hot_hypercall(machines::components const& with, pvx::host::hypercall const& call) {
    return with.hypercalls_.call(call);
}

pvx::host::msr_outcome hot_msr_write(machines::components& with, uint32_t index, uint64_t value) {
    return with.msrs_.write(index, value, with.host_steal_time_, with.host_clock_);
}

pvx::host::msr_read hot_msr_read(machines::components const& with, uint32_t index) {
    return with.msrs_.read(index, with.host_steal_time_, with.host_clock_);
}

void hot_clock_enter(machines::components& with) { with.host_clock_.enter(); }

void hot_exit_count(machines::components const& with, uint32_t reason, pvx::host::exit_path path) {
    with.exit_stats_.count({reason, path});
}
