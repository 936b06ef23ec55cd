// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// One page of a guest's memory, into which the guest writes whenever the host looks at it. On the heap, so that the
/// sanitizer sees what the host touches beside it.

#include <memory>

#include <pvx/host/concepts.hpp>

#include "input.hpp"

namespace pvx_fuzz {

using namespace pvx;

/// The page, and what the host did with it.
struct guest_page {
    static constexpr uint64_t address = 0x1000;
    static constexpr uint32_t size = 4096;
    struct alignas(64) bytes {
        uint8_t at[size]{};
    };

    input* in;
    std::unique_ptr<bytes> memory = std::make_unique<bytes>();
    uint64_t generation = 1;
    uint32_t guards = 0;
    uint32_t writes = 0;
    uint32_t wrong_dirty = 0;  // pages said to be written that are others
    bool mapped = true;
    bool sleepy = true;
    bool flush_taken = false;  // an exchange of a byte has found the guest's flush bit

    void scribble(void* near) {
        if (in->below(2) == 0) return;
        // What is being looked at, now and then something else.
        uint8_t* const here =
            in->below(8) == 0 ? memory->at + in->take<uint16_t>() % size : static_cast<uint8_t*>(near);
        *here = in->take<uint8_t>();
    }
};

/// A word that the guest may have changed a moment ago.
template <class T>
struct scribbled_ref {
    T* object;
    guest_page* page;

    builtin_atomic_ref<T> now() const { return page->scribble(object), builtin_atomic_ref<T>{*object}; }
    builtin_atomic_ref<T> write() const { return ++page->writes, now(); }
    T load(load_order auto o) const { return now().load(o); }
    void store(T v, store_order auto o) const { write().store(v, o); }
    T exchange(T v, rmw_order auto o) const {
        T const was = write().exchange(v, o);
        if constexpr (sizeof(T) == 1) page->flush_taken = page->flush_taken || (was & 2) != 0;
        return was;
    }
    T fetch_or(T v, rmw_order auto o) const { return write().fetch_or(v, o); }
    T fetch_and(T v, rmw_order auto o) const { return write().fetch_and(v, o); }
    T fetch_add(T v, rmw_order auto o) const { return write().fetch_add(v, o); }
    bool compare_exchange(T& expected, T v, rmw_order auto success, load_order auto failure) const {
        return write().compare_exchange(expected, v, success, failure);
    }
};

/// The roles that reach guest memory.
struct memory_roles {
    guest_page* page;

    template <word T>
    using cell = T;
    template <word T>
    scribbled_ref<T> ref(T& object) const {
        return {&object, page};
    }
    void fence(fence_order auto) const {}

    struct guard {
        guest_page* page;
        explicit guard(guest_page* p) : page(p) { ++page->guards; }
        guard(guard const&) = delete;
        guard& operator=(guard const&) = delete;
        ~guard() { --page->guards; }
    };
    guard read_guard() const { return guard{page}; }
    template <class T>
    T* map(guest_phys at) const {
        expect(page->guards != 0, "memory is mapped under a guard");
        expect(at.value % alignof(T) == 0, "what is mapped is aligned");
        uint64_t const offset = at.value - guest_page::address;
        expect(at.value / guest_page::size == (at.value + sizeof(T) - 1) / guest_page::size, "it crosses no page");
        if (!page->mapped || offset >= guest_page::size) return nullptr;
        return reinterpret_cast<T*>(page->memory->at + offset);
    }
    uint64_t memory_generation() const { return page->generation; }
    void mark_dirty(guest_phys at) const { page->wrong_dirty += at.value / guest_page::size != 1; }
    bool can_sleep() const { return page->sleepy; }
};

}  // namespace pvx_fuzz
