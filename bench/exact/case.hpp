// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// How a component's cases are written down. One file a component, cases/<component>.cpp:
///
///     template <class Machine>
///     EXACT_OPERATION uint64_t read(uint32_t cpu) { ... }         // what is counted, from its entry to its return
///
///     exact::test_case const list[] = {
///         {"steal_time/read", read<plain>, read<counting>, [](auto call) { ...inputs...; call(3u); }},
///     };
///     exact::component const here{list};
///
/// The lambda brings the inputs and calls the operation once. It runs in a process of its own.

#include "machines.hpp"

// What the compiler knows of a caller must not shape the operation, nor may two operations of the same code become one.
#ifdef __clang__
#define EXACT_OPERATION [[gnu::noinline]]
#else
#define EXACT_OPERATION [[gnu::noipa]]
#endif

namespace exact {

using function = void();

/// Calls the operation of one machine.
template <class Machine, class Operation>
struct call {
    using machine = Machine;

    Operation* operation;

    template <class... Arguments>
    void operator()(Arguments&&... arguments) const {
        if constexpr (same_as<Machine, plain>)
            __asm__ volatile("int3" ::: "memory");  // the stepper begins here
        else
            for (uint32_t e = 0; e < event_kinds; ++e) events[e] = 0;
        (void)operation(static_cast<Arguments&&>(arguments)...);
    }
};

/// Of one figure, which no baseline may lift.
struct limit {
    const char* figure = nullptr;
    uint64_t most = 0;
};

struct test_case {
    const char* name;  ///< "component/operation, inputs": says how many of what it counts for.
    function* plain_operation;
    function* counting_operation;
    void (*run_plain)(function*);
    void (*run_counting)(function*);
    limit at_most;

    template <class Plain, class Counting, class Body>
    test_case(const char* n, Plain* p, Counting* c, Body, limit most = {})
        : name(n),
          plain_operation(reinterpret_cast<function*>(p)),
          counting_operation(reinterpret_cast<function*>(c)),
          run_plain([](function* f) { Body{}(call<plain, Plain>{reinterpret_cast<Plain*>(f)}); }),
          run_counting([](function* f) { Body{}(call<counting, Counting>{reinterpret_cast<Counting*>(f)}); }),
          at_most(most) {}
};

/// The cases of a file, in the list of all.
struct component {
    static inline constinit component const* first = nullptr;

    test_case const* cases;
    uint32_t count;
    component const* next;

    template <uint32_t N>
    explicit component(test_case const (&list)[N]) : cases(list), count(N), next(first) {
        first = this;
    }
};

}  // namespace exact
