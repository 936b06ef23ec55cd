// SPDX-License-Identifier: MIT
#include <pvx/host/xstate_layout.hpp>

#include <memory>
#include <set>

#include "support/xstate_corpus.hpp"
#include "vectors.hpp"

using namespace pvx::host;
using pvx_test::hex;
using json = nlohmann::ordered_json;

namespace {

using enum xsave_format;
constexpr uint64_t one = 1;

// Of a layout: what is published of such CPUs, every component alone, and with all below it, and all bits that are not.
std::set<uint64_t> masks_of(xstate_layout const& layout) {
    std::set<uint64_t> masks{0x0,   0x1,     0x3,     0x7,     0x1f,    0xe7,          0x207,
                             0x2e7, 0x602e7, 0xe02e7, 0x61ae7, 0x20007, one << 63 | 7, ~uint64_t{0}};
    for (uint32_t n = 2; n < 20; ++n) {
        if ((layout.components() >> n & 1) == 0) continue;
        masks.insert(
            {one << n, layout.components() & ((one << n) * 2 - 1), layout.user_components() & ((one << n) * 2 - 1)});
    }
    return masks;
}

void make_sizes(json& out) {
    out["about"] =
        "Bytes of an XSAVE area for the components in mask (XCR0, or XCR0 | IA32_XSS), in both formats, for CPUs whose "
        "sub-leaves of CPUID.0xD are in layouts: EAX, EBX, ECX. Bits 0, 1 and 63, and those without a sub-leaf, count "
        "for "
        "nothing; supervisor components (ECX bit 0) not in the standard format. offsets: where the components lie, in "
        "the "
        "order of their numbers, as [number, standard, compacted]; standard 0: no place. buffer: what a save interface "
        "with 4096 bytes at least takes. Without XSAVE every size is 512.";
    for (pvx_test::xstate_cpu const& cpu : pvx_test::xstate_corpus) {
        auto const layout = std::make_unique<xstate_layout>();
        (void)layout->set_up(pvx_test::xstate_cpuid{&cpu});
        json subleaves = json::object();
        for (pvx_test::xstate_subleaf const& s : cpu.list)
            if (s.size != 0) subleaves[std::to_string(s.number)] = {s.size, s.offset, s.flags};
        out["layouts"].push_back({{"name", cpu.name}, {"origin", cpu.origin}, {"subleaves", subleaves}});
        for (uint64_t mask : masks_of(*layout)) {
            json offsets = json::array();
            for (uint32_t n = 2; n < 20; ++n)
                if (uint32_t const place = layout->offset<compacted>(n, mask); place != 0)
                    offsets.push_back({n, layout->offset<standard>(n, mask), place});
            auto const size = layout->required_size<standard>(mask);
            out["cases"].push_back({{"layout", cpu.name},
                                    {"mask", hex(mask)},
                                    {"standard", size.value},
                                    {"compacted", layout->required_size<compacted>(mask).value},
                                    {"buffer", make_xsave_buffer(size).size},
                                    {"offsets", offsets}});
        }
    }
}
vector_file const sizes{"xsave_sizes", make_sizes};

void make_validity(json& out) {
    out["about"] =
        "Whether XSETBV takes value as XCR0 where EDX:EAX of sub-leaf 0 of CPUID.0xD, the CPU's or the guest's, is "
        "supported; "
        "constrained is the largest value that it takes, of the components in value, with x87.";
    constexpr uint64_t values[] = {
        0x0,     0x1,     0x2,      0x3,           0x4,           0x5,           0x6,         0x7,     0x9,
        0xb,     0xf,     0x17,     0x19,          0x1b,          0x1f,          0x23,        0x27,    0x47,
        0x67,    0x87,    0xa7,     0xc7,          0xe1,          0xe3,          0xe5,        0xe6,    0xe7,
        0xff,    0x107,   0x207,    0x2e7,         0x2ff,         0x407,         0x807,       0x1007,  0x20001,
        0x20007, 0x202e7, 0x402e7,  0x60001,       0x602e7,       0x80001,       0x80007,     0x8000f, 0x8001f,
        0xe02e7, 0xe02ff, 0x100007, one << 32 | 7, one << 62 | 7, one << 63 | 7, ~uint64_t{0}};
    for (uint64_t supported : {uint64_t{0x3}, uint64_t{0x7}, uint64_t{0x1f}, uint64_t{0x207}, uint64_t{0x2e7},
                               uint64_t{0x202e7}, uint64_t{0x602e7}, uint64_t{0xe02e7}, uint64_t{0xe02ff}})
        for (uint64_t value : values)
            out["cases"].push_back({{"value", hex(value)},
                                    {"supported", hex(supported)},
                                    {"valid", valid_xcr0(value, supported)},
                                    {"constrained", hex(constrain_xcr0(value, supported))}});
}
vector_file const validity{"xcr0_validity", make_validity};

}  // namespace
