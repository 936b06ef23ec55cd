// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// What set-up functions answer. Hot paths have no status: they answer "done here" or "use the native way".

#include <stdint.h>

namespace pvx::inline v0 {

/// The outcome of a set-up function.
enum class [[nodiscard]] status : uint8_t{
    ok,            ///< Done.
    unsupported,   ///< The other side does not offer this.
    no_record,     ///< The machine has no shared record for this CPU.
    misaligned,    ///< The shared record is not aligned as the ABI asks.
    not_shared,    ///< The record is private memory that the machine cannot share with the host.
    bad_argument,  ///< An argument is outside its documented range.
    no_answer,     ///< The other side did not fill in what it promised to.
};

/// One lower-case English word group for a report.
constexpr const char* to_string(status s) {
    switch (s) {
        case status::ok: return "ok";
        case status::unsupported: return "unsupported";
        case status::no_record: return "no shared record";
        case status::misaligned: return "record misaligned";
        case status::not_shared: return "memory not shared with the host";
        case status::bad_argument: return "bad argument";
        case status::no_answer: return "no answer from the host";
    }
    return "unknown status";
}

}  // namespace pvx::inline v0
