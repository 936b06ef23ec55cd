// SPDX-License-Identifier: MIT
#include <pvx/guest/tlb_flush.hpp>
#include <pvx/host/steal_time.hpp>

#include <functional>
#include <vector>

#include "support/fake_environment.hpp"
#include "support/flush_machine.hpp"
#include "vectors.hpp"

using namespace pvx;
using pvx_test::hex;
using pvx_test::thread_atomics;
using json = nlohmann::ordered_json;

namespace {

constexpr uint64_t address = 0x1000;
constexpr host::departure preempted{true, true, true}, blocked{true, false, true}, emulating{false, true, true};

// A vCPU's page with both ends of it: the vCPU's host, and another vCPU that flushes.
class vcpu {
public:
    explicit vcpu(bool in_host) : guest_(2), steal_(pvx_test::fake_environment<thread_atomics>(host_), in_host) {
        host_.memory[address] = &guest_.pages[1];
        options_.host_bits = static_cast<uint8_t>(abi::steal_preempted | (in_host ? abi::proposed::steal_in_host : 0));
        (void)steal_.write_msr(abi::kvm_msr::steal_time.index,
                               address | abi::kvm_msr_enable | (in_host ? abi::proposed::steal_time_in_host : 0));
        steal_.enter();
        host_.log.clear();
    }
    vcpu(vcpu const&) = delete;

    uint8_t byte() const { return guest_.pages[1].preempted; }
    void put(host::departure how) { steal_.put(how); }
    bool enter() {
        host_.log.clear();
        steal_.load();
        steal_.enter();
        return host_.count("flush") != 0;
    }
    bool flush() {
        using machine = pvx_test::flush_machine<thread_atomics>;
        return guest::tlb_flush<machine>(machine(guest_, {}), options_).leave_to_host(cpu_index{1});
    }

private:
    pvx_test::host_state host_;
    pvx_test::flush_state guest_;
    guest::flush_options options_{};
    host::steal_time<pvx_test::fake_environment<thread_atomics>> steal_;
};

using step = std::function<void(vcpu&)>;
step const out_preempted = [](vcpu& v) { v.put(preempted); };
step const out_blocked = [](vcpu& v) { v.put(blocked); };
step const flushed = [](vcpu& v) { (void)v.flush(); };

void make(json& out) {
    out["about"] =
        "The byte 'preempted' of the steal-time page: 1 is P, set by the host where the vCPU is descheduled and wants "
        "to "
        "run; 2 is F, set by a guest CPU that leaves a flush; 4 is H of the proposed ABI, set by the host while the "
        "vCPU "
        "is in the host for any reason. Each case: the byte, who does what, and the byte after it. left: the flusher "
        "sends no IPI. flush: the host flushes before the vCPU runs.";
    for (bool in_host : {false, true}) {
        std::vector<std::vector<step>> const paths =
            in_host ? std::vector<std::vector<step>>{{},
                                                     {out_blocked},
                                                     {out_preempted},
                                                     {out_blocked, flushed},
                                                     {out_preempted, flushed},
                                                     {out_blocked, flushed, out_preempted}}
                    : std::vector<std::vector<step>>{{}, {out_preempted}, {out_preempted, flushed}};
        for (auto const& path : paths) {
            auto const add = [&](char const* who, char const* what, auto&& act) {
                vcpu v(in_host);
                for (step const& s : path) s(v);
                json row = {{"abi", in_host ? "proposed" : "stock"}, {"byte", v.byte()}, {"who", who}, {"does", what}};
                json const answer = act(v);
                row["after"] = v.byte();
                row.update(answer);
                out["cases"].push_back(row);
            };
            auto const put = [&](char const* what, host::departure how) {
                add("host", what, [&](vcpu& v) { return v.put(how), json::object(); });
            };
            add("guest", "leave a flush", [](vcpu& v) { return json{{"left", v.flush()}}; });
            put("deschedule", preempted);
            put("block in HLT", blocked);
            put("deschedule amid an emulation", emulating);
            add("host", "enter", [](vcpu& v) { return json{{"flush", v.enter()}}; });
        }
    }
}
vector_file const here{"steal_byte_states", make};

}  // namespace
