// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// A view of a CPU mask in the form that every kernel has: an array of `unsigned long`, bit n of the whole is CPU n.
/// Concurrency: plain loads and stores. A mask that others change at the same time must be copied first.

#include <pvx/base/bits.hpp>
#include <pvx/base/types.hpp>

namespace pvx::inline v0 {

/// A mask of `bits` CPUs over words that somebody else owns. Bits beyond `bits` in the last word are ignored.
template <class Word>
    requires same_as<Word, unsigned long> || same_as<Word, const unsigned long>
struct basic_cpu_mask_view {
    static constexpr uint32_t word_bits = bit_size<unsigned long>;

    Word* words{};
    uint32_t bits{};

    constexpr basic_cpu_mask_view() = default;
    constexpr basic_cpu_mask_view(Word* w, uint32_t n) : words(w), bits(n) {}

    /// A view that may write serves where one that only reads is taken.
    constexpr operator basic_cpu_mask_view<const unsigned long>() const requires same_as<Word, unsigned long> {
        return {words, bits};
    }

    /// Words that hold the mask.
    constexpr uint32_t word_count() const { return bits / word_bits + (bits % word_bits != 0); }

    /// The bits of word i that are in the mask: all, or in the last word those before the end. \pre i < word_count()
    constexpr unsigned long valid_bits(uint32_t i) const {
        uint32_t const tail = bits % word_bits;
        bool const last = i == bits / word_bits;
        return last && tail != 0 ? bit_range<unsigned long>(0, tail - 1) : ~0ul;
    }

    /// Word i with the bits beyond the end cleared. \pre i < word_count()
    constexpr unsigned long word(uint32_t i) const { return words[i] & valid_bits(i); }

    /// The CPU is in the mask; false for one beyond the end.
    constexpr bool test(cpu_index cpu) const {
        return cpu.value < bits && (words[cpu.value / word_bits] & bit<unsigned long>(cpu.value)) != 0;
    }

    /// Put the CPU into the mask. \pre cpu.value < bits
    constexpr void set(cpu_index cpu) const requires same_as<Word, unsigned long> {
        words[cpu.value / word_bits] |= bit<unsigned long>(cpu.value);
    }

    /// Take the CPU out of the mask. \pre cpu.value < bits
    constexpr void clear(cpu_index cpu) const requires same_as<Word, unsigned long> {
        words[cpu.value / word_bits] &= ~bit<unsigned long>(cpu.value);
    }

    /// Number of CPUs in the mask.
    constexpr uint32_t count() const {
        uint32_t n = 0;
        for (uint32_t i = 0; i < word_count(); ++i) n += popcount(word(i));
        return n;
    }

    /// No CPU is in the mask.
    constexpr bool empty() const {
        for (uint32_t i = 0; i < word_count(); ++i)
            if (word(i) != 0) return false;
        return true;
    }

    /// Call `visit(cpu_index)` for each CPU in the mask, in rising order. Each word is read once, so `visit` may clear
    /// bits of the mask that it walks.
    template <class Visit>
    constexpr void for_each(Visit&& visit) const {
        for (uint32_t i = 0; i < word_count(); ++i)
            for (unsigned long left = word(i); left != 0; left &= left - 1)
                visit(cpu_index{i * word_bits + lowest_bit(left)});
    }
};

/// A mask that may be written.
using cpu_mask_view = basic_cpu_mask_view<unsigned long>;
/// A mask that is only read.
using const_cpu_mask_view = basic_cpu_mask_view<const unsigned long>;

}  // namespace pvx::inline v0
