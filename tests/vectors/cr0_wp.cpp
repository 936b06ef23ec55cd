// SPDX-License-Identifier: MIT
#include <pvx/host/access_rights.hpp>
#include <pvx/host/cr0_wp.hpp>

#include <nlohmann/json.hpp>

#include <string>

#include "vectors.hpp"

using namespace pvx;
using namespace pvx::host;
using namespace pvx::abi;
using pvx_test::hex;
namespace efer = pvx::abi::msr::efer;
using json = nlohmann::ordered_json;

namespace {

// --- cr0_writes ------------------------------------------------------------------------------------------------------

json word(cr0_refusal r) {
    switch (r) {
        case cr0_refusal::none: return nullptr;
        case cr0_refusal::upper_bits: return "one of bits 63:32";
        case cr0_refusal::nw_without_cd: return "NW without CD";
        case cr0_refusal::pg_without_pe: return "PG without PE";
        case cr0_refusal::long_mode_without_pae: return "PG set with LME and without PAE";
        case cr0_refusal::long_mode_with_cs_l: return "PG set with LME and CS.L";
        case cr0_refusal::long_mode_with_16_bit_tss: return "PG set with LME and a 16-bit TSS";
        case cr0_refusal::leaves_64_bit_mode: return "PG cleared in 64-bit mode";
        case cr0_refusal::pg_cleared_with_pcide: return "PG cleared with PCIDE";
        case cr0_refusal::cet_without_wp: return "WP clear with CET";
        case cr0_refusal::vmx_fixed: return "a bit that VMX operation fixes";
        case cr0_refusal::bad_pdptes: break;
    }
    return "?";
}

json outcome(cr0_inputs const& in) {
    cr0_decision const d = decide(in);
    if (d.refusal != cr0_refusal::none) return {{"refused", word(d.refusal)}};
    json work = json::array();
    if (d.reload_pdptes) work.push_back("reload_pdptes");
    if (d.refresh_permissions) work.push_back("refresh_permissions");
    if (d.reload_roots) work.push_back("reload_roots");
    if (d.flush_guest_tlb) work.push_back("flush_guest_tlb");
    return {{"cr0", hex(d.cr0)}, {"efer", hex(d.efer)}, {"do", work}};
}

struct mode {
    char const* name;
    uint64_t cr0, cr4, efer;
    bool cs_l;
};

constexpr uint64_t unpaged = cr0::pe | cr0::et | cr0::ne, paged = unpaged | cr0::pg | cr0::wp;
constexpr uint64_t lme = efer::long_mode_enable, lma = efer::long_mode_active, nxe = efer::no_execute_enable;

constexpr mode modes[] = {
    {"real mode", cr0::et, 0, 0, false},
    {"protected, no paging", unpaged, 0, 0, false},
    {"protected, about to enter PAE paging", unpaged, cr4::pae, nxe, false},
    {"protected, about to enter long mode", unpaged, cr4::pae, lme | nxe, false},
    {"protected, LME without PAE", unpaged, 0, lme, false},
    {"32-bit paging", paged, cr4::pse, 0, false},
    {"PAE paging, SMEP and SMAP", paged, cr4::pae | cr4::smep | cr4::smap, nxe, false},
    {"compatibility mode", paged, cr4::pae, lme | lma | nxe, false},
    {"64-bit mode, PCIDE, SMEP, SMAP", paged, cr4::pae | cr4::pcide | cr4::smep | cr4::smap, lme | lma | nxe, true},
    {"64-bit mode, CET", paged, cr4::pae | cr4::cet, lme | lma | nxe, true},
};

struct change {
    char const* name;
    uint64_t flips;
};

constexpr change changes[] = {
    {"none", 0},
    {"WP", cr0::wp},
    {"PG", cr0::pg},
    {"PG and WP", cr0::pg | cr0::wp},
    {"PG and PE", cr0::pg | cr0::pe},
    {"CD", cr0::cd},
    {"CD and NW", cr0::cd | cr0::nw},
    {"NW", cr0::nw},
    {"TS", cr0::ts},
    {"PE", cr0::pe},
    {"ET and reserved low bits", cr0::et | bit_range<uint64_t>(6, 15) | bit<uint64_t>(17)},
    {"bit 32", bit<uint64_t>(32)},
};

void make_cr0_writes(json& out) {
    out["about"] =
        "What a hypervisor does after a guest's MOV to CR0, by the mode it is in: with direct paging (EPT, nested "
        "paging) and with shadow page tables. 'refused' is a general-protection fault. 'do' is all there is to do, in "
        "this order; reload_pdptes can refuse the write. Flips are relative to cr0.";
    json& cases = out["cases"] = json::array();
    for (mode const& m : modes)
        for (change const& c : changes) {
            cr0_inputs in{.old_cr0 = m.cr0, .written = m.cr0 ^ c.flips, .cr4 = m.cr4, .efer = m.efer, .cs_l = m.cs_l};
            json one = {{"mode", m.name}, {"cr0", hex(m.cr0)}, {"cr4", hex(m.cr4)}, {"efer", hex(m.efer)}};
            one["cs_l"] = m.cs_l;
            one["flips"] = c.name;
            one["written"] = hex(in.written);
            one["shadow"] = outcome(in);
            in.direct = true;
            one["direct"] = outcome(in);
            cases.push_back(one);
        }
    cr0_inputs const tss{.old_cr0 = unpaged, .written = paged, .cr4 = cr4::pae, .efer = lme, .tr_16_bit = true};
    cases.push_back({{"mode", "about to enter long mode with a 16-bit TSS, on Intel; AMD does not look at it"},
                     {"cr0", hex(tss.old_cr0)},
                     {"cr4", hex(tss.cr4)},
                     {"efer", hex(tss.efer)},
                     {"cs_l", false},
                     {"flips", "PG and WP"},
                     {"written", hex(tss.written)},
                     {"shadow", outcome(tss)},
                     {"direct", outcome(tss)}});
}

vector_file const cr0_writes{"cr0_writes", make_cr0_writes};

// --- access_rights ---------------------------------------------------------------------------------------------------

void make_access_rights(json& out) {
    out["about"] =
        "Which accesses fault, for each setting of CR0.WP, CR4.SMEP, CR4.SMAP and of CR4.PAE with EFER.NXE (nx). Pages "
        "are named by the rights that all entries on the way to them give: w(rite), u(ser), x(ecute), or - for none of "
        "these. 'ac' is EFLAGS.AC on an access that the CPU does not make for itself. Protection keys and shadow "
        "stacks "
        "are apart. 'code' is the page-fault error code.";
    json& cases = out["cases"] = json::array();
    for (uint32_t r = 0; r < 16; ++r) {
        paging_rules const rules{r};
        for (bool user : {false, true})
            for (char const* kind : {"read", "write", "fetch"})
                for (bool ac : {false, true}) {
                    page_access access{.code = user ? page_fault::user : 0, .ac = ac};
                    if (kind[0] == 'w') access.code |= page_fault::write;
                    if (kind[0] == 'f') access.code |= page_fault::fetch;
                    json faulting = json::array();
                    uint32_t code = 0;
                    for (uint32_t p = 0; p < 8; ++p) {
                        bool const write = (p & 1) != 0, users = (p & 2) != 0, execute = (p & 4) != 0;
                        page_rights const page{(write ? page_fault::write : 0) | (users ? page_fault::user : 0) |
                                               (execute ? page_fault::fetch : 0)};
                        uint32_t const fault = access_fault(rules, access, page);
                        if (fault == 0) continue;
                        code = fault;
                        std::string name;
                        if (write) name += 'w';
                        if (users) name += 'u';
                        if (execute) name += 'x';
                        faulting.push_back(name.empty() ? "-" : name);
                    }
                    json one = {{"wp", (r & paging_rules::wp) != 0},
                                {"smep", (r & paging_rules::smep) != 0},
                                {"smap", (r & paging_rules::smap) != 0},
                                {"nx", (r & paging_rules::nx) != 0}};
                    one["user"] = user;
                    one["access"] = kind;
                    one["ac"] = ac;
                    one["faults_on"] = faulting;
                    if (code != 0) one["code"] = code;
                    cases.push_back(one);
                }
    }
}

vector_file const access_rights{"access_rights", make_access_rights};

}  // namespace
