// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// How often a vCPU exited, by reason, and which of the exits were handled on the fast path: next to the hardware,
/// without a way through the VMM's loop. The counters are plain memory of the vCPU's thread, counted without a locked
/// instruction; anybody reads them at any time.

#include <pvx/host/concepts.hpp>

namespace pvx::inline v0::host {

/// Where an exit was handled.
enum class exit_path : uint8_t { fast, slow };

/// An exit, for the observer.
struct exit_event {
    uint32_t reason;  ///< In the VMM's own numbering, dense from 0 on. VMX's basic reasons are; SVM's codes are not.
    exit_path path;
};

/// Says so. Nothing at all in an environment that does not observe exits.
template <class Environment>
PVX_ALWAYS_INLINE void tell_exit([[maybe_unused]] Environment const& environment, [[maybe_unused]] exit_event exit) {
    if constexpr (observer_policy<Environment, exit_event>) environment.event(exit);
}

/// Words of memory that the counters of `reasons` reasons are: two for each, and two for what is beyond.
constexpr uint32_t exit_stats_words(uint32_t reasons) { return 2 * reasons + 2; }

/// The counters of one vCPU.
template <class Environment>
    requires atomics_policy<Environment> && index_policy<Environment>
class exit_stats {
public:
    using counter = typename Environment::template cell<uint64_t>;

    /// Holds no memory: `counters` are exit_stats_words(reasons), zero at first, best in lines of their own.
    constexpr exit_stats(Environment environment, counter* counters, uint32_t reasons)
        : environment_(environment), counters_(counters), reasons_(reasons) {}

    /// One more. On the vCPU's thread. A reason that the VMM does not number counts as the one beyond the last: some
    /// come from the guest, as those in a GHCB do.
    void count(exit_event exit) const {
        auto const mine = environment_.ref(counters_[place(exit.reason, exit.path)]);
        // Relaxed, both: one writer, so nothing is lost between the load and the store.
        mine.store(mine.load(order::relaxed) + 1, order::relaxed);
    }

    /// How many there have been, the last ones perhaps not yet. Any thread. `reasons` and above: those beyond.
    uint64_t read(uint32_t reason, exit_path path) const {
        // Relaxed: a count, of which nothing follows for other memory.
        return environment_.ref(counters_[place(reason, path)]).load(order::relaxed);
    }

    /// Of all reasons.
    uint64_t total(exit_path path) const {
        uint64_t sum = 0;
        for (uint32_t reason = 0; reason <= reasons_; ++reason) sum += read(reason, path);
        return sum;
    }

    /// Reasons that have counters of their own.
    constexpr uint32_t reasons() const { return reasons_; }

private:
    uint32_t place(uint32_t reason, exit_path path) const {
        // Both of a reason in one line.
        uint32_t const row = reason < reasons_ ? environment_.clamp_index(reason, reasons_) : reasons_;
        return 2 * row + (path == exit_path::slow);
    }

    [[no_unique_address]] Environment environment_;
    counter* counters_;
    uint32_t reasons_;
};

}  // namespace pvx::inline v0::host
