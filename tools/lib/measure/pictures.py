# SPDX-License-Identifier: MIT
"""The pictures: each a function from a section's data to a matplotlib figure, or None if there is nothing to draw."""

import io
import re

from measure.tables import ratio

# Okabe and Ito's colours: told apart by the colour-blind. Yellow is left out: too light on white.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#808080"


def plots():
    """matplotlib, set up so that the same data make the same file. Text stays text, which makes the file small; it is
    laid out for a wide font, so that another one fits too."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update(
        {
            "svg.hashsalt": "pvx",
            "svg.fonttype": "none",
            "font.family": "sans-serif",
            "font.sans-serif": ["DejaVu Sans"],
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.axisbelow": True,
            "axes.grid": True,
            "grid.color": "#dddddd",
            "legend.frameon": False,
        }
    )
    from matplotlib import pyplot

    pyplot.close("all")
    return pyplot


def to_svg(figure):
    text = io.StringIO()
    figure.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def exit_costs(data):
    """Bars, a panel for each number of vCPUs: each with its own scale, from 0, so that lengths can be compared."""
    rows = data["rows"]
    if not rows:
        return None
    panels = {}
    for row in rows:
        panels.setdefault(row["vcpus"], {})[row["name"]] = None
    panels = {vcpus: list(names) for vcpus, names in panels.items()}
    kernels = list(dict.fromkeys(row["kernel"] for row in rows))
    sizes = [len(names) for names in panels.values()]
    pyplot = plots()
    figure, grid = pyplot.subplots(
        len(panels),
        1,
        figsize=(8, 0.5 + 0.9 * len(panels) + 0.22 * sum(sizes) * (len(kernels) + 0.5)),
        squeeze=False,
        gridspec_kw={"height_ratios": [size + 0.4 for size in sizes]},
    )
    height = 0.8 / len(kernels)
    for (vcpus, names), axes in zip(panels.items(), grid[:, 0]):
        for turn, kernel in enumerate(kernels):
            own = [row for row in rows if row["kernel"] == kernel and row["vcpus"] == vcpus]
            places = [names.index(row["name"]) + (turn - (len(kernels) - 1) / 2) * height for row in own]
            bars = axes.barh(
                places,
                [row["instructions"] for row in own],
                height * 0.92,
                color=COLOURS[turn],
                label=f"Linux {kernel}",
            )
            axes.bar_label(bars, [f"{row['instructions']:,}" for row in own], padding=3)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.45, -0.55)
        axes.grid(False, axis="y")
        axes.set_xlim(0, 1.13 * max(row["instructions"] for row in rows if row["vcpus"] == vcpus))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set_title(f"{vcpus} vCPU{'s' * (vcpus > 1)} on KVM, emulated AMD SVM", loc="left")
    grid[-1][0].set_xlabel("instructions, of guest and host together")
    figure.tight_layout()
    grid[0][0].legend(loc="lower right", bbox_to_anchor=(1, 0), frameon=True, edgecolor="none")
    return figure


def style(turn):
    """Of the n-th line. After the colours have all had their turn: dashed, with an empty marker."""
    again = turn >= len(COLOURS)
    return {
        "color": COLOURS[turn % len(COLOURS)],
        "marker": MARKERS[turn % len(MARKERS)],
        "markersize": 4.5,
        "linewidth": 1.3,
        "linestyle": "--" if again else "-",
        "markerfacecolor": "white" if again else COLOURS[turn % len(COLOURS)],
    }


def powers_of_two(axes, ticks):
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(n) for n in ticks])
    axes.minorticks_off()


def line_with_ranges(axes, rows, x, y, label, look):
    """Through the rows, each with its range of y."""
    values = [row[y] for row in rows]
    ends = [
        [max(0, row[y] - row[f"{y}_low"]) for row in rows],
        [max(0, row[f"{y}_high"] - row[y]) for row in rows],
    ]
    axes.errorbar([row[x] for row in rows], values, ends, capsize=2, label=label, **look)


def guest_locks(data):
    """A line for each lock. What is not clean is crossed out."""
    rows = data["rows"]
    if not rows:
        return None
    pyplot = plots()
    figure, axes = pyplot.subplots(figsize=(7, 4))
    for turn, name in enumerate(dict.fromkeys(row["lock"] for row in rows)):
        line_with_ranges(axes, [row for row in rows if row["lock"] == name], "vcpus", "per_second", name, style(turn))
    for state in ("contaminated", "incomplete"):
        own = [row for row in rows if row["state"] == state]
        if own:
            look = {"color": GREY, "marker": "x" if state == "contaminated" else "+", "markersize": 9, "zorder": 3}
            places, rates = [row["vcpus"] for row in own], [row["per_second"] for row in own]
            axes.plot(places, rates, linestyle="", label=state, **look)
    powers_of_two(axes, sorted({row["vcpus"] for row in rows}))
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel(f"vCPUs over {data['host_cpus']} CPUs")
    axes.set_ylabel("operations a second")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    figure.tight_layout()
    return figure


def locks_over_threads(data):
    rows = [row for row in data["rows"] if row["state"] == "clean"]
    if not rows:
        return None
    loads = list(dict.fromkeys((row.get("inside_ns"), row.get("outside_ns")) for row in rows))
    names = list(dict.fromkeys(row["lock"] for row in rows))
    threads = sorted({row["threads"] for row in rows})
    pyplot = plots()
    figure, grid = pyplot.subplots(len(loads), 2, figsize=(9, 0.7 + 3.2 * len(loads)), squeeze=False, sharex=True)
    for (inside, outside), (speed, fairness) in zip(loads, grid):
        for turn, name in enumerate(names):
            own = [
                row
                for row in rows
                if row["lock"] == name and (row.get("inside_ns"), row.get("outside_ns")) == (inside, outside)
            ]
            own.sort(key=lambda row: row["threads"])
            look = style(turn)
            line_with_ranges(speed, own, "threads", "mops", name, look)
            fair = [row for row in own if row.get("jain") is not None]
            fairness.plot([row["threads"] for row in fair], [row["jain"] for row in fair], **look)
        load = "" if inside is None else f", {inside:g} ns inside, {outside:g} ns outside"
        speed.set_title("throughput" + load, loc="left")
        fairness.set_title("fairness" + load, loc="left")
        speed.set_ylabel("million acquisitions a second")
        fairness.set_ylabel("Jain's index (1: all alike)")
        speed.set_ylim(bottom=0)
        fairness.set_ylim(0, 1.05)
        for axes in (speed, fairness):
            powers_of_two(axes, threads)
    for axes in grid[-1]:
        axes.set_xlabel("threads")
    figure.tight_layout()
    figure.legend(
        *grid[0][0].get_legend_handles_labels(), loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=min(4, len(names))
    )
    return figure


PRUNE = re.compile(r"prune, a vCPU of (?P<cpus>\d+) (?P<layout>dense|64 KiB apart), (?P<state>.*?)(?P<cold>, cold)?")


def pruning_over_n(data):
    """A panel for each state of the vCPUs: ns per vCPU, for each way, layout and warmth."""
    found = [(PRUNE.fullmatch(row["name"]), row) for row in data["rows"] if row["state"] == "clean"]
    found = [(match, row) for match, row in found if match]
    if not found:
        return None
    # 0 %, 50 %, 100 % preempted, then the rest.
    states = sorted({match["state"] for match, _ in found}, key=lambda s: (not s.endswith("preempted"), len(s), s))
    sizes = sorted({int(match["cpus"]) for match, _ in found})
    pyplot = plots()
    lines = -(-len(states) // 2)
    figure, grid = pyplot.subplots(
        lines, min(2, len(states)), figsize=(9, 0.7 + 2.8 * lines), squeeze=False, sharex=True, sharey=True
    )
    for axes in grid.flat[len(states) :]:
        axes.set_visible(False)
    labels = {}
    for state, axes in zip(states, grid.flat):
        series = {}
        for match, row in found:
            if match["state"] == state:
                for turn, end in enumerate("ab"):
                    kind = (match["layout"] != "dense", bool(match["cold"]), turn)
                    points = series.setdefault(kind, (f"{row[end]}, {match['layout']}{match['cold'] or ''}", []))[1]
                    points.append((int(match["cpus"]), row[f"ns_{end}"]))
        for (apart, cold, turn), (label, points) in sorted(series.items()):
            labels[label] = axes.plot(
                *zip(*sorted(points)),
                color=COLOURS[turn],
                marker="s" if apart else "o",
                markersize=4.5,
                linewidth=1.3,
                linestyle="--" if cold else "-",
                markerfacecolor="white" if cold else COLOURS[turn],
            )[0]
        axes.set_title(state, loc="left")
        powers_of_two(axes, sizes)
        axes.xaxis.set_tick_params(labelbottom=True)
    values = [row[f"ns_{end}"] for _, row in found for end in "ab"]
    ticks = [t for t in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500) if min(values) / 2 < t < max(values) * 2]
    grid[0][0].set_yscale("log")  # of all
    grid[0][0].set_yticks(ticks, [f"{t:g}" for t in ticks])
    grid[0][0].minorticks_off()
    for axes in grid[:, 0]:
        axes.set_ylabel("ns for each vCPU")
    for axes in grid[-1]:
        axes.set_xlabel("vCPUs in the mask")
    figure.tight_layout()
    figure.legend(labels.values(), labels.keys(), loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=4)
    return figure


def duration(us):
    for unit, size in (("s", 1e6), ("ms", 1e3), ("us", 1)):
        if us >= size:
            return f"{us / size:.3g} {unit}"
    return f"{1000 * us:.3g} ns"


def decades(axes, low, high, text):
    """A logarithmic scale from low to high, with a tick for every second power of ten in it."""
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    ticks = [10.0**n for n in range(-4, 14, 2) if low <= 10.0**n <= high]
    axes.set_xticks(ticks, [text(tick) for tick in ticks])
    axes.minorticks_off()


def shootdowns(data):
    """For each workload, by mode: latency from the median to the 99th percentile, and throughput."""
    rows = data["rows"]
    if not rows:
        return None
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    modes = list(dict.fromkeys(row["mode"] for row in rows))
    pyplot = plots()
    figure, grid = pyplot.subplots(
        len(workloads), 2, figsize=(9, 0.7 + len(workloads) * (0.8 + 0.34 * len(modes))), squeeze=False, sharex="col"
    )
    for workload, (latency, speed) in zip(workloads, grid):
        for row in rows:
            if row["workload"] != workload:
                continue
            place = modes.index(row["mode"])
            colour = COLOURS[place % len(COLOURS)] if row["state"] == "clean" else GREY
            latency.plot([row["median_us"], row["p99_us"]], [place, place], color=colour, linewidth=1.3)
            latency.plot(row["median_us"], place, "o", color=colour, markersize=6)
            latency.plot(row["p99_us"], place, "|", color=colour, markersize=11, markeredgewidth=2)
            text = f"{duration(row['median_us'])}, {duration(row['p99_us'])}"
            latency.annotate(text, (row["p99_us"], place), (8, 0), textcoords="offset points", va="center")
            speed.plot(row["per_second"], place, "o", color=colour, markersize=6)
            text = f"{row['per_second']:,.0f}"
            if "to_off" in row and row["mode"] != "off":
                text += f": off x {row['to_off']:,.3g}" if row["to_off"] < 1000 else f": off x {row['to_off']:,.0f}"
            if row["state"] != "clean":
                text += f", {row['state']}"
            speed.annotate(text, (row["per_second"], place), (8, 0), textcoords="offset points", va="center")
            if row["mode"] == "off":
                speed.axvline(row["per_second"], color=colour, linewidth=0.8, linestyle=":")
        latency.set_title(f"{workload}: a shootdown takes", loc="left")
        speed.set_title(f"{workload}: shootdowns a second", loc="left")
        for axes in (latency, speed):
            axes.set_yticks(range(len(modes)), modes)
            axes.set_ylim(len(modes) - 0.4, -0.6)
            axes.grid(False, axis="y")
            axes.xaxis.set_tick_params(labelbottom=True)
        # On the right: room for the figures.
        decades(latency, min(row["median_us"] for row in rows) / 2, max(row["p99_us"] for row in rows) * 1000, duration)
        rates = [row["per_second"] for row in rows]
        decades(speed, min(rates) / 2, max(rates) * 2000, "{:,.0f}".format)
    grid[-1][0].set_xlabel("dot: median; bar: 99th percentile")
    for axes in grid[:, 0]:
        axes.set_ylabel("left out")
    figure.tight_layout()
    return figure


def paired_ratios(data):
    """A forest plot: the estimate, its interval (thick), the same widened by the A/A error (thin). Without the many rows
    of pruning_over_n()."""
    rows = [row for row in data["rows"] if not PRUNE.fullmatch(row["name"])]
    if not rows:
        return None
    pyplot = plots()
    figure, axes = pyplot.subplots(figsize=(8, 1.2 + 0.34 * len(rows)))
    for place, row in enumerate(rows):
        error = row.get("aa_error", data["aa_error"])
        dirty = row["state"] != "clean"
        colour = GREY if dirty else COLOURS[0] if not row["flagged"] else COLOURS[4] if row["ratio"] > 1 else COLOURS[2]
        axes.plot([row["low"] * (1 - error), row["high"] * (1 + error)], [place, place], color=colour, linewidth=1)
        axes.plot([row["low"], row["high"]], [place, place], color=colour, linewidth=3.5, solid_capstyle="butt")
        axes.plot(row["ratio"], place, "x" if dirty else "o", color=colour, markersize=5.5)
        text = f"{ratio(row['ratio'])}  [{ratio(row['low'])}, {ratio(row['high'])}]"
        axes.annotate(
            text, (1.01, place), xycoords=("axes fraction", "data"), va="center", color=GREY if dirty else "black"
        )
    axes.set_yticks(range(len(rows)), [f"{row['name']}: {row['a']} / {row['b']}" for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(False, axis="y")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log", base=2)
    low = min(0.9, *(row["low"] for row in rows))
    high = max(1.11, *(row["high"] for row in rows))
    low, high = low * (low / high) ** 0.04, high * (high / low) ** 0.04
    axes.set_xlim(low, high)
    near, far = (0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.4, 1.6, 2), (
        0.01,
        0.02,
        0.05,
        0.1,
        0.2,
        0.5,
        1,
        2,
        5,
        10,
        20,
        50,
        100,
    )
    ticks = [tick for tick in (near if high / low < 3 else far) if low <= tick <= high]
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.minorticks_off()
    axes.set_xlabel("time of a / time of b   (thick: interval; thin: widened by the A/A error)")
    handles = [
        pyplot.Line2D([], [], color=colour, marker=marker, linewidth=3, markersize=5.5, label=label)
        for colour, marker, label in (
            (COLOURS[2], "o", "a faster"),
            (COLOURS[0], "o", "same"),
            (COLOURS[4], "o", "a slower"),
            (GREY, "x", "contaminated"),
        )
    ]
    axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=4, borderaxespad=0.2)
    return figure
