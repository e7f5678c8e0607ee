"""`docs/spouts.md`: its program runs as printed, and its table has every promise."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tracked_wheel import ROOT
from txstream.plugins.proof.spout_suite import SpoutConformanceError, check_spout, spout_checks

GUIDE = (ROOT / "docs" / "spouts.md").read_text(encoding="utf-8")


@pytest.fixture
def guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The guide's Python blocks, joined into a module that other processes find too."""
    blocks = re.findall(r"^```python\n(.*?)^```$", GUIDE, re.M | re.S)
    assert len(blocks) > 2
    (tmp_path / "spout_guide.py").write_text("\n".join(blocks), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    module = __import__("spout_guide")
    yield module
    del sys.modules["spout_guide"]


def test_the_example_keeps_every_promise_that_applies(
    guide: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    guide.check_events(tmp_path)
    said = capsys.readouterr().out.splitlines()
    assert said == [f"kept            {check}" for check in spout_checks()]
    shown = [line for line in GUIDE.splitlines() if line.startswith("kept  ")]
    assert shown == said[:2]


def test_what_does_not_apply_is_listed_as_the_guide_shows(
    guide: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(guide.EventHarness, "lose")
    report = check_spout(lambda: guide.EventHarness(tmp_path / "events.db"), only=["lost-rows-are-told"])
    assert str(report) in GUIDE.splitlines()


def test_the_example_of_a_broken_promise(guide: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = guide.EventCoordinator.plan

    def late(self: Any, last: Any, limit: int) -> Any:
        """Begin one event too late after the first batch."""
        begun = {
            region: guide.Events(meta.start, meta.end + 1) for region, meta in last.items() if meta.end == 3
        }
        return plan(self, {**last, **begun}, limit)

    monkeypatch.setattr(guide.EventCoordinator, "plan", late)
    with pytest.raises(SpoutConformanceError) as caught:
        check_spout(lambda: guide.EventHarness(tmp_path / "events.db"), only=["nothing-skipped"])
    assert str(caught.value) in GUIDE


def test_the_table_has_every_promise_in_its_words() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", GUIDE.split("### The promises")[1], re.M)
    assert rows == [(check.name, check.rule) for check in spout_checks()]


def test_the_example_of_tracked_tuples_can_be_built(guide: Any) -> None:
    assert [component.id for component in guide.shipping().components] == ["orders", "once", "ship"]
    assert repr(guide.shipping().components[0].instance) == "KafkaQueueSpout(KafkaSource('orders'))"
