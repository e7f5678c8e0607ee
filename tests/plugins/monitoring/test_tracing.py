"""Spans of batches, as OpenTelemetry's exporter in memory gets them."""

from __future__ import annotations

import sqlite3
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")
pytest.importorskip("prometheus_client")

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.bolts import Split
from support.measured import LINES, MeasuredRun, counting

from txstream import BatchFailedError, OutputCollector, Tuple
from txstream.core.transaction import epoch_of
from txstream.plugins.monitoring.tracing import BatchSpans, tracing_watcher
from txstream.spouts.memory import MemorySpout


class FailsOnce(Split):
    failed = False

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        if "end" in tup["value"] and not FailsOnce.failed:
            FailsOnce.failed = True
            raise BatchFailedError("not yet")
        super().execute(tup, collector)


def spans_of(topology: Any, database: Path) -> list[Any]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    run = MeasuredRun(topology, database, watchers=[BatchSpans(topology.id, provider.get_tracer("test"))])
    run.start()
    run.wait_for(3)
    run.stop()
    return list(exporter.get_finished_spans())


def test_a_span_per_batch_with_its_phases(tmp_path: Path) -> None:
    with MemorySpout("value string", LINES) as source:
        spans = spans_of(counting(source), tmp_path / "state.db")
    batches = [span for span in spans if span.name == "batch"]
    with sqlite3.connect(tmp_path / "state.db") as connection:
        ledger = connection.execute("SELECT txid, attempt FROM txstream_batch ORDER BY txid").fetchall()
    found = [(one.attributes["txstream.txid"], one.attributes["txstream.attempt"]) for one in batches]
    assert found == ledger
    for one in batches:
        assert one.parent is None
        assert one.attributes["txstream.epoch"] == epoch_of(one.attributes["txstream.attempt"])
        below = [span for span in spans if span.parent and span.parent.span_id == one.context.span_id]
        assert [span.name for span in below] == ["plan", "process", "wait", "commit", "advance"]
        assert (below[0].start_time, below[-1].end_time) == (one.start_time, one.end_time)
        for first, second in pairwise(below):
            assert first.start_time <= first.end_time == second.start_time


def test_a_replay_links_to_the_attempt_before(tmp_path: Path) -> None:
    FailsOnce.failed = False
    with MemorySpout("value string", LINES) as source:
        topology = counting(source, FailsOnce(), max_spout_pending=1)
        batches = [one for one in spans_of(topology, tmp_path / "state.db") if one.name == "batch"]
    (failed,) = (one for one in batches if one.attributes["txstream.outcome"] == "failed")
    (replay,) = (one for one in batches if one.links)
    assert replay.links[0].context == failed.context
    assert replay.attributes["txstream.txid"] == failed.attributes["txstream.txid"]
    assert replay.attributes["txstream.outcome"] == "committed"
    assert failed.status.description == "BatchFailedError"


def test_without_the_api_there_are_no_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(tracing_watcher("words"), BatchSpans)
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry", None)
    assert tracing_watcher("words") is None
