// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// How a table that is looked up all the time, and made anew now and then, is replaced: it is built in other storage,
/// published by one word, and the old storage is used again when nobody reads it any more. The role for that, and a way
/// to fill it without RCU and without an allocator: two buffers, each with a count of its readers.
///
///     reader                                            who rebuilds
///     readers += 1            (seq_cst)                 published = something else   (seq_cst)
///     published as before?    (seq_cst)  [snap-reuse]   readers == 0?                (seq_cst)
///
/// Both cannot miss the other's write, or a reader would be in a buffer that is being filled: a look-up would miss a
/// vCPU that never changed. Weakened, any of the four loses that.

#include <pvx/host/concepts.hpp>

namespace pvx::inline v0::host {

/// Reading, making and retiring snapshots: tables of 32-bit words.
/// Axiom: the word of a guard is `published` as it was at some time after read_guard() was called, acquired; or 0. If
/// it is the address of storage, that storage stays as it is while the guard lives. `storage` and `retire` are called
/// by one thread at a time, each after the one before, and `retire` after `published` has been changed by a seq_cst
/// operation if it had the address. What was retired is given again only after every guard that may have found it has
/// ended, and what those read comes before that. Guards may nest, neither sleep nor wait; `retire` may do both.
template <class S, class E>
concept snapshot_policy = atomics_policy<E> && requires(S const s, typename E::template cell<uint64_t>& published,
                                                        uint32_t words, typename E::template cell<uint32_t>* old) {
    { s.read_guard(published).word() } -> same_as<uint64_t>;  // read_guard(published).word(): what may be read
    { s.storage(words) } -> same_as<decltype(old)>;           // storage(words): aligned to 4 bytes, or null for now
    s.retire(old);                                            // retire(old): readers may still be in it
};

/// The role filled by two buffers that the VMM hands over: no allocation, no waiting. Guards cost two locked operations
/// on a line that all readers share; a VMM that has RCU, epochs or a loop top of its vCPU threads does without them. If
/// a publication comes in between, a guard finds nothing. If both buffers are read, there is no storage for now.
template <class Environment>
    requires atomics_policy<Environment>
class two_buffers {
public:
    using cell = typename Environment::template cell<uint32_t>;
    using published_cell = typename Environment::template cell<uint64_t>;

    /// Words to hand over for buffers of `each` words. What guards write has a cache line of its own.
    static constexpr uint64_t words_for(uint32_t each) { return header_words + uint64_t{2} * each; }

    /// `words` are words_for(each), zero at first; best aligned to 64 bytes. None at all is a buffer of 0 words.
    constexpr two_buffers(Environment environment, cell* words, uint32_t each)
        : environment_(environment), words_(words), each_(words == nullptr ? 0 : each) {}

    class reader {
    public:
        reader(reader const&) = delete;
        reader& operator=(reader const&) = delete;
        ~reader() {
            if (word_ == 0) return;
            // order: release [snap-left] what was read, before the storage is given again; pairs with storage()
            (void)environment_.ref(*readers_).fetch_add(~uint32_t{0}, order::release);
        }
        constexpr uint64_t word() const { return word_; }

    private:
        friend class two_buffers;
        reader(two_buffers const& of, published_cell& published) : environment_(of.environment_) {
            // Relaxed: a first look, to know which count.
            uint64_t const seen = environment_.ref(published).load(order::relaxed);
            if (of.each_ == 0 || (seen != of.address(0) && seen != of.address(1))) return;
            readers_ = &of.words_[seen == of.address(1)];
            // order: seq_cst [snap-reuse] store-buffer shape, see the top; pairs with storage()
            (void)environment_.ref(*readers_).fetch_add(1, order::seq_cst);
            // order: seq_cst [snap-reuse] the second look; pairs with whoever took the address away. And it acquires
            // what the buffer holds, which may be newer than at the first look.
            if (environment_.ref(published).load(order::seq_cst) == seen) {
                word_ = seen;
                return;
            }
            // Relaxed: nothing was read.
            (void)environment_.ref(*readers_).fetch_add(~uint32_t{0}, order::relaxed);
        }

        [[no_unique_address]] Environment environment_;
        cell* readers_{};
        uint64_t word_{};
    };

    reader read_guard(published_cell& published) const { return reader(*this, published); }

    cell* storage(uint32_t words) const {
        if (words > each_) return nullptr;
        // Relaxed: who is lent what is told from one caller to the next by their own order.
        uint32_t const lent = environment_.ref(words_[lent_word]).load(order::relaxed);
        for (uint32_t i = 0; i < 2; ++i) {
            // order: seq_cst [snap-reuse] [snap-left] a reader is counted, or finds that it came too late; what earlier
            // ones read comes before what is written here. Pairs with guard.
            if ((lent >> i & 1) != 0 || environment_.ref(words_[i]).load(order::seq_cst) != 0) continue;
            environment_.ref(words_[lent_word]).store(lent | 1u << i, order::relaxed);
            return buffer(i);
        }
        return nullptr;
    }

    void retire(cell* old) const {
        uint32_t const lent = environment_.ref(words_[lent_word]).load(order::relaxed);
        environment_.ref(words_[lent_word]).store(lent & ~(old == buffer(0) ? 1u : 2u), order::relaxed);
    }

private:
    static constexpr uint32_t lent_word = 2;  // after the two counts of readers
    static constexpr uint32_t header_words = 16;

    cell* buffer(uint32_t i) const { return words_ + header_words + uint64_t{i} * each_; }
    uint64_t address(uint32_t i) const { return reinterpret_cast<uintptr_t>(buffer(i)); }

    [[no_unique_address]] Environment environment_;
    cell* words_;
    uint32_t each_;
};

}  // namespace pvx::inline v0::host
