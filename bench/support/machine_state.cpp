// SPDX-License-Identifier: MIT
#include "support/machine_state.hpp"

#include <pvx/arch/x86_64.hpp>

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <sstream>
#include <thread>

namespace pvx_bench {
namespace {

uint64_t clock_ns(clockid_t clock) {
    timespec t{};
    clock_gettime(clock, &t);
    return static_cast<uint64_t>(t.tv_sec) * 1000000000 + static_cast<uint64_t>(t.tv_nsec);
}

std::string first_line(char const* path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line.empty() ? "none" : line;
}

std::string cpu_model() {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);)
        if (line.starts_with("model name")) return line.substr(std::min(line.find(':') + 2, line.size()));
    return "unknown";
}

std::string hypervisor() {
    if (!has(pvx::arch::cpuid(pvx::abi::cpuid_leaf::features, 0), pvx::abi::cpuid_feature::hypervisor)) return "none";
    auto const name = pvx::abi::signature_name(pvx::arch::cpuid(pvx::abi::cpuid_leaf::hypervisor_first, 0));
    std::string text;
    for (uint32_t i = 0; i < 12; ++i)
        if (name.at(i) != '\0') text += name.at(i);
    return text;
}

uint64_t busy_ns() {
    std::ifstream file("/proc/stat");
    std::string word;
    uint64_t user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0, steal = 0;
    file >> word >> user >> nice >> system >> idle >> iowait >> irq >> softirq >> steal;
    uint64_t const ticks = user + nice + system + irq + softirq + steal;
    return ticks * (1000000000 / static_cast<uint64_t>(sysconf(_SC_CLK_TCK)));
}

void pin(cpu_set_t const& cpus) { sched_setaffinity(0, sizeof cpus, &cpus); }

void pin(uint32_t cpu) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    pin(one);
}

/// Plays a word back and forth with a thread on another CPU.
class ping_pong {
public:
    ping_pong() : partner_([this] { run(); }) {}

    ~ping_pong() {
        request_ = quit;
        request_.notify_one();
        partner_.join();
    }

    /// The shortest of many short games: a neighbour can make one longer, nothing can make it shorter.
    double line_ns(uint32_t other) {
        constexpr uint32_t games = 24, exchanges = 16;
        constexpr uint64_t patience_ns = 20000000;
        uint64_t const deadline = clock_ns(CLOCK_MONOTONIC) + patience_ns;
        request_ = static_cast<int>(other);
        request_.notify_one();

        double best = -1;
        uint32_t ball = 0;
        bool answered = exchange(ball, deadline);  // the partner is awake
        for (uint32_t game = 0; answered && game < games; ++game) {
            uint64_t const start = clock_ns(CLOCK_MONOTONIC);
            for (uint32_t i = 0; answered && i < exchanges; ++i) answered = exchange(ball, deadline);
            double const ns = static_cast<double>(clock_ns(CLOCK_MONOTONIC) - start) / (2 * exchanges);
            if (answered && (best < 0 || ns < best)) best = ns;
        }
        over_ = true;
        request_.wait(static_cast<int>(other));
        over_ = false;
        ball_ = 0;
        return best;
    }

private:
    static constexpr int idle = -1, quit = -2;

    // \return false if the deadline passed.
    bool exchange(uint32_t& ball, uint64_t deadline) {
        ball_.store(++ball, std::memory_order_release);
        ++ball;
        for (uint32_t spins = 1; ball_.load(std::memory_order_acquire) != ball; ++spins)
            if (spins % 1024 == 0 && clock_ns(CLOCK_MONOTONIC) > deadline) return false;
        return true;
    }

    void run() {
        for (int cpu; (cpu = request_) != quit; request_.wait(idle)) {
            if (cpu == idle) continue;
            pin(static_cast<uint32_t>(cpu));
            for (uint32_t expected = 1; !over_.load(std::memory_order_relaxed);) {
                if (ball_.load(std::memory_order_acquire) != expected) continue;
                ball_.store(expected + 1, std::memory_order_release);
                expected += 2;
            }
            request_ = idle;
            request_.notify_one();
        }
    }

    alignas(64) std::atomic<uint32_t> ball_{0};
    alignas(64) std::atomic<bool> over_{false};
    std::atomic<int> request_{idle};
    std::thread partner_;
};

class machine_probe final : public probe {
public:
    uint64_t now_ns() override { return clock_ns(CLOCK_MONOTONIC); }
    uint32_t cpus() override { return static_cast<uint32_t>(sysconf(_SC_NPROCESSORS_ONLN)); }
    uint64_t machine_cpu_ns() override { return busy_ns(); }
    uint64_t own_cpu_ns() override { return clock_ns(CLOCK_PROCESS_CPUTIME_ID); }

    uint64_t switches() override {
        rusage use{};
        getrusage(RUSAGE_THREAD, &use);
        return static_cast<uint64_t>(use.ru_nivcsw + use.ru_nvcsw);
    }

    double line_ns() override {
        cpu_set_t allowed;
        sched_getaffinity(0, sizeof allowed, &allowed);
        uint32_t const here = static_cast<uint32_t>(sched_getcpu());
        uint32_t other = here;
        do other = (other + 1) % CPU_SETSIZE;
        while (!CPU_ISSET(other, &allowed));
        if (other == here) return 0;
        pin(here);
        double const ns = ping_pong_.line_ns(other);
        pin(allowed);
        return ns;
    }

private:
    ping_pong ping_pong_;
};

}  // namespace

std::map<std::string, std::string> fingerprint() {
    utsname kernel{};
    uname(&kernel);
    return {
        {"cpu", cpu_model()}, {"cpus", std::to_string(sysconf(_SC_NPROCESSORS_ONLN))},
            {"governor", first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")},
            {"hypervisor", hypervisor()}, {"kernel", kernel.release},
#if defined(__clang__)
            {"compiler", "clang " __clang_version__},
#else
            {"compiler", "g++ " __VERSION__},
#endif
            {"flags", PVX_BENCH_FLAGS},
    };
}

std::unique_ptr<probe> make_machine_probe() { return std::make_unique<machine_probe>(); }

bool disturbance::same_distance() const {
    if (!line_seen()) return false;
    double const shorter = std::min(line_before_ns, line_after_ns), longer = std::max(line_before_ns, line_after_ns);
    return longer <= 1.6 * shorter;  // near and far differ sixfold, two looks at one of them by a fifth
}

watch::watch(probe& machine)
    : machine_(machine),
      line_ns_(machine.line_ns()),
      start_ns_(machine.now_ns()),
      start_machine_(machine.machine_cpu_ns()),
      start_own_(machine.own_cpu_ns()) {}

disturbance watch::end() {
    double const passed = static_cast<double>(machine_.now_ns() - start_ns_) * machine_.cpus();
    double const everybody = static_cast<double>(machine_.machine_cpu_ns() - start_machine_);
    double const own = static_cast<double>(machine_.own_cpu_ns() - start_own_);
    double const foreign = passed > 0 ? std::clamp((everybody - own) / passed, 0.0, 1.0) : 0;
    return {line_ns_, machine_.line_ns(), foreign};
}

}  // namespace pvx_bench
