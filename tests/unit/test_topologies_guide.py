"""The guides' code runs as printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tracked_wheel import ROOT

PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
GUIDES = ("topologies.md",)


def code_of(guide: Path) -> str:
    """Return all Python of a guide, each line at its place there, so that tracebacks name the right one."""
    text = guide.read_text(encoding="utf-8")
    lines = [""] * text.count("\n")
    for block in PYTHON_BLOCK.finditer(text):
        first = text.count("\n", 0, block.start(1))
        for offset, line in enumerate(block.group(1).splitlines()):
            lines[first + offset] = line
    return "\n".join(lines)


@pytest.mark.parametrize("name", GUIDES)
def test_the_code_of_a_guide_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    guide = ROOT / "docs" / name
    names: dict[str, Any] = {"__name__": "guide"}
    exec(compile(code_of(guide), str(guide), "exec"), names)
    assert capsys.readouterr().out.startswith("topology words (opaque)")


def test_the_guides_classes_do_what_the_guide_says() -> None:
    from txstream.testing import run_bolt

    names: dict[str, Any] = {"__name__": "guide"}
    exec(compile(code_of(ROOT / "docs" / "topologies.md"), "topologies.md", "exec"), names)
    assert run_bolt(names["split"], ["a b"], "value string").emitted == [("a",), ("b",)]
    assert run_bolt(names["TopWord"](), ["a", "b", "a"], "word string").emitted == [("a", 2)]
    parsed = run_bolt(names["Parse"](), ["anna 3", "nonsense"], "value string")
    assert parsed.emitted == [("anna", 3)]
    assert parsed.streams["malformed"] == [("nonsense", "no amount")]
    rich = run_bolt(names["Enrich"](), ["anna", "otto"], "user string", settings={"countries": {}})
    assert rich.emitted == [("anna", "DE"), ("otto", "?")]
