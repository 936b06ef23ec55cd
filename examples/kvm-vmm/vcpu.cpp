// SPDX-License-Identifier: MIT

#include "vcpu.hpp"

#include <algorithm>
#include <array>
#include <atomic>

namespace {

namespace abi = pvx::abi;
namespace msr = pvx::abi::msr;

constexpr uint32_t sysenter_cs = 0x174, sysenter_esp = 0x175, sysenter_eip = 0x176, pat = 0x277, mtrr_default = 0x2ff;
constexpr uint32_t spec_ctrl = 0x48, star = 0xc0000081, lstar = 0xc0000082, cstar = 0xc0000083, fmask = 0xc0000084;
constexpr uint32_t tsc_aux = 0xc0000103;

/// What restore_msrs() writes, in this order, and save() reads backwards. A host or guest without one of them
/// skips it. Not there: the wall clock's MSR, whose write acts, on memory that the guest may long use for something
/// else.
constexpr std::array<uint32_t, 23> saved_msrs = {msr::ia32_tsc,
                                                 msr::ia32_tsc_adjust,
                                                 msr::ia32_misc_enable,
                                                 sysenter_cs,
                                                 sysenter_esp,
                                                 sysenter_eip,
                                                 pat,
                                                 mtrr_default,
                                                 spec_ctrl,
                                                 star,
                                                 lstar,
                                                 cstar,
                                                 fmask,
                                                 msr::ia32_kernel_gs_base,
                                                 tsc_aux,
                                                 msr::ia32_xss,
                                                 abi::kvm_msr::system_time.index,
                                                 abi::kvm_msr::steal_time.index,
                                                 abi::kvm_msr::pv_eoi_en.index,
                                                 abi::kvm_msr::poll_control.index,
                                                 abi::kvm_msr::async_pf_int.index,
                                                 abi::kvm_msr::async_pf_en.index,
                                                 msr::ia32_tsc_deadline};

/// The whole restore as MSRs: restore_registers() has set the first two, by KVM_SET_SREGS and KVM_SET_LAPIC.
constexpr auto restore_order = [] {
    std::array<uint32_t, 2 + saved_msrs.size()> order{msr::ia32_apic_base, abi::apic_msr(abi::apic_reg::lvt_timer)};
    std::copy(saved_msrs.begin(), saved_msrs.end(), order.begin() + 2);
    return order;
}();
static_assert(pvx::host::check_restore(restore_order.data(), restore_order.size()).ok);

/// KVM_GET_MSRS or KVM_SET_MSRS of one. \return whether KVM has it
bool transfer(file const& vcpu, unsigned long request, kvm_msr_entry& entry) {
    with_entries<kvm_msrs, kvm_msr_entry> one(1);
    one.head()->nmsrs = 1;
    *one.entries() = entry;
    int const done = checked(ioctl(vcpu.fd(), request, one.head()), "KVM_GET_MSRS or KVM_SET_MSRS");
    entry = *one.entries();
    return done == 1;
}

}  // namespace

vcpu::vcpu(file const& vm, cpu_model const& model, uint32_t id, size_t run_size, uint32_t xsave_size)
    : file_(PVX_VMM_CALL(vm, KVM_CREATE_VCPU, id)),
      model_(&model),
      id_(id),
      xsave_size_(xsave_size),
      run_(file_, run_size) {
    // What CPUID does not offer is not there either; old versions of KVM cannot.
    kvm_enable_cap enforce{};
    enforce.cap = KVM_CAP_ENFORCE_PV_FEATURE_CPUID;
    enforce.args[0] = 1;
    (void)ioctl(file_.fd(), KVM_ENABLE_CAP, &enforce);
    auto cpuid = model.cpuid(id, {0, pvx::host::xcr0_at_reset, 0, msr::apic_base::enable, 0});
    PVX_VMM_CALL(file_, KVM_SET_CPUID2, cpuid.head());
}

void vcpu::start_at(boot_entry const& entry) const {
    kvm_sregs sregs;
    PVX_VMM_CALL(file_, KVM_GET_SREGS, &sregs);
    kvm_segment flat{};
    flat.limit = 0xffffffff;
    flat.selector = 0x10;
    flat.type = 3;  // data
    flat.present = flat.db = flat.s = flat.g = 1;
    sregs.ds = sregs.es = sregs.fs = sregs.gs = sregs.ss = sregs.cs = flat;
    sregs.cs.selector = 0x08;
    sregs.cs.type = 11;  // code
    sregs.cr0 |= abi::cr0::pe;
    PVX_VMM_CALL(file_, KVM_SET_SREGS, &sregs);
    kvm_regs regs{};
    regs.rip = entry.rip;
    regs.rbx = entry.rbx;
    regs.rflags = 2;
    PVX_VMM_CALL(file_, KVM_SET_REGS, &regs);
}

uint64_t vcpu::tsc() const {
    kvm_msr_entry entry{msr::ia32_tsc, 0, 0};
    (void)transfer(file_, KVM_GET_MSRS, entry);
    return entry.data;
}

vcpu_state vcpu::save() const {
    vcpu_state state;
    // First, because KVM works off a pending INIT or SIPI in it, which changes the others.
    PVX_VMM_CALL(file_, KVM_GET_MP_STATE, &state.mp_state);
    std::for_each(saved_msrs.rbegin(), saved_msrs.rend(), [&](uint32_t index) {
        kvm_msr_entry entry{index, 0, 0};
        if (transfer(file_, KVM_GET_MSRS, entry)) state.msrs.insert(state.msrs.begin(), entry);
    });
    PVX_VMM_CALL(file_, KVM_GET_VCPU_EVENTS, &state.events);
    PVX_VMM_CALL(file_, KVM_GET_LAPIC, &state.lapic);
    PVX_VMM_CALL(file_, KVM_GET_REGS, &state.regs);
    PVX_VMM_CALL(file_, KVM_GET_SREGS, &state.sregs);
    PVX_VMM_CALL(file_, KVM_GET_XCRS, &state.xcrs);
    PVX_VMM_CALL(file_, KVM_GET_DEBUGREGS, &state.debugregs);
    // KVM's own size is that of the host's components, which may be more than the guest's.
    state.xsave.resize(std::max(model_->xsave().words(), xsave_size_ / 4));
    checked(ioctl(file_.fd(), xsave_size_ > 0 ? KVM_GET_XSAVE2 : KVM_GET_XSAVE, state.xsave.data()), "KVM_GET_XSAVE");
    return state;
}

void vcpu::restore_registers(vcpu_state& state) const {
    uint64_t const xcr0 = state.xcrs.nr_xcrs == 0 ? pvx::host::xcr0_at_reset : state.xcrs.xcrs[0].value;
    auto cpuid = model_->cpuid(id_, {state.sregs.cr4, xcr0, 0, state.sregs.apic_base, 0});
    PVX_VMM_CALL(file_, KVM_SET_CPUID2, cpuid.head());
    PVX_VMM_CALL(file_, KVM_SET_SREGS, &state.sregs);
    PVX_VMM_CALL(file_, KVM_SET_REGS, &state.regs);
    if (state.xcrs.nr_xcrs != 0) PVX_VMM_CALL(file_, KVM_SET_XCRS, &state.xcrs);
    PVX_VMM_CALL(file_, KVM_SET_XSAVE, state.xsave.data());
    PVX_VMM_CALL(file_, KVM_SET_DEBUGREGS, &state.debugregs);
    PVX_VMM_CALL(file_, KVM_SET_LAPIC, &state.lapic);
}

void vcpu::restore_msrs(vcpu_state& state) const {
    for (kvm_msr_entry& entry : state.msrs)
        if (!transfer(file_, KVM_SET_MSRS, entry) && entry.data != 0)  // some read as 0 that are not there
            throw failure(machine_failed, "KVM does not take back MSR " + std::to_string(entry.index));
    PVX_VMM_CALL(file_, KVM_SET_VCPU_EVENTS, &state.events);
    PVX_VMM_CALL(file_, KVM_SET_MP_STATE, &state.mp_state);
}

bool vcpu::enter() const {
    while (ioctl(file_.fd(), KVM_RUN, 0) < 0) {
        if (errno == EAGAIN) continue;  // another vCPU has started it just now
        if (errno != EINTR) checked(-1, "KVM_RUN");
        if (std::atomic_ref(exit().immediate_exit).load(std::memory_order::relaxed) != 0) return false;
    }
    return true;
}

void vcpu::kick(pthread_t thread) const {
    // A signal that comes before KVM_RUN is lost, but KVM_RUN looks at the byte; one that comes later ends it. So the
    // byte is set first.
    std::atomic_ref(exit().immediate_exit).store(1, std::memory_order::seq_cst);
    (void)pthread_kill(thread, kick_signal);
}
