"""Tables for people: what a value holds does not act on the terminal, and a narrow one shows all of it."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest

from txstream.cli.context import Cli
from txstream.cli.tables import quoted


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def plain(text: str) -> str:
    """What a terminal shows of it: without the codes of bold headings."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> Any:
    def printed(columns: list[str], rows: list[list[object]], width: int | None = None) -> str:
        output = io.StringIO() if width is None else Terminal()
        monkeypatch.setattr("sys.stdout", output)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", str(width or 40))
        Cli().print_table(columns, rows)
        return plain(output.getvalue())

    return printed


WIDE = [f"column_{number}" for number in range(12)]
ROWS: list[list[object]] = [[f"value {number} of {row}" for number in range(12)] for row in range(2)]


def test_what_would_act_on_the_terminal_is_escaped(printed: Any) -> None:
    text = printed(["word"], [["red\x1b[31m\u202e\x9bx\nnext"]])
    assert r"red\u001b[31m\u202e\u009bx\nnext" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("text", ["", " ", " a", "a ", "-", '"a"', "a\tb", "a\nb", "\u00a0", "\x1b[0m"])
def test_text_that_would_not_be_seen_is_a_json_string(text: str) -> None:
    shown = str(quoted(text))
    assert shown.startswith('"')
    assert shown.isprintable()
    assert json.loads(shown) == text


@pytest.mark.parametrize(
    "value", ["a", "a b", "it's", 'say "a"', "[bold]", "\U0001d552 \U0001f389", "-7", 7, None, True]
)
def test_everything_else_stays_as_it_is(value: object) -> None:
    assert quoted(value) is value


def test_piped_nothing_is_cut_or_folded(printed: Any) -> None:
    lines = printed(WIDE, ROWS).splitlines()
    for row in ROWS:
        assert any(all(str(value) in line for value in row) for line in lines)


def test_a_terminal_too_narrow_for_the_table_has_a_line_for_each_value(printed: Any) -> None:
    lines = printed(["id", ">n", *WIDE], [["a", 1000, *ROWS[0]], ["b", None, *ROWS[1]]], 60).splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["id", "a"],
        ["n", "1,000"],
        ["column_0", "value", "0", "of", "0"],
    ]
    assert lines.count("") == 1, "between the rows"
    assert [line.split(maxsplit=1) for line in lines][15:17] == [["id", "b"], ["n", "-"]]
    assert all(len(line) <= 60 for line in lines)


def test_a_table_that_fits_when_text_is_folded_stays_a_table(printed: Any) -> None:
    text = printed(
        [">txid", "status", "ranges"], [[1, "committed", "lines/0 0-250, lines/1 0-250, lines/2 0-250"]], 50
    )
    assert "─" in text
    assert any(line.split()[:2] == ["1", "committed"] for line in text.splitlines())


def test_what_needs_no_folding_is_printed_line_by_line(printed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger may have a hundred thousand rows: rich would take minutes for them."""
    monkeypatch.setattr("rich.table.Table", None)
    rows: list[list[object]] = [[number, "committed", "lines/0 0-250"] for number in range(1000)]
    for width in (None, 80):
        assert len(printed([">txid", "status", "ranges"], rows, width).splitlines()) == 1000 + 4


def test_wide_characters_keep_the_columns_straight(printed: Any) -> None:
    lines = printed(["word", ">n"], [["\u4e2d\u6587", 1], ["abcd", 22]]).splitlines()
    assert lines[3:5] == [" \u4e2d\u6587    1", " abcd   22"]
