// SPDX-License-Identifier: MIT
#include <pvx/guest/ipi.hpp>

#include <numeric>
#include <vector>

#include "vectors.hpp"

using namespace pvx;
using pvx_test::hex;
using json = nlohmann::ordered_json;

namespace {

using ids = std::vector<uint32_t>;

ids range(uint32_t first, uint32_t count, uint32_t step = 1) {
    ids list(count);
    for (uint32_t& id : list) id = first, first += step;
    return list;
}
ids joined(ids a, ids const& b) { return a.insert(a.end(), b.begin(), b.end()), a; }

void make(json& out) {
    out["about"] =
        "How one IPI to the CPUs with these APIC ids, in the order of their CPU numbers, becomes send-IPI hypercalls: "
        "bit i of low and high stands for the id lowest + i and lowest + 64 + i. A window that is left with one id is "
        "sent natively.";
    ids odd_even = range(1, 64, 2);
    for (ids const& list : {ids{},
                            ids{0},
                            ids{5, 6},
                            ids{6, 5},
                            range(0, 64),
                            range(0, 128),
                            range(0, 129),
                            range(0, 256),
                            range(100, 128),
                            range(0, 64, 2),
                            range(0, 64, 4),
                            range(0, 8, 64),
                            range(0, 8, 127),
                            range(0, 8, 128),
                            ids{0, 127},
                            ids{0, 128},
                            ids{127, 0},
                            ids{128, 0},
                            ids{200, 100, 73, 72},
                            ids{64, 0, 127},
                            ids{64, 0, 128},
                            ids{64, 191, 63},
                            ids{0, 1, 1000, 1001},
                            ids{0, 1000, 1, 1001},
                            ids{0xffffffff, 0xfffffffe},
                            ids{0xffffffff, 0},
                            joined(range(0, 64, 2), odd_even),
                            joined(range(64, 64), range(0, 64)),
                            joined(range(128, 4), range(0, 4))}) {
        pvx_test::fake_state state;
        for (uint32_t id : list) state.apic_ids.push_back(apic_id{id});
        json windows = json::array(), native = json::array();
        state.on_hypercall = [&](uint64_t, uint64_t low, uint64_t high, uint64_t lowest, uint64_t) {
            windows.push_back({{"lowest", lowest}, {"low", hex(low)}, {"high", hex(high)}});
            return int64_t{0};
        };
        std::vector<unsigned long> const all(list.size() / 64 + 1, ~0ul);
        (void)guest::ipi(pvx_test::fake_machine{state})
            .send({all.data(), static_cast<uint32_t>(list.size())}, abi::apic_command{0xf0});
        for (auto const& sent : state.native) native.push_back(sent.first);
        out["cases"].push_back({{"ids", list}, {"hypercalls", windows}, {"native", native}});
    }
}
vector_file const here{"ipi_clusters", make};

}  // namespace
