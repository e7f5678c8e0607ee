"""Every txstream name in the tables of docs/comparisons.md is public, and every command exists."""

from __future__ import annotations

import re

from support.guide import DOCS
from support.lists import each

import public_api
from txstream.cli.main import parser

TEXT = (DOCS / "comparisons.md").read_text(encoding="utf-8").partition("\n## Structured Streaming\n")[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in TEXT.splitlines()
    if line.startswith("| ") and "| txstream |" not in line
]
OURS = sorted({name for row in ROWS for name in re.findall(r"`([^`]+)`", row[1])})
PUBLIC = set(re.findall(r"\w+", "\n".join(public_api.lines())))
NOT_NAMES = {"prev_"}  # how columns begin


@each("shown", OURS)
def test_a_name_of_ours_exists(shown: str) -> None:
    if shown.startswith("txstream "):
        assert shown.split()[1] in parser().commands
    else:
        assert set(re.findall(r"\w+", shown.partition("=")[0])) <= PUBLIC | NOT_NAMES


def test_the_guide_says_what_we_have_not() -> None:
    assert len(ROWS) > 40
    theirs = " ".join(row[0] for row in ROWS if row[1] == "none")
    for word in ("session_window", "SessionWindows", "join", "punctuators"):
        assert word in theirs
    assert [row for row in ROWS if len(row) not in (2, 3) or not row[1]] == []
