// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The table of an APIC map (host/apic_map.hpp): where the vCPUs stand in it, and in which places to look for a
/// destination. It is filled by one thread, and only read once it is published.
///
///     ids below the limit | flat: 8 bits | 16 clusters of 4 | 1: there are any in those
///
/// An x2APIC's logical destination names ids, so it has no place of its own.

#include <pvx/host/apic_identity.hpp>

namespace pvx::inline v0::host {

/// The largest limit of a map: beyond, ids have the same logical destination as smaller ones. [sdm3a 11.12.10.2]
inline constexpr uint32_t apic_map_max_limit = 1 << 20;
/// Size of a table for ids below `limit`, in words. \pre limit is not above apic_map_max_limit
constexpr uint32_t apic_map_words(uint32_t limit) { return limit + 8 + 16 * 4 + 1; }

}  // namespace pvx::inline v0::host

namespace pvx::inline v0::host::detail {

/// What a word of a table says.
class apic_entry {
public:
    /// Nobody stands there, as in a cleared word.
    constexpr apic_entry() : value_(0) {}
    constexpr explicit apic_entry(uint32_t value) : value_(value) {}
    /// One vCPU.
    static constexpr apic_entry one(uint32_t vcpu) { return apic_entry{vcpu + 1}; }
    /// More than one, or one that stands in several places: who that is only a scan finds out, or tells once.
    static constexpr apic_entry several() { return apic_entry{0xffffffff}; }

    constexpr uint32_t value() const { return value_; }
    constexpr bool empty() const { return value_ == 0; }
    constexpr bool is_several() const { return value_ == 0xffffffff; }
    /// \pre neither of these
    constexpr uint32_t vcpu() const { return value_ - 1; }

private:
    uint32_t value_;
};

template <class Environment>
    requires atomics_policy<Environment> && index_policy<Environment>
class apic_table {
public:
    using cell = typename Environment::template cell<uint32_t>;

    /// `words` are apic_map_words(limit), or null: then nothing may be called.
    constexpr apic_table(Environment environment, cell* words, uint32_t limit)
        : environment_(environment), words_(words), limit_(limit) {}

    constexpr bool exists() const { return words_ != nullptr; }

    // Relaxed, here and below: nobody else has the table while it is filled, nobody fills it while it is read, and what
    // lies between is ordered by its publication.
    void clear() const {
        for (uint32_t i = 0; i < apic_map_words(limit_); ++i) environment_.ref(words_[i]).store(0, order::relaxed);
    }

    /// Put a vCPU wherever its APIC can be found.
    void add(uint32_t vcpu, apic_identity who) const {
        if (!who.reachable()) return;
        auto const one = apic_entry::one(vcpu);
        if (who.mode() == abi::apic_mode::x2apic) return put_id(who.id().value, one);
        put_id(who.short_id(), one);
        if (who.id().value > 0xff) put_id(who.id().value, one);
        if (who.model() == abi::dfr_flat) put_bits(flat(), who.logical_id(), one);
        if (who.model() != abi::dfr_cluster || (who.logical_id() & 0xf) == 0) return;
        put_bits(cluster(who.logical_id() >> 4), who.logical_id() & 0xf, one);
        environment_.ref(words_[any_cluster()]).store(1, order::relaxed);
    }

    /// Who has this physical id. \pre id is below the limit
    apic_entry with_id(uint32_t id) const { return at(id, limit_); }

    /// Calls use(vcpu, whether it is there as an x2APIC) for each place of a logical destination where a vCPU stands.
    /// False, and nothing called: only a scan can tell.
    template <class Use>
    bool with_logical(uint32_t to, Use use) const {
        uint32_t const narrow = to <= 0xff ? to : 0;
        if (to == 0xff && !at(any_cluster(), any_cluster() + 1).empty()) return false;
        // No array: the psABI aligns one to 16 bytes, and a kernel its stack to 8. The xAPICs first: who goes from one
        // mode to the other meanwhile is not missed.
        auto const places = [&](uint32_t i) -> place {
            if (i == 0) return {flat(), narrow, flat() + 8};
            if (i == 1) return {cluster(narrow >> 4), narrow & 0xf, any_cluster()};
            return {(to >> 16) * 16, to & 0xffff, limit_};
        };
        for (uint32_t i = 0; i < 3; ++i)
            if (!members(places(i), [](apic_entry found) { return !found.is_several(); })) return false;
        for (uint32_t i = 0; i < 3; ++i)
            members(places(i), [&](apic_entry found) {
                if (!found.empty()) use(found.vcpu(), i == 2);
                return true;
            });
        return true;
    }

private:
    struct place {
        uint32_t first, bits, end;
    };

    uint32_t flat() const { return limit_; }
    uint32_t cluster(uint32_t i) const { return limit_ + 8 + i * 4; }
    uint32_t any_cluster() const { return cluster(16); }

    // The size is the one that was given, whatever is published meanwhile.
    void put_id(uint32_t id, apic_entry entry) const {
        if (id < limit_) put(id, entry);
    }
    // With more than one bit it would be found twice.
    void put_bits(uint32_t first, uint32_t bits, apic_entry entry) const {
        for (uint32_t left = bits; left != 0; left &= left - 1)
            put(first + lowest_bit(left), popcount(bits) == 1 ? entry : apic_entry::several());
    }
    void put(uint32_t index, apic_entry entry) const {
        auto const to = environment_.ref(words_[index]);
        bool const first = apic_entry(to.load(order::relaxed)).empty();
        to.store((first ? entry : apic_entry::several()).value(), order::relaxed);
    }

    /// The word at an index that a guest chose. \pre index < bound
    apic_entry at(uint32_t index, uint32_t bound) const {
        uint32_t const safe = environment_.clamp_index(index, bound);
        return apic_entry(environment_.ref(words_[safe]).load(order::relaxed));
    }
    /// Calls use(entry) for each bit, until it returns false, and says whether it did not.
    template <class Use>
    bool members(place const& p, Use use) const {
        for (uint32_t left = p.bits; left != 0; left &= left - 1) {
            uint32_t const index = p.first + lowest_bit(left);
            if (index >= p.end) return true;
            if (!use(at(index, p.end))) return false;
        }
        return true;
    }

    [[no_unique_address]] Environment environment_;
    cell* words_;
    uint32_t limit_;
};

}  // namespace pvx::inline v0::host::detail
