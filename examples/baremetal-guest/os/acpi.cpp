// SPDX-License-Identifier: MIT

#include "acpi.hpp"

#include "console.hpp"
#include "memory.hpp"

namespace os {
namespace {

// Fields are read byte by byte: nothing in these tables is aligned.
template <class T>
T read(uint64_t address) {
    T value;
    __builtin_memcpy(&value, opaque_memory(address), sizeof(T));
    return value;
}

string_view text_at(uint64_t address, size_t size) { return {reinterpret_cast<char const*>(address), size}; }

bool sums_to_zero(uint64_t address, uint32_t size) {
    uint8_t sum = 0;
    for (uint32_t i = 0; i < size; ++i) sum = static_cast<uint8_t>(sum + read<uint8_t>(address + i));
    return sum == 0;
}

// Offsets in the RSDP.
constexpr uint32_t rsdp_size_v1 = 20;
constexpr uint32_t rsdp_size_v2 = 36;
constexpr uint32_t rsdp_revision = 15;
constexpr uint32_t rsdp_rsdt = 16;
constexpr uint32_t rsdp_xsdt = 24;

// Offsets in every other table.
constexpr uint32_t table_size = 4;
constexpr uint32_t header_size = 36;
/// Larger tables are taken for a broken size.
constexpr uint32_t sane_size = 1 << 20;

constexpr uint32_t madt_entries = 44;
constexpr uint8_t madt_local_apic = 0;
constexpr uint8_t madt_local_x2apic = 9;
constexpr uint32_t madt_enabled = 1;

constexpr uint32_t fadt_pm_timer = 76;
constexpr uint32_t fadt_flags = 112;
constexpr uint32_t fadt_hardware_reduced = 1u << 20;

bool is_rsdp(uint64_t address) { return text_at(address, 8) == "RSD PTR " && sums_to_zero(address, rsdp_size_v1); }

/// [acpi 5.2.5.1]: the first KiB of the EBDA, and the BIOS's read-only memory, on 16-byte boundaries.
uint64_t find_rsdp() {
    constexpr uint64_t ebda_segment = 0x40e;
    uint64_t const ebda = uint64_t{read<uint16_t>(ebda_segment)} << 4;
    for (uint64_t a = ebda; ebda != 0 && a < ebda + 1024; a += 16)
        if (is_rsdp(a)) return a;
    constexpr uint64_t bios_begin = 0xe0000;
    constexpr uint64_t bios_end = 0x100000;
    for (uint64_t a = bios_begin; a < bios_end; a += 16)
        if (is_rsdp(a)) return a;
    return 0;
}

/// A table that can be read: below 4 GiB, of a sane size, with the right checksum.
bool is_good_table(uint64_t address) {
    if (address == 0 || address >= (1ull << 32) - sane_size) return false;
    uint32_t const size = read<uint32_t>(address + table_size);
    if (size < header_size || size > sane_size || !sums_to_zero(address, size)) {
        print("acpi: the table {} at {:#x} has a wrong size or checksum; ignored\n", text_at(address, 4), address);
        return false;
    }
    return true;
}

void add_cpu(acpi_info& info, uint32_t id) {
    for (uint32_t i = 0; i < info.cpu_count; ++i)
        if (info.apic_ids[i] == id) return;
    if (info.cpu_count == max_cpus)
        ++info.ignored_count;
    else
        info.apic_ids[info.cpu_count++] = id;
}

void read_madt(acpi_info& info, uint64_t table) {
    uint64_t const end = table + read<uint32_t>(table + table_size);
    for (uint64_t e = table + madt_entries; e + 2 <= end;) {
        uint8_t const type = read<uint8_t>(e);
        uint8_t const size = read<uint8_t>(e + 1);
        if (size < 2 || e + size > end) break;
        if (type == madt_local_apic && size >= 8) {
            uint8_t const id = read<uint8_t>(e + 3);
            if ((read<uint32_t>(e + 4) & madt_enabled) != 0 && id != 0xff) add_cpu(info, id);
        } else if (type == madt_local_x2apic && size >= 16) {
            uint32_t const id = read<uint32_t>(e + 4);
            if ((read<uint32_t>(e + 8) & madt_enabled) != 0 && id != 0xffffffff) add_cpu(info, id);
        }
        e += size;
    }
}

void read_fadt(acpi_info& info, uint64_t table) {
    uint32_t const size = read<uint32_t>(table + table_size);
    if (size < fadt_flags + 4) return;
    if ((read<uint32_t>(table + fadt_flags) & fadt_hardware_reduced) != 0) return;  // no such ports there
    uint32_t const port = read<uint32_t>(table + fadt_pm_timer);
    if (port <= 0xffff) info.pm_timer_port = static_cast<uint16_t>(port);
}

void read_table(acpi_info& info, uint64_t table) {
    if (!is_good_table(table)) return;
    reserve_memory(table, read<uint32_t>(table + table_size));
    string_view const signature = text_at(table, 4);
    if (signature == "APIC") read_madt(info, table);
    if (signature == "FACP") read_fadt(info, table);
}

}  // namespace

acpi_info read_acpi(uint64_t rsdp) {
    acpi_info info{};
    if (rsdp == 0 || rsdp >= 1ull << 32 || !is_rsdp(rsdp)) rsdp = find_rsdp();
    if (rsdp == 0) {
        print("acpi: no RSDP, neither from the loader nor in the BIOS's memory\n");
        return info;
    }
    bool const has_xsdt = read<uint8_t>(rsdp + rsdp_revision) >= 2 && sums_to_zero(rsdp, rsdp_size_v2) &&
                          read<uint64_t>(rsdp + rsdp_xsdt) != 0;
    uint64_t const list = has_xsdt ? read<uint64_t>(rsdp + rsdp_xsdt) : read<uint32_t>(rsdp + rsdp_rsdt);
    uint32_t const pointer_size = has_xsdt ? 8 : 4;
    if (!is_good_table(list)) return info;
    uint32_t const list_size = read<uint32_t>(list + table_size);
    reserve_memory(list, list_size);
    for (uint64_t p = list + header_size; p + pointer_size <= list + list_size; p += pointer_size)
        read_table(info, has_xsdt ? read<uint64_t>(p) : read<uint32_t>(p));
    return info;
}

}  // namespace os
