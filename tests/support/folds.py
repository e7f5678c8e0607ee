"""Bolts that fold, prepared as on an executor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from support.inmemory import attempt
from txstream.api.bolts import OutputFieldsDeclarer, TopologyContext
from txstream.api.tuples import DEFAULT_STREAM
from txstream.bolts.aggregate import ReduceBolt
from txstream.bolts.sql import SqlStateBolt


class Taken:
    """A collector that keeps what is emitted to it."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []

    def emit(self, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        raise AssertionError("these bolts emit whole batches")

    def emit_direct(self, task: int, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        raise AssertionError("these bolts do not choose tasks")

    def emit_batch(self, batch: pa.RecordBatch, stream: str = DEFAULT_STREAM) -> None:
        self.batches.append(batch)

    def rows(self) -> list[dict[str, Any]]:
        return [row for batch in self.batches for row in batch.to_pylist()]


def to_batch(rows: Iterable[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def prepared(bolt: ReduceBolt | SqlStateBolt, schema: pa.Schema) -> Taken:
    """Prepare the bolt as an executor does; return the collector that it emits to."""
    declarer = OutputFieldsDeclarer("bolt", [schema])
    bolt.declare_output_fields(declarer)
    collector = Taken()
    bolt.prepare(TopologyContext("t", "bolt", 0, 1, attempt(1)), collector, attempt(1))
    return collector
