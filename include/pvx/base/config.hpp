// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The attribute macros of pvx and what it asks of the compiler. Attributes are spelled with underscores
/// because kernels define the plain words (`always_inline`, `noinline`, `packed`) as macros of their own.

#if !defined(__GNUC__) || !defined(__cplusplus) || __cplusplus < 202002L
#error "pvx needs g++ 12 or clang 14, or newer, with -std=c++20 or newer"
#endif

/// For what runs in an NMI or fault entry or under a tracer: inlined whatever the optimisation level says, and never
/// instrumented, so that it calls nothing and no tracer can re-enter it.
#define PVX_ENTRY_INLINE [[__gnu__::__always_inline__, __gnu__::__no_instrument_function__]] inline

/// For one-instruction wrappers: a call around a single instruction costs more than the instruction, also at -O0. Not
/// instrumented either, because entry code is made of them.
#define PVX_ALWAYS_INLINE [[__gnu__::__always_inline__, __gnu__::__no_instrument_function__]] inline

/// The same for a lambda that entry code passes on: `[&]() PVX_ENTRY_LAMBDA { ... }`. A lambda is a function of its
/// own, and does not inherit how the function around it is compiled.
#define PVX_ENTRY_LAMBDA __attribute__((__always_inline__, __no_instrument_function__))
