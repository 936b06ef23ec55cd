// SPDX-License-Identifier: MIT
#include <pvx/guest/steal_time.hpp>

#include "pairs/user_machine.hpp"
#include "support/operation.hpp"

using namespace pvx_bench;

namespace {

constexpr pvx::guest::steal_time steal{user_machine{}};
constexpr pvx::cpu_index cpu{3};

bool const reading = add_pair(
    "steal time: read", "pvx", [] { keep(steal.read(cpu)); }, "plain load",
    [] { keep(__atomic_load_n(&user_machine::records<pvx::abi::kvm_steal_time>[cpu.value].steal, __ATOMIC_RELAXED)); });

bool const preempted = add_pair(
    "steal time: preempted", "pvx", [] { keep(steal.preempted(cpu)); }, "load and test",
    [] {
        auto const& page = user_machine::records<pvx::abi::kvm_steal_time>[cpu.value];
        keep((__atomic_load_n(&page.preempted, __ATOMIC_RELAXED) & 1) != 0);
    });

/// The charge of a tick as a kernel writes it that trusts its host: no step back, no jump.
struct trusting_account {
    uint64_t charged = 0;
    uint64_t charge(uint64_t stolen, uint64_t elapsed) {
        uint64_t const delta = stolen - charged;
        uint64_t const charge = delta < elapsed ? delta : elapsed;
        charged += charge;
        return charge;
    }
};

bool const charging = add_pair(
    "steal time: charge a tick", "pvx",
    [account = pvx::guest::steal_account{pvx::nanoseconds{0}}, now = uint64_t{0}]() mutable {
        keep(account.charge(pvx::nanoseconds{now += 1000}, pvx::nanoseconds{4000000}));
    },
    "trusting",
    [account = trusting_account{}, now = uint64_t{0}]() mutable { keep(account.charge(now += 1000, 4000000)); });

}  // namespace
