// SPDX-License-Identifier: MIT
#include <pvx/host/msrs.hpp>

#include <pvx/host/steal_time.hpp>

#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/fake_machine.hpp"

using namespace pvx;
using namespace pvx::host;
using namespace pvx_test;
using enum abi::kvm_feature;
namespace msr = abi::kvm_msr;

namespace {

constexpr uint64_t page = 0x1000;

struct msr_plan {
    uint32_t features = ~0u;
    bool apic = true;
    bool encrypted;
    bool eoi_works = true;
    bool async_pf_works = true;
    std::vector<std::string> log;

    explicit msr_plan(bool e = false) : encrypted(e) {}

    std::vector<std::string> happened() {
        std::vector<std::string> was;
        was.swap(log);
        return was;
    }
};
using steps = std::vector<std::string>;

/// Features, and nothing else.
struct bare_host {
    msr_plan* plan;
    uint32_t pv_features() const { return plan->features; }
};

/// Every role.
struct whole_host : bare_host {
    void set_halt_polling(bool on) const { plan->log.push_back(on ? "polling on" : "polling off"); }
    bool set_pv_eoi(guest_phys word, bool on) const {
        plan->log.push_back("eoi " + hex(word.value) + (on ? " on" : " off"));
        return plan->eoi_works;
    }
    bool has_local_apic() const { return plan->apic; }
    bool set_async_pf(async_pf_setting const& s) const {
        std::string line = "async_pf";
        if (s.enabled) line += " " + hex(s.record.value) + " vector " + hex(s.vector);
        if (s.in_ring_0) line += " ring 0";
        if (s.as_vmexit) line += " vmexit";
        plan->log.push_back(line);
        return plan->async_pf_works;
    }
    void acknowledge_async_pf() const { plan->log.push_back("acknowledge"); }
    bool memory_encrypted() const { return plan->encrypted; }
    void set_migration_ready(bool ready) const { plan->log.push_back(ready ? "may migrate" : "must stay"); }
};

/// A component with an MSR of its own.
struct component {
    uint32_t index;
    uint64_t value = 0;
    unsigned asked = 0;
    unsigned resets = 0;

    msr_outcome write_msr(uint32_t i, uint64_t v) {
        ++asked;
        if (i != index) return msr_outcome::not_ours;
        if (v == 0xbad) return msr_outcome::fault;
        value = v;
        return msr_outcome::done;
    }
    msr_read read_msr(uint32_t i) const {
        return i == index ? msr_read{msr_outcome::done, value} : msr_read{msr_outcome::not_ours, 0};
    }
    void reset() {
        value = 0;
        ++resets;
    }
};

struct vcpu {
    msr_plan plan;
    msrs<whole_host> it;

    explicit vcpu(bool encrypted = false) : plan(encrypted), it(whole_host{{&plan}}) {}
    vcpu(vcpu const&) = delete;

    msr_outcome write(abi::kvm_msr_row const& row, uint64_t value) { return it.write(row.index, value); }
    uint64_t read(abi::kvm_msr_row const& row) const {
        msr_read const found = it.read(row.index);
        REQUIRE(found.outcome == msr_outcome::done);
        return found.value;
    }
};

constexpr abi::kvm_msr_row every[] = {msr::wall_clock_old, msr::system_time_old,  msr::wall_clock,
                                      msr::system_time,    msr::async_pf_en,      msr::steal_time,
                                      msr::pv_eoi_en,      msr::poll_control,     msr::async_pf_int,
                                      msr::async_pf_ack,   msr::migration_control};
constexpr abi::kvm_msr_row own[] = {msr::async_pf_en,  msr::pv_eoi_en,    msr::poll_control,
                                    msr::async_pf_int, msr::async_pf_ack, msr::migration_control};

}  // namespace

// --- which there are -------------------------------------------------------------------------------------------------

TEST_CASE("An MSR exists by its own feature, and by no other", "[host][msrs]") {
    for (abi::kvm_msr_row const& row : own) {
        CAPTURE(row.index);
        vcpu v;
        v.plan.features = ~mask(row.gate);
        CHECK(v.write(row, 0) == msr_outcome::not_ours);
        CHECK(v.it.read(row.index).outcome == msr_outcome::not_ours);
        CHECK(v.plan.log.empty());
        v.plan.features = mask(row.gate);
        CHECK(v.write(row, 0) == msr_outcome::done);
        CHECK(v.it.read(row.index).outcome == msr_outcome::done);
    }
}

TEST_CASE("A component's MSR exists by its feature too, and goes to the first that takes it", "[host][msrs]") {
    for (abi::kvm_msr_row const& row :
         {msr::wall_clock_old, msr::system_time_old, msr::wall_clock, msr::system_time, msr::steal_time}) {
        CAPTURE(row.index);
        vcpu v;
        component other{0x10}, right{row.index}, same{row.index};
        CHECK(v.it.write(row.index, 5, other, right, same) == msr_outcome::done);
        CHECK(other.asked == 1);
        CHECK(right.value == 5);
        CHECK(same.asked == 0);
        CHECK(v.it.read(row.index, other, right, same) == msr_read{msr_outcome::done, 5});
        CHECK(v.it.write(row.index, 0xbad, other, right, same) == msr_outcome::fault);
        CHECK(same.asked == 0);
        CHECK(v.it.write(row.index, 5, other) == msr_outcome::not_ours);
        CHECK(v.it.read(row.index, other) == msr_read{msr_outcome::not_ours, 0});
        CHECK(v.it.write(row.index, 5) == msr_outcome::not_ours);
        v.plan.features = ~mask(row.gate);
        CHECK(v.it.write(row.index, 6, right) == msr_outcome::not_ours);
        CHECK(v.it.read(row.index, right) == msr_read{msr_outcome::not_ours, 0});
        CHECK(right.value == 5);
    }
}

TEST_CASE("What is not KVM's is nobody's here, and no component is asked for it", "[host][msrs]") {
    vcpu v;
    for (uint32_t index : {0u, 0x10u, 0x13u, 0x4b564cffu, 0x4b564d09u, 0x4b564dffu, 0x40000000u, 0xffffffffu}) {
        CAPTURE(index);
        component greedy{index};
        CHECK(v.it.write(index, 1, greedy) == msr_outcome::not_ours);
        CHECK(v.it.read(index, greedy) == msr_read{msr_outcome::not_ours, 0});
        CHECK(greedy.asked == 0);
    }
}

TEST_CASE("What the VMM has no role for is not its MSR, whatever is offered", "[host][msrs]") {
    msr_plan plan;
    msrs<bare_host> bare(bare_host{&plan});
    for (abi::kvm_msr_row const& row : every) {
        CHECK(bare.write(row.index, 0) == msr_outcome::not_ours);
        CHECK(bare.read(row.index) == msr_read{msr_outcome::not_ours, 0});
    }
    component at_clock{msr::system_time.index};
    CHECK(bare.write(msr::system_time.index, 3, at_clock) == msr_outcome::done);
    bare.reset(at_clock);
    CHECK(at_clock.value == 0);
    CHECK(bare.restore(bare.save()) == status::ok);
}

TEST_CASE("Every MSR of the table is found by its number, and no other", "[abi][kvm_msr]") {
    for (abi::kvm_msr_row const& row : every) {
        abi::kvm_msr_row const found = abi::find_kvm_msr(row.index);
        CHECK((found.index == row.index && found.gate == row.gate && found.reserved == row.reserved));
    }
    for (uint32_t index : {0u, 0x10u, 0x13u, 0x4b564cffu, 0x4b564d09u, 0xffffffffu})
        CHECK(abi::find_kvm_msr(index).index == 0);
}

// --- which values they take ------------------------------------------------------------------------------------------

TEST_CASE("A reserved bit of any MSR faults and changes nothing, every other bit is kept", "[host][msrs]") {
    struct row {
        abi::kvm_msr_row msr;
        uint64_t reserved;
        uint64_t reads;  // of what was written
    };
    constexpr uint64_t all = ~uint64_t{0};
    for (row r : {row{msr::async_pf_en, 0x30, all}, row{msr::pv_eoi_en, 2, all},
                  row{msr::poll_control, ~uint64_t{1}, all}, row{msr::async_pf_int, ~uint64_t{0xff}, all},
                  row{msr::async_pf_ack, 0, 0}, row{msr::migration_control, 0, all}})
        for (uint32_t bit = 0; bit < 64; ++bit) {
            CAPTURE(r.msr.index, bit);
            vcpu v;
            uint64_t const value = uint64_t{1} << bit, was = v.read(r.msr);
            bool const refused = (r.reserved & value) != 0;
            CHECK(v.write(r.msr, value) == (refused ? msr_outcome::fault : msr_outcome::done));
            CHECK(v.read(r.msr) == (refused ? was : value & r.reads));
            if (refused) CHECK(v.plan.log.empty());
        }
}

TEST_CASE("Halt polling is on at first, and as the guest says", "[host][msrs]") {
    vcpu v;
    CHECK(v.read(msr::poll_control) == 1);
    CHECK(v.write(msr::poll_control, 0) == msr_outcome::done);
    CHECK(v.write(msr::poll_control, 1) == msr_outcome::done);
    CHECK(v.plan.happened() == steps{"polling off", "polling on"});
}

TEST_CASE("A PV EOI word reaches the VMM, and one that it cannot use faults", "[host][msrs]") {
    vcpu v;
    CHECK(v.write(msr::pv_eoi_en, page + 4 + 1) == msr_outcome::done);
    CHECK(v.plan.happened() == steps{"eoi 0x1004 on"});
    v.plan.eoi_works = false;
    CHECK(v.write(msr::pv_eoi_en, 0x2001) == msr_outcome::fault);
    CHECK(v.read(msr::pv_eoi_en) == 0x1005);
    v.plan.eoi_works = true;
    v.plan.log.clear();
    CHECK(v.write(msr::pv_eoi_en, 0) == msr_outcome::done);
    CHECK(v.plan.happened() == steps{"eoi 0x0 off"});
}

TEST_CASE("Asynchronous page faults are on only if they are announced by interrupt", "[host][msrs]") {
    vcpu v;
    CHECK(v.write(msr::async_pf_int, 0xec) == msr_outcome::done);
    CHECK(v.plan.happened().empty());
    for (uint64_t flags = 0; flags < 16; ++flags) {
        CAPTURE(flags);
        CHECK(v.write(msr::async_pf_en, 0x1fc0 | flags) == msr_outcome::done);
        std::string expected = "async_pf";
        if ((flags & 9) == 9) expected += " 0x1fc0 vector 0xec";
        if ((flags & 2) != 0) expected += " ring 0";
        if ((flags & 4) != 0) expected += " vmexit";
        CHECK(v.plan.happened() == steps{expected});
    }
    CHECK(v.write(msr::async_pf_int, 0xed) == msr_outcome::done);
    CHECK(v.plan.happened() == steps{"async_pf 0x1fc0 vector 0xed ring 0 vmexit"});
    CHECK(v.read(msr::async_pf_int) == 0xed);
    v.plan.async_pf_works = false;
    CHECK(v.write(msr::async_pf_int, 0xee) == msr_outcome::fault);
    CHECK(v.read(msr::async_pf_int) == 0xed);
    CHECK(v.write(msr::async_pf_en, 0x2009) == msr_outcome::fault);
    CHECK(v.read(msr::async_pf_en) == 0x1fcf);
}

TEST_CASE("Bits 2 and 3 of the asynchronous page faults need features of their own", "[host][msrs]") {
    for (bool vmexit : {false, true})
        for (bool interrupt : {false, true})
            for (uint64_t flags = 0; flags < 16; ++flags) {
                CAPTURE(vmexit, interrupt, flags);
                vcpu v;
                v.plan.features =
                    mask(async_pf) | (vmexit ? mask(async_pf_vmexit) : 0) | (interrupt ? mask(async_pf_int) : 0);
                bool const legal = ((flags & 4) == 0 || vmexit) && ((flags & 8) == 0 || interrupt);
                CHECK(v.write(msr::async_pf_en, page | flags) == (legal ? msr_outcome::done : msr_outcome::fault));
                CHECK(v.read(msr::async_pf_en) == (legal ? page | flags : 0));
            }
}

TEST_CASE("Without a local APIC here asynchronous page faults can only be off", "[host][msrs]") {
    vcpu v;
    v.plan.apic = false;
    CHECK(v.write(msr::async_pf_en, page | 9) == msr_outcome::fault);
    CHECK(v.write(msr::async_pf_en, page) == msr_outcome::fault);
    CHECK(v.write(msr::async_pf_int, 0xec) == msr_outcome::fault);
    CHECK(v.plan.log.empty());
    CHECK(v.write(msr::async_pf_en, 0) == msr_outcome::done);
    CHECK(v.read(msr::async_pf_int) == 0);
}

TEST_CASE("Only bit 0 acknowledges, and nothing of it is kept", "[host][msrs]") {
    vcpu v;
    for (uint64_t value : {uint64_t{0}, uint64_t{2}, ~uint64_t{1}})
        CHECK(v.write(msr::async_pf_ack, value) == msr_outcome::done);
    CHECK(v.plan.log.empty());
    CHECK(v.write(msr::async_pf_ack, 1) == msr_outcome::done);
    CHECK(v.write(msr::async_pf_ack, ~uint64_t{0}) == msr_outcome::done);
    CHECK(v.plan.happened() == steps{"acknowledge", "acknowledge"});
    CHECK(v.read(msr::async_pf_ack) == 0);
}

TEST_CASE("A guest with encrypted memory is asked before it is migrated, another is not", "[host][msrs]") {
    for (bool encrypted : {false, true}) {
        CAPTURE(encrypted);
        vcpu v(encrypted);
        CHECK(v.read(msr::migration_control) == (encrypted ? 0 : 1));
        CHECK(v.write(msr::migration_control, 1) == msr_outcome::done);
        CHECK(v.write(msr::migration_control, 0) == msr_outcome::done);
        CHECK(v.write(msr::migration_control, 2) == msr_outcome::done);
        CHECK(v.plan.happened() == steps{"may migrate", "must stay", "must stay"});
        v.it.reset();
        CHECK(v.read(msr::migration_control) == (encrypted ? 0 : 1));
        CHECK(v.plan.log.back() == (encrypted ? "must stay" : "may migrate"));
    }
}

// --- INIT, RESET, saving ---------------------------------------------------------------------------------------------

TEST_CASE("INIT and RESET withdraw what the vCPU had registered", "[host][msrs]") {
    for (bool reset : {false, true}) {
        CAPTURE(reset);
        vcpu v;
        component part{msr::steal_time.index};
        CHECK(v.it.write(msr::steal_time.index, page | 1, part) == msr_outcome::done);
        CHECK(v.write(msr::async_pf_int, 0xec) == msr_outcome::done);
        CHECK(v.write(msr::async_pf_en, page | 9) == msr_outcome::done);
        CHECK(v.write(msr::pv_eoi_en, page | 1) == msr_outcome::done);
        CHECK(v.write(msr::poll_control, 0) == msr_outcome::done);
        CHECK(v.write(msr::migration_control, 0) == msr_outcome::done);
        v.plan.log.clear();
        if (reset)
            v.it.reset(part);
        else
            v.it.init(part);
        steps expected{"async_pf", "eoi 0x0 off", "polling on"};
        if (reset) expected.push_back("may migrate");
        CHECK(v.plan.happened() == expected);
        CHECK(v.read(msr::async_pf_en) == 0);
        CHECK(v.read(msr::async_pf_int) == 0);
        CHECK(v.read(msr::pv_eoi_en) == 0);
        CHECK(v.read(msr::poll_control) == 1);
        CHECK(v.read(msr::migration_control) == (reset ? 1 : 0));  // the whole VM's, which an INIT is not
        CHECK(part.resets == 1);
    }
}

TEST_CASE("MSRs that are saved are the same elsewhere, and the VMM is told", "[host][msrs]") {
    vcpu from(true), to(true);
    CHECK(from.write(msr::async_pf_int, 0xec) == msr_outcome::done);
    CHECK(from.write(msr::async_pf_en, page | 0xf) == msr_outcome::done);
    CHECK(from.write(msr::pv_eoi_en, 0x2005) == msr_outcome::done);
    CHECK(from.write(msr::poll_control, 0) == msr_outcome::done);
    CHECK(from.write(msr::migration_control, 1) == msr_outcome::done);
    REQUIRE(to.it.restore(from.it.save()) == status::ok);
    for (abi::kvm_msr_row const& row : own) CHECK(to.read(row) == from.read(row));
    steps const told = to.plan.happened();
    for (char const* what : {"polling off", "eoi 0x2004 on", "async_pf 0x1000 vector 0xec ring 0 vmexit"}) {
        CAPTURE(what);
        bool found = false;
        for (std::string const& line : told) found = found || line == what;
        CHECK(found);
    }
    for (std::string const& line : told) CHECK(line != "may migrate");  // the VM's, not this vCPU's
}

TEST_CASE("What a VM's leave to migrate was at first keeps no vCPU from being restored", "[host][msrs]") {
    for (uint64_t first : {uint64_t{0}, uint64_t{1}}) {
        vcpu v(true);
        v.plan.features = ~mask(abi::kvm_feature::migration_control);
        msrs_state state{};
        state.migration_control = first;
        CHECK(v.it.restore(state) == status::ok);
    }
}

TEST_CASE("Asynchronous page faults are not restored where no APIC announces them", "[host][msrs]") {
    for (bool vector_only : {false, true}) {
        vcpu v(true);
        v.plan.apic = false;
        msrs_state state{};
        (vector_only ? state.async_pf_int : state.async_pf_en) = vector_only ? 0xec : page | 9;
        CHECK(v.it.restore(state) == status::bad_argument);
        CHECK(v.read(msr::async_pf_int) == 0);
        v.plan.apic = true;
        CHECK(v.it.restore(state) == status::ok);
    }
}

TEST_CASE("Saved MSRs that no guest could have written here are refused and change nothing", "[host][msrs]") {
    vcpu v;
    CHECK(v.write(msr::pv_eoi_en, page | 1) == msr_outcome::done);
    v.plan.log.clear();
    msrs_state const good = v.it.save();
    std::vector<msrs_state> bad(8, good);
    bad[0].version = 0;
    bad[1].version = 2;
    bad[2].pad = 1;
    bad[3].async_pf_en = 0x10;
    bad[4].async_pf_int = 0x100;
    bad[5].pv_eoi_en = 2;
    bad[6].poll_control = 2;
    bad[7].poll_control = 3;
    for (msrs_state const& state : bad) CHECK(v.it.restore(state) == status::bad_argument);

    auto const refused_without = [&](abi::kvm_feature f, msrs_state const& state) {
        v.plan.features = ~mask(f);
        bool const refused = v.it.restore(state) == status::bad_argument;
        v.plan.features = ~0u;
        return refused;
    };
    msrs_state state = good;
    CHECK(refused_without(pv_eoi, state));
    state = {};
    state.async_pf_en = page | 1;
    CHECK(refused_without(async_pf, state));
    state.async_pf_en = page | 5;
    CHECK(refused_without(async_pf_vmexit, state));
    state.async_pf_en = page | 9;
    CHECK(refused_without(async_pf_int, state));
    state = {};
    state.async_pf_int = 1;
    CHECK(refused_without(async_pf_int, state));
    state = {};
    state.poll_control = 0;
    CHECK(refused_without(poll_control, state));
    state = {};
    state.migration_control = 4;
    CHECK(refused_without(migration_control, state));
    CHECK(v.plan.log.empty());
    CHECK(v.read(msr::pv_eoi_en) == (page | 1));

    // A VMM without the roles.
    msrs<bare_host> bare(bare_host{&v.plan});
    CHECK(bare.restore(good) == status::bad_argument);
}

TEST_CASE("A record that the VMM refuses in a restore is off, and the rest is there", "[host][msrs]") {
    for (bool eoi : {true, false}) {
        CAPTURE(eoi);
        vcpu from, to;
        CHECK(from.write(msr::async_pf_en, page | 9) == msr_outcome::done);
        CHECK(from.write(msr::pv_eoi_en, 0x2005) == msr_outcome::done);
        (eoi ? to.plan.eoi_works : to.plan.async_pf_works) = false;
        CHECK(to.it.restore(from.it.save()) == status::no_record);
        CHECK(to.read(msr::pv_eoi_en) == (eoi ? 0 : 0x2005));
        CHECK(to.read(msr::async_pf_en) == (eoi ? page | 9 : 0));
    }
}
