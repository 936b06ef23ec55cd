// SPDX-License-Identifier: MIT
#include <pvx/guest/flush_request.hpp>

#include <algorithm>
#include <utility>
#include <vector>

#include "support/catch.hpp"

using namespace pvx::guest;

namespace {

std::vector<std::pair<uint64_t, uint64_t>> ranges(flush_request const& r) {
    std::vector<std::pair<uint64_t, uint64_t>> all;
    for (uint32_t i = 0; i < r.range_count; ++i) all.emplace_back(r.ranges[i].begin, r.ranges[i].end);
    return all;
}

constexpr flush_kind kinds[] = {flush_kind::leaves, flush_kind::attributes, flush_kind::tables, flush_kind::roots};

}  // namespace

TEST_CASE("A request is everything unless it names ranges", "[guest][flush_request]") {
    flush_range const one{0x1000, 0x2000};
    CHECK(flush_request{}.everything());
    CHECK(flush_request{}.kind() == flush_kind::leaves);
    CHECK_FALSE(flush_request{&one, 1, flush_kind::tables}.everything());
    CHECK(flush_request{&one, 1, flush_kind::tables}.kind() == flush_kind::tables);
    STATIC_REQUIRE(flush_request_policy<flush_request>);
}

TEST_CASE("A request type of the kernel's own needs a kind, and of that type", "[guest][flush_request]") {
    struct mine {
        flush_kind kind() const;
    };
    struct number {
        uint8_t kind() const;
    };
    struct not_const {
        flush_kind kind();
    };
    struct none {};
    STATIC_REQUIRE(flush_request_policy<mine>);
    STATIC_REQUIRE_FALSE(flush_request_policy<number>);
    STATIC_REQUIRE_FALSE(flush_request_policy<not_const>);
    STATIC_REQUIRE_FALSE(flush_request_policy<none>);
}

TEST_CASE("A batch keeps ranges in order and joins each to the one that it continues", "[guest][flush_request]") {
    flush_batch<3> batch;
    CHECK(batch.empty());
    batch.add({0x1000, 0x2000}, flush_kind::leaves);
    CHECK_FALSE(batch.empty());
    batch.add({0x2000, 0x5000}, flush_kind::leaves);
    batch.add({0x8000, 0x9000}, flush_kind::leaves);
    CHECK(ranges(batch.request()) == std::vector<std::pair<uint64_t, uint64_t>>{{0x1000, 0x5000}, {0x8000, 0x9000}});
    // What continues an earlier one than the last, overlaps, or comes before, is a range of its own.
    batch.add({0x5000, 0x6000}, flush_kind::leaves);
    CHECK(ranges(batch.request()) ==
          std::vector<std::pair<uint64_t, uint64_t>>{{0x1000, 0x5000}, {0x8000, 0x9000}, {0x5000, 0x6000}});
    batch.add({0x6000, 0x7000}, flush_kind::leaves);
    CHECK(ranges(batch.request()).back() == std::pair<uint64_t, uint64_t>{0x5000, 0x7000});
    CHECK_FALSE(batch.request().everything());
}

TEST_CASE("One range more than there is room for makes it everything, and it stays so", "[guest][flush_request]") {
    flush_batch<2> batch;
    batch.add({0x1000, 0x2000}, flush_kind::leaves);
    batch.add({0x4000, 0x5000}, flush_kind::leaves);
    CHECK(batch.request().range_count == 2);
    batch.add({0x5000, 0x6000}, flush_kind::leaves);  // continues the last: there is room
    CHECK_FALSE(batch.request().everything());
    batch.add({0x8000, 0x9000}, flush_kind::leaves);
    CHECK(batch.request().everything());
    CHECK(batch.request().range_count == 0);
    batch.add({0x6000, 0x7000}, flush_kind::leaves);
    CHECK(batch.request().everything());
    CHECK_FALSE(batch.empty());

    flush_batch<1> smallest;
    smallest.add({0, 1}, flush_kind::leaves);
    smallest.add({1, 2}, flush_kind::leaves);
    CHECK(ranges(smallest.request()) == std::vector<std::pair<uint64_t, uint64_t>>{{0, 2}});
    smallest.add({4, 5}, flush_kind::leaves);
    CHECK(smallest.request().everything());
}

TEST_CASE("A batch is as strict as its strictest part, in whatever order they come", "[guest][flush_request]") {
    for (flush_kind first : kinds)
        for (flush_kind second : kinds)
            for (flush_kind third : kinds) {
                flush_kind const strictest = std::max({first, second, third});
                flush_batch<8> kept;
                kept.add({0, 1}, first);
                kept.add({1, 2}, second);  // also of one that is joined
                kept.add({4, 5}, third);
                CHECK(kept.request().kind() == strictest);

                flush_batch<1> over;
                over.add({0, 1}, first);
                over.add({4, 5}, second);  // also of one that there is no room for
                over.add({8, 9}, third);   // also when it is everything already
                CHECK(over.request().everything());
                CHECK(over.request().kind() == strictest);

                flush_batch<8> all;
                all.add({0, 1}, first);
                all.add_everything(second);
                all.add({4, 5}, third);
                CHECK(all.request().everything());
                CHECK(all.request().kind() == strictest);
            }
}

TEST_CASE("Everything without a range is not empty", "[guest][flush_request]") {
    flush_batch<2> batch;
    batch.add_everything(flush_kind::attributes);
    CHECK_FALSE(batch.empty());
    CHECK(batch.request().everything());
    CHECK(batch.request().range_count == 0);
}

TEST_CASE("A batch that was cleared remembers neither ranges nor strictness", "[guest][flush_request]") {
    flush_batch<1> batch;
    batch.add({0x1000, 0x2000}, flush_kind::tables);
    batch.add({0x4000, 0x5000}, flush_kind::leaves);
    batch.clear();
    CHECK(batch.empty());
    batch.add({0x2000, 0x3000}, flush_kind::leaves);
    CHECK(ranges(batch.request()) == std::vector<std::pair<uint64_t, uint64_t>>{{0x2000, 0x3000}});
    CHECK(batch.request().kind() == flush_kind::leaves);
}

TEST_CASE("A batch is a constant expression", "[guest][flush_request]") {
    constexpr bool joined = [] {
        flush_batch<2> batch;
        batch.add({1, 2}, flush_kind::leaves);
        batch.add({2, 3}, flush_kind::attributes);
        return batch.request().range_count == 1 && batch.request().kind() == flush_kind::attributes;
    }();
    static_assert(joined);
    SUCCEED();
}

TEST_CASE("A range that does not end behind its begin makes it everything", "[guest][flush_request]") {
    for (flush_range r : {flush_range{0x1000, 0x1000}, flush_range{0x2000, 0x1000}, flush_range{~uint64_t{0xfff}, 0}}) {
        CAPTURE(r.begin, r.end);
        flush_batch<4> batch;
        batch.add(r, flush_kind::leaves);
        CHECK(batch.request().everything());
        flush_batch<4> joined;
        joined.add({0x1000, ~uint64_t{0xfff}}, flush_kind::leaves);
        joined.add(r, flush_kind::leaves);
        CHECK(joined.request().everything());
    }
}
