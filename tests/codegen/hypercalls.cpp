// SPDX-License-Identifier: MIT
// What a VMM does not have costs nothing: hypercalls and MSRs of roles that its environment lacks, or that no guest of
// it is offered, and exits that nobody observes. And what it has is no more than the way to the role.

#include <pvx/host/exit_stats.hpp>
#include <pvx/host/hypercalls.hpp>
#include <pvx/host/msrs.hpp>

using namespace pvx;
using namespace pvx::host;

namespace {

// Features, and nothing else.
struct bare {
    uint32_t pv_features() const { return ~0u; }
};

extern "C" void out_of_line(uint64_t);

// Every MSR role there is, of which a guest is offered none.
struct offers_nothing {
    uint32_t pv_features() const { return 0; }
    void set_halt_polling(bool on) const { out_of_line(on); }
    bool set_pv_eoi(guest_phys word, bool) const { return out_of_line(word.value), true; }
    bool has_local_apic() const { return true; }
    bool set_async_pf(async_pf_setting const& s) const { return out_of_line(s.record.value), true; }
    void acknowledge_async_pf() const { out_of_line(0); }
    bool memory_encrypted() const { return false; }
    void set_migration_ready(bool ready) const { out_of_line(ready); }
};
static_assert(halt_polling_policy<offers_nothing> && pv_eoi_policy<offers_nothing> && async_pf_policy<offers_nothing> &&
              migration_policy<offers_nothing>);

// Halt polling, and nothing else.
struct polls : bare {
    void set_halt_polling(bool on) const { out_of_line(on); }
};

// Observes exits, or does not.
struct observes {
    void event(exit_event exit) const { out_of_line(exit.reason); }
};

struct counts : builtin_atomics {
    uint32_t clamp_index(uint32_t i, uint32_t n) const { return i < n ? i : 0; }
};

}  // namespace

extern "C" {

bool no_msr_write(msrs<bare>&, uint32_t, uint64_t);
bool no_msr_read(msrs<bare> const&, uint32_t);
bool no_msr_offered(msrs<offers_nothing>&, uint32_t, uint64_t);
void no_init(msrs<bare>&);
bool poll_write(msrs<polls>&, uint32_t, uint64_t);
uint64_t no_hypercall(hypercall const&);
void exit_unseen(uint32_t);
void exit_seen(uint32_t);
void exit_count(exit_stats<counts> const&, uint32_t);

// codegen: no_msr_write memory=0 branches=0 calls=0 instructions<=3
bool no_msr_write(msrs<bare>& it, uint32_t index, uint64_t value) {
    return it.write(index, value) != msr_outcome::not_ours;
}

// codegen: no_msr_read memory=0 branches=0 calls=0 instructions<=3
bool no_msr_read(msrs<bare> const& it, uint32_t index) { return it.read(index).outcome != msr_outcome::not_ours; }

// codegen: no_msr_offered memory=0 branches=0 calls=0 instructions<=3
bool no_msr_offered(msrs<offers_nothing>& it, uint32_t index, uint64_t value) {
    return it.write(index, value) != msr_outcome::not_ours;
}

// codegen: no_init branches=0 calls=0 instructions<=8
void no_init(msrs<bare>& it) { it.init(); }

// codegen: poll_write calls<=1 instructions<=24
bool poll_write(msrs<polls>& it, uint32_t index, uint64_t value) { return it.write(index, value) == msr_outcome::done; }

// codegen: no_hypercall calls=0 instructions<=40
uint64_t no_hypercall(hypercall const& with) { return hypercalls(bare{}).call(with).rax; }

// codegen: exit_unseen memory=0 branches=0 calls=0 instructions=1
void exit_unseen(uint32_t reason) { tell_exit(bare{}, {reason, exit_path::fast}); }

// codegen: exit_seen calls=0 branches=1 instructions<=3
void exit_seen(uint32_t reason) { tell_exit(observes{}, {reason, exit_path::fast}); }

// codegen: exit_count memory<=6 calls=0 instructions<=16
void exit_count(exit_stats<counts> const& stats, uint32_t reason) { stats.count({reason, exit_path::slow}); }
}
