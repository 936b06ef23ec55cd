// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// A callable as a plain function and an untyped argument, for what is called through assembly or on another CPU.

namespace os {

template <class F>
void call_erased(void* f) {
    (*static_cast<F const*>(f))();
}

template <class F>
void* erase_type(F const& f) {
    return const_cast<void*>(static_cast<void const*>(&f));
}

}  // namespace os
