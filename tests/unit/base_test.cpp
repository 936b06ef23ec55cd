// SPDX-License-Identifier: MIT
#include <pvx/base/atomics.hpp>
#include <pvx/base/bits.hpp>
#include <pvx/base/config.hpp>
#include <pvx/base/cpu_mask.hpp>
#include <pvx/base/status.hpp>
#include <pvx/base/std.hpp>
#include <pvx/base/types.hpp>

#include <set>
#include <string>
#include <thread>
#include <vector>

#include "support/catch.hpp"
#include "support/tsan_atomics.hpp"

using namespace pvx;

namespace {

// ---- std stand-ins ----

static_assert(same_as<int, int> && !same_as<int, unsigned> && !same_as<int, int const> && !same_as<int, int&>);
static_assert(convertible_to<int, long> && convertible_to<int*, void*> && convertible_to<char const*, std::string>);
static_assert(!convertible_to<void*, int*> && !convertible_to<std::string, int>);
static_assert(!convertible_to<uint32_t, cpu_index>, "only on purpose");
static_assert(word<uint8_t> && word<uint16_t> && word<uint32_t> && word<uint64_t> && word<unsigned long> &&
              word<unsigned long long>);
static_assert(!word<bool> && !word<char> && !word<signed char> && !word<int> && !word<int64_t> && !word<float> &&
              !word<void*> && !word<uint32_t const> && !word<uint32_t&> && !word<uint32_t volatile>);
static_assert(trivially_copyable<cpu_index> && trivially_copyable<shared<int>> && !trivially_copyable<std::string>);

static_assert(load_order<order::relaxed_t> && load_order<order::acquire_t> && load_order<order::seq_cst_t>);
static_assert(!load_order<order::release_t> && !load_order<order::acq_rel_t> && !load_order<int>);
static_assert(store_order<order::relaxed_t> && store_order<order::release_t> && store_order<order::seq_cst_t>);
static_assert(!store_order<order::acquire_t> && !store_order<order::acq_rel_t> && !store_order<int>);
static_assert(fence_order<order::acquire_t> && fence_order<order::release_t> && fence_order<order::acq_rel_t> &&
              fence_order<order::seq_cst_t>);
static_assert(!fence_order<order::relaxed_t> && !fence_order<int>);
static_assert(rmw_order<order::relaxed_t> && rmw_order<order::acquire_t> && rmw_order<order::release_t> &&
              rmw_order<order::acq_rel_t> && rmw_order<order::seq_cst_t> && !rmw_order<int>);

// ---- an order that an operation cannot have, or none, does not compile ----

using word_ref = builtin_atomic_ref<uint32_t>;

template <class R, class O>
concept can_load = requires(R r, O o) {
    r.load(o);
};
template <class R, class O>
concept can_store = requires(R r, O o) {
    r.store(0u, o);
};
template <class A, class O>
concept can_fence = requires(A a, O o) {
    a.fence(o);
};
template <class R>
concept loads_by_default = requires(R r) {
    r.load();
};
template <class R>
concept stores_by_default = requires(R r) {
    r.store(0u);
};

static_assert(can_load<word_ref, order::acquire_t> && !can_load<word_ref, order::release_t>);
static_assert(!can_load<word_ref, order::acq_rel_t> && !can_load<word_ref, int>);
static_assert(can_store<word_ref, order::release_t> && !can_store<word_ref, order::acquire_t>);
static_assert(can_fence<builtin_atomics, order::release_t> && !can_fence<builtin_atomics, order::relaxed_t>);
static_assert(!loads_by_default<word_ref> && !stores_by_default<word_ref>);

template <class A, class T>
concept can_ref = requires(A a, T& t) {
    a.ref(t);
};
static_assert(can_ref<builtin_atomics, uint8_t> && can_ref<builtin_atomics, uint64_t>);
static_assert(!can_ref<builtin_atomics, uint32_t const> && !can_ref<builtin_atomics, int> &&
              !can_ref<builtin_atomics, void*>);

static_assert(atomics_policy<builtin_atomics> && !atomics_policy<int>);
static_assert(__is_empty(builtin_atomics), "a machine that inherits it pays nothing");
static_assert(sizeof(builtin_atomics::cell<uint8_t>) == 1);

// ---- strong integers ----

template <class A, class B>
concept comparable = requires(A a, B b) {
    a == b;
};
template <class A, class B>
concept assignable = requires(A a, B b) {
    a = b;
};
template <class A, class B>
concept addable = requires(A a, B b) {
    a + b;
};

static_assert(comparable<cpu_index, cpu_index> && !comparable<cpu_index, apic_id> && !comparable<cpu_index, uint32_t>);
static_assert(assignable<apic_id&, apic_id> && !assignable<apic_id&, cpu_index> && !assignable<apic_id&, uint32_t>);
static_assert(!assignable<nanoseconds&, tsc_ticks> && !assignable<guest_phys&, uint64_t>);
static_assert(!assignable<uint32_t&, cpu_index>, "the number comes out by .value only");
static_assert(!addable<cpu_index, cpu_index> && !addable<nanoseconds, nanoseconds>);
static_assert(sizeof(cpu_index) == 4 && sizeof(apic_id) == 4 && sizeof(guest_phys) == 8 && sizeof(nanoseconds) == 8 &&
              sizeof(tsc_ticks) == 8);
static_assert(cpu_index{3} == cpu_index{3} && cpu_index{3} != cpu_index{4} && cpu_index{3} < cpu_index{4});
static_assert(!(cpu_index{4} < cpu_index{4}) && cpu_index{}.value == 0);
static_assert(shared<int>{}.pointer == nullptr && shared<int>{}.address == guest_phys{0});

// ---- masks ----

template <class M>
concept can_set = requires(M m) {
    m.set(cpu_index{0});
};
template <class M>
concept can_clear = requires(M m) {
    m.clear(cpu_index{0});
};
template <class M, class I>
concept can_test = requires(M m, I i) {
    m.test(i);
};

// ---- attributes ----

PVX_ENTRY_INLINE int entry(int v) { return v + 1; }
PVX_ALWAYS_INLINE constexpr int one(int v) { return v + 2; }

/// Bit by bit.
template <class T>
uint32_t slow_count(T v) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < bit_size<T>; ++i) n += ((uint64_t{v} >> i) & 1) != 0;
    return n;
}

/// Values whose bits are in no order.
std::vector<uint64_t> scattered() {
    std::vector<uint64_t> values{0,
                                 1,
                                 2,
                                 3,
                                 0x80,
                                 0xff,
                                 0x8000,
                                 0xffff,
                                 0x80000000,
                                 0xffffffff,
                                 0x100000000,
                                 0x8000000000000000,
                                 0xffffffffffffffff};
    uint64_t x = 0x9e3779b97f4a7c15;
    for (int i = 0; i < 200; ++i) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        values.push_back(x);
    }
    return values;
}

}  // namespace

TEMPLATE_TEST_CASE("bit functions agree with bit-by-bit arithmetic", "[base][bits]", uint8_t, uint16_t, uint32_t,
                   uint64_t, unsigned long long) {
    using T = TestType;
    constexpr uint32_t size = bit_size<T>;
    CHECK(size == sizeof(T) * 8);
    for (uint32_t n = 0; n < size; ++n) {
        CHECK(bit<T>(n) == static_cast<T>(uint64_t{1} << n));
        CHECK(bit<T>(n + size) == bit<T>(n));
        CHECK(lowest_bit(bit<T>(n)) == n);
        CHECK(bit_width(bit<T>(n)) == n + 1);
        CHECK(popcount(bit<T>(n)) == 1);
    }
    CHECK(lowest_bit(T{0}) == size);
    CHECK(bit_width(T{0}) == 0);
    for (uint32_t low = 0; low < size; ++low)
        for (uint32_t high = 0; high < size; ++high) {
            T expected = 0;
            for (uint32_t n = low; n <= high; ++n) expected = static_cast<T>(expected | bit<T>(n));
            REQUIRE(bit_range<T>(low, high) == expected);
        }
    for (uint64_t const raw : scattered()) {
        T const v = static_cast<T>(raw);
        REQUIRE(popcount(v) == slow_count(v));
        uint32_t lowest = 0;
        while (lowest < size && ((v >> lowest) & 1) == 0) ++lowest;
        REQUIRE(lowest_bit(v) == lowest);
        uint32_t width = size;
        while (width > 0 && ((v >> (width - 1)) & 1) == 0) --width;
        REQUIRE(bit_width(v) == width);
    }
}

TEMPLATE_TEST_CASE("alignment goes up to the next multiple and keeps a multiple", "[base][bits]", uint8_t, uint16_t,
                   uint32_t, uint64_t) {
    using T = TestType;
    for (uint32_t shift = 0; shift < 7; ++shift) {
        T const step = bit<T>(shift);
        for (uint32_t v = 0; v <= 128; ++v) {
            T const up = align_up(static_cast<T>(v), step);
            REQUIRE(up >= v);
            REQUIRE(up - v < step);
            REQUIRE(up % step == 0);
            REQUIRE(is_aligned(static_cast<T>(v), step) == (v % step == 0));
        }
    }
    T const last = static_cast<T>(~T{0});
    CHECK(align_up(last, T{1}) == last);
    CHECK(align_up(last, T{64}) == 0);  // wraps, like the arithmetic that it is
    CHECK(is_aligned(T{0}, T{64}));
}

TEST_CASE("bit functions are constant expressions", "[base][bits]") {
    static_assert(bit<uint64_t>(63) == 0x8000000000000000);
    static_assert(bit_range<uint64_t>(0, 63) == ~uint64_t{0} && bit_range<uint64_t>(1, 5) == 0x3e);
    static_assert(bit_range<uint8_t>(7, 7) == 0x80 && bit_range<uint32_t>(31, 31) == 0x80000000);
    static_assert(bit_range<uint32_t>(5, 3) == 0, "an empty range");
    static_assert(popcount(~uint64_t{0}) == 64 && popcount(uint8_t{0xff}) == 8);
    static_assert(lowest_bit(uint8_t{0}) == 8 && bit_width(~uint64_t{0}) == 64);
    static_assert(align_up(uint64_t{4097}, uint64_t{4096}) == 8192);
    SUCCEED();
}

TEST_CASE("all bits of a mask's words are valid but those beyond its end", "[base][cpu_mask]") {
    auto const valid = [](uint32_t bits, uint32_t i) { return const_cpu_mask_view{nullptr, bits}.valid_bits(i); };
    CHECK(valid(1, 0) == 1);
    CHECK(valid(63, 0) == ~0ul >> 1);
    CHECK(valid(64, 0) == ~0ul);
    CHECK(valid(65, 0) == ~0ul);
    CHECK(valid(65, 1) == 1);
    CHECK(valid(100, 1) == (1ul << 36) - 1);
    CHECK(valid(8192, 127) == ~0ul);
}

TEST_CASE("a CPU mask of any size holds exactly its CPUs", "[base][cpu_mask]") {
    uint32_t const bits = GENERATE(1u, 2u, 63u, 64u, 65u, 127u, 128u, 129u, 8191u, 8192u);
    CAPTURE(bits);
    constexpr uint32_t per_word = basic_cpu_mask_view<unsigned long>::word_bits;
    std::vector<unsigned long> words((bits + per_word - 1) / per_word, 0);
    cpu_mask_view const mask{words.data(), bits};
    CHECK(mask.word_count() == words.size());
    CHECK(mask.empty());
    CHECK(mask.count() == 0);

    // First, last, and the ones at each side of a word boundary.
    std::set<uint32_t> chosen;
    for (uint32_t cpu : {0u, 1u, 62u, 63u, 64u, 65u, 127u, 128u, bits - 1})
        if (cpu < bits) chosen.insert(cpu);
    for (uint32_t const cpu : chosen) {
        CHECK_FALSE(mask.test(cpu_index{cpu}));
        mask.set(cpu_index{cpu});
        CHECK(mask.test(cpu_index{cpu}));
        mask.set(cpu_index{cpu});
    }
    CHECK(mask.count() == chosen.size());
    CHECK_FALSE(mask.empty());
    for (uint32_t cpu = 0; cpu < bits; ++cpu) REQUIRE(mask.test(cpu_index{cpu}) == (chosen.count(cpu) == 1));

    std::vector<uint32_t> visited;
    mask.for_each([&](cpu_index cpu) { visited.push_back(cpu.value); });
    CHECK(visited == std::vector<uint32_t>(chosen.begin(), chosen.end()));

    for (uint32_t const cpu : chosen) {
        mask.clear(cpu_index{cpu});
        CHECK_FALSE(mask.test(cpu_index{cpu}));
        mask.clear(cpu_index{cpu});
    }
    CHECK(mask.empty());
}

TEST_CASE("bits behind the end of a mask are ignored and left alone", "[base][cpu_mask]") {
    uint32_t const bits = GENERATE(1u, 63u, 64u, 65u, 8191u, 8192u);
    CAPTURE(bits);
    // One word more than the mask has, all set.
    std::vector<unsigned long> words((bits + 63) / 64 + 1, ~0ul);
    cpu_mask_view const mask{words.data(), bits};
    CHECK(mask.count() == bits);
    CHECK(mask.test(cpu_index{bits - 1}));
    CHECK_FALSE(mask.test(cpu_index{bits}));
    CHECK_FALSE(mask.test(cpu_index{0xffffffff}));
    uint32_t next = 0;
    mask.for_each([&](cpu_index cpu) {
        REQUIRE(cpu.value == next);
        next += 1;
    });
    CHECK(next == bits);

    mask.for_each([&](cpu_index cpu) { mask.clear(cpu); });
    CHECK(mask.empty());
    CHECK(mask.count() == 0);
    CHECK(words.back() == ~0ul);
    if (bits % 64 != 0) CHECK(words[bits / 64] == ~0ul << (bits % 64));
}

TEST_CASE("a mask of no CPUs has no words", "[base][cpu_mask]") {
    constexpr cpu_mask_view none{};
    static_assert(none.word_count() == 0 && none.empty() && none.count() == 0 && !none.test(cpu_index{0}));
    none.for_each([](cpu_index) { FAIL("nobody is here"); });
}

TEST_CASE("a walk over a mask may clear what it visits and what it has not reached", "[base][cpu_mask]") {
    unsigned long words[3] = {~0ul, ~0ul, ~0ul};
    cpu_mask_view const mask{words, 192};
    std::vector<uint32_t> visited;
    mask.for_each([&](cpu_index cpu) {
        visited.push_back(cpu.value);
        mask.clear(cpu);
        if (cpu.value == 5) words[1] = bit<unsigned long>(3);  // a later word: seen
        if (cpu.value == 6) mask.clear(cpu_index{7});          // the same word: visited all the same
    });
    std::vector<uint32_t> expected;
    for (uint32_t i = 0; i < 64; ++i) expected.push_back(i);
    expected.push_back(64 + 3);
    for (uint32_t i = 128; i < 192; ++i) expected.push_back(i);
    CHECK(visited == expected);
    CHECK(mask.empty());
}

TEST_CASE("a mask that may be written serves where one is only read", "[base][cpu_mask]") {
    static_assert(convertible_to<cpu_mask_view, const_cpu_mask_view>);
    static_assert(!convertible_to<const_cpu_mask_view, cpu_mask_view>);
    static_assert(can_set<cpu_mask_view> && !can_set<const_cpu_mask_view>);
    static_assert(can_clear<cpu_mask_view> && !can_clear<const_cpu_mask_view>);
    static_assert(can_test<cpu_mask_view, cpu_index>);
    static_assert(!can_test<cpu_mask_view, uint32_t> && !can_test<cpu_mask_view, apic_id>);
    unsigned long word = 6;
    const_cpu_mask_view const mask = cpu_mask_view{&word, 3};
    CHECK(mask.words == &word);
    CHECK(mask.bits == 3);
    CHECK(mask.count() == 2);
}

TEST_CASE("every status has a text of its own", "[base][status]") {
    std::set<std::string> texts;
    uint8_t n = 0;
    for (; std::string(to_string(static_cast<status>(n))) != "unknown status"; ++n)
        CHECK(texts.insert(to_string(static_cast<status>(n))).second);
    CHECK(n == static_cast<uint8_t>(status::no_answer) + 1);
    CHECK(std::string(to_string(static_cast<status>(255))) == "unknown status");
    CHECK(std::string(to_string(status::ok)) == "ok");
    for (std::string const& text : texts) CHECK_FALSE(text.empty());
    static_assert(sizeof(status) == 1);
}

TEST_CASE("the attribute macros give functions that can be called", "[base][config]") {
    CHECK(entry(1) == 2);
    static_assert(one(1) == 3);
}

TEMPLATE_TEST_CASE("the compiler's atomics do what their names say", "[base][atomics]", uint8_t, uint16_t, uint32_t,
                   uint64_t) {
    using T = TestType;
    builtin_atomics const a;
    builtin_atomics::cell<T> object = 5;
    auto const ref = a.ref(object);
    static_assert(atomic_reference<decltype(ref), T>);
    CHECK(ref.load(order::relaxed) == 5);
    CHECK(ref.load(order::acquire) == 5);
    CHECK(ref.load(order::seq_cst) == 5);
    ref.store(6, order::relaxed);
    CHECK(object == 6);
    ref.store(7, order::release);
    CHECK(object == 7);
    ref.store(0x70, order::seq_cst);
    CHECK(object == 0x70);
    CHECK(ref.exchange(0x71, order::acq_rel) == 0x70);
    CHECK(ref.fetch_or(0x0e, order::release) == 0x71);
    CHECK(ref.fetch_and(0x7c, order::acquire) == 0x7f);
    CHECK(ref.fetch_add(1, order::relaxed) == 0x7c);
    CHECK(object == 0x7d);
    object = static_cast<T>(~T{0});
    CHECK(ref.fetch_add(2, order::seq_cst) == static_cast<T>(~T{0}));
    CHECK(object == 1);

    T expected = 2;
    CHECK_FALSE(ref.compare_exchange(expected, 9, order::acq_rel, order::relaxed));
    CHECK(expected == 1);
    CHECK(object == 1);
    CHECK(ref.compare_exchange(expected, 9, order::seq_cst, order::acquire));
    CHECK(expected == 1);
    CHECK(object == 9);
}

TEST_CASE("one byte of a word is changed without its neighbours", "[base][atomics]") {
    builtin_atomics const a;
    uint8_t bytes[4] = {1, 2, 3, 4};
    a.ref(bytes[1]).fetch_or(0xf0, order::seq_cst);
    a.ref(bytes[2]).store(0xff, order::release);
    CHECK(bytes[0] == 1);
    CHECK(bytes[1] == 0xf2);
    CHECK(bytes[2] == 0xff);
    CHECK(bytes[3] == 4);
}

TEST_CASE("no change by another thread is lost", "[base][atomics]") {
    pvx_test::thread_atomics const a;
    uint32_t counter = 0;
    uint32_t by_cas = 0;
    auto const work = [&] {
        for (int i = 0; i < 20000; ++i) {
            a.ref(counter).fetch_add(1, order::relaxed);
            uint32_t seen = a.ref(by_cas).load(order::relaxed);
            while (!a.ref(by_cas).compare_exchange(seen, seen + 1, order::acq_rel, order::relaxed)) {
            }
        }
    };
    std::thread other{work};
    work();
    other.join();
    CHECK(counter == 40000);
    CHECK(by_cas == 40000);
}

TEST_CASE("fences can be had in each order that orders something", "[base][atomics]") {
    pvx_test::thread_atomics const a;
    a.fence(order::acquire);
    a.fence(order::release);
    a.fence(order::acq_rel);
    a.fence(order::seq_cst);
    SUCCEED();
}
