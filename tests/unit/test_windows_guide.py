"""The code of docs/windows.md runs as printed."""

from __future__ import annotations

from pathlib import Path

from support.guide import DOCS, examples, fixtures_of, load


def test_the_examples_of_the_guide(tmp_path: Path) -> None:
    ran = 0
    for function, calls in examples(load(DOCS / "windows.md", tmp_path)):
        for call in calls:
            assert not fixtures_of(function, call)
            function(**call)
            ran += 1
    assert ran == 4
