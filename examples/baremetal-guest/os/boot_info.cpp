// SPDX-License-Identifier: MIT

#include "boot_info.hpp"

#include "cpu_ops.hpp"
#include "memory.hpp"
#include "panic.hpp"

namespace os {
namespace {

struct pvh_start_info {
    uint32_t magic;
    uint32_t version;
    uint32_t flags;
    uint32_t module_count;
    uint64_t modules;
    uint64_t command_line;
    uint64_t rsdp;
    // From version 1 on:
    uint64_t memory_map;
    uint32_t memory_map_count;
    uint32_t reserved;
};
static_assert(sizeof(pvh_start_info) == 56);
constexpr uint32_t pvh_magic = 0x336ec578;

struct pvh_module {
    uint64_t address;
    uint64_t size;
    uint64_t command_line;
    uint64_t reserved;
};

struct pvh_memory {
    uint64_t address;
    uint64_t size;
    uint32_t type;
    uint32_t reserved;
};
static_assert(sizeof(pvh_memory) == 24);

/// In both protocols, as in every E820 map.
constexpr uint32_t memory_is_ram = 1;

struct multiboot2_tag {
    uint32_t type;
    uint32_t size;
};

struct multiboot2_module {
    multiboot2_tag tag;
    uint32_t begin;
    uint32_t end;
};

struct multiboot2_memory_map {
    multiboot2_tag tag;
    uint32_t entry_size;
    uint32_t entry_version;
};

namespace multiboot2_type {
constexpr uint32_t end = 0;
constexpr uint32_t command_line = 1;
constexpr uint32_t module = 3;
constexpr uint32_t memory_map = 6;
constexpr uint32_t rsdp_old = 14;
constexpr uint32_t rsdp_new = 15;
}  // namespace multiboot2_type

constexpr size_t command_line_capacity = 2048;
constinit char command_line_copy[command_line_capacity + 1]{};

/// GRUB hands over a copy of the RSDP, in memory that is about to be reused.
alignas(8) constinit uint8_t rsdp_copy[36]{};

template <class T>
T const* at(uint64_t address) {
    return reinterpret_cast<T const*>(address);
}

string_view copy_command_line(string_view text) {
    string_view const kept = text.first(command_line_capacity);
    copy_bytes(command_line_copy, kept.data(), kept.size());
    return {command_line_copy, kept.size()};
}

boot_info read_pvh(uint64_t address) {
    auto const& start = *at<pvh_start_info>(address);
    if (start.magic != pvh_magic) panic("EBX = {:#x} points to no PVH start info", address);
    if (start.version < 1 || start.memory_map_count == 0) panic("the PVH start info has no memory map");
    reserve_memory(address, sizeof(start));
    reserve_memory(start.memory_map, start.memory_map_count * sizeof(pvh_memory));
    for (uint32_t i = 0; i < start.memory_map_count; ++i) {
        auto const& entry = at<pvh_memory>(start.memory_map)[i];
        if (entry.type == memory_is_ram) add_memory(entry.address, entry.size);
    }
    reserve_memory(start.modules, start.module_count * sizeof(pvh_module));
    for (uint32_t i = 0; i < start.module_count; ++i) {
        auto const& module = at<pvh_module>(start.modules)[i];
        reserve_memory(module.address, module.size);
    }
    boot_info info;
    if (start.command_line != 0) info.command_line = copy_command_line(at<char>(start.command_line));
    info.rsdp = start.rsdp;
    return info;
}

boot_info read_multiboot2(uint64_t address) {
    uint32_t const total = *at<uint32_t>(address);
    reserve_memory(address, total);
    boot_info info;
    for (uint64_t p = address + 8; p + sizeof(multiboot2_tag) <= address + total;) {
        auto const& tag = *at<multiboot2_tag>(p);
        uint64_t const body = p + sizeof(multiboot2_tag);
        switch (tag.type) {
            case multiboot2_type::end: return info;
            case multiboot2_type::command_line: info.command_line = copy_command_line(at<char>(body)); break;
            case multiboot2_type::module: {
                auto const& module = *at<multiboot2_module>(p);
                reserve_memory(module.begin, module.end - module.begin);
                break;
            }
            case multiboot2_type::memory_map: {
                uint32_t const entry_size = at<multiboot2_memory_map>(p)->entry_size;
                if (entry_size < sizeof(pvh_memory))
                    panic("the multiboot 2 memory map has entries of {} bytes", entry_size);
                for (uint64_t e = p + sizeof(multiboot2_memory_map); e + entry_size <= p + tag.size; e += entry_size)
                    if (at<pvh_memory>(e)->type == memory_is_ram)  // the same layout as in PVH
                        add_memory(at<pvh_memory>(e)->address, at<pvh_memory>(e)->size);
                break;
            }
            case multiboot2_type::rsdp_old:
                if (info.rsdp != 0) break;  // the new one is better
                [[fallthrough]];
            case multiboot2_type::rsdp_new: {
                size_t const size = tag.size - sizeof(tag);
                copy_bytes(rsdp_copy, at<void>(body), size < sizeof(rsdp_copy) ? size : sizeof(rsdp_copy));
                info.rsdp = reinterpret_cast<uint64_t>(rsdp_copy);
                break;
            }
            default: break;
        }
        p += (tag.size + 7) & ~7u;
    }
    return info;
}

}  // namespace

boot_info read_boot_info(boot_protocol protocol, uint64_t address) {
    return protocol == boot_protocol::pvh ? read_pvh(address) : read_multiboot2(address);
}

}  // namespace os
