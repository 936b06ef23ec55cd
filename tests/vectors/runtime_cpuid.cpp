// SPDX-License-Identifier: MIT
#include <pvx/host/kvm_leaves.hpp>
#include <pvx/host/runtime_cpuid.hpp>

#include <nlohmann/json.hpp>

#include <vector>

#include "vectors.hpp"

using namespace pvx;
using namespace pvx::host;
using pvx_test::hex;
using json = nlohmann::ordered_json;

namespace {

json words(abi::cpuid_regs const& regs) { return {hex(regs.eax), hex(regs.ebx), hex(regs.ecx), hex(regs.edx)}; }

// --- cpuid_lookup ----------------------------------------------------------------------------------------------------

constexpr apic_id id{300};
constexpr uint32_t xsave = 1u << 26;

std::vector<cpuid_entry> entries_of(abi::cpuid_regs const& vendor, uint32_t highest_extended,
                                    std::vector<cpuid_entry> const& more = {}) {
    std::vector<cpuid_entry> list{{0, 0, vendor},
                                  {1, 0, {0x11, 0x12, 0x13, 0x14}},
                                  {4, 0, {0x121, 0x122, 0x123, 0}},
                                  {4, 1, {0x143, 0x144, 0x145, 0}},
                                  {7, 0, {1, 0x72, 0x73, 0x74}},
                                  {7, 1, {0x75, 0, 0, 0}},
                                  {0xb, 0, {1, 2, 0x100, 0}},
                                  {0xb, 1, {7, 16, 0x201, 0}},
                                  {0x40000000, 0, {0x40000001, 0x4b4d564b, 0x564b4d56, 0x4d}},
                                  {0x40000001, 0, {0x80, 0, 0, 1}},
                                  {0x80000000, 0, {highest_extended, 0, 0, 0}},
                                  {0x80000001, 0, {0x81, 0x82, 0x83, 0x84}}};
    list.insert(list.end(), more.begin(), more.end());
    return list;
}

struct made_up {
    char const* name;
    std::vector<cpuid_entry> entries;
};

void make_lookup(json& out) {
    out["about"] =
        "What CPUID answers a guest, from a table of entries. 'tables' has the entries of each: leaf, sub-leaf and "
        "[EAX, EBX, ECX, EDX]; the vCPU's x2APIC id is 0x12c. A case is a table, EAX and ECX as the guest sets them, "
        "and "
        "the answer. Leaves without sub-leaves ignore ECX; a missing sub-leaf is zeros, in the leaves 0xb, 0x1f and "
        "0x80000026 with ECX[7:0] and the id; leaf 1 has 8 bits of the id in EBX[31:24], leaf 0x8000001e has it in "
        "EAX; a leaf out of range that has no entry is the highest basic leaf on Intel, zeros on AMD and Hygon; the "
        "ranges 0x40000000 and 0xc0000000 never are another leaf.";
    made_up const tables[] = {{"intel", entries_of({0xb, 0x756e6547, 0x6c65746e, 0x49656e69}, 0x80000008)},
                              {"intel, highest basic leaf 1",
                               {{0, 0, {1, 0x756e6547, 0x6c65746e, 0x49656e69}},
                                {1, 0, {1, 2, 3, 4}},
                                {4, 0, {0x121, 0x122, 0x123, 0}},
                                {4, 1, {0x143, 0x144, 0x145, 0}}}},
                              {"amd", entries_of({0xb, 0x68747541, 0x444d4163, 0x69746e65}, 0x80000026,
                                                 {{0x8000001e, 0, {0, 0x100, 0, 0}},
                                                  {0x80000026, 0, {1, 2, 0x100, 0}},
                                                  {0x80000026, 1, {4, 16, 0x201, 0}}})},
                              {"hygon", entries_of({0xb, 0x6f677948, 0x656e6975, 0x6e65476e}, 0x80000008)}};
    constexpr struct {
        uint32_t leaf, subleaf;
    } questions[] = {{0, 0},          {1, 0},          {1, 0xffffffff}, {3, 0},          {4, 0},
                     {4, 1},          {4, 2},          {7, 0},          {7, 1},          {7, 2},
                     {0xb, 0},        {0xb, 1},        {0xb, 2},        {0xb, 0x12345},  {0xc, 0},
                     {0xc, 1},        {0xc, 2},        {0x1f, 0},       {0x1f, 1},       {0x40000000, 0},
                     {0x40000001, 5}, {0x40000002, 0}, {0x40000100, 0}, {0x50000000, 0}, {0x80000000, 0},
                     {0x80000001, 9}, {0x80000002, 0}, {0x80000009, 0}, {0x80000009, 1}, {0xc0000000, 0},
                     {0x8000001e, 0}, {0x80000026, 0}, {0x80000026, 1}, {0x80000026, 4}};
    json cases = json::array();
    for (made_up const& t : tables) {
        json rows = json::array();
        for (cpuid_entry const& e : t.entries)
            rows.push_back({{"leaf", hex(e.leaf)}, {"subleaf", hex(e.subleaf)}, {"regs", words(e.regs)}});
        out["tables"].push_back({{"name", t.name}, {"entries", rows}});
        cpuid_table<16> table(id);
        if (table.assign(t.entries.data(), static_cast<uint32_t>(t.entries.size())) != status::ok) continue;
        for (auto const& [leaf, subleaf] : questions)
            cases.push_back({{"table", t.name},
                             {"eax", hex(leaf)},
                             {"ecx", hex(subleaf)},
                             {"answer", words(table.cpuid(leaf, subleaf))}});
    }
    out["cases"] = cases;
}

vector_file const lookup{"cpuid_lookup", make_lookup};

// --- cpuid_changing_bits ---------------------------------------------------------------------------------------------

struct sizes {
    uint32_t standard_size(uint64_t) const { return 832; }
    uint32_t compacted_size(uint64_t) const { return 880; }
};
struct environment {
    cpuid_inputs registers;

    cpuid_inputs read_cpuid_inputs() const { return registers; }
    sizes xstate_sizes() const { return {}; }
};

void make_changing_bits(json& out) {
    out["about"] =
        "Bits of CPUID that follow other registers of the guest, whose APIC id is 0x12c. A case has 'given', the "
        "registers [EAX, EBX, ECX, EDX] as the VMM gave them, of leaf 1, of leaf 7 sub-leaf 0, and of leaf 0xd "
        "sub-leaves 0 and 1; the guest's CR4, IA32_APIC_BASE and IA32_MISC_ENABLE, and whether MONITOR follows the "
        "latter; and 'answer', the same leaves as the guest reads them. The XSAVE area takes 832 bytes in the "
        "standard format for its XCR0, and 880 in the compacted one for its XCR0 and IA32_XSS. 'leaf_80000001' is the "
        "same of that leaf, by the vendor in leaf 0: on AMD and Hygon EDX[9] repeats the APIC bit of leaf 1.";
    out["cases"] = json::array();
    constexpr abi::cpuid_regs ones{~0u, ~0u, ~0u, ~0u};
    constexpr cpuid_entry shown[] = {{1, 0, {}}, {7, 0, {}}, {0xd, 0, {}}, {0xd, 1, {}}};
    auto const add = [&](std::vector<cpuid_entry> const& given, cpuid_inputs const& in, mwait_bit mwait) {
        runtime_cpuid<environment, 4> cpuid({in}, id, mwait);
        if (cpuid.replace(given.data(), 4) != status::ok) return;
        json row{{"cr4", hex(in.cr4)},
                 {"apic_base", hex(in.apic_base)},
                 {"misc_enable", hex(in.misc_enable)},
                 {"monitor_follows", mwait == mwait_bit::follows_misc_enable}};
        json before = json::array(), after = json::array();
        for (cpuid_entry const& e : given) before.push_back(words(e.regs));
        for (cpuid_entry const& e : shown) after.push_back(words(cpuid.read(e.leaf, e.subleaf)));
        row["given"] = before;
        row["answer"] = after;
        out["cases"].push_back(row);
    };
    using enum mwait_bit;
    for (abi::cpuid_regs const& all : {abi::cpuid_regs{0, 0, xsave, 0}, ones}) {
        std::vector<cpuid_entry> const given{{1, 0, all}, {7, 0, all}, {0xd, 0, all}, {0xd, 1, all}};
        for (uint64_t cr4 : {uint64_t{0}, abi::cr4::osxsave, abi::cr4::pke, ~uint64_t{0}})
            add(given, {cr4, 7, 0, 0, 0}, follows_misc_enable);
        for (uint64_t base : {abi::msr::apic_base::enable, ~abi::msr::apic_base::enable})
            add(given, {0, 7, 0, base, 0}, follows_misc_enable);
        for (mwait_bit mwait : {follows_misc_enable, as_given})
            for (uint64_t misc : {uint64_t{0}, abi::msr::misc_enable::monitor_enable})
                add(given, {0, 7, 0, 0, misc}, mwait);
    }
    for (uint32_t ecx : {0u, xsave})
        for (uint32_t eax : {0u, 1u, 2u, 4u, 8u})
            add({{1, 0, {0, 0, ecx, 0}}, {7, 0, {}}, {0xd, 0, {7, 1, 2, 0}}, {0xd, 1, {eax, 3, 0, 0}}}, {0, 7, 0, 0, 0},
                as_given);
    constexpr struct {
        char const* name;
        abi::cpuid_regs leaf_0;
    } vendors[] = {{"intel", {1, 0x756e6547, 0x6c65746e, 0x49656e69}},
                   {"amd", {1, 0x68747541, 0x444d4163, 0x69746e65}},
                   {"hygon", {1, 0x6f677948, 0x656e6975, 0x6e65476e}}};
    for (auto const& [name, leaf_0] : vendors)
        for (uint32_t edx : {0u, ~0u})
            for (uint64_t base : {uint64_t{0}, abi::msr::apic_base::enable}) {
                cpuid_entry const given[] = {{0, 0, leaf_0}, {0x80000001, 0, {1, 2, 3, edx}}};
                runtime_cpuid<environment, 4> cpuid({{0, 7, 0, base, 0}}, id);
                if (cpuid.replace(given, 2) != status::ok) continue;
                out["leaf_80000001"].push_back({{"vendor", name},
                                                {"apic_base", hex(base)},
                                                {"given", words(given[1].regs)},
                                                {"answer", words(cpuid.read(0x80000001, 0))}});
            }
}

vector_file const changing_bits{"cpuid_changing_bits", make_changing_bits};

// --- kvm_leaves ------------------------------------------------------------------------------------------------------

void make_kvm(json& out) {
    out["about"] =
        "KVM's CPUID leaves 0x40000000 and 0x40000001 as a host should offer them: 'features' is what its code can do, "
        "as "
        "bits of EAX of the second leaf. No kick (bit 7) where HLT does not exit; no kick, IPIs (11), yield (13), "
        "asynchronous page faults (4, 10, 14) and no EOI without an exit (6) where the host does not have the APIC; no "
        "kinds of asynchronous page faults (10, 14) without those (4); no TLB flush (9) without the steal-time page "
        "(5); vCPUs that are never preempted are told by bit 0 of EDX. 'leaves' are [EAX, EBX, ECX, EDX] of both.";
    out["cases"] = json::array();
    for (uint32_t features : {0x01007efbu, 0x01007edbu, 0x01007eebu, 0u})
        for (unsigned row = 0; row < 8; ++row) {
            kvm_host const host{features, (row & 1) != 0, (row & 2) != 0, (row & 4) != 0};
            auto const leaves = make_kvm_leaves(host);
            out["cases"].push_back({{"features", hex(features)},
                                    {"hlt_exits", host.hlt_exits},
                                    {"apic_map", host.apic_map},
                                    {"dedicated", host.dedicated},
                                    {"leaves", {words(leaves.entries[0].regs), words(leaves.entries[1].regs)}}});
        }
}

vector_file const kvm{"kvm_leaves", make_kvm};

}  // namespace
