// SPDX-License-Identifier: MIT
#include <pvx/base/cpu_mask.hpp>

#include <array>

#include "support/operation.hpp"

using namespace pvx_bench;

namespace {

constexpr uint32_t words = 16;
using mask_words = std::array<unsigned long, words>;

constexpr mask_words filled(unsigned long pattern) {
    mask_words m{};
    m.fill(pattern);
    return m;
}

mask_words quarter = filled(0x1111111111111111);
mask_words one_in_64 = filled(1);
mask_words none = filled(0);

pvx::const_cpu_mask_view view(mask_words const& m) { return {m.data(), words * 64}; }

uint64_t sum_of_each(mask_words const& m) {
    uint64_t sum = 0;
    view(m).for_each([&](pvx::cpu_index cpu) { sum += cpu.value; });
    return sum;
}

uint64_t sum_by_test(mask_words const& m) {
    uint64_t sum = 0;
    for (uint32_t cpu = 0; cpu < words * 64; ++cpu)
        if (view(m).test(pvx::cpu_index{cpu})) sum += cpu;
    return sum;
}

bool const walking = add_pair(
    "cpu mask: walk 256 of 1024", "for_each", [] { keep(sum_of_each(quarter)); }, "test each bit",
    [] { keep(sum_by_test(quarter)); });
bool const walking_sparse = add_pair(
    "cpu mask: walk 16 of 1024", "for_each", [] { keep(sum_of_each(one_in_64)); }, "test each bit",
    [] { keep(sum_by_test(one_in_64)); });
bool const counting = add_pair(
    "cpu mask: count 1024", "pvx", [] { keep(view(quarter).count()); }, "__builtin_popcountl",
    [] {
        int n = 0;
        for (unsigned long w : quarter) n += __builtin_popcountl(w);
        keep(n);
    });
bool const asking = add_pair(
    "cpu mask: empty, 1024", "pvx", [] { keep(view(none).empty()); }, "or of all words",
    [] {
        unsigned long any = 0;
        for (unsigned long w : none) any |= w;
        keep(any == 0);
    });

}  // namespace
