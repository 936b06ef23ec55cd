// SPDX-License-Identifier: MIT
#include "case.hpp"

namespace {

using exact::counting, exact::plain;

template <class>
EXACT_OPERATION uint64_t for_each(unsigned long const* words, uint32_t bits) {
    uint64_t sum = 0;
    pvx::const_cpu_mask_view{words, bits}.for_each([&](pvx::cpu_index cpu) { sum += cpu.value; });
    return sum;
}

template <class>
EXACT_OPERATION uint32_t count(unsigned long const* words, uint32_t bits) {
    return pvx::const_cpu_mask_view{words, bits}.count();
}

template <class>
EXACT_OPERATION bool empty(unsigned long const* words, uint32_t bits) {
    return pvx::const_cpu_mask_view{words, bits}.empty();
}

constinit unsigned long words[64] = {};

template <class Call>
void with_words(Call call, unsigned long value, uint32_t bits) {
    for (unsigned long& w : words) w = value;
    call(words, bits);
}

exact::test_case const list[] = {
    {"cpu_mask/for_each, 64 of 64", for_each<plain>, for_each<counting>, [](auto call) { with_words(call, ~0ul, 64); }},
    {"cpu_mask/for_each, 16 of 64", for_each<plain>, for_each<counting>,
     [](auto call) { with_words(call, 0x1111111111111111ul, 64); }},
    {"cpu_mask/for_each, 64 of 4096", for_each<plain>, for_each<counting>,
     [](auto call) { with_words(call, 1, 4096); }},
    {"cpu_mask/for_each, 60 of 60", for_each<plain>, for_each<counting>, [](auto call) { with_words(call, ~0ul, 60); }},
    {"cpu_mask/count, 4096", count<plain>, count<counting>, [](auto call) { with_words(call, 1, 4096); }},
    {"cpu_mask/empty, 4096", empty<plain>, empty<counting>, [](auto call) { with_words(call, 0, 4096); }},
};
exact::component const here{list};

}  // namespace
