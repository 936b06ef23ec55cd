// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The operations that are measured, each pvx hot path beside the plain way to do the same. A component brings one file
/// in bench/pairs/, with one `add_pair` a row; bench_paired and bench_guest both take their cases from there.

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace pvx_bench {

/// The value counts as used: the compiler must compute it.
template <class T>
[[gnu::always_inline]] inline void keep(T const& value) {
    __asm__ volatile("" : : "r,m"(value) : "memory");
}

/// The value may have changed: the compiler must not know it.
template <class T>
[[gnu::always_inline]] inline void forget(T& value) {
    __asm__ volatile("" : "+m"(value) : : "memory");
}

/// Something that can be done n times.
struct operation {
    std::string name;
    std::function<void(uint64_t)> run;
    /// If it is there, it is called before each time, outside of what is timed.
    std::function<void()> prepare = {};
};

/// Two ways to do one thing.
struct pair {
    std::string name;
    operation a;
    operation b;
    uint32_t items = 1;    ///< That a time does; nanoseconds are told for one of them.
    bool in_quick = true;  ///< Also measured where there is little time.
};

/// All rows of the program. Filled before main().
inline std::vector<pair>& pairs() {
    static std::vector<pair> all;
    return all;
}

/// The loop around an operation. On a cache line of its own start, so that two loops do not differ by where the linker
/// put them; never inlined or cloned, so that it is the same loop in each program.
template <class Once>
[[gnu::noinline, gnu::aligned(64)]] void repeat(Once& once, uint64_t n) {
    for (uint64_t i = 0; i < n; ++i) once();
}

/// `once()` as an operation; it says keep() of what it computes.
template <class Once>
operation make_operation(std::string name, Once once) {
    return {std::move(name), [once](uint64_t n) mutable { repeat(once, n); }};
}

/// A row, for a global constant: `bool const added = add_pair("row", "pvx", [] {...}, "plain way", [] {...});`
template <class A, class B>
bool add_pair(std::string name, std::string name_a, A a, std::string name_b, B b) {
    pairs().push_back({std::move(name), make_operation(std::move(name_a), a), make_operation(std::move(name_b), b)});
    return true;
}

}  // namespace pvx_bench
