// SPDX-License-Identifier: MIT
#include <pvx/guest/x2apic.hpp>

#include "pairs/user_machine.hpp"
#include "support/operation.hpp"

using namespace pvx_bench;

namespace {

/// A WRMSR would fault in user space: it is a store here, so the pair shows the fence alone.
struct storing_machine : user_machine {
    static inline uint64_t register_written = 0;
    void write_msr(uint32_t, uint64_t value) const { __atomic_store_n(&register_written, value, __ATOMIC_RELAXED); }
};

constexpr pvx::guest::x2apic fenced{storing_machine{}, true};
constexpr pvx::guest::x2apic unfenced{storing_machine{}, false};
constexpr auto command = pvx::abi::apic_command{0xfd};

bool const fence = add_pair(
    "x2apic: send, a store in place of WRMSR", "no fence", [] { unfenced.send(pvx::apic_id{1}, command); }, "fence",
    [] { fenced.send(pvx::apic_id{1}, command); });

}  // namespace
