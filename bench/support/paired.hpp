// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Paired timing: is A slower than B, and by how much? Slices of A and B alternate (A B, B A, ...), so that whatever
/// the machine does for longer than a slice meets both; the answer is the median of the pairs' ratios.
///
/// What a neighbour can do to it, and what is done about it:
/// - It takes the CPU for milliseconds in the middle of a slice. The thread was then switched out, which the kernel
///   counts exactly: the round is measured again. CPU time in place of wall-clock time would hide the gap, but not the
///   cold caches after it, and costs a system call in each slice.
/// - The hypervisor takes the CPU. No counter of the thread sees that; it is an outlier, to which a median is deaf.
/// - It slows the whole machine. Each pair is slowed on both sides. What remains is seen by the controls: every round
///   holds, beside the pair A B, the pairs A A and B B, evaluated in the same way at the same time. How far the
///   interval of one of them reaches from 1 is the error that the same estimator makes where there is no difference.
/// - A block of rounds is judged by the CPU time that others used and by the distance of the CPUs before and after it.
///   A bad block is measured again; if the machine gives no good ones, the result says so and uses the best it had.

#include <cstdint>

#include "support/machine_state.hpp"
#include "support/operation.hpp"

namespace pvx_bench {

struct paired_options {
    uint32_t pairs = 301;
    uint32_t block_pairs = 101;  ///< Pairs that are judged together: some tens of milliseconds with their controls.
    uint64_t slice_ns = 40000;   ///< Length of one slice.
    /// Foreign share from which a block is bad. With one and with two neighbours that burn CPU or memory bandwidth on
    /// two CPUs the error stayed under 0.1 %, so a machine that is half in use will do.
    double foreign_limit = 0.6;
    uint32_t patience = 3;  ///< Blocks, and rounds in a block, are measured at most so many times as are needed.
};

/// Below this the two slices of one operation can differ for good: a clock of 10 ns steps against 40 us, and where the
/// code and its data lie in the caches.
inline constexpr double least_aa_error = 0.001;

/// All ratios are time of A / time of B.
struct paired_result {
    double ns_a{};
    double ns_b{};
    double ratio{};
    double low{};  ///< low .. high: bootstrap interval of 95 %
    double high{};
    double aa_error{};  ///< So far from 1 reached the same interval of A/A and B/B; at least least_aa_error.
    uint32_t pairs{};
    uint32_t rejected{};
    double far_share{};
    double foreign_share{};
    bool contaminated{};

    /// A and B differ: also the interval widened by the A/A error leaves out 1.
    bool flagged() const { return low > 1 + aa_error || high < 1 - aa_error; }
};

paired_result measure(probe& machine, operation const& a, operation const& b, paired_options const& options = {});

}  // namespace pvx_bench
