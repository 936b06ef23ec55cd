// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Runs a case in a forked child and counts: the machine instructions of its plain instantiation, by single steps, and
/// the events of its counting instantiation.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "case.hpp"

namespace exact {

using figures = std::map<std::string, uint64_t>;

/// The functions of this program.
class symbols {
public:
    struct symbol {
        uintptr_t address;
        uint64_t size;
        std::string name;
    };

    symbols();
    /// The function that the address lies in; a null pointer for one outside of this program.
    symbol const* find(uintptr_t address) const;

private:
    std::vector<symbol> sorted_;
};

/// This machine does not let one process trace another.
struct not_permitted {};

/// Machine instructions from the operation's entry to its return, both included, and among them those that cost more.
/// A repeated string instruction counts once for each round, and an instruction that is privileged, or whose answer
/// depends on the hardware (CPUID, RDTSC), is carried out here as the planned host would. Puts the functions that ran
/// into `ran`. Throws std::runtime_error where the case cannot be counted.
figures count_instructions(test_case const&, symbols const&, std::set<symbols::symbol const*>& ran);

/// What the operation asked of its machine.
figures count_events(test_case const&);

}  // namespace exact
