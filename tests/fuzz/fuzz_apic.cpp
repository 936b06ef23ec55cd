// SPDX-License-Identifier: MIT

/// \file
/// A local APIC: whatever a guest writes to its MSRs and its page, and RESET, INIT, save and restore in between.

#include <pvx/host/apic_icr.hpp>
#include <pvx/host/apic_state.hpp>

#include "input.hpp"

using namespace pvx;
using namespace pvx_fuzz;
using namespace pvx::host;

namespace {

constexpr uint32_t msrs[] = {0x1b, 0x802, 0x80d, 0x80f, 0x830, 0x83f, 0x808, 0x831, 0x8ff, 0x900, 0x7ff};
constexpr uint32_t offsets[] = {0x20, 0xd0, 0xf0, 0x300, 0x310, 0x80, 0xfff};
constexpr uint64_t bases[] = {0xfee00000, 0xfee00800, 0xfee00c00, 0xfee00400, 0xfee00900, 0xfee00d00, 0x1fee00800};

void check_state(apic_state<> const& apic, apic_offer const& offer) {
    expect(apic.mode() != abi::apic_mode::invalid, "no APIC is in the invalid mode");
    expect(offer.x2apic || apic.mode() != abi::apic_mode::x2apic, "no APIC is in a mode that is not offered");
    expect(!apic.usable() || apic.hardware_enabled(), "what is usable is enabled");
    expect(!apic.hardware_enabled() || apic.present(), "what is enabled is there");
    expect((apic.base() & abi::apic_base_reserved) == 0, "no reserved bit of the base is set");
    expect(apic.base() >> offer.physical_bits == 0, "the page lies in the address space");
    expect((apic.svr() >> 8 & 1) == 0 || apic.usable(), "software-enabled, it is usable");
    expect((apic.lvt(0) & abi::lvt_masked) != 0 || apic.usable(), "of a software-disabled APIC the LVT is masked");
}

void check_command(icr_write const& w, uint64_t before) {
    if (w.outcome != msr_outcome::done) {
        expect(w.verdict == ipi_verdict::nothing && w.icr == before, "what is refused does nothing");
        return;
    }
    expect((w.icr & abi::icr_busy) == 0, "the busy bit is never seen");
    if (w.verdict != ipi_verdict::send && w.verdict != ipi_verdict::send_invalid) return;
    auto const how = static_cast<uint8_t>(w.ipi.delivery);
    expect(how <= 6 && how != 3, "no reserved kind of message is sent");
    expect(!abi::is_interrupt(w.ipi.delivery) || w.ipi.vector >= abi::first_legal_vector, "no illegal vector is sent");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(uint8_t const* data, size_t size) {
    input in(data, size);
    apic_offer const offer{static_cast<uint8_t>(32 + in.below(21)), in.below(2) == 0, in.below(2) == 0};
    apic_state<> apic(apic_id{in.take<uint16_t>()}, in.below(2) == 0);
    uint64_t icr = 0;
    while (!in.empty()) {
        apic_saved const before = apic.save();
        apic_write w{};
        switch (in.below(7)) {
            case 0: w = apic.write_msr(offer, abi::msr::ia32_apic_base, in.one_of(bases)); break;
            case 1: w = apic.write_msr(offer, in.one_of(msrs), in.take<uint64_t>()); break;
            case 2: w = apic.write_page(offer, in.one_of(offsets), in.take<uint32_t>()); break;
            case 3: {
                auto const command = write_icr_msr(apic.mode(), icr, in.one_of(msrs), in.take<uint64_t>());
                check_command(command, icr);
                icr = command.icr;
                break;
            }
            case 4: {
                auto const command = write_icr_page(apic.mode(), icr, in.one_of(offsets), in.take<uint32_t>());
                check_command(command, icr);
                icr = command.icr;
                break;
            }
            case 5: {
                if (in.below(2) == 0)
                    (void)apic.reset(in.below(2) == 0);
                else
                    (void)apic.init();
                expect(!apic.usable(), "after RESET and INIT it is software-disabled");
                break;
            }
            case 6: {
                apic_saved saved = before;
                if (in.below(2) == 0) saved.base = in.one_of(bases);
                if (in.below(2) == 0) saved.svr = in.take<uint32_t>();
                if (apic.restore(offer, saved) == status::ok) {
                    // A disabled APIC has forgotten its registers.
                    bool const disabled = apic.mode() == abi::apic_mode::disabled;
                    expect(apic.save().base == saved.base && (disabled || apic.save().svr == saved.svr),
                           "what was taken is there");
                } else
                    expect(apic.save().base == before.base && apic.save().svr == before.svr,
                           "a refused state changes nothing");
                break;
            }
        }
        if (w.outcome != msr_outcome::done)
            expect(w.changes == apic_change::none && apic.save().base == before.base, "a fault changes nothing");
        if (apic.mode() != abi::apic_mode_of(before.base) && w.outcome == msr_outcome::done &&
            w.changes != apic_change{})
            expect(has(w.changes, apic_change::map), "another mode is told to the map");
        check_state(apic, offer);
    }
    return 0;
}
