// SPDX-License-Identifier: MIT

#include "memory.hpp"

#include "panic.hpp"
#include "per_cpu.hpp"
#include "spin_lock.hpp"

/// link.ld
extern "C" uint8_t image_start[], image_end[];

namespace os {
namespace {

constexpr uint64_t mib = 1 << 20;
constexpr uint64_t mapped_end = 1ull << 32;
/// Below are the real-mode interrupt table and the BIOS data area; old loaders keep things in the 28 KiB after them.
constexpr uint64_t low_begin = 0x8000;

struct range {
    uint64_t begin;
    uint64_t end;

    bool overlaps(uint64_t from, uint64_t to) const { return from < end && begin < to; }
    bool contains(uint64_t from, uint64_t to) const { return begin <= from && to <= end; }
};

template <uint32_t Capacity>
struct range_list {
    range items[Capacity];
    uint32_t count;

    void add(uint64_t begin, uint64_t end) {
        if (begin >= end) return;
        if (count == Capacity) panic("the loader describes memory in more than {} parts", Capacity);
        items[count++] = {begin, end};
    }
    range const* first() const { return items; }
    range const* last() const { return items + count; }
};

constinit range_list<128> ram{};
constinit range_list<128> reserved{};
constinit spin_lock allocator_lock;
constinit uint64_t next = mib;
constinit uint64_t used = 0;

/// End of the last reserved range that touches [begin, end); 0 if it is free.
uint64_t reserved_until(uint64_t begin, uint64_t end) {
    uint64_t until = 0;
    for (range const* r = reserved.first(); r != reserved.last(); ++r)
        if (r->overlaps(begin, end) && r->end > until) until = r->end;
    range const image{reinterpret_cast<uint64_t>(image_start), reinterpret_cast<uint64_t>(image_end)};
    if (image.overlaps(begin, end) && image.end > until) until = image.end;
    return until;
}

bool is_ram(uint64_t begin, uint64_t end) {
    for (range const* r = ram.first(); r != ram.last(); ++r)
        if (r->contains(begin, end)) return true;
    return false;
}

/// The lowest address above `address` where RAM begins; 0 if there is none.
uint64_t next_ram(uint64_t address) {
    uint64_t lowest = 0;
    for (range const* r = ram.first(); r != ram.last(); ++r)
        if (r->begin > address && (lowest == 0 || r->begin < lowest)) lowest = r->begin;
    return lowest;
}

/// The first free place for `size` bytes from `address` on; 0 if there is none.
uint64_t find_free(uint64_t address, uint64_t size) {
    while (address != 0) {
        address = pvx::align_up<uint64_t>(address, page_size);
        if (!is_ram(address, address + size))
            address = next_ram(address);
        else if (uint64_t const until = reserved_until(address, address + size))
            address = until;
        else
            return address;
    }
    return 0;
}

}  // namespace

void add_memory(uint64_t address, uint64_t size) {
    uint64_t const end = address + size;
    ram.add(address, end < mapped_end ? end : mapped_end);
}

void reserve_memory(uint64_t address, uint64_t size) { reserved.add(address, address + size); }

void* allocate_pages(size_t count) {
    uint64_t const size = count * page_size;
    void* pages = nullptr;
    {
        spin_guard const guard(allocator_lock);
        uint64_t const found = find_free(next, size);
        if (found == 0) panic("out of memory: {} pages of {} KiB", count, memory_size() / 1024);
        next = found + size;
        used += size;
        pages = reinterpret_cast<void*>(found);
    }
    set_bytes(pages, 0, size);
    return pages;
}

uint64_t low_page() {
    uint64_t const page = find_free(low_begin, page_size);
    if (page == 0 || page >= mib) panic("no free page below 1 MiB to start other CPUs in");
    return page;
}

uint64_t memory_size() {
    uint64_t size = 0;
    for (range const* r = ram.first(); r != ram.last(); ++r) size += r->end - r->begin;
    return size;
}

uint64_t memory_used() { return used; }

}  // namespace os
