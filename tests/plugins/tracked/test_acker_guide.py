"""The examples in docs/acker.md run as they stand there."""

from __future__ import annotations

from pathlib import Path

from support.guide import DOCS, examples, load


def test_the_examples_do_what_they_say(tmp_path: Path) -> None:
    found = list(examples(load(DOCS / "acker.md", tmp_path)))
    assert len(found) == 2
    for function, _ in found:
        function()
