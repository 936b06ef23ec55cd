// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The atomics policy: every access of pvx to a word that another CPU, or the other side of the VM boundary, can
/// touch goes through one of these. The default is the compiler's own atomics; the tests bring a memory-model
/// checker's and ThreadSanitizer's. There is no default order.

#include <pvx/base/std.hpp>

namespace pvx::inline v0 {

/// A reference to a naturally aligned word that is accessed atomically. Inlines to plain instructions for every word
/// up to the register size; never calls libatomic there.
template <word T>
class builtin_atomic_ref {
public:
    PVX_ALWAYS_INLINE constexpr explicit builtin_atomic_ref(T& object) : object_(&object) {}

    PVX_ALWAYS_INLINE T load(load_order auto o) const { return __atomic_load_n(object_, o.builtin); }
    PVX_ALWAYS_INLINE void store(T v, store_order auto o) const { __atomic_store_n(object_, v, o.builtin); }
    PVX_ALWAYS_INLINE T exchange(T v, rmw_order auto o) const { return __atomic_exchange_n(object_, v, o.builtin); }
    PVX_ALWAYS_INLINE T fetch_or(T v, rmw_order auto o) const { return __atomic_fetch_or(object_, v, o.builtin); }
    PVX_ALWAYS_INLINE T fetch_and(T v, rmw_order auto o) const { return __atomic_fetch_and(object_, v, o.builtin); }
    PVX_ALWAYS_INLINE T fetch_add(T v, rmw_order auto o) const { return __atomic_fetch_add(object_, v, o.builtin); }

    /// Strong compare-and-swap. On failure `expected` is what was found.
    PVX_ALWAYS_INLINE bool compare_exchange(T& expected, T desired, rmw_order auto success,
                                            load_order auto failure) const {
        return __atomic_compare_exchange_n(object_, &expected, desired, false, success.builtin, failure.builtin);
    }

private:
    T* object_;
};

/// The atomics of the compiler. Empty: a machine inherits it.
struct builtin_atomics {
    /// Storage for a shared word that pvx itself owns.
    template <word T>
    using cell = T;

    template <word T>
    PVX_ALWAYS_INLINE constexpr builtin_atomic_ref<T> ref(T& object) const {
        return builtin_atomic_ref<T>{object};
    }

    PVX_ALWAYS_INLINE void fence(fence_order auto o) const { __atomic_thread_fence(o.builtin); }
};

/// Keeps the compiler from moving accesses across, for code that something on the same CPU or thread interrupts. No
/// instruction.
PVX_ALWAYS_INLINE void interrupt_fence() { __atomic_signal_fence(__ATOMIC_SEQ_CST); }

/// The operations that pvx uses on one shared word.
template <class R, class T>
concept atomic_reference = requires(R const r, T v, T& found) {
    { r.load(order::relaxed) } -> same_as<T>;
    { r.load(order::acquire) } -> same_as<T>;
    r.store(v, order::relaxed);
    r.store(v, order::release);
    { r.exchange(v, order::seq_cst) } -> same_as<T>;
    { r.fetch_or(v, order::seq_cst) } -> same_as<T>;
    { r.fetch_and(v, order::seq_cst) } -> same_as<T>;
    { r.fetch_add(v, order::seq_cst) } -> same_as<T>;
    { r.compare_exchange(found, v, order::seq_cst, order::relaxed) } -> same_as<bool>;
    { r.compare_exchange(found, v, order::relaxed, order::relaxed) } -> same_as<bool>;
};

/// Access to shared words.
/// Axiom: the C++ memory model, or a stronger one.
template <class A>
concept atomics_policy = requires(A const a, typename A::template cell<uint8_t>& cell1,
                                  typename A::template cell<uint32_t>& cell4,
                                  typename A::template cell<uint64_t>& cell8, uint8_t& field1, uint32_t& field4,
                                  uint64_t& field8) {
    { a.ref(cell1) } -> atomic_reference<uint8_t>;    // ref(cell) gives the operations on a shared byte of pvx's own
    { a.ref(cell4) } -> atomic_reference<uint32_t>;   // the same for 32 bits
    { a.ref(cell8) } -> atomic_reference<uint64_t>;   // the same for 64 bits
    { a.ref(field1) } -> atomic_reference<uint8_t>;   // ref(field) gives them on a byte of a record that is shared
    { a.ref(field4) } -> atomic_reference<uint32_t>;  // the same for 32 bits
    { a.ref(field8) } -> atomic_reference<uint64_t>;  // the same for 64 bits
    a.fence(order::acquire);                          // fence(order) orders all accesses around it
    a.fence(order::release);
    a.fence(order::seq_cst);
};

}  // namespace pvx::inline v0
