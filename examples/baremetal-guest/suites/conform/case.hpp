// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// One case of the conformance suite: a sentence about the hypervisor, what must be offered for it to mean anything,
/// and a function that finds out whether it is true.

#include "../../os/attempt.hpp"
#include "../../os/clock.hpp"
#include "../../os/format.hpp"
#include "../../os/trap.hpp"
#include "../../pv.hpp"

namespace conform {

/// What a case found out. The text is the reason of a failure or a skip, or a remark on a pass.
class outcome {
public:
    enum class kind : uint8_t { pass, fail, skip };

    constexpr outcome(kind k) : kind_(k) {}

    kind what() const { return kind_; }
    os::string_view text() const { return {text_, size_}; }

    template <class... Arguments>
    outcome& say(os::format_for<Arguments...> format, Arguments const&... arguments) {
        os::text_writer writer(text_, sizeof text_);
        writer.print(format, arguments...);
        size_ = writer.view().size();
        return *this;
    }

private:
    kind kind_;
    size_t size_ = 0;
    char text_[200];
};

template <class... Arguments>
outcome pass(os::format_for<Arguments...> format, Arguments const&... arguments) {
    return outcome{outcome::kind::pass}.say<Arguments...>(format, arguments...);
}
inline outcome pass() { return outcome::kind::pass; }
template <class... Arguments>
outcome fail(os::format_for<Arguments...> format, Arguments const&... arguments) {
    return outcome{outcome::kind::fail}.say<Arguments...>(format, arguments...);
}
template <class... Arguments>
outcome skip(os::format_for<Arguments...> format, Arguments const&... arguments) {
    return outcome{outcome::kind::skip}.say<Arguments...>(format, arguments...);
}

/// What must be there for a case to be run; what is missing is the reason of the skip.
struct requirement {
    bool kvm = true;        ///< A KVM signature.
    uint32_t features = 0;  ///< All of these bits are offered.
    uint32_t cpus = 1;      ///< At least so many vCPUs.
    bool steal = false;     ///< pvx uses steal time, and every vCPU's page is registered.
    bool clock = false;     ///< pvx uses the clock, and every vCPU's record is registered.
};

struct test_case {
    char const* sentence;
    requirement needs;
    outcome (*run)();
};

/// A list of cases: one file, one part of the ABI.
struct case_list {
    test_case const* first;
    uint32_t count;
};
template <uint32_t N>
constexpr case_list list_of(test_case const (&cases)[N]) {
    return {cases, N};
}

/// Whether every vCPU has its record of a kind, by `status_of(cpu)`; the failure names the first one that has not.
inline outcome all_registered(pvx::status (*status_of)(uint32_t cpu)) {
    for (uint32_t cpu = 0; cpu < os::cpu_count(); ++cpu)
        if (pvx::status const s = status_of(cpu); s != pvx::status::ok)
            return fail("vCPU {}: {}", cpu, pvx::to_string(s));
    return pass();
}

/// How long a case waits for what must come: long enough for 64 vCPUs on a slow emulator, and a failure only costs it.
inline constexpr uint64_t patience_us = 5'000'000;

/// What hypercall() returns if the instruction raised an exception.
inline constexpr int64_t hypercall_faulted = INT64_MIN;

inline int64_t hypercall(uint64_t number, uint64_t a0 = 0, uint64_t a1 = 0, uint64_t a2 = 0, uint64_t a3 = 0) {
    int64_t result = hypercall_faulted;
    (void)os::attempt([&] { result = machine{}.hypercall(number, a0, a1, a2, a3); });
    return result;
}

/// The version of a record once it is even, or at last an odd one. KVM writes a vCPU's records only while that vCPU
/// does not run; another host may do so at any time.
inline uint32_t settled_version(uint32_t& version) {
    machine const m;
    uint64_t const end = m.tsc().value + os::us_to_tsc(patience_us / 50);
    for (;;) {
        uint32_t const v = m.ref(version).load(pvx::order::acquire);
        if ((v & 1) == 0 || m.tsc().value > end) return v;
        m.relax();
    }
}

/// The handler of NMIs in all of the suite: one that comes late is no reason to end the run.
inline void ignore_nmi(os::trap_frame&) {}

extern const case_list msr_cases;
extern const case_list steal_cases;
extern const case_list clock_cases;
extern const case_list hypercall_cases;
extern const case_list ipi_cases;
extern const case_list flush_cases;
extern const case_list lock_cases;

/// Of each case in flush_cases; 0, the default, is what it can do in a short while.
void set_wanted_shootdowns(uint64_t count);
/// The same of lock_cases: kicks, or times that the lock is taken.
void set_wanted_kicks(uint64_t count);

}  // namespace conform
