// SPDX-License-Identifier: MIT

#include "paging.hpp"

#include <pvx/abi/cpuid.hpp>
#include <pvx/abi/msr.hpp>

#include "atomics.hpp"
#include "memory.hpp"
#include "panic.hpp"
#include "spin_lock.hpp"

/// link.ld
extern "C" uint8_t image_start[], text_start[], text_end[], image_end[];

namespace os {
namespace {

namespace abi = pvx::abi;

constexpr abi::cpuid_bit cpuid_no_execute{0x80000001, 0, abi::cpuid_reg::edx, 20};

constexpr uint64_t large_size = 2 << 20;
constexpr uint64_t identity_end = 1ull << 32;
/// The APICs are in the last 32 MiB of the identity map, with flash and firmware: all of it uncached.
constexpr uint64_t uncached_begin = 0xfe000000;

constinit uint64_t* root = nullptr;
constinit uint64_t no_execute = 0;
constinit spin_lock table_lock;

uint64_t address_of(void const* p) { return reinterpret_cast<uint64_t>(p); }

uint64_t* table_at(uint64_t entry) { return reinterpret_cast<uint64_t*>(entry & page_bit::address); }

/// Index in the table of a level: 3 is the root, 0 the page table.
uint32_t index_at(uint64_t address, uint32_t level) { return static_cast<uint32_t>(address >> (12 + 9 * level)) & 511; }

uint64_t* new_table(uint64_t& entry) {
    auto* const table = static_cast<uint64_t*>(allocate_page());
    entry = address_of(table) | page_bit::present | page_bit::writable;
    return table;
}

/// A 2 MiB page becomes 512 of 4 KiB that map the same.
uint64_t* split(uint64_t& entry) {
    uint64_t const old = entry & ~page_bit::large;
    auto* const table = static_cast<uint64_t*>(allocate_page());
    for (uint32_t i = 0; i < 512; ++i) table[i] = old + i * page_size;
    entry = address_of(table) | page_bit::present | page_bit::writable;
    return table;
}

/// The entry of a level for an address, with the tables above it made as needed.
uint64_t& entry_of(uint64_t address, uint32_t level) {
    uint64_t* table = root;
    for (uint32_t l = 3; l > level; --l) {
        uint64_t& entry = table[index_at(address, l)];
        table = (entry & page_bit::present) == 0 ? new_table(entry)
                : (entry & page_bit::large) != 0 ? split(entry)
                                                 : table_at(entry);
    }
    return table[index_at(address, level)];
}

void unmap(uint64_t address) {
    entry_of(address, 0) = 0;
    invlpg(address);
}

void enable_no_execute() {
    if (no_execute != 0)
        arch::write_msr(abi::msr::ia32_efer, arch::read_msr(abi::msr::ia32_efer) | abi::msr::efer::no_execute_enable);
}

}  // namespace

void initialise_paging() {
    if (abi::has(arch::cpuid(cpuid_no_execute.leaf, 0), cpuid_no_execute)) no_execute = 1ull << 63;
    enable_no_execute();

    root = static_cast<uint64_t*>(allocate_page());
    for (uint64_t a = 0; a < identity_end; a += large_size) {
        uint64_t const cache = a >= uncached_begin ? page_bit::cache_disable | page_bit::write_through : 0;
        entry_of(a, 1) = a | page_bit::present | page_bit::writable | page_bit::large | cache | no_execute;
    }
    for (uint64_t a = address_of(image_start); a < address_of(text_end); a += page_size)
        entry_of(a, 0) = a | page_bit::present | (a >= address_of(text_start) ? 0 : no_execute);
    entry_of(0, 0) = 0;
    load_page_map();
    protect_stacks(boot_stacks);
}

void load_page_map() {
    enable_no_execute();
    write_cr3(address_of(root));
}

void protect_stacks(cpu_stacks const& stacks) {
    spin_guard const guard(table_lock);
    unmap(address_of(stacks.guard_main));
    unmap(address_of(stacks.guard_nmi));
    unmap(address_of(stacks.guard_double_fault));
    unmap(address_of(stacks.guard_machine_check));
}

uint64_t& test_page_entry(uint64_t address) {
    if (address - test_region >= test_region_size) panic("{:#x} is not in the test region", address);
    spin_guard const guard(table_lock);
    return entry_of(address, 0);
}

void map_test_page(uint64_t address, uint64_t physical, bool writable) {
    uint64_t const entry = (physical & page_bit::address) | page_bit::present | (writable ? page_bit::writable : 0);
    // order: relaxed: a page walk of this CPU comes after it, and of another after whatever told it of the page
    atomics.ref(test_page_entry(address)).store(entry | no_execute, order::relaxed);
}

void unmap_test_page(uint64_t address) { atomics.ref(test_page_entry(address)).store(uint64_t{0}, order::relaxed); }

}  // namespace os
