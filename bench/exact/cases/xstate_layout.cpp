// SPDX-License-Identifier: MIT
#include <pvx/host/xstate_layout.hpp>

#include "case.hpp"

namespace {

using exact::counting, exact::plain;
using pvx::host::xstate_layout;
using enum pvx::host::xsave_format;
using memo = pvx::host::xsave_size_memo<compacted>;

/// A server with AVX-512, PKU, CET and AMX.
struct server {
    constexpr pvx::abi::cpuid_regs cpuid(uint32_t leaf, uint32_t subleaf) const {
        if (leaf == 0) return {0x20, 0, 0, 0};
        if (leaf == 1) return {0, 0, 1u << 26, 0};
        switch (subleaf) {
            case 2: return {256, 576, 0, 0};
            case 5: return {64, 1088, 0, 0};
            case 6: return {512, 1152, 0, 0};
            case 7: return {1024, 1664, 0, 0};
            case 9: return {8, 2688, 0, 0};
            case 11: return {16, 0, 1, 0};
            case 12: return {24, 0, 1, 0};
            case 17: return {64, 2752, 2, 0};
            case 18: return {8192, 2816, 6, 0};
            default: return {};
        }
    }
};
constinit xstate_layout const layout = [] {
    xstate_layout l;
    (void)l.set_up(server{});
    return l;
}();

template <class Machine>
EXACT_OPERATION uint32_t standard_size(uint64_t mask) {
    return layout.required_size<standard>(mask).value;
}

template <class Machine>
EXACT_OPERATION uint32_t compacted_size(uint64_t mask) {
    return layout.required_size<compacted>(mask).value;
}

// As a part of something that is found at run time.
template <class Machine>
EXACT_OPERATION uint32_t compacted_size_of(xstate_layout const& l, uint64_t mask) {
    return l.required_size<compacted>(mask).value;
}

template <class Machine>
EXACT_OPERATION uint32_t remembered_size(xstate_layout const& l, uint64_t mask, memo& last) {
    return l.required_size(mask, last).value;
}

template <class Machine>
EXACT_OPERATION uint32_t place_of_tiles(uint64_t mask) {
    return layout.offset<compacted>(18, mask);
}

constexpr uint64_t mask = 0x61ae7;

exact::test_case const list[] = {
    {"xstate_layout/standard size",
     standard_size<plain>,
     standard_size<counting>,
     [](auto call) { call(mask); },
     {"instructions", 14}},
    {"xstate_layout/compacted size",
     compacted_size<plain>,
     compacted_size<counting>,
     [](auto call) { call(mask); },
     {"instructions", 14}},
    {"xstate_layout/compacted size, table by reference",
     compacted_size_of<plain>,
     compacted_size_of<counting>,
     [](auto call) { call(layout, mask); },
     {"instructions", 14}},
    {"xstate_layout/size, the same mask again",
     remembered_size<plain>,
     remembered_size<counting>,
     [](auto call) {
         memo last;
         (void)layout.required_size(mask, last);
         call(layout, mask, last);
     },
     {"instructions", 14}},
    {"xstate_layout/size, another mask", remembered_size<plain>, remembered_size<counting>,
     [](auto call) {
         memo last;
         call(layout, mask, last);
     }},
    {"xstate_layout/place of a component", place_of_tiles<plain>, place_of_tiles<counting>,
     [](auto call) { call(mask); }},
};
exact::component const here{list};

}  // namespace
