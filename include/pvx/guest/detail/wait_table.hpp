// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// From a lock to the CPU that its unlocker must kick. A table of fixed size with open addressing: at most one entry
/// for a lock, put in by whoever marks the lock slow, taken out by its unlocker before it lets go of the lock, or by
/// the one who marked if that took the lock.

#include <pvx/arch/concepts.hpp>

namespace pvx::inline v0::guest::detail {

/// One place of the table. Key 0: free.
template <class Machine>
struct wait_entry {
    typename Machine::template cell<uint64_t> key{};
    typename Machine::template cell<uint32_t> cpu{};
};

template <atomics_policy Machine>
class wait_table {
public:
    constexpr wait_table(Machine machine, wait_entry<Machine>* entries, uint32_t capacity)
        : machine_(machine), entries_(entries), capacity_(capacity) {}

    /// Put the lock in. False: the table is full. \pre the lock is not in. `hops` counts places that were taken.
    bool insert(uint64_t key, cpu_index cpu, uint32_t& hops) const {
        for (hops = 0; hops < capacity_; ++hops) {
            wait_entry<Machine>& entry = at(key, hops);
            uint64_t found = 0;
            // A look first: a failing CAS would take the line from whoever uses that place.
            if (machine_.ref(entry.key).load(order::relaxed) != 0) continue;
            // order: acquire [qsl-entry] the last user is done with `cpu`; pairs with the store in remove()
            if (!machine_.ref(entry.key).compare_exchange(found, key, order::acquire, order::relaxed)) continue;
            // Relaxed: the slow mark publishes the entry [qsl-slow].
            machine_.ref(entry.cpu).store(cpu.value, order::relaxed);
            return true;
        }
        return false;
    }

    /// Take the lock out. False: it is not in. \pre the caller owns the lock and has acquired its slow mark [qsl-slow].
    bool remove(uint64_t key, cpu_index& cpu) const {
        for (uint32_t hops = 0; hops < capacity_; ++hops) {
            wait_entry<Machine>& entry = at(key, hops);
            // Relaxed: whoever put this key in happened before the slow mark that was seen.
            if (machine_.ref(entry.key).load(order::relaxed) != key) continue;
            cpu = cpu_index{machine_.ref(entry.cpu).load(order::relaxed)};
            // order: release [qsl-entry] the load of `cpu` before the place is free; pairs with the CAS in insert()
            machine_.ref(entry.key).store(0, order::release);
            return true;
        }
        return false;
    }

private:
    wait_entry<Machine>& at(uint64_t key, uint32_t hops) const {
        // Multiplicative hashing: 2^64 over the golden ratio; the high bits are the well-mixed ones.
        uint32_t const hash = static_cast<uint32_t>((key * 0x9e3779b97f4a7c15u) >> 32);
        uint32_t const start = static_cast<uint32_t>((uint64_t{hash} * capacity_) >> 32);
        uint32_t const place = start + hops;
        return entries_[place < capacity_ ? place : place - capacity_];
    }

    [[no_unique_address]] Machine machine_;
    wait_entry<Machine>* entries_;
    uint32_t capacity_;
};

}  // namespace pvx::inline v0::guest::detail
