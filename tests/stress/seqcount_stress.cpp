// SPDX-License-Identifier: MIT
#include <pvx/base/seqcount.hpp>

#include <thread>
#include <vector>

#include "support/catch.hpp"
#include "support/seqcount_client.hpp"
#include "support/tsan_atomics.hpp"

using namespace pvx;
using namespace pvx_test;

namespace {

// ThreadSanitizer costs a factor of a hundred.
constexpr uint64_t updates = PVX_TEST_TSAN ? 20000 : 2000000;
constexpr uint32_t reads = PVX_TEST_TSAN ? 20000 : 2000000;

/// What one reader saw; looked at after it has ended.
struct tally {
    uint32_t torn = 0;
    uint32_t older = 0;
    uint32_t good = 0;
    uint32_t gave_up = 0;
    uint64_t last = 0;

    void add(seqcount_copy const& got) {
        torn += !got.whole();
        older += got.first < last;
        good += 1;
        last = got.first;
    }
};

/// Everybody starts at the same moment.
class start_line {
public:
    explicit start_line(uint32_t runners) : missing_(runners) {}

    void wait() {
        a_.ref(missing_).fetch_add(static_cast<uint32_t>(-1), order::seq_cst);
        while (a_.ref(missing_).load(order::acquire) != 0) std::this_thread::yield();
    }

private:
    thread_atomics a_;
    uint32_t missing_;
};

/// One writer and two readers; `read(policy, record, tally)` is one read.
template <class Read>
std::vector<tally> run(uint32_t first_version, Read read) {
    thread_atomics const a;
    seqcount_record<thread_atomics> record;
    seqcount_fill(a, record, first_version, {});
    std::vector<tally> tallies(2);
    start_line line{3};
    std::vector<std::thread> readers;
    for (tally& t : tallies)
        readers.emplace_back([&] {
            line.wait();
            for (uint32_t i = 0; i < reads; ++i) read(a, record, t);
        });
    line.wait();
    for (uint64_t n = 1; n <= updates; ++n) {
        seqcount_publish(a, record, n);
        if (n % 64 == 0) std::this_thread::yield();
    }
    for (std::thread& t : readers) t.join();

    seqcount_copy end;
    CHECK(seqcount_get_bounded(a, record, 1, end));
    CHECK(end.whole());
    CHECK(end.first == updates);
    return tallies;
}

}  // namespace

TEST_CASE("readers that wait get whole and ever newer copies", "[base][seqcount]") {
    auto const tallies = run(0xffffff00, [](auto& a, auto& record, tally& t) {
        t.add(seqcount_get(a, record, [] { std::this_thread::yield(); }));
    });
    for (tally const& t : tallies) {
        CHECK(t.torn == 0);
        CHECK(t.older == 0);
        CHECK(t.good == reads);
    }
}

TEST_CASE("readers that must not wait get whole and ever newer copies, or none", "[base][seqcount]") {
    auto const tallies = run(7, [](auto& a, auto& record, tally& t) {
        seqcount_copy got;
        if (seqcount_get_bounded(a, record, 3, got))
            t.add(got);
        else
            t.gave_up += 1;
    });
    for (tally const& t : tallies) {
        CHECK(t.torn == 0);
        CHECK(t.older == 0);
        CHECK(t.good + t.gave_up == reads);
    }
}
