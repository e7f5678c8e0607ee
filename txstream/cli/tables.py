"""Prints tables as text.

Invariants: a value never acts on the terminal. Piped output is complete. On a terminal a row is one line:
columns may be left out and long text is cut, but numbers never are. A terminal too narrow even for that gets
a line for each value, in full.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from txstream.core.wording import shown

_LEAST_TEXT = 20  # text is never cut to less than this, so a time is always complete
_BETWEEN = "   "
_NAME_WIDTH = 10
_TIME = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:)")


def escaped(text: str) -> str:
    """Return text with every character that a terminal would act on, or not show, escaped as in JSON."""
    return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in text)


def quoted(value: object) -> object:
    """Return text that would not be seen as it is (empty, blanks at its ends, line breaks, control
    characters, or what stands for null here) as a JSON string; any other value unchanged."""
    if not isinstance(value, str):
        return value
    if value.isprintable() and value == value.strip() and value not in ("", "-") and value[0] != '"':
        return value
    return escaped(json.dumps(value, ensure_ascii=False))


def print_pairs(pairs: Mapping[str, str | None]) -> None:
    """Print names and values, one pair below the other, wrapped to the width of a terminal."""
    for name, value in pairs.items():
        lines = [shown(value)]
        if sys.stdout.isatty():
            room = max(shutil.get_terminal_size().columns - _NAME_WIDTH - 1, _LEAST_TEXT)
            together = _TIME.sub("\\1\N{NO-BREAK SPACE}\\2", shown(value))
            wrapped = textwrap.wrap(together, room, break_long_words=False, break_on_hyphens=False)
            lines = [line.replace("\N{NO-BREAK SPACE}", " ") for line in wrapped]
        sys.stdout.writelines(
            f"{'' if number else name:<{_NAME_WIDTH}} {line}\n" for number, line in enumerate(lines or [""])
        )
    sys.stdout.flush()


@dataclass(slots=True, eq=False)
class _Column:
    """Texts below a name. The column is `width` wide and may be narrowed to `least`."""

    name: str
    cells: list[str]
    is_number: bool
    is_optional: bool
    width: int
    least: int

    def fitted(self) -> Iterator[str]:
        from rich.cells import cell_len, set_cell_size

        for cell in (self.name, *self.cells):
            room = self.width - cell_len(cell)
            if room < 0:
                yield f"{set_cell_size(cell, self.width - 1)}…"
            else:
                yield f"{' ' * room}{cell}" if self.is_number else f"{cell}{' ' * room}"


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, whole: bool = False) -> None:
    """Print a table on standard output. Columns that begin with `>` are numbers, aligned right. If there is
    no room, those that begin with `?` are left out, the last first; then long text is cut, unless `whole`."""
    made = [
        _column(name, [escaped(shown(row[at])) for row in rows], whole=whole)
        for at, name in enumerate(columns)
    ]
    kept = _fitting(made, shutil.get_terminal_size().columns) if sys.stdout.isatty() else made
    if kept:
        # Made line by line: a ledger may have a hundred thousand rows.
        names, *lines = (
            f" {_BETWEEN.join(row)}".rstrip() for row in zip(*(one.fitted() for one in kept), strict=True)
        )
        rule = f" {'─' * (_needs(one.width for one in kept) - 1)}"
        lines = ["", names, rule, *lines, ""]
    else:
        widest = max(len(one.name) for one in made)
        lines = []
        for row in zip(*(one.cells for one in made), strict=True):
            lines += [f"{one.name:<{widest}}  {cell}" for one, cell in zip(made, row, strict=True)]
            lines.append("")
        lines.pop()
    sys.stdout.writelines(f"{one}\n" for one in lines)
    sys.stdout.flush()


def _column(name: str, cells: list[str], *, whole: bool) -> _Column:
    from rich.cells import cell_len

    is_optional = name.startswith("?")
    name = name.removeprefix("?")
    is_number = name.startswith(">")
    name = name.removeprefix(">")
    width = max(map(cell_len, (name, *cells)))
    return _Column(
        name, cells, is_number, is_optional, width, width if whole or is_number else min(width, _LEAST_TEXT)
    )


def _fitting(columns: Sequence[_Column], room: int) -> list[_Column]:
    """Return the columns that fit, narrowed as needed; none if not even the narrowest row fits."""
    kept = list(columns)
    for column in reversed([one for one in columns if one.is_optional]):
        if _needs(one.least if one.is_optional else one.width for one in kept) > room:
            kept.remove(column)
    if _needs(one.least for one in kept) > room:
        return []
    for one in kept:
        one.width = min(one.width, max(one.least, room))
    while _needs(one.width for one in kept) > room:
        max((one for one in kept if one.width > one.least), key=lambda one: one.width).width -= 1
    return kept


def _needs(widths: Iterable[int]) -> int:
    return 1 + sum(len(_BETWEEN) + width for width in widths) - len(_BETWEEN)
