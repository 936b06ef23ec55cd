// SPDX-License-Identifier: MIT
#include "support/program.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "support/write_file.hpp"

namespace pvx_bench {
namespace {

std::string program_name = "bench";

uint32_t number(std::string const& text, uint32_t least) {
    uint32_t n = 0;
    auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
    if (error != std::errc{} || end != text.data() + text.size() || n < least)
        die(exit_usage, "'" + text + "' is not a number from " + std::to_string(least) + " on");
    return n;
}

void print_help(std::string const& summary, std::vector<option> const& options) {
    std::printf("Usage: %s [OPTION]...\n\n%s\n\n", program_name.c_str(), summary.c_str());
    for (option const& o : options)
        std::printf("  %-20s %s\n", (o.name + (o.value.empty() ? "" : " " + o.value)).c_str(), o.help.c_str());
    std::printf("  %-20s %s\n", "--help", "this text");
}

std::string line_text(double ns) {
    if (ns == 0) return "one CPU";
    if (ns < 0) return "not seen: the other CPU did not answer";
    return std::to_string(static_cast<int>(std::lround(ns))) + " ns " + (ns > far_line_ns ? "far" : "near");
}

}  // namespace

void die(int code, std::string const& message) {
    std::fflush(stdout);
    std::fprintf(stderr, "%s: %s\n", program_name.c_str(), message.c_str());
    std::exit(code);
}

void parse_options(int argc, char** argv, std::string const& program, std::string const& summary,
                   std::vector<option> const& options) {
    program_name = program;
    for (int i = 1; i < argc; ++i) {
        std::string const name = argv[i];
        if (name == "--help" || name == "-h") {
            print_help(summary, options);
            std::exit(0);
        }
        auto const found =
            std::find_if(options.begin(), options.end(), [&](option const& o) { return o.name == name; });
        if (found == options.end()) die(exit_usage, "unknown option " + name + "; see " + program + " --help");
        if (!found->value.empty() && i + 1 == argc)
            die(exit_usage, name + " needs a value; see " + program + " --help");
        found->take(found->value.empty() ? "" : argv[++i]);
    }
}

std::function<void(std::string const&)> take_number(uint32_t& into, uint32_t least) {
    return [&into, least](std::string const& text) { into = number(text, least); };
}

std::function<void(std::string const&)> take_numbers(std::vector<uint32_t>& into, uint32_t least) {
    return [&into, least](std::string const& text) {
        into.clear();
        std::stringstream list(text);
        for (std::string item; std::getline(list, item, ',');) into.push_back(number(item, least));
        if (into.empty()) die(exit_usage, "an empty list where numbers are needed");
    };
}

progress::progress(uint32_t steps) : steps_(steps) {}

void progress::step(std::string const& next) {
    if (seconds() - told_ >= 2) {
        told_ = seconds();
        std::fprintf(stderr, "%s: %u of %u, %.1f s: %s\n", program_name.c_str(), done_, steps_, told_, next.c_str());
    }
    ++done_;
}

double progress::seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

void print_fingerprint(probe& machine) {
    for (auto const& [name, value] : fingerprint()) std::printf("%-11s %s\n", name.c_str(), value.c_str());
    std::printf("%-11s %s\n\n", "cache line", line_text(machine.line_ns()).c_str());
}

double rounded(double value, int significant) {
    if (value == 0 || !std::isfinite(value)) return 0;
    double const unit = std::pow(10, significant - 1 - static_cast<int>(std::floor(std::log10(std::abs(value)))));
    return std::round(value * unit) / unit;
}

nlohmann::json report(probe& machine) {
    nlohmann::json head = fingerprint();
    head["cpus"] = machine.cpus();
    double const line_ns = machine.line_ns();
    if (line_ns > 0) head["line_ns"] = rounded(line_ns, 3);
    return {{"program", program_name}, {"fingerprint", head}, {"rows", nlohmann::json::array()}};
}

void write_json(std::string const& path, nlohmann::json const& report) {
    if (!write_file(path, report.dump(2) + '\n')) die(exit_machine, "cannot write " + path);
}

}  // namespace pvx_bench
