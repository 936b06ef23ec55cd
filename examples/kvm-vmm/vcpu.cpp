// SPDX-License-Identifier: MIT

#include "vcpu.hpp"

#include <algorithm>
#include <array>
#include <atomic>

namespace {

namespace abi = pvx::abi;
namespace msr = pvx::abi::msr;

/// What restore_msrs() writes, in this order, and save_msrs() reads backwards. A host or a guest without one of them
/// skips it. Not there: the wall clock's MSR, whose write acts, on memory that the guest has long used for something
/// else.
constexpr uint32_t saved_msrs[] = {
    msr::ia32_tsc,
    msr::ia32_tsc_adjust,
    msr::ia32_misc_enable,
    0x174,
    0x175,
    0x176,  // SYSENTER: CS, ESP, EIP
    0x277,  // PAT
    0x2ff,  // MTRR default type
    0x48,   // SPEC_CTRL
    0xc0000081,
    0xc0000082,
    0xc0000083,
    0xc0000084,  // STAR, LSTAR, CSTAR, FMASK
    msr::ia32_kernel_gs_base,
    0xc0000103,  // TSC_AUX
    msr::ia32_xss,
    abi::kvm_msr::system_time.index,
    abi::kvm_msr::steal_time.index,
    abi::kvm_msr::pv_eoi_en.index,
    abi::kvm_msr::poll_control.index,
    abi::kvm_msr::async_pf_int.index,
    abi::kvm_msr::async_pf_en.index,
    msr::ia32_tsc_deadline,
};

/// The whole restore as MSRs: before those, restore_rest() has set these two, by KVM_SET_SREGS and KVM_SET_LAPIC.
constexpr auto restore_order = [] {
    std::array<uint32_t, 2 + std::size(saved_msrs)> order{msr::ia32_apic_base, abi::apic_msr(abi::apic_reg::lvt_timer)};
    std::copy(std::begin(saved_msrs), std::end(saved_msrs), order.begin() + 2);
    return order;
}();
static_assert(pvx::host::check_restore(restore_order.data(), restore_order.size()).ok);

struct one_msr {
    with_entries<kvm_msrs, kvm_msr_entry> buffer{1};

    explicit one_msr(kvm_msr_entry const& entry) {
        buffer.head()->nmsrs = 1;
        *buffer.entries() = entry;
    }
};

}  // namespace

vcpu::vcpu(file const& vm, cpu_model const& model, uint32_t id, size_t run_size)
    : file_(PVX_VMM_CALL(vm, KVM_CREATE_VCPU, id)), model_(&model), id_(id), run_(nullptr, unmap{run_size}) {
    void* const run = mmap(nullptr, run_size, PROT_READ | PROT_WRITE, MAP_SHARED, file_.fd(), 0);
    if (run == MAP_FAILED) throw failure(machine_failed, std::string("mmap of a vCPU: ") + std::strerror(errno));
    run_.reset(static_cast<kvm_run*>(run));
    // What CPUID does not offer is not there either. KVM's older versions cannot.
    kvm_enable_cap enforce{};
    enforce.cap = KVM_CAP_ENFORCE_PV_FEATURE_CPUID;
    enforce.args[0] = 1;
    (void)ioctl(file_.fd(), KVM_ENABLE_CAP, &enforce);
    auto cpuid = model.cpuid(id, {0, pvx::host::xcr0_at_reset, 0, msr::apic_base::enable, 0});
    PVX_VMM_CALL(file_, KVM_SET_CPUID2, cpuid.head());
}

void vcpu::start_at(boot_entry const& entry) {
    kvm_sregs sregs;
    PVX_VMM_CALL(file_, KVM_GET_SREGS, &sregs);
    kvm_segment data{};
    data.limit = 0xffffffff;
    data.selector = 0x10;
    data.type = 3;
    data.present = data.db = data.s = data.g = 1;
    sregs.ds = sregs.es = sregs.fs = sregs.gs = sregs.ss = sregs.cs = data;
    sregs.cs.selector = 0x08;
    sregs.cs.type = 11;
    sregs.cr0 |= abi::cr0::pe;
    PVX_VMM_CALL(file_, KVM_SET_SREGS, &sregs);
    kvm_regs regs{};
    regs.rip = entry.rip;
    regs.rbx = entry.rbx;
    regs.rflags = 2;
    PVX_VMM_CALL(file_, KVM_SET_REGS, &regs);
}

void vcpu::save_msrs(vcpu_state& state) const {
    for (uint32_t i = std::size(saved_msrs); i-- > 0;) {
        one_msr msr({saved_msrs[i], 0, 0});
        if (PVX_VMM_CALL(file_, KVM_GET_MSRS, msr.buffer.head()) == 1) state.msrs.push_back(*msr.buffer.entries());
    }
    std::reverse(state.msrs.begin(), state.msrs.end());
}

void vcpu::save_rest(vcpu_state& state) const {
    // First, because KVM works off a pending INIT or SIPI in it.
    PVX_VMM_CALL(file_, KVM_GET_MP_STATE, &state.mp_state);
    PVX_VMM_CALL(file_, KVM_GET_VCPU_EVENTS, &state.events);
    PVX_VMM_CALL(file_, KVM_GET_LAPIC, &state.lapic);
    PVX_VMM_CALL(file_, KVM_GET_REGS, &state.regs);
    PVX_VMM_CALL(file_, KVM_GET_SREGS, &state.sregs);
    PVX_VMM_CALL(file_, KVM_GET_XCRS, &state.xcrs);
    PVX_VMM_CALL(file_, KVM_GET_DEBUGREGS, &state.debugregs);
    // KVM's own size is that of the host's components, which may be more than the guest's.
    int const kvm_size = ioctl(file_.fd(), KVM_CHECK_EXTENSION, KVM_CAP_XSAVE2);
    uint32_t const size = std::max(model_->xsave().size, static_cast<uint32_t>(std::max(kvm_size, 0)));
    state.xsave.resize(pvx::host::xsave_buffer{size}.words());
    if (kvm_size > 0)
        PVX_VMM_CALL(file_, KVM_GET_XSAVE2, state.xsave.data());
    else
        PVX_VMM_CALL(file_, KVM_GET_XSAVE, state.xsave.data());
}

void vcpu::restore_rest(vcpu_state& state) const {
    auto cpuid = model_->cpuid(
        id_, {state.sregs.cr4, state.xcrs.nr_xcrs == 0 ? 1 : state.xcrs.xcrs[0].value, 0, state.sregs.apic_base, 0});
    PVX_VMM_CALL(file_, KVM_SET_CPUID2, cpuid.head());
    PVX_VMM_CALL(file_, KVM_SET_SREGS, &state.sregs);
    PVX_VMM_CALL(file_, KVM_SET_REGS, &state.regs);
    if (state.xcrs.nr_xcrs != 0) PVX_VMM_CALL(file_, KVM_SET_XCRS, &state.xcrs);
    PVX_VMM_CALL(file_, KVM_SET_XSAVE, state.xsave.data());
    PVX_VMM_CALL(file_, KVM_SET_DEBUGREGS, &state.debugregs);
    PVX_VMM_CALL(file_, KVM_SET_LAPIC, &state.lapic);
}

void vcpu::restore_msrs(vcpu_state const& state) const {
    for (kvm_msr_entry const& entry : state.msrs) {
        one_msr msr(entry);
        if (PVX_VMM_CALL(file_, KVM_SET_MSRS, msr.buffer.head()) != 1)
            throw failure(machine_failed, "KVM does not take back MSR " + std::to_string(entry.index));
    }
    kvm_vcpu_events events = state.events;
    PVX_VMM_CALL(file_, KVM_SET_VCPU_EVENTS, &events);
    kvm_mp_state mp_state = state.mp_state;
    PVX_VMM_CALL(file_, KVM_SET_MP_STATE, &mp_state);
}

bool vcpu::enter() const {
    while (ioctl(file_.fd(), KVM_RUN, 0) < 0) {
        if (errno == EAGAIN) continue;  // it was started by another vCPU just now
        if (errno != EINTR) throw failure(machine_failed, std::string("KVM_RUN: ") + std::strerror(errno));
        if (std::atomic_ref(run_->immediate_exit).load(std::memory_order::relaxed) != 0) return false;
    }
    return true;
}

void vcpu::kick(pthread_t thread) const {
    // A signal that comes before KVM_RUN is lost, but KVM_RUN looks at the byte; one that comes later ends it. So the
    // byte is set first.
    std::atomic_ref(run_->immediate_exit).store(1, std::memory_order::seq_cst);
    (void)pthread_kill(thread, kick_signal);
}
