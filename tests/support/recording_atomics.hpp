// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// An atomics policy that writes down every operation with its order, and calls back after each: a test can look at
/// every intermediate state of a shared record, or let the other side act in the middle of an operation. For one
/// thread.

#include <stdint.h>

#include <functional>
#include <string>
#include <vector>

#include <pvx/base/atomics.hpp>

namespace pvx_test {

using namespace pvx;

/// What was done. `word` is the address of the shared word, null for a fence.
struct recorded {
    enum class kind : uint8_t { load, store, rmw, lost_cas, fence };

    kind what;
    void const* word;
    uint64_t value;  ///< Read by a load or a compare-and-swap that failed, left behind by what writes.
    int order;       ///< The compiler's number of the order: order::release.builtin.

    friend bool operator==(recorded const&, recorded const&) = default;
};

/// The notes of one side. Outlives the policies that write into it.
struct recording {
    std::vector<recorded> steps;
    /// Called after each operation, if set; not for what it does itself.
    std::function<void(recorded const&)> after;

    /// Steps of one kind, on `word` or, if that is null, anywhere.
    size_t count(recorded::kind what, void const* word = nullptr) const {
        size_t n = 0;
        for (recorded const& r : steps) n += r.what == what && (word == nullptr || r.word == word);
        return n;
    }

    void add(recorded const& r) {
        steps.push_back(r);
        if (!after || inside_) return;
        inside_ = true;
        after(r);
        inside_ = false;
    }

private:
    bool inside_ = false;
};

/// Relaxed accesses to the real word, each noted.
template <word T>
class recording_ref {
public:
    recording_ref(recording& notes, T& object) : notes_(&notes), object_(&object) {}

    T load(load_order auto o) const {
        T const v = *object_;
        note(recorded::kind::load, v, o.builtin);
        return v;
    }
    void store(T v, store_order auto o) const {
        *object_ = v;
        note(recorded::kind::store, v, o.builtin);
    }
    T exchange(T v, rmw_order auto o) const { return change(v, o.builtin); }
    T fetch_or(T v, rmw_order auto o) const { return change(static_cast<T>(*object_ | v), o.builtin); }
    T fetch_and(T v, rmw_order auto o) const { return change(static_cast<T>(*object_ & v), o.builtin); }
    T fetch_add(T v, rmw_order auto o) const { return change(static_cast<T>(*object_ + v), o.builtin); }
    bool compare_exchange(T& expected, T desired, rmw_order auto success, load_order auto failure) const {
        if (*object_ != expected) {
            expected = *object_;
            note(recorded::kind::lost_cas, expected, failure.builtin);
            return false;
        }
        change(desired, success.builtin);
        return true;
    }

private:
    T change(T v, int o) const {
        T const was = *object_;
        *object_ = v;
        note(recorded::kind::rmw, v, o);
        return was;
    }
    void note(recorded::kind what, T v, int o) const { notes_->add({what, object_, v, o}); }

    recording* notes_;
    T* object_;
};

/// The policy: a handle on the notes.
class recording_atomics {
public:
    template <word T>
    using cell = T;

    explicit recording_atomics(recording& notes) : notes_(&notes) {}

    template <word T>
    recording_ref<T> ref(T& object) const {
        return {*notes_, object};
    }

    void fence(fence_order auto o) const { notes_->add({recorded::kind::fence, nullptr, 0, o.builtin}); }

private:
    recording* notes_;
};

static_assert(atomics_policy<recording_atomics>);

}  // namespace pvx_test
