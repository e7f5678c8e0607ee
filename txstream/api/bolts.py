"""What a user implements to process tuples.

Bolts are pickled once when the topology starts, and unpickled on the executors: a fresh instance for each
task of each attempt. So an instance may keep what it likes between `prepare` and `finish_batch`, and must
not hope to find it in the next batch. What is dear to open is opened once per worker process: see
`Bolt.prepare_worker`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn, Protocol

import pyarrow as pa

from txstream.api.errors import BoltError, TopologyError, UsageError
from txstream.api.map_state import MapState
from txstream.api.reducers import Reducer
from txstream.api.schema import format_schema, format_type, parse_schema
from txstream.api.state import SqlState
from txstream.api.tuples import DEFAULT_STREAM, Chunk, Tuple
from txstream.transaction import TransactionAttempt


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """A worker process, as a bolt's `prepare_worker` sees it. `worker` names the executor on its `host`;
    `settings` are the topology's, shipped once; `addresses` are the run's, as a `SpoutContext` has them."""

    topology_id: str
    component: str
    worker: str
    host: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    addresses: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class TopologyContext:
    """Where a bolt instance finds itself. Task indexes count from 0 within the component.

    `slot` is the Spark task that this task runs in, `worker` the executor on its `host`. `task_counts` has
    the number of tasks of every bolt, `task_ids` what `emit_direct` takes for each task of a component,
    `task_id` that of this task. With tracked tuples the ids count over the topology, as in Storm: from 0,
    spouts first, in the order of declaration. With batches they are indexes. `resource` is what the bolt's
    `prepare_worker` returned in this process. `settings` are the topology's. `states` are those that the bolt
    declares: see `state`.
    """

    topology_id: str
    component: str
    task_index: int
    task_count: int
    attempt: TransactionAttempt
    settings: Mapping[str, Any] = field(default_factory=dict)
    task_counts: Mapping[str, int] = field(default_factory=dict)
    task_id: int = 0
    task_ids: Mapping[str, Sequence[int]] = field(default_factory=dict)
    slot: int = 0
    worker: str = ""
    host: str = ""
    resource: Any = None
    states: Mapping[str, MapState[Any, Any]] = field(default_factory=dict, repr=False)

    def state(self, name: str) -> MapState[Any, Any]:
        """The state that the bolt declares under this name, for this task and attempt. Raises UsageError that
        lists those it declares."""
        found = self.states.get(name)
        if found is None:
            raise UsageError(
                f"component {self.component!r} declares no state {name!r}; it declares "
                f"{', '.join(map(repr, self.states)) or 'none'}. Declare it by states = "
                f"{{{name!r}: SqlState(...)}} in the class or the constructor"
            )
        return found


class OutputCollector(Protocol):
    """Takes what a bolt emits. Arity is checked at once, types when the tuples leave the bolt."""

    def emit(self, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        """One tuple, its values in the order of the stream's fields. Raises TupleError."""

    def emit_batch(self, batch: pa.RecordBatch, stream: str = DEFAULT_STREAM) -> None:
        """Many tuples as one Arrow batch of the stream's schema. Raises TupleError."""

    def emit_direct(self, task: int, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        """One tuple to task `task` of each bolt that subscribes to this stream, which must be declared
        direct. With tracked tuples `task` is an id, of which only one bolt has a task: take it from
        `context.task_ids`. Raises TupleError, also for a task that a subscriber does not have."""


class OutputFieldsDeclarer:
    """Collects a component's output streams; `inputs` are the schemas of what it subscribes to."""

    def __init__(self, component: str, inputs: Sequence[pa.Schema]) -> None:
        self.component = component
        self.inputs = tuple(inputs)
        self.streams: dict[str, pa.Schema] = {}
        self.direct_streams: set[str] = set()

    def declare(self, schema: str | pa.Schema, stream: str = DEFAULT_STREAM, *, direct: bool = False) -> None:
        """Declare one stream, "word string, n bigint". The emitter of a direct stream chooses the task
        that gets a tuple, with `emit_direct`. Raises SchemaError, TopologyError."""
        if not isinstance(stream, str) or not stream:
            raise TopologyError(f"component {self.component!r} declares a stream called {stream!r}")
        if stream in self.streams:
            raise TopologyError(f"component {self.component!r} declares stream {stream!r} twice")
        self.streams[stream] = parse_schema(schema)
        if direct:
            self.direct_streams.add(stream)

    def input_field(self, name: str) -> pa.Field:
        """The field that this component will find in its tuples, whichever input they come from.

        Raises TopologyError where it is missing, or not of one type in all inputs.
        """
        for schema in self.inputs:
            if name not in schema.names:
                raise TopologyError(
                    f"component {self.component!r} needs a field {name!r}, but its input has only "
                    f"{format_schema(schema)}"
                )
        found = {format_type(schema.field(name).type) for schema in self.inputs}
        if len(found) > 1:
            raise TopologyError(
                f"component {self.component!r} needs a field {name!r} of one type, but its inputs have it as "
                f"{' and as '.join(sorted(found))}"
            )
        return self.inputs[0].field(name)


class Bolt(ABC):  # noqa: B024 - abstract by having no execute of its own
    """Common to all bolts. Declare the output as `output = "word string"`, or override
    `declare_output_fields` for several streams or for types that depend on the input."""

    output: ClassVar[str | pa.Schema | None] = None

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Called once, on the driver, when the topology is built."""
        if self.output is not None:
            declarer.declare(self.output)

    def prepare_worker(self, context: WorkerContext) -> Any:
        """Called once in each worker process that runs a task of this bolt, before the first of them: open a
        connection here. What it returns is `context.resource` in every `prepare` in that process.

        Called on an instance that gets no tuples. An error fails the attempt like one in `prepare`; the next
        attempt tries again.
        """
        return None

    def close_worker(self, resource: Any) -> None:  # noqa: B027 - most bolts open nothing
        """Called with what `prepare_worker` returned when the worker process drops it: when it gets a task
        of a later run of the topology, when it works for other topologies and had no task of this one for a
        minute, or when it ends in good order. A killed process calls nothing."""


class BasicBolt(Bolt):
    """A function or filter per tuple, or on many tuples as columns: override `execute` or `execute_batch`.
    What `execute` emits is anchored to the tuple for you."""

    def prepare(self, context: TopologyContext) -> None:
        """Called once per task and attempt, before its first tuple. The default keeps the context as
        `self.context`."""
        self.context = context

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        """Called once per tuple, on an executor; after a failure again, under another attempt.

        Must not keep results for a later batch, and must give the same output for the same tuple. Raise
        BatchFailedError to have the batch replayed; any other exception counts as a bug.
        """
        raise NotImplementedError(f"{type(self).__name__} has no execute of its own")

    def execute_batch(self, batch: pa.RecordBatch, collector: OutputCollector) -> None:
        """Called instead of `execute` where it is overridden, with many tuples of one input at once, as
        Arrow columns; emit with `collector.emit_batch`. How many come at once differs from attempt to
        attempt: the output for a tuple must not depend on those beside it. Not for tracked tuples.
        """
        raise NotImplementedError(f"{type(self).__name__} has no execute_batch of its own")


class BatchBolt(Bolt):
    """One fresh instance per task per attempt: aggregation within a batch.

    A committer, or a bolt below one, may declare `states` by name, in the class or in its constructor; it
    finds each as a `MapState` by `context.state(name)`.
    """

    states: Mapping[str, SqlState] = MappingProxyType({})

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
        execute: Any = self.execute
        for tup in chunk.tuples():
            if (result := execute(tup)) is not None:
                refuse_result(self, "execute", result)

    def finish_batch(self) -> None:
        """Called once when all of the task's tuples have come, also when there were none."""


def overrides(bolt: Bolt, method: Callable[..., None]) -> bool:
    """Has the bolt's class its own of this method, one of `BasicBolt`, say?"""
    return getattr(type(bolt), method.__name__) is not method


def refuse_result(bolt: object, method: str, result: object) -> NoReturn:
    """What a bolt's or spout's method has returned instead of emitting it. Raises BoltError."""
    if isinstance(result, Coroutine):
        result.close()  # or Python prints that it was never awaited
    lazy = isinstance(result, (Iterator, Awaitable, AsyncIterator))
    shown = f"a {type(result).__name__}" if lazy else f"{result!r:.200}"
    raise BoltError(
        f"{type(bolt).__name__}.{method} returned {shown}, which would be lost; emit tuples by the "
        f"collector, and return None"
    )


class TransactionalBolt(BatchBolt):
    """A BatchBolt whose batch id is a `TransactionAttempt`; Storm's name for what BatchBolt is here."""


class Committer:
    """Mixin: makes a BatchBolt a committer without `set_committer_bolt`.

    A committer, and every bolt below it, runs in the commit phase: only for the oldest open txid, one txid
    at a time, in strict order. All of it may run several times for one txid, under growing attempts, also
    after it has run to its end; an attempt that is too slow may go on beside its successor. Change nothing
    outside but state that knows the txid: a `MapState` does (`BatchBolt.states`).
    """


class DataFrameBolt(Bolt):
    """Spark SQL instead of Python per tuple.

    `transform` is called on the driver, once per attempt, and answers lazily: Spark runs what it describes
    as a part of the batch. Read nothing in it but its inputs, and nothing random: lost partitions are
    computed again. The order of rows is Spark's: nothing may depend on it, such as `first` or `limit` without
    a sort, and what is returned is handed on in the order of its values. The groupings of its inputs do not
    matter, since Spark decides where rows are; each partition of what it returns counts as a task.
    """

    def transform(self, df: Any) -> Any:
        """From the DataFrame of the bolt's only input to that of its only output stream."""
        raise TopologyError(
            f"{type(self).__name__} must override transform(df), or transform_streams(inputs) for several "
            f"inputs or output streams"
        )

    def transform_streams(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """From DataFrames by input to DataFrames by output stream.

        An input is called like the component that it comes from, with ".stream" appended for another stream
        than the default one. Override it for several inputs or output streams.
        """
        if len(inputs) != 1:
            raise TopologyError(
                f"{type(self).__name__} has inputs {', '.join(map(repr, inputs))}; with several of them, "
                f"override transform_streams(inputs)"
            )
        return {DEFAULT_STREAM: self.transform(next(iter(inputs.values())))}


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
        first, then one delta per value column, then what their reducers need to merge them."""


class MergeableBolt(BatchBolt):
    """A BatchBolt whose output is one row per key, merged associatively.

    Running it on parts of a key's tuples and merging the rows gives what running it on all of them gives.
    When such a bolt feeds only a state whose reducers merge its columns alike, the engine leaves out the
    exchange of tuples in front of it, as Trident's combiner aggregators do.
    """

    keys: tuple[str, ...]
    reducers: Mapping[str, Reducer]
