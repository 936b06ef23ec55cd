// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Steal time, the host's half: what the vCPU was denied, and whether it is running, in a page of the guest's. Other
/// vCPUs leave TLB flushes in the same byte that says so (guest/tlb_flush.hpp), which is why its protocol is strict:
///
/// 1. Host bits are set by an atomic OR, never by a store, so a flush that is pending survives.
/// 2. They are set only if no guest translation that is in use now is used after the next enter(): at an instruction
///    boundary, with no emulation begun or to be completed.
/// 3. They are cleared only by an exchange, in enter(), and what the exchange *returns* is acted upon before the guest
///    runs. A look before it, or a copy of the host's own, would miss a flush that comes in between.
/// 4. Fail safe: if a bit was set and the exchange cannot be done on that same byte (the page is gone or moved, user
///    space registered another, the state came from elsewhere), the flush is done as if it had been asked for.
///
/// Where the guest asked for it, the in-host bit of abi/proposed.hpp is published as well.
///
/// One object per vCPU; all of it runs on that vCPU's thread, except where user space sets the state of a vCPU that
/// does not run. load() and put() may interrupt the other functions, as a scheduler's hooks do when these sleep or are
/// preempted. Guest memory is only trusted to hold bytes. [kvm-msr]

#include <pvx/abi/kvm_msr.hpp>
#include <pvx/abi/proposed.hpp>
#include <pvx/base/seqcount.hpp>
#include <pvx/base/status.hpp>
#include <pvx/host/concepts.hpp>

namespace pvx::inline v0::host {

/// How the vCPU leaves its CPU. What may be said in the page follows from it.
struct departure {
    /// No instruction of the guest's is being emulated or waits to be completed (an access to memory, a port, an MSR, a
    /// hypercall, an exit to user space for one), and until the next enter() nobody uses a guest-virtual translation. A
    /// vCPU that is blocked in HLT qualifies if its RIP is past the HLT and the loop that waits reads guest memory by
    /// physical address only. Where in doubt: false.
    bool at_instruction_boundary;
    /// The scheduler took the CPU away from a thread that is runnable.
    bool preempted;
    /// The thread was about to run the guest: not in another system call, not asked to leave at once.
    bool wants_to_run;
};

/// What steal_time tells the observer.
enum class steal_event : uint8_t {
    reported,           ///< put() set a host bit.
    kept,               ///< put(): nothing to add, the page says it already.
    not_at_boundary,    ///< put() said nothing: see departure::at_instruction_boundary.
    not_preempted,      ///< put() said nothing: the vCPU went of its own accord, and the guest did not ask for more.
    entering,           ///< put() said nothing: it interrupted enter(), or another put().
    page_out_of_reach,  ///< put() or enter() could do nothing: the page is not mapped, or cannot be from here.
    flushed,            ///< enter() did a flush that a guest CPU had left.
    flushed_in_doubt,   ///< enter() did a flush since it could not know: see "fail safe".
};

/// State of one vCPU: plain data, for a snapshot, a fork or a migration.
struct steal_time_state {
    static constexpr uint32_t current_version = 1;

    uint32_t version{current_version};
    uint32_t pad{};
    uint64_t msr{};  ///< As the guest wrote it.
};

/// The steal-time page of one vCPU.
template <class Environment>
    requires atomics_policy<Environment> && guest_memory_policy<Environment, abi::kvm_steal_time> &&
        run_clock_policy<Environment> && guest_tlb_policy<Environment>
class steal_time {
public:
    /// `offer_in_host`: whether this host offers abi::proposed::feature_in_host.
    constexpr explicit steal_time(Environment environment, bool offer_in_host = false)
        : environment_(environment), offer_in_host_(offer_in_host) {}

    /// The guest writes MSR `index`. \pre the feature is offered to the guest. For user space, only together with the
    /// guest's memory (a restore): the page of a vCPU that is out goes on to say so, and a guest that still looks at it
    /// leaves flushes that nobody does.
    msr_outcome write_msr(uint32_t index, uint64_t value) {
        if (index != abi::kvm_msr::steal_time.index) return msr_outcome::not_ours;
        uint64_t const reserved =
            abi::kvm_msr::steal_time.reserved & ~(offer_in_host_ ? abi::proposed::steal_time_in_host : 0);
        if ((value & reserved) != 0) return msr_outcome::fault;
        begin();
        take_back();
        msr_ = value;
        pending_ = true;
        charging_ = false;
        end();
        return msr_outcome::done;
    }

    /// The value for a read of the MSR.
    constexpr uint64_t msr() const { return msr_; }

    /// The guest reads MSR `index`.
    constexpr msr_read read_msr(uint32_t index) const {
        if (index != abi::kvm_msr::steal_time.index) return {msr_outcome::not_ours, 0};
        return {msr_outcome::done, msr_};
    }

    /// INIT or RESET of the vCPU: the guest's registration is gone, and nothing is written any more.
    void reset() {
        begin();
        take_back();
        msr_ = 0;
        end();
    }

    /// The vCPU's thread got a CPU. Only makes enter() do its work: what the page says stays, since the vCPU may leave
    /// again before it runs.
    void load() { pending_ = true; }

    /// The vCPU is about to run guest instructions: clear the host's bits, do the flush that was left, charge what was
    /// stolen. In the entry path behind the last point that uses a guest translation which was made before; does
    /// nothing where there is nothing to do. May sleep if the environment can.
    ///
    /// The vCPU's thread may lose its CPU in here or right after. So a hypervisor that can be preempted says:
    ///
    ///     for (;;) {
    ///         steal.enter();
    ///         disable preemption;
    ///         if (!steal.must_enter()) break;
    ///         enable preemption;
    ///     }
    void enter() {
        if (!must_enter() && (!enabled() || mapped_ == key_now())) return;
        begin();
        pending_ = false;
        {
            [[maybe_unused]] auto const held = environment_.read_guard();
            abi::kvm_steal_time* const page = enabled() ? find() : nullptr;
            // What was published may be flushed by others until it is taken back, and only that byte can tell.
            bool const in_doubt = published_ != 0 && (page == nullptr || published_at_ != mapped_);
            bool const owed = page != nullptr && exchange(*page);
            if (page == nullptr && enabled()) tell(steal_event::page_out_of_reach);
            // Should the memory come back, so does a new generation, and with it the exchange.
            published_ = 0;
            if (owed || in_doubt) {
                tell(owed ? steal_event::flushed : steal_event::flushed_in_doubt);
                environment_.flush_guest_tlb();
            }
            if (page != nullptr && charge(*page)) environment_.mark_dirty(address());
        }
        end();
    }

    /// enter() has work to do, for a last look with preemption off: it was interrupted, or the vCPU has been out since.
    bool must_enter() const { return pending_ || published_ != 0; }

    /// The vCPU's thread loses its CPU, or blocks. Does not sleep unless the environment can. May be called again while
    /// the vCPU is out, when it leaves in another way: blocked first, then awake and preempted.
    ///
    /// \post what it published may be relied upon by other vCPUs at once, so a pause of the vCPU is complete only when
    /// this has returned.
    void put(departure how) {
        if (!enabled()) return;
        if (!how.at_instruction_boundary) return tell(steal_event::not_at_boundary);
        bool const preempted = how.preempted && how.wants_to_run;
        uint8_t const bits = static_cast<uint8_t>((preempted ? abi::steal_preempted : 0) |
                                                  (asked_in_host() ? abi::proposed::steal_in_host : 0));
        if (bits == 0) return tell(steal_event::not_preempted);
        // Bits that are out there stay until the exchange: more may be added, on the same byte.
        if ((bits & ~published_) == 0) return tell(steal_event::kept);
        if (busy_) return tell(steal_event::entering);
        begin();
        tell(publish(bits) ? steal_event::reported : steal_event::page_out_of_reach);
        end();
    }

    /// For a snapshot or migration. \pre the vCPU does not run.
    constexpr steal_time_state save() const { return {steal_time_state::current_version, 0, msr_}; }

    /// Take over a state that save() made, perhaps elsewhere. What the page says is not trusted: the first enter()
    /// flushes. \return bad_argument for a version that is not known or a value that the MSR refuses.
    status restore(steal_time_state const& state) {
        if (state.version != steal_time_state::current_version || state.pad != 0) return status::bad_argument;
        uint8_t const was = published_;
        published_ = 0;  // nothing to take back: memory may hold the new state already
        if (write_msr(abi::kvm_msr::steal_time.index, state.msr) != msr_outcome::done) {
            published_ = was;
            return status::bad_argument;
        }
        mapped_ = {};
        page_ = nullptr;
        published_ = 0xff;
        published_at_ = {};
        return status::ok;
    }

    /// The vCPU goes on in another thread, whose run delay has nothing to do with the last one's.
    void thread_changed() { charging_ = false; }

private:
    // Where a page is mapped: the same key is the same memory.
    struct key {
        uint64_t address{};
        uint64_t generation{};
        bool valid{};

        friend constexpr bool operator==(key const&, key const&) = default;
    };

    constexpr bool enabled() const { return (msr_ & abi::kvm_msr_enable) != 0; }
    constexpr bool asked_in_host() const { return (msr_ & abi::proposed::steal_time_in_host) != 0; }
    constexpr guest_phys address() const { return guest_phys{msr_ & ~uint64_t{alignof(abi::kvm_steal_time) - 1}}; }

    key key_now() const { return {address().value, environment_.memory_generation(), true}; }

    // The page, or null. \pre a guard is held
    abi::kvm_steal_time* find() {
        key const now = key_now();
        if (mapped_ == now) return page_;
        mapped_ = {};
        page_ = environment_.template map<abi::kvm_steal_time>(address());
        // That there is none is worth remembering only if it was looked for in earnest.
        if (page_ != nullptr || environment_.can_sleep()) mapped_ = now;
        return page_;
    }

    // Take the host's bits back. \return whether a flush was left. \pre a guard is held
    bool exchange(abi::kvm_steal_time& page) {
        // order: acquire [flush-set] page-table stores of the CPU that left a flush; pairs with the CAS in
        // guest::tlb_flush. One that skips the CAS relies on the fence in flush_guest_tlb() [flush-skip].
        uint8_t const byte = environment_.ref(page.preempted).exchange(0, order::acquire);
        if (byte != 0) environment_.mark_dirty(address());
        return (byte & abi::steal_flush_tlb) != 0;
    }

    // Whether the bits were added to what is published.
    bool publish(uint8_t bits) {
        [[maybe_unused]] auto const held = environment_.read_guard();
        abi::kvm_steal_time* const page = mapped_ == key_now() ? page_ : environment_.can_sleep() ? find() : nullptr;
        if (page == nullptr || (published_ != 0 && published_at_ != mapped_)) return false;
        // order: release [flush-out] accesses of the vCPU through old translations before the bits; pairs with the CAS
        // in guest::tlb_flush
        (void)environment_.ref(page->preempted).fetch_or(bits, order::release);
        published_ |= bits;
        published_at_ = mapped_;
        environment_.mark_dirty(address());
        return true;
    }

    // Before the page is no longer ours: guest CPUs must find no bit in it that nobody answers for. Where that may be
    // another byte than was published, published_ stays, and enter() is in doubt.
    void take_back() {
        if (published_ == 0 || !enabled()) return;
        [[maybe_unused]] auto const held = environment_.read_guard();
        abi::kvm_steal_time* const page = find();
        if (page == nullptr) return;
        if (exchange(*page)) environment_.flush_guest_tlb();
        if (published_at_ == mapped_) published_ = 0;
    }

    // put() says nothing in between.
    void begin() {
        busy_ = true;
        interrupt_fence();
    }
    void end() {
        interrupt_fence();
        busy_ = false;
    }

    // Whether anything was written.
    bool charge(abi::kvm_steal_time& page) {
        uint64_t const now = environment_.run_delay().value;
        bool const first = !charging_;  // of this page or thread: nothing is known of before
        uint64_t const delta = !first && now > charged_ ? now - charged_ : 0;
        charged_ = now;
        charging_ = true;
        // The first time also without a charge: a new page may hold an odd version, which its readers wait out.
        if (delta == 0 && !first) return false;
        auto const steal = environment_.ref(page.steal);
        uint32_t const odd = seqcount_write_begin(environment_, page.version);
        // Relaxed: behind the counter. The sum is kept in the page, so it goes on after a migration.
        steal.store(steal.load(order::relaxed) + delta, order::relaxed);
        seqcount_write_end(environment_, page.version, odd);
        return true;
    }

    void tell(steal_event event) const {
        if constexpr (observer_policy<Environment, steal_event>) environment_.event(event);
    }

    [[no_unique_address]] Environment environment_;
    bool offer_in_host_;
    bool pending_{};       // the vCPU has been out
    bool busy_{};          // what follows is being changed
    bool charging_{};      // charged_ is of this thread
    uint8_t published_{};  // host bits that may still be set, at published_at_
    uint64_t msr_{};
    uint64_t charged_{};  // run delay up to which the guest was told
    key mapped_{};        // of page_
    key published_at_{};
    abi::kvm_steal_time* page_{};
};

}  // namespace pvx::inline v0::host
