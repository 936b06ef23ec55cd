// SPDX-License-Identifier: MIT

/// \file
/// CPUID: any entries that a user-level VMM sets, any query of the guest's, and changes of the guest's registers in
/// between.

#include <vector>

#include <pvx/host/runtime_cpuid.hpp>
#include <pvx/host/xstate_layout.hpp>

#include "input.hpp"

using namespace pvx;
using namespace pvx_fuzz;

namespace {

/// The vCPU's registers.
struct environment {
    host::cpuid_inputs* now;
    host::xstate_layout const* layout;

    host::cpuid_inputs read_cpuid_inputs() const { return *now; }
    host::xstate_layout const& xstate_sizes() const { return *layout; }
};

constexpr uint32_t leaves[] = {0,          1,          2,          4,          7,          0xb,        0xd,
                               0x1f,       0x40000000, 0x40000001, 0x80000000, 0x80000001, 0x8000001d, 0x80000026,
                               0xc0000000, 0xffffffff, 0x80000008, 0x14,       0x8000001e};

std::vector<host::cpuid_entry> make_entries(input& in) {
    std::vector<host::cpuid_entry> entries(in.below(40));
    for (host::cpuid_entry& e : entries) {
        e.leaf = in.one_of(leaves);
        e.subleaf = in.below(4) == 0 ? in.below(5) : 0;
        e.regs = {in.take<uint32_t>(), in.take<uint32_t>(), in.take<uint32_t>(), in.take<uint32_t>()};
        if (e.leaf == 0 && in.below(2) == 0) e.regs = {in.below(0x20), 0x756e6547, 0x6c65746e, 0x49656e69};
        if (e.leaf == 0 && in.below(3) == 0) e.regs = {in.below(0x20), 0x68747541, 0x444d4163, 0x69746e65};
    }
    return entries;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(uint8_t const* data, size_t size) {
    input in(data, size);
    host::cpuid_inputs now{};
    static host::xstate_layout const layout{};
    using table = host::runtime_cpuid<environment, 64>;
    apic_id const id{in.take<uint32_t>()};
    host::mwait_bit const mwait = in.below(2) == 0 ? host::mwait_bit::as_given : host::mwait_bit::follows_misc_enable;
    static table cpuid(environment{}, apic_id{0}, mwait);
    cpuid = table(environment{&now, &layout}, id, mwait);

    while (!in.empty()) {
        switch (in.below(6)) {
            case 0: {
                auto const entries = make_entries(in);
                auto const before = cpuid.table().size();
                auto const count = static_cast<uint32_t>(entries.size());
                if (cpuid.replace(entries.data(), count) != status::ok) {
                    expect(cpuid.table().size() == before, "refused entries change nothing");
                    break;
                }
                expect(cpuid.table().size() == count, "all entries are there");
                for (host::cpuid_entry const& e : entries)
                    expect(cpuid.table().find(e.leaf, e.subleaf) != 0, "each entry is found");
                expect(cpuid.matches(entries.data(), count), "the entries that were set are those that are there");
                break;
            }
            case 1:
                now = {in.take<uint64_t>(), in.take<uint64_t>(), in.take<uint64_t>(), in.take<uint64_t>(),
                       in.take<uint64_t>()};
                cpuid.mark_changed();
                break;
            case 2: {
                uint32_t const leaf = in.one_of(leaves), subleaf = in.take<uint32_t>();
                auto const regs = cpuid.read(leaf, subleaf);
                expect(regs == cpuid.table().cpuid(leaf, subleaf), "the guest reads what is in the table");
                uint32_t const n = cpuid.table().find(leaf, subleaf);
                if (n != 0) expect(regs == cpuid.table()[n].regs, "an entry that is there is the answer");
                break;
            }
            case 3: {
                auto const regs = cpuid.read(1, in.take<uint32_t>());
                if (cpuid.table().find(1, 0) == 0) break;
                expect((regs.ecx >> 27 & 1) == (now.cr4 >> 18 & 1), "OSXSAVE is CR4's");
                expect((regs.edx >> 9 & 1) == (now.apic_base >> 11 & 1), "APIC is that of IA32_APIC_BASE");
                break;
            }
            case 4: {
                static host::cpuid_state<64> state;
                cpuid.save(state);
                uint32_t const leaf = in.one_of(leaves), subleaf = in.below(8);
                auto const before = cpuid.read(leaf, subleaf);
                expect(cpuid.restore(state) == status::ok, "a saved state is taken");
                expect(cpuid.read(leaf, subleaf) == before, "a restored table gives the same answers");
                break;
            }
            case 5: expect(cpuid.all_changes_marked(), "nothing changed without a mark"); break;
        }
    }
    return 0;
}
