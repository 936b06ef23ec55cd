# SPDX-License-Identifier: MIT
"""The file of a run: what was measured, on what, by which commands.

    {"schema": 1, "date": ..., "revision": ..., "mode": "quick" or "full", "fingerprint": {...},
     "sections": {NAME: {"commands": [...], "seconds": ..., "data": {...}}},
     "absent": {NAME: why}}

"data" is what the section's program wrote, or for the guest's figures what sections.py makes of its output.
"""

import json
import os
import tempfile

from measure.errors import DataError

SCHEMA = 1

# Two runs that differ in one of these are about different things.
IDENTITY = ("cpu", "cpus", "hypervisor", "compiler", "flags")


def write_whole(path, text):
    """Writes a file or, whatever happens, nothing. A device, a pipe or a symbolic link is written to, not replaced."""
    if os.path.lexists(path) and not (os.path.isfile(path) and not os.path.islink(path)):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return
    directory = os.path.dirname(os.path.abspath(path))
    os.makedirs(directory, exist_ok=True)
    descriptor, partial = tempfile.mkstemp(dir=directory, prefix=".measure-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(partial, 0o644)
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise


def to_text(value):
    """JSON with one row a line, so that a difference between two files reads well."""

    def dump(part, indent):
        nested = isinstance(part, (dict, list)) and any(
            isinstance(v, (dict, list)) for v in (part.values() if isinstance(part, dict) else part)
        )
        if not nested:
            return json.dumps(part, ensure_ascii=False)
        inner = " " * (indent + 1)
        if isinstance(part, dict):
            lines = [f"{inner}{json.dumps(k)}: {dump(v, indent + 1)}" for k, v in part.items()]
            return "{\n" + ",\n".join(lines) + "\n" + " " * indent + "}"
        return "[\n" + ",\n".join(inner + dump(v, indent + 1) for v in part) + "\n" + " " * indent + "]"

    return dump(value, 0) + "\n"


def read_json(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}") from error


def load(path):
    """The results in a file, checked as far as everybody relies on it."""
    results = read_json(path)
    if not isinstance(results, dict) or "schema" not in results:
        raise DataError(f"{path} is not a file of tools/measure: it names no schema")
    if results["schema"] != SCHEMA:
        raise DataError(
            f"{path} has schema {results['schema']}; this tools/measure knows schema {SCHEMA} only: measure again"
        )
    for key in ("fingerprint", "sections", "absent"):
        if not isinstance(results.get(key), dict):
            raise DataError(f"{path} is not a file of tools/measure: it has no '{key}'")
    for key in ("date", "revision", "mode"):
        if not isinstance(results.get(key), str):
            raise DataError(f"{path} is not a file of tools/measure: it has no '{key}'")
    for name, section in results["sections"].items():
        if (
            not isinstance(section, dict)
            or not isinstance(section.get("data"), dict)
            or not isinstance(section.get("commands"), list)
        ):
            raise DataError(f"{path}: section {name} has no 'commands' and 'data'")
    return results


def identity(data):
    """What of a fingerprint must be the same. Programs keep it in "fingerprint" or, with less to say, at the top."""
    fingerprint = data.get("fingerprint", data)
    return {key: fingerprint[key] for key in IDENTITY if key in fingerprint}
