// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The roles of an environment: what the host half of pvx needs of a hypervisor or VMM. There is one environment object
/// per vCPU, held by value; components ask for the roles that they use. The hardware's roles are in arch/concepts.hpp.

#include <pvx/abi/kvm_features.hpp>
#include <pvx/arch/concepts.hpp>

namespace pvx::inline v0::host {

/// Not void.
template <class T>
concept object_type = !same_as<T, void>;

/// The guest's memory, always through its normal address space, never that of SMM.
/// Axiom: `map` gives the host's address of an object at a guest-physical address, or null: not plain writable memory,
/// or not reachable from a context that must not sleep. The object does not cross a page. What was mapped under a guard
/// stays and cannot fault until the guard is gone, and so again under a later guard with the same generation. So a
/// change of the memory map gives a new generation before it begins and one more when it is done, no generation comes
/// twice, and the old memory is let go only after the guards from before have ended. Memory that was taken from the
/// guest, and is given back with what it held, is out of every guest CPU's reach until each vCPU has entered once more.
/// `mark_dirty` does not sleep.
template <class E, class T>
concept guest_memory_policy = requires(E const e, guest_phys address) {
    { e.read_guard() } -> object_type;               // read_guard() holds off changes of the memory map while it lives
    { e.template map<T>(address) } -> same_as<T*>;   // map<T>(address) is where the object is, or null
    { e.memory_generation() } -> same_as<uint64_t>;  // memory_generation() changes with the memory map
    e.mark_dirty(address);                           // mark_dirty(address): the page was written (dirty logging)
    { e.can_sleep() } -> same_as<bool>;              // can_sleep(): the caller may wait, so map() may too
};

/// An object of this size and alignment is aligned there and lies in one page, so that it may be mapped.
template <class T>
constexpr bool may_map(guest_phys address) {
    constexpr uint64_t page = 4096;
    return is_aligned<uint64_t>(address.value, alignof(T)) && address.value % page <= page - sizeof(T);
}

/// Answer of a look-up that finds nobody; as the sender of a command, one that is no vCPU.
inline constexpr cpu_index no_vcpu{0xffffffff};

/// What the guest is offered.
/// Axiom: the features leaf of its CPUID, as kvm_features_offered() makes it. A VMM that offers the same to every guest
/// answers with a constant, and what is not in it has no code.
template <class E>
concept pv_features_policy = requires(E const e) {
    { e.pv_features() } -> same_as<uint32_t>;  // pv_features() is bits of abi::kvm_feature
};

/// How long the vCPU's thread wanted to run and did not.
/// Axiom: read on the vCPU's thread; rises, but begins anew when the vCPU gets another thread.
template <class E>
concept run_clock_policy = requires(E const e) {
    { e.run_delay() } -> same_as<nanoseconds>;  // run_delay() is the sum up to now
};

/// The guest's translations.
/// Axiom: after `flush_guest_tlb` this vCPU executes no guest instruction, on whatever CPU it runs next, before every
/// translation of the guest is gone: all PCIDs, global ones, paging-structure entries, and what software remembers of
/// guest-virtual addresses. With shadow paging the shadow tables are synchronised with the guest's first; finer flushes
/// that were queued are dropped. Inside a nested guest, the flush is owed to the tag (ASID, VPID) of the level whose
/// memory the steal-time page is in, as well. It is a full fence for memory, before anything reads the guest's page
/// tables again.
template <class E>
concept guest_tlb_policy = requires(E const e) {
    e.flush_guest_tlb();  // flush_guest_tlb() drops all translations before the next guest instruction
};

/// The threads of the VM's vCPUs, for whoever signals one of them.
/// Axiom: `wake` ends the sleep of that vCPU's thread, and its stay in the guest. It is sticky: where the thread is in
/// neither, the next of the two ends as it begins. What the caller stored before is visible to the thread then. Either
/// may end for no reason. It does not sleep.
template <class E>
concept vcpu_wake_policy = requires(E const e, cpu_index vcpu) {
    e.wake(vcpu);  // wake(vcpu) gets its thread out of sleep and guest
};

/// What an INIT does to a vCPU at the moment.
enum class init_rule : uint8_t {
    taken,        ///< It resets the vCPU.
    held,         ///< It stays pending: in SMM, in VMX root operation, with GIF clear.
    nested_exit,  ///< It makes the nested guest exit, and is used up by that: VMX.
};

/// What ends a halt besides a kick, and what INIT does.
/// Axiom: called on the vCPU's thread, and changes nothing: guest memory is not written, no interrupt moved from where
/// it was posted, no event injected, no request made, no exit prepared. `wake_event` sees all that was posted before a
/// notify() of host/kick.hpp began, also what is posted elsewhere than in the IRR. It says true for whatever ends the
/// halt: an interrupt that is not masked, NMI, SMI, for a nested guest an exit as well, and also where it must wait for
/// an event that is being injected already.
template <class E>
concept wake_event_policy = requires(E const e) {
    { e.wake_event() } -> same_as<bool>;         // wake_event(): something has come that ends the halt
    { e.rule_of_init() } -> same_as<init_rule>;  // rule_of_init(): what an INIT does now
};

/// Who wants to know what happened. An optional role: without it events cost nothing.
/// Axiom: called on the vCPU's thread; does not sleep.
template <class E, class Event>
concept observer_policy = requires(E const e, Event event) {
    e.event(event);  // event(event)
};

/// What a write to one of pvx's MSRs comes to.
enum class [[nodiscard]] msr_outcome : uint8_t{
    done,      ///< Done.
    fault,     ///< The guest gets a general-protection fault.
    not_ours,  ///< Another MSR: ask the next.
};

/// What a read of one comes to.
struct [[nodiscard]] msr_read {
    msr_outcome outcome{};
    uint64_t value{};

    friend constexpr bool operator==(msr_read const&, msr_read const&) = default;
};

}  // namespace pvx::inline v0::host
