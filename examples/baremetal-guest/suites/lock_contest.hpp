// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// A lock, and what many vCPUs see of it. Plain memory is guarded: if two are inside, the owner changes under one of
/// them, or the two counters come apart.

#include "../pv.hpp"

/// A machine that counts what the locks on it do.
struct counting_machine : machine {
    static constexpr uint32_t kinds = static_cast<uint32_t>(pvx::guest::lock_event::hash_hop) + 1;

    /// Of one CPU, which alone writes it.
    struct alignas(64) counters {
        uint64_t of[kinds];
    };
    static inline constinit counters counts[os::max_cpus] = {};

    void event(pvx::guest::lock_event e) const { ++counts[self().value].of[static_cast<uint32_t>(e)]; }

    /// Of all CPUs. \pre nobody locks
    static uint64_t total(pvx::guest::lock_event e) {
        uint64_t sum = 0;
        for (counters const& c : counts) sum += c.of[static_cast<uint32_t>(e)];
        return sum;
    }
    static uint64_t halts() {
        return total(pvx::guest::lock_event::halt_node) + total(pvx::guest::lock_event::halt_head);
    }
    static uint64_t kicks() { return total(pvx::guest::lock_event::kick) + total(pvx::guest::lock_event::kick_early); }
    static void reset() {
        for (counters& c : counts) c = {};
    }
};

/// What a lock guards. Volatile, so that each access is made.
struct alignas(64) guarded {
    uint32_t volatile owner;
    uint64_t volatile first;
    uint64_t volatile second;

    /// Whether nobody else is in.
    bool enter(uint32_t cpu) {
        bool const alone = owner == 0;
        owner = cpu + 1;
        first = first + 1;
        return alone;
    }
    bool leave(uint32_t cpu) {
        second = second + 1;
        bool const alone = owner == cpu + 1 && first == second;
        owner = 0;
        return alone;
    }
};
