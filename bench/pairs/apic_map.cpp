// SPDX-License-Identifier: MIT
#include <pvx/arch/x86_64.hpp>
#include <pvx/host/apic_map.hpp>

#include <memory>
#include <vector>

#include "support/operation.hpp"

using namespace pvx_bench;
namespace host = pvx::host;
using pvx::cpu_index, pvx::apic_id;

namespace {

/// In user space too.
struct environment : pvx::builtin_atomics {
    uint32_t clamp_index(uint32_t i, uint32_t n) const { return pvx::arch::clamp_index(i, n); }
};

/// A VM whose vCPUs are x2APICs with every second id.
struct machine {
    static constexpr uint32_t vcpus = 256, limit = 2 * vcpus, each = host::apic_map_words(limit);

    std::vector<uint64_t> shared = std::vector<uint64_t>(1 + vcpus);
    std::vector<uint32_t> words = std::vector<uint32_t>(host::two_buffers<environment>::words_for(each));
    host::apic_map<environment> map{{}, shared.data(), vcpus, limit, {{}, words.data(), each}};
    std::vector<uint32_t> ids = std::vector<uint32_t>(vcpus);
    uint32_t next = 0;

    machine() {
        (void)map.set_up();
        for (uint32_t i = 0; i < vcpus; ++i) {
            ids[i] = 2 * i;
            (void)map.add(cpu_index{i}, host::make_apic_identity(apic_id{2 * i}, pvx::abi::apic_mode::x2apic, 7));
        }
        (void)map.update();
    }

    /// Another id each time, all alike often.
    uint32_t some_id() {
        next = (next + 97) % vcpus;
        return 2 * next;
    }
    /// As a VMM does it that has no map: the ids side by side, one after the other.
    uint32_t scan(uint32_t id) const {
        for (uint32_t i = 0; i < vcpus; ++i)
            if (ids[i] == id) return i;
        return ~0u;
    }
};

bool const finding = [] {
    auto const guest = std::make_shared<machine>();
    add_pair(
        "apic map: an id among 256 vCPUs", "map",
        [guest] { keep(guest->map.read_guard().vcpu(apic_id{guest->some_id()})); }, "plain scan of ids",
        [guest] { keep(guest->scan(guest->some_id())); });
    return add_pair(
        "apic map: one of a cluster, 256 vCPUs", "map",
        [guest] {
            uint32_t const id = guest->some_id();
            uint32_t found = 0;
            host::apic_ipi const ipi{host::apic_destination{pvx::abi::x2apic_ldr(apic_id{id})},
                                     pvx::abi::apic_shorthand::none, pvx::abi::apic_delivery::fixed, 0x40, true};
            guest->map.read_guard().for_each(ipi, cpu_index{0}, [&](cpu_index vcpu) { found += vcpu.value; });
            keep(found);
        },
        "plain scan of ids",
        [guest] {
            uint32_t const ldr = pvx::abi::x2apic_ldr(apic_id{guest->some_id()});
            uint32_t found = 0;
            for (uint32_t i = 0; i < machine::vcpus; ++i) {
                uint32_t const own = pvx::abi::x2apic_ldr(apic_id{guest->ids[i]});
                if (own >> 16 == ldr >> 16 && (own & ldr & 0xffff) != 0) found += i;
            }
            keep(found);
        });
}();

}  // namespace
