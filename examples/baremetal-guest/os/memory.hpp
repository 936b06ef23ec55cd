// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Pages from the RAM that the loader names, below 4 GiB and never given back. All of it is mapped one to one, so an
/// address is a guest-physical address.

#include <stddef.h>
#include <stdint.h>

namespace os {

/// Before the first allocation: this is RAM; this part of it is in use.
void add_memory(uint64_t address, uint64_t size);
void reserve_memory(uint64_t address, uint64_t size);

/// Zeroed, contiguous pages, of any CPU's. Panics if there are none left.
void* allocate_pages(size_t count);
inline void* allocate_page() { return allocate_pages(1); }

/// A free page below 1 MiB, for code that starts in real mode. Not zeroed, and the same one each time.
uint64_t low_page();

/// RAM below 4 GiB that the loader named, and what allocations took of it; in bytes.
uint64_t memory_size();
uint64_t memory_used();

/// The guest-physical address of an object of this kernel, wherever it is, stacks included.
inline uint64_t physical_address(void const* object) { return reinterpret_cast<uint64_t>(object); }

}  // namespace os
