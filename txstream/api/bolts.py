"""What a user implements to process tuples.

Bolts are pickled once when the topology starts. Executors unpickle a fresh instance for each task of each
attempt. So an instance may keep anything between `prepare` and `finish_batch`, but nothing from one batch to
the next. Open what is expensive once per worker process, in `Bolt.prepare_worker`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn, Protocol

import pyarrow as pa

from txstream.api.groupings import Grouping
from txstream.api.map_state import MapState
from txstream.api.reducers import Reducer
from txstream.api.schema import format_schema, format_type, parse_schema
from txstream.api.state import SqlState
from txstream.api.tuples import DEFAULT_STREAM, Chunk, Tuple
from txstream.core.errors import BoltError, TopologyError, UsageError
from txstream.core.semantics import Semantics
from txstream.core.transaction import TransactionAttempt
from txstream.core.wording import a


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """A worker process, as a bolt's `prepare_worker` sees it. `worker` names the executor on its `host`.
    `settings` are the topology's, shipped once. `addresses` are the run's, as in a `SpoutContext`."""

    topology_id: str
    component: str
    worker: str
    host: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    addresses: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class TopologyContext:
    """Where a bolt instance runs. Task indexes count from 0 within the component.

    `slot` is the Spark task that this task runs in; `worker` is the executor on its `host`. `task_counts`
    holds the number of tasks of every bolt. `task_ids` holds the ids that `emit_direct` takes, for each task
    of a component; `task_id` is this task's own. With tracked tuples, ids count over the whole topology, as
    in Storm: from 0, spouts first, in the order of declaration. With batches they are task indexes.
    `resource` is what the bolt's `prepare_worker` returned in this process. `settings` are the topology's.
    `states` are the states that the bolt declares: see `state`. `open_table` is for a `TableReader`: it
    returns the store of its table (`txstream.state.StateBackend`) and how the table is kept (`TableSpec`).
    `horizons` are the batch's, by table.
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
    open_table: Callable[[], tuple[Any, Any]] | None = field(default=None, repr=False)
    horizons: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def state(self, name: str) -> MapState[Any, Any]:
        """Return the state that the bolt declares under this name, for this task and attempt. Raises
        UsageError for an unknown name, with a list of the declared ones."""
        found = self.states.get(name)
        if found is None:
            raise UsageError(
                f"component {self.component!r} declares no state {name!r}; it declares "
                f"{', '.join(map(repr, self.states)) or 'none'}. Declare it by states = "
                f"{{{name!r}: SqlState(...)}} in the class or the constructor"
            )
        return found


class OutputCollector(Protocol):
    """Takes what a bolt emits. It checks arity at once, and types when the tuples leave the bolt."""

    def emit(self, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        """Emit one tuple, its values in the order of the stream's fields. Raises TupleError."""

    def emit_batch(self, batch: pa.RecordBatch, stream: str = DEFAULT_STREAM) -> None:
        """Emit many tuples as one Arrow batch of the stream's schema. Raises TupleError."""

    def emit_direct(self, task: int, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        """Emit one tuple to task `task` of each bolt that subscribes to this stream, which must be declared
        direct. With tracked tuples `task` is an id that only one bolt has; take it from `context.task_ids`.
        Raises TupleError, also for a task that a subscriber does not have."""


class OutputFieldsDeclarer:
    """Collects a component's output streams. `inputs` are the schemas of the streams it subscribes to."""

    def __init__(self, component: str, inputs: Sequence[pa.Schema]) -> None:
        self.component = component
        self.inputs = tuple(inputs)
        self.streams: dict[str, pa.Schema] = {}
        self.direct_streams: set[str] = set()

    def declare(self, schema: str | pa.Schema, stream: str = DEFAULT_STREAM, *, direct: bool = False) -> None:
        """Declare one stream, such as "word string, n bigint". The emitter of a direct stream chooses the
        task that gets a tuple, with `emit_direct`. Raises SchemaError, TopologyError."""
        if not isinstance(stream, str) or not stream:
            raise TopologyError(f"component {self.component!r} declares a stream called {stream!r}")
        if stream in self.streams:
            raise TopologyError(f"component {self.component!r} declares stream {stream!r} twice")
        self.streams[stream] = parse_schema(schema)
        if direct:
            self.direct_streams.add(stream)

    def input_field(self, name: str) -> pa.Field:
        """Return the field of this name, which the component's tuples have whichever input they come from.

        Raises TopologyError if an input lacks it, or if its type differs between inputs.
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


class Bolt(ABC):  # noqa: B024 - abstract because it has no execute
    """Base of all bolts. Declare the output as `output = "word string"`, or override `declare_output_fields`
    for several streams or for types that depend on the input."""

    output: ClassVar[str | pa.Schema | None] = None
    writes_to: Sequence[str] = ()
    """Places, as topics, that get what this bolt does: the source may not read them (`leaving_out`)."""
    tells_rewinds: ClassVar[bool] = False
    """Whether those places are told of a rewind; if not, `txstream rewind` names them before it begins."""

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Called once, on the driver, when the topology is built."""
        if self.output is not None:
            declarer.declare(self.output)

    def prepare_worker(self, context: WorkerContext) -> Any:
        """Called once in each worker process that runs tasks of this bolt, before the first task: open
        connections here. What it returns is `context.resource` in every `prepare` in that process.

        It is called on an instance that gets no tuples. An error fails the attempt, as one in `prepare` does.
        """
        return None

    def close_worker(self, resource: Any) -> None:  # noqa: B027 - most bolts open nothing
        """Called with what `prepare_worker` returned, when the worker process drops it: when the process gets
        a task of a later run of the topology, when it works for other topologies and had no task of this one
        for a minute, or when it exits in good order. A killed process calls nothing."""


class BasicBolt(Bolt):
    """A function or filter, on one tuple at a time or on many as columns: override `execute` or
    `execute_batch`. What `execute` emits is anchored to the tuple for you."""

    def prepare(self, context: TopologyContext) -> None:
        """Called once per task and attempt, before the first tuple. The default keeps the context as
        `self.context`."""
        self.context = context

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        """Called once per tuple, on an executor; after a failure, again under another attempt.

        It must not keep results for a later batch, and must give the same output for the same tuple. Raise
        BatchFailedError to have the batch replayed; any other exception counts as a bug.
        """
        raise NotImplementedError(f"{type(self).__name__} has no execute of its own")

    def execute_batch(self, batch: pa.RecordBatch, collector: OutputCollector) -> None:
        """If overridden, called instead of `execute`, with many tuples of one input at once as Arrow columns.

        Emit with `collector.emit_batch`. How many tuples come at once differs from attempt to attempt, so the
        output for a tuple must not depend on its neighbours. Not for tracked tuples.
        """
        raise NotImplementedError(f"{type(self).__name__} has no execute_batch of its own")


class BatchBolt(Bolt):
    """One fresh instance per task per attempt: aggregation within a batch.

    A committer, or a bolt below one, may declare `states` by name, in the class or in its constructor.
    `context.state(name)` gives it each of them as a `MapState`.
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
        """Called with many tuples at once. Override it where Arrow is faster; it must do what calling
        `execute` on each tuple would do."""
        execute: Any = self.execute
        for tup in chunk.tuples():
            if (result := execute(tup)) is not None:
                refuse_result(self, "execute", result)

    def finish_batch(self) -> None:
        """Called once, after all of the task's tuples, also if there were none."""


def overrides(bolt: Bolt, method: Callable[..., None]) -> bool:
    """Return whether the bolt's class overrides this method, such as `BasicBolt.execute`."""
    return getattr(type(bolt), method.__name__) is not method


def refuse_result(bolt: object, method: str, result: object) -> NoReturn:
    """Raise BoltError for what a bolt's or spout's method returned instead of emitting it."""
    if isinstance(result, Coroutine):
        result.close()  # otherwise Python warns that it was never awaited
    lazy = isinstance(result, (Iterator, Awaitable, AsyncIterator))
    shown = a(type(result).__name__) if lazy else f"{result!r:.200}"
    raise BoltError(
        f"{type(bolt).__name__}.{method} returned {shown}, which would be lost; emit tuples by the "
        f"collector, and return None"
    )


class TransactionalBolt(BatchBolt):
    """Storm's name for a BatchBolt whose batch id is a `TransactionAttempt`. Here every BatchBolt has one."""


class Committer:
    """Mixin that makes a BatchBolt a committer without `set_committer_bolt`.

    A committer, and every bolt below it, runs in the commit phase: only for the oldest open txid, one txid at
    a time, in strict order. All of it may run several times for one txid, under growing attempts, even after
    it has run to its end. An attempt that is too slow may go on beside its successor. The only outside state
    that it may change is state that knows the txid, such as a `MapState` (`BatchBolt.states`).
    """


class DataFrameBolt(Bolt):
    """Spark SQL instead of Python per tuple.

    `transform` is called on the driver, once per attempt, and its answer is lazy: Spark runs what it
    describes as part of the batch. Read only the inputs and use nothing random, because Spark computes lost
    partitions again. Nothing may depend on the order of rows, which Spark chooses: no `first` or `limit`
    without a sort. The result is handed on in the order of its values. The groupings of the inputs do not
    matter, since Spark decides where rows are. Each partition of the result counts as a task.
    """

    def transform(self, df: Any) -> Any:
        """Return the DataFrame of the bolt's only output stream, from that of its only input."""
        raise TopologyError(
            f"{type(self).__name__} must override transform(df), or transform_streams(inputs) for several "
            f"inputs or output streams"
        )

    def transform_streams(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return DataFrames by output stream, from DataFrames by input. Override it if there are several.

        An input has the name of the component that it comes from, with ".stream" appended unless it is the
        default stream.
        """
        if len(inputs) != 1:
            raise TopologyError(
                f"{type(self).__name__} has inputs {', '.join(map(repr, inputs))}; with several of them, "
                f"override transform_streams(inputs)"
            )
        return {DEFAULT_STREAM: self.transform(next(iter(inputs.values())))}


class StateCommitter(BatchBolt, Committer):
    """A committer that stores deltas in a table; the engine commits them with the fence and the ledger.

    Its tasks fold tuples into deltas in the processing phase, wherever the tuples are. The deltas of all
    tasks are merged before the one write per key, so the tasks never contend for a key. An error of
    `execute_chunk` that says at which row (`at`) has kept nothing of the chunk: without that tuple, the chunk
    may be given again.
    """

    state: SqlState
    reducers: Mapping[str, Reducer]
    order_by: Sequence[str] = ()
    """For a `SqlTable`: the fields that order the rows of one key in a batch."""
    horizon: Any = None
    """What the state's table has among the batch's horizons: with `keep`, rows of a time before this, in
    seconds since 1970, are late. The engine sets it for each attempt."""

    @abstractmethod
    def deltas(self) -> pa.Table:
        """Return what this task has folded; called once, after its last tuple. One row per key: the key
        columns, then one delta per value column, then what the reducers need to merge them. The metadata of
        the schema are told to the state's `HorizonKeeper`."""


class TableReader(BatchBolt):
    """A BatchBolt that reads the table of a state's bolt in its topology, as it was before its batch.

    The batches of such a topology are processed one at a time, each once the one before it is committed, so
    `read` of a store has all of that and nothing of a later one. What the table's bolt gets in the bolt's own
    batch is not in the table yet; the reader may subscribe to it as well (`follow`).
    """

    reads: str
    """The component of the state's bolt."""
    of_state: SqlState | None = None
    """The state, where `reads` is to be the bolt that fills it."""
    table: StateCommitter
    """That bolt, once `build` has found it."""

    def follow(self, inputs: Sequence[Grouping], own: Sequence[Grouping]) -> Sequence[Grouping]:
        """Return further subscriptions, to be added to the `own`; `inputs` are those of the table's bolt.
        Called on the driver, perhaps several times, before `declare_output_fields`."""
        return ()

    def check_table(self, semantics: Semantics, *, sets_aside: bool) -> None:
        """Raise TopologyError for a table that this bolt cannot read, kept with these semantics, in a
        topology that asks for dead letters (`sets_aside`) or not."""


class MergeableBolt(BatchBolt):
    """A BatchBolt whose output is one row per key, merged associatively.

    Running it on parts of a key's tuples and merging the rows gives the same result as running it on all of
    them. When such a bolt feeds only a state whose reducers merge its columns in the same way, the engine
    leaves out the exchange of tuples in front of it, as Trident's combiner aggregators do.
    """

    keys: tuple[str, ...]
    reducers: Mapping[str, Reducer]
