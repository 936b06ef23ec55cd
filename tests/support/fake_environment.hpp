// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// A host environment made of tables, strict: guest memory is only reached under a guard, at an address that is mapped,
/// and what is not planned throws. Everything that happens is written down in order. The handle is one pointer.

#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include <pvx/host/concepts.hpp>

#include "support/fake_machine.hpp"

namespace pvx_test {

/// The state behind a fake environment.
struct host_state {
    std::map<uint64_t, void*> memory;  // objects that the guest has in plain writable memory
    uint64_t generation = 1;
    std::function<void()> on_generation = [] {};  // after each look at it
    bool sleepy = true;                           // can_sleep()
    uint64_t run_delay = 0;
    uint32_t guards = 0;  // held now
    uint32_t maps = 0;    // calls of map()
    std::function<void()> on_flush = [] {};
    std::function<void()> on_call;  // at each call of the environment, if set; not for what it does itself
    std::vector<std::string> log;

    void called() {
        if (!on_call || in_call_) return;
        in_call_ = true;
        on_call();
        in_call_ = false;
    }

    void needs_guard(char const* what) const {
        if (guards == 0) throw unplanned(std::string(what) + " without a guard");
    }
    uint32_t count(std::string const& entry) const {
        uint32_t n = 0;
        for (std::string const& l : log) n += l == entry;
        return n;
    }

private:
    bool in_call_ = false;
};

/// The handle that components hold.
template <class Atomics>
struct fake_environment : Atomics {
    host_state* state;

    explicit fake_environment(host_state& s, Atomics atomics = {}) : Atomics(atomics), state(&s) {}

    class guard {
    public:
        explicit guard(host_state& s) : state_(&s) { ++s.guards; }
        ~guard() { --state_->guards; }
        guard(guard const&) = delete;
        guard& operator=(guard const&) = delete;

    private:
        host_state* state_;
    };
    guard read_guard() const {
        state->called();
        return guard{*state};
    }

    template <class T>
    T* map(pvx::guest_phys address) const {
        state->needs_guard("map");
        state->called();  // it may sleep
        ++state->maps;
        auto const found = state->memory.find(address.value);
        state->called();
        return found == state->memory.end() ? nullptr : static_cast<T*>(found->second);
    }
    uint64_t memory_generation() const {
        uint64_t const now = state->generation;
        state->on_generation();
        state->called();
        return now;
    }
    void mark_dirty(pvx::guest_phys address) const {
        state->needs_guard("mark_dirty");
        state->log.push_back("dirty " + hex(address.value));
        state->called();
    }
    bool can_sleep() const {
        state->called();
        return state->sleepy;
    }

    template <class T>
    auto ref(T& object) const {
        state->needs_guard("an access");
        state->called();
        return Atomics::ref(object);
    }

    pvx::nanoseconds run_delay() const {
        state->called();
        return pvx::nanoseconds{state->run_delay};
    }
    void flush_guest_tlb() const {
        state->called();
        state->log.push_back("flush");
        state->on_flush();
    }
};

}  // namespace pvx_test
