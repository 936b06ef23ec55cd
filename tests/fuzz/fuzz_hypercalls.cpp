// SPDX-License-Identifier: MIT

/// \file
/// Hypercalls: any registers, in any mode, of a guest that is offered anything, with and without a map of APIC ids.

#include <pvx/host/hypercalls.hpp>

#include "guest_memory.hpp"

using namespace pvx_fuzz;
using namespace pvx::host;

namespace {

/// What the VMM has, and what it was asked for.
struct vmm {
    uint32_t features;
    uint32_t limit;
    uint32_t hole;  // no vCPU has ids that are a multiple of it
    bool mapped;
    bool pairs;
    int64_t range_result;
    uint32_t delivered = 0;
    uint32_t actions = 0;
    uint32_t maps_held = 0;
};

struct map_guard {
    vmm* of;
    explicit map_guard(vmm* v) : of(v) { ++of->maps_held; }
    map_guard(map_guard const&) = delete;
    map_guard& operator=(map_guard const&) = delete;
    ~map_guard() { --of->maps_held; }

    uint32_t limit() const { return of->mapped ? of->limit : 0; }
    cpu_index vcpu(apic_id id) const {
        expect(id.value < limit(), "no id beyond the limit is looked up");
        return cpu_index{id.value % of->hole == 0 ? 0xffffffff : id.value};
    }
};

struct environment : memory_roles {
    vmm* of;

    uint32_t pv_features() const { return of->features; }
    uint32_t clamp_index(uint32_t index, uint32_t count) const { return index < count ? index : 0; }
    map_guard apic_map() const { return map_guard{of}; }
    cpu_index self() const { return cpu_index{1}; }
    void kick(cpu_index vcpu) const { acts_on(vcpu); }
    void yield_to(cpu_index vcpu) const {
        acts_on(vcpu);
        expect(of->maps_held == 0, "nobody sleeps while the map is held");
    }
    bool deliver(cpu_index vcpu, apic_ipi ipi) const {
        acts_on(vcpu);
        expect(of->maps_held != 0, "the map is held while its vCPU is interrupted");
        expect(!abi::is_interrupt(ipi.delivery) || ipi.vector >= abi::first_legal_vector, "no illegal vector");
        bool const taken = vcpu.value % 3 != 0;
        of->delivered += taken;
        return taken;
    }
    bool pair_clocks(clock_pair& pair) const {
        pair = {1, 2, tsc_ticks{3}};
        return of->pairs;
    }
    int64_t map_gpa_range(gpa_range const& range) const {
        ++of->actions;
        expect(range.first.value % 4096 == 0 && range.pages != 0, "a range is of pages");
        expect(range.pages - 1 <= (~uint64_t{0} - range.first.value) / 4096, "a range does not wrap");
        return of->range_result;
    }

    void acts_on(cpu_index vcpu) const {
        ++of->actions;
        expect(vcpu.value < of->limit, "only vCPUs that exist are meant");
    }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(uint8_t const* data, size_t size) {
    constexpr uint64_t numbers[] = {1, 5, 9, 10, 11, 12, 0, 2};
    constexpr uint64_t arguments[] = {0, 1, 63, 64, 0x1000, 0x1fc0, 0x1ff8, 0xffffffff, 0x100000001, ~uint64_t{0}};
    constexpr int64_t results[] = {0, 1, -14, -22};
    input in(data, size);
    guest_page page{&in};
    vmm v{};
    hypercalls<environment> const calls(environment{{&page}, &v});
    while (!in.empty()) {
        v = {in.take<uint32_t>(), in.take<uint16_t>() + 2u, in.below(8) + 2u,
             in.below(4) != 0,    in.below(4) != 0,         in.one_of(results)};
        page.mapped = in.below(4) != 0;
        page.writes = 0;
        hypercall const call{in.one_of(numbers),   in.one_of(arguments),
                             in.one_of(arguments), in.one_of(arguments),
                             in.one_of(arguments), static_cast<uint8_t>(in.below(3) == 0 ? in.below(4) : 0),
                             in.below(2) == 0};
        auto const [outcome, rax] = calls.call(call);
        auto const result = call.wide ? static_cast<int64_t>(rax) : static_cast<int32_t>(rax);
        expect(call.wide || rax >> 32 == 0, "a caller in 32-bit mode gets 32 bits");
        expect(outcome != hypercall_outcome::not_ours || result == -1000, "an unknown call has that answer");
        if (call.cpl != 0) expect(result == -1 && v.actions == 0 && page.writes == 0, "ring 3 can do nothing");
        if (outcome == hypercall_outcome::not_ours) expect(v.actions == 0, "what is not offered does nothing");
        if (result < 0 && (v.range_result == 0 || v.range_result == hypercall_pending))
            expect(v.actions == 0, "a refused call does nothing");
        if ((call.wide ? call.number : call.number & 0xffffffff) == 10 && outcome == hypercall_outcome::done &&
            result >= 0)
            expect(result == int64_t{v.delivered} && v.delivered <= 128, "the answer is how many it reached");
        expect(page.guards == 0 && v.maps_held == 0, "no guard is forgotten");
        expect(page.wrong_dirty == 0, "no other page is written");
    }
    return 0;
}
