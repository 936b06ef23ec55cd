// SPDX-License-Identifier: MIT
// Bound: one writer of two or three updates; one reader of one try: every schedule, of more: 4 preemptions (--full: 6);
// two readers: 2 (--full: 3). Memory model: C++20 as Relacy has it (what that leaves out: support/relacy_atomics.hpp).

#include <pvx/base/seqcount.hpp>

#include "support/model.hpp"
#include "support/seqcount_client.hpp"

namespace {

using namespace pvx;
using namespace pvx_test;

/// What a test varies.
struct shape {
    unsigned updates = 2;
    unsigned reads = 1;     ///< By each reader.
    unsigned attempts = 1;  ///< Of each read; 0: until it is good.
    uint32_t start = 0;  ///< Version before the first update. Even: update 0 is there. Odd: junk that nobody may get.
    bool told = false;   ///< The writer tells by another word which update is done; a reader then gets no older one.
};
shape now{};

/// A record of cells.
template <class M>
struct in_cells {
    seqcount_record<relacy_atomics<M>> record;
    void before() {}
};

/// A record of plain words, as the ABI has them.
template <class M>
struct in_plain_memory {
    seqcount_record<builtin_atomics> record;
    relacy_memory memory;
    void before() {
        memory.adopt(record.version);
        memory.adopt(record.first);
        memory.adopt(record.second);
        memory.adopt(record.third);
    }
};

/// Thread 0 writes, the others read.
template <mutation M, int Readers, template <class> class Place = in_cells>
struct seqcount_suite : rl::test_suite<seqcount_suite<M, Readers, Place>, 1 + Readers> {
    relacy_atomics<M> a;
    Place<M> where;
    rl::atomic<uint64_t> done;

    void before() {
        auto& record = where.record;
        where.before();
        seqcount_fill(a, record, now.start, now.start % 2 == 0 ? seqcount_copy{0, 0, 0} : seqcount_copy{101, 102, 103});
        done.store(0, rl::mo_relaxed, place{}.info());
    }

    void thread(unsigned index) {
        if (index == 0)
            write();
        else
            read();
    }

    void write() {
        for (unsigned n = 1; n <= now.updates; ++n) {
            seqcount_publish(a, where.record, n);
            if (now.told) done.store(n, rl::mo_release, place{}.info());
        }
    }

    void read() {
        auto& record = where.record;
        uint64_t last = 0;
        for (unsigned i = 0; i < now.reads; ++i) {
            if (now.told) last = std::max(last, done.load(rl::mo_acquire, place{}.info()));
            seqcount_copy got{201, 202, 203};
            if (now.attempts == 0) {
                got = seqcount_get(a, record, [] { relacy_relax{}.relax(); });
            } else if (!seqcount_get_bounded(a, record, now.attempts, got)) {
                require(got.first == 201 && got.second == 202 && got.third == 203,
                        "a failed read leaves the last copy");
                continue;
            }
            require(got.whole(), "a copy is of one update");
            require(got.first <= now.updates, "a copy is of a real update");
            require(now.start % 2 == 0 || got.first != 0, "no copy is of the junk page");
            require(got.first >= last, "a copy is not older than the one before, nor than what the reader was told");
            last = got.first;
        }
    }
};

void passes(model& m, char const* name, shape s, model_bound bound) {
    now = s;
    m.passes<seqcount_suite<shipped, 1>>(name, bound);
}

void passes_with_two_readers(model& m, char const* name, shape s, model_bound bound) {
    now = s;
    m.passes<seqcount_suite<shipped, 2>>(name, bound);
}

void passes_in_plain_memory(model& m, char const* name, shape s, model_bound bound) {
    now = s;
    m.passes<seqcount_suite<shipped, 1, in_plain_memory>>(name, bound);
}

template <operation Op, auto From>
void caught(model& m, char const* name) {
    now = shape{};
    // The smallest bound of all models here: what passes at it means something.
    m.caught<seqcount_suite<weaken<Op, From>, 1>>(name, {2, 2});
}

}  // namespace

int main(int argc, char** argv) {
    model m{argc, argv};
    constexpr model_bound all{every_schedule, every_schedule};
    constexpr model_bound some{4, 6};
    constexpr model_bound few{2, 3};

    passes(m, "seqcount: reader with one try", {}, all);
    passes(m, "seqcount: one try, page with a junk odd version", {.start = 7}, all);
    passes(m, "seqcount: reader with two tries, three updates", {.updates = 3, .attempts = 2}, some);
    passes(m, "seqcount: two reads of two tries", {.reads = 2, .attempts = 2}, some);
    passes(m, "seqcount: reader that waits", {.reads = 2, .attempts = 0}, some);
    passes(m, "seqcount: version wraps to 0", {.attempts = 2, .start = 0xfffffffe}, some);
    passes(m, "seqcount: junk odd version that wraps", {.attempts = 2, .start = 0xffffffff}, some);
    passes(m, "seqcount: reader that was told of an update", {.attempts = 2, .told = true}, some);
    passes_in_plain_memory(m, "seqcount: one try, record in plain memory", {}, all);
    passes_with_two_readers(m, "seqcount: two readers, three updates", {.updates = 3, .attempts = 2}, few);
    passes_with_two_readers(m, "seqcount: two readers that wait", {.attempts = 0}, few);

    // [seq-even]
    caught<operation::load, order::acquire>(m, "seqcount [seq-even]: version loaded relaxed");
    caught<operation::store, order::release>(m, "seqcount [seq-even]: even version stored relaxed");
    // [seq-odd]
    caught<operation::fence, order::acquire>(m, "seqcount [seq-odd]: no fence after the fields");
    caught<operation::fence, order::release>(m, "seqcount [seq-odd]: no fence before the fields");
    return m.result();
}
