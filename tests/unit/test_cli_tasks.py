"""`txstream status`: which topologies are listed; with `ID --tasks`, where the tasks ran."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.memory_zookeeper import MemoryZooKeeper

from txstream.cli import status as status_module
from txstream.cli.main import main
from txstream.core.placement import Assignment, EdgeTuples, TaskPlace
from txstream.core.semantics import Semantics
from txstream.core.transaction import Txid, attempt_id
from txstream.inspect.records import TopologySummary
from txstream.zookeeper import ASSIGNMENT, EDGES

STATUS = ["status", "words", "--tasks", "--zookeeper", "127.0.0.1:1"]
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
PLACES = (
    TaskPlace("split", 10, 1, "0", "left", 0.25, 12345),
    TaskPlace("split", 9, 0, "1", "right", 1.5, 0),
    TaskPlace("count", 0, 0, "1", "right", 0.0004, 7),
)
EDGES_SEEN = (
    EdgeTuples("lines", "default", "split", 12345, 0.0, 0.0),
    EdgeTuples("split", "default", "count", 7, 0.125, 0.5),
)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ZOOKEEPER", "KAFKA", "DATABASE", "MASTER", "FAULT"):
        monkeypatch.delenv(f"TXSTREAM_{name}", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def zookeeper(monkeypatch: pytest.MonkeyPatch) -> MemoryZooKeeper:
    zookeeper = MemoryZooKeeper()
    monkeypatch.setattr(status_module, "open_zookeeper", zookeeper.opened)
    return zookeeper


def summary(topology_id: str, txid: int, **more: Any) -> TopologySummary:
    known = {
        "uuid": "0",
        "semantics": Semantics.OPAQUE,
        "leader": None,
        "tables": (),
        "databases": (),
        "note": None,
    }
    return TopologySummary(**{**known, **more, "id": topology_id, "txid": Txid(txid)})


def test_topologies_that_have_committed_nothing_are_left_to_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = [
        summary("done", 7),
        summary("never-ran", 0),
        summary("starts-now", 0, leader="host:1"),
        summary("damaged", 0, note="epoch: expected JSON"),
    ]
    reached = {"address": "a", "reachable": True, "note": None, "error": None}
    monkeypatch.setattr(status_module, "_ask", lambda *_: reached)
    monkeypatch.setattr("txstream.inspect.overview.topologies", lambda settings: listed)
    assert main(["status"]) == 0
    out, err = capsys.readouterr()
    assert [line.split()[:1] for line in out.splitlines()[6:-1]] == [["done"], ["starts-now"], ["damaged"]]
    assert err == "1 topology without a committed batch left out; --all shows all\n"
    assert main(["status", "--all"]) == 0
    out, err = capsys.readouterr()
    assert any(line.split()[:2] == ["never-ran", "0"] for line in out.splitlines())
    assert err == ""
    assert main(["status", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["topologies"]) == 4


def test_tasks_are_shown_by_component_and_number(
    zookeeper: MemoryZooKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    store = zookeeper.run_topology("words")
    seen = Assignment(Txid(4), attempt_id(2, 7), NOON, PLACES, edges=EDGES_SEEN)
    store.notes.put(ASSIGNMENT, seen)
    store.notes.put(EDGES, seen)
    assert main(STATUS) == 0
    out, err = capsys.readouterr()
    first, *lines = out.splitlines()
    assert first == f"words: txid 4 attempt 2.7, {NOON.astimezone():%Y-%m-%d %H:%M:%S}"
    rows = [line.split() for line in lines if line.strip() and "─" not in line]
    assert rows == [
        ["component", "task", "slot", "worker", "host", "seconds", "tuples"],
        ["count", "0", "0", "1", "right", "0.000", "7"],
        ["split", "9", "0", "1", "right", "1.500", "0"],
        ["split", "10", "1", "0", "left", "0.250", "12,345"],
        ["from", "stream", "to", "tuples", "seconds", "to", "send", "to", "take", "in"],
        ["lines", "default", "split", "12,345", "in", "its", "bolt"],
        ["split", "default", "count", "7", "0.125", "0.500"],
    ]
    assert err == ""


def test_json_has_the_numbers(zookeeper: MemoryZooKeeper, capsys: pytest.CaptureFixture[str]) -> None:
    store = zookeeper.run_topology("words", driver=False)
    seen = Assignment(Txid(4), attempt_id(2, 7), NOON, PLACES, edges=EDGES_SEEN)
    store.notes.put(ASSIGNMENT, seen)
    store.notes.put(EDGES, seen)
    assert main([*STATUS, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["topology"], document["leader"]) == ("words", None)
    assignment = document["assignment"]
    tasks, edges = assignment.pop("tasks"), assignment.pop("edges")
    assert edges[1] == {
        "source": "split",
        "stream": "default",
        "target": "count",
        "tuples": 7,
        "send_seconds": 0.125,
        "take_seconds": 0.5,
    }
    assert assignment == {
        "txid": 4,
        "attempt": attempt_id(2, 7),
        "epoch": 2,
        "at": "2026-01-02T12:00:00+00:00",
        "left_out": 0,
        "by_residents": False,
    }
    assert [(task["component"], task["task"]) for task in tasks] == [
        ("count", 0),
        ("split", 9),
        ("split", 10),
    ]
    assert tasks[2] == {
        "component": "split",
        "task": 10,
        "slot": 1,
        "worker": "0",
        "host": "left",
        "seconds": 0.25,
        "tuples": 12345,
    }


def test_what_was_left_out_and_a_topology_at_rest_are_told(
    zookeeper: MemoryZooKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    store = zookeeper.run_topology("words", driver=False)
    assignment = Assignment(Txid(4), attempt_id(2, 7), NOON, PLACES, left_out=1200, by_residents=True)
    store.notes.put(ASSIGNMENT, assignment)
    assert main(STATUS) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0].endswith(", by Spark tasks that stay")
    assert "1,200 more tasks" in err
    assert "not running" in err


def test_before_the_first_batch_there_is_nothing_to_show(
    zookeeper: MemoryZooKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    zookeeper.run_topology("words")
    assert main(STATUS) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("words has no tasks to show yet")
    assert main([*STATUS, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["assignment"] is None


def test_an_unknown_topology_names_the_command_that_lists_them(
    zookeeper: MemoryZooKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(STATUS) == 1
    assert "`txstream topologies`" in capsys.readouterr().err


def test_tasks_are_those_of_one_topology(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--tasks"]) == 2
    assert "give its ID" in capsys.readouterr().err


def test_a_corrupt_assignment_is_named(
    zookeeper: MemoryZooKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    zookeeper.run_topology("words")
    zookeeper.memory.write("/txstream/topologies/words/assignment", b"{}")
    assert main(STATUS) == 1
    assert "/txstream/topologies/words/assignment: expected the fields" in capsys.readouterr().err
