// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// What a TLB flush invalidates, as far as pruning must know it, and a batch that turns many invalidations into one
/// notification. A kernel with a request type of its own keeps it, and gives it a kind(). Plain data of the flusher.

#include <pvx/base/std.hpp>

namespace pvx::inline v0::guest {

/// What has changed in the page tables. The order is the strictness: a request that does several things is as strict as
/// the strictest.
enum class flush_kind : uint8_t {
    /// Leaf entries were cleared or changed, and each keeps its page size, memory type and encryption bit.
    leaves,
    /// Page size, memory type or encryption of a mapping changed. Never deferred: the CPU that waits still uses its old
    /// mappings speculatively.
    attributes,
    /// Pages that hold page tables are freed or moved. Never deferred, since a speculative walk writes accessed bits
    /// into them; and pruned only if no software walker counts on being waited for.
    tables,
    /// A root is freed that a CPU may still have loaded, as lazy switching does. Neither pruned nor deferred: a flush
    /// of its TLB does not give that CPU another root, so it must be told.
    roots,
};

/// Virtual addresses begin .. end - 1, in bytes, of any alignment: every page that has one of them.
struct flush_range {
    uint64_t begin;
    uint64_t end;
};

/// A request that tells its kind.
template <class R>
concept flush_request_policy = requires(R const r) {
    { r.kind() } -> same_as<flush_kind>;  // kind() is what the request has changed, by its strictest part
};

/// A ready-made request.
struct flush_request {
    flush_range const* ranges{};  ///< Null: everything.
    uint32_t range_count{};       ///< 0 if everything.
    flush_kind strictest{flush_kind::leaves};

    constexpr flush_kind kind() const { return strictest; }
    constexpr bool everything() const { return ranges == nullptr; }
};

/// Collects invalidations, to be flushed by one notification. What exceeds `MaxRanges` makes it a flush of everything.
template <uint32_t MaxRanges>
    requires(MaxRanges > 0)
class flush_batch {
public:
    constexpr flush_batch() {}

    /// One more range, of which `kind` has changed. A range that continues the one before is joined to it; one that
    /// does not end behind its begin (it reaches the end of the address space, or is empty) makes it everything.
    constexpr void add(flush_range range, flush_kind kind) {
        require(kind);
        if (range.end <= range.begin) everything_ = true;
        if (everything_) return;
        if (count_ != 0 && ranges_[count_ - 1].end == range.begin) {
            ranges_[count_ - 1].end = range.end;
        } else if (count_ < MaxRanges) {
            ranges_[count_++] = range;
        } else {
            everything_ = true;
        }
    }
    /// Everything, whatever the ranges.
    constexpr void add_everything(flush_kind kind) {
        require(kind);
        everything_ = true;
    }

    constexpr bool empty() const { return count_ == 0 && !everything_; }
    /// The one request for all of it; valid while the batch is and until it changes. \pre not empty
    constexpr flush_request request() const {
        if (everything_) return {nullptr, 0, kind_};
        return {ranges_, count_, kind_};
    }
    /// Begin anew.
    constexpr void clear() {
        count_ = 0;
        everything_ = false;
        kind_ = flush_kind::leaves;
    }

private:
    constexpr void require(flush_kind kind) {
        if (kind_ < kind) kind_ = kind;
    }

    flush_range ranges_[MaxRanges]{};
    uint32_t count_{};
    bool everything_{};
    flush_kind kind_{flush_kind::leaves};
};

}  // namespace pvx::inline v0::guest
