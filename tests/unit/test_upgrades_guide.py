"""The guide to upgrades: its code runs, and its numbers are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from support.guide import DOCS, load
from support.lists import each

from txstream.core.ledger_retention import Keep
from txstream.engine.loop import ledger_pruning as pruning

GUIDE = DOCS / "upgrades.md"


def test_its_code_runs(tmp_path: Path) -> None:
    assert load(GUIDE, tmp_path).after.defaults == {"total": 0}


@each("text", re.findall(r"^\| `([\w,]+)` \|", GUIDE.read_text(encoding="utf-8"), re.M))
def test_its_limits_are_understood(text: str) -> None:
    assert str(Keep.parse(text)) == text


def test_its_numbers_are_those_of_the_code() -> None:
    assert (pruning.FIRST_ROUND_SECONDS, pruning.ROUND_SECONDS, pruning.CHUNK_ROWS) == (5.0, 300.0, 1000)
    assert str(Keep()) == "7d,100000"
