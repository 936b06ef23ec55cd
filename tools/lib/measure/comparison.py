# SPDX-License-Identifier: MIT
"""When two figures differ, and when two runs can be compared at all."""

from dataclasses import dataclass

from measure.errors import DataError
from measure.results import identity

SAME, FLAGGED, UNSURE = "same", "flagged", "not compared"


@dataclass
class Finding:
    """What became of one figure."""

    section: str
    row: str
    old: str
    new: str
    verdict: str  # SAME, FLAGGED or UNSURE
    why: str = ""


def refuse_strangers(old, new, old_name="the old file", new_name="the new one"):
    """Raises unless both runs, and the programs of each section in both, are of one machine, compiler and flags."""
    pairs = [("", old["fingerprint"], new["fingerprint"])]
    for name in old["sections"].keys() & new["sections"].keys():
        pairs.append((f" of {name}", old["sections"][name]["data"], new["sections"][name]["data"]))
    differences = []
    for what, was, now in pairs:
        was, now = identity(was), identity(now)
        for key in sorted(was.keys() | now.keys()):
            if was.get(key) != now.get(key):
                differences.append(
                    f"    {key}{what}: '{was.get(key, 'not said')}' in {old_name}, '{now.get(key, 'not said')}' in {new_name}"
                )
    if differences:
        raise DataError(
            "these two cannot be compared, since they are not of the same machine, compiler and flags:\n"
            + "\n".join(differences)
        )


def by_key(rows, key):
    return {key(row): row for row in rows}


def match(section, old_rows, new_rows, key, judge):
    """Findings of all rows: those in both by judge(old, new) -> list of Findings, others by name."""
    old_rows, new_rows = by_key(old_rows, key), by_key(new_rows, key)
    findings = []
    for name, new in new_rows.items():
        if name in old_rows:
            findings += judge(name, old_rows[name], new)
        else:
            findings.append(Finding(section, name, "", "", UNSURE, "a new row"))
    for name in old_rows:
        if name not in new_rows:
            findings.append(Finding(section, name, "", "", UNSURE, "the row is gone"))
    return findings


def widened(low, high, error):
    return low * (1 - error), high * (1 + error)


def compare_intervals(section, row, old, new, text, states, doubt=""):
    """old, new: (value, low, high, A/A error). They differ where the widened intervals do not overlap. A row whose
    state in either run is not clean, or that is in doubt for another reason, is not judged."""
    shown = text(old), text(new)
    doubts = [f"{state} in the {run} run" for state, run in zip(states, ("old", "new")) if state != "clean"]
    if doubt:
        doubts.append(doubt)
    if doubts:
        return Finding(section, row, *shown, UNSURE, ", ".join(doubts))
    old_low, old_high = widened(*old[1:])
    new_low, new_high = widened(*new[1:])
    if new_low > old_high or new_high < old_low:
        return Finding(section, row, *shown, FLAGGED, f"{100 * (new[0] / old[0] - 1):+.1f} %")
    return Finding(section, row, *shown, SAME)


def compare_exact(section, row, old, new, tolerance=0.0):
    """Two counts: exact, or to a share of the old one."""
    differs = abs(new - old) > tolerance * abs(old)
    change = f"{new - old:+d}" + (f" ({100 * (new / old - 1):+.1f} %)" if old else "")
    return Finding(section, row, str(old), str(new), FLAGGED if differs else SAME, change if differs else "")


def compare(old, new, sections, old_name="the old file", new_name="the new one"):
    """Findings of all sections that are in both."""
    refuse_strangers(old, new, old_name, new_name)
    findings = []
    for section in sections:
        was, now = (results["sections"].get(section.name) for results in (old, new))
        if was and now:
            findings += section.compare(was["data"], now["data"])
        elif was or now:
            findings.append(Finding(section.name, "all", "", "", UNSURE, f"not in {new_name if was else old_name}"))
    return findings
