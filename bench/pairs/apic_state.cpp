// SPDX-License-Identifier: MIT
#include <pvx/host/apic_icr.hpp>
#include <pvx/host/apic_state.hpp>
#include <pvx/host/apic_words.hpp>

#include <array>
#include <memory>
#include <vector>

#include "support/operation.hpp"

using namespace pvx_bench;
using pvx::host::apic_state;

namespace {

constexpr pvx::host::apic_offer offer{46, true};

apic_state<> enabled(uint32_t id) {
    apic_state<> apic(pvx::apic_id{id}, false);
    (void)apic.write_page(offer, pvx::abi::apic_reg::svr, 0x1ff);
    return apic;
}

/// As a VMM has it that keeps the three answers where they come from.
struct plain_vcpu {
    struct registers {
        uint32_t svr = 0x1ff;
    };
    uint64_t base = 0xfee00800;
    registers const* apic = nullptr;

    bool usable() const { return apic != nullptr && (base & 0x800) != 0 && (apic->svr & 0x100) != 0; }
};

plain_vcpu::registers const its_registers;
plain_vcpu plain{0xfee00800, &its_registers};
apic_state<> state = enabled(5);

bool const asking = add_pair(
    "apic state: is it usable", "one word",
    [] {
        forget(state);
        keep(state.usable());
    },
    "three loads",
    [] {
        forget(plain);
        keep(plain.usable());
    });

// A vCPU's structure is of pages; the words lie side by side.
constexpr uint32_t vcpus = 1024;
struct vcpu {
    apic_state<> apic;
    unsigned char rest[4096 - sizeof(apic_state<>)];
};

struct machine {
    std::array<uint8_t, vcpus> words{};
    std::vector<vcpu> each = std::vector<vcpu>(vcpus);

    machine() {
        for (uint32_t i = 0; i < vcpus; ++i) {
            if (i % 4 != 3) each[i].apic = enabled(i);
            words[i] = each[i].apic.word();
        }
    }
};

bool const scanning = [] {
    auto const guest = std::make_shared<machine>();
    pairs().push_back(
        {"apic state: scan 1024 vCPUs",
         make_operation("words side by side",
                        [guest] {
                            pvx::host::apic_words const words(pvx::builtin_atomics{}, guest->words.data(), vcpus);
                            uint32_t usable = 0;
                            words.for_each(pvx::host::apic_word::usable, [&](pvx::cpu_index) { ++usable; });
                            keep(usable);
                        }),
         make_operation("one vCPU after the other",
                        [guest] {
                            uint32_t usable = 0;
                            for (vcpu const& v : guest->each) usable += v.apic.usable();
                            keep(usable);
                        }),
         vcpus});
    return true;
}();

/// What a VMM does at the least: the fields, no verdict.
bool const decoding = add_pair(
    "apic state: read a command", "pvx, with the verdict",
    [value = uint64_t{5} << 32 | 0x40fd]() mutable {
        forget(value);
        keep(pvx::host::write_icr_msr(pvx::abi::apic_mode::x2apic, 0, 0x830, value));
    },
    "fields alone",
    [value = uint64_t{5} << 32 | 0x40fd]() mutable {
        forget(value);
        struct {
            uint32_t destination;
            uint8_t vector, delivery, shorthand;
            bool logical;
        } const fields{static_cast<uint32_t>(value >> 32), static_cast<uint8_t>(value),
                       static_cast<uint8_t>(value >> 8 & 7), static_cast<uint8_t>(value >> 18 & 3),
                       (value & 0x800) != 0};
        keep(fields);
    });

}  // namespace
