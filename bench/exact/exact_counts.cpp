// SPDX-License-Identifier: MIT

/// \file
/// Exact counts of pvx's hot functions, against a baseline that is committed for each compiler. See --help.

#include <getopt.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "../support/write_file.hpp"
#include "step.hpp"

namespace {

using exact::figures;
using nlohmann::json;
using std::string;

enum exit_code { exit_same = 0, exit_worse = 1, exit_renew = 3, exit_usage = 64, exit_failed = 70, exit_skipped = 77 };

constexpr const char* usage = R"(Usage: exact_counts [--filter TEXT] [--json FILE] [--baseline FILE]
       exact_counts --write-baseline [--baseline FILE]
       exact_counts --list

Counts what the hot functions of pvx execute, exactly, and compares with the baseline of this compiler:
machine instructions (by single steps of a child process), locked ones, fences, PAUSE, CPUID and RDTSC among them;
accesses to shared words, hypercalls, IPIs, MSR accesses and the like; bytes of code; preprocessed lines.

  --list             print the names of the cases
  --filter TEXT      only the cases whose name contains TEXT, and no code bytes or lines
  --json FILE        also write all figures, in the form of a baseline
  --baseline FILE    compare with this file instead of bench/baselines/COMPILER-VERSION.json
  --write-baseline   write the baseline instead of comparing

Some cases have a limit of their own, which holds whatever the baseline says, and keeps one from being written.
A repeated string instruction counts once for each round. Code bytes are those of the functions that a component's
cases ran, without what g++ moves out of a function as cold. Lines are what the compiler's -E -P prints.

Exit code: 0 all figures are as they were; 1 a figure has grown, or is over its limit; 3 none has, but some are
smaller, or a case is new or gone, or the flags are others: renew the baseline; 64 bad usage; 70 a case cannot be
counted; 77 skipped: this compiler has no baseline, or this machine forbids ptrace.
)";

#define EXACT_TEXT_(x) #x
#define EXACT_TEXT(x) EXACT_TEXT_(x)
#define EXACT_VERSION(a, b, c) EXACT_TEXT(a) "." EXACT_TEXT(b) "." EXACT_TEXT(c)
#ifdef __clang__
const string compiler = "clang " EXACT_VERSION(__clang_major__, __clang_minor__, __clang_patchlevel__);
#else
const string compiler = "gcc " EXACT_VERSION(__GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif

string default_baseline() {
    string name = compiler;
    name[name.find(' ')] = '-';
    return EXACT_BASELINES "/" + name + ".json";
}

struct options {
    string filter, json_file, baseline = default_baseline();
    bool list = false, write_baseline = false;
};

template <class Visit>
void for_each_case(string const& filter, Visit&& visit) {
    std::map<string, exact::test_case const*> by_name;
    for (auto const* c = exact::component::first; c != nullptr; c = c->next)
        for (uint32_t i = 0; i < c->count; ++i)
            if (!by_name.emplace(c->cases[i].name, &c->cases[i]).second)
                throw std::runtime_error(string("two cases are called ") + c->cases[i].name);
    for (auto const& [name, one] : by_name)
        if (name.find(filter) != string::npos) visit(name, *one);
}

// Says so, too, where a case is over its limit.
json count_all(options const& o, bool& over) {
    json all = {{"program", "exact_counts"}, {"compiler", compiler}, {"flags", EXACT_FLAGS}, {"cases", json::array()}};
    exact::symbols const known;
    std::map<string, std::set<exact::symbols::symbol const*>> ran;
    for_each_case(o.filter, [&](string const& name, exact::test_case const& c) {
        string const component = name.substr(0, name.find('/'));
        if (isatty(STDERR_FILENO)) std::cerr << "\r\033[K" << name << std::flush;
        try {
            figures counts = exact::count_instructions(c, known, ran[component]);
            if (counts != exact::count_instructions(c, known, ran[component]))
                throw std::runtime_error("counts differently each time: an input is not planned");
            counts.merge(exact::count_events(c));
            if (auto const n = c.at_most.figure == nullptr ? counts.end() : counts.find(c.at_most.figure);
                n != counts.end() && n->second > c.at_most.most) {
                over = true;
                std::cout << "OVER     " << name << ": " << n->first << ": is " << n->second << ", and may be "
                          << c.at_most.most << " at most\n";
            }
            all["cases"].push_back({{"name", name}, {"component", component}, {"counts", counts}});
        } catch (std::runtime_error const& e) {
            throw std::runtime_error(name + ": " + e.what());
        }
    });
    if (isatty(STDERR_FILENO)) std::cerr << "\r\033[K";
    if (!o.filter.empty()) return all;
    for (auto const& [component, functions] : ran) {
        uint64_t bytes = 0;
        for (auto const* f : functions) bytes += f->size;
        all["code_bytes"][component] = bytes;
    }
    for (string const half : {"guest.hpp", "host.hpp"})
        if (std::ifstream text{EXACT_PREPROCESSED "/" + half + ".ii"}) {
            uint64_t lines = 0;
            for (string line; std::getline(text, line);) ++lines;
            all["preprocessed_lines"][half] = lines;
        }
    return all;
}

// One case a line, so that a difference reads well.
string printed(json const& all) {
    string out = "{\n";
    for (auto const& [key, value] : all.items()) {
        out += (out.size() > 2 ? ",\n" : "") + json(key).dump() + ": ";
        if (!value.is_array()) {
            out += value.dump();
            continue;
        }
        for (size_t i = 0; i < value.size(); ++i) out += (i == 0 ? "[\n" : ",\n") + value[i].dump();
        out += "\n]";
    }
    return out + "\n}\n";
}

void write_file(string const& name, string const& text) {
    if (!pvx_bench::write_file(name, text)) throw std::runtime_error("cannot write " + name);
}

std::map<string, figures> rows_of(json const& all, string const& filter) {
    std::map<string, figures> rows;
    for (json const& c : all.at("cases"))
        if (c.at("name").get<string>().find(filter) != string::npos) rows[c.at("name")] = c.at("counts").get<figures>();
    if (!filter.empty()) return rows;
    for (auto const& [name, bytes] : all.value("code_bytes", figures{})) rows[name]["code bytes"] = bytes;
    for (auto const& [name, lines] : all.value("preprocessed_lines", figures{}))
        rows[name]["preprocessed lines"] = lines;
    return rows;
}

exit_code compare(json const& was, json const& is, options const& o) {
    if (was.at("flags") != is.at("flags")) {
        std::cout << "the compiler's flags are others than the baseline's\n";
        return exit_renew;
    }
    bool grown = false, changed = false;
    auto const was_rows = rows_of(was, o.filter), is_rows = rows_of(is, o.filter);
    for (auto const& [row, counts] : was_rows)
        if (!is_rows.contains(row)) std::cout << "GONE     " << row << '\n', changed = true;
    for (auto const& [row, now] : is_rows) {
        auto const found = was_rows.find(row);
        if (found == was_rows.end()) {
            std::cout << "NEW      " << row << '\n', changed = true;
            continue;
        }
        // A figure of zero is not written down.
        std::map<string, std::pair<uint64_t, uint64_t>> both;
        for (auto const& [name, count] : found->second) both[name].first = count;
        for (auto const& [name, count] : now) both[name].second = count;
        for (auto const& [name, pair] : both) {
            if (pair.first == pair.second) continue;
            bool const more = pair.second > pair.first;
            (more ? grown : changed) = true;
            std::cout << (more ? "MORE     " : "fewer    ") << row << ": " << name << ": was " << pair.first << ", is "
                      << pair.second << '\n';
        }
    }
    if (grown) return exit_worse;
    if (changed) return exit_renew;
    std::cout << is.at("cases").size() << " cases are as in " << o.baseline << '\n';
    return exit_same;
}

exit_code run(options const& o, string const& program) {
    if (o.list) {
        for_each_case(o.filter, [](string const& name, exact::test_case const&) { std::cout << name << '\n'; });
        return exit_same;
    }
    bool over = false;
    if (o.write_baseline) {
        json const is = count_all(o, over);
        if (over) {
            std::cout << "wrote no baseline: no baseline lifts a limit\n";
            return exit_worse;
        }
        write_file(o.baseline, printed(is));
        std::cout << "wrote " << o.baseline << "; commit it\n";
        return exit_same;
    }
    string const renew =
        program + " --write-baseline" + (o.baseline == default_baseline() ? "" : " --baseline " + o.baseline);
    std::ifstream file(o.baseline);
    json const was = file ? json::parse(file) : json{{"compiler", "none"}};
    bool const comparable = was.at("compiler") == compiler;
    if (!comparable)
        std::cout << "skipped: no baseline for " << compiler << " in " << o.baseline << "; make one with\n  " << renew
                  << '\n';
    if (!comparable && o.json_file.empty()) return exit_skipped;

    json const is = count_all(o, over);
    if (is.at("cases").empty()) {
        std::cerr << "exact_counts: no case has " << o.filter << " in its name; try --list\n";
        return exit_usage;
    }
    if (!o.json_file.empty()) write_file(o.json_file, printed(is));
    if (!comparable) return over ? exit_worse : exit_skipped;
    exit_code const result = compare(was, is, o);
    if (result == exit_worse)
        std::cout << "If that is wanted, say why in the commit, and write the new baseline with\n  " << renew << '\n';
    if (result == exit_renew) std::cout << "Commit the new baseline, written with\n  " << renew << '\n';
    return over ? exit_worse : result;
}

}  // namespace

int main(int argc, char** argv) {
    enum { help = 1, list, filter, json_file, baseline, write_baseline };
    option const known[] = {{"help", no_argument, nullptr, help},
                            {"list", no_argument, nullptr, list},
                            {"filter", required_argument, nullptr, filter},
                            {"json", required_argument, nullptr, json_file},
                            {"baseline", required_argument, nullptr, baseline},
                            {"write-baseline", no_argument, nullptr, write_baseline},
                            {}};
    options o;
    for (int c; (c = getopt_long(argc, argv, "", known, nullptr)) != -1;) switch (c) {
            case help: std::cout << usage; return exit_same;
            case list: o.list = true; break;
            case filter: o.filter = optarg; break;
            case json_file: o.json_file = optarg; break;
            case baseline: o.baseline = optarg; break;
            case write_baseline: o.write_baseline = true; break;
            default: std::cerr << "try --help\n"; return exit_usage;
        }
    if (optind < argc || (o.write_baseline && !o.filter.empty())) {
        std::cerr << "exact_counts: "
                  << (optind < argc ? "takes no arguments" : "a baseline holds every case: leave out --filter")
                  << "; try --help\n";
        return exit_usage;
    }
    try {
        return run(o, argv[0]);
    } catch (exact::not_permitted const&) {
        std::cout << "skipped: this machine forbids ptrace, by which the instructions are counted\n";
        return exit_skipped;
    } catch (std::exception const& e) {
        std::cerr << "exact_counts: " << e.what() << '\n';
        return exit_failed;
    }
}
