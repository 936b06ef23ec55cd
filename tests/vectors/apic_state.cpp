// SPDX-License-Identifier: MIT
#include <pvx/host/apic_icr.hpp>
#include <pvx/host/apic_state.hpp>

#include "vectors.hpp"

using namespace pvx;
using namespace pvx::host;
using pvx_test::hex;
using json = nlohmann::ordered_json;

namespace {

char const* word(msr_outcome o) {
    return o == msr_outcome::done ? "done" : o == msr_outcome::fault ? "fault" : "not ours";
}

json names(apic_change changes) {
    json list = json::array();
    auto const add = [&](apic_change which, char const* name) {
        if (has(changes, which)) list.push_back(name);
    };
    add(apic_change::map, "map");
    add(apic_change::cpuid, "cpuid");
    add(apic_change::reach, "reach");
    add(apic_change::identity, "identity");
    add(apic_change::icr_high, "icr_high");
    add(apic_change::registers, "registers");
    add(apic_change::lvt_masks, "lvt_masks");
    return list;
}

json registers_of(apic_state<> const& apic) {
    bool const enabled = apic.hardware_enabled();
    return {{"base", hex(apic.base())},
            {"svr", hex(apic.svr())},
            {"id", enabled ? json(hex(apic.id_register())) : json(nullptr)},
            {"enabled", enabled},
            {"takes_interrupts", apic.usable()}};
}

// --- apic_transitions ------------------------------------------------------------------------------------------------

constexpr apic_id id{300};
constexpr uint64_t en = abi::msr::apic_base::enable, extd = abi::msr::apic_base::x2apic_enable,
                   page = abi::apic_base_default;
constexpr apic_offer with_x2apic{.physical_bits = 46, .x2apic = true};

struct start {
    char const* name;
    uint64_t bits;
};
constexpr start starts[] = {{"disabled", 0}, {"xapic", en}, {"x2apic", en | extd}};

apic_state<> begin_in(start const& s) {
    apic_state<> apic(id, false);
    (void)apic.write_page(with_x2apic, abi::apic_reg::svr, 0x1ff);
    // Two steps where the manual wants two.
    if (s.bits != en) (void)apic.write_msr(with_x2apic, abi::msr::ia32_apic_base, page | s.bits);
    return apic;
}

json transition(start const& from, char const* action) { return {{"from", from.name}, {"action", action}}; }

void finish(json& row, apic_state<> const& apic, msr_outcome outcome, apic_change changes, json& out) {
    row["outcome"] = word(outcome);
    row["changes"] = names(changes);
    row["then"] = registers_of(apic);
    out["cases"].push_back(row);
}

void write_base(start const& from, apic_offer offer, uint64_t value, json& out) {
    apic_state<> apic = begin_in(from);
    apic_write const result = apic.write_msr(offer, abi::msr::ia32_apic_base, value);
    json row = transition(from, "write_base");
    row["value"] = hex(value);
    row["maxphyaddr"] = offer.physical_bits;
    row["x2apic_offered"] = offer.x2apic;
    finish(row, apic, result.outcome, result.changes, out);
}

void make_transitions(json& out) {
    out["about"] =
        "IA32_APIC_BASE (MSR 0x1b), the spurious-interrupt vector register (SVR), RESET and INIT of a local APIC: "
        "which "
        "writes fault, and what changes. Each case begins in the mode 'from', of an application processor with APIC id "
        "300, the page at 0xfee00000, and an SVR of 0x1ff (0xff where disabled). 'changes': map (who can be reached, "
        "or "
        "by which id), cpuid (CPUID.1:EDX[9]), reach (page, MSRs or none; the page's place), identity (form of the ID "
        "register, LDR), icr_high (ICR[63:32] is zero), registers (all but the ID are reset, IRR and ISR are lost), "
        "lvt_masks (every LVT mask bit is set; IRR and ISR are kept). 'then' is the state afterwards.";
    out["cases"] = json::array();
    for (start const& from : starts) {
        for (bool offered : {true, false})
            for (uint64_t bits : {uint64_t{0}, extd, en, en | extd}) write_base(from, {46, offered}, page | bits, out);
        write_base(from, with_x2apic, 0x42000000 | from.bits, out);
        write_base(from, with_x2apic, page | abi::msr::apic_base::bootstrap_cpu | from.bits, out);
        for (uint32_t bit : {0u, 7u, 9u, 46u, 63u})
            write_base(from, with_x2apic, page | from.bits | uint64_t{1} << bit, out);
        write_base(from, with_x2apic, page | from.bits | uint64_t{1} << 45, out);
        write_base(from, {36, true}, page | from.bits | uint64_t{1} << 36, out);

        for (bool bootstrap : {false, true}) {
            apic_state<> apic = begin_in(from);
            json row = transition(from, "reset");
            row["bootstrap"] = bootstrap;
            apic_change const changes = apic.reset(bootstrap);
            finish(row, apic, msr_outcome::done, changes, out);
        }
        apic_state<> apic = begin_in(from);
        json row = transition(from, "init");
        apic_change const changes = apic.init();
        finish(row, apic, msr_outcome::done, changes, out);

        for (uint32_t svr : {0x1ffu, 0x1f0u, 0xffu, 0x11ffu, 0x80000100u})
            for (bool msr : {true, false}) {
                apic = begin_in(from);
                row = transition(from, msr ? "write_svr_msr" : "write_svr_page");
                row["value"] = hex(svr);
                apic_write const result = msr ? apic.write_msr(with_x2apic, 0x80f, svr)
                                              : apic.write_page(with_x2apic, abi::apic_reg::svr, svr);
                finish(row, apic, result.outcome, result.changes, out);
            }
    }
}

vector_file const transitions{"apic_transitions", make_transitions};

// --- apic_commands ---------------------------------------------------------------------------------------------------

char const* word(ipi_verdict v) {
    switch (v) {
        case ipi_verdict::nothing: return "nothing";
        case ipi_verdict::send: return "send";
        case ipi_verdict::send_invalid: return "send, invalid";
        case ipi_verdict::illegal_vector: return "illegal vector";
    }
    return "?";
}

void command(char const* how, icr_write const& result, uint64_t before, uint64_t value, json& out) {
    static constexpr char const* shorthands[] = {"none", "self", "all", "others"};
    json row = {{"write", how},
                {"icr_before", hex(before)},
                {"value", hex(value)},
                {"outcome", word(result.outcome)},
                {"verdict", word(result.verdict)},
                {"icr", hex(result.icr)}};
    bool const sends = result.verdict == ipi_verdict::send || result.verdict == ipi_verdict::send_invalid;
    if (sends)
        row["ipi"] = {{"destination", hex(result.ipi.destination.value)},
                      {"logical", result.ipi.logical},
                      {"to", shorthands[static_cast<uint8_t>(result.ipi.shorthand)]},
                      {"delivery", static_cast<uint8_t>(result.ipi.delivery)},
                      {"vector", result.ipi.vector}};
    out["cases"].push_back(row);
}

void make_commands(json& out) {
    out["about"] =
        "Writes of a guest to its interrupt command register: 'msr' is MSR 0x830 in x2APIC mode, 'self' MSR 0x83f, "
        "'low' "
        "and 'high' are offsets 0x300 and 0x310 of the xAPIC page. 'icr' is what both halves hold afterwards. "
        "Verdicts: "
        "send; send, invalid (a shorthand that includes the sender, with another mode than fixed: the manual leaves it "
        "open); illegal vector (bit 5 of the error status register, nothing is sent); nothing (a reserved mode, a "
        "de-asserted INIT, or the high half). A destination that means everybody is told as 'to': 'all'.";
    out["cases"] = json::array();
    constexpr uint64_t before = 0x12000000000040fd;
    constexpr uint32_t lows[] = {0x40fd,  0x000f, 0x0010, 0x4930, 0x410f,  0x4200,  0x4330,  0x4400,   0x4500,
                                 0xc500,  0x8500, 0x4608, 0x4700, 0x440fd, 0x44400, 0x840fd, 0x84500,  0xc4400,
                                 0xc4608, 0x8031, 0x48ff, 0x50fd, 0x60fd,  0x140fd, 0x240fd, 0x1040fd, 0x800040fd};
    for (uint32_t low : lows) {
        uint64_t const value = uint64_t{300} << 32 | low;
        command("msr", write_icr_msr(abi::apic_mode::x2apic, before, 0x830, value), before, value, out);
        command("low", write_icr_page(abi::apic_mode::xapic, before, 0x300, low), before, low, out);
    }
    for (uint64_t value : {0xffffffff000040fdu, 0xffffffff000048fdu, 0x000000ff000040fdu, 0xffffffff000c4400u})
        command("msr", write_icr_msr(abi::apic_mode::x2apic, before, 0x830, value), before, value, out);
    for (uint32_t low : {0x40fdu, 0x48fdu, 0x440fdu}) {
        constexpr uint64_t everybody = uint64_t{0xff} << 56;
        command("low", write_icr_page(abi::apic_mode::xapic, everybody, 0x300, low), everybody, low, out);
    }
    for (uint32_t high : {0x05000000u, 0xffffffffu})
        command("high", write_icr_page(abi::apic_mode::xapic, before, 0x310, high), before, high, out);
    for (uint64_t value : {0xfdu, 0x10u, 0x0fu, 0x1fdu})
        command("self", write_icr_msr(abi::apic_mode::x2apic, before, 0x83f, value), before, value, out);
}

vector_file const commands{"apic_commands", make_commands};

}  // namespace
