// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// A result file that is whole or not there, also when the program is interrupted.

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

namespace pvx_bench {

/// False: it could not be written. What is there and no plain file (a device, a pipe, a symbolic link) is written to,
/// not replaced: as root, a rename onto /dev/null would take it from the whole machine.
inline bool write_file(std::string const& path, std::string const& text) {
    namespace fs = std::filesystem;
    std::error_code none;
    fs::file_status const there = fs::symlink_status(path, none);
    bool const replace = !fs::exists(there) || fs::is_regular_file(there);
    std::string const unfinished = replace ? path + ".unfinished" : path;
    std::ofstream file(unfinished);
    file << text;
    file.close();
    if (file && (!replace || std::rename(unfinished.c_str(), path.c_str()) == 0)) return true;
    if (replace) std::remove(unfinished.c_str());
    return false;
}

}  // namespace pvx_bench
