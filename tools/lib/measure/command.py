# SPDX-License-Identifier: MIT
"""The command line of tools/measure."""

import argparse
import datetime
import os
import sys
import time

from measure import comparison, page, results, runner
from measure.comparison import FLAGGED, SAME, UNSURE
from measure.errors import EXIT_FLAGGED, DataError, Failure, Interrupted, Missing, UsageError
from measure.sections import SECTIONS
from measure.tables import Table

USAGE = """\
Usage: tools/measure [--quick | --full] [--only SECTION,...] [--output FILE] [--compare OLD.json] [--publish] [--yes]
       tools/measure compare OLD.json NEW.json
       tools/measure publish RESULTS.json

Builds the benchmarks (Release, in build/measure), runs them, prints their tables, and keeps all figures in one file.

  --quick          under five minutes (default)
  --full           under forty: figures to publish
  --only S,...     just these sections; those there are:
{sections}
  --output FILE    where the figures go; default: build/measure/results.json. In a folder that exists: results.json there
  --compare OLD    then compare with an earlier run
  --publish        then write docs/performance: the page, its pictures, the figures
  --yes            install missing Debian packages without asking; so it does where there is no terminal to ask on

compare says which figures differ: ratios and rates where the two intervals, each widened by its A/A error, do not
overlap; exact counts at all; exit costs by more than 0.2 %. A row that is contaminated or incomplete in either file is
named and not judged. publish writes docs/performance from a file.

Leave the machine alone meanwhile: a row that others disturbed is marked, and worth nothing. What a section's programs
print is in build/measure/PROGRAM.log and .out. What a section lacks is no error, unless --only asked for it.

CXX names the compiler; default c++.

Exit codes:
  0    done; nothing differs
  1    the comparison found differences
  64   a bad option
  65   a file is broken, or two files cannot be compared: another machine, compiler, flags, or schema
  69   something is missing: a program, a package, a section that --only names
  70   something failed: a build, a benchmark; what was measured is in the file all the same
  129 130 143   hang-up, Ctrl-C, SIGTERM; nothing is written then
"""


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise UsageError(f"{message}\n    tools/measure --help")


def in_a_sentence(title):
    """Without its capital, unless that belongs to an abbreviation."""
    return title if title[:2].isupper() else title[0].lower() + title[1:]


def usage(sections):
    width = max(len(s.name) for s in sections)
    return USAGE.format(
        sections="\n".join(
            f"                     {s.name:<{width}} {in_a_sentence(s.title)}, by {s.target}" for s in sections
        )
    )


def parse(arguments, sections):
    parser = Parser(prog="tools/measure", add_help=False, allow_abbrev=False)
    if arguments[:1] in (["compare"], ["publish"]):
        parser.add_argument("action")
        parser.add_argument("old" if arguments[0] == "compare" else "file")
        if arguments[0] == "compare":
            parser.add_argument("new")
        else:
            parser.add_argument("--yes", "-y", action="store_true")
        return parser.parse_args(arguments)
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--quick", dest="mode", action="store_const", const="quick", default="quick")
    modes.add_argument("--full", dest="mode", action="store_const", const="full")
    parser.add_argument("--only", default="")
    parser.add_argument("--output", default="")
    parser.add_argument("--compare")
    parser.add_argument("--publish", action="store_true")
    parser.add_argument("--yes", "-y", action="store_true")
    options = parser.parse_args(arguments)
    options.action = "run"
    options.only = [name for name in options.only.split(",") if name]
    for name in options.only:
        if name not in {section.name for section in sections}:
            parser.error(f"--only: no section {name}; there are {', '.join(s.name for s in sections)}")
    return options


# --- running ----------------------------------------------------------------------------------------------------------


def print_tables(measured, sections):
    for section in sections:
        if section.name in measured["sections"]:
            print(f"\n=== {section.title}\n")
            print("\n".join(table.text() for table in section.tables(measured["sections"][section.name]["data"])))
    for name, why in measured["absent"].items():
        print(f"absent: {name}: {why}")


def run_section(section, machine, mode):
    """Its entry in the results. Data that its own tables cannot show are a failure of the section."""
    machine.commands = []
    start = time.monotonic()
    try:
        data = section.run(machine, mode)
        section.tables(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Failure(
            f"{section.target} wrote figures in another form than expected: {type(error).__name__} {error}"
        ) from error
    return {"commands": machine.commands, "seconds": round(time.monotonic() - start, 1), "data": data}


def run(options, sections, machine):
    """Measures; returns the results and the exit code."""
    runner.configure(machine)
    measured = {
        "schema": results.SCHEMA,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "revision": runner.revision(machine.root),
        "mode": options.mode,
        "fingerprint": runner.fingerprint(machine),
        "sections": {},
        "absent": {},
    }
    code = 0
    for section in sections:
        if options.only and section.name not in options.only:
            measured["absent"][section.name] = "not asked for"
            continue
        try:
            measured["sections"][section.name] = run_section(section, machine, options.mode)
        except Failure as error:
            measured["absent"][section.name] = str(error)
            machine.say(f"{section.name}: {error}")
            if options.only or not isinstance(error, Missing):
                code = max(code, error.code)
    return measured, code


# --- comparing --------------------------------------------------------------------------------------------------------


def judge(old, new, old_name, new_name, sections):
    """Prints what differs; returns whether anything does."""
    try:
        findings = comparison.compare(old, new, sections, old_name, new_name)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{old_name} or {new_name}: a section lacks {error}") from error
    by_verdict = {verdict: [f for f in findings if f.verdict == verdict] for verdict in (SAME, FLAGGED, UNSURE)}
    for verdict, title in ((FLAGGED, "differs:"), (UNSURE, "not compared:")):
        if by_verdict[verdict]:
            table = Table(["section", "row", "old", "new", "change" if verdict == FLAGGED else "why"], title=title)
            for f in by_verdict[verdict]:
                table.add(f.section, f.row, f.old, f.new, f.why)
            print(table.text())
    print(
        f"{len(by_verdict[SAME])} the same, {len(by_verdict[FLAGGED])} differ, {len(by_verdict[UNSURE])} not compared"
    )
    return bool(by_verdict[FLAGGED])


def publish(measured, name, sections, root):
    folder = os.path.join(root, "docs", "performance")
    try:
        files = page.publish(measured, sections, folder)
    except ImportError as error:
        raise Missing(
            f"no matplotlib for {sys.executable}: apt-get install -y --no-install-recommends python3-matplotlib"
        ) from error
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{name}: a section lacks {error}") from error
    print(f"measure: wrote {', '.join(files)} in {os.path.relpath(folder, root)}", file=sys.stderr)


# --- all together -----------------------------------------------------------------------------------------------------


def act(options, sections, root):
    if options.action == "compare":
        both = results.load(options.old), results.load(options.new)
        return EXIT_FLAGGED if judge(*both, options.old, options.new, sections) else 0
    if options.action == "publish":
        publish(results.load(options.file), options.file, sections, root)
        return 0
    # Before the run: an hour later is too late to learn that it is broken, and --publish may replace it.
    old = results.load(options.compare) if options.compare else None
    machine = runner.Runner(root, os.path.join(root, "build", "measure"))
    with runner.only_one(machine):
        measured, code = run(options, sections, machine)
    output = options.output or os.path.relpath(os.path.join(machine.build, "results.json"))
    if os.path.isdir(output):
        output = os.path.join(output, "results.json")
    results.write_whole(output, results.to_text(measured))
    print_tables(measured, sections)
    machine.say(f"wrote {output}")
    if options.publish:
        publish(measured, output, sections, root)
    if options.compare and judge(old, measured, options.compare, output, sections):
        code = code or EXIT_FLAGGED
    return code


def main(
    arguments, sections=SECTIONS, root=os.path.realpath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
):
    if "--help" in arguments or "-h" in arguments:
        print(usage(sections), end="")
        return 0
    try:
        runner.catch_signals()
        return act(parse(arguments, sections), sections, root)
    except Failure as error:
        print(f"measure: error: {error}", file=sys.stderr)
        return error.code
    except Interrupted as error:
        print("measure: interrupted; nothing was written", file=sys.stderr)
        return error.code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
