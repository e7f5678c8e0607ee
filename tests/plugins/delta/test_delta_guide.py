"""The code of docs/delta.md runs as printed."""

from __future__ import annotations

from pathlib import Path

from support.guide import DOCS, examples, fixtures_of, load


def test_the_examples_of_the_guide(tmp_path: Path) -> None:
    ran = 0
    lake = tmp_path / "lake"
    lake.mkdir()
    for function, calls in examples(load(DOCS / "delta.md", tmp_path)):
        for call in calls:
            assert fixtures_of(function, call) == {"tmp_path"}
            function(**call, tmp_path=lake)
            ran += 1
    assert ran == 1
