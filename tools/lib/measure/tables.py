# SPDX-License-Identifier: MIT
"""A table, as plain text and as Markdown. Columns of numbers stand right."""

from dataclasses import dataclass, field


@dataclass
class Table:
    columns: list
    rows: list = field(default_factory=list)  # of lists of str
    title: str = ""

    def add(self, *cells):
        self.rows.append([str(cell) for cell in cells])

    def _is_number(self, column):
        cells = [row[column] for row in self.rows if row[column]]
        return bool(cells) and all(cell[0].isdigit() or cell[0] in "+-" for cell in cells)

    def _right(self):
        return [self._is_number(i) for i in range(len(self.columns))]

    def text(self):
        widths = [max(len(row[i]) for row in [self.columns, *self.rows]) for i in range(len(self.columns))]
        right = self._right()
        lines = [
            "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right)).rstrip()
            for row in [self.columns, *self.rows]
        ]
        return "\n".join([self.title] * bool(self.title) + lines) + "\n"

    def markdown(self):
        def line(cells):
            return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

        rule = "|" + "|".join("--:" if r else "---" for r in self._right()) + "|"
        head = f"{self.title}\n\n" if self.title else ""
        return head + "\n".join([line(self.columns), rule, *map(line, self.rows)]) + "\n"


def number(value, digits=3):
    """At least so many significant digits, never an exponent; nothing for what was not measured."""
    if value is None:
        return ""
    if isinstance(value, int):
        return str(value)
    decimals = 0
    while decimals < 6 and abs(value) * 10**decimals < 10 ** (digits - 1):
        decimals += 1
    return f"{value:.{decimals}f}"


def ratio(value):
    return number(float(value), 4)


def percent(share, decimals=0):
    return "" if share is None else f"{100 * share:.{decimals}f} %"
