"""Tables for people: a value cannot control the terminal, and a narrow terminal shows all of it."""

from __future__ import annotations

import io
import json
import re
import sys
from typing import Any

import pytest
from rich.cells import cell_len
from support.lists import each

from txstream.cli.context import Cli
from txstream.cli.tables import quoted


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> Any:
    def printed(columns: list[str], rows: list[list[object]], width: int | None = None, **how: Any) -> str:
        output = io.StringIO() if width is None else Terminal()
        monkeypatch.setattr("sys.stdout", output)
        monkeypatch.setenv("COLUMNS", str(width or 40))
        Cli().print_table(columns, rows, **how)
        return output.getvalue()

    return printed


WIDE = [f"column_{number}" for number in range(12)]
ROWS: list[list[object]] = [[f"value {number} of {row}" for number in range(12)] for row in range(2)]


def test_what_would_act_on_the_terminal_is_escaped(printed: Any) -> None:
    text = printed(["word"], [["red\x1b[31m\u202e\x9bx\nnext"]])
    assert r"red\u001b[31m\u202e\u009bx\nnext" in text
    assert "\x1b" not in text


@each("text", ["", " ", " a", "a ", "-", '"a"', "a\tb", "a\nb", "\u00a0", "\x1b[0m"])
def test_text_that_would_not_be_seen_is_a_json_string(text: str) -> None:
    shown = str(quoted(text))
    assert shown.startswith('"')
    assert shown.isprintable()
    assert json.loads(shown) == text


@each("value", ["a", "a b", "it's", 'say "a"', "[bold]", "\U0001d552 \U0001f389", "-7", 7, None, True])
def test_everything_else_stays_as_it_is(value: object) -> None:
    assert quoted(value) is value


BATCH = [
    *(7, "committed, 1 failed", 123_456, 98_765, "2026-11-21 19:06:16", "1.2"),
    "lines/0 0-250, lines/1 0-250, lines/2 0-250, lines/3 0-250",
]
BATCHES = [">txid", "status", ">tuples", "?>keys", "?committed at", "?attempt", "?ranges"]


def test_piped_nothing_is_cut_or_left_out(printed: Any) -> None:
    optional = [f"?{name}" for name in WIDE]
    for columns in (WIDE, optional):
        lines = printed(columns, ROWS).splitlines()
        for row in ROWS:
            assert any(all(str(value) in line for value in row) for line in lines)


@pytest.mark.parametrize(
    ("width", "cells"),
    [
        (40, ["7", "committed, 1 failed", "123,456"]),
        (60, ["7", "committed, 1 failed", "123,456", "98,765"]),
        (80, ["7", "committed, 1 failed", "123,456", "98,765", "2026-11-21 19:06:16", "1.2"]),
    ],
)
def test_where_there_is_no_room_the_last_optional_columns_are_left_out(
    printed: Any, width: int, cells: list[str]
) -> None:
    lines = printed(BATCHES, [BATCH], width).splitlines()
    assert len(lines) == 4 + 1, "a blank, names, a rule, the row, a blank"
    assert re.split(" {2,}", lines[3].strip()) == cells
    assert all(len(line) <= width for line in lines)


def test_an_optional_column_is_cut_where_there_is_room_for_a_good_part_of_it(printed: Any) -> None:
    lines = printed(BATCHES, [BATCH], 120).splitlines()
    assert lines[3].endswith("lines/0 0-250, lines/1 0-250, lines/2 …")
    assert max(map(len, lines)) <= 120
    assert printed(BATCHES, [BATCH], 200).splitlines()[3].endswith("lines/3 0-250")


@pytest.mark.parametrize("key", ["k" * 300, "\u4e2d" * 300])
def test_a_long_key_is_cut_and_numbers_never(printed: Any, key: str) -> None:
    lines = printed(["word", ">n"], [[key, 123_456_789], ["a", 1]], 80).splitlines()
    assert lines[3].endswith("…   123,456,789")
    assert lines[4].endswith("             1")
    assert {cell_len(line) for line in lines[3:5]} <= {79, 80}
    assert lines[3].startswith(f" {key[:30]}")


def test_what_is_shown_nowhere_else_is_not_cut(printed: Any) -> None:
    row = ["a-long-topic/0", 1, "n" * 60]
    lines = printed(["partition", ">start", "note"], [row], 80, whole=True).splitlines()
    assert lines == ["partition  a-long-topic/0", "start      1", f"note       {'n' * 60}"]


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


def test_pairs_are_wrapped_on_a_terminal_between_words_and_not_when_piped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    value = "txid 8, committed 2026-11-22 10:14:17, lines/0 1750-2000"
    Cli().print_pairs({"last batch": value, "lag": ""})
    assert capsys.readouterr().out == f"last batch {value}\nlag        \n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "45")
    Cli().print_pairs({"last batch": value})
    assert capsys.readouterr().out.splitlines() == [
        "last batch txid 8, committed",
        "           2026-11-22 10:14:17, lines/0",
        "           1750-2000",
    ]


def test_a_long_table_is_printed_line_by_line(printed: Any) -> None:
    rows: list[list[object]] = [[number, "committed", "lines/0 0-250"] for number in range(1000)]
    for width in (None, 80):
        assert len(printed([">txid", "status", "ranges"], rows, width).splitlines()) == 1000 + 4


def test_wide_characters_keep_the_columns_straight(printed: Any) -> None:
    lines = printed(["word", ">n"], [["\u4e2d\u6587", 1], ["abcd", 22]]).splitlines()
    assert lines[3:5] == [" \u4e2d\u6587    1", " abcd   22"]
