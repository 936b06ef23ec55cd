// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Which vCPU an APIC id or a destination means, in constant time, for hypercalls and whoever sends interrupts. A table
/// that is built from what each vCPU publishes of its own APIC; while that is out of date, or there is none, the same
/// look-ups scan what was published and give the same answers, so a map only ever makes them faster.
///
/// Any thread looks up, each vCPU's thread publishes, and any of them rebuilds. One word has the address of the table,
/// or says what becomes of it. Whoever takes it from dirty to updating builds alone; a change in between leaves dirty
/// beside it, so that only the CAS from updating alone publishes, never a store:
///
///     address  --publish()-->  address|dirty  --update()-->  updating  --CAS-->  address of the new table
///                                    ^                          |
///                                    +-- dirty  <---------------+   changed again, or no storage for now
///
/// An id or a logical bit of two vCPUs, or a vCPU with two logical bits, is marked as *several*: look-ups of just that
/// id or bit scan, and find all. (KVM gives up the whole map, or all of its logical part.) Ids from 256 on look like
/// smaller ones while their vCPU is an xAPIC, so a guest can do this at will.

#include <pvx/host/apic_identity.hpp>
#include <pvx/host/snapshot.hpp>

namespace pvx::inline v0::host {

/// Answer of a look-up that finds nobody; as the sender of a command, one that is no vCPU.
inline constexpr cpu_index no_vcpu{0xffffffff};
/// The largest limit of a map: beyond, ids have the same logical destination as smaller ones. [sdm3a 11.12.10.2]
inline constexpr uint32_t apic_map_max_limit = 1 << 20;

/// Size of a table for ids below `limit`, in words: the ids, 8 bits of the flat model, 16 clusters of 4, and one that
/// says whether there are any in those. \pre limit is not above apic_map_max_limit
constexpr uint32_t apic_map_words(uint32_t limit) { return limit + 8 + 16 * 4 + 1; }

template <class Environment, class Snapshots = two_buffers<Environment>>
    requires atomics_policy<Environment> && index_policy<Environment> && snapshot_policy<Snapshots, Environment>
class apic_map {
public:
    using shared_word = typename Environment::template cell<uint64_t>;
    using entry = typename Environment::template cell<uint32_t>;

    /// Holds no memory: `words` are 1 + vcpus, zero at first, which means no APICs. `limit` is one more than the
    /// largest APIC id that the VMM will ever give.
    constexpr apic_map(Environment environment, shared_word* words, uint32_t vcpus, uint32_t limit, Snapshots snapshots)
        : environment_(environment), snapshots_(snapshots), words_(words), vcpus_(vcpus), limit_(limit) {}

    /// Begin to have a table. \return bad_argument if there is no storage for `limit` ids, or the limit is not one that
    /// a table can have: then look-ups scan, for ever. \pre no vCPU runs.
    status set_up() const {
        entry* const probe = storage();
        if (probe == nullptr) return status::bad_argument;
        snapshots_.retire(probe);
        mark();
        return status::ok;
    }

    /// A vCPU is there, perhaps while others run. \return bad_argument if the map is too small for it or for its id:
    /// after this nothing is.
    status add(cpu_index vcpu, apic_identity identity) const {
        if (vcpu.value >= vcpus_ || identity.id().value >= limit_) return status::bad_argument;
        publish(vcpu, identity);
        return status::ok;
    }

    /// The APIC of `vcpu` is now like this: after each apic_change::map, and each write to an xAPIC's LDR or DFR. Every
    /// look-up that begins after this finds it so. Call update() next. \pre The vCPU was added with the same id, and is
    /// the calling thread's own or one that does not run.
    void publish(cpu_index vcpu, apic_identity identity) const {
        auto const mine = environment_.ref(words_[1 + vcpu.value]);
        // Relaxed, both: only this thread writes it. Readers that must not miss it come by [map-mark].
        uint64_t const old = mine.load(order::relaxed);
        mine.store(identity.bits, order::relaxed);
        // Whether it is software-enabled is not in the table: look-ups ask.
        if (((old ^ identity.bits) & ~(uint64_t{apic_word::usable} << 56)) != 0) mark();
    }

    /// Bring the table up to date. One load where it is; where somebody else builds, that is left to them. \return
    /// whether there is a table that is up to date. Where it is not (somebody builds, both buffers are read, or changes
    /// keep coming), nothing is wrong but the time that look-ups take: call it again when convenient, such as at each
    /// entry. \pre no guard of this thread is held.
    bool update() const {
        auto const published = environment_.ref(words_[0]);
        uint64_t found = published.load(order::relaxed);
        if ((found & (dirty | updating)) != dirty) return table_at(found) != nullptr;
        // order: seq_cst: acquire [map-mark] identities before the mark; pairs with mark(). Acquire [map-hand-on] what
        // whoever built last left behind; pairs with the CAS and the one in give_up(). And the change of the published
        // word in [snap-reuse].
        if (!published.compare_exchange(found, updating, order::seq_cst, order::relaxed)) return false;
        if (entry* const old = table_at(found & ~dirty); old != nullptr) snapshots_.retire(old);
        if (entry* const table = storage(); table != nullptr) {
            for (uint32_t pass = 0; pass < passes; ++pass) {
                build(table);
                uint64_t expected = updating;
                // order: release [map-table] [map-hand-on] the table before its address; pairs with the guard, and with
                // the CAS above
                if (published.compare_exchange(expected, reinterpret_cast<uintptr_t>(table), order::release,
                                               order::relaxed))
                    return true;
                // order: acquire [map-mark] identities before the mark that was found; pairs with mark()
                (void)published.exchange(updating, order::acquire);
            }
            snapshots_.retire(table);
        }
        give_up();
        return false;
    }

    /// Looks up. What it finds is as of when it was taken, or later. Short: it holds off the reuse of storage.
    class reader {
    public:
        reader(reader const&) = delete;
        reader& operator=(reader const&) = delete;

        /// Look-ups take constant time. If not, they answer nevertheless. (KVM then refuses to send many IPIs at once;
        /// Linux guests lose what is refused.)
        explicit operator bool() const { return table_ != nullptr; }
        /// One more than the largest id there can be.
        uint32_t limit() const { return of_.limit_; }

        /// Who answers to a physical id; of several, the first; or no_vcpu, for any number. Found also while
        /// software-disabled.
        cpu_index vcpu(apic_id id) const {
            if (id.value >= of_.limit_) return no_vcpu;
            if (table_ != nullptr) {
                uint32_t const found = at(id.value, of_.limit_);
                if (found != several) return found != none && of_.is(found - 1, id) ? cpu_index{found - 1} : no_vcpu;
            }
            for (uint32_t i = 0; i < of_.vcpus_; ++i)
                if (of_.is(i, id)) return cpu_index{i};
            return no_vcpu;
        }

        /// Calls use(cpu_index) for each vCPU that a command means and whose APIC takes its kind, in no order: of the
        /// lowest priority, for each of whom one is to be chosen. `sender` is no_vcpu for what no vCPU sent, whose 0xff
        /// means everybody: it comes as such a shorthand. Everybody is found by a scan.
        template <class Use>
        void for_each(apic_ipi const& ipi, cpu_index sender, Use use) const {
            using enum abi::apic_shorthand;
            if (ipi.shorthand == self) {
                if (sender.value < of_.vcpus_ && of_.identity(sender.value).accepts(ipi.delivery)) use(sender);
                return;
            }
            if (ipi.shorthand == none && table_ != nullptr) {
                if (ipi.logical ? logical(ipi, use) : physical(ipi, use)) return;
            }
            for (uint32_t i = 0; i < of_.vcpus_; ++i) {
                apic_identity const candidate = of_.identity(i);
                bool const meant =
                    ipi.shorthand == none ? of_.answers(candidate, ipi) : ipi.shorthand == all || i != sender.value;
                if (meant && candidate.accepts(ipi.delivery)) use(cpu_index{i});
            }
        }

    private:
        friend class apic_map;
        explicit reader(apic_map const& of)
            : of_(of),
              held_(of.snapshots_.read_guard(of.words_[0])),
              // order: acquire [map-table] in read_guard(); pairs with update()
              table_(table_at(held_.word())) {}

        /// The word of the table at an index that a guest chose. \pre index < bound
        uint32_t at(uint32_t index, uint32_t bound) const {
            uint32_t const safe = of_.environment_.clamp_index(index, bound);
            // Relaxed, here and below: the guard has acquired the table, and nobody writes to it.
            return of_.environment_.ref(table_[safe]).load(order::relaxed);
        }

        /// False: scan.
        template <class Use>
        bool physical(apic_ipi const& ipi, Use& use) const {
            uint32_t const id = ipi.destination.value;
            if (id >= of_.limit_) return true;
            uint32_t const found = at(id, of_.limit_);
            if (found == several) return false;
            if (found != none)
                try_one(
                    found, ipi, [](apic_identity) { return true; }, use);
            return true;
        }

        template <class Use>
        bool logical(apic_ipi const& ipi, Use& use) const {
            uint32_t const to = ipi.destination.value;
            uint32_t const flat = of_.limit_, clusters = flat + 8, any_cluster = clusters + 64;
            uint32_t const narrow = to <= 0xff ? to : 0;
            if (to == 0xff && at(any_cluster, any_cluster + 1) != 0) return false;
            // Its members in three places: a vCPU is only in that of its own mode, and found there once.
            place const places[] = {{flat, narrow, clusters},
                                    {clusters + (narrow >> 4) * 4, narrow & 0xf, any_cluster},
                                    {(to >> 16) * 16, to & 0xffff, of_.limit_}};
            for (place const& p : places)
                if (!members(p, [](uint32_t found) { return found != several; })) return false;
            for (uint32_t i = 0; i < 3; ++i)
                members(places[i], [&](uint32_t found) {
                    // The xAPICs before the x2APICs: who goes from one to the other meanwhile is not missed.
                    bool const wide = i == 2;
                    auto const right = [&](apic_identity who) {
                        return (who.mode() == abi::apic_mode::x2apic) == wide;
                    };
                    if (found != none) try_one(found, ipi, right, use);
                    return true;
                });
            return true;
        }

        struct place {
            uint32_t first, bits, end;
        };
        /// Calls use(word) for each bit, until it returns false, and says whether it did not.
        template <class Use>
        bool members(place const& p, Use use) const {
            for (uint32_t left = p.bits; left != 0; left &= left - 1) {
                uint32_t const index = p.first + lowest_bit(left);
                if (index >= p.end) return true;
                if (!use(at(index, p.end))) return false;
            }
            return true;
        }

        template <class Right, class Use>
        void try_one(uint32_t found, apic_ipi const& ipi, Right right, Use& use) const {
            apic_identity const candidate = of_.identity(found - 1);
            if (right(candidate) && candidate.answers(ipi) && candidate.accepts(ipi.delivery))
                use(cpu_index{found - 1});
        }

        apic_map const& of_;
        decltype(declval<Snapshots const&>().read_guard(declval<shared_word&>())) held_;
        entry* table_;
    };

    reader read_guard() const& { return reader(*this); }
    reader read_guard() const&& = delete;  // it would outlive the map

private:
    // Beside the address in the published word, which is of 32-bit words.
    static constexpr uint64_t dirty = 1, updating = 2;
    // Words of a table; others are a vCPU's index plus 1.
    static constexpr uint32_t none = 0, several = 0xffffffff;
    // Of building before a guest that keeps changing its APICs has to do without a table: a loop that it does not hold.
    static constexpr uint32_t passes = 2;

    static entry* table_at(uint64_t word) {
        return (word & (dirty | updating)) != 0 ? nullptr : reinterpret_cast<entry*>(static_cast<uintptr_t>(word));
    }

    entry* storage() const {
        bool const legal = limit_ != 0 && limit_ <= apic_map_max_limit;
        return legal ? snapshots_.storage(apic_map_words(limit_)) : nullptr;
    }

    void give_up() const {
        // order: release [map-hand-on] what is lent; pairs with update(). An exchange, for a store would cut off the
        // marks that were made meanwhile from whoever builds next.
        (void)environment_.ref(words_[0]).exchange(dirty, order::release);
    }

    void mark() const {
        // order: release [map-mark] the identity before the mark; pairs with update(). What finds the mark scans.
        (void)environment_.ref(words_[0]).fetch_or(dirty, order::release);
    }

    // Relaxed: see publish(). Clamped, though it comes from the table: a guess of the CPU may take `none` for an index.
    apic_identity identity(uint32_t vcpu) const {
        uint32_t const safe = environment_.clamp_index(vcpu, vcpus_);
        return {environment_.ref(words_[1 + uint64_t{safe}]).load(order::relaxed)};
    }
    bool is(uint32_t vcpu, apic_id id) const {
        apic_identity const candidate = identity(vcpu);
        return candidate.reachable() && candidate.answers(id);
    }
    /// As the table has it: no id beyond the limit means anybody.
    bool answers(apic_identity candidate, apic_ipi const& ipi) const {
        return (ipi.logical || ipi.destination.value < limit_) && candidate.answers(ipi);
    }

    void build(entry* table) const {
        uint32_t const flat = limit_, clusters = flat + 8, any_cluster = clusters + 64;
        for (uint32_t i = 0; i < apic_map_words(limit_); ++i) environment_.ref(table[i]).store(none, order::relaxed);
        for (uint32_t i = 0; i < vcpus_; ++i) {
            apic_identity const who = identity(i);
            if (!who.reachable()) continue;
            if (who.mode() == abi::apic_mode::x2apic) {
                put_id(table, who.id().value, i + 1);
                continue;
            }
            put_id(table, who.short_id(), i + 1);
            if (who.id().value > 0xff) put_id(table, who.id().value, i + 1);
            uint32_t const cluster = who.logical_id() >> 4;
            uint32_t first = 0, bits = 0;
            if (who.model() == abi::dfr_flat) first = flat, bits = who.logical_id();
            if (who.model() == abi::dfr_cluster) first = clusters + cluster * 4, bits = who.logical_id() & 0xf;
            if (who.model() == abi::dfr_cluster && bits != 0)
                environment_.ref(table[any_cluster]).store(1, order::relaxed);
            // With more than one bit it would be found twice.
            for (uint32_t left = bits; left != 0; left &= left - 1)
                put(table[first + lowest_bit(left)], popcount(bits) == 1 ? i + 1 : several);
        }
    }
    // The size is the one that was given, whatever is published meanwhile.
    void put_id(entry* table, uint32_t id, uint32_t value) const {
        if (id < limit_) put(table[id], value);
    }
    void put(entry& word, uint32_t value) const {
        auto const to = environment_.ref(word);
        to.store(to.load(order::relaxed) == none ? value : several, order::relaxed);
    }

    [[no_unique_address]] Environment environment_;
    [[no_unique_address]] Snapshots snapshots_;
    shared_word* words_;
    uint32_t vcpus_;
    uint32_t limit_;
};

}  // namespace pvx::inline v0::host
