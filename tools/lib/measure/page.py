# SPDX-License-Identifier: MIT
"""The published page, made of nothing but the results."""

from measure import pictures
from measure.results import to_text, write_whole

HEAD = """\
# Measured performance

Made by `tools/measure --{mode} --publish`; do not edit. The figures are in [results.json](results.json), and
`tools/measure compare docs/performance/results.json NEW.json` says what another run on the same machine makes different.
"""


def of(results, sections, drawn):
    """The page; `drawn` holds the names of the pictures that there are."""
    parts = [HEAD.format(mode=results["mode"])]
    rows = {"date": results["date"], "revision": results["revision"], **results["fingerprint"]}
    parts.append(
        "\n".join(
            ["| measured on | |", "|---|---|", *(f"| {key} | {value or 'unknown'} |" for key, value in rows.items())]
        )
        + "\n"
    )
    for section in sections:
        if section.name not in results["sections"]:
            continue
        measured = results["sections"][section.name]
        data = measured["data"]
        parts.append(f"## {section.title}\n\n{section.about}\n")
        own = {key: data[key] for key in ("compiler", "flags") if key in data}
        own.update(
            {
                key: value
                for key, value in data.get("fingerprint", {}).items()
                if value and results["fingerprint"].get(key) != value
            }
        )
        if own:
            parts.append("\n".join(f"- {key}: `{value}`" for key, value in own.items()) + "\n")
        parts.append("```\n" + "\n".join(measured["commands"]) + "\n```\n")
        parts += [
            f"![{section.title}: {shows}]({name})\n" for name, (_, shows) in section.pictures.items() if name in drawn
        ]
        parts += [table.markdown() for table in section.tables(data)]
    if results["absent"]:
        parts.append(
            "## Not measured\n\n" + "\n".join(f"- {name}: {why}" for name, why in results["absent"].items()) + "\n"
        )
    return "\n".join(parts)


def draw(results, sections):
    """All pictures, as name: SVG."""
    drawn = {}
    for section in sections:
        if section.name in results["sections"]:
            for name, (picture, _) in section.pictures.items():
                figure = picture(results["sections"][section.name]["data"])
                if figure is not None:
                    drawn[name] = pictures.to_svg(figure)
    return drawn


def publish(results, sections, folder):
    """Writes results.json, the pictures and README.md; returns their names."""
    # All of it first: a picture that cannot be drawn leaves the folder as it was.
    files = draw(results, sections)
    files["README.md"] = of(results, sections, files)
    files["results.json"] = to_text(results)
    for name, text in files.items():
        write_whole(f"{folder}/{name}", text)
    return sorted(files)
