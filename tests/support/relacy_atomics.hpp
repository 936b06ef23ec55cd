// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// An atomics policy over Relacy, so that the shipped templates run under a memory-model checker unchanged, and the
/// same policy with one order weakened, which makes the known-wrong variants. Include this header, never <relacy/...>:
/// it keeps Relacy's macros to itself (`new`, `delete`, `assert`, `memory_order_relaxed`, `$` and more).
///
/// What Relacy's model leaves out, so that a model test is no proof of it:
/// - a load never takes its value from a store that comes later in the schedule (no load buffering);
/// - a load is at most one store behind under a search, two under the random scheduler; a failed CAS is never behind;
/// - a relaxed store continues the release sequence of an earlier store of its own thread, as before C++20;
/// - seq_cst fences synchronise with each other in their order.

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <memory.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/times.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <queue>
#include <set>
#include <sstream>
#include <stack>
#include <stdexcept>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

#include <pvx/base/atomics.hpp>

#pragma push_macro("assert")
#pragma push_macro("errno")
// Relacy's copies of the Windows and POSIX interfaces, hundreds of macros, are behind these two.
#define RL_WINDOWS_HPP
#define RL_PTHREAD_HPP
#include <relacy/relacy.hpp>
#if defined(__clang__)
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wdollar-in-identifier-extension"
#endif
#undef $
#if defined(__clang__)
#pragma clang diagnostic pop
#endif
#undef VAR
#undef VAR_T
#undef TLS_T
#undef TlsAlloc
#undef TlsFree
#undef TlsGetValue
#undef TlsSetValue
#undef new
#undef delete
#undef malloc
#undef calloc
#undef realloc
#undef free
#undef memory_order_relaxed
#undef memory_order_consume
#undef memory_order_acquire
#undef memory_order_release
#undef memory_order_acq_rel
#undef memory_order_seq_cst
#pragma pop_macro("errno")
#pragma pop_macro("assert")

namespace pvx_test {

using namespace pvx;

/// A line of the code under test. As a default argument it is the line of the call, so that Relacy's trace names the
/// line in pvx and not one in this file.
struct place {
    char const* function;
    char const* file;
    unsigned line;

    constexpr place(char const* fn = __builtin_FUNCTION(), char const* f = __builtin_FILE(),
                    unsigned l = __builtin_LINE())
        : function(fn), file(f), line(l) {}

    rl::debug_info info() const { return {function, file, line}; }
};

/// An order of pvx as Relacy names it.
constexpr rl::memory_order relacy_order(rmw_order auto o) {
    using O = decltype(o);
    if constexpr (same_as<O, order::relaxed_t>) return rl::mo_relaxed;
    if constexpr (same_as<O, order::acquire_t>) return rl::mo_acquire;
    if constexpr (same_as<O, order::release_t>) return rl::mo_release;
    if constexpr (same_as<O, order::acq_rel_t>) return rl::mo_acq_rel;
    return rl::mo_seq_cst;
}

/// What a site does. A compare-and-swap is two: an rmw by its success order, a failed_cas by its failure order.
enum class operation : uint8_t { load, store, rmw, failed_cas, fence };

/// One operation of the code under test, as a mutation sees it.
struct site {
    operation op;
    rl::memory_order order;     ///< As written in the shipped code.
    uint32_t bytes;             ///< Size of the word; 0 for a fence.
    std::string_view function;  ///< Function in which it is written, without namespaces and template arguments.
    uint32_t line;
};

/// A mutation: which order a site really has. A type of its own where `weaken` does not tell two sites apart.
template <class M>
concept mutation = requires(site const& s) {
    { M::apply(s) } -> same_as<rl::memory_order>;
};

/// The mutation that changes nothing.
struct shipped {
    static constexpr rl::memory_order apply(site const& s) { return s.order; }
};

/// A string as a template argument.
template <size_t N>
struct text {
    char chars[N]{};
    constexpr text(char const (&t)[N]) {
        for (size_t i = 0; i < N; ++i) chars[i] = t[i];
    }
};

/// The mutation that gives every Op of order From, inside Function if that is not empty, the order To. A fence that is
/// made relaxed is left out.
template <operation Op, fence_order auto From, rmw_order auto To = order::relaxed, text Function = "">
struct weaken {
    static constexpr rl::memory_order apply(site const& s) {
        bool const here = sizeof(Function.chars) == 1 || s.function == Function.chars;
        return s.op == Op && s.order == relacy_order(From) && here ? relacy_order(To) : s.order;
    }
};

/// Both mutations at once.
template <mutation First, mutation... Rest>
struct weaken_all {
    static constexpr rl::memory_order apply(site s) {
        s.order = First::apply(s);
        if constexpr (sizeof...(Rest) != 0) s.order = weaken_all<Rest...>::apply(s);
        return s.order;
    }
};

template <mutation M>
rl::memory_order mutated(operation op, rl::memory_order order, uint32_t bytes, place const& where) {
    std::string_view function = where.function;
    return M::apply({op, order, bytes, function.substr(0, function.find('<')), where.line});
}

/// The strongest order that a CAS may have on failure, in Relacy as in C++ before 17.
constexpr rl::memory_order strongest_failure(rl::memory_order success) {
    if (success == rl::mo_seq_cst) return rl::mo_seq_cst;
    return success == rl::mo_acquire || success == rl::mo_acq_rel ? rl::mo_acquire : rl::mo_relaxed;
}

/// A reference to one cell.
template <word T, mutation M>
class relacy_ref {
public:
    explicit relacy_ref(rl::atomic<T>& object) : object_(&object) {}

    T load(load_order auto o, place where = {}) const {
        return object_->load(mutated<M>(operation::load, relacy_order(o), sizeof(T), where), where.info());
    }
    void store(T v, store_order auto o, place where = {}) const {
        object_->store(v, mutated<M>(operation::store, relacy_order(o), sizeof(T), where), where.info());
    }
    T exchange(T v, rmw_order auto o, place where = {}) const {
        return object_->exchange(v, mutated<M>(operation::rmw, relacy_order(o), sizeof(T), where), where.info());
    }
    T fetch_or(T v, rmw_order auto o, place where = {}) const {
        return object_->fetch_or(v, mutated<M>(operation::rmw, relacy_order(o), sizeof(T), where), where.info());
    }
    T fetch_and(T v, rmw_order auto o, place where = {}) const {
        return object_->fetch_and(v, mutated<M>(operation::rmw, relacy_order(o), sizeof(T), where), where.info());
    }
    T fetch_add(T v, rmw_order auto o, place where = {}) const {
        return object_->fetch_add(v, mutated<M>(operation::rmw, relacy_order(o), sizeof(T), where), where.info());
    }
    bool compare_exchange(T& expected, T desired, rmw_order auto success, load_order auto failure,
                          place where = {}) const {
        static_assert(relacy_order(failure) <= strongest_failure(relacy_order(success)),
                      "Relacy has no CAS whose failure is ordered more strongly than its success");
        rl::memory_order const won = mutated<M>(operation::rmw, relacy_order(success), sizeof(T), where);
        rl::memory_order const failed = mutated<M>(operation::failed_cas, relacy_order(failure), sizeof(T), where);
        rl::memory_order const lost = std::min(failed, strongest_failure(won));
        return object_->compare_exchange_strong(expected, desired, won, where.info(), lost, where.info());
    }

private:
    rl::atomic<T>* object_;
};

/// Shared words whose layout is an ABI, so that they cannot be cells: the code under test gets the plain record, and
/// each of its words that is touched has an atomic behind it. A member of the test suite, one at a time; `adopt` every
/// word in before(). The plain words only lend their addresses and first values. Relacy puts a suite at malloc's
/// alignment: a record that needs more is a static beside it.
class relacy_memory {
public:
    relacy_memory() { current() = this; }
    ~relacy_memory() { current() = nullptr; }
    relacy_memory(relacy_memory const&) = delete;
    relacy_memory& operator=(relacy_memory const&) = delete;

    /// Put an atomic behind `plain`, with its value.
    template <word T>
    void adopt(T& plain) {
        for (entry& e : entries_)
            if (e.address == nullptr) {
                e.address = &plain;
                slot<T>(e).emplace().store(plain, rl::mo_relaxed, place{}.info());
                return;
            }
        fail("more words than relacy_memory has room for");
    }

    /// The atomic behind `plain`.
    template <word T>
    static rl::atomic<T>& behind(T& plain) {
        if (current() != nullptr)
            for (entry& e : current()->entries_)
                if (e.address == &plain && slot<T>(e)) return *slot<T>(e);
        fail("a word is used as shared that relacy_memory did not adopt with this size");
    }

private:
    struct entry {
        void* address{};
        std::optional<rl::atomic<uint8_t>> one{};
        std::optional<rl::atomic<uint16_t>> two{};
        std::optional<rl::atomic<uint32_t>> four{};
        std::optional<rl::atomic<uint64_t>> eight{};
    };

    template <word T>
    static auto& slot(entry& e) {
        if constexpr (sizeof(T) == 1)
            return e.one;
        else if constexpr (sizeof(T) == 2)
            return e.two;
        else if constexpr (sizeof(T) == 4)
            return e.four;
        else
            return e.eight;
    }

    [[noreturn]] static void fail(char const* what) {
        fprintf(stderr, "relacy_memory: %s\n", what);
        abort();
    }

    static relacy_memory*& current() {
        static relacy_memory* memory = nullptr;
        return memory;
    }

    entry entries_[32]{};
};

/// The policy. `relacy_atomics<>` is the shipped code, `relacy_atomics<weaken<...>>` a mutant.
template <mutation M = shipped>
struct relacy_atomics {
    template <word T>
    using cell = rl::atomic<T>;

    template <word T>
    relacy_ref<T, M> ref(rl::atomic<T>& object) const {
        return relacy_ref<T, M>{object};
    }

    /// A word of a plain record that relacy_memory has adopted.
    template <word T>
    relacy_ref<T, M> ref(T& plain) const {
        return relacy_ref<T, M>{relacy_memory::behind(plain)};
    }

    void fence(fence_order auto o, place where = {}) const {
        rl::memory_order const real = mutated<M>(operation::fence, relacy_order(o), 0, where);
        if (real != rl::mo_relaxed) rl::atomic_thread_fence(real, where.info());
    }
};

static_assert(atomics_policy<relacy_atomics<>>);

}  // namespace pvx_test
