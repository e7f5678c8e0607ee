"""What the page shows of runs in memory: what no ledger has yet, and what one has of outages and ends."""

from __future__ import annotations

import json
import logging
import re
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.kafka_topics import wait_until
from support.measured import MeasuredRun, counting, scrape
from support.memory_zookeeper import MemoryZooKeeper
from support.ui_site import Served

from txstream import BasicBolt, DeadLetters, MemorySpout, OutputCollector, Tuple
from txstream.cli import failures_shown, status
from txstream.cli.main import main
from txstream.core import waiting
from txstream.core.waiting import RunAbortedError
from txstream.inspect import standing
from txstream.inspect.source import SourceNow
from txstream.plugins.monitoring.server import served
from txstream.zookeeper import ROOT, Paths
from txstream.zookeeper.candidates import candidate_data

MENDED = threading.Event()
ID = "word-count"
CLIENT = "testclient"  # the address that a TestClient comes from


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


def test_a_wait_for_everything_is_a_band_while_it_lasts_and_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zookeeper = MemoryZooKeeper()
    served = Served.over(zookeeper, f"sqlite:///{tmp_path / 'state.db'}", monkeypatch)
    monkeypatch.setattr(waiting, "_LONG_SECONDS", 0.0)
    with MemorySpout("value string", {"lines/0": ["a", "b"]}) as spout:
        run = MeasuredRun(counting(spout, Stumbles()), tmp_path / "state.db", zookeeper.memory)
        run.start()
        run.wait_for(1)
        candidate = f"{Paths(ROOT, ID).leader}/{'a' * 32}-0000000001"
        zookeeper.memory.write(candidate, candidate_data())  # nobody elects where there is no server
        spout.hide("lines/0", "its broker is away")

        def shown() -> str:
            served.forget()
            return served.get(f"/topologies/{ID}/timeline")

        wait_until(lambda: "<title>waits for partition lines/0</title>" in shown(), "the wait is drawn")
        assert "waited for" not in shown()
        spout.show("lines/0")
        spout.append("lines/0", "c")
        run.wait_for(2)
        run.stop()
        later = shown()
        assert "<title>waited for partition lines/0</title>" in later
        assert "waits for" not in later
        assert later.count("waited for partition") == 2, "title and text, of one batch"


def test_a_partition_that_is_away_while_the_others_idle_says_since_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zookeeper = MemoryZooKeeper()
    served = Served.over(zookeeper, f"sqlite:///{tmp_path / 'state.db'}", monkeypatch)
    answer = SourceNow(unavailable={"lines/1": "its broker is away"})
    monkeypatch.setattr(standing, "begin_to_ask", lambda *_: lambda: answer)
    with MemorySpout("value string", {"lines/0": ["a"], "lines/1": ["b"]}) as spout:
        run = MeasuredRun(counting(spout, Stumbles()), tmp_path / "state.db", zookeeper.memory)
        run.start()
        run.wait_for(1)
        before = datetime.now(UTC)
        spout.hide("lines/1", "its broker is away")

        def away() -> dict[str, Any]:
            served.forget()
            found: dict[str, Any] = served.json(f"/api/topologies/{ID}/source")["partitions"][0]["away"]
            return found

        wait_until(lambda: away()["since"] is not None, "it is noted")
        told = away()
        assert before <= datetime.fromisoformat(told["since"]) <= datetime.now(UTC)
        assert (told["txid"], told["or_before"]) == (None, False)
        assert '<span class="bad">since ' in served.get(f"/topologies/{ID}/source")
        spout.show("lines/1")
        wait_until(lambda: away()["since"] is None, "it is back")
        run.stop()


def test_a_driver_that_ended_well_hands_over_and_one_that_failed_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zookeeper = MemoryZooKeeper()
    served = Served.over(zookeeper, f"sqlite:///{tmp_path / 'state.db'}", monkeypatch)
    with MemorySpout("value string", {"lines/0": ["a", "b"]}) as spout:
        for txid in (1, 2, 3, 4):
            run = MeasuredRun(counting(spout, Stumbles()), tmp_path / "state.db", zookeeper.memory)
            run.start()
            run.wait_for(txid)
            if txid == 2:
                run.driver.abort()
                with pytest.raises(RunAbortedError):
                    run.stop()
            else:
                run.stop()
            spout.append("lines/0", "c")
    text = served.get(f"/topologies/{ID}/timeline")
    assert re.findall("handed to epoch [0-9]+|epoch [0-9]+ leads", text) == [
        "epoch 3 leads",
        "handed to epoch 2",
        "handed to epoch 4",
    ]
    assert text.count('<line class="death"') == 2, "one is the legend's"


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


def test_a_batch_that_leaves_out_a_record_is_nowhere_called_failed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    zookeeper = MemoryZooKeeper()
    database = f"sqlite:///{tmp_path / 'state.db'}"
    seen = Served.over(zookeeper, database, monkeypatch)
    for module in (failures_shown, status):
        monkeypatch.setattr(module, "open_zookeeper", zookeeper.opened)
    caplog.set_level(logging.INFO)
    with MemorySpout("value string", {"lines/0": ["a", "b", "bad", "c"]}) as spout:
        run = MeasuredRun(
            counting(spout, Stumbles(), dead_letters=DeadLetters()), tmp_path / "state.db", zookeeper.memory
        )
        with served(run.metrics, "0") as url:
            run.start()
            run.wait_for(2)
            figures = scrape(url)
            run.stop()
    assert figures["txstream_batches_total", "committed"] == 2
    assert (figures["txstream_batches_total", "failed"], figures["txstream_batches_total", "dropped"]) == (
        0,
        0,
    )
    assert not [name for name in figures if name[0] == "txstream_attempts_failed_total"]
    assert figures["txstream_dead_letters_total", "split"] == 1
    assert [one.getMessage() for one in caplog.records if "fail" in one.getMessage()] == []
    at = ["--database", database, "--zookeeper", "127.0.0.1:1"]
    assert main(["batches", ID, "--failed", *at, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    for command in (["batches", ID], ["batches", ID, "--failed"], ["show", ID, "2"], ["status", ID]):
        assert main([*command, *at]) == 0
        told = capsys.readouterr()
        assert "fail" not in (told.out + told.err).replace("with an attempt that failed", ""), command
    for view in ("", "/timeline", "/batches/2"):
        page = seen.get(f"/topologies/{ID}{view}").partition("<main")[2]
        assert "failed" not in page.partition('<div class="legend">')[0], view
    assert seen.json(f"/api/topologies/{ID}/failures")["reasons"] == []


def test_a_request_of_the_page_says_who_asked_by_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    zookeeper = MemoryZooKeeper()
    seen = Served.over(zookeeper, f"sqlite:///{tmp_path / 'state.db'}", monkeypatch, allow_operate=True)
    with MemorySpout("value string", {"lines/0": ["a", "b"]}) as spout:
        run = MeasuredRun(counting(spout, Stumbles()), tmp_path / "state.db", zookeeper.memory)
        run.start()
        run.wait_for(1)
        candidate = f"{Paths(ROOT, ID).leader}/{'a' * 32}-0000000001"
        zookeeper.memory.write(candidate, candidate_data())  # nobody elects where there is no server
        for kind in ("pause", "stop"):
            assert seen.post(f"/topologies/{ID}/ask/{kind}").status_code == 200
            seen.forget()
            assert f" by page from {CLIENT}." in seen.get(f"/topologies/{ID}")
        run.stop()
    assert [
        one.getMessage() for one in caplog.records if f"as asked by page from {CLIENT}" in one.getMessage()
    ]
