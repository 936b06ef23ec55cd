// SPDX-License-Identifier: MIT
#include <pvx/arch/x86_64.hpp>
#include <pvx/host/xstate_layout.hpp>

#include <array>

#include "support/operation.hpp"
#include "support/xstate_corpus.hpp"

using namespace pvx_bench;

namespace {

using pvx::host::xsave_format;

pvx::host::xstate_layout const layout = [] {
    pvx::host::xstate_layout l;
    (void)l.set_up(pvx_test::xstate_cpuid{&pvx_test::sapphire_rapids});
    return l;
}();

// The way of a kernel that keeps the sub-leaves: one step for each component.
std::array<pvx::abi::cpuid_regs, 20> const records = [] {
    std::array<pvx::abi::cpuid_regs, 20> r;
    for (uint32_t n = 2; n < r.size(); ++n) r[n] = pvx_test::xstate_cpuid{&pvx_test::sapphire_rapids}.cpuid(0xd, n);
    return r;
}();

template <class Subleaf>
[[gnu::always_inline]] inline uint32_t compacted_by(uint64_t mask, Subleaf&& subleaf) {
    uint32_t bytes = 576;
    mask &= ~uint64_t{3};
    for (uint32_t n = 2; mask >> n != 0; ++n) {
        if ((mask >> n & 1) == 0) continue;
        pvx::abi::cpuid_regs const regs = subleaf(n);
        if ((regs.ecx & 2) != 0) bytes = (bytes + 63) & ~63u;
        bytes += regs.eax;
    }
    return bytes;
}
[[gnu::noinline]] uint32_t by_loop(uint64_t mask) {
    return compacted_by(mask, [](uint32_t n) { return records[n]; });
}
[[gnu::noinline]] uint32_t by_table(uint64_t mask) { return layout.required_size<xsave_format::compacted>(mask).value; }

pvx::host::xsave_size_memo<xsave_format::compacted> memo;
[[gnu::noinline]] uint32_t by_memo(uint64_t mask) { return layout.required_size(mask, memo).value; }

[[gnu::noinline]] uint32_t by_cpuid(uint64_t mask) {
    return compacted_by(mask, [](uint32_t n) { return pvx::arch::x86_64{}.cpuid(0xd, n); });
}

[[gnu::noinline]] uint32_t nothing(uint64_t) {
    uint32_t size;
    __asm__ volatile("xor %0, %0" : "=r"(size) : : "cc");
    return size;
}

// Masks in no order that a CPU could learn, of the components that exist.
constexpr uint32_t turns = 1024;
std::array<uint64_t, turns> const any = [] {
    std::array<uint64_t, turns> m;
    uint64_t x = 88172645463325252;
    for (uint64_t& mask : m) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        mask = x & layout.components();
    }
    return m;
}();
// Each call waits for the answer of the one before: what is timed is how long an answer takes.
template <uint32_t Size(uint64_t)>
operation any_mask(char const* name) {
    return make_operation(name, [] {
        uint32_t size = 0;
        for (uint64_t mask : any) size = Size(mask ^ size);
        keep(size);
    });
}
template <uint32_t Size(uint64_t)>
operation same_mask(char const* name, uint32_t count = turns) {
    return make_operation(name, [count] {
        uint64_t mask = 0x602e7;
        for (uint32_t i = 0; i < count; ++i) {
            __asm__ volatile("" : "+r"(mask));  // the compiler must not know that it is the same
            keep(Size(mask));
        }
    });
}

bool add(char const* name, operation a, operation b, uint32_t items = turns) {
    pairs().push_back({name, std::move(a), std::move(b), items});
    return true;
}

bool const rows =
    add("xsave size: any mask", any_mask<by_table>("pvx"), any_mask<by_loop>("loop over cached records")) &&
    add("xsave size: any mask, floor", any_mask<by_table>("pvx"), any_mask<nothing>("empty call")) &&
    add("xsave size: same mask", same_mask<by_memo>("pvx"), same_mask<by_loop>("loop over cached records")) &&
    add("xsave size: same mask, floor", same_mask<by_memo>("pvx"), same_mask<nothing>("empty call")) &&
    add("xsave size: same mask, CPUID", same_mask<by_table>("pvx", 1), same_mask<by_cpuid>("a CPUID for each", 1), 1);

}  // namespace
