// SPDX-License-Identifier: MIT

/// \file
/// Pruning a flush mask, for each vCPU in it, beside the straightforward loop from set bit to set bit. In every row all
/// vCPUs but the flusher are in the mask; "N % preempted" of them are marked by the host, "pending" have a flush as
/// well. Records lie side by side, or 64 KiB apart as per-CPU areas do. Cold: no record is in a cache.

#include <sys/mman.h>

#include <pvx/guest/tlb_flush.hpp>

#include "pairs/user_machine.hpp"
#include "support/operation.hpp"

using namespace pvx_bench;

namespace {

constexpr uint32_t max_cpus = 4096;
constexpr uint32_t dense = sizeof(pvx::abi::kvm_steal_time);
constexpr uint32_t per_cpu_area = 64 << 10;

/// Room for all records at the largest stride; pages come when they are touched.
unsigned char* memory() {
    static void* const at = mmap(nullptr, size_t{max_cpus} * per_cpu_area, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) std::abort();
    return static_cast<unsigned char*>(at);
}

template <uint32_t Stride>
struct machine : user_machine {
    unsigned char* base = memory();

    template <class T>
    pvx::shared<T> record(pvx::cpu_index cpu) const {
        return {reinterpret_cast<T*>(base + size_t{cpu.value} * Stride), {}};
    }
};

unsigned long targets[max_cpus / 64];
unsigned long rest[max_cpus / 64];

template <uint32_t Stride>
void prune(machine<Stride> const& m, uint32_t cpus) {
    keep(pvx::guest::tlb_flush<machine<Stride>>(m, {.host_bits = pvx::abi::steal_preempted})
             .prune({targets, cpus}, {rest, cpus}, pvx::guest::flush_kind::leaves, [](pvx::cpu_index) {}));
}

/// The next set bit, as kernels have it: a function of its own library.
[[gnu::noinline]] uint32_t next_bit(unsigned long const* words, uint32_t bits, uint32_t from) {
    if (from >= bits) return bits;
    uint32_t i = from / 64;
    unsigned long word = words[i] & ~0ul << from % 64;
    while (word == 0) {
        if (++i * 64 >= bits) return bits;
        word = words[i];
    }
    uint32_t const bit = i * 64 + pvx::lowest_bit(word);
    return bit < bits ? bit : bits;
}

/// A copy of the mask, and for each bit a look, a CAS and a clearing of the bit.
template <uint32_t Stride>
void prune_each_bit(machine<Stride> const& m, uint32_t cpus) {
    for (uint32_t i = 0; i < cpus / 64 + (cpus % 64 != 0); ++i) rest[i] = targets[i];
    pvx::cpu_mask_view const mask{rest, cpus};
    for (uint32_t cpu = next_bit(rest, cpus, 0); cpu < cpus; cpu = next_bit(rest, cpus, cpu + 1)) {
        auto const byte = m.ref(m.template record<pvx::abi::kvm_steal_time>(pvx::cpu_index{cpu}).pointer->preempted);
        uint8_t seen = byte.load(pvx::order::relaxed);
        if ((seen & pvx::abi::steal_preempted) == 0) continue;
        uint8_t const owing = seen | pvx::abi::steal_flush_tlb;
        if (byte.compare_exchange(seen, owing, pvx::order::seq_cst, pvx::order::relaxed))
            mask.clear(pvx::cpu_index{cpu});
    }
    keep(rest);
}

struct state {
    char const* name;
    uint8_t byte;    ///< Of the vCPUs that are marked.
    uint32_t every;  ///< Each so-manieth is; 0: none.
    bool changes;    ///< By pruning.
};
constexpr state states[] = {
    {"0 % preempted", 0, 0, false},
    {"50 % preempted", pvx::abi::steal_preempted, 2, true},
    {"100 % preempted", pvx::abi::steal_preempted, 1, true},
    {"100 % pending", pvx::abi::steal_preempted | pvx::abi::steal_flush_tlb, 1, false},
};

template <uint32_t Stride>
void add_row(uint32_t cpus, state const& s, bool cold) {
    machine<Stride> const m;
    auto const set = [m, cpus, s, cold] {
        for (uint32_t i = 0; i < cpus; ++i) {
            targets[i / 64] |= 1ul << i % 64;
            auto* const record = m.template record<pvx::abi::kvm_steal_time>(pvx::cpu_index{i}).pointer;
            record->preempted = s.every != 0 && i % s.every == 0 ? s.byte : 0;
            if (cold) __builtin_ia32_clflush(record);
        }
        __builtin_ia32_mfence();
    };
    std::string const layout = Stride == dense ? "dense" : "64 KiB apart";
    std::string const name = "prune, a vCPU of " + std::to_string(cpus) + " " + layout + ", " + s.name;
    pair row{name + (cold ? ", cold" : ""), make_operation("pvx", [m, cpus] { prune(m, cpus); }),
             make_operation("each bit", [m, cpus] { prune_each_bit(m, cpus); }), cpus};
    // Rows share the memory, so each time begins with its own state; unprepared ones are timed in batches.
    bool const each_time = s.changes || cold;
    for (operation* o : {&row.a, &row.b}) {
        if (each_time)
            o->prepare = set;
        else
            o->run = [set, run = o->run](uint64_t n) { set(), run(n); };
    }
    row.in_quick = cpus == 64 && !cold;
    pairs().push_back(row);
}

template <uint32_t Stride>
bool add_rows() {
    for (state const& s : states) {
        for (uint32_t cpus : {8u, 64u, 256u, 1024u, 4096u}) add_row<Stride>(cpus, s, false);
        for (uint32_t cpus : {64u, 1024u}) add_row<Stride>(cpus, s, true);
    }
    return true;
}

bool const added = add_rows<dense>() && add_rows<per_cpu_area>();

}  // namespace
