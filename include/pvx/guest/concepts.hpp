// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The roles of a machine object that the guest's own kernel fills: which CPU this is, where shared records are, how an
/// interrupt is sent without help.

#include <pvx/abi/apic.hpp>
#include <pvx/arch/concepts.hpp>
#include <pvx/base/cpu_mask.hpp>
#include <pvx/base/status.hpp>

namespace pvx::inline v0::guest {

/// Who the CPUs are.
/// Axiom: the caller cannot migrate while it uses `self()`; indices are dense, `apic()` is right for each of them
/// before that CPU is in any mask.
template <class M>
concept cpu_policy = requires(M const m, cpu_index cpu) {
    { m.self() } -> same_as<cpu_index>;          // self() is the CPU that calls
    { m.possible_cpus() } -> same_as<uint32_t>;  // possible_cpus() is one more than the largest index
    { m.apic(cpu) } -> same_as<apic_id>;         // apic(cpu) is its APIC id, as the hypervisor knows it
};

/// Records of type T that the guest shares with the host, one per CPU.
/// Axiom: valid for every possible CPU before that CPU runs, and for as long as the host knows the address. The address
/// is what the host must use for the memory at the pointer. A null pointer means "none for this CPU".
template <class M, class T>
concept record_policy = requires(M const m, cpu_index cpu, T* pointer) {
    { m.template record<T>(cpu) } -> same_as<shared<T>>;  // record<T>(cpu) is where its record is, for both sides
};

/// An optional ability beside record_policy: memory is private by default (SEV, TDX) and must be opened to the host.
/// Axiom: after `ok` the host can read and write the record, and what it holds is undefined. Called each time that a
/// CPU comes up, so it does nothing the second time; records of other CPUs, which may lie in the same page, keep what
/// they hold.
template <class M, class T>
concept sharing_policy = requires(M const m, shared<T> record) {
    { m.share(record) } -> same_as<status>;  // share(record) opens the memory of the record to the host
};

namespace detail {
struct has_share {
    int share;
};
template <class M>
struct may_have_two_shares : M, has_share {};
}  // namespace detail

/// The machine has a member of the name `share`, of whatever form: then it must meet sharing_policy, since one that is
/// not quite right, and so never called, would leave the memory private. (The name is there if it is ambiguous beside
/// another.) A machine that is `final` is asked for the right form only.
template <class M>
concept names_share = !__is_final(M) && !requires {
    &detail::may_have_two_shares<M>::share;
};

/// Interrupts between CPUs without paravirtual help.
/// Axiom: earlier stores of the caller are visible to the CPU that is interrupted.
template <class M>
concept native_ipi_policy = requires(M const m, apic_id id, abi::apic_command command) {
    m.native_ipi(id, command);  // native_ipi(id, command) sends it to one CPU
};

}  // namespace pvx::inline v0::guest
