// SPDX-License-Identifier: MIT
#include <pvx/host/access_rights.hpp>
#include <pvx/host/cr0_wp.hpp>
#include <pvx/host/guest_cr0.hpp>

#include <set>
#include <string>
#include <vector>

#include "support/catch.hpp"

using namespace pvx;
using namespace pvx::host;
using namespace pvx::abi;
namespace efer = pvx::abi::msr::efer;

namespace {

constexpr uint64_t all = ~uint64_t{0};
constexpr uint64_t protected_mode = cr0::pe | cr0::et | cr0::ne;
constexpr uint64_t paging = protected_mode | cr0::pg;
constexpr uint64_t lme = efer::long_mode_enable, lma = efer::long_mode_active, nxe = efer::no_execute_enable;

/// Hardware and mmu of one vCPU. What happens is counted and written down in order.
struct hardware {
    uint64_t cr0 = 0;  // in the VMCS
    bool direct = true;
    bool pdptes_valid = true;
    uint32_t reads = 0;
    uint32_t exits = 0;
    std::vector<std::string> log;

    uint32_t count(std::string const& entry) const {
        uint32_t n = 0;
        for (std::string const& l : log) n += l == entry;
        return n;
    }
};

/// The handle that components hold.
struct unobserved {
    hardware* state;

    explicit unobserved(hardware& s) : state(&s) {}

    uint64_t guest_cr0() const { return ++state->reads, state->cr0; }
    bool direct_map() const { return state->direct; }
    void refresh_permissions() const { state->log.push_back("refresh"); }
    void reload_roots() const { state->log.push_back("roots"); }
    void flush_guest_tlb() const { state->log.push_back("flush"); }
    bool reload_pdptes() const {
        state->log.push_back("pdptes");
        return state->pdptes_valid;
    }
};

/// With the optional role of an observer.
struct observed : unobserved {
    using unobserved::unobserved;

    void event(cr0_event e) const {
        static char const* const names[] = {"fetched",        "refused",         "permissions_refreshed",
                                            "roots_reloaded", "pdptes_reloaded", "tlb_flushed"};
        state->log.push_back(names[static_cast<unsigned>(e)]);
    }
};

/// A vCPU on hardware that keeps CR0 as VMX or SVM does, and a host that uses what is tested here.
struct vcpu {
    hardware hw;
    observed env{hw};
    lazy_cr0 cr0;
    virtualization by;
    uint64_t cr4 = 0;
    uint64_t efer = 0;

    vcpu(virtualization kind, bool direct, uint64_t value) : cr0(value), by(kind) {
        hw.cr0 = value;
        hw.direct = direct;
        cr0.give(ownable_cr0(by, direct), env);
    }
    vcpu(vcpu const&) = delete;

    /// Which moves to CR0 exit is the hardware's to say: by the mask on VMX, all of them, or by what SVM selects.
    bool exits_for(uint64_t value) const {
        switch (by) {
            case virtualization::vmx: return ((value ^ hw.cr0) & ~cr0.owned()) != 0;
            case virtualization::svm: return true;
            case virtualization::svm_selective: return selective_cr0_exit(hw.cr0, value);
        }
        return true;
    }
    /// The guest moves to CR0.
    void guest_writes(uint64_t value) {
        if (!exits_for(value)) {
            hw.cr0 = value;
            return;
        }
        exits();
        cr0_decision const d = write_cr0(cr0, {.written = value, .cr4 = cr4, .efer = efer}, env);
        REQUIRE(d.refusal == cr0_refusal::none);
        hw.cr0 = d.cr0;
        efer = d.efer;
    }
    void exits() {
        ++hw.exits;
        cr0.exited();
    }
    void forget() {
        hw.log.clear();
        hw.reads = hw.exits = 0;
    }
};

// The values of all subsets of `bits`.
std::vector<uint64_t> subsets(uint64_t bits) {
    std::vector<uint64_t> result;
    uint64_t s = 0;
    do {
        result.push_back(s);
        s = (s - bits) & bits;
    } while (s != 0);
    return result;
}

cr0_refusal why(cr0_inputs const& in) { return decide(in).refusal; }

// The manuals' sentences on MOV to CR0, one after the other, in no better order than theirs.
bool manual_refuses(uint64_t old_cr0, uint64_t value, uint64_t cr4, uint64_t efer, bool cs_l, bool tr_16_bit) {
    auto const set = [](uint64_t v, uint64_t bit) { return (v & bit) != 0; };
    bool const sets_pg = !set(old_cr0, cr0::pg) && set(value, cr0::pg);
    bool const clears_pg = set(old_cr0, cr0::pg) && !set(value, cr0::pg);
    bool const in_64_bit_mode = set(efer, lma) && cs_l;
    bool refuses = false;
    if (value > 0xffffffff) refuses = true;
    if (set(value, cr0::pg) && !set(value, cr0::pe)) refuses = true;
    if (!set(value, cr0::cd) && set(value, cr0::nw)) refuses = true;
    if (sets_pg && set(efer, lme) && !set(cr4, cr4::pae)) refuses = true;
    if (sets_pg && set(efer, lme) && cs_l) refuses = true;
    if (sets_pg && set(efer, lme) && tr_16_bit) refuses = true;
    if (clears_pg && in_64_bit_mode) refuses = true;
    if (clears_pg && set(cr4, cr4::pcide)) refuses = true;
    if (set(cr4, cr4::cet) && !set(value, cr0::wp)) refuses = true;
    return refuses;
}

}  // namespace

// --- refusals --------------------------------------------------------------------------------------------------------

TEST_CASE("A write to CR0 is refused for each reason that the manuals give, and for none beside", "[host][cr0_wp]") {
    cr0_inputs const legacy{.old_cr0 = paging, .written = paging};
    cr0_inputs const setting{.old_cr0 = protected_mode, .written = paging, .cr4 = cr4::pae, .efer = lme};
    cr0_inputs const compatible{.old_cr0 = paging, .written = protected_mode, .cr4 = cr4::pae, .efer = lme | lma};
    auto const with = [](cr0_inputs in, auto change) { return change(in), in; };
    CHECK(why(legacy) == cr0_refusal::none);
    CHECK(why(setting) == cr0_refusal::none);
    CHECK(why(compatible) == cr0_refusal::none);

    for (uint32_t n = 32; n < 64; ++n) {
        CAPTURE(n);
        CHECK(why(with(legacy, [&](auto& in) { in.written |= bit<uint64_t>(n); })) == cr0_refusal::upper_bits);
    }
    CHECK(why(with(legacy, [](auto& in) { in.written |= cr0::nw; })) == cr0_refusal::nw_without_cd);
    CHECK(why(with(legacy, [](auto& in) { in.written |= cr0::nw | cr0::cd; })) == cr0_refusal::none);
    CHECK(why(with(legacy, [](auto& in) { in.written |= cr0::cd; })) == cr0_refusal::none);
    CHECK(why(with(legacy, [](auto& in) { in.written &= ~cr0::pe; })) == cr0_refusal::pg_without_pe);
    CHECK(why(with(legacy, [](auto& in) { in.written = 0; })) == cr0_refusal::none);
    CHECK(why(with(setting, [](auto& in) { in.cr4 = 0; })) == cr0_refusal::long_mode_without_pae);
    CHECK(why(with(setting, [](auto& in) { in.cr4 = 0, in.efer = 0; })) == cr0_refusal::none);
    CHECK(why(with(setting, [](auto& in) { in.cs_l = true; })) == cr0_refusal::long_mode_with_cs_l);
    CHECK(why(with(setting, [](auto& in) { in.tr_16_bit = true; })) == cr0_refusal::long_mode_with_16_bit_tss);
    CHECK(why(with(setting, [](auto& in) { in.tr_16_bit = true, in.efer = 0; })) == cr0_refusal::none);
    CHECK(why(with(compatible, [](auto& in) { in.cs_l = true; })) == cr0_refusal::leaves_64_bit_mode);
    CHECK(why(with(compatible, [](auto& in) { in.cr4 |= cr4::pcide; })) == cr0_refusal::pg_cleared_with_pcide);
    CHECK(why(with(legacy, [](auto& in) { in.cr4 = cr4::cet; })) == cr0_refusal::cet_without_wp);
    CHECK(why(with(legacy, [](auto& in) { in.cr4 = cr4::cet, in.written |= cr0::wp; })) == cr0_refusal::none);
    // In 64-bit mode all other bits may change.
    CHECK(why({.old_cr0 = paging,
               .written = paging | cr0::wp | cr0::ts | cr0::am | cr0::cd,
               .cr4 = cr4::pae | cr4::pcide,
               .efer = lme | lma,
               .cs_l = true}) == cr0_refusal::none);
}

TEST_CASE("In VMX operation a write keeps the bits that VMX fixes, and an unrestricted guest's PE and PG are free",
          "[host][cr0_wp]") {
    // As the first processors and Linux's guests have it.
    cr0_inputs in{.old_cr0 = paging, .written = paging, .vmx_ones = cr0::pe | cr0::ne | cr0::pg};
    CHECK(why(in) == cr0_refusal::none);
    in.written = paging & ~cr0::ne;
    CHECK(why(in) == cr0_refusal::vmx_fixed);
    in.written = protected_mode;
    CHECK(why(in) == cr0_refusal::vmx_fixed);
    in.vmx_ones = cr0::ne;  // unrestricted
    CHECK(why(in) == cr0_refusal::none);
    in.vmx_zeros = cr0::am;
    CHECK(why(in) == cr0_refusal::none);
    in.written |= cr0::am;
    CHECK(why(in) == cr0_refusal::vmx_fixed);
    in.vmx_zeros = ~uint64_t{0xffffffff};  // as the MSR really is: nothing below bit 32
    CHECK(why(in) == cr0_refusal::none);
}

TEST_CASE("A refused write asks for nothing and leaves both registers as they were", "[host][cr0_wp]") {
    for (uint64_t written : {paging | bit<uint64_t>(40), paging & ~cr0::pe, paging | cr0::nw, protected_mode}) {
        CAPTURE(written);
        cr0_inputs const in{
            .old_cr0 = paging, .written = written, .cr4 = cr4::pae | cr4::pcide, .efer = lme | lma, .direct = true};
        cr0_decision const d = decide(in);
        CHECK(d.refusal != cr0_refusal::none);
        CHECK(d == cr0_decision{.refusal = d.refusal, .cr0 = paging, .efer = lme | lma});
    }
}

TEST_CASE("CR4.CET and CR0.WP are refused without each other, by whichever register would part them",
          "[host][cr0_wp]") {
    for (bool cet : {false, true})
        for (bool wp : {false, true}) {
            CAPTURE(cet, wp);
            uint64_t const value = paging | (wp ? cr0::wp : 0);
            uint64_t const cr4 = cr4::pae | (cet ? cr4::cet : 0);
            bool const refused = cet && !wp;
            CHECK(cet_without_wp(value, cr4) == refused);
            CHECK((why({.old_cr0 = paging | cr0::wp, .written = value, .cr4 = cr4}) == cr0_refusal::cet_without_wp) ==
                  refused);
            // Paging or not.
            CHECK(why({.old_cr0 = paging | cr0::wp, .written = value & ~cr0::pg, .cr4 = cr4}) ==
                  (refused ? cr0_refusal::cet_without_wp : cr0_refusal::none));
        }
}

TEST_CASE("A guest that cleared WP without an exit is refused CET at its next write to CR4", "[host][cr0_wp]") {
    vcpu v(virtualization::vmx, true, paging | cr0::wp);
    v.guest_writes(paging);
    CHECK(v.hw.exits == 0);
    v.exits();  // for the write to CR4
    CHECK(cet_without_wp(v.cr0.read(cr0::wp, v.env), cr4::cet));
    v.guest_writes(paging | cr0::wp);
    v.exits();
    CHECK_FALSE(cet_without_wp(v.cr0.read(cr0::wp, v.env), cr4::cet));
}

// --- what must be done -----------------------------------------------------------------------------------------------

TEST_CASE("Every decision is what the manuals ask for and no more", "[host][cr0_wp]") {
    uint64_t compared = 0;
    std::string wrong;
    for (uint64_t old_cr0 : subsets(cr0::pe | cr0::wp | cr0::cd | cr0::nw | cr0::pg)) {
        old_cr0 |= cr0::et;
        if ((old_cr0 & cr0::pg) != 0 && (old_cr0 & cr0::pe) == 0) continue;
        if ((old_cr0 & cr0::nw) != 0 && (old_cr0 & cr0::cd) == 0) continue;
        for (uint64_t written : subsets(cr0::pe | cr0::wp | cr0::cd | cr0::nw | cr0::pg | cr0::ts | bit<uint64_t>(32)))
            for (uint64_t cr4 : subsets(cr4::pae | cr4::pcide | cr4::cet | cr4::smep | cr4::smap))
                for (uint64_t enabled : subsets(lme | nxe))
                    for (unsigned flags = 0; flags < 8; ++flags) {
                        bool const was = (old_cr0 & cr0::pg) != 0, is = (written & cr0::pg) != 0;
                        uint64_t const efer = enabled | (was && (enabled & lme) != 0 ? lma : 0);
                        cr0_inputs const in{.old_cr0 = old_cr0,
                                            .written = written,
                                            .cr4 = cr4,
                                            .efer = efer,
                                            .cs_l = (flags & 1) != 0,
                                            .tr_16_bit = (flags & 2) != 0,
                                            .direct = (flags & 4) != 0};
                        cr0_decision const d = decide(in);
                        // A guest that has CET has WP too.
                        if (cet_without_wp(old_cr0, cr4)) continue;
                        ++compared;

                        cr0_decision expected{.refusal = d.refusal, .cr0 = old_cr0, .efer = efer};
                        bool const refused = manual_refuses(old_cr0, written, cr4, efer, in.cs_l, in.tr_16_bit);
                        if (!refused) {
                            expected.cr0 = written | cr0::et;
                            expected.efer = enabled | (is && (enabled & lme) != 0 ? lma : 0);
                            bool const wp_moved = ((old_cr0 ^ written) & cr0::wp) != 0;
                            expected.flush_guest_tlb = was != is;
                            expected.refresh_permissions = was != is || (is && wp_moved);
                            expected.reload_roots = root_key_of(in.direct, old_cr0, cr4, efer) !=
                                                    root_key_of(in.direct, expected.cr0, cr4, expected.efer);
                            if (is && (cr4 & cr4::pae) != 0 && (enabled & lme) == 0)
                                expected.reload_pdptes = was != is || ((old_cr0 ^ written) & cr0::cd) != 0 ||
                                                         ((old_cr0 ^ written) & cr0::nw) != 0;
                        }
                        if ((d.refusal != cr0_refusal::none) != refused || d != expected) {
                            CAPTURE(old_cr0, written, cr4, efer, flags, refused, static_cast<int>(d.refusal));
                            FAIL("another decision");
                        }
                    }
    }
    CHECK(compared > 500000);
}

TEST_CASE("A toggle of WP alone: nothing without paging, new rules under direct paging, other roots under shadow",
          "[host][cr0_wp]") {
    for (uint64_t cr4 : subsets(cr4::pae | cr4::smep | cr4::smap))
        for (uint64_t efer : {uint64_t{0}, nxe})
            for (bool set : {false, true})
                for (bool direct : {false, true}) {
                    CAPTURE(cr4, efer, set, direct);
                    uint64_t const from = set ? 0 : cr0::wp, to = set ? cr0::wp : 0;
                    cr0_decision const off = decide({.old_cr0 = protected_mode | from,
                                                     .written = protected_mode | to,
                                                     .cr4 = cr4,
                                                     .efer = efer,
                                                     .direct = direct});
                    CHECK(off == cr0_decision{.cr0 = protected_mode | to, .efer = efer});
                    cr0_decision const on = decide(
                        {.old_cr0 = paging | from, .written = paging | to, .cr4 = cr4, .efer = efer, .direct = direct});
                    CHECK(on ==
                          cr0_decision{
                              .refresh_permissions = true, .reload_roots = !direct, .cr0 = paging | to, .efer = efer});
                }
}

TEST_CASE("Bits that do not concern translation ask for nothing", "[host][cr0_wp]") {
    for (uint64_t bits : subsets(cr0::mp | cr0::em | cr0::ts | cr0::ne | cr0::am))
        for (bool direct : {false, true}) {
            CAPTURE(bits, direct);
            cr0_decision const d = decide({.old_cr0 = paging & ~cr0::ne,
                                           .written = (paging & ~cr0::ne) | bits,
                                           .cr4 = cr4::pae,
                                           .direct = direct});
            CHECK(d == cr0_decision{.cr0 = (paging & ~cr0::ne) | bits});
        }
}

TEST_CASE("WP and PG together are a change of PG", "[host][cr0_wp]") {
    for (bool direct : {false, true}) {
        cr0_decision const d = decide({.old_cr0 = protected_mode, .written = paging | cr0::wp, .direct = direct});
        CHECK(d == cr0_decision{.refresh_permissions = true,
                                .reload_roots = !direct,
                                .flush_guest_tlb = true,
                                .cr0 = paging | cr0::wp});
    }
}

TEST_CASE("PAE paging reads its four entries when CD, NW or PG changes, and other paging never", "[host][cr0_wp]") {
    auto const reloads = [](uint64_t from, uint64_t to, uint64_t cr4, uint64_t efer) {
        return decide({.old_cr0 = from, .written = to, .cr4 = cr4, .efer = efer}).reload_pdptes;
    };
    CHECK(reloads(paging, paging | cr0::cd, cr4::pae, 0));
    CHECK(reloads(paging | cr0::cd, paging, cr4::pae, 0));
    CHECK(reloads(paging | cr0::cd, paging | cr0::cd | cr0::nw, cr4::pae, 0));
    CHECK(reloads(protected_mode, paging, cr4::pae, 0));
    CHECK_FALSE(reloads(paging, protected_mode, cr4::pae, 0));  // PAE paging is over
    CHECK_FALSE(reloads(paging, paging | cr0::wp, cr4::pae, 0));
    CHECK_FALSE(reloads(protected_mode, protected_mode | cr0::cd, cr4::pae, 0));
    CHECK_FALSE(reloads(paging, paging | cr0::cd, 0, 0));
    CHECK_FALSE(reloads(paging, paging | cr0::cd, cr4::pae, lme | lma));
    CHECK_FALSE(reloads(protected_mode, paging, cr4::pae, lme));
}

TEST_CASE("LMA follows PG where LME is set, and stays away where it is not", "[host][cr0_wp]") {
    auto const efer_after = [](uint64_t from, uint64_t to, uint64_t efer) {
        return decide({.old_cr0 = from, .written = to, .cr4 = cr4::pae, .efer = efer}).efer;
    };
    CHECK(efer_after(protected_mode, paging, lme | nxe) == (lme | lma | nxe));
    CHECK(efer_after(paging, protected_mode, lme | lma | nxe) == (lme | nxe));
    CHECK(efer_after(paging, paging | cr0::wp, lme | lma) == (lme | lma));
    CHECK(efer_after(protected_mode, paging, nxe) == nxe);
    CHECK(efer_after(paging, protected_mode, nxe) == nxe);
}

TEST_CASE("Reserved low bits stay clear, ET stays set, and neither is a change", "[host][cr0_wp]") {
    constexpr uint64_t defined =
        cr0::pe | cr0::mp | cr0::em | cr0::ts | cr0::et | cr0::ne | cr0::wp | cr0::am | cr0::nw | cr0::cd | cr0::pg;
    CHECK(cr0_kept(0xffffffff) == defined);
    CHECK(cr0_kept(0) == cr0::et);
    CHECK(cr0_kept(all) == (defined | ~uint64_t{0xffffffff}));
    for (uint32_t n = 0; n < 32; ++n) {
        CAPTURE(n);
        uint64_t const b = bit<uint64_t>(n);
        CHECK(cr0_kept(b) == ((b & defined) | cr0::et));
        if ((b & defined) != 0) continue;
        CHECK(decide({.old_cr0 = paging, .written = paging | b}) == cr0_decision{.cr0 = paging});
        CHECK_FALSE(selective_cr0_exit(paging, paging | b));
    }
    CHECK(decide({.old_cr0 = paging, .written = paging & ~cr0::et}) == cr0_decision{.cr0 = paging});
}

TEST_CASE("LMSW writes four bits, and never clears PE", "[host][cr0_wp]") {
    constexpr uint64_t four = cr0::pe | cr0::mp | cr0::em | cr0::ts;
    for (uint64_t old_cr0 : {cr0::et, paging, paging | cr0::mp | cr0::em | cr0::ts})
        for (uint64_t operand = 0; operand < 16; ++operand) {
            CAPTURE(old_cr0, operand);
            uint64_t const expected = (old_cr0 & ~four) | operand | (old_cr0 & cr0::pe);
            CHECK(lmsw_written(old_cr0, operand) == expected);
            CHECK(lmsw_written(old_cr0, operand | 0xfff0) == expected);
        }
}

TEST_CASE("CLTS clears TS and nothing else", "[host][cr0_wp]") {
    for (uint64_t seen : {cr0::et, paging, paging | cr0::mp | cr0::em | cr0::wp})
        for (uint64_t ts : subsets(cr0::ts)) CHECK(clts_written(seen | ts) == seen);
}

TEST_CASE("Roots are told apart by what shadow page tables depend on, and direct ones by nothing", "[host][cr0_wp]") {
    auto const keys = [](bool direct, uint64_t efer) {
        std::set<uint32_t> found;
        for (uint64_t value : subsets(cr0::wp | cr0::pg))
            for (uint64_t cr4 : subsets(cr4::smep | cr4::smap | cr4::pge | cr4::pke)) {
                found.insert(root_key_of(direct, value | protected_mode, cr4, efer).bits);
            }
        return found;
    };
    CHECK(keys(true, 0).size() == 1);
    CHECK(keys(true, nxe) == keys(true, 0));
    CHECK(keys(false, 0).size() == 6);          // without paging; WP; not WP, by SMEP and SMAP
    CHECK(keys(false, nxe) == keys(false, 0));  // 32-bit paging has no XD

    // With WP set, SMEP and SMAP change nothing; without, each does.
    auto const of = [](uint64_t value, uint64_t cr4) { return root_key_of(false, paging | value, cr4, 0); };
    CHECK(of(cr0::wp, cr4::smep | cr4::smap) == of(cr0::wp, 0));
    CHECK(of(0, cr4::smep) != of(0, 0));
    CHECK(of(0, cr4::smap) != of(0, 0));
    CHECK(of(0, cr4::smap) != of(0, cr4::smep));
    CHECK(of(0, 0) != of(cr0::wp, 0));
    // No part of a key is left over from an earlier value of WP.
    CHECK(of(0, cr4::smap) == root_key{root_key::paging | root_key::smap_not_wp});
    CHECK(of(cr0::wp, cr4::smap) == root_key{root_key::paging | root_key::wp});
}

TEST_CASE("Roots are told apart by how the guest's tables are read: levels, width, and what PS and XD mean",
          "[host][cr0_wp]") {
    // The manual's modes, each with the bits that mean something in it. Others must not tell roots apart.
    auto const reading = [](uint64_t cr4, uint64_t efer) {
        auto const set = [](uint64_t v, uint64_t bit) { return (v & bit) != 0; };
        std::string s;
        if (!set(cr4, cr4::pae)) return s = "32-bit", set(cr4, cr4::pse) ? s + ", PS" : s;
        s = !set(efer, lme) ? "PAE" : set(cr4, cr4::la57) ? "5-level" : "4-level";
        return set(efer, nxe) ? s + ", XD" : s;
    };
    struct mode {
        uint64_t cr4, efer;
    };
    std::vector<mode> modes;
    for (uint64_t cr4 : subsets(cr4::pae | cr4::pse | cr4::la57))
        for (uint64_t efer : subsets(lme | nxe))
            if ((efer & lme) == 0 || (cr4 & cr4::pae) != 0) modes.push_back({cr4, efer});
    for (uint64_t wp : subsets(cr0::wp))
        for (mode const& a : modes)
            for (mode const& b : modes) {
                CAPTURE(wp, a.cr4, a.efer, b.cr4, b.efer);
                bool const same =
                    root_key_of(false, paging | wp, a.cr4, a.efer) == root_key_of(false, paging | wp, b.cr4, b.efer);
                CHECK(same == (reading(a.cr4, a.efer) == reading(b.cr4, b.efer)));
                CHECK(root_key_of(true, paging | wp, a.cr4, a.efer) == root_key_of(true, paging, b.cr4, b.efer));
            }
    // LMA comes and goes with PG and LME, and says nothing more.
    CHECK(root_key_of(false, paging, cr4::pae, lme | lma) == root_key_of(false, paging, cr4::pae, lme));
    // And without paging nothing counts.
    for (mode const& m : modes) CHECK(root_key_of(false, protected_mode, m.cr4, m.efer) == root_key{});
}

// --- doing it --------------------------------------------------------------------------------------------------------

TEST_CASE("What was decided is done, in an order in which a failure comes before any change", "[host][cr0_wp]") {
    hardware hw;
    observed const env(hw);
    lazy_cr0 cr0(protected_mode);
    cr0_decision const d{.refresh_permissions = true,
                         .reload_roots = true,
                         .reload_pdptes = true,
                         .flush_guest_tlb = true,
                         .cr0 = paging};
    CHECK(apply(d, cr0, env));
    CHECK(hw.log == std::vector<std::string>{"pdptes", "pdptes_reloaded", "refresh", "permissions_refreshed", "roots",
                                             "roots_reloaded", "flush", "tlb_flushed"});
    CHECK(cr0.read(all, env) == paging);
    hw.log.clear();
    CHECK(apply({.cr0 = protected_mode}, cr0, env));
    CHECK(hw.log.empty());
    CHECK(cr0.read(all, env) == protected_mode);
}

TEST_CASE("Each flag of a decision calls for one thing", "[host][cr0_wp]") {
    std::pair<cr0_decision, char const*> const rows[] = {{{.refresh_permissions = true}, "refresh"},
                                                         {{.reload_roots = true}, "roots"},
                                                         {{.reload_pdptes = true}, "pdptes"},
                                                         {{.flush_guest_tlb = true}, "flush"}};
    for (auto const& [decision, called] : rows) {
        hardware hw;
        lazy_cr0 cr0(0);
        CHECK(apply(decision, cr0, unobserved(hw)));
        CHECK(hw.log == std::vector<std::string>{called});
    }
}

TEST_CASE("AMD lets a guest enter long mode from the TSS of 16 bits that RESET leaves it", "[host][cr0_wp]") {
    // Its VMM leaves tr_16_bit false, whatever TR holds.
    cr0_inputs const in{.old_cr0 = protected_mode, .written = paging, .cr4 = cr4::pae, .efer = lme};
    CHECK_FALSE(in.tr_16_bit);
    cr0_decision const d = decide(in);
    CHECK(d.refusal == cr0_refusal::none);
    CHECK(d.efer == (lme | lma));
}

TEST_CASE("A refused decision, or PAE entries that are not valid, change nothing", "[host][cr0_wp]") {
    hardware hw;
    observed const env(hw);
    lazy_cr0 cr0(protected_mode);
    CHECK_FALSE(apply({.refusal = cr0_refusal::nw_without_cd, .cr0 = paging}, cr0, env));
    CHECK(hw.log == std::vector<std::string>{"refused"});
    CHECK(cr0.read(all, env) == protected_mode);

    hw.log.clear();
    hw.pdptes_valid = false;
    cr0_decision const d = write_cr0(cr0, {.written = paging, .cr4 = cr4::pae, .efer = nxe}, env);
    CHECK(d == cr0_decision{.refusal = cr0_refusal::bad_pdptes, .cr0 = protected_mode, .efer = nxe});
    CHECK(hw.log == std::vector<std::string>{"pdptes", "refused"});
    CHECK(cr0.read(all, env) == protected_mode);

    hw.log.clear();
    CHECK(write_cr0(cr0, {.written = cr0::pg, .cr4 = cr4::pae}, env).refusal == cr0_refusal::pg_without_pe);
    CHECK(hw.log == std::vector<std::string>{"refused"});
}

TEST_CASE("A write to CR0 is judged against what the guest has by now, and by the paging that it is under",
          "[host][cr0_wp]") {
    for (bool direct : {false, true}) {
        CAPTURE(direct);
        vcpu v(virtualization::vmx, direct, paging);
        v.hw.cr0 |= cr0::ts;  // its own in both
        if (direct) v.hw.cr0 |= cr0::wp;
        v.exits();
        // It writes back what it has, and AM. What the caller says of the old value and the paging does not count.
        cr0_decision const d =
            write_cr0(v.cr0, {.old_cr0 = 0, .written = v.hw.cr0 | cr0::am, .cr4 = cr4::pae, .direct = !direct}, v.env);
        CHECK(d == cr0_decision{.cr0 = v.hw.cr0 | cr0::am});
        CHECK(v.hw.log == std::vector<std::string>{"fetched"});
        // And now WP.
        v.forget();
        uint64_t const other = d.cr0 ^ cr0::wp;
        CHECK(write_cr0(v.cr0, {.written = other}, v.env) ==
              cr0_decision{.refresh_permissions = true, .reload_roots = !direct, .cr0 = other});
        CHECK(v.hw.reads == 0);
    }
}

TEST_CASE("A write to CR0 is refused for what its caller says of the guest, as the decision alone is",
          "[host][cr0_wp]") {
    cr0_inputs const legacy{.old_cr0 = paging, .written = paging};
    cr0_inputs const setting{.old_cr0 = protected_mode, .written = paging, .cr4 = cr4::pae, .efer = lme};
    cr0_inputs const compatible{.old_cr0 = paging, .written = protected_mode, .cr4 = cr4::pae, .efer = lme | lma};
    auto const with = [](cr0_inputs in, auto change) { return change(in), in; };
    std::pair<cr0_inputs, cr0_refusal> const rows[] = {
        {legacy, cr0_refusal::none},
        {setting, cr0_refusal::none},
        {compatible, cr0_refusal::none},
        {with(legacy, [](auto& in) { in.written |= bit<uint64_t>(32); }), cr0_refusal::upper_bits},
        {with(legacy, [](auto& in) { in.written |= cr0::nw; }), cr0_refusal::nw_without_cd},
        {with(legacy, [](auto& in) { in.written &= ~cr0::pe; }), cr0_refusal::pg_without_pe},
        {with(setting, [](auto& in) { in.cr4 = 0; }), cr0_refusal::long_mode_without_pae},
        {with(setting, [](auto& in) { in.cs_l = true; }), cr0_refusal::long_mode_with_cs_l},
        {with(setting, [](auto& in) { in.tr_16_bit = true; }), cr0_refusal::long_mode_with_16_bit_tss},
        {with(compatible, [](auto& in) { in.cs_l = true; }), cr0_refusal::leaves_64_bit_mode},
        {with(compatible, [](auto& in) { in.cr4 |= cr4::pcide; }), cr0_refusal::pg_cleared_with_pcide},
        {with(legacy, [](auto& in) { in.cr4 = cr4::cet; }), cr0_refusal::cet_without_wp},
        {with(legacy, [](auto& in) { in.vmx_ones = cr0::am; }), cr0_refusal::vmx_fixed},
        {with(legacy, [](auto& in) { in.vmx_zeros = cr0::ne; }), cr0_refusal::vmx_fixed},
    };
    for (bool direct : {false, true})
        for (auto const& [in, refusal] : rows) {
            CAPTURE(direct, static_cast<int>(refusal), in.vmx_ones, in.vmx_zeros);
            hardware hw;
            hw.direct = direct;
            lazy_cr0 cr0(in.old_cr0);
            cr0_decision const d = write_cr0(cr0, in, unobserved(hw));
            CHECK(d.refusal == refusal);
            CHECK(d == decide(with(in, [&](auto& same) { same.direct = direct; })));
            CHECK(cr0.read(all, unobserved(hw)) == (refusal == cr0_refusal::none ? in.written : in.old_cr0));
        }
}

// --- who owns what ---------------------------------------------------------------------------------------------------

TEST_CASE("A guest may own TS on VMX, WP only without shadow page tables, and on SVM what no intercept covers",
          "[host][cr0_wp]") {
    CHECK(ownable_cr0(virtualization::vmx, true) == (cr0::ts | cr0::wp));
    CHECK(ownable_cr0(virtualization::vmx, false) == cr0::ts);
    CHECK(ownable_cr0(virtualization::svm, true) == 0);
    CHECK(ownable_cr0(virtualization::svm, false) == 0);
    CHECK(ownable_cr0(virtualization::svm_selective, true) == (cr0::ts | cr0::mp));
    CHECK(ownable_cr0(virtualization::svm_selective, false) == (cr0::ts | cr0::mp));
    // A nested guest: what its own hypervisor wants to see wins.
    CHECK(ownable_cr0(virtualization::vmx, true, cr0::wp) == cr0::ts);
    CHECK(ownable_cr0(virtualization::vmx, true, cr0::ts) == cr0::wp);
    CHECK(ownable_cr0(virtualization::vmx, true, all) == 0);
    CHECK(ownable_cr0(virtualization::svm_selective, true, all) == 0);
    CHECK(ownable_cr0(virtualization::vmx, true, ~(cr0::ts | cr0::wp)) == (cr0::ts | cr0::wp));
    // No bit may be the guest's on which the host has to act, but WP, which is read anew.
    for (virtualization by : {virtualization::vmx, virtualization::svm, virtualization::svm_selective})
        for (bool direct : {false, true})
            for (uint64_t owned : subsets(ownable_cr0(by, direct))) {
                cr0_decision const d =
                    decide({.old_cr0 = paging, .written = paging ^ owned, .cr4 = cr4::pae, .direct = direct});
                CHECK_FALSE(d.reload_roots);
                CHECK_FALSE(d.reload_pdptes);
                CHECK_FALSE(d.flush_guest_tlb);
            }
}

TEST_CASE("What SVM's selective intercept gives away is read anew after each exit", "[host][cr0_wp]") {
    for (bool direct : {false, true}) {
        CAPTURE(direct);
        vcpu v(virtualization::svm_selective, direct, paging);
        for (uint64_t bits : {cr0::ts, cr0::mp, cr0::ts | cr0::mp}) {
            v.guest_writes(v.hw.cr0 ^ bits);
            CHECK(v.hw.exits == 0);
            v.cr0.exited();  // for something else
            CHECK(v.cr0.read(bits, v.env) == (v.hw.cr0 & bits));
            CHECK(v.cr0.read(all, v.env) == v.hw.cr0);
        }
        // A write that exits is compared with what the guest has made of them since.
        v.guest_writes(v.hw.cr0 ^ cr0::ts);
        uint64_t const written = v.hw.cr0 ^ cr0::am;
        v.guest_writes(written);
        CHECK(v.hw.exits == 1);
        CHECK(v.cr0.read(all, v.env) == written);
        // And WP always exits.
        v.guest_writes(written ^ cr0::wp);
        CHECK(v.hw.exits == 2);
    }
}

TEST_CASE("SVM's selective intercept lets changes of TS and MP pass, and nothing else", "[host][cr0_wp]") {
    for (uint64_t changed : subsets(cr0::pe | cr0::mp | cr0::em | cr0::ts | cr0::ne | cr0::wp | cr0::am | cr0::pg)) {
        CAPTURE(changed);
        CHECK(selective_cr0_exit(paging, paging ^ changed) == ((changed & ~(cr0::ts | cr0::mp)) != 0));
    }
    CHECK(selective_cr0_exit(paging, paging | bit<uint64_t>(32)));
    CHECK_FALSE(selective_cr0_exit(paging, paging & ~cr0::et));
}

TEST_CASE("A nested guest's write is its hypervisor's exit exactly if it differs from the shadow in a bit of the mask",
          "[host][cr0_wp]") {
    constexpr uint64_t mask = cr0::pg | cr0::wp, shadow = paging | cr0::wp, l1_cr0 = paging;
    // It sees WP set, where its hypervisor has it clear.
    CHECK(nested_vmx_cr0_write(paging | cr0::wp, mask, shadow, l1_cr0) == nested_cr0_write{false, paging});
    CHECK(nested_vmx_cr0_write(paging | cr0::wp | cr0::am, mask, shadow, l1_cr0) ==
          nested_cr0_write{false, paging | cr0::am});
    CHECK(nested_vmx_cr0_write(paging, mask, shadow, l1_cr0).to_l1);
    CHECK(nested_vmx_cr0_write(protected_mode | cr0::wp, mask, shadow, l1_cr0).to_l1);
    CHECK(nested_vmx_cr0_write(0, 0, shadow, l1_cr0) == nested_cr0_write{false, 0});
    for (uint32_t n = 0; n < 64; ++n) {
        CAPTURE(n);
        uint64_t const b = bit<uint64_t>(n);
        CHECK(nested_vmx_cr0_write(shadow ^ b, mask, shadow, l1_cr0).to_l1 == ((b & mask) != 0));
    }
}

TEST_CASE("LMSW and CLTS of a nested guest start from what it sees, and exit by the bits that they touch",
          "[host][cr0_wp]") {
    // The manual's sentences on the two. [sdm3c 26.1.3]
    auto const lmsw_exits = [](uint64_t operand, uint64_t mask, uint64_t shadow) {
        constexpr uint64_t three = cr0::mp | cr0::em | cr0::ts;
        bool const sets_pe = (mask & cr0::pe) != 0 && (operand & cr0::pe) != 0 && (shadow & cr0::pe) == 0;
        return sets_pe || (mask & three & (operand ^ shadow)) != 0;
    };
    auto const clts_exits = [](uint64_t mask, uint64_t shadow) { return (mask & shadow & cr0::ts) != 0; };
    // Its hypervisor owns WP: shows it set, and has it clear.
    constexpr uint64_t has = paging, wp_shadow = paging | cr0::wp;
    uint64_t const seen = nested_vmx_cr0_seen(has, cr0::wp, wp_shadow);
    CHECK(seen == (paging | cr0::wp));
    CHECK(nested_vmx_cr0_write(lmsw_written(seen, 9), cr0::wp, wp_shadow, has) ==
          nested_cr0_write{false, paging | cr0::ts});
    CHECK(nested_vmx_cr0_write(clts_written(seen), cr0::wp, wp_shadow, has) == nested_cr0_write{false, paging});

    constexpr uint64_t touched = cr0::pe | cr0::mp | cr0::em | cr0::ts;
    for (uint64_t mask : subsets(touched | cr0::wp))
        for (uint64_t shadow_bits : subsets(touched | cr0::wp))
            for (uint64_t own : subsets(touched & ~cr0::pe)) {
                uint64_t const l1_cr0 = paging, shadow = (paging & ~cr0::pe) | shadow_bits;
                uint64_t const cr0_now = (l1_cr0 & mask) | ((paging | own) & ~mask);
                uint64_t const sees = nested_vmx_cr0_seen(cr0_now, mask, shadow);
                CAPTURE(mask, shadow, own);
                CHECK(sees == ((cr0_now & ~mask) | (shadow & mask)));
                for (uint64_t operand = 0; operand < 16; ++operand) {
                    auto const w = nested_vmx_cr0_write(lmsw_written(sees, operand), mask, shadow, l1_cr0);
                    uint64_t const changes = (touched & ~cr0::pe & ~mask);
                    if (w.to_l1 != lmsw_exits(operand, mask, shadow)) FAIL("LMSW " << operand);
                    if (w.value != ((cr0_now & ~changes) | (operand & changes))) FAIL("value of LMSW " << operand);
                }
                auto const w = nested_vmx_cr0_write(clts_written(sees), mask, shadow, l1_cr0);
                CHECK(w.to_l1 == clts_exits(mask, shadow));
                CHECK(w.value == (cr0_now & ~(cr0::ts & ~mask)));
            }
}

// --- the lazy copy ---------------------------------------------------------------------------------------------------

TEST_CASE("A bit of the guest's is fetched once after each exit, and only if it is asked for", "[host][cr0_wp]") {
    vcpu v(virtualization::vmx, true, paging);
    v.hw.cr0 |= cr0::wp;
    v.exits();
    CHECK(v.hw.reads == 0);
    CHECK(v.cr0.read(cr0::wp, v.env) == cr0::wp);
    CHECK(v.cr0.read(cr0::ts, v.env) == 0);
    CHECK(v.cr0.read(all, v.env) == (paging | cr0::wp));
    CHECK(v.hw.reads == 1);
    CHECK(v.hw.log == std::vector<std::string>{"fetched"});

    v.hw.cr0 ^= cr0::wp | cr0::ts;
    v.exits();
    CHECK(v.cr0.read(cr0::ts | cr0::pg, v.env) == (cr0::ts | cr0::pg));
    CHECK(v.cr0.read(cr0::wp, v.env) == 0);
    CHECK(v.hw.reads == 2);
}

TEST_CASE("A bit of the host's is never fetched, nor taken from what was", "[host][cr0_wp]") {
    vcpu v(virtualization::vmx, true, paging);
    v.hw.cr0 = cr0::wp;  // and PG, PE and ET gone, which nobody can have done
    for (int exit = 0; exit < 3; ++exit) {
        v.exits();
        CHECK(v.cr0.read(~(cr0::ts | cr0::wp), v.env) == paging);
        CHECK(v.hw.reads == 0);
    }
    CHECK(v.cr0.read(all, v.env) == (paging | cr0::wp));
    CHECK(v.hw.reads == 1);

    vcpu svm(virtualization::svm, true, paging);
    svm.exits();
    CHECK(svm.cr0.read(all, svm.env) == paging);
    CHECK(svm.hw.reads == 0);
}

TEST_CASE("What is set counts at once, until the guest has run", "[host][cr0_wp]") {
    vcpu v(virtualization::vmx, true, paging);
    v.exits();
    v.cr0.set(paging | cr0::wp | cr0::ts);
    CHECK(v.cr0.read(all, v.env) == (paging | cr0::wp | cr0::ts));
    CHECK(v.hw.reads == 0);
    v.hw.cr0 = paging | cr0::wp | cr0::ts;
    v.guest_writes(paging | cr0::wp);
    v.exits();
    CHECK(v.cr0.read(all, v.env) == (paging | cr0::wp));
}

TEST_CASE("A bit that is taken from the guest keeps what the guest wrote last", "[host][cr0_wp]") {
    vcpu v(virtualization::vmx, true, paging);
    v.guest_writes(paging | cr0::wp);
    v.exits();
    v.cr0.give(0, v.env);
    CHECK(v.cr0.owned() == 0);
    v.hw.cr0 = 0;
    v.exits();
    CHECK(v.cr0.read(all, v.env) == (paging | cr0::wp));
    CHECK(v.hw.reads == 1);

    // And the other way: what is given is the host's value until the guest has run.
    v.cr0.give(cr0::ts, v.env);
    CHECK(v.cr0.owned() == cr0::ts);
    CHECK(v.cr0.read(all, v.env) == (paging | cr0::wp));
    CHECK(v.hw.reads == 1);
}

TEST_CASE("A copy of a lazy CR0 has all that was read", "[host][cr0_wp]") {
    vcpu v(virtualization::vmx, true, paging);
    v.guest_writes(paging | cr0::wp);
    v.exits();
    (void)v.cr0.read(all, v.env);
    lazy_cr0 copy = v.cr0;
    hardware elsewhere;
    CHECK(copy.read(all, observed(elsewhere)) == (paging | cr0::wp));
    CHECK(copy.owned() == v.cr0.owned());
    CHECK(elsewhere.reads == 0);
}

// --- what it is for --------------------------------------------------------------------------------------------------

TEST_CASE("A toggle of WP under direct paging is no exit where the guest owns it, and reloads no root anywhere",
          "[host][cr0_wp]") {
    struct row {
        virtualization by;
        bool direct;
        uint32_t exits, refreshed, reloaded, fetched;
    };
    // A write that exits is compared with all of CR0, and TS is the guest's on VMX and by SVM's selective intercept.
    for (row const& r :
         {row{virtualization::vmx, true, 0, 0, 0, 0}, row{virtualization::svm, true, 1000, 1000, 0, 0},
          row{virtualization::vmx, false, 1000, 1000, 1000, 1000}, row{virtualization::svm, false, 1000, 1000, 1000, 0},
          row{virtualization::svm_selective, true, 1000, 1000, 0, 1000}}) {
        CAPTURE(static_cast<int>(r.by), r.direct);
        vcpu v(r.by, r.direct, paging | cr0::wp);
        v.cr4 = cr4::pae | cr4::smep | cr4::smap;
        for (int toggle = 0; toggle < 1000; ++toggle) v.guest_writes(v.hw.cr0 ^ cr0::wp);
        CHECK(v.hw.exits == r.exits);
        CHECK(v.hw.count("permissions_refreshed") == r.refreshed);
        CHECK(v.hw.count("roots_reloaded") == r.reloaded);
        CHECK(v.hw.count("roots") == r.reloaded);
        CHECK(v.hw.count("tlb_flushed") == 0);
        CHECK(v.hw.count("pdptes_reloaded") == 0);
        CHECK(v.hw.reads == r.fetched);
    }
}

TEST_CASE("An access for the guest right after it flipped WP follows the new value, with no flush in between",
          "[host][cr0_wp]") {
    for (virtualization by : {virtualization::vmx, virtualization::svm, virtualization::svm_selective}) {
        vcpu v(by, true, paging | cr0::wp);
        v.cr4 = cr4::pae;
        page_access const supervisor_write{.code = page_fault::write};
        page_rights const read_only{page_fault::user | page_fault::fetch};
        for (int flip = 0; flip < 6; ++flip) {
            CAPTURE(static_cast<int>(by), flip);
            v.guest_writes(v.hw.cr0 ^ cr0::wp);
            v.exits();  // for an instruction that is emulated
            bool const wp = (v.hw.cr0 & cr0::wp) != 0;
            CHECK(access_fault(v.cr0, v.cr4, v.efer, supervisor_write, read_only, v.env) ==
                  (wp ? page_fault::present | page_fault::write : 0));
        }
        CHECK(v.hw.count("flush") == 0);
        CHECK(v.hw.count("roots") == 0);
    }
}

// --- access rights ---------------------------------------------------------------------------------------------------

namespace {

// Section 4.6.1 of the Intel manual as it stands there, case by case.
bool manual_permits(bool wp, bool smep, bool smap, bool nx, bool user_mode, char kind, bool ac, bool user_page,
                    bool writable, bool execute_disable) {
    if (!user_mode) {
        if (kind == 'r') {
            if (!user_page) return true;
            if (!smap) return true;
            return ac;
        }
        if (kind == 'w') {
            if (!user_page) {
                if (!wp) return true;
                return writable;
            }
            if (!wp) {
                if (!smap) return true;
                return ac;
            }
            if (!smap) return writable;
            return ac ? writable : false;
        }
        if (!user_page) {
            if (!nx) return true;
            return !execute_disable;
        }
        if (smep) return false;
        if (!nx) return true;
        return !execute_disable;
    }
    if (!user_page) return false;
    if (kind == 'r') return true;
    if (kind == 'w') return writable;
    if (!nx) return true;
    return !execute_disable;
}

}  // namespace

TEST_CASE("The table of access rights says what the manual says, for every rule, access and page", "[host][cr0_wp]") {
    uint32_t compared = 0;
    for (uint64_t value : subsets(cr0::wp))
        for (uint64_t cr4 : subsets(cr4::smep | cr4::smap | cr4::pae))
            for (uint64_t efer : {uint64_t{0}, nxe})
                for (char kind : {'r', 'w', 'x'})
                    for (unsigned row = 0; row < 32; ++row) {
                        bool const user = (row & 1) != 0, ac = (row & 2) != 0;
                        bool const writable = (row & 4) != 0, user_page = (row & 8) != 0, execute = (row & 16) != 0;
                        page_rights const page{(writable ? page_fault::write : 0) | (user_page ? page_fault::user : 0) |
                                               (execute ? page_fault::fetch : 0)};
                        uint32_t const code = (user ? page_fault::user : 0) | (kind == 'w' ? page_fault::write : 0) |
                                              (kind == 'x' ? page_fault::fetch : 0);
                        bool const nx = (cr4 & cr4::pae) != 0 && efer == nxe;
                        bool const smep = (cr4 & cr4::smep) != 0;
                        CAPTURE(value, cr4, efer, kind, user, ac, writable, user_page, execute);
                        uint32_t const fault =
                            access_fault(paging_rules_of(paging | value, cr4, efer), {code, ac}, page);
                        bool const permitted = manual_permits(value != 0, smep, (cr4 & cr4::smap) != 0, nx, user, kind,
                                                              ac, user_page, writable, !execute);
                        // Section 4.7: a fetch is only told where the CPU can forbid one.
                        uint32_t const told = kind == 'x' && !nx && !smep ? code & ~page_fault::fetch : code;
                        CHECK(fault == (permitted ? 0 : page_fault::present | told));
                        ++compared;
                    }
    CHECK(compared == 2 * 8 * 2 * 3 * 32);
}

TEST_CASE("An access that the CPU makes for itself is a supervisor's, and AC does not excuse it", "[host][cr0_wp]") {
    paging_rules const smap{paging_rules::smap};
    page_rights const users{page_fault::write | page_fault::user | page_fault::fetch};
    CHECK(access_fault(smap, {.code = 0, .ac = true}, users) == 0);
    CHECK(access_fault(smap, {.code = 0, .ac = false}, users) == page_fault::present);
}

TEST_CASE("Bits of an error code that say nothing of the access are not looked at, and not given back",
          "[host][cr0_wp]") {
    page_rights const supervisors{page_fault::write | page_fault::fetch};
    uint32_t const others = ~(page_fault::write | page_fault::user | page_fault::fetch);
    for (uint32_t kind : {0u, page_fault::write, page_fault::fetch}) {
        CHECK(access_fault({paging_rules::smep}, {.code = kind | others}, supervisors) == 0);
        CHECK(access_fault({paging_rules::smep}, {.code = kind | page_fault::user | others}, supervisors) ==
              (page_fault::present | page_fault::user | kind));
    }
}

TEST_CASE("Bits of the rules that no rule has are not looked at", "[host][cr0_wp]") {
    for (uint32_t rules = 0; rules < 16; ++rules)
        for (uint32_t code :
             {0u, page_fault::write, page_fault::fetch, page_fault::user, page_fault::user | page_fault::write})
            for (uint32_t rights : {0u, page_fault::write, page_fault::user, page_fault::user | page_fault::fetch}) {
                CAPTURE(rules, code, rights);
                CHECK(access_fault({rules | ~15u}, {.code = code}, {rights}) ==
                      access_fault({rules}, {.code = code}, {rights}));
            }
    // All rules hold: a supervisor's write to a read-only page of its own.
    CHECK(access_fault({~0u}, {.code = page_fault::write}, {}) == (page_fault::present | page_fault::write));
    CHECK(access_fault({~0u}, {.code = page_fault::write}, {page_fault::write}) == 0);
}

TEST_CASE("A check for the guest reads WP as it is, once after each exit, and not at all where it is the host's",
          "[host][cr0_wp]") {
    page_access const supervisor_write{.code = page_fault::write};
    page_rights const read_only{page_fault::user | page_fault::fetch};
    auto const checked = [&](vcpu& v) {
        return access_fault(v.cr0, v.cr4, v.efer, supervisor_write, read_only, v.env) != 0;
    };
    vcpu v(virtualization::vmx, true, paging);
    v.guest_writes(paging | cr0::wp);
    v.exits();
    for (int check = 0; check < 5; ++check) CHECK(checked(v));
    CHECK(v.hw.reads == 1);
    v.exits();
    CHECK(checked(v));
    CHECK(v.hw.reads == 2);

    vcpu shadow(virtualization::vmx, false, paging);
    shadow.exits();
    CHECK_FALSE(checked(shadow));
    CHECK(shadow.hw.reads == 0);
}

TEST_CASE("A check for the guest uses its CR4 and EFER as they are handed in", "[host][cr0_wp]") {
    vcpu v(virtualization::svm, true, paging | cr0::wp);
    page_rights const users{page_fault::write | page_fault::user};
    auto const fault = [&](uint64_t cr4, uint64_t efer, uint32_t code) {
        return access_fault(v.cr0, cr4, efer, {.code = code}, users, v.env);
    };
    CHECK(fault(cr4::pae, 0, 0) == 0);
    CHECK(fault(cr4::pae | cr4::smap, 0, 0) == page_fault::present);
    CHECK(fault(cr4::pae, 0, page_fault::fetch) == 0);
    CHECK(fault(cr4::pae, nxe, page_fault::fetch) == (page_fault::present | page_fault::fetch));
    CHECK(fault(0, nxe, page_fault::fetch) == 0);
    CHECK(fault(cr4::smep, 0, page_fault::fetch) == (page_fault::present | page_fault::fetch));
}

TEST_CASE("Without an observer a write to CR0 does the same", "[host][cr0_wp]") {
    hardware hw;
    unobserved const env(hw);
    lazy_cr0 cr0(paging);
    cr0.give(cr0::wp, env);
    hw.cr0 = paging | cr0::wp;
    cr0.exited();
    CHECK(cr0.read(cr0::wp, env) == cr0::wp);
    CHECK(write_cr0(cr0, {.written = protected_mode}, env).flush_guest_tlb);
    CHECK(write_cr0(cr0, {.written = cr0::pg}, env).refusal == cr0_refusal::pg_without_pe);
    CHECK(hw.log == std::vector<std::string>{"refresh", "flush"});
}

// All of it can be had at compile time.
static_assert(decide({.old_cr0 = paging, .written = paging | cr0::wp}).reload_roots);
static_assert(!decide({.old_cr0 = paging, .written = paging | cr0::wp, .direct = true}).reload_roots);
static_assert(access_fault({paging_rules::wp}, {.code = page_fault::write}, {}) ==
              (page_fault::present | page_fault::write));
static_assert(access_fault({}, {.code = page_fault::write}, {}) == 0);
static_assert(sizeof(lazy_cr0) == 24 && trivially_copyable<lazy_cr0> && trivially_copyable<cr0_decision>);
