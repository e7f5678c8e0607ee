"""Tables for people.

Invariants: what a value holds never acts on the terminal; nothing is cut; a table that a terminal has no room
for is printed as a line for each value.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_FOLDED_TO = 16  # text is not folded to less than this
_BETWEEN = "   "


def shown(value: object) -> str:
    """A value as people read it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def counted(number: int, noun: str) -> str:
    """`1 record`, `2,000 records`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def escaped(text: str) -> str:
    """Text in which everything that a terminal would act on or not show is written as JSON writes it."""
    return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in text)


def quoted(value: object) -> object:
    """Text that would not be seen as it is (empty, blanks at its ends, line breaks, control characters, or
    what stands for null here) as a JSON string; any other value as it is."""
    if not isinstance(value, str):
        return value
    if value.isprintable() and value == value.strip() and value not in ("", "-") and value[0] != '"':
        return value
    return escaped(json.dumps(value, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> None:
    """Columns that begin with `>` are aligned right, and never folded."""
    from rich.cells import cell_len
    from rich.console import Console

    cells = [[escaped(shown(value)) for value in row] for row in rows]
    names = [column.lstrip(">") for column in columns]
    numbers = [column.startswith(">") for column in columns]
    widths = [max(map(cell_len, column)) for column in zip(names, *cells, strict=True)]
    least = [w if number else min(w, _FOLDED_TO) for w, number in zip(widths, numbers, strict=True)]
    console = Console(highlight=False)
    if not console.is_terminal or _needs(widths) <= console.width:
        _print_columns(names, numbers, widths, cells, title)
    elif _needs(least) <= console.width:
        _print_folded(console, names, numbers, least, cells, title)
    else:
        _print_lines(names, cells, title)


def _needs(widths: Sequence[int]) -> int:
    return 2 + sum(widths) + len(_BETWEEN) * (len(widths) - 1)


def _print_columns(
    names: Sequence[str],
    numbers: Sequence[bool],
    widths: Sequence[int],
    cells: Sequence[Sequence[str]],
    title: str,
) -> None:
    """Line by line: a ledger may have a hundred thousand rows."""
    from rich.cells import cell_len

    def line(row: Sequence[str]) -> str:
        padded = [
            " " * (width - cell_len(cell)) + cell if number else cell + " " * (width - cell_len(cell))
            for cell, number, width in zip(row, numbers, widths, strict=True)
        ]
        return f" {_BETWEEN.join(padded)}".rstrip()

    rule = f" {'─' * (_needs(widths) - 2)}"
    lines = [*([title] if title else []), "", line(names), rule, *map(line, cells), ""]
    sys.stdout.writelines(f"{one}\n" for one in lines)
    sys.stdout.flush()


def _print_folded(
    console: Console,
    names: Sequence[str],
    numbers: Sequence[bool],
    least: Sequence[int],
    cells: Sequence[Sequence[str]],
    title: str,
) -> None:
    """In a terminal that has room for it when longer text is folded."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for name, is_number, width in zip(names, numbers, least, strict=True):
        table.add_column(
            Text(name), justify="right" if is_number else "left", overflow="fold", min_width=width
        )
    for row in cells:
        table.add_row(*map(Text, row))
    console.print(table)


def _print_lines(names: Sequence[str], cells: Sequence[Sequence[str]], title: str) -> None:
    if title:
        sys.stdout.write(f"{title}\n")
    widest = max(map(len, names))
    for number, row in enumerate(cells):
        if number:
            sys.stdout.write("\n")
        for name, cell in zip(names, row, strict=True):
            sys.stdout.write(f"{name:<{widest}}  {cell}\n")
    sys.stdout.flush()
