// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// What a figure depends on besides the code: the machine (a fingerprint, once), and what the machine did while a slice
/// was measured: how far apart its CPUs were, and how much of it others used. A test brings its own `probe`.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace pvx_bench {

/// The machine and the build, as names and values for a report.
std::map<std::string, std::string> fingerprint();

/// What the harnesses ask of the machine.
class probe {
public:
    probe() = default;
    probe(probe const&) = delete;
    probe& operator=(probe const&) = delete;
    virtual ~probe() = default;

    virtual uint64_t now_ns() = 0;
    virtual uint32_t cpus() = 0;
    /// CPU time of everybody on all CPUs since some start. Only as fine as /proc/stat: 10 ms.
    virtual uint64_t machine_cpu_ns() = 0;
    /// CPU time of this process.
    virtual uint64_t own_cpu_ns() = 0;
    /// How often the calling thread was switched out: the exact sign that a neighbour took its CPU.
    virtual uint64_t switches() = 0;
    /// Nanoseconds for a cache line from one CPU to another; 0 where there is only one CPU, negative if it could not be
    /// seen because the other CPU did not answer.
    virtual double line_ns() = 0;
};

/// This machine. It keeps a second thread for as long as it lives, asleep unless line_ns() runs: without one, glibc
/// would leave the atomics out of some operations.
std::unique_ptr<probe> make_machine_probe();

/// A cache line takes longer than this: the two CPUs are "far".
inline constexpr double far_line_ns = 100;

/// What happened to the machine between the start of a slice and end(). Slices of some tens of milliseconds: the
/// foreign share of one is 10 ms / (CPUs * length) uncertain.
struct disturbance {
    double line_before_ns{};
    double line_after_ns{};
    double foreign_share{};  ///< Part of all CPU time that others used, the hypervisor's other guests included.

    bool far() const { return line_after_ns > far_line_ns; }
    bool line_seen() const { return line_before_ns >= 0 && line_after_ns >= 0; }
    /// The CPUs stayed as near as they were, as far as was seen.
    bool same_distance() const;
};

class watch {
public:
    explicit watch(probe& machine);
    disturbance end();

private:
    probe& machine_;
    double line_ns_;
    uint64_t start_ns_;
    uint64_t start_machine_;
    uint64_t start_own_;
};

}  // namespace pvx_bench
