"""What a bolt is told about where it runs, and what it opens once per worker process."""

from __future__ import annotations

import logging
import os
import socket
from typing import Any

import pytest
from support.bolts import compiled, failure, words_state
from support.inmemory import MemoryLog, MemorySource, attempt

from txstream.api.bolts import BasicBolt, BatchBolt, Bolt, OutputCollector, TopologyContext, WorkerContext
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Count
from txstream.api.spouts import OpaqueSpout
from txstream.api.topology import Topology
from txstream.api.tuples import Tuple
from txstream.bolts.sql import SqlStateBolt
from txstream.core.batch_metas import BatchMetas
from txstream.core.errors import BoltError, TopologyError
from txstream.engine.batch import worker_process as process
from txstream.engine.batch.worker_process import WorkerProcess, close_worker_process, worker_process
from txstream.plugins.local.local_runner import InProcessRunner

LINES = {"a": ["x", "y", "z"], "b": ["x"]}

# What happened in this process, in order. Bolts are pickled, so they cannot keep it themselves.
CALLS: list[Any] = []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    CALLS.clear()


def topology(bolt: Bolt, log: MemoryLog, settings: Any = None) -> Topology:
    source = OpaqueSpout(MemorySource(log))
    builder = TransactionalTopologyBuilder("t", "lines", source, 2, settings=settings)
    builder.set_bolt("bolt", bolt, 2).shuffle_grouping("lines").set_num_tasks(3)
    builder.set_bolt("store", SqlStateBolt(words_state(), n=Count())).fields_grouping("bolt", "word")
    return builder.build()


class Remembering(BasicBolt):
    output = "word string"

    def prepare(self, context: TopologyContext) -> None:
        super().prepare(context)
        CALLS.append(context)

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        assert self.context.topology_id == "t"
        collector.emit((tup["value"],))


@pytest.mark.parametrize("width", [1, 2])
def test_a_task_knows_its_place(width: int) -> None:
    log = MemoryLog(LINES)
    runner = InProcessRunner(compiled(topology(Remembering(), log, {"limit": 3})), width=width)
    result = runner.run(attempt(7), BatchMetas(log.everything()))
    assert sorted(context.task_index for context in CALLS) == [0, 1, 2]
    for context in CALLS:
        assert (context.component, context.task_count, context.attempt) == ("bolt", 3, attempt(7))
        assert context.settings == {"limit": 3}
        assert context.task_counts == {"bolt": 3, "store": 1}
        assert context.slot == context.task_index % width
        assert context.host == socket.gethostname()
        assert context.worker == f"{context.host}:{os.getppid()}"
    places = {place.task: place for place in result.places if place.component == "bolt"}
    assert {task: (place.slot, place.worker) for task, place in places.items()} == {
        context.task_index: (context.slot, context.worker) for context in CALLS
    }
    assert sum(place.tuples for place in places.values()) == 4
    assert all(place.seconds >= 0 for place in places.values())


def test_settings_are_values_by_name_that_can_be_shipped() -> None:
    log = MemoryLog(LINES)
    with pytest.raises(TopologyError, match=r"the names must be strings: \{1: 2\}"):
        topology(Remembering(), log, {1: 2})
    import threading

    with pytest.raises(TopologyError, match=r"settings cannot be shipped to executors: .*; pass plain"):
        compiled(topology(Remembering(), log, {"lock": threading.Lock()}))


class Opening(BatchBolt):
    """Opens something once per worker process."""

    output = "word string"

    def prepare_worker(self, context: WorkerContext) -> Any:
        CALLS.append(("open", context.component, context.settings.get("url")))
        return {"uses": 0}

    def close_worker(self, resource: Any) -> None:
        CALLS.append(("close", resource["uses"]))

    def execute(self, tup: Tuple) -> None:
        self.context.resource["uses"] += 1
        self.collector.emit((tup["value"],))


def test_a_resource_is_opened_once_per_worker_process_and_closed_with_it() -> None:
    log = MemoryLog(LINES)
    runner = InProcessRunner(compiled(topology(Opening(), log, {"url": "db"})), width=1)
    for txid in (1, 2, 3):
        runner.run(attempt(txid), BatchMetas(log.everything()))
    assert CALLS == [("open", "bolt", "db")]
    runner.close()
    assert CALLS[1:] == [("close", 12)]


class FailingToOpen(Opening):
    def prepare_worker(self, context: WorkerContext) -> Any:
        CALLS.append("try")
        raise ConnectionError("no route to host")


def test_a_resource_that_cannot_be_opened_fails_the_attempt_and_is_tried_again() -> None:
    log = MemoryLog(LINES)
    error = failure(topology(FailingToOpen(), log), log)
    assert isinstance(error, BoltError)
    assert "component 'bolt', task 0: ConnectionError: no route to host" in str(error)
    assert "in prepare_worker" in "".join(error.__notes__)
    runner = InProcessRunner(compiled(topology(FailingToOpen(), log)), width=1)
    for txid in (1, 2):
        with pytest.raises(BoltError):
            runner.run(attempt(txid), BatchMetas(log.everything()))
    assert CALLS == ["try"] * 3


class FailingToClose(Opening):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def close_worker(self, resource: Any) -> None:
        super().close_worker(resource)
        raise self.error


@pytest.mark.parametrize("error", [OSError("already gone"), SystemExit(3)], ids=repr)
def test_what_cannot_be_closed_is_logged_and_the_rest_is_closed(
    caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    log = MemoryLog(LINES)
    runner = InProcessRunner(compiled(topology(FailingToClose(error), log)), width=1)
    runner.run(attempt(1), BatchMetas(log.everything()))
    with caplog.at_level(logging.WARNING):
        runner.close()
    assert "close_worker of component 'bolt' failed" in caplog.text
    assert log.closed == 1


def test_a_worker_process_serves_one_run_and_closes_the_one_before() -> None:
    log = MemoryLog(LINES)
    first = compiled(topology(Opening(), log), "run-1")
    one = worker_process(first)
    assert worker_process(compiled(topology(Opening(), log), "run-1")) is one
    spec = first.bolt("bolt")
    one.resource(spec, spec.create())
    two = worker_process(compiled(topology(Opening(), log), "run-2"))
    assert two is not one
    assert CALLS == [("open", "bolt", None), ("close", 0)]
    close_worker_process()
    assert process._processes == {}


def test_topologies_side_by_side_keep_what_they_have_opened_until_they_are_idle() -> None:
    log = MemoryLog(LINES)
    now = 0.0

    def begin_task(topology_id: str) -> WorkerProcess:
        plan = compiled(topology(Opening(), log).with_id(topology_id), f"run-of-{topology_id}")
        found = worker_process(plan, clock=lambda: now)
        spec = plan.bolt("bolt")
        found.resource(spec, spec.create())
        return found

    one, other = begin_task("one"), begin_task("other")
    for _ in range(3):
        now += process.IDLE_SECONDS - 1
        assert begin_task("one") is one
        assert begin_task("other") is other
    assert [what for what, *_ in CALLS] == ["open", "open"]
    now += process.IDLE_SECONDS
    assert begin_task("one") is one
    assert [what for what, *_ in CALLS] == ["open", "open", "close"]
    assert begin_task("other") is not other
    close_worker_process()
    assert [what for what, *_ in CALLS] == ["open", "open", "close", "open", "close", "close"]
