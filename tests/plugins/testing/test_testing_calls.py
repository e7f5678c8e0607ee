"""The recorded calls of bolts: which bolt, how often, in which order, from which process."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.bolts import Passing, compiled
from support.inmemory import MemoryLog, MemorySource, attempt

from txstream.api.bolts import BasicBolt, BatchBolt, OutputCollector
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Count
from txstream.api.spouts import OpaqueSpout
from txstream.api.state import SqlState
from txstream.api.topology import Phase
from txstream.api.tuples import Chunk, Tuple
from txstream.bolts.sql import SqlStateBolt
from txstream.core.batch_metas import BatchMetas
from txstream.plugins.local.local_runner import InProcessRunner
from txstream.plugins.testing.attempts import CallFile, CallList
from txstream.plugins.testing.recorded_calls import Call, CallKind, recorded


class Chunky(BatchBolt):
    """Takes chunks, and gives each tuple to its own `execute`."""

    output = "value string"

    def execute(self, tup: Tuple) -> None:
        self.collector.emit(tup.values)

    def execute_chunk(self, chunk: Chunk) -> None:
        for tup in chunk.tuples():
            self.execute(tup)


class InColumns(BasicBolt):
    """Takes columns only; `execute` must not be called."""

    output = "value string"

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        raise AssertionError("it takes columns")

    def execute_batch(self, batch: pa.RecordBatch, collector: OutputCollector) -> None:
        collector.emit_batch(batch)


class Guarded(Passing):
    """Lets no attribute be set but `context`."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "context":
            raise AttributeError(f"{name} cannot be set")
        super().__setattr__(name, value)


def calls_of(*bolts: Any) -> list[str]:
    """Run the bolts in a chain over two lines, with a state at the end, and return the calls."""
    log = MemoryLog({"p": ["x", "y"]})
    builder = TransactionalTopologyBuilder("t", "lines", OpaqueSpout(MemorySource(log, "value string")))
    above = "lines"
    for number, bolt in enumerate(bolts):
        builder.set_bolt(f"b{number}", bolt).shuffle_grouping(above)
        above = f"b{number}"
    state = SqlStateBolt(SqlState("values", key="value string", value="n bigint"), n=Count())
    builder.set_committer_bolt("store", state).global_grouping(above)
    sink = CallList()
    plan = compiled(builder.build())
    plan = replace(plan, bolts=tuple(recorded(spec, sink) for spec in plan.bolts))
    InProcessRunner(plan).run(attempt(1), BatchMetas(log.everything()))
    return [str(call) for call in sink.calls()]


def test_each_kind_of_bolt_tells_of_its_calls() -> None:
    assert calls_of(Guarded(), Chunky(), InColumns()) == [
        "process b0[0] prepare",
        "process b1[0] prepare",
        "process b2[0] prepare",
        "process store[0] prepare",
        "process b0[0] execute x2",
        "process b1[0] execute x2",
        "process b2[0] execute x2",
        "process store[0] execute x2",
        "process b1[0] finish_batch",
        "process store[0] deltas",
    ]


def call(component: str, kind: CallKind = CallKind.EXECUTE, tuples: int = 0, txid: int = 1) -> Call:
    return Call(attempt(txid), Phase.PROCESS, component, 0, kind, tuples)


@pytest.mark.parametrize("kind", ["list", "file"])
def test_tuples_that_a_task_gets_in_a_row_are_one_call(kind: str, tmp_path: Path) -> None:
    log = CallList() if kind == "list" else CallFile(tmp_path / "calls")
    assert log.calls() == []
    told = [
        call("a", CallKind.PREPARE),
        call("a", tuples=1),
        call("a", tuples=2),
        call("b", tuples=1),
        call("a", tuples=1),
        call("a", tuples=1, txid=2),
        call("a", CallKind.FINISH_BATCH),
        call("a", CallKind.FINISH_BATCH),
    ]
    for one in told:
        log(one)
    expected = [told[0], call("a", tuples=3), *told[3:]]
    assert log.calls() == expected
    assert log.calls() == expected


def tell(log: CallFile, component: str) -> None:
    for _ in range(200):
        log(call(component, tuples=1))


def test_no_call_of_several_processes_is_lost_or_torn(tmp_path: Path) -> None:
    log = CallFile(tmp_path / "calls")
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=tell, args=(log, name)) for name in ("a", "b")]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    for name in ("a", "b"):
        assert sum(one.tuples for one in log.calls() if one.component == name) == 200


def test_what_is_recorded_is_the_same_bolt() -> None:
    log = MemoryLog({"p": ["x"]})
    builder = TransactionalTopologyBuilder("t", "lines", OpaqueSpout(MemorySource(log, "value string")))
    builder.set_bolt("b", Chunky(), 2).shuffle_grouping("lines")
    builder.set_committer_bolt("c", Chunky()).global_grouping("b")
    (spec, _) = compiled(builder.build()).bolts
    watched = recorded(spec, CallList())
    assert {name: getattr(watched, name) for name in vars(spec)} == vars(spec)
    assert type(watched.create()) is Chunky
    assert watched.streams["default"] == pa.schema([pa.field("value", pa.string())])
