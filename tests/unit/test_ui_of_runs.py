"""What the page shows of runs in memory: what no ledger has yet, and what one has of outages and ends."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from support.kafka_topics import wait_until
from support.measured import MeasuredRun, counting
from support.memory_zookeeper import MemoryZooKeeper
from support.ui_site import Served

from txstream import BasicBolt, MemorySpout, OutputCollector, Tuple

MENDED = threading.Event()
ID = "word-count"


class Stumbles(BasicBolt):
    """Fails at a bad line until it is mended."""

    output = "word string"

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        if tup["value"].startswith("bad") and not MENDED.is_set():
            raise ValueError(tup["value"])
        collector.emit((tup["value"],))


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ZOOKEEPER", "KAFKA", "DATABASE", "MASTER", "STATE_DATABASES"):
        monkeypatch.delenv(f"TXSTREAM_{name}", raising=False)
    monkeypatch.chdir(tmp_path)
    MENDED.clear()


def test_a_batch_that_fails_is_on_the_timeline_with_its_ranges_and_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zookeeper = MemoryZooKeeper()
    served = Served.over(zookeeper, f"sqlite:///{tmp_path / 'state.db'}", monkeypatch)
    with MemorySpout("value string", {"lines/0": ["a", "b", "bad secret", "c"]}) as spout:
        run = MeasuredRun(
            counting(spout, Stumbles(), max_attempts=1000), tmp_path / "state.db", zookeeper.memory
        )
        run.start()
        run.wait_for(1)

        def shown() -> dict[str, Any]:
            served.forget()
            found: dict[str, Any] = served.client.get(f"/api/topologies/{ID}/batches/2").json()
            return found

        wait_until(lambda: len(shown().get("latest_attempts", ())) > 1, "two attempts are noted")
        found = shown()
        (held,) = found["ranges"]
        assert (held["partition"], held["start"], held["end"]) == ("lines/0", 2, 4)
        last = found["latest_attempts"][-1]
        assert last["attempt"] == found["last_attempt"]
        assert last["ranges"] == {"lines/0": {"start": 2, "end": 4}}
        assert "in execute" in last["traceback"]
        page = served.get(f"/topologies/{ID}/batches/2")
        assert "secret" not in page
        assert "in execute" in page
        timeline = served.get(f"/topologies/{ID}/timeline")
        assert "lines/0, 2 to 4: attempt 2 of txid 2 failed" in timeline
        assert "Txid 2</a> is not committed yet: " in timeline
        assert "attempt 1 of txid 1 committed" in timeline
        assert "of txid 2" not in served.get(f"/topologies/{ID}/timeline?before=2")
        MENDED.set()
        run.wait_for(2)
        run.stop()
    served.forget()
    assert "ValueError: bad secret" in served.get(f"/topologies/{ID}/batches/2"), "the ledger has it"
    assert "not committed yet" not in served.get(f"/topologies/{ID}/timeline")
