// SPDX-License-Identifier: MIT

/// \file
/// KVM's MSRs, all of them, with the clock and the steal-time page behind some: any index and value, of a guest that is
/// offered anything, and that writes into its records while the host does.

#include <pvx/host/clock.hpp>
#include <pvx/host/msrs.hpp>
#include <pvx/host/steal_time.hpp>

#include "guest_memory.hpp"

using namespace pvx_fuzz;
using namespace pvx::host;

namespace {

/// The VMM's part.
struct vmm {
    uint32_t features = 0;
    bool accepts = true;  // records
    bool apic = true;
    bool encrypted = false;
    clock_reading reading{};
    uint64_t wall = 0;
    uint64_t run_delay = 0;
};

struct environment : memory_roles {
    vmm* of;

    uint32_t pv_features() const { return of->features; }
    void set_halt_polling(bool) const {}
    bool set_pv_eoi(guest_phys word, bool on) const {
        expect(!on || word.value % 2 == 0, "the enable bit is no address");
        return of->accepts || !on;
    }
    bool has_local_apic() const { return of->apic; }
    bool set_async_pf(async_pf_setting const& setting) const {
        expect(setting.record.value % 64 == 0, "a record is aligned");
        return of->accepts || !setting.enabled;
    }
    void acknowledge_async_pf() const {}
    bool memory_encrypted() const { return of->encrypted; }
    void set_migration_ready(bool) const {}
    clock_reading read_clock() const { return of->reading; }
    nanoseconds wall_clock_at_zero() const { return nanoseconds{of->wall}; }
    nanoseconds run_delay() const { return nanoseconds{of->run_delay}; }
    void flush_guest_tlb() const {}
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(uint8_t const* data, size_t size) {
    constexpr uint32_t indices[] = {0x11,       0x12,       0x4b564d00, 0x4b564d01, 0x4b564d02, 0x4b564d03, 0x4b564d04,
                                    0x4b564d05, 0x4b564d06, 0x4b564d07, 0x4b564d08, 0x4b564d09, 0x4b564dff};
    constexpr uint64_t values[] = {0, 1, 2, 0x1001, 0x1009, 0x1041, 0x1fe1, 0x1fe5, 0x1ffd, 0x100f, 0x2001, 0xff};
    input in(data, size);
    guest_page page{&in};
    vmm v;
    environment const here{{&page}, &v};
    msrs<environment> all(here);
    steal_time<environment> steal(here);
    kvm_clock<environment> clock(here);
    while (!in.empty()) {
        page.writes = 0;
        switch (in.below(8)) {
            case 0: {
                uint32_t const index = in.one_of(indices);
                uint64_t const value = in.one_of(values);
                auto const before = all.read(index, steal, clock);
                auto const outcome = all.write(index, value, steal, clock);
                auto const after = all.read(index, steal, clock);
                abi::kvm_msr_row const row = abi::find_kvm_msr(index);
                if (row.index == 0 || (v.features & mask(row.gate)) == 0) {
                    expect(outcome == msr_outcome::not_ours && after.outcome == msr_outcome::not_ours,
                           "what is not offered does not exist");
                    break;
                }
                expect(outcome != msr_outcome::done || (value & row.reserved) == 0, "reserved bits fault");
                expect(outcome == msr_outcome::done || after == before, "a fault changes nothing");
                if (outcome == msr_outcome::done && index != abi::kvm_msr::async_pf_ack.index)
                    expect(after == msr_read{msr_outcome::done, value}, "a value that was taken is read back");
                break;
            }
            case 1: v.features = in.below(2) == 0 ? ~0u : in.take<uint32_t>(); break;
            case 2:
                page.mapped = in.below(4) != 0;
                page.sleepy = in.below(4) != 0;
                page.generation += 2;
                break;
            case 3:
                v.reading = {tsc_ticks{in.take<uint64_t>()}, nanoseconds{in.take<uint64_t>()},
                             in.below(2) == 0 ? 2'500'000'000 : in.take<uint64_t>(), in.below(2) == 0};
                v.wall = in.take<uint64_t>();
                v.run_delay = in.take<uint64_t>();
                clock.mark_changed();
                break;
            case 4:
                clock.enter();
                steal.load();
                steal.enter();
                break;
            case 5: {
                if (in.below(2) == 0)
                    all.reset(steal, clock);
                else
                    all.init(steal, clock);
                page.writes = 0;
                clock.enter();
                steal.load();
                steal.enter();
                expect(page.writes == 0, "after INIT nothing is written");
                break;
            }
            case 6: {
                v.accepts = in.below(2) == 0;
                v.apic = in.below(4) != 0;
                v.encrypted = in.below(2) == 0;
                (void)clock.guest_stopped();
                break;
            }
            case 7: {
                msrs_state state = all.save();
                if (in.below(2) == 0) state.async_pf_en = in.one_of(values);
                if (in.below(2) == 0) state.poll_control = in.one_of(values);
                if (in.below(2) == 0) state.pv_eoi_en = in.one_of(values);
                if (in.below(4) == 0) state.version = in.below(4);
                msrs_state const before = all.save();
                if (all.restore(state) == status::bad_argument) {
                    msrs_state const after = all.save();
                    expect(after.async_pf_en == before.async_pf_en && after.poll_control == before.poll_control &&
                               after.pv_eoi_en == before.pv_eoi_en,
                           "a refused state changes nothing");
                }
                break;
            }
        }
        expect(page.guards == 0, "no guard is forgotten");
        expect(page.wrong_dirty == 0, "no other page is written");
    }
    return 0;
}
