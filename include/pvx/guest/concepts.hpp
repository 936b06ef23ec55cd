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
/// Axiom: valid for every possible CPU before that CPU runs, and for as long as the host knows the address or another
/// CPU may look at it: memory of a record is not used for anything else before all flushers that began earlier are
/// done. The address is what the host must use for the memory at the pointer. A null pointer means "none for this CPU".
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

/// An optional ability beside cpu_policy: CPUs come and go, and masks may still name one that has gone.
/// Axiom: a CPU that comes joins it, passes a full fence and flushes, before it uses a translation that a flush could
/// be about; a flusher whose tables such a CPU could walk has a full fence between its page-table stores and the flush.
/// The mask may change meanwhile.
template <class M>
concept online_policy = requires(M const m) {
    { m.online_cpus() } -> same_as<const_cpu_mask_view>;  // online_cpus() are those that run, or may at any moment
};

namespace detail {
struct has_share {
    int share;
};
struct has_online_cpus {
    int online_cpus;
};
// A name that two bases have is ambiguous, and so cannot be taken the address of: that is how its presence shows.
template <class M, class Named>
struct may_have_two : M, Named {};
}  // namespace detail

/// The machine has a member of the name `share`, of whatever form: then it must meet sharing_policy, since one that is
/// not quite right, and so never called, would leave the memory private. A machine that is `final` is asked for the
/// right form only.
template <class M>
concept names_share = !__is_final(M) && !requires {
    &detail::may_have_two<M, detail::has_share>::share;
};

/// The machine has a member of the name `online_cpus`, which then must meet online_policy, in the same way.
template <class M>
concept names_online_cpus = !__is_final(M) && !requires {
    &detail::may_have_two<M, detail::has_online_cpus>::online_cpus;
};

/// Interrupts between CPUs without paravirtual help.
/// Axiom: earlier stores of the caller are visible to the CPU that is interrupted.
template <class M>
concept native_ipi_policy = requires(M const m, apic_id id, abi::apic_command command) {
    m.native_ipi(id, command);  // native_ipi(id, command) sends it to one CPU
};

/// Dropping the translations of the CPU that calls.
/// Axiom: `flush_all_local` drops every translation there is: of every PCID, global ones and paging-structure entries.
/// It is a full fence for memory, may run in NMI, and touches only memory whose own mapping never changes.
template <class M>
concept local_flush_policy = requires(M const m) {
    m.flush_all_local();  // flush_all_local() drops all translations of this CPU
};

/// The kernel's own shootdown.
/// Axiom: it returns after every CPU in the mask has done the request. The mask is not empty, may hold the calling CPU
/// if the caller's did, and is a part of the targets: `left_out` more were left to the host or defer. A kernel whose
/// native way is one broadcast may keep it, but waits only for the CPUs in the mask: the others may not answer. It is
/// not called where nobody is left to interrupt, so what the caller's own CPU must do is not its work unless that CPU
/// is in the mask.
template <class M, class Request>
concept remote_flush_policy = requires(M const m, const_cpu_mask_view mask, Request const& request, uint32_t left_out) {
    m.flush_remote(mask, request, left_out);  // flush_remote(mask, request, left_out) flushes them, and waits
};

/// Where each CPU keeps its byte of deferred flushes.
/// Axiom: the bytes are zero at first, belong to guest/deferred_flush.hpp alone, and stay. Each is best beside what its
/// CPU uses while it waits, and not in one cache line with another's.
template <class M>
concept deferral_policy = atomics_policy<M> && local_flush_policy<M> && requires(M const m, cpu_index cpu) {
    { m.deferral(cpu) } -> same_as<typename M::template cell<uint8_t>&>;  // deferral(cpu) is the byte of that CPU
};

/// Sleeping until somebody kicks.
/// Axiom: `wait` sleeps only while `(cell & mask) == value`, looked at again after the CPU became wakeable, so a kick
/// that comes before the wait is not lost; a wait of another context of the CPU cannot come between that look and the
/// sleep and use the kick up. It may return for no reason. `kick` wakes the CPU; all earlier stores of the caller are
/// visible to it.
template <class M>
concept wait_policy = atomics_policy<M> &&
    requires(M const m, typename M::template cell<uint32_t>& cell, uint32_t& word, uint32_t v, cpu_index cpu) {
    m.wait(cell, v, v);  // wait(cell, mask, value) sleeps while (cell & mask) == value
    m.wait(word, v, v);  // the same for a plain word
    m.kick(cpu);         // kick(cpu) ends its wait
};

/// An optional ability of the atomics: storing the lowest byte of a word, beside atomic accesses to the whole, which no
/// language's memory model knows.
/// Axiom: the store and an RMW of the word never lose each other's change, and all CPUs see one order of them. x86: a
/// locked RMW owns the cache line from its read to its write, and its own CPU's earlier stores are done by then; so a
/// byte store reaches the line before it or after it, and changes nothing but its byte. A load of the word by the CPU
/// that stored waits until its byte is in the line. [sdm3a 9.1.2.2, 9.2.2]
template <class M>
concept byte_store_policy = requires(M const m, uint32_t& word) {
    m.store_low_byte(word, uint8_t{}, order::release);  // store_low_byte(word, value, order)
};

}  // namespace pvx::inline v0::guest
