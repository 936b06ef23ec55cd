// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The CPUs of a guest as TLB flushing sees them: a steal-time page and a byte of deferred flushes each, and the
/// kernel's own shootdown, which is written down. Abilities that a kernel may lack are types of their own around the
/// machine.

#include <set>
#include <vector>

#include <pvx/abi/kvm_steal_time.hpp>
#include <pvx/guest/concepts.hpp>
#include <pvx/guest/flush_request.hpp>

namespace pvx_test {

using namespace pvx;

/// One call of the kernel's own shootdown.
struct remote_flush {
    std::vector<unsigned long> mask;
    uint32_t bits;
    guest::flush_kind kind;
    uint32_t left_out;

    friend bool operator==(remote_flush const&, remote_flush const&) = default;
};

struct flush_state {
    explicit flush_state(uint32_t cpus) : pages(cpus), deferrals(cpus) {}

    std::vector<abi::kvm_steal_time> pages;
    std::vector<uint8_t> deferrals;
    std::set<uint32_t> without_page{};
    cpu_index self{0};
    std::vector<unsigned long> online{};
    uint32_t online_bits = 0;
    std::vector<remote_flush> remote{};
    uint32_t local_flushes = 0;
};

/// The handle that components hold. A CPU that does not exist throws.
template <class Atomics>
struct flush_machine : Atomics {
    flush_state* state;

    flush_machine(flush_state& s, Atomics atomics) : Atomics(atomics), state(&s) {}

    cpu_index self() const { return state->self; }
    uint32_t possible_cpus() const { return static_cast<uint32_t>(state->pages.size()); }
    apic_id apic(cpu_index cpu) const { return apic_id{cpu.value}; }
    template <class T>
        requires same_as<T, abi::kvm_steal_time> shared<T> record(cpu_index cpu)
    const {
        T& page = state->pages.at(cpu.value);
        if (state->without_page.count(cpu.value) != 0) return {};
        return {&page, guest_phys{reinterpret_cast<uintptr_t>(&page)}};
    }
    template <guest::flush_request_policy Request>
    void flush_remote(const_cpu_mask_view mask, Request const& request, uint32_t left_out) const {
        state->remote.push_back({{mask.words, mask.words + mask.word_count()}, mask.bits, request.kind(), left_out});
    }
};

/// With CPUs that come and go.
template <class Machine>
struct with_online : Machine {
    using Machine::Machine;
    const_cpu_mask_view online_cpus() const { return {this->state->online.data(), this->state->online_bits}; }
};

/// With deferred flushes.
template <class Machine>
struct with_deferral : Machine {
    using Machine::Machine;
    uint8_t& deferral(cpu_index cpu) const { return this->state->deferrals.at(cpu.value); }
    void flush_all_local() const { ++this->state->local_flushes; }
};

}  // namespace pvx_test
