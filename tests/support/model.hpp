// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The frame of a model test: a main() that runs Relacy test suites and says of each one line. The shipped code must
/// pass at its bound, a mutant must be caught at the same bound.
///
///     template <class M>
///     struct suite : rl::test_suite<suite<M>, 2> {
///         void before();                // first value of every atomic
///         void thread(unsigned index);  // uses relacy_atomics<M>, states what must hold by require()
///     };
///
///     int main(int argc, char** argv) {
///         pvx_test::model m{argc, argv};
///         m.passes<suite<shipped>>("two threads", {3, 5});
///         m.caught<suite<weaken<operation::fence, order::release>>>("two threads, no release fence", {3, 5});
///         return m.result();
///     }
///
/// Arguments: `--full` (or PVX_FULL_MODELS in the environment) takes the deeper bounds, `--traces` also shows how the
/// mutants fail. Choices are made with rl::rand(). A suite is constructed anew for each run, so what varies between two
/// calls and is the same in all runs of one (a shape) is a static of the suite; one more suite type costs seconds of
/// compilation.

#include <ctype.h>
#include <time.h>

#include "support/relacy_atomics.hpp"

namespace pvx_test {

using namespace pvx;

/// Preemptions that the search tries, at every place, besides the switches at a thread's end or yield.
struct model_bound {
    unsigned gate;  ///< For every change: seconds.
    unsigned full;  ///< For `--full`: minutes.
};

/// As a bound: every schedule. Ends in useful time only where the threads are short.
inline constexpr unsigned every_schedule = ~0u;

/// A requirement of a model, on its copy of real or ghost state.
inline void require(bool holds, char const* what, place where = {}) {
    if (!holds) rl::ctx().fail_test(what, rl::test_result_user_assert_failed, where.info());
}

/// The policy of spin loops: lets the other threads run, so that waiting for them is no livelock.
struct relacy_relax {
    void relax(place where = {}) const { rl::yield(1, where.info()); }
};

/// A mutation of orders that is chosen at run time, so that one suite type tries all of them.
struct chosen {
    static inline rl::memory_order (*now)(site const&) = &shipped::apply;
    static rl::memory_order apply(site const& s) { return now(s); }
};

class model {
public:
    model(int argc, char** argv) : full_(getenv("PVX_FULL_MODELS") != nullptr) {
        for (int i = 1; i < argc; ++i) {
            std::string_view const argument = argv[i];
            if (argument == "--full") {
                full_ = true;
            } else if (argument == "--traces") {
                traces_ = true;
            } else {
                fprintf(stderr, "%s: unknown argument %s (known: --full --traces)\n", argv[0], argv[i]);
                exit(2);
            }
        }
    }

    /// No schedule within the bound breaks a requirement.
    template <class Suite>
    void passes(char const* name, model_bound bound) {
        outcome const o = run<Suite>(bound);
        bool const good = o.result == rl::test_result_success;
        report(good, name, o, good ? "" : rl::test_result_str(o.result));
        if (!good || traces_) show(o);
    }

    /// Some schedule within the bound fails, and in the way that was expected.
    template <class Suite>
    void caught(char const* name, model_bound bound, rl::test_result_e expected = rl::test_result_user_assert_failed) {
        outcome const o = run<Suite>(bound);
        bool const good = o.result == expected;
        report(good, name, o,
               good                                  ? "mutant caught"
               : o.result == rl::test_result_success ? "MUTANT NOT CAUGHT"
                                                     : rl::test_result_str(o.result));
        if (!good || traces_) show(o);
    }

    /// What the runs must have reached besides, so that they say something.
    void reached(bool holds, char const* name, char const* what) {
        if (holds) return;
        run_ += 1;
        wrong_ += 1;
        printf("FAIL %s: %s\n", name, what);
    }

    /// Exit code: 0 if all was as expected.
    int result() const {
        printf("%u of %u models as expected\n", run_ - wrong_, run_);
        return wrong_ == 0 && run_ != 0 ? 0 : 1;
    }

private:
    struct outcome {
        rl::test_result_e result;
        unsigned long long runs;
        unsigned bound;
        double seconds;
        rl::string trace;
    };

    static double now() {
        timespec t{};
        clock_gettime(CLOCK_MONOTONIC, &t);
        return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
    }

    // What rl::simulate() does, with one scheduler in place of three: the context-bound one without a bound is the full
    // search, and a suite compiles in a third of the time.
    template <class Suite>
    outcome run(model_bound bound) {
        using scheduler = rl::context_bound_scheduler<Suite::params::thread_count>;
        // Relacy's own strings: while a suite runs, operator new belongs to the suite.
        rl::ostringstream state;
        rl::ostringstream unused;
        rl::ostringstream trace;
        std::ostream nowhere{nullptr};
        unsigned const chosen = full_ ? bound.full : bound.gate;
        rl::test_params p;
        p.search_type = rl::sched_bound;
        p.context_bound = chosen;
        p.output_stream = &trace;
        p.progress_stream = &nowhere;
        double const begin = now();
        rl::test_result_e const result = rl::run_test<Suite, scheduler>(p, state, false);
        outcome o{result, p.stop_iteration, chosen, now() - begin, {}};
        if (result != rl::test_result_success) {
            // The failing run once more, to have its history.
            p.initial_state = state.str();
            p.collect_history = true;
            rl::test_result_e const again = rl::run_test<Suite, scheduler>(p, unused, true);
            if (again != result || p.stop_iteration != o.runs)
                trace << "the failure does not repeat: the suite is not deterministic\n";
            o.trace = trace.str();
        }
        return o;
    }

    void report(bool good, char const* name, outcome const& o, char const* note) {
        run_ += 1;
        wrong_ += !good;
        char bound[24] = "every schedule";
        if (o.bound != every_schedule) snprintf(bound, sizeof bound, "%u preemptions", o.bound);
        printf("%-4s %-52s %-14s %10llu runs %6.2f s  %s\n", good ? "ok" : "FAIL", name, bound, o.runs, o.seconds,
               note);
        fflush(stdout);
    }

    // The trace without template arguments, which make its lines unreadable, and with a byte's value, which Relacy
    // prints as a character, as a number unless it can be seen.
    static void show(outcome const& o) {
        unsigned depth = 0;
        char last = ' ';
        for (char const c : o.trace) {
            bool const after_name = isalnum(static_cast<unsigned char>(last)) != 0 || last == '_';
            if (depth == 0) last = c;
            if (c == '<' && (depth != 0 || after_name)) depth += 1;
            if (depth == 0 && (c == '\n' || (c >= ' ' && c <= '~')))
                putchar(c);
            else if (depth == 0)
                printf("%u", static_cast<unsigned>(static_cast<unsigned char>(c)));
            else if (c == '>')
                depth -= 1;
        }
        fflush(stdout);
    }

    bool full_;
    bool traces_{};
    unsigned run_{};
    unsigned wrong_{};
};

}  // namespace pvx_test
