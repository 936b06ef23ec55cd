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


def fairness(row):
    return "" if row.get("jain") is None else f"{row['jain']:.2f}"


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
        return self.run_once(runner, self.quick_options if mode == "quick" else ())

    def run_once(self, runner, options, what=""):
        program = build_target(runner, self.target)
        file = runner.file(f"{self.target}.json")
        path = os.path.join(runner.root, file)
        if os.path.exists(path):
            os.unlink(path)
        runner.measure([program, "--json", file, *options], f"{self.name}: {self.target}{what}", self.codes)
        if not os.path.exists(path):
            raise Failure(f"{self.target} wrote no figures: it cannot count on this machine")
        return read_json(path)


class Estimates(Program):
    """Rows that are an estimate with an interval and a state. A subclass has key(row), text(estimate) and error(data, row),
    the error that the estimator itself makes."""

    figure = ()  # the keys of the estimate and of its interval's ends

    def doubt(self, old, new):
        """Why two rows cannot be compared though both are clean."""
        return ""

    def compare(self, old, new):
        def judge(name, was, now):
            estimates = [
                (*(row[key] for key in self.figure), self.error(data, row)) for data, row in ((old, was), (new, now))
            ]
            states = (was["state"], now["state"])
            return [compare_intervals(self.name, name, *estimates, self.text, states, self.doubt(was, now))]

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
        "an interval, which covers the 95 % intervals of each of several visits (separate processes, minutes apart) with "
        "--full, and is that of one with --quick; the A/A error is how far the same estimate was off on one way against "
        "itself meanwhile, at worst. A ratio is called other than 1 only where the interval, widened by that error, does not hold 1. *Contaminated*: "
        "others used the machine so much that the row says nothing."
    )
    pictures = {
        "pairs.svg": (pictures.paired_ratios, "ratios of time, with intervals"),
        "pruning.svg": (pictures.pruning_over_n, "pruning a flush mask, over the number of vCPUs"),
    }

    figure = ("ratio", "low", "high")
    visits = 6
    visit_options = ("--pairs", "51")

    def run(self, runner, mode):
        if mode == "quick":
            return super().run(runner, mode)
        return self.merged(
            [self.run_once(runner, self.visit_options, f", visit {i + 1} of {self.visits}") for i in range(self.visits)]
        )

    @staticmethod
    def merged(visits):
        """One run is one layout of memory and one mood of the machine, and its interval knows of no other. So each row is
        visited by several processes, minutes apart, and its interval is that of the clean visits' own estimates. If fewer
        than half of the visits were clean, the row is contaminated."""

        def row_of(rows):
            good = [row for row in rows if row["state"] == "clean"]
            used = good or rows
            one = dict(used[0])
            for key in ("ns_a", "ns_b", "ratio"):
                one[key] = statistics.median(row[key] for row in used)
            one["low"] = min(row["low"] for row in used)
            one["high"] = max(row["high"] for row in used)
            one["aa_error"] = max(row["aa_error"] for row in used)
            one["far_share"] = max(row["far_share"] for row in used)
            one["foreign_share"] = max(row["foreign_share"] for row in used)
            one["pairs"] = sum(row["pairs"] for row in used)
            one["rejected"] = sum(row["rejected"] for row in rows)
            one["visits"] = len(used)
            one["flagged"] = not (one["low"] * (1 - one["aa_error"]) <= 1 <= one["high"] * (1 + one["aa_error"]))
            one["state"] = "clean" if 2 * len(good) >= len(rows) else "contaminated"
            return one

        by_name = {}
        for visit in visits:
            for row in visit["rows"]:
                by_name.setdefault(row["name"], []).append(row)
        merged = dict(visits[0])
        merged["rows"] = [row_of(rows) for rows in by_name.values()]
        merged["aa_error"] = max(visit["aa_error"] for visit in visits)
        return merged

    @staticmethod
    def error(data, row):
        return row.get("aa_error", data["aa_error"])

    @staticmethod
    def key(row):
        return row["name"]

    def tables(self, data):
        table = Table(["pair", "a", "b", "ns a", "ns b", "a/b", "interval", "A/A error", "pairs", "far", "result"])
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
        "CPUs were far apart, which halves contended figures. The A/A error is how far the halves of a lock's rounds differ."
    )
    pictures = {"locks.svg": (pictures.locks_over_threads, "throughput and fairness over threads")}
    figure = ("mops", "mops_low", "mops_high")
    # Where the CPUs were far apart in so many more of the rounds, it was another machine.
    far_shift = 0.25

    @staticmethod
    def error(data, row):
        return row.get("aa_error", data.get("aa_error", 0))

    def doubt(self, old, new):
        far = [row.get("far_share") or 0 for row in (old, new)]
        if new["threads"] == 1 or abs(far[0] - far[1]) <= self.far_shift:
            return ""
        return f"CPUs far apart in {percent(far[0])} of the old rounds, {percent(far[1])} of the new"

    def tables(self, data):
        table = Table(
            [
                "lock",
                "threads",
                "inside ns",
                "outside ns",
                "Mops/s",
                "interval",
                "A/A error",
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
                percent(row.get("aa_error"), 1),
                number(row.get("cpu_ns_per_op")),
                fairness(row),
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
    tolerance = 0.002
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


class Boots(Section):
    """Ways to do one thing, which take turns in a suite of the guest, told by their rate. On several short boots: one of
    16 seconds is reset as often as not. A way is called "GROUP, NAME", and is set against the one called `base` of its
    group. A subclass has figures(line, ticks_per_us) and identity(group, name)."""

    target = "baremetal-guest"
    suite = ""
    kernel = "6.1"
    host_cpus = 2
    boots = {}  # by mode
    seconds = 1  # in each boot for each way
    ways = 0
    mistakes = ()  # of a line: what must be zero
    kind, base, to_base = "", "", ""  # the key of a row that has the name; a name; the key of the ratio to it
    ranged = ()  # of these keys a row has the range as well
    worst = ("foreign_share",)  # of these the largest value, and no median
    # The guest panicked or faulted, did not end, or was reset: see docs/nested-kvm.md.
    cut_short = (3, 4, 70, 124, 125)
    repeats = 3
    foreign_limit = 0.1
    judged_boots = 0  # the ranges of fewer often lie apart by chance
    error = 0.0  # what their range does not show

    def boot_all(self, runner, guest, vcpus, boots):
        """Of each boot the figures by way, and the exit codes of its attempts."""
        options = ["--kernel", self.kernel, "--kernel-append", "tsc=reliable", "--vcpus", str(vcpus)]
        options += ["--host-cpus", str(self.host_cpus), "--timeout", str(30 + 2 * self.ways * self.seconds)]
        command = guest_command(options, f"{self.suite} seconds={self.seconds}", guest)
        results, codes = [], []
        for boot in range(boots):
            run = runner.run if boot else runner.measure  # the results name it once
            result, own_codes = self._boot(runner, run, command, f"{vcpus} vCPUs, boot {boot + 1} of {boots}")
            results.append(result)
            codes.append(own_codes)
        return results, codes

    def data(self, runner, vcpus, codes, rows):
        if not rows:
            raise Failure(f"no run of the guest came to a figure: exit codes {codes}")
        return {
            "program": f"{self.target} {self.suite}",
            "kernel": kernel_release(runner),
            "vcpus": vcpus,
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
            if runner.code == 1:
                raise Failure(f"the guest found a mistake: see {runner.file('run-guest.out')}")
            found = self.read(text, runner.code != 0, neighbours.share())
            if runner.code == 0:
                return found, codes
            if sum(way["rounds"] for way in found.values()) > sum(way["rounds"] for way in best.values()):
                best = found
            then = "once more" if attempt < self.repeats else "incomplete"
            runner.say(f"{self.name}: {what} was cut short (exit code {runner.code}): {then}")
        return best, codes

    def read(self, text, cut_short, foreign_share):
        """By way: what one run of the guest says of it. Nothing of what it did not come to."""
        facts, lines = parse_guest_bench(text, cut_short)
        ways = {}
        try:
            ticks_per_us = facts["tsc_khz"] / 1000
            for line in lines:
                if any(line[key] for key in self.mistakes):
                    raise Failure(f"the guest found a mistake, which is worth more than its figures: {line}")
                ways[line["name"]] = {
                    "rounds": ways.get(line["name"], {"rounds": 0})["rounds"] + 1,
                    "foreign_share": foreign_share,
                    "median_us": line["median"] / ticks_per_us,
                    "p99_us": line["p99"] / ticks_per_us,
                    **self.figures(line, ticks_per_us),
                }
        except (KeyError, ZeroDivisionError) as error:
            if not cut_short:
                raise Failure(f"the guest wrote no {self.suite}s: {type(error).__name__} {error}") from error
        for name, way in ways.items():
            base = ways.get(f"{name.rpartition(', ')[0]}, {self.base}")
            if base:
                way[self.to_base] = way["per_second"] / base["per_second"]
        return ways

    def merge(self, boots, rounds, **common):
        """A row for each way: the median of each figure over the boots."""
        rows = []
        for name in dict.fromkeys(name for ways in boots for name in ways):
            group, _, own_name = name.rpartition(", ")
            own = [ways[name] for ways in boots if name in ways]
            row = {
                **self.identity(group, own_name),
                **common,
                "boots": len(own),
                "rounds": sum(w["rounds"] for w in own),
            }
            for key in dict.fromkeys(key for way in own for key in way if key != "rounds"):
                values = [way[key] for way in own if key in way]
                row[key] = round(max(values) if key in self.worst else statistics.median(values), 4)
                if key in self.ranged:
                    row[f"{key}_low"], row[f"{key}_high"] = round(min(values), 4), round(max(values), 4)
            dirty = row["foreign_share"] > self.foreign_limit
            row["state"] = "incomplete" if row["rounds"] < rounds else "contaminated" if dirty else "clean"
            rows.append(row)
        return rows

    def table_title(self, data, vcpus):
        codes = data["exit_codes"]
        title = f"Linux {data['kernel']}, {vcpus} vCPUs over {data['host_cpus']} CPUs, {len(codes)} boot{'s' * (len(codes) > 1)}"
        cut_short = [str(code) for own in codes for code in own if code != 0]
        if cut_short:
            title += f"; cut short: {len(cut_short)} (exit codes {', '.join(cut_short)}), "
            title += "repeated" if data["complete"] else "INCOMPLETE"
        return title

    def ratio_cells(self, row):
        """The ratio to the base, and its range."""
        if self.to_base not in row:
            return "", ""
        low, high = (number(row[f"{self.to_base}_{end}"]) for end in ("low", "high"))
        return number(row[self.to_base]), f"{low} to {high}"

    def compare(self, old, new):
        keys = [self.to_base + end for end in ("", "_low", "_high")]

        def judge(name, was, now):
            if was[self.kind] == self.base or not (self.to_base in was and self.to_base in now):
                return []
            finding = compare_intervals(
                self.name,
                name,
                *((*(row[key] for key in keys), self.error) for row in (was, now)),
                lambda q: f"{number(q[0])} [{number(q[1])}, {number(q[2])}] of {self.base}",
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


class Shootdown(Boots):
    name = "shootdown"
    title = "TLB shootdowns"
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

    suite = "shootdown"
    vcpus = 8
    boots = {"quick": 2, "full": 10}
    ways = 8
    mistakes = ("stale", "illegal")
    kind, base, to_base = "mode", "off", "to_off"
    ranged = ("to_off",)
    judged_boots = 5

    def run(self, runner, mode):
        boots = self.boots[mode]
        results, codes = self.boot_all(runner, build_target(runner, self.target), self.vcpus, boots)
        return self.data(runner, self.vcpus, codes, self.merge(results, boots * self.seconds))

    @staticmethod
    def identity(group, name):
        return {"workload": group, "mode": name}

    @staticmethod
    def figures(line, _):
        n, seconds = line["shootdowns"], line["ns"] / 1e9
        return {
            "per_second": n / seconds,
            **{key: line[key] / n for key in ("ipis", "to_host", "deferred")},
            "turns_per_second": line["turns"] / seconds,
        }

    def read(self, text, cut_short, foreign_share):
        ways = super().read(text, cut_short, foreign_share)
        for name, way in ways.items():
            workload, _, mode = name.rpartition(", ")
            host = ways.get(f"{workload}, host")
            if mode == "both" and host:
                way["both_to_host"] = way["per_second"] / host["per_second"]
        return ways

    def tables(self, data):
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
            title=self.table_title(data, data["vcpus"]),
        )
        for row in data["rows"]:
            table.add(
                row["workload"],
                row["mode"],
                number(row["per_second"]),
                *self.ratio_cells(row),
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


class GuestLocks(Boots):
    name = "guest-locks"
    title = "Locks in a guest"
    about = (
        "One lock and the vCPUs of a guest on 2 CPUs, on the real KVM of Linux 6.1 over an emulated AMD SVM: each takes "
        "it with interrupts off, works for a microsecond inside and for another one outside. One vCPU more sleeps, and "
        "would say so if one of them did not come back. *Native*, *paravirtual* and "
        "*test-and-set* are the modes of the same lock: queue and spin, queue and halt, poll; *ticket* is a ticket lock, "
        "for comparison. The locks take turns of a quarter of a second. A figure is the median of the boots, the longest "
        "wait that of all of them, and the range is that of the boots. Fairness is Jain's index: 1 if all vCPUs got the "
        "lock equally often, 1/vCPUs if one got all. Halts and kicks are those of a thousand operations; they are exits, "
        "which the emulated machine makes dear. *Incomplete*: the emulated machine reset on every attempt, and this is what "
        "there was until then."
    )
    pictures = {"guest-locks.svg": (pictures.guest_locks, "operations a second over vCPUs")}

    suite = "lock"
    vcpus = {"quick": (8,), "full": (2, 4, 8, 16)}
    boots = {"quick": 1, "full": 2}
    ways = 4
    mistakes = ("errors",)
    kind, base, to_base = "lock", "native", "to_native"
    ranged = ("per_second", "to_native")
    worst = (*Boots.worst, "longest_us")
    judged_boots = 2
    # Two runs of one program, with others on the machine, lay up to 0.36 apart.
    error = 0.4

    def run(self, runner, mode):
        guest = build_target(runner, self.target)
        codes, rows = [], []
        for vcpus in self.vcpus[mode]:
            results, own_codes = self.boot_all(runner, guest, vcpus + 1, self.boots[mode])  # one watches
            codes += own_codes
            rows += self.merge(results, self.boots[mode] * self.seconds, vcpus=vcpus)
        return self.data(runner, self.vcpus[mode], codes, rows)

    @staticmethod
    def identity(_, name):
        return {"lock": name}

    @staticmethod
    def figures(line, ticks_per_us):
        return {
            "per_second": line["ops"] / line["ns"] * 1e9,
            "longest_us": line["longest"] / ticks_per_us,
            **{f"{key}_per_1000": 1000 * line[key] / line["ops"] for key in ("halts", "kicks", "steals")},
            **({"jain": line["jain"] / 1000} if "jain" in line else {}),
        }

    def tables(self, data):
        table = Table(
            [
                "lock",
                "vCPUs",
                "operations/s",
                "to native",
                "range",
                "Jain",
                "median us",
                "99 % us",
                "longest us",
                "halts/1000",
                "kicks/1000",
                "state",
            ],
            title=self.table_title(data, ", ".join(map(str, data["vcpus"]))),
        )
        for row in data["rows"]:
            table.add(
                row["lock"],
                row["vcpus"],
                number(row["per_second"]),
                *self.ratio_cells(row),
                fairness(row),
                *(number(row[key]) for key in ("median_us", "p99_us", "longest_us")),
                *(f"{row[key]:.2f}" for key in ("halts_per_1000", "kicks_per_1000")),
                row["state"],
            )
        return [table]

    @staticmethod
    def key(row):
        return f"{row['lock']}, {row['vcpus']} vCPUs"


SECTIONS = (Counts(), Exits(), Shootdown(), GuestLocks(), Pairs(), Locks())
