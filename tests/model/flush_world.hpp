// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// What the models of TLB flushes share. CPU 0 uses two pages through a TLB. Each of two flushers unmaps one of them,
/// flushes CPU 0, and once told that the flush is done gives the page to somebody else, who writes to it. So a use
/// through a translation that should be gone is a data race, and so is an earlier use that is not ordered before the
/// reuse. A flusher that is told to interrupt CPU 0 stays there for good: the IPI is the kernel's own protocol.
///
/// All that a test varies, mutations as well, is chosen at run time: one suite type a program.

#include <optional>

#include <pvx/guest/steal_time.hpp>
#include <pvx/guest/tlb_flush.hpp>
#include <pvx/host/steal_time.hpp>

#include "support/model.hpp"

namespace pvx_test {

inline constexpr cpu_index cpu0{0};
inline constexpr unsigned flushers = 2;  ///< Threads 1 and 2; thread 0 is CPU 0.

/// Flushes that returned, in all runs of a suite.
inline unsigned long long flushes_returned = 0;

/// The two pages, with CPU 0's TLB.
class flushed_pages {
public:
    void before() {
        for (unsigned i = 0; i < flushers; ++i) {
            entries_[i].store(mapped, rl::mo_relaxed, place{}.info());
            pages_[i](place{}.info()).store(0);
            tlb_[i] = mapped;
        }
    }

    /// CPU 0 walks the tables for what its TLB does not hold.
    void fill() {
        for (unsigned i = 0; i < flushers; ++i)
            if (tlb_[i] == none) tlb_[i] = entries_[i].load(rl::mo_relaxed, place{}.info());
    }
    /// CPU 0 uses both pages, where it still has them.
    void use(place where = {}) {
        fill();
        touch(tlb_, where);
    }
    void drop() { tlb_[0] = tlb_[1] = none; }

    /// An emulator translates for CPU 0, and uses that later.
    void translate() {
        fill();
        held_[0] = tlb_[0];
        held_[1] = tlb_[1];
    }
    void use_translated(place where = {}) { touch(held_, where); }

    /// The flusher's two ends: before its flush, and when that has returned.
    void unmap(unsigned i, place where = {}) { entries_[i].store(unmapped, rl::mo_relaxed, where.info()); }
    void reuse(unsigned i, place where = {}) {
        flushes_returned += 1;
        pages_[i](where.info()).store(1);
    }

private:
    enum : uint8_t { none, mapped, unmapped };

    void touch(uint8_t const (&translations)[flushers], place const& where) {
        for (unsigned i = 0; i < flushers; ++i)
            // Seen as reused, the page is as wrong as in a race with the reuse; one failure for both.
            if (translations[i] == mapped && pages_[i](where.info()).load() != 0)
                rl::ctx().fail_test("a page is used through a translation that was flushed", rl::test_result_data_race,
                                    where.info());
    }

    rl::atomic<uint8_t> entries_[flushers];
    rl::var<int> pages_[flushers];
    uint8_t tlb_[flushers];
    uint8_t held_[flushers];
};

/// What is wrong with a host.
enum class host_bug : uint8_t {
    none,
    clears_by_store,        ///< Clears the byte by a load and a store.
    acts_then_clears,       ///< Does the flush that it found, then clears the byte.
    stores_over_flush,      ///< Sets its bits by a plain store.
    adds_by_comparing,      ///< Sets its bits by a plain store once it saw that no flush is pending.
    no_fail_safe,           ///< Does not flush where it cannot know.
    no_take_back,           ///< Leaves its bits in a page that the guest withdraws.
    takes_back_only,        ///< Takes them back, but does not do the flush that it finds.
    old_page,               ///< Sets its bits in the page that was registered first.
    flush_is_no_fence,      ///< Its flush orders nothing.
    reads_before_fence,     ///< Its flush reads the guest's page tables first and is a fence afterwards.
    reads_and_is_no_fence,  ///< Its flush reads them and orders nothing.
};

/// What happens to the memory of the steal-time page once no flusher uses it any more: its removal waits for them.
enum class map_change : uint8_t { none, unmapped, remapped };

struct flush_world;

/// CPU 0's host. As weak as its roles allow: neither entry nor counter of the page orders anything.
struct host_environment : relacy_atomics<chosen> {
    static inline host_bug bug = host_bug::none;
    static inline map_change change = map_change::none;
    static inline flush_world* world = nullptr;

    /// The byte, with the host's one step that is wrong.
    struct byte_ref : relacy_ref<uint8_t, chosen> {
        using relacy_ref::relacy_ref;
        uint8_t exchange(uint8_t v, rmw_order auto o, place where = {}) const;
        uint8_t fetch_or(uint8_t bits, rmw_order auto o, place where = {}) const;
    };

    template <word T>
    auto ref(T& plain) const {
        check_page(&plain);
        if constexpr (sizeof(T) == 1)
            return byte_ref{relacy_memory::behind(plain)};
        else
            return builtin_atomics{}.ref(plain);  // the sums behind the counter: seqcount_model.cpp
    }
    template <word T>
    auto ref(rl::atomic<T>& object) const {
        return relacy_atomics<chosen>::ref(object);
    }
    void fence(fence_order auto) const {}

    nanoseconds run_delay() const { return nanoseconds{0}; }
    int read_guard() const { return 0; }
    void mark_dirty(guest_phys) const {}
    bool can_sleep() const { return false; }
    uint64_t memory_generation() const;
    template <class T>
    T* map(guest_phys address) const;
    void flush_guest_tlb() const;
    void event(host::steal_event e) const;

    /// The host writes where the guest told it last, and nowhere else.
    void check_page(void const* word) const;
};

/// Shared state, made anew for each run.
struct flush_world {
    static constexpr unsigned steal_pages = 2;
    static inline abi::kvm_steal_time steal[steal_pages];

    relacy_memory memory;
    flushed_pages pages;
    rl::atomic<uint64_t> generation;  ///< Of the memory map.
    rl::atomic<uint32_t> done;        ///< Flushers that will not touch the steal-time page again.
    rl::atomic<uint8_t> registered;   ///< Which steal-time page the guest looks at.
    std::optional<host::steal_time<host_environment>> host;
    host::steal_event last{};
    uint64_t told{};                   ///< What the guest wrote to the MSR last.
    bool changing_page{};              ///< It is being told another.
    bool interrupted[1 + flushers]{};  ///< Threads that must interrupt CPU 0.

    static guest_phys address(unsigned page) { return guest_phys{(1 + page) * uint64_t{sizeof steal[0]}}; }

    /// CPU 0 runs with its first page registered.
    void before(bool in_host) {
        host_environment::world = this;
        pages.before();
        generation.store(0, rl::mo_relaxed, place{}.info());
        done.store(0, rl::mo_relaxed, place{}.info());
        registered.store(0, rl::mo_relaxed, place{}.info());
        for (auto& page : steal) {
            page = {};
            memory.adopt(page.preempted);
        }
        host.emplace(host_environment{}, in_host);
        uint64_t const asked = in_host ? abi::proposed::steal_time_in_host : 0;
        write_msr(abi::kvm_msr::steal_time.index, address(0).value | abi::kvm_msr_enable | asked);
    }

    /// CPU 0's write exits to the host and comes back.
    void write_msr(uint32_t index, uint64_t value) {
        // Meanwhile the old page is still the host's.
        changing_page = true;
        require(host->write_msr(index, value) == host::msr_outcome::done, "the host takes what the guest writes");
        changing_page = false;
        told = value;
        host->enter();
    }

    /// CPU 0 is sent an INIT.
    void reset() {
        changing_page = true;
        host->reset();
        changing_page = false;
        told = 0;
    }

    /// The host takes CPU 0 away and gives it back.
    void preempt() {
        host->put({.at_instruction_boundary = true, .preempted = true, .wants_to_run = true});
        host->load();
        host->enter();
    }
};

inline uint8_t host_environment::byte_ref::exchange(uint8_t v, rmw_order auto o, place where) const {
    if (bug != host_bug::clears_by_store && bug != host_bug::acts_then_clears) return relacy_ref::exchange(v, o, where);
    uint8_t const found = load(order::acquire, where);
    if (bug == host_bug::acts_then_clears && (found & abi::steal_flush_tlb) != 0) host_environment{}.flush_guest_tlb();
    store(v, order::seq_cst, where);
    return found;
}

inline uint8_t host_environment::byte_ref::fetch_or(uint8_t bits, rmw_order auto o, place where) const {
    if (bug == host_bug::old_page)
        return relacy_atomics<chosen>{}.ref(flush_world::steal[0].preempted).fetch_or(bits, o, where);
    if (bug != host_bug::stores_over_flush && bug != host_bug::adds_by_comparing)
        return relacy_ref::fetch_or(bits, o, where);
    uint8_t const found = load(order::acquire, where);
    bool const pending = (found & abi::steal_flush_tlb) != 0;
    if (bug == host_bug::adds_by_comparing && pending) return relacy_ref::fetch_or(bits, o, where);
    store(static_cast<uint8_t>((found | bits) & ~abi::steal_flush_tlb), order::release, where);
    return found;
}

inline uint64_t host_environment::memory_generation() const {
    // What is mapped counts as stale, and map() finds nothing, so that nothing is taken back.
    if (bug == host_bug::no_take_back && world->changing_page) return ~uint64_t{0};
    return change == map_change::none ? 0 : world->generation.load(rl::mo_acquire, place{}.info());
}

template <class T>
T* host_environment::map(guest_phys address) const {
    if (bug == host_bug::no_take_back && world->changing_page) return nullptr;
    if (change == map_change::unmapped && memory_generation() != 0) return nullptr;
    for (unsigned i = 0; i < flush_world::steal_pages; ++i)
        if (flush_world::address(i) == address) return &flush_world::steal[i];
    return nullptr;
}

inline void host_environment::flush_guest_tlb() const {
    if (bug == host_bug::takes_back_only && world->changing_page) return;
    if (bug == host_bug::no_fail_safe && world->last == host::steal_event::flushed_in_doubt) return;
    world->pages.drop();
    if (bug == host_bug::reads_before_fence || bug == host_bug::reads_and_is_no_fence) world->pages.fill();
    if (bug == host_bug::flush_is_no_fence || bug == host_bug::reads_and_is_no_fence) return;
    relacy_atomics<>{}.fence(order::seq_cst);
}

inline void host_environment::event(host::steal_event e) const { world->last = e; }

inline void host_environment::check_page(void const* word) const {
    auto const offset = reinterpret_cast<uintptr_t>(word) - reinterpret_cast<uintptr_t>(flush_world::steal);
    uint64_t const page = flush_world::address(static_cast<unsigned>(offset / sizeof flush_world::steal[0])).value;
    require((world->told & abi::kvm_msr_enable) != 0 && (world->told & ~uint64_t{63}) == page,
            "the host writes to the page that is registered");
}

/// The kernel of all three CPUs. What only one CPU writes, or nobody does, is no atomic of the model.
struct flush_machine : relacy_atomics<chosen>, relacy_relax {
    template <word T>
    auto ref(T& plain) const {
        if constexpr (sizeof(T) == 1)
            return relacy_atomics<chosen>::ref(plain);
        else
            return builtin_atomics{}.ref(plain);
    }
    template <word T>
    auto ref(rl::atomic<T>& object) const {
        return relacy_atomics<chosen>::ref(object);
    }

    static flush_world& world() { return *host_environment::world; }

    cpu_index self() const { return cpu_index{static_cast<uint32_t>(rl::thread_index())}; }
    uint32_t possible_cpus() const { return 1 + flushers; }
    apic_id apic(cpu_index cpu) const { return apic_id{cpu.value}; }
    template <class T>
    void flush_remote(const_cpu_mask_view, T const&, uint32_t) const {
        world().interrupted[rl::thread_index()] = true;  // the caller stays there: see above
    }
};

/// The flush of one CPU, CPU 0, by way of a mask. \return whether nobody had to be interrupted.
template <class Machine>
bool flush_cpu0(Machine machine, guest::flush_options options, guest::flush_kind kind) {
    unsigned long targets = 1;
    unsigned long scratch = 0;
    guest::flush_request const request{.strictest = kind};
    guest::tlb_flush<Machine>{machine, options}.flush({&targets, 1 + flushers}, request, {&scratch, 1 + flushers});
    return !machine.world().interrupted[rl::thread_index()];
}

/// The models of one suite, whose shape is Now.
template <class Suite, auto& Now>
class flush_models {
public:
    flush_models(int argc, char** argv) : model_(argc, argv) {}

    /// \pre a flush returns in some schedule, or, if `returns` is false, in none.
    void passes(char const* name, auto const& shape, model_bound bound = {3, 4}, bool returns = true) {
        choose<shipped>(shape);
        model_.passes<Suite>(name, bound);
        model_.reached((flushes_returned != 0) == returns, name, returns ? "no flush returned" : "a flush returned");
    }

    template <mutation M = shipped>
    void caught(char const* name, auto const& shape) {
        choose<M>(shape);
        model_.caught<Suite>(name, {3, 3}, rl::test_result_data_race);
    }

    int result() const { return model_.result(); }

private:
    template <mutation M>
    void choose(auto const& shape) {
        Now = shape;
        chosen::now = &M::apply;
        flushes_returned = 0;
    }

    model model_;
};

}  // namespace pvx_test
