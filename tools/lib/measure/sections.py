# SPDX-License-Identifier: MIT
"""The sections: each is one kind of figures. A new one is a class here, a line in SECTIONS, a function in pictures.py."""

import os
import re
import statistics

from measure import pictures
from measure.comparison import UNSURE, Finding, compare_exact, compare_intervals, match
from measure.errors import Failure
from measure.results import read_json
from measure.runner import Neighbours, build_target
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


class Estimates(Program):
    """Rows that are an estimate with an interval and a state. A subclass has key(row), text(estimate) and error(data, row),
    the error that the estimator itself makes."""

    figure = ()  # the keys of the estimate and of its interval's ends

    def compare(self, old, new):
        def judge(name, was, now):
            estimates = [
                (*(row[key] for key in self.figure), self.error(data, row)) for data, row in ((old, was), (new, now))
            ]
            return [compare_intervals(self.name, name, *estimates, self.text, (was["state"], now["state"]))]

        return match(self.name, old["rows"], new["rows"], self.key, judge)


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


class Pairs(Estimates):
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
    pictures = {
        "pairs.svg": (pictures.paired_ratios, "ratios of time, with intervals"),
        "pruning.svg": (pictures.pruning_over_n, "pruning a flush mask, over the number of vCPUs"),
    }

    figure = ("ratio", "low", "high")

    @staticmethod
    def error(data, row):
        return row.get("aa_error", data["aa_error"])

    @staticmethod
    def key(row):
        return row["name"]

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

    @staticmethod
    def text(estimate):
        return f"{ratio(estimate[0])} [{ratio(estimate[1])}, {ratio(estimate[2])}]"


# --- locks ------------------------------------------------------------------------------------------------------------


class Locks(Estimates):
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
    figure = ("mops", "mops_low", "mops_high")

    @staticmethod
    def error(data, row):
        return row.get("aa_error", data.get("aa_error", 0))

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

    @staticmethod
    def text(estimate):
        return f"{number(estimate[0])} [{number(estimate[1])}, {number(estimate[2])}] Mops/s"


# --- the guest's own benchmarks ---------------------------------------------------------------------------------------


def parse_guest_bench(text, cut_short=False):
    """What the guest prints with format=tsv: facts, and rows with their name, median, low, high, count, and what else the
    line has. Of a run that was cut short, what is whole."""
    facts, rows = {}, []
    for line in text.splitlines(keepends=True):
        if cut_short and not line.endswith("\n"):
            continue
        kind, *fields = line.rstrip("\r\n").split("\t")
        try:
            if kind == "bench-fact":
                key, value = fields
                facts[key] = int(value)
            elif kind == "bench":
                name, median, low, high, count, *more = fields
                row = {"name": name.strip(), "median": median, "low": low, "high": high, "count": count}
                row.update(field.split("=") for field in more)
                rows.append({key: value if key == "name" else int(value) for key, value in row.items()})
        except ValueError:
            if not cut_short:
                raise Failure(f"the guest wrote a line that is none of its format: {line!r}") from None
    if not rows and not cut_short:
        raise Failure("the guest wrote no figures")
    return facts, rows


def guest_command(options, words, guest):
    return ["tools/run-guest", "--on", "nested-kvm", *options, "--append", f"{words} format=tsv", guest]


def kernel_release(runner):
    """Of the Linux under the guest, if there was one."""
    found = re.search(r"booting Linux (\S+)", runner.log("run-guest"))
    return found[1] if found else ""


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
        options = ["--exact", "--kernel", kernel, "--vcpus", str(vcpus), "--timeout", "300"]
        facts, rows = parse_guest_bench(runner.measure(guest_command(options, "bench", guest), what))
        self.releases[kernel] = kernel_release(runner)
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


class Shootdown(Section):
    name = "shootdown"
    title = "TLB shootdowns"
    target = "baremetal-guest"
    about = (
        "What pruning saves in a guest with 8 vCPUs over 2 CPUs, on the real KVM of Linux 6.1 over an emulated AMD SVM. "
        "*Left out* of a flush are: *off*, nobody; *host*, vCPUs that the host has preempted; *deferred*, vCPUs that wait "
        "with interrupts off; *both*. In *compute*, one vCPU flushes all others without a pause, and they compute and wait "
        "up to 64 us with interrupts off. In *locks*, two vCPUs compute and flush, and six take a lock with interrupts off. "
        "The ways take turns of a second. Every figure is the median of several boots, and the range is that of the boots: "
        "they differ, in *compute* up to a hundredfold where others use the machine; why is not known. IPIs, *by host* and "
        "*deferred* are vCPUs per shootdown; latencies are good to 1 part in 32; turns are loops of the vCPUs that do "
        "not flush. *Incomplete*: the emulated machine reset on every attempt, and this is what there was until then."
    )
    pictures = {"shootdown.svg": (pictures.shootdowns, "latency and throughput by who is left out")}

    kernel = "6.1"
    vcpus, host_cpus = 8, 2
    # Many short boots: one of 16 seconds is reset as often as not.
    boots = {"quick": 2, "full": 10}
    seconds = 1  # in each boot for each way
    ways = 8
    # The guest panicked or faulted, did not end, or was reset: see docs/nested-kvm.md.
    cut_short = (3, 4, 70, 124, 125)
    repeats = 3
    foreign_limit = 0.1
    # The ranges of fewer boots often lie apart by chance.
    judged_boots = 5

    def run(self, runner, mode):
        guest = build_target(runner, self.target)
        boots = self.boots[mode]
        options = ["--kernel", self.kernel, "--kernel-append", "tsc=reliable", "--vcpus", str(self.vcpus)]
        options += ["--host-cpus", str(self.host_cpus), "--timeout", str(30 + 2 * self.ways * self.seconds)]
        command = guest_command(options, f"shootdown seconds={self.seconds}", guest)
        results, codes = [], []
        for boot in range(boots):
            run = runner.run if boot else runner.measure  # the results name it once
            result, own_codes = self._boot(runner, run, command, f"boot {boot + 1} of {boots}")
            results.append(result)
            codes.append(own_codes)
        rows = self._rows(results, boots * self.seconds)
        if not rows:
            raise Failure(f"no run of the guest came to a figure: exit codes {codes}")
        return {
            "program": "baremetal-guest shootdown",
            "kernel": kernel_release(runner),
            "vcpus": self.vcpus,
            "host_cpus": self.host_cpus,
            "seconds": self.seconds,
            "exit_codes": codes,
            "complete": all(own[-1] == 0 for own in codes),
            "rows": rows,
        }

    def _boot(self, runner, run, command, what):
        """Figures by way of a run that came to its end, or else of the one that came furthest; all exit codes."""
        best, codes = {}, []
        for attempt in range(1 + self.repeats):
            neighbours = Neighbours()
            text = run(
                command, f"{self.name}: {what}" + f", attempt {attempt + 1}" * bool(attempt), (0, 1, *self.cut_short)
            )
            run = runner.run
            codes.append(runner.code)
            figures = self._figures(text, runner.code != 0, neighbours.share())
            if runner.code == 1:
                raise Failure(f"the guest found a mistake: see {runner.file('run-guest.out')}")
            if runner.code == 0:
                return figures, codes
            if sum(way["rounds"] for way in figures.values()) > sum(way["rounds"] for way in best.values()):
                best = figures
            then = "once more" if attempt < self.repeats else "incomplete"
            runner.say(f"{self.name}: {what} was cut short (exit code {runner.code}): {then}")
        return best, codes

    @staticmethod
    def _figures(text, cut_short, foreign_share):
        """By way: what one run of the guest says of it. Nothing of what it did not come to."""
        facts, lines = parse_guest_bench(text, cut_short)
        ways = {}
        try:
            ticks_per_us = facts["tsc_khz"] / 1000
            for line in lines:
                if line["stale"] or line["illegal"]:
                    raise Failure(f"the guest found a mistake, which is worth more than its figures: {line}")
                n, seconds = line["shootdowns"], line["ns"] / 1e9
                ways[line["name"]] = {
                    "rounds": ways.get(line["name"], {"rounds": 0})["rounds"] + 1,
                    "foreign_share": foreign_share,
                    "per_second": n / seconds,
                    "median_us": line["median"] / ticks_per_us,
                    "p99_us": line["p99"] / ticks_per_us,
                    **{key: line[key] / n for key in ("ipis", "to_host", "deferred")},
                    "turns_per_second": line["turns"] / seconds,
                }
        except (KeyError, ZeroDivisionError) as error:
            if not cut_short:
                raise Failure(f"the guest wrote no shootdowns: {type(error).__name__} {error}") from error
        for name, way in ways.items():
            workload, _, mode = name.partition(", ")
            for other, ratio_name in (("off", "to_off"), ("host", "both_to_host")):
                base = ways.get(f"{workload}, {other}")
                if base and (other == "off" or mode == "both"):
                    way[ratio_name] = way["per_second"] / base["per_second"]
        return ways

    def _rows(self, boots, rounds):
        """Of each way: the median of each figure over the boots."""
        rows = []
        for name in dict.fromkeys(name for ways in boots for name in ways):
            workload, _, mode = name.partition(", ")
            own = [ways[name] for ways in boots if name in ways]
            row = {"workload": workload, "mode": mode, "boots": len(own), "rounds": sum(way["rounds"] for way in own)}
            for key in own[0]:
                values = [way[key] for way in own if key in way]
                if key == "foreign_share":
                    row[key] = round(max(values), 4)
                elif key != "rounds":
                    row[key] = round(statistics.median(values), 4)
                if key == "to_off":
                    row["to_off_low"], row["to_off_high"] = round(min(values), 4), round(max(values), 4)
            dirty = row["foreign_share"] > self.foreign_limit
            row["state"] = "incomplete" if row["rounds"] < rounds else "contaminated" if dirty else "clean"
            rows.append(row)
        return rows

    def tables(self, data):
        codes = data["exit_codes"]
        title = f"Linux {data['kernel']}, {data['vcpus']} vCPUs over {data['host_cpus']} CPUs, {len(codes)} boots"
        cut_short = [str(code) for own in codes for code in own if code != 0]
        if cut_short:
            title += f"; cut short: {len(cut_short)} (exit codes {', '.join(cut_short)}), "
            title += "repeated" if data["complete"] else "INCOMPLETE"
        table = Table(
            [
                "workload",
                "left out",
                "shootdowns/s",
                "to off",
                "range",
                "to host",
                "median us",
                "99 % us",
                "IPIs",
                "by host",
                "deferred",
                "turns/s",
                "rounds",
                "state",
            ],
            title=title,
        )
        for row in data["rows"]:
            table.add(
                row["workload"],
                row["mode"],
                number(row["per_second"]),
                number(row.get("to_off")),
                f"{number(row['to_off_low'])} to {number(row['to_off_high'])}" if "to_off" in row else "",
                number(row.get("both_to_host")),
                number(row["median_us"]),
                number(row["p99_us"]),
                *(f"{row[key]:.2f}" for key in ("ipis", "to_host", "deferred")),
                number(row["turns_per_second"]),
                row["rounds"],
                row["state"],
            )
        return [table]

    @staticmethod
    def key(row):
        return f"{row['workload']}, {row['mode']}"

    def compare(self, old, new):
        def judge(name, was, now):
            if was["mode"] == "off" or not ("to_off" in was and "to_off" in now):
                return []
            finding = compare_intervals(
                self.name,
                name,
                *((row["to_off"], row["to_off_low"], row["to_off_high"], 0) for row in (was, now)),
                lambda q: f"{number(q[0])} [{number(q[1])}, {number(q[2])}] of off",
                (was["state"], now["state"]),
            )
            doubts = []
            if old["kernel"] != new["kernel"]:
                doubts.append(f"kernels: {old['kernel']}, {new['kernel']}")
            if min(was["boots"], now["boots"]) < self.judged_boots:
                doubts.append(f"fewer than {self.judged_boots} boots")
            if doubts and finding.verdict != UNSURE:
                finding.verdict, finding.why = UNSURE, ", ".join(doubts)
            return [finding]

        return match(self.name, old["rows"], new["rows"], self.key, judge)


SECTIONS = (Counts(), Exits(), Shootdown(), Pairs(), Locks())
