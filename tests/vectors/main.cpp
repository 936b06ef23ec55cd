// SPDX-License-Identifier: MIT

/// \file
/// Compares the golden vectors with what the code computes, or writes them. See --help.

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "../../bench/support/write_file.hpp"
#include "vectors.hpp"

namespace {

namespace fs = std::filesystem;
using std::string;

enum exit_code { exit_same = 0, exit_differs = 1, exit_usage = 64, exit_failed = 70 };

constexpr char const* usage = R"(Usage: vectors --check DIR
       vectors --write DIR
       vectors --list

Golden vectors are what pvx's pure functions answer, in JSON files that other projects can use as test data.

  --check DIR   compare DIR/NAME.json with what the code computes now
  --write DIR   write them all, and remove none
  --list        print the names

Exit code: 0 all is as it was; 1 a file differs, is missing, or nothing makes it; 64 bad usage; 70 cannot write.
)";

/// One line for each element of a list, so that a change shows as a change of that line.
string text_of(vector_file const& file) {
    nlohmann::ordered_json out;
    file.make(out);
    string text = "{";
    char const* between = "\n";
    for (auto const& [key, value] : out.items()) {
        text += between + ("  " + nlohmann::ordered_json(key).dump()) + ": ";
        between = ",\n";
        if (!value.is_array()) {
            text += value.dump();
            continue;
        }
        char const* before = "[\n    ";
        for (auto const& element : value) {
            text += before + element.dump();
            before = ",\n    ";
        }
        text += value.empty() ? "[]" : "\n  ]";
    }
    return text + "\n}\n";
}

string line(string const& text, size_t number) {
    size_t at = 0;
    while (--number != 0) at = text.find('\n', at) + 1;
    return text.substr(at, text.find('\n', at) - at);
}

/// The first line, from 1, in which two texts differ.
size_t first_difference(string const& a, string const& b) {
    auto const same = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
    return 1 + static_cast<size_t>(std::count(a.begin(), same, '\n'));
}

bool check(string const& dir) {
    bool same = true;
    auto const differs = [&](string const& what) {
        std::fprintf(stderr, "vectors: %s\n", what.c_str());
        same = false;
    };
    std::set<string> made;
    for (vector_file const* f = vector_file::first; f != nullptr; f = f->next) {
        string const name = string(f->name) + ".json";
        if (!made.insert(name).second) differs(name + " is made twice: give one of the two vector_file another name");
        std::ifstream file(fs::path(dir) / name);
        if (!file) {
            differs(name + " is missing");
            continue;
        }
        string const there{std::istreambuf_iterator<char>(file), {}}, now = text_of(*f);
        if (there == now) continue;
        size_t const n = first_difference(there, now);
        differs(name + " differs from what the code computes, first in line " + std::to_string(n) +
                "\n  file: " + line(there, n) + "\n  code: " + line(now, n));
    }
    std::error_code none;
    for (fs::directory_entry const& e : fs::directory_iterator(dir, none))
        if (e.path().extension() == ".json" && made.count(e.path().filename()) == 0)
            differs(e.path().filename().string() + " is made by nothing any more: remove it");
    if (!same) std::fprintf(stderr, "If the new answers are the right ones: vectors --write %s\n", dir.c_str());
    return same;
}

bool write(string const& dir) {
    for (vector_file const* f = vector_file::first; f != nullptr; f = f->next) {
        string const path = fs::path(dir) / (string(f->name) + ".json");
        if (!pvx_bench::write_file(path, text_of(*f))) {
            std::fprintf(stderr, "vectors: cannot write %s\n", path.c_str());
            return false;
        }
    }
    return true;
}

}  // namespace

int main(int argc, char** argv) {
    string const option = argc > 1 ? argv[1] : "";
    if (argc == 2 && (option == "--help" || option == "-h")) return std::fputs(usage, stdout), exit_same;
    if (argc == 2 && option == "--list") {
        for (vector_file const* f = vector_file::first; f != nullptr; f = f->next) std::puts(f->name);
        return exit_same;
    }
    if (argc == 3 && option == "--check") return check(argv[2]) ? exit_same : exit_differs;
    if (argc == 3 && option == "--write") return write(argv[2]) ? exit_same : exit_failed;
    std::fputs("vectors: --check DIR or --write DIR; see vectors --help\n", stderr);
    return exit_usage;
}
