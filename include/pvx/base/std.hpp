// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The few names of the C++ standard library that pvx needs, over compiler builtins. pvx includes no standard
/// library header: `<atomic>` and `<limits>` do not compile under -mgeneral-regs-only with every library, and kernels
/// bring a `std` of their own.

#include <stddef.h>
#include <stdint.h>

#include <pvx/base/config.hpp>

namespace pvx::inline v0 {

/// A and B are the same type.
template <class A, class B>
concept same_as = __is_same(A, B) && __is_same(B, A);

/// A value of type T, for unevaluated code only.
template <class T>
T&& declval();

/// A From can be passed where a To is taken.
template <class From, class To>
concept convertible_to = requires(void (&take)(To)) {
    take(declval<From>());
};

/// An unsigned integer of one of the four sizes that atomics and wire formats use.
template <class T>
concept word = same_as<T, uint8_t> || same_as<T, uint16_t> || same_as<T, uint32_t> || same_as<T, uint64_t> ||
    same_as<T, unsigned long> || same_as<T, unsigned long long>;

/// T may be copied byte by byte.
template <class T>
concept trivially_copyable = __is_trivially_copyable(T);

/// The memory orders, each a type: an order that an operation cannot have is a compile error, not undefined behaviour.
namespace order {
struct relaxed_t {
    static constexpr int builtin = __ATOMIC_RELAXED;
};
struct acquire_t {
    static constexpr int builtin = __ATOMIC_ACQUIRE;
};
struct release_t {
    static constexpr int builtin = __ATOMIC_RELEASE;
};
struct acq_rel_t {
    static constexpr int builtin = __ATOMIC_ACQ_REL;
};
struct seq_cst_t {
    static constexpr int builtin = __ATOMIC_SEQ_CST;
};
inline constexpr relaxed_t relaxed{};
inline constexpr acquire_t acquire{};
inline constexpr release_t release{};
inline constexpr acq_rel_t acq_rel{};
inline constexpr seq_cst_t seq_cst{};
}  // namespace order

/// An order that a load can have.
template <class O>
concept load_order = same_as<O, order::relaxed_t> || same_as<O, order::acquire_t> || same_as<O, order::seq_cst_t>;

/// An order that a store can have.
template <class O>
concept store_order = same_as<O, order::relaxed_t> || same_as<O, order::release_t> || same_as<O, order::seq_cst_t>;

/// An order that orders something, so that a fence can have it.
template <class O>
concept fence_order = same_as<O, order::acquire_t> || same_as<O, order::release_t> || same_as<O, order::acq_rel_t> ||
    same_as<O, order::seq_cst_t>;

/// An order that a read-modify-write can have: any.
template <class O>
concept rmw_order = load_order<O> || store_order<O> || fence_order<O>;

}  // namespace pvx::inline v0
