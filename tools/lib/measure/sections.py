# SPDX-License-Identifier: MIT
"""The sections: each is one kind of figures. A new one is a class here, a line in SECTIONS, a function in pictures.py."""

import os
import re

from measure import pictures
from measure.comparison import UNSURE, Finding, compare_exact, compare_intervals, match
from measure.errors import Failure
from measure.results import read_json
from measure.runner import build_target
from measure.tables import Table, number, percent, ratio


class Section:
    name = ""
    title = ""
    about = ""  # what the figures mean, for the page
    target = ""  # what CMake calls its program
    pictures = {}  # file name: (function(data) -> figure, what it shows)

    def run(self, runner, mode):
        """Returns the data. Raises Missing for what is not there, Failure for what went wrong."""
        raise NotImplementedError

    def tables(self, data):
        raise NotImplementedError

    def compare(self, old, new):
        """Findings, for every figure that counts."""
        raise NotImplementedError


class Program(Section):
    """A program under bench/ that writes its figures with --json."""

    quick_options = ()
    codes = (0,)

    def run(self, runner, mode):
        program = build_target(runner, self.target)
        file = runner.file(f"{self.target}.json")
        path = os.path.join(runner.root, file)
        if os.path.exists(path):
            os.unlink(path)
        command = [program, "--json", file, *(self.quick_options if mode == "quick" else ())]
        runner.measure(command, f"{self.name}: {self.target}", self.codes)
        if not os.path.exists(path):
            raise Failure(f"{self.target} wrote no figures: it cannot count on this machine")
        return read_json(path)


# --- exact counts -----------------------------------------------------------------------------------------------------


class Counts(Program):
    name = "counts"
    title = "Exact counts"
    target = "exact_counts"
    # 1, 3, 77: it differs from its own baseline, or has none. That is its gate, not ours.
    codes = (0, 1, 3, 77)
    about = (
        "What each hot function executes, counted and not timed: instructions by single steps, and events that cost more "
        "than an instruction. The same on every machine with this compiler and these flags. A count of zero is left out."
    )

    def tables(self, data):
        cases = Table(["case", "instructions", "among them, and events"])
        for case in data["cases"]:
            counts = case["counts"]
            others = ", ".join(f"{name} {count}" for name, count in counts.items() if name != "instructions")
            cases.add(case["name"], counts.get("instructions", ""), others)
        sizes = Table(["bytes of code", "bytes"])
        for name, count in data.get("code_bytes", {}).items():
            sizes.add(name, count)
        lines = Table(["preprocessed", "lines"])
        for name, count in data.get("preprocessed_lines", {}).items():
            lines.add(name, count)
        return [table for table in (cases, sizes, lines) if table.rows]

    @staticmethod
    def _rows(data):
        rows = [(case["name"], case["counts"]) for case in data["cases"]]
        return rows + [
            (key.replace("_", " "), data[key]) for key in ("code_bytes", "preprocessed_lines") if key in data
        ]

    def compare(self, old, new):
        def judge(name, was, now):
            was, now = was[1], now[1]
            return [
                compare_exact(self.name, f"{name}: {key}", was.get(key, 0), now.get(key, 0)) for key in {**was, **now}
            ]

        return match(self.name, self._rows(old), self._rows(new), lambda row: row[0], judge)


# --- pairs ------------------------------------------------------------------------------------------------------------


class Pairs(Program):
    name = "pairs"
    title = "Time, in pairs"
    target = "bench_paired"
    quick_options = ("--quick",)
    about = (
        "Two ways to do one thing, timed in turns within microseconds, so that a disturbance meets both. The ratio a/b has "
        "a 95 % interval; the A/A error is how far the same estimate was off on one way against itself meanwhile. A "
        "ratio is called other than 1 only where the interval, widened by that error, does not hold 1. *Contaminated*: "
        "others used the machine so much that the row says nothing."
    )
    pictures = {"pairs.svg": (pictures.paired_ratios, "ratios of time, with intervals")}

    @staticmethod
    def error(data, row):
        return row.get("aa_error", data["aa_error"])

    def tables(self, data):
        table = Table(["pair", "a", "b", "ns a", "ns b", "a/b", "95 % interval", "A/A error", "pairs", "far", "result"])
        for row in data["rows"]:
            result = (
                row["state"]
                if row["state"] != "clean"
                else "same"
                if not row["flagged"]
                else "a slower"
                if row["ratio"] > 1
                else "a faster"
            )
            table.add(
                row["name"],
                row["a"],
                row["b"],
                number(row["ns_a"]),
                number(row["ns_b"]),
                ratio(row["ratio"]),
                f"{ratio(row['low'])} to {ratio(row['high'])}",
                percent(self.error(data, row), 2),
                row["pairs"],
                percent(row.get("far_share")),
                result,
            )
        return [table]

    def compare(self, old, new):
        def judge(name, was, now):
            quadruples = [(r["ratio"], r["low"], r["high"], self.error(d, r)) for d, r in ((old, was), (new, now))]
            dirty = "contaminated" in (was["state"], now["state"])
            return [
                compare_intervals(
                    self.name, name, *quadruples, lambda q: f"{ratio(q[0])} [{ratio(q[1])}, {ratio(q[2])}]", dirty
                )
            ]

        return match(self.name, old["rows"], new["rows"], lambda row: row["name"], judge)


# --- locks ------------------------------------------------------------------------------------------------------------


class Locks(Program):
    name = "locks"
    title = "Locks"
    target = "bench_locks"
    quick_options = ("--quick",)
    about = (
        "Threads that take one lock, hold it, and stay away from it for a while, in interleaved rounds. Fairness is Jain's "
        "index: 1 if all threads got it equally often, 1/threads if one got all. *far*: the share of rounds in which the "
        "CPUs were far apart, which halves contended figures."
    )
    pictures = {"locks.svg": (pictures.locks_over_threads, "throughput and fairness over threads")}

    def tables(self, data):
        table = Table(
            [
                "lock",
                "threads",
                "inside ns",
                "outside ns",
                "Mops/s",
                "interval",
                "CPU ns/op",
                "Jain",
                "longest gap us",
                "halts/op",
                "kicks/op",
                "far",
                "state",
            ]
        )
        for row in data["rows"]:
            table.add(
                row["lock"],
                row["threads"],
                number(row.get("inside_ns")),
                number(row.get("outside_ns")),
                number(row["mops"]),
                f"{number(row['mops_low'])} to {number(row['mops_high'])}",
                number(row.get("cpu_ns_per_op")),
                "" if row.get("jain") is None else f"{row['jain']:.2f}",
                number(row.get("longest_gap_us")),
                number(row.get("halts_per_op")),
                number(row.get("kicks_per_op")),
                percent(row.get("far_share")),
                row["state"],
            )
        return [table]

    @staticmethod
    def key(row):
        return f"{row['lock']}, {row['threads']} threads, {number(row.get('inside_ns'))}/{number(row.get('outside_ns'))} ns"

    def compare(self, old, new):
        def judge(name, was, now):
            quadruples = [
                (r["mops"], r["mops_low"], r["mops_high"], r.get("aa_error", d.get("aa_error", 0)))
                for d, r in ((old, was), (new, now))
            ]
            dirty = "contaminated" in (was["state"], now["state"])
            return [
                compare_intervals(
                    self.name,
                    name,
                    *quadruples,
                    lambda q: f"{number(q[0])} [{number(q[1])}, {number(q[2])}] Mops/s",
                    dirty,
                )
            ]

        return match(self.name, old["rows"], new["rows"], self.key, judge)


# --- the guest's own benchmarks ---------------------------------------------------------------------------------------


def parse_guest_bench(text):
    """What the guest prints with format=tsv: facts, and rows with their name, median, low, high and count."""
    facts, rows = {}, []
    for line in text.splitlines():
        kind, *fields = line.split("\t")
        try:
            if kind == "bench-fact":
                key, value = fields
                facts[key] = int(value)
            elif kind == "bench":
                name, *values = fields
                median, low, high, count = map(int, values)
                rows.append({"name": name.strip(), "median": median, "low": low, "high": high, "count": count})
        except ValueError:
            raise Failure(f"the guest wrote a line that is none of its format: {line!r}") from None
    if not rows:
        raise Failure("the guest wrote no figures")
    return facts, rows


def run_guest_bench(runner, what, guest, options, words):
    """Facts, rows, and the release of the Linux under the guest, if there was one."""
    command = ["tools/run-guest", *options, "--append", f"{words} format=tsv", guest]
    facts, rows = parse_guest_bench(runner.measure(command, what))
    found = re.search(r"booting Linux (\S+)", runner.log("run-guest"))
    return facts, rows, found[1] if found else ""


class Exits(Section):
    name = "exits"
    title = "Exact exit costs"
    target = "baremetal-guest"
    about = (
        "What leaving the guest costs on the real KVM of two Linux kernels, in instructions of the guest, KVM and the "
        "Linux under it together: `tools/run-guest --exact` runs them on an emulated CPU (AMD SVM with nested paging, as "
        "QEMU emulates it) whose TSC counts instructions; the guest checks that first. The counts compare two ways of one "
        "thing, or two kernels; they are no cycles, and the emulated SVM lacks what makes KVM faster on hardware. Median of "
        "up to 301 batches of 16 or more; *samples differ*: from the 10th to the 90th percentile of them."
    )
    pictures = {"exits.svg": (pictures.exit_costs, "instructions for an exit, by kernel")}

    kernels = ("6.1", "6.12")
    tolerance = 0.001
    # A row that differs this much between its own samples depends on who gets the only CPU when.
    steady = 0.1

    def _boot(self, runner, guest, kernel, vcpus, turn):
        what = f"{self.name}: Linux {kernel}, {vcpus} vCPU{'s' * (vcpus > 1)}, boot {turn}"
        options = ["--exact", "--on", "nested-kvm", "--kernel", kernel, "--vcpus", str(vcpus), "--timeout", "300"]
        facts, rows, self.releases[kernel] = run_guest_bench(runner, what, guest, options, "bench")
        if facts.get("ticks_per_1000_instructions") != 1000:
            raise Failure(
                f"a TSC tick is not an instruction here: {facts.get('ticks_per_1000_instructions')} ticks for 1000"
            )
        return {row["name"]: row for row in rows}

    def run(self, runner, mode):
        guest = build_target(runner, self.target)
        boots = 2 if mode == "full" else 1
        self.releases = {}
        rows = []
        for vcpus in (1, 4) if mode == "full" else (1,):
            for kernel in self.kernels:
                results = [self._boot(runner, guest, kernel, vcpus, turn + 1) for turn in range(boots)]
                for name, first in results[0].items():
                    # Beside the first vCPU, what is new with several of them.
                    if vcpus > 1 and any(r["name"] == name and r["vcpus"] == 1 for r in rows):
                        continue
                    if first["high"] - first["low"] > self.steady * first["median"]:
                        continue
                    row = {
                        "name": name,
                        "kernel": kernel,
                        "vcpus": vcpus,
                        "instructions": first["median"],
                        "low": first["low"],
                        "high": first["high"],
                    }
                    medians = [boot[name]["median"] for boot in results if name in boot]
                    if len(medians) > 1:
                        row["boots_differ"] = round((max(medians) - min(medians)) / first["median"], 5)
                    rows.append(row)
        return {"program": "baremetal-guest bench", "kernels": self.releases, "rows": rows}

    def tables(self, data):
        kernels = list(dict.fromkeys(row["kernel"] for row in data["rows"]))
        table = Table(
            [
                "operation",
                "vCPUs",
                *(f"Linux {data['kernels'][kernel]}" for kernel in kernels),
                "samples differ",
                "boots differ",
            ]
        )
        operations = dict.fromkeys((row["name"], row["vcpus"]) for row in data["rows"])
        for name, vcpus in operations:
            rows = {row["kernel"]: row for row in data["rows"] if (row["name"], row["vcpus"]) == (name, vcpus)}
            boots = [row["boots_differ"] for row in rows.values() if "boots_differ" in row]
            table.add(
                name,
                vcpus,
                *(rows[kernel]["instructions"] if kernel in rows else "" for kernel in kernels),
                percent(max((row["high"] - row["low"]) / row["instructions"] for row in rows.values()), 1),
                percent(max(boots), 3) if boots else "one boot",
            )
        return [table]

    @staticmethod
    def key(row):
        return f"{row['name']}, Linux {row['kernel']}, {row['vcpus']} vCPU{'s' * (row['vcpus'] > 1)}"

    def compare(self, old, new):
        def judge(name, was, now):
            releases = [data["kernels"][was["kernel"]] for data in (old, new)]
            counts = was["instructions"], now["instructions"]
            if releases[0] != releases[1]:
                return [Finding(self.name, name, *map(str, counts), UNSURE, "kernels: {}, {}".format(*releases))]
            return [compare_exact(self.name, name, *counts, self.tolerance)]

        return match(self.name, old["rows"], new["rows"], self.key, judge)


SECTIONS = (Counts(), Exits(), Pairs(), Locks())
