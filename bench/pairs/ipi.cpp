// SPDX-License-Identifier: MIT
#include <pvx/guest/ipi.hpp>

#include "pairs/user_machine.hpp"
#include "support/operation.hpp"

using namespace pvx_bench;

namespace {

constexpr pvx::guest::ipi<user_machine> ipi{user_machine{}};
constexpr auto command = pvx::abi::apic_command{0xfd};
unsigned long all[1] = {~0ul};

bool const sending = add_pair(
    "ipi: send to 64, without exits", "pvx",
    [] { keep(ipi.send(pvx::const_cpu_mask_view(all, user_machine::cpus), command)); }, "loop over targets",
    [] {
        user_machine const machine;
        pvx::const_cpu_mask_view(all, user_machine::cpus).for_each([&](pvx::cpu_index cpu) {
            machine.native_ipi(machine.apic(cpu), command);
        });
    });

bool const window = add_pair(
    "ipi: build a window of 64", "pvx",
    [] {
        pvx::guest::ipi_window w;
        for (uint32_t id = 0; id < user_machine::cpus; ++id) keep(w.add(pvx::apic_id{id * 2}));
        keep(w);
    },
    "set bits above a known base",
    [] {
        uint64_t map[2] = {};
        for (uint32_t id = 0; id < user_machine::cpus; ++id) {
            map[id * 2 / 64] |= uint64_t{1} << (id * 2 % 64);
            keep(map[0]);
        }
        keep(map);
    });

}  // namespace
