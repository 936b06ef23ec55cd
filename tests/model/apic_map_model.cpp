// SPDX-License-Identifier: MIT
// Bound: two vCPUs that change, and a reader or a third that rebuilds: 2 preemptions (--full: 3), with one that changes
// 3 (--full: 5). Memory model: C++20 as Relacy has it (what that leaves out: support/relacy_atomics.hpp), and more of
// it in one place: the second look of a guard may be as old as the first, unless it and the step that takes the address
// away are seq_cst. By itself Relacy looks back by one store, and a mark always lies in between.

#include <optional>

#include <pvx/host/apic_map.hpp>

#include "support/model.hpp"

namespace {

using namespace pvx;
using namespace pvx_test;

/// One step that is done in another way.
enum class bug : uint8_t {
    none,
    publishes_by_store,   ///< In place of the CAS from updating.
    takes_by_store,       ///< In place of the CAS from dirty.
    gives_up_by_store,    ///< In place of the exchange, with the same order.
    marks_by_store,       ///< By a load and a store.
    marks_nothing,        ///< Publishes an identity alone.
    readers_not_counted,  ///< A guard is no reader.
    no_second_look,       ///< A guard takes what it saw before it was counted.
    counts_not_asked,     ///< Storage is given again whoever reads.
};

/// What a test varies.
struct shape {
    bug wrong = bug::none;
    bool both = false;    ///< vCPU 2 changes as well.
    bool reads = true;    ///< The third thread looks up; else it rebuilds.
    bool scarce = false;  ///< The first to ask for storage gets none.
    bool twice = false;   ///< vCPU 2 changes once more, so that both buffers come round.
    unsigned looks = 1;
};
shape now{};

struct world;
world* the_world = nullptr;

constexpr uint32_t limit = 3, vcpus = 3;

/// A word of the map: an atomic of the model, or, in a table, plain data of it, so that a reader and a writer that are
/// not ordered are a data race. The words that only matter for logical destinations are neither: the physical ones go
/// the same ways.
template <word T>
struct model_cell {
    rl::atomic<T>* real;
    rl::var<T>* data;
    T plain;
};

/// What a thread saw of the published word at its last look.
uint64_t last_seen[3];
/// The step that took the address away last was seq_cst.
bool taken_seq_cst = true;

template <word T>
class model_ref {
public:
    explicit model_ref(model_cell<T>& cell) : cell_(&cell) {}

    T load(load_order auto o, place where = {}) const {
        if (cell_->data != nullptr) return (*cell_->data)(where.info()).load();
        if (cell_->real == nullptr) return cell_->plain;
        if (readers() && now.wrong == bug::counts_not_asked) return 0;
        T const found = real().load(o, where);
        if (!published()) return found;
        uint64_t& seen = last_seen[rl::thread_index()];
        if (same_as<decltype(o), order::seq_cst_t>) {
            bool const ordered =
                taken_seq_cst && mutated<chosen>(operation::load, rl::mo_seq_cst, sizeof(T), where) == rl::mo_seq_cst;
            if (now.wrong == bug::no_second_look || (!ordered && rl::rand(2) != 0)) return static_cast<T>(seen);
        }
        seen = found;
        return found;
    }
    void store(T v, store_order auto o, place where = {}) const {
        if (cell_->data != nullptr)
            (*cell_->data)(where.info()).store(v);
        else if (cell_->real == nullptr)
            cell_->plain = v;
        else
            real().store(v, o, where);
    }
    T exchange(T v, rmw_order auto o, place where = {}) const {
        if (now.wrong != bug::gives_up_by_store || !same_as<decltype(o), order::release_t>)
            return real().exchange(v, o, where);
        real().store(v, order::release, where);
        return v;
    }
    T fetch_or(T v, rmw_order auto o, place where = {}) const {
        if (now.wrong == bug::marks_nothing) return v;
        if (now.wrong != bug::marks_by_store) return real().fetch_or(v, o, where);
        T const found = real().load(order::acquire, where);
        real().store(static_cast<T>(found | v), order::release, where);
        return found;
    }
    T fetch_and(T v, rmw_order auto o, place where = {}) const { return real().fetch_and(v, o, where); }
    T fetch_add(T v, rmw_order auto o, place where = {}) const {
        if (now.wrong == bug::readers_not_counted) return v;
        return real().fetch_add(v, o, where);
    }
    bool compare_exchange(T& expected, T desired, rmw_order auto success, load_order auto failure,
                          place where = {}) const {
        bool const publishes = same_as<decltype(success), order::release_t>;
        if (now.wrong == (publishes ? bug::publishes_by_store : bug::takes_by_store)) {
            if (publishes)
                real().store(desired, order::release, where);
            else
                (void)real().exchange(desired, order::seq_cst, where);
            return true;
        }
        if (!publishes)
            taken_seq_cst = mutated<chosen>(operation::rmw, rl::mo_seq_cst, sizeof(T), where) == rl::mo_seq_cst;
        return real().compare_exchange(expected, desired, success, failure, where);
    }

private:
    relacy_ref<T, chosen> real() const { return relacy_ref<T, chosen>{*cell_->real}; }
    bool published() const;
    bool readers() const;

    model_cell<T>* cell_;
};

struct model_environment : relacy_atomics<chosen> {
    template <word T>
    using cell = model_cell<T>;

    template <word T>
    auto ref(T& plain) const {
        return relacy_atomics<chosen>::ref(plain);
    }
    template <word T>
    model_ref<T> ref(model_cell<T>& object) const {
        return model_ref<T>{object};
    }
    uint32_t clamp_index(uint32_t i, uint32_t n) const { return i < n ? i : 0; }
};

/// The shipped policy; storage may be scarce, and a guard may be wrong about the flags.
struct model_snapshots {
    host::two_buffers<model_environment> real;

    struct guard {
        host::two_buffers<model_environment>::reader held;
        uint64_t word() const { return held.word(); }
    };
    guard read_guard(model_cell<uint64_t>& published) const { return {real.read_guard(published)}; }
    model_cell<uint32_t>* storage(uint32_t words) const;
    void retire(model_cell<uint32_t>* old) const { real.retire(old); }
};

using map_type = host::apic_map<model_environment, model_snapshots>;

/// Looked up, in all runs of a suite: by a table, and by a scan.
unsigned long long by_table = 0, by_scan = 0;

/// What is shared, made anew for each run.
struct world {
    static constexpr uint32_t each = host::apic_map_words(limit), header = 16;

    rl::atomic<uint64_t> shared[1 + vcpus];
    rl::atomic<uint32_t> counts[3];
    rl::var<uint32_t> tables[2][limit];
    static inline model_cell<uint64_t> shared_cells[1 + vcpus];
    static inline model_cell<uint32_t> cells[header + 2 * each];
    rl::atomic<uint32_t> told[vcpus];
    std::optional<map_type> map;
    unsigned refusals{};

    static host::apic_identity apic(uint32_t id, bool reachable) {
        return host::make_apic_identity(apic_id{id}, abi::apic_mode::x2apic, reachable ? 7 : 1);
    }

    void adopt(auto& cell, auto& real) {
        real.store(0, rl::mo_relaxed, place{}.info());
        cell.real = &real;
    }

    /// vCPU 0 is there, and in the table that is published.
    void before() {
        the_world = this;
        for (uint32_t i = 0; i < 1 + vcpus; ++i) adopt(shared_cells[i], shared[i]);
        for (uint32_t i = 0; i < 3; ++i) adopt(cells[i], counts[i]);
        for (uint32_t b = 0; b < 2; ++b)
            for (uint32_t i = 0; i < limit; ++i) cells[header + b * each + i].data = &tables[b][i];
        for (auto& t : told) t.store(0, rl::mo_relaxed, place{}.info());
        refusals = 0;
        map.emplace(model_environment{}, shared_cells, vcpus, limit,
                    model_snapshots{{model_environment{}, cells, each}});
        bug const wrong = now.wrong;
        now.wrong = bug::none;
        bool good = map->set_up() == status::ok;
        for (uint32_t i = 0; i < vcpus; ++i) good = good && map->add(cpu_index{i}, apic(i, i == 0)) == status::ok;
        require(good && map->update(), "set-up makes a table");
        now.wrong = wrong;
        refusals = now.scarce;
    }

    /// The vCPU's APIC is switched on, and somebody is told so; then the table is brought up to date.
    void change(uint32_t vcpu) {
        map->publish(cpu_index{vcpu}, apic(vcpu, true));
        told[vcpu].store(1, rl::mo_release, place{}.info());
        map->update();
        if (!now.twice || vcpu != 2) return;
        // Something else about it changes, and it stays findable.
        map->publish(cpu_index{vcpu}, host::make_apic_identity(apic_id{vcpu}, abi::apic_mode::xapic, 7));
        map->update();
    }

    void look() {
        uint32_t known[vcpus] = {1};
        for (uint32_t i = 1; i < vcpus; ++i) known[i] = told[i].load(rl::mo_acquire, place{}.info());
        map_type::reader const guard(map->read_guard());
        by_table += static_cast<bool>(guard);
        by_scan += !guard;
        for (uint32_t i = 0; i < vcpus; ++i) {
            if (i == 2 && !now.both) continue;
            cpu_index const found = guard.vcpu(apic_id{i});
            require(found == cpu_index{i} || (known[i] == 0 && found == host::no_vcpu),
                    "a vCPU that is there, as the reader knows, is found");
        }
    }

    /// When all is done.
    void after() {
        map_type::reader const guard(map->read_guard());
        require(guard.vcpu(apic_id{0}) == cpu_index{0} && guard.vcpu(apic_id{1}) == cpu_index{1},
                "in the end vCPU 0 and 1 are found");
        require(!now.both || guard.vcpu(apic_id{2}) == cpu_index{2}, "in the end vCPU 2 is found");
        map->publish(cpu_index{0}, host::make_apic_identity(apic_id{0}, abi::apic_mode::xapic, 7));
        refusals = 0;
        require(map->update(), "in the end there is a buffer to build in, beside one that is read");
    }
};

template <word T>
bool model_ref<T>::published() const {
    if constexpr (sizeof(T) == 8) return cell_ == &world::shared_cells[0];
    return false;
}
template <word T>
bool model_ref<T>::readers() const {
    if constexpr (sizeof(T) == 4) return cell_ == &world::cells[0] || cell_ == &world::cells[1];
    return false;
}

model_cell<uint32_t>* model_snapshots::storage(uint32_t words) const {
    if (the_world->refusals != 0) {
        the_world->refusals -= 1;
        return nullptr;
    }
    return real.storage(words);
}

/// Threads 0 and 1 are those of vCPUs 1 and 2.
struct map_suite : rl::test_suite<map_suite, 3> {
    world w;

    void before() { w.before(); }
    void thread(unsigned index) {
        if (index == 0) w.change(1);
        if (index == 1 && now.both) w.change(2);
        if (index == 2 && now.reads)
            for (unsigned i = 0; i < now.looks; ++i) w.look();
        if (index == 2 && !now.reads) w.map->update();
    }
    void after() { w.after(); }
};

template <mutation M>
void choose(shape s) {
    now = s;
    chosen::now = &M::apply;
    by_table = by_scan = 0;
}

void passes(model& m, char const* name, shape s, model_bound bound = {2, 3}) {
    choose<shipped>(s);
    m.passes<map_suite>(name, bound);
    if (s.reads) m.reached(by_table != 0 && by_scan != 0, name, "not both ways to look up were gone");
}

template <mutation M = shipped>
void caught(model& m, char const* name, shape s, rl::test_result_e expected = rl::test_result_user_assert_failed) {
    choose<M>(s);
    // The bound of those that must pass.
    m.caught<map_suite>(name, {2, 2}, expected);
}

}  // namespace

int main(int argc, char** argv) {
    model m{argc, argv};
    using enum operation;

    passes(m, "map: one vCPU changes, a reader looks", {}, {3, 5});
    passes(m, "map: one vCPU changes, a reader looks twice", {.looks = 2});
    passes(m, "map: two vCPUs change, a reader looks", {.both = true});
    passes(m, "map: two vCPUs change, one twice", {.both = true, .twice = true}, {2, 2});
    passes(m, "map: two vCPUs change, a third rebuilds", {.both = true, .reads = false}, {3, 3});
    passes(m, "map: no storage at first, a third rebuilds", {.both = true, .reads = false, .scarce = true}, {3, 3});

    constexpr auto race = rl::test_result_data_race;
    shape const one{}, two{.both = true};
    shape const late{.both = true, .reads = false, .scarce = true};
    auto const with = [](shape s, bug wrong) {
        s.wrong = wrong;
        return s;
    };

    // [map-mark]
    caught<weaken<rmw, order::release, order::relaxed, "mark">>(m, "map [map-mark]: marked relaxed", two);
    caught<weaken<rmw, order::seq_cst, order::release, "update">>(m, "map [map-mark]: taken without acquire", two,
                                                                  race);
    caught<weaken<rmw, order::acquire, order::relaxed, "update">>(m, "map [map-mark]: marks in between met relaxed",
                                                                  two);
    // [map-table]
    caught<weaken<rmw, order::release, order::relaxed, "update">>(m, "map [map-table]: published relaxed", one, race);
    caught<weaken<load, order::seq_cst, order::relaxed, "reader">>(m, "map [map-table]: second look relaxed", one,
                                                                   race);
    // [map-hand-on]
    caught<weaken<rmw, order::release, order::relaxed, "give_up">>(m, "map [map-hand-on]: given up relaxed", late);
    // [snap-reuse]
    caught<weaken<rmw, order::seq_cst, order::acq_rel, "reader">>(m, "map [snap-reuse]: counted acq_rel", one, race);
    caught<weaken<load, order::seq_cst, order::acquire, "reader">>(m, "map [snap-reuse]: second look acquire", one,
                                                                   race);
    caught<weaken<rmw, order::seq_cst, order::acq_rel, "update">>(m, "map [snap-reuse]: taken acq_rel", one, race);
    caught<weaken<load, order::seq_cst, order::acquire, "storage">>(m, "map [snap-reuse]: count read acquire", one,
                                                                    race);
    // [snap-left]
    caught<weaken<rmw, order::release, order::relaxed, "~reader">>(m, "map [snap-left]: left relaxed", one, race);
    caught<weaken<load, order::seq_cst, order::relaxed, "storage">>(m, "map [snap-left]: count read relaxed", one,
                                                                    race);

    caught(m, "map: published by a store", with(two, bug::publishes_by_store));
    caught(m, "map: taken by an exchange", with(two, bug::takes_by_store), race);
    caught(m, "map: given up by a store", with(late, bug::gives_up_by_store));
    caught(m, "map: marked by a load and a store", with(two, bug::marks_by_store));
    caught(m, "map: not marked", with(one, bug::marks_nothing));
    caught(m, "map: readers not counted", with(one, bug::readers_not_counted), race);
    caught(m, "map: no second look", with(one, bug::no_second_look), race);
    caught(m, "map: storage given again whoever reads", with(one, bug::counts_not_asked), race);
    return m.result();
}
