// SPDX-License-Identifier: MIT
#include "support/write_file.hpp"

#include <unistd.h>

#include <sstream>

#include "support/catch.hpp"

using namespace pvx_bench;
namespace fs = std::filesystem;

namespace {

struct scratch {
    fs::path folder = fs::temp_directory_path() / ("write_file_test." + std::to_string(getpid()));

    scratch() { fs::create_directory(folder); }
    ~scratch() { fs::remove_all(folder); }
    std::string at(char const* name) const { return folder / name; }
};

std::string content(std::string const& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
}

}  // namespace

TEST_CASE("a result replaces the file that was there, and leaves nothing beside it", "[bench][write_file]") {
    scratch const s;
    REQUIRE(write_file(s.at("a"), "one"));
    REQUIRE(write_file(s.at("a"), "two"));
    CHECK(content(s.at("a")) == "two");
    CHECK(std::distance(fs::directory_iterator(s.folder), {}) == 1);
}

TEST_CASE("what is no plain file is written to and stays what it is", "[bench][write_file]") {
    scratch const s;
    REQUIRE(write_file(s.at("file"), "old"));
    fs::create_symlink(s.at("file"), s.at("link"));
    REQUIRE(write_file(s.at("link"), "new"));
    CHECK(fs::is_symlink(s.at("link")));
    CHECK(content(s.at("file")) == "new");
    REQUIRE(write_file("/dev/null", "nothing"));
    CHECK(fs::is_character_file("/dev/null"));
}

TEST_CASE("a folder that is not there is an error", "[bench][write_file]") {
    scratch const s;
    CHECK_FALSE(write_file(s.at("none/a"), "one"));
}
