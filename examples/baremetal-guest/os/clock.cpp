// SPDX-License-Identifier: MIT

#include "clock.hpp"

#include <pvx/abi/apic.hpp>
#include <pvx/abi/cpuid.hpp>

#include "apic.hpp"
#include "cpu_ops.hpp"

namespace os {
namespace {

namespace abi = pvx::abi;

__extension__ using wide = unsigned __int128;

constinit uint64_t the_tsc_hz = 0;
constinit string_view the_source;
constinit bool the_source_is_sure = true;
constinit uint64_t boot_tsc = 0;
// ns = ticks * ns_multiplier >> 32, and ticks = us * us_multiplier >> 32.
constinit uint64_t ns_multiplier = 0;
constinit uint64_t us_multiplier = 0;

// --- what the CPU or the hypervisor says -----------------------------------------------------------------------------

constexpr uint32_t leaf_frequencies = 0x16;
/// The hypervisor's timing leaf, a VMware convention that others follow: EAX = TSC, EBX = APIC bus, in kHz.
constexpr uint32_t leaf_hypervisor_timing = 0x40000010;

uint64_t hz_from_tsc_leaf() {
    if (arch::cpuid(0, 0).eax < abi::cpuid_leaf::tsc_ratio) return 0;
    auto const r = arch::cpuid(abi::cpuid_leaf::tsc_ratio, 0);
    return r.eax == 0 ? 0 : uint64_t{r.ecx} * r.ebx / r.eax;
}

uint64_t hz_from_hypervisor_leaf() {
    if (!abi::has(arch::cpuid(1, 0), abi::cpuid_feature::hypervisor)) return 0;
    if (arch::cpuid(abi::cpuid_leaf::hypervisor_first, 0).eax < leaf_hypervisor_timing) return 0;
    return uint64_t{arch::cpuid(leaf_hypervisor_timing, 0).eax} * 1000;
}

uint64_t hz_from_base_frequency() {
    if (arch::cpuid(0, 0).eax < leaf_frequencies) return 0;
    return uint64_t{arch::cpuid(leaf_frequencies, 0).eax & 0xffff} * 1'000'000;
}

// --- measured against another counter --------------------------------------------------------------------------------

/// A counter, read between two readings of the TSC. `count` is modulo mask + 1 of its reference; `lost` says that it
/// may have passed that.
struct reading {
    uint64_t before;
    uint64_t after;
    uint64_t count;
    bool lost;

    uint64_t width() const { return after - before; }
    uint64_t tsc() const { return before + width() / 2; }
};

/// A counter of known rate that counts up. start() is false where it is absent.
struct reference {
    string_view name;
    uint64_t hz;
    uint64_t mask;
    bool (*start)();
    reading (*read)();
};

// PIT channel 2 in mode 0: counts down from 65535, and its output tells whether it has passed 0. [i8254]
constexpr uint16_t pit_data = 0x42;
constexpr uint16_t pit_command = 0x43;
constexpr uint16_t pit_gate = 0x61;
constexpr uint8_t pit_mode = 0xb0;       // channel 2, low byte then high byte, mode 0
constexpr uint8_t pit_read_back = 0xc8;  // status and count of channel 2
constexpr uint8_t pit_output = 0x80;
constexpr uint8_t pit_not_loaded = 0x40;

bool pit_start() {
    out8(pit_gate, static_cast<uint8_t>((in8(pit_gate) & ~0x02u) | 0x01u));  // gate on, speaker off
    out8(pit_command, pit_mode);
    out8(pit_data, 0xff);
    out8(pit_data, 0xff);
    out8(pit_command, pit_read_back);
    uint8_t const status = in8(pit_data);
    in8(pit_data);
    in8(pit_data);
    return (status & 0x3f) == (pit_mode & 0x3f);  // an absent PIT reads as 0xff or 0
}

reading pit_read() {
    reading r{};
    r.before = arch::rdtsc_ordered();
    out8(pit_command, pit_read_back);  // this is when the count is taken; what follows fetches it
    r.after = arch::rdtsc_ordered();
    uint8_t const status = in8(pit_data);
    uint32_t const low = in8(pit_data);
    uint32_t const high = in8(pit_data);
    r.lost = (status & pit_output) != 0;
    r.count = (status & pit_not_loaded) != 0 ? 0 : 0xffff - (high << 8 | low);
    return r;
}

constinit uint16_t pm_timer = 0;

bool pm_start() { return pm_timer != 0 && in32(pm_timer) != 0xffffffff; }

reading pm_read() {
    reading r{};
    r.before = arch::rdtsc_ordered();
    r.count = in32(pm_timer);
    r.after = arch::rdtsc_ordered();
    return r;
}

// The local APIC's own counter, at the rate that KVM and QEMU give it. Only for a machine that has nothing better.
bool apic_start() {
    write_apic(abi::apic_reg::timer_divide, 0x0b);  // by 1
    write_apic(abi::apic_reg::timer_initial, 0xffffffff);
    return read_apic(abi::apic_reg::timer_current) != 0;
}

reading apic_read() {
    reading r{};
    r.before = arch::rdtsc_ordered();
    r.count = 0xffffffff - read_apic(abi::apic_reg::timer_current);
    r.after = arch::rdtsc_ordered();
    return r;
}

constexpr reference references[] = {
    {"measured against the ACPI PM timer", 3'579'545, 0xffffff, pm_start, pm_read},
    {"measured against the PIT", 1'193'182, 0xffff, pit_start, pit_read},
    {"measured against the APIC timer, taken to run at 1 GHz", 1'000'000'000, 0xffffffff, apic_start, apic_read},
};

/// The best of a few readings: the one that the fewest TSC ticks went by.
reading read_well(reference const& r) {
    reading best = r.read();
    for (uint32_t i = 0; i < 6; ++i) {
        reading const other = r.read();
        if (other.lost || best.lost) return other.lost ? other : best;
        if (other.width() < best.width()) best = other;
    }
    return best;
}

/// 0 if the counter is absent, does not count, or wrapped each time before it could be read.
uint64_t measure(reference const& r) {
    constexpr uint64_t measure_ms = 20;
    constexpr uint32_t max_polls = 10'000'000;
    uint64_t const wanted = r.hz * measure_ms / 1000;
    for (uint32_t attempt = 0; attempt < 5; ++attempt) {
        if (!r.start()) return 0;
        reading const first = read_well(r);
        reading now = first;
        for (uint32_t polls = 0; !now.lost && ((now.count - first.count) & r.mask) < wanted; ++polls) {
            if (polls == max_polls) return 0;
            now = r.read();
        }
        reading const last = read_well(r);
        if (first.lost || now.lost || last.lost) continue;
        return (last.tsc() - first.tsc()) * r.hz / ((last.count - first.count) & r.mask);
    }
    return 0;
}

void find_tsc_hz() {
    the_source = "CPUID leaf 0x15";
    if ((the_tsc_hz = hz_from_tsc_leaf()) != 0) return;
    the_source = "hypervisor's timing leaf 0x40000010";
    if ((the_tsc_hz = hz_from_hypervisor_leaf()) != 0) return;
    for (reference const& r : references) {
        the_source = r.name;
        the_source_is_sure = r.start != apic_start;
        if ((the_tsc_hz = measure(r)) != 0) return;
    }
    the_source_is_sure = false;
    the_source = "CPUID leaf 0x16, nominal";
    if ((the_tsc_hz = hz_from_base_frequency()) != 0) return;
    the_source = "a guess: nothing here tells time";
    the_tsc_hz = 1'000'000'000;
}

}  // namespace

void initialise_clock(uint16_t pm_timer_port) {
    pm_timer = pm_timer_port;
    boot_tsc = arch::rdtsc();
    find_tsc_hz();
    // Divisions of 64 by 64 bits only: 128-bit ones are calls into libgcc.
    ns_multiplier = (uint64_t{1'000'000'000} << 32) / the_tsc_hz;
    us_multiplier = (the_tsc_hz / 1'000'000 << 32) + ((the_tsc_hz % 1'000'000) << 32) / 1'000'000;
}

uint64_t tsc_hz() { return the_tsc_hz; }
string_view tsc_hz_source() { return the_source; }
bool tsc_hz_is_sure() { return the_source_is_sure; }

uint64_t tsc_to_ns(uint64_t ticks) { return static_cast<uint64_t>(wide{ticks} * ns_multiplier >> 32); }
uint64_t us_to_tsc(uint64_t us) { return static_cast<uint64_t>(wide{us} * us_multiplier >> 32); }
uint64_t uptime_ns() { return tsc_to_ns(arch::rdtsc_ordered() - boot_tsc); }

void delay_us(uint64_t us) {
    uint64_t const start = arch::rdtsc();
    uint64_t const ticks = us_to_tsc(us);
    while (arch::rdtsc() - start < ticks) arch::pause();
}

}  // namespace os
