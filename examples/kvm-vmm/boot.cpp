// SPDX-License-Identifier: MIT

#include "boot.hpp"

#include <elf.h>

#include <cstddef>
#include <fstream>
#include <sstream>

namespace {

/// Everything but the ELF file lies here, where a PC has its BIOS, and so outside of the memory map's RAM.
constexpr uint64_t tables_begin = 0xe0000;
constexpr uint64_t low_ram_end = 0xa0000;
constexpr uint64_t high_ram_begin = 0x100000;

template <class T>
std::string bytes_of(T const& value) {
    return {reinterpret_cast<char const*>(&value), sizeof value};
}

// --- the ELF file ---------------------------------------------------------------------------------------------------

/// Reads a T at `offset`, or says which file is too short.
template <class T>
T read(std::string const& image, uint64_t offset, std::string const& name) {
    if (offset > image.size() || image.size() - offset < sizeof(T)) throw failure(usage, name + " is cut short");
    T value;
    std::memcpy(&value, image.data() + offset, sizeof value);
    return value;
}

/// The entry point that a PVH note among the notes of `segment` names, or 0.
uint64_t pvh_entry(std::string const& image, Elf64_Phdr const& segment, std::string const& name) {
    constexpr uint32_t physical_entry = 18;
    uint64_t const end = segment.p_offset + segment.p_filesz;
    for (uint64_t at = segment.p_offset; at < end && end - at >= sizeof(Elf64_Nhdr);) {
        auto const note = read<Elf64_Nhdr>(image, at, name);
        uint64_t const text = at + sizeof note;
        uint64_t const value = text + ((uint64_t{note.n_namesz} + 3) & ~uint64_t{3});
        if (note.n_type == physical_entry && note.n_namesz == 4 && read<uint32_t>(image, text, name) == 0x006e6558)
            return read<uint32_t>(image, value, name);  // "Xen"; it may have 8 bytes, but is a 32-bit address
        at = value + ((uint64_t{note.n_descsz} + 3) & ~uint64_t{3});
    }
    return 0;
}

uint64_t load_elf(guest_memory& memory, std::string const& name) {
    std::ifstream in(name, std::ios::binary);
    std::ostringstream bytes;
    if (!(bytes << in.rdbuf())) throw failure(usage, "cannot read " + name);
    std::string const image = bytes.str();
    if (image.compare(0, SELFMAG, ELFMAG) != 0) throw failure(usage, name + " is not an ELF file");
    auto const header = read<Elf64_Ehdr>(image, 0, name);
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != EM_X86_64)
        throw failure(usage, name + " is an ELF file, but not for x86-64");
    uint64_t entry = 0;
    bool fits = true;
    for (uint64_t i = 0; i < header.e_phnum; ++i) {
        auto const segment = read<Elf64_Phdr>(image, header.e_phoff + i * sizeof(Elf64_Phdr), name);
        if (segment.p_offset > image.size() || segment.p_filesz > image.size() - segment.p_offset)
            throw failure(usage, name + " is cut short");
        if (segment.p_type == PT_NOTE && entry == 0) entry = pvh_entry(image, segment, name);
        if (segment.p_type != PT_LOAD) continue;
        // Behind what is in the file there are zeros already.
        fits = fits && segment.p_memsz >= segment.p_filesz && segment.p_memsz <= memory.size() &&
               segment.p_paddr >= high_ram_begin && segment.p_paddr <= memory.size() - segment.p_memsz &&
               memory.write(segment.p_paddr, {image.data() + segment.p_offset, segment.p_filesz});
    }
    if (entry == 0) throw failure(usage, name + " has no PVH note (name Xen, type 18); readelf -nW shows the notes");
    if (!fits)
        throw failure(usage, name + " does not fit between 1 MiB and the end of memory; --memory MIB gives more");
    return entry;
}

// --- the tables -----------------------------------------------------------------------------------------------------

/// One behind the other.
struct table_writer {
    guest_memory& memory;
    uint64_t next = tables_begin;

    uint64_t add(std::string const& table) {
        uint64_t const address = std::exchange(next, (next + table.size() + 15) & ~uint64_t{15});
        if (next > high_ram_begin || !memory.write(address, table))
            throw failure(usage, "the command line is too long");
        return address;
    }
};

/// Makes the bytes' sum zero by the one at `place`.
std::string with_checksum(std::string table, size_t place, size_t size) {
    int sum = 0;
    for (char c : std::string_view(table).substr(0, size)) sum += c;
    table[place] = static_cast<char>(table[place] - sum);
    return table;
}

std::string acpi_table(std::string const& signature, uint8_t revision, std::string const& body) {
    std::string const header = signature + bytes_of(static_cast<uint32_t>(36 + body.size())) + bytes_of(revision) +
                               std::string(1, 0) + "PVX   " + "KVM-VMM " + bytes_of(uint32_t{1}) + "PVX " +
                               bytes_of(uint32_t{1});
    return with_checksum(header + body, 9, 36 + body.size());
}

/// MADT: the local APICs, and the I/O APIC, whose id comes behind theirs.
std::string madt(uint32_t vcpus) {
    std::string body = bytes_of(uint32_t{0xfee00000}) + bytes_of(uint32_t{1});  // there are PICs as well
    for (uint32_t id = 0; id < vcpus; ++id) {
        uint8_t const entry[] = {0, 8, static_cast<uint8_t>(id), static_cast<uint8_t>(id), 1, 0, 0, 0};
        body += bytes_of(entry);
    }
    uint8_t const io_apic[] = {1, 12, static_cast<uint8_t>(vcpus), 0, 0, 0, 0xc0, 0xfe, 0, 0, 0, 0};
    return acpi_table("APIC", 5, body + bytes_of(io_apic));
}

std::string rsdp(uint64_t xsdt) {
    std::string const table = std::string("RSD PTR ") + std::string(1, 0) + "PVX   " + std::string(1, 2) +
                              bytes_of(uint32_t{0}) + bytes_of(uint32_t{36}) + bytes_of(xsdt) + std::string(4, 0);
    return with_checksum(with_checksum(table, 8, 20), 32, 36);
}

struct memory_map_entry {
    uint64_t address, size;
    uint32_t type, reserved;
};

struct start_info {
    uint32_t magic = 0x336ec578, version = 1, flags = 0, module_count = 0;
    uint64_t modules = 0, command_line, rsdp, memory_map;
    uint32_t memory_map_count = 2, reserved = 0;
};
static_assert(sizeof(start_info) == 56 && offsetof(start_info, memory_map) == 40);

}  // namespace

boot_entry load_guest(guest_memory& memory, std::string const& guest, std::string const& command_line, uint32_t vcpus) {
    uint64_t const entry = load_elf(memory, guest);
    table_writer tables{memory};
    memory_map_entry const map[] = {{0, low_ram_end, 1, 0}, {high_ram_begin, memory.size() - high_ram_begin, 1, 0}};
    start_info start;
    start.command_line = tables.add(command_line + '\0');
    start.rsdp = tables.add(rsdp(tables.add(acpi_table("XSDT", 1, bytes_of(tables.add(madt(vcpus)))))));
    start.memory_map = tables.add(bytes_of(map));
    return {entry, tables.add(bytes_of(start))};
}
