// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The page map, one for all CPUs: the first 4 GiB one to one, without the null page and the stacks' guard pages, write
/// and execute never together; and a region above for tests, which starts empty.

#include <stdint.h>

#include "per_cpu.hpp"

namespace os {

namespace page_bit {
inline constexpr uint64_t present = 1ull << 0;
inline constexpr uint64_t writable = 1ull << 1;
inline constexpr uint64_t write_through = 1ull << 3;
inline constexpr uint64_t cache_disable = 1ull << 4;
inline constexpr uint64_t accessed = 1ull << 5;
inline constexpr uint64_t dirty = 1ull << 6;
inline constexpr uint64_t large = 1ull << 7;
inline constexpr uint64_t address = 0x000ffffffffff000;
}  // namespace page_bit

/// Builds the page map and loads it on this CPU.
void initialise_paging();
/// Loads it on another CPU.
void load_page_map();

/// Unmaps the guard pages of a CPU's stacks. \pre no CPU has translations of them, but perhaps this one
void protect_stacks(cpu_stacks const& stacks);

/// Virtual addresses for tests.
inline constexpr uint64_t test_region = 1ull << 39;
inline constexpr uint64_t test_region_size = 1ull << 30;

/// The 4 KiB page-table entry of a page in the test region, for a test to write as it likes. Made on first use.
uint64_t& test_page_entry(uint64_t address);

/// Maps, or unmaps, a page of the test region. Flushes nothing, on no CPU: that is the test's business.
void map_test_page(uint64_t address, uint64_t physical, bool writable);
void unmap_test_page(uint64_t address);

}  // namespace os
