"""What `status` says of windows: up to which time they are closed, and which partitions hold that back."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.memory_zookeeper import MemoryZooKeeper
from support.windows import FIELDS, NOON, graph, rows

from txstream import MemorySpout
from txstream.cli import status
from txstream.cli.main import main
from txstream.inspect import source
from txstream.inspect.source import SourceNow
from txstream.inspect.watermarks import Watermark, least_of, watermarks_in
from txstream.testing import ManualClock, TopologyTest


def test_status_tells_the_watermark_and_who_holds_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url, zookeeper = f"sqlite:///{tmp_path / 's.db'}", MemoryZooKeeper()
    monkeypatch.setattr(status, "open_zookeeper", zookeeper.opened)
    monkeypatch.setattr(source, "source_now", lambda *_: SourceNow(0))
    zookeeper.run_topology("t")

    def told(*more: str) -> Any:
        assert main(["status", "t", "--database", url, "--zookeeper", "127.0.0.1:1", *more]) == 0
        return capsys.readouterr().out

    records = {"p0": rows("p0", 1, 61, 121, 181), "p1": rows("p1", 2, 3, 4)}
    clock = ManualClock((NOON + timedelta(days=2)).timestamp())
    with (
        MemorySpout(FIELDS, records, max_records_per_partition=1) as given,
        TopologyTest(graph(given, max_spout_pending=1), database=url, clock=clock) as test,
    ):
        test.commit(1)
        document = json.loads(told("--json"))
        assert (document["watermark"], document["watermark_held_by"]) == (None, ["p0", "p1"])
        assert "watermark  none yet, held back by p0, p1\n" in told()
        test.commit(3)
        document = json.loads(told("--json"))
        assert document["watermark"] == NOON.replace(hour=11, minute=53).isoformat()
        assert document["watermark_held_by"] == ["p1"]
        assert ", held back by p1\n" in told()
        test.commit(4)  # nothing of p1 is unread any more
        document = json.loads(told("--json"))
        assert document["watermark"] == NOON.replace(hour=13, minute=51).isoformat()
        assert document["watermark_held_by"] == []


def test_a_topology_without_windows_has_no_watermark() -> None:
    assert watermarks_in({"days": 1_700_000_000}) == {}
    assert least_of({}) == Watermark(None, ())


def test_of_several_tables_the_last_one_counts() -> None:
    horizons = {
        "a": {"watermark": 5_000_000, "held_by": ["p/10", "p/9"]},
        "b": {"watermark": 7_000_000, "held_by": ["p1"]},
    }
    found = least_of(watermarks_in(horizons))
    assert found.at is not None
    assert (found.at.timestamp(), found.held_by) == (5.0, ("p/9", "p/10"))
    horizons["c"] = {"watermark": None, "held_by": []}
    assert least_of(watermarks_in(horizons)) == Watermark(None, ())
