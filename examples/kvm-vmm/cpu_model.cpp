// SPDX-License-Identifier: MIT

#include "cpu_model.hpp"

namespace {

namespace abi = pvx::abi;
namespace host = pvx::host;

constexpr abi::cpuid_bit vmx{1, 0, abi::cpuid_reg::ecx, 5};
constexpr abi::cpuid_bit svm{0x80000001, 0, abi::cpuid_reg::ecx, 2};
constexpr abi::cpuid_bit several_ids{1, 0, abi::cpuid_reg::edx, 28};
constexpr uint32_t amd_sizes = 0x80000008, amd_ids = 0x8000001e;

/// The environment of runtime_cpuid for a vCPU that does not run.
struct registers_at_hand {
    host::cpuid_inputs registers;
    host::xstate_layout const* layout;

    host::cpuid_inputs read_cpuid_inputs() const { return registers; }
    host::xstate_layout const& xstate_sizes() const { return *layout; }
};

void put(uint32_t& word, abi::cpuid_bit bit, bool on) {
    uint32_t const mask = pvx::bit<uint32_t>(bit.bit);
    word = on ? word | mask : word & ~mask;
}

}  // namespace

cpu_model::cpu_model(file const& kvm, uint32_t vcpus) : vcpus_(vcpus) {
    with_entries<kvm_cpuid2, kvm_cpuid_entry2> supported(capacity);
    supported.head()->nent = capacity;
    PVX_VMM_CALL(kvm, KVM_GET_SUPPORTED_CPUID, supported.head());
    for (uint32_t i = 0; i < supported.head()->nent; ++i) {
        auto const& e = supported.entries()[i];
        entries_.push_back({e.function, e.index, {e.eax, e.ebx, e.ecx, e.edx}});
    }

    host::cpuid_table<capacity> table{pvx::apic_id{0}};
    if (table.assign(entries_.data(), static_cast<uint32_t>(entries_.size())) != pvx::status::ok)
        throw failure(machine_failed, "KVM_GET_SUPPORTED_CPUID names a leaf twice");
    if (layout_.set_up(table) == pvx::status::bad_argument)
        throw failure(machine_failed, "KVM_GET_SUPPORTED_CPUID has an XSAVE component at an impossible place");
    components_ = host::constrain_xcr0(layout_.user_components(), layout_.user_components());

    // HLT exits, and APICs and halts are KVM's own: user space has no part in them.
    uint32_t const features =
        table[table.find(abi::cpuid_leaf::hypervisor_first + abi::kvm_features_offset, 0)].regs.eax;
    auto const pv = host::make_kvm_leaves({features, true, true, false});
    std::erase_if(entries_, [](host::cpuid_entry const& e) {
        return abi::cpuid_range_of(e.leaf) == abi::cpuid_range::hypervisor || abi::is_topology_leaf(e.leaf);
    });
    entries_.insert(entries_.end(), std::begin(pv.entries), std::end(pv.entries));
    if (table.find(abi::cpuid_leaf::extended_topology, 0) != 0) {
        // A core has one thread, and the package all cores.
        entries_.push_back({abi::cpuid_leaf::extended_topology, 0, {0, 1, 0x100, 0}});
        entries_.push_back({abi::cpuid_leaf::extended_topology, 1, {pvx::bit_width(vcpus - 1), vcpus, 0x200, 0}});
    }

    bool const intel = abi::identify_vendor(abi::vendor_name(table.cpuid(0, 0))) == abi::cpu_vendor::intel;
    bool const deadline = PVX_VMM_CALL(kvm, KVM_CHECK_EXTENSION, KVM_CAP_TSC_DEADLINE_TIMER) > 0;
    uint64_t const all = components_ | layout_.supervisor_components();
    for (host::cpuid_entry& e : entries_) {
        e.regs = host::constrain_features(e.regs, e.leaf, e.subleaf, layout_.components() == 0 ? 0 : all);
        if (e.leaf == abi::cpuid_leaf::features) {
            put(e.regs.ecx, abi::cpuid_feature::hypervisor, true);
            put(e.regs.ecx, abi::cpuid_feature::tsc_deadline, deadline);
            put(e.regs.ecx, vmx, false);  // save() knows nothing of a guest's guests
            put(e.regs.edx, several_ids, vcpus > 1);
        } else if (e.leaf == svm.leaf) {
            put(e.regs.ecx, svm, false);
        } else if (e.leaf == abi::cpuid_leaf::xstate && e.subleaf == 0) {
            e.regs.eax = static_cast<uint32_t>(components_);
            e.regs.edx = static_cast<uint32_t>(components_ >> 32);
        } else if (e.leaf == amd_sizes && !intel) {
            e.regs.ecx = pvx::bit_width(vcpus - 1) << 12 | (vcpus - 1);
        }
    }
}

with_entries<kvm_cpuid2, kvm_cpuid_entry2> cpu_model::cpuid(uint32_t id, host::cpuid_inputs const& registers) const {
    auto entries = entries_;
    for (host::cpuid_entry& e : entries) {
        if (e.leaf == abi::cpuid_leaf::features) e.regs.ebx = id << 24 | vcpus_ << 16 | (e.regs.ebx & 0xffff);
        if (e.leaf == amd_ids) e.regs = {id, id & 0xff, 0, 0};
    }
    host::runtime_cpuid<registers_at_hand, capacity> of_vcpu{
        {registers, &layout_}, pvx::apic_id{id}, host::mwait_bit::as_given};
    if (of_vcpu.replace(entries.data(), static_cast<uint32_t>(entries.size())) != pvx::status::ok)
        throw failure(machine_failed, "more CPUID leaves than KVM takes");

    auto const& table = of_vcpu.table();
    with_entries<kvm_cpuid2, kvm_cpuid_entry2> result(table.size());
    result.head()->nent = table.size();
    for (uint32_t i = 0; i < table.size(); ++i) {
        auto const& [leaf, subleaf, regs] = table.entries()[i];
        bool const indexed = abi::cpuid_has_subleaves(leaf) || subleaf != 0;
        result.entries()[i] = {
            leaf, subleaf, indexed ? KVM_CPUID_FLAG_SIGNIFCANT_INDEX : 0u, regs.eax, regs.ebx, regs.ecx, regs.edx, {}};
    }
    return result;
}

host::xsave_buffer cpu_model::xsave() const {
    return host::make_xsave_buffer(layout_.required_size<host::xsave_format::standard>(components_));
}
