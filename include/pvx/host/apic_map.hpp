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

#include <pvx/host/detail/apic_table.hpp>
#include <pvx/host/snapshot.hpp>

namespace pvx::inline v0::host {

/// The map of one VM. Copies are handles on the same map.
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
        // Whether it is software-enabled is not in the table: look-ups ask. And without set_up() there is none:
        // relaxed, since that came before any vCPU ran.
        bool const other = ((old ^ identity.bits) & ~(uint64_t{apic_word::usable} << 56)) != 0;
        if (other && environment_.ref(words_[0]).load(order::relaxed) != 0) mark();
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
        // whoever built last left behind; pairs with the CAS that publishes and with give_up(). And the step of
        // [snap-reuse] that takes the address away.
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

        /// Look-ups take constant time. If not, they answer nevertheless, so nothing need be refused: KVM then refuses
        /// to send many IPIs by one hypercall, and a Linux guest does not send them again.
        explicit operator bool() const { return table_.exists(); }
        /// One more than the largest id there can be.
        uint32_t limit() const { return of_.limit_; }

        /// Who answers to a physical id; of several, the first; or no_vcpu, for any number. Found also while
        /// software-disabled.
        cpu_index vcpu(apic_id id) const {
            if (id.value >= of_.limit_) return no_vcpu;
            if (table_.exists()) {
                auto const found = table_.with_id(id.value);
                if (found.empty()) return no_vcpu;
                if (!found.is_several()) return of_.is(found.vcpu(), id) ? cpu_index{found.vcpu()} : no_vcpu;
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
            if (ipi.shorthand == none && table_.exists() && by_table(ipi, use)) return;
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
              table_(of.environment_, table_at(held_.word()), of.limit_) {}

        /// False: scan.
        template <class Use>
        bool by_table(apic_ipi const& ipi, Use& use) const {
            // A place says where a vCPU stood. Whether it is meant is asked of what it is, in the place of its mode.
            // One that turns x2APIC in between stands in both: only ids below 8 can, whose bits are noted.
            uint32_t had = 0;
            auto const try_one = [&](uint32_t vcpu, bool wide) {
                apic_identity const candidate = of_.identity(vcpu);
                uint32_t const id = candidate.id().value;
                uint32_t const own = id < 8 ? bit<uint32_t>(id) : 0;
                bool const here = !ipi.logical || (candidate.mode() == abi::apic_mode::x2apic) == wide;
                if (!here || (wide && (had & own) != 0)) return;
                if (!candidate.answers(ipi) || !candidate.accepts(ipi.delivery)) return;
                if (!wide) had |= own;
                use(cpu_index{vcpu});
            };
            if (ipi.logical) return table_.with_logical(ipi.destination.value, try_one);
            if (ipi.destination.value >= of_.limit_) return true;
            auto const found = table_.with_id(ipi.destination.value);
            if (!found.empty() && !found.is_several()) try_one(found.vcpu(), false);
            return !found.is_several();
        }

        apic_map const& of_;
        decltype(declval<Snapshots const&>().read_guard(declval<shared_word&>())) held_;
        detail::apic_table<Environment> table_;
    };

    reader read_guard() const& { return reader(*this); }
    reader read_guard() const&& = delete;  // it would outlive the map

private:
    // Beside the address in the published word, which is of 32-bit words.
    static constexpr uint64_t dirty = 1, updating = 2;
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

    // Relaxed: see publish(). Clamped, though it comes from the table: a CPU that guesses may take an empty word for an
    // index.
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

    void build(entry* words) const {
        detail::apic_table<Environment> const table(environment_, words, limit_);
        table.clear();
        for (uint32_t i = 0; i < vcpus_; ++i) table.add(i, identity(i));
    }

    [[no_unique_address]] Environment environment_;
    [[no_unique_address]] Snapshots snapshots_;
    shared_word* words_;
    uint32_t vcpus_;
    uint32_t limit_;
};

}  // namespace pvx::inline v0::host
