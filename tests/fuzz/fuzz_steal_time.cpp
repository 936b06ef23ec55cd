// SPDX-License-Identifier: MIT

/// \file
/// The steal-time page: a guest that writes anything into it, before each access of the host, any value to the MSR,
/// and memory that goes and comes back.

#include <pvx/host/steal_time.hpp>

#include "guest_memory.hpp"

using namespace pvx_fuzz;
using namespace pvx::host;

namespace {

struct environment : memory_roles {
    uint64_t* delay;
    uint32_t* flushes;

    nanoseconds run_delay() const { return nanoseconds{*delay}; }
    void flush_guest_tlb() const { ++*flushes; }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(uint8_t const* data, size_t size) {
    constexpr uint64_t values[] = {0x1001, 0x1003, 0, 0x1000, 0x2001, 0x1041, 0x1005};
    input in(data, size);
    guest_page page{&in};
    uint64_t run_delay = 0;
    uint32_t flushes = 0;
    bool const in_host = in.below(2) == 0;
    steal_time<environment> steal(environment{{&page}, &run_delay, &flushes}, in_host);
    while (!in.empty()) {
        page.sleepy = in.below(4) != 0;
        page.writes = flushes = 0;
        page.flush_taken = false;
        bool const enabled = (steal.msr() & 1) != 0;
        switch (in.below(8)) {
            case 0: {
                uint64_t const value = in.one_of(values), before = steal.msr();
                auto const outcome = steal.write_msr(abi::kvm_msr::steal_time.index, value);
                uint64_t const reserved = in_host ? 0x3c : 0x3e;
                expect((outcome == msr_outcome::done) == ((value & reserved) == 0),
                       "reserved bits fault, others do not");
                expect(steal.msr() == (outcome == msr_outcome::done ? value : before), "the MSR is what was taken");
                break;
            }
            case 1: steal.load(); break;
            case 2: {
                steal.enter();
                expect(!steal.must_enter() || !page.mapped || !page.sleepy, "an entry takes back what was published");
                break;
            }
            case 3: steal.put({in.below(4) != 0, in.below(2) == 0, in.below(4) != 0}); break;
            case 4: steal.reset(); break;
            case 5:
                page.generation += 2;
                page.mapped = in.below(4) != 0;
                break;
            case 6: run_delay = in.below(8) == 0 ? in.take<uint64_t>() : run_delay + in.take<uint16_t>(); break;
            case 7: {
                steal_time_state state = steal.save();
                if (in.below(2) == 0) state.version = in.take<uint8_t>();
                if (in.below(2) == 0) state.msr = in.one_of(values);
                (void)steal.restore(state);
                break;
            }
        }
        expect(page.guards == 0, "no guard is forgotten");
        expect(page.wrong_dirty == 0, "no other page is written");
        expect(!page.flush_taken || flushes != 0, "a flush that was taken out of the page is done");
        expect(enabled || (steal.msr() & 1) != 0 || page.writes == 0, "a page that is not registered is not written");
    }
    return 0;
}
