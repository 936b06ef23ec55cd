// SPDX-License-Identifier: MIT
#include <pvx/base/seqcount.hpp>

#include <vector>

#include "support/catch.hpp"
#include "support/recording_atomics.hpp"
#include "support/seqcount_client.hpp"
#include "support/tsan_atomics.hpp"

using namespace pvx;
using namespace pvx_test;

namespace {

using record_type = seqcount_record<recording_atomics>;
using kind = recorded::kind;

constexpr int relaxed = order::relaxed.builtin;
constexpr int acquire = order::acquire.builtin;
constexpr int release = order::release.builtin;

/// A record that holds update n under `version`.
record_type record_of(uint32_t version, uint64_t n) { return {version, n, n, static_cast<uint8_t>(n)}; }

}  // namespace

TEST_CASE("the writer's stores come in this order and with these orders", "[base][seqcount]") {
    recording notes;
    recording_atomics const a{notes};
    record_type r = record_of(4, 1);
    seqcount_publish(a, r, 2);
    CHECK(notes.steps == std::vector<recorded>{
                             {kind::load, &r.version, 4, relaxed},
                             {kind::store, &r.version, 5, relaxed},
                             {kind::fence, nullptr, 0, release},
                             {kind::store, &r.first, 2, relaxed},
                             {kind::store, &r.second, 2, relaxed},
                             {kind::store, &r.third, 2, relaxed},
                             {kind::store, &r.version, 6, release},
                         });
}

TEST_CASE("the reader's loads come in this order and with these orders", "[base][seqcount]") {
    recording notes;
    recording_atomics const a{notes};
    record_type r = record_of(4, 1);
    seqcount_copy got;
    CHECK(seqcount_try_read(a, r.version, [&] { seqcount_take(a, r, got); }));
    CHECK(notes.steps == std::vector<recorded>{
                             {kind::load, &r.version, 4, acquire},
                             {kind::load, &r.first, 1, relaxed},
                             {kind::load, &r.second, 1, relaxed},
                             {kind::load, &r.third, 1, relaxed},
                             {kind::fence, nullptr, 0, acquire},
                             {kind::load, &r.version, 4, relaxed},
                         });
}

TEST_CASE("a reader that finds an odd version copies nothing", "[base][seqcount]") {
    recording notes;
    recording_atomics const a{notes};
    record_type r = record_of(5, 1);
    bool copied = false;
    CHECK_FALSE(seqcount_try_read(a, r.version, [&] { copied = true; }));
    CHECK_FALSE(copied);
    CHECK(notes.steps == std::vector<recorded>{{kind::load, &r.version, 5, acquire}});
}

TEST_CASE("after each step of two updates a reader gets one whole update or none", "[base][seqcount]") {
    // Even start: update 0 is there. Odd: a junk page, of which no reader may get anything.
    uint32_t const start = GENERATE(0u, 2u, 7u, 0xfffffffcu, 0xfffffffeu, 0xfffffffdu, 0xffffffffu);
    CAPTURE(start);
    recording notes;
    recording_atomics const a{notes};
    record_type r = start % 2 == 0 ? record_of(start, 0) : record_type{start, 101, 102, 103};
    std::vector<int> seen;  // per step the update that a reader gets, -1 for none
    notes.after = [&](recorded const&) {
        seqcount_copy got;
        bool const good = seqcount_get_bounded(a, r, 1, got);
        if (good) CHECK(got.whole());
        CHECK(good == (r.version % 2 == 0));
        seen.push_back(good ? static_cast<int>(got.first) : -1);
    };
    seqcount_publish(a, r, 1);
    seqcount_publish(a, r, 2);
    int const first = start % 2 == 0 ? 0 : -1;
    // Steps of an update: load, odd, fence, three fields, even.
    CHECK(seen == std::vector<int>{first, -1, -1, -1, -1, -1, 1, 1, -1, -1, -1, -1, -1, 2});
}

TEST_CASE("a reader refuses what it copied if an update came or began between its two looks", "[base][seqcount]") {
    // The other side acts after step `at` of the reader: 0 is its first look, 5 its last.
    int const at = GENERATE(range(0, 6));
    bool const whole_update = GENERATE(false, true);
    CAPTURE(at, whole_update);
    recording notes;
    recording_atomics const a{notes};
    record_type r = record_of(8, 1);
    int step = 0;
    notes.after = [&](recorded const&) {
        if (step++ != at) return;
        if (whole_update) {
            seqcount_publish(a, r, 2);
        } else {
            seqcount_write_begin(a, r.version);
            a.ref(r.first).store(2, order::relaxed);
        }
    };
    seqcount_copy got;
    bool const good = seqcount_get_bounded(a, r, 1, got);
    CHECK(good == (at == 5));
    CHECK(got.first == (at == 5 ? 1 : 0));
    CHECK(got.whole());
}

TEST_CASE("an odd version that nobody works under counts as the even one after it", "[base][seqcount]") {
    auto const next = [](uint32_t version) {
        recording notes;
        recording_atomics const a{notes};
        uint32_t const odd = seqcount_write_begin(a, version);
        CHECK(version == odd);
        CHECK(odd % 2 == 1);
        seqcount_write_end(a, version, odd);
        CHECK(version == odd + 1);
        return odd;
    };
    CHECK(next(0) == 1);
    CHECK(next(2) == 3);
    CHECK(next(1) == 3);
    CHECK(next(7) == 9);
    CHECK(next(0xfffffffe) == 0xffffffff);
    CHECK(next(0xffffffff) == 1);
}

TEST_CASE("a bounded reader tries as often as it was told", "[base][seqcount]") {
    recording notes;
    recording_atomics const a{notes};
    record_type r = record_of(9, 1);
    uint32_t const attempts = GENERATE(0u, 1u, 5u);
    seqcount_copy got{7, 7, 7};
    CHECK_FALSE(seqcount_get_bounded(a, r, attempts, got));
    CHECK(notes.steps.size() == attempts);
    CHECK(got.first == 7);
}

TEST_CASE("a bounded reader uses the first try that succeeds", "[base][seqcount]") {
    recording notes;
    recording_atomics const a{notes};
    record_type r = record_of(9, 1);
    uint32_t looks = 0;
    notes.after = [&](recorded const&) {
        if (++looks == 2) seqcount_write_end(a, r.version, 9);
    };
    seqcount_copy got;
    CHECK(seqcount_get_bounded(a, r, 100, got));
    CHECK(got.first == 1);
    CHECK(looks == 2 + 6);
}

TEST_CASE("a waiting reader relaxes once for each failed try", "[base][seqcount]") {
    recording notes;
    recording_atomics const a{notes};
    record_type r = record_of(9, 1);
    int relaxes = 0;
    seqcount_copy const got = seqcount_get(a, r, [&] {
        if (++relaxes == 3) seqcount_write_end(a, r.version, 9);
    });
    CHECK(relaxes == 3);
    CHECK(got.first == 1);
}

TEST_CASE("the client works with the compiler's atomics", "[base][seqcount]") {
    thread_atomics const a;
    seqcount_record<thread_atomics> r;
    seqcount_copy got;
    for (uint64_t n = 0; n < 300; ++n) {
        seqcount_publish(a, r, n);
        REQUIRE(seqcount_get_bounded(a, r, 1, got));
        REQUIRE(got.whole());
        REQUIRE(got.first == n);
        REQUIRE(r.version == 2 * (n + 1));
    }
}
