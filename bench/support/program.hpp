// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// What the benchmark programs share as programs: options, progress, the head of a report, JSON files.

#include <chrono>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/machine_state.hpp"

namespace pvx_bench {

/// Exit codes.
inline constexpr int exit_failed = 1;    ///< A check failed: a lock did not exclude, a self-test did not hold.
inline constexpr int exit_usage = 64;    ///< A bad option.
inline constexpr int exit_machine = 70;  ///< The machine did not let us, for example write a file.

/// Ends the program with "program: message" on stderr.
[[noreturn]] void die(int code, std::string const& message);

struct option {
    std::string name;   ///< "--rounds"
    std::string value;  ///< What the help calls its value; empty if it takes none.
    std::string help;
    std::function<void(std::string const&)> take;
};

/// Takes the command line apart; ends the program at --help (code 0) and at a mistake (exit_usage).
void parse_options(int argc, char** argv, std::string const& program, std::string const& summary,
                   std::vector<option> const& options);

/// Makes `take` for an option that is a number from `least` on, or a list of them.
std::function<void(std::string const&)> take_number(uint32_t& into, uint32_t least);
std::function<void(std::string const&)> take_numbers(std::vector<uint32_t>& into, uint32_t least);

/// "program: 3 of 20, 4.1 s" on stderr, every two seconds.
class progress {
public:
    explicit progress(uint32_t steps);
    void step(std::string const& next);
    double seconds() const;

private:
    uint32_t steps_;
    uint32_t done_{};
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
    double told_{};  // when, in seconds
};

/// The fingerprint as the first lines of a table.
void print_fingerprint(probe& machine);

/// A row's number without digits that mean nothing.
double rounded(double value, int significant = 5);

/// {"program": ..., "fingerprint": {...}, "rows": []}
nlohmann::json report(probe& machine);

/// Writes all of it or nothing.
void write_json(std::string const& path, nlohmann::json const& report);

}  // namespace pvx_bench
