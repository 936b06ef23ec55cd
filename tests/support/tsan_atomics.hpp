// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The atomics policy for real threads in tests. ThreadSanitizer does not model fences (g++ 12 says so), so there a
/// fence is a seq_cst exchange on one word that all share: stronger than the fence, so that it proves nothing about
/// fences. Relacy does that.

#include <pvx/base/atomics.hpp>

#if defined(__SANITIZE_THREAD__)
#define PVX_TEST_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define PVX_TEST_TSAN 1
#endif
#endif
#ifndef PVX_TEST_TSAN
#define PVX_TEST_TSAN 0
#endif

namespace pvx_test {

using namespace pvx;

/// The compiler's atomics, with fences that ThreadSanitizer understands.
struct tsan_atomics : builtin_atomics {
    void fence(fence_order auto) const { static_cast<void>(ref(fence_word).exchange(0, order::seq_cst)); }

private:
    static inline uint32_t fence_word = 0;
};

static_assert(atomics_policy<tsan_atomics>);

/// What a test on real threads uses: the compiler's atomics as they are, unless ThreadSanitizer watches.
#if PVX_TEST_TSAN
using thread_atomics = tsan_atomics;
#else
using thread_atomics = builtin_atomics;
#endif

}  // namespace pvx_test
