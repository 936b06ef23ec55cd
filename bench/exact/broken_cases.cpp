// SPDX-License-Identifier: MIT

/// \file
/// Cases that cannot be counted, each for a reason that the counter must give. For exact_test.sh.

#include <string.h>
#include <unistd.h>

#include "case.hpp"

namespace {

using exact::counting, exact::plain;

template <class>
EXACT_OPERATION void wait(uint32_t volatile& word) {
    while (word == 0) {
    }
}

template <class>
EXACT_OPERATION size_t calls_library(const char* text) {
    return strlen(text) + 1;
}

template <class>
EXACT_OPERATION void crash(uint32_t volatile* nowhere) {
    *nowhere = 1;
}

template <class>
EXACT_OPERATION void loop(unsigned char n) {
    for (; n != 0; --n) __asm__ volatile("");
}

constinit uint32_t word = 0;
constinit uint32_t* nowhere = nullptr;
constinit const char* text = "text";

// What the first child reads from it differs from what the second reads.
struct changing_input {
    int ends[2];

    changing_input() {
        if (pipe(ends) != 0 || write(ends[1], "\1\2\3", 3) != 3) _exit(1);
    }
    unsigned char next() const {
        unsigned char c = 0;
        if (read(ends[0], &c, 1) != 1) _exit(1);
        return c;
    }
};
changing_input const input;

exact::test_case const list[] = {
    {"broken/waits", wait<plain>, wait<counting>, [](auto call) { call(word); }},
    {"broken/calls a library", calls_library<plain>, calls_library<counting>, [](auto call) { call(text); }},
    {"broken/crashes", crash<plain>, crash<counting>, [](auto call) { call(nowhere); }},
    {"broken/does not call", wait<plain>, wait<counting>, [](auto) {}},
    {"broken/changes", loop<plain>, loop<counting>, [](auto call) { call(input.next()); }},
};
exact::component const here{list};

}  // namespace
