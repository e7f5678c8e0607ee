"""What a user implements to process tuples.

Bolts are pickled once when the topology starts, and unpickled on the executors: a fresh instance for each
task of each attempt. So an instance may keep what it likes between `prepare` and `finish_batch`, and must
not hope to find it in the next batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from txstream.api.errors import TopologyError
from txstream.api.reducers import Reducer
from txstream.api.schema import format_schema, parse_schema
from txstream.api.state import SqlState
from txstream.api.tuples import DEFAULT_STREAM, Chunk, Tuple
from txstream.transaction import TransactionAttempt


@dataclass(frozen=True, slots=True)
class TopologyContext:
    """Where a bolt instance finds itself. Task indexes count from 0 within the component."""

    topology_id: str
    component: str
    task_index: int
    task_count: int
    attempt: TransactionAttempt
    settings: Mapping[str, Any] = field(default_factory=dict)


class OutputCollector(Protocol):
    """Takes what a bolt emits. Arity is checked at once, types when the tuples leave the bolt."""

    def emit(self, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        """One tuple, its values in the order of the stream's fields. Raises TupleError."""

    def emit_batch(self, batch: pa.RecordBatch, stream: str = DEFAULT_STREAM) -> None:
        """Many tuples as one Arrow batch of the stream's schema. Raises TupleError."""


class OutputFieldsDeclarer:
    """Collects a component's output streams; `inputs` are the schemas of what it subscribes to."""

    def __init__(self, component: str, inputs: Sequence[pa.Schema]) -> None:
        self.component = component
        self.inputs = tuple(inputs)
        self.streams: dict[str, pa.Schema] = {}

    def declare(self, schema: str | pa.Schema, stream: str = DEFAULT_STREAM) -> None:
        """Declare one stream, "word string, n bigint". Raises SchemaError, TopologyError."""
        if stream in self.streams:
            raise TopologyError(f"component {self.component!r} declares stream {stream!r} twice")
        self.streams[stream] = parse_schema(schema)

    def input_field(self, name: str) -> pa.Field:
        """The field that this component will find in its tuples. Raises TopologyError where it is missing."""
        for schema in self.inputs:
            if name not in schema.names:
                raise TopologyError(
                    f"component {self.component!r} needs a field {name!r}, but its input has only "
                    f"{format_schema(schema)}"
                )
        return self.inputs[0].field(name)


class Bolt(ABC):  # noqa: B024 - abstract by having no execute of its own
    """Common to all bolts. Declare the output as `output = "word string"`, or override
    `declare_output_fields` for several streams or for types that depend on the input."""

    output: ClassVar[str | pa.Schema | None] = None

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        if self.output is not None:
            declarer.declare(self.output)


class BasicBolt(Bolt):
    """A function or filter per tuple. What it emits is anchored to the tuple for you."""

    @abstractmethod
    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        """Called once per tuple, on an executor; after a failure again, under another attempt.

        Must not keep results for a later batch, and must give the same output for the same tuple. Raise
        BatchFailedError to have the batch replayed; any other exception counts as a bug.
        """


class BatchBolt(Bolt):
    """One fresh instance per task per attempt: aggregation within a batch."""

    def prepare(
        self, context: TopologyContext, collector: OutputCollector, batch_id: TransactionAttempt
    ) -> None:
        """Called first, once. The default keeps the collector as `self.collector`."""
        self.context = context
        self.collector = collector
        self.batch_id = batch_id

    @abstractmethod
    def execute(self, tup: Tuple) -> None:
        """Called once per tuple."""

    def execute_chunk(self, chunk: Chunk) -> None:
        """Called with many tuples at once. Override it where Arrow is faster; it must do what `execute`
        on each tuple would."""
        for tup in chunk.tuples():
            self.execute(tup)

    def finish_batch(self) -> None:
        """Called once when all of the task's tuples have come, also when there were none."""


class TransactionalBolt(BatchBolt):
    """A BatchBolt whose batch id is a `TransactionAttempt`; Storm's name for what BatchBolt is here."""


class Committer:
    """Mixin: `finish_batch` runs in the commit phase, in strict txid order."""


class StateCommitter(BatchBolt, Committer):
    """A committer that stores deltas in a table; the engine commits them with the fence and the ledger.

    Its task folds tuples into deltas in the processing phase, wherever its tuples are; deltas of all tasks
    are merged before the one write per key. So its tasks never contend for a key.
    """

    state: SqlState
    reducers: Mapping[str, Reducer]

    @abstractmethod
    def deltas(self) -> pa.Table:
        """What this task has folded, asked once after its last tuple: one row per key, the key columns
        first, then one delta per value column."""


class MergeableBolt(BatchBolt):
    """A BatchBolt whose output is one row per key, merged associatively.

    Running it on parts of a key's tuples and merging the rows gives what running it on all of them gives.
    When such a bolt feeds only a state whose reducers merge its columns alike, the engine leaves out the
    exchange of tuples in front of it, as Trident's combiner aggregators do.
    """

    keys: tuple[str, ...]
    reducers: Mapping[str, Reducer]
