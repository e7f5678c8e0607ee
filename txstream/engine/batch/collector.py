"""What bolt tasks emit: checked against the declared streams, turned into Arrow, sent to its readers.

Invariants. What leaves a collector has exactly the schema of its stream, and no value is changed to fit.
After `close` a collector takes nothing. A stream's tuples are routed to each subscription once, in the order
in which they were emitted, so that the same emissions always make the same parcels.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from txstream.api.rows import UnfitValueError, to_column
from txstream.api.schema import format_schema, format_type
from txstream.api.tuples import DEFAULT_STREAM, Chunk
from txstream.core.errors import TupleError, TxstreamError, UsageError
from txstream.engine.batch.edge_counts import EdgeCount, EdgeName, shared_out
from txstream.engine.batch.execution_plan import BoltSpec, Edge, ExecutionPlan, Input
from txstream.engine.batch.layout import Layout, Stage
from txstream.engine.batch.messages import Element, Parcel, address_messages
from txstream.engine.batch.routing import Router, open_local_router, open_router

_FLUSH_ROWS = 50_000

# The engine's own columns come after the user's; their names begin with this.
HIDDEN = "\0"

# Takes the emitting task, the tuples, their stream, and the task that the emitter chose, if any.
Send = Callable[[int, pa.RecordBatch, str, int | None], None]


Mark = int | tuple[list[int], dict[tuple[str, int], int]]
"""How many rows are held of each stream."""


class Collector:
    """Buffers what a task emits, checks it against the declared streams, and passes it on as Arrow."""

    def __init__(self, spec: BoltSpec, task: int, send: Send) -> None:
        self._spec = spec
        self._task = task
        self._send = send
        self._rows: dict[str, list[Any]] = {stream: [] for stream in spec.streams}
        self._direct: dict[tuple[str, int], list[Any]] = {}
        self._arity = {stream: len(schema) for stream, schema in spec.streams.items()}
        self._is_open = True
        self.sends = 0
        """How often tuples were sent."""
        self.may_cut = False
        """Whether rows that cannot be sent are held, for `cut`."""
        # The only stream, if that is all that can be emitted to.
        self._only = None if len(spec.streams) != 1 or spec.direct_streams else next(iter(spec.streams))

    def mark(self) -> Mark:
        """Return how much is held, for `undo`."""
        if self._only is not None:
            return len(self._rows[self._only])
        direct = {to: len(rows) for to, rows in self._direct.items()}
        return [len(rows) for rows in self._rows.values()], direct

    def undo(self, sends: int, mark: Mark) -> bool:
        """Drop what was emitted since there were so many `sends`, and the mark. Returns False if some of it
        was sent."""
        if sends != self.sends:
            return False
        if isinstance(mark, int):
            assert self._only is not None
            del self._rows[self._only][mark:]
            return True
        lengths, direct = mark
        for rows, length in zip(self._rows.values(), lengths, strict=True):
            del rows[length:]
        self._direct = {to: self._direct[to][:length] for to, length in direct.items()}
        return True

    def cut(self, start: int, end: int) -> None:
        """Drop what is held between two marks of the only stream."""
        assert self._only is not None
        del self._rows[self._only][start:end]

    def emit(self, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        """See `OutputCollector`."""
        rows = self._rows.get(stream)
        if rows is None:
            raise self._unknown_stream(stream)
        rows.append(self._checked(values, stream))
        if len(rows) >= _FLUSH_ROWS:
            self._flush(stream)

    def emit_direct(self, task: int, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        """See `OutputCollector`."""
        if stream not in self._rows:
            raise self._unknown_stream(stream)
        if stream not in self._spec.direct_streams:
            raise TupleError(
                f"component {self._spec.id!r} emitted directly to stream {stream!r}, which is not declared "
                f"with direct=True"
            )
        if not isinstance(task, int) or isinstance(task, bool):
            raise TupleError(
                f"component {self._spec.id!r} emitted to stream {stream!r} for task {task!r}; a task is a "
                f"number from 0 on"
            )
        self._direct.setdefault((stream, task), []).append(self._checked(values, stream))

    def emit_batch(self, batch: pa.RecordBatch, stream: str = DEFAULT_STREAM) -> None:
        """See `OutputCollector`."""
        if stream not in self._rows:
            raise self._unknown_stream(stream)
        declared = self._spec.streams[stream]
        if not batch.schema.equals(declared):
            raise TupleError(
                f"component {self._spec.id!r} emitted a batch of {format_schema(batch.schema)} to stream "
                f"{stream!r}, which is declared as {format_schema(declared)}"
            )
        for fits, column in zip(declared, batch.columns, strict=True):
            if column.null_count and not fits.nullable:
                raise self._unfit(UnfitValueError(0, fits, None), stream)
        self._flush(stream)
        if batch.num_rows:
            self.sends += 1
            self._send(self._task, self._given(batch), stream, None)

    def flush(self) -> None:
        for stream in self._rows:
            self._flush(stream)
        direct, self._direct = self._direct, {}
        for (stream, task), rows in direct.items():
            self._send(self._task, self._to_arrow(rows, stream), stream, task)

    def close(self) -> None:
        """Take nothing more: what a bolt emitted here in a later attempt would be lost."""
        self._rows = {}  # every method that emits looks here first
        self._is_open = False

    def _given(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The form in which an emitted batch is sent; a collector of tracked tuples adds columns."""
        return batch

    def _checked(self, values: Sequence[Any], stream: str) -> Any:
        """Return what is kept of a row: a tuple, or the value alone if the stream has one field."""
        if type(values) is not tuple:
            if not isinstance(values, Iterable) or isinstance(values, (str, bytes, Mapping, Set)):
                raise self._wrong_arity(values, stream)
            values = tuple(values)  # the bolt may change a list before it is sent
        arity = self._arity[stream]
        if len(values) != arity:
            raise self._wrong_arity(values, stream)
        return values[0] if arity == 1 else values

    def _flush(self, stream: str) -> None:
        rows = self._rows[stream]
        if not rows:
            return
        try:
            batch = self._to_arrow(rows, stream)
        except TupleError:
            if not self.may_cut:
                self._rows[stream] = []  # nothing is to be sent after an error
            raise
        self._rows[stream] = []
        self.sends += 1
        self._send(self._task, batch, stream, None)

    def _to_arrow(self, rows: list[Any], stream: str) -> pa.RecordBatch:
        schema = self._spec.streams[stream]
        places = range(len(schema))
        columns = [rows] if len(schema) == 1 else [[row[place] for row in rows] for place in places]
        try:
            arrays = [to_column(column, field) for column, field in zip(columns, schema, strict=True)]
            return pa.RecordBatch.from_arrays(arrays, schema=schema)
        except UnfitValueError as error:
            raise self._unfit(error, stream) from None

    def _unfit(self, error: UnfitValueError, stream: str) -> TupleError:
        found, field = error.value, error.field
        refused = TupleError(
            f"component {self._spec.id!r} emitted {found!r:.200} ({type(found).__name__}) in field "
            f"{field.name!r} of stream {stream!r}, which is declared as {format_type(field.type)}"
        )
        refused.at = None if self._only is None else error.row
        return refused

    def _wrong_arity(self, values: object, stream: str) -> TupleError:
        return TupleError(
            f"component {self._spec.id!r} emitted {values!r:.200} to stream {stream!r}, which takes a tuple "
            f"of {self._arity[stream]} field(s): {format_schema(self._spec.streams[stream])}"
        )

    def _unknown_stream(self, stream: str) -> TxstreamError:
        if not self._is_open:
            return UsageError(
                f"component {self._spec.id!r} used a collector outside of its attempt; take the one that "
                f"prepare or execute gets, and use it up to the end of finish_batch"
            )
        return TupleError(
            f"component {self._spec.id!r} emitted to stream {stream!r}, but declares "
            f"{', '.join(map(repr, self._spec.streams)) or 'no output'}"
        )


def visible(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the tuples without the engine's own columns."""
    names = batch.schema.names
    shown = sum(not name.startswith(HIDDEN) for name in names)
    return batch if shown == len(names) else batch.select(list(range(shown)))


# Takes tuples as they were sent, and the component, stream and task that they come from.
OpenChunk = Callable[[pa.RecordBatch, str, str, int], Chunk]

# Takes a bolt, one of its tasks that lives in this Spark task, and the tuples for it.
Give = Callable[[BoltSpec, int, Chunk], None]


@dataclass(frozen=True)
class _Subscription:
    """A reader of a stream, and its stage. `router` is None where Spark itself spreads the tuples."""

    bolt: BoltSpec
    home: Stage
    router: Router | None


@dataclass
class Outbox:
    """Sends what a stage emits to its readers. `parcels` are the tuples for later stages; `emitted` is
    everything that was emitted, if the plan captures it. `mark` gives ids to tracked tuples; `open_chunk`
    makes a chunk of tuples that stay in the stage; `leave_out` takes seconds that are not the bolt's."""

    plan: ExecutionPlan
    layout: Layout
    stage: Stage
    spark_task: int
    give: Give
    mark: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None
    open_chunk: OpenChunk = Chunk
    leave_out: Callable[[float], None] | None = None
    parcels: dict[Parcel, list[pa.RecordBatch]] = field(default_factory=dict)
    emitted: dict[tuple[str, str, int], list[pa.RecordBatch]] = field(default_factory=dict)
    sent: EdgeCount = field(default_factory=Counter)
    received: EdgeCount = field(default_factory=Counter)
    sending_ns: EdgeCount = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._subscriptions: dict[tuple[str, str], list[_Subscription]] = {}

    def push(
        self,
        source: str,
        stream: str,
        source_task: int,
        batch: pa.RecordBatch,
        direct_task: int | None = None,
    ) -> None:
        """Send what a component has emitted to all its subscribers."""
        if self.plan.capture:
            self.emitted.setdefault((source, stream, source_task), []).append(visible(batch))
        subscriptions = self._subscribers(source, stream)
        if direct_task is not None and self.plan.fed:  # if none has the id, the first refuses it
            takers = [one for one in subscriptions if direct_task in one.bolt.task_ids]
            subscriptions = takers or subscriptions[:1]
        for subscription in subscriptions:
            bolt, home, router = subscription.bolt, subscription.home, subscription.router
            edge = EdgeName(bolt.id, source, stream)
            if router is None:
                self.sent[edge] += batch.num_rows
                self.received[edge] += batch.num_rows
                self._post(
                    Parcel(home.position, self.spark_task, bolt.id, 0, source, stream, source_task), batch
                )
                continue
            leaves = home is not self.stage
            started = time.perf_counter_ns() if leaves else 0
            for task, part in router.route(batch, direct_task):
                if self.mark is not None:
                    part = self.mark(part)
                self.sent[edge] += part.num_rows
                if leaves:
                    target = self._spark_task_of(bolt, home, task)
                    self._post(
                        Parcel(home.position, target, bolt.id, task, source, stream, source_task), part
                    )
                else:
                    self.give(bolt, task, self.open_chunk(part, source, stream, source_task))
            if leaves:
                spent = time.perf_counter_ns() - started
                self.sending_ns[edge] += spent
                if self.leave_out is not None:
                    self.leave_out(spent * 1e-9)

    def carry(self, parcel: Parcel, table: pa.Table) -> None:
        """Hand on a parcel for a later stage."""
        self.parcels.setdefault(parcel, []).extend(table.to_batches())

    def messages(self, origin: str, lineage: str = "") -> list[Element]:
        """The messages for the next stage, if there is one."""
        following = self.layout.following(self.stage)
        if following is None:
            return []
        started, sizes = time.perf_counter_ns(), Counter[EdgeName]()
        found = list(
            address_messages(origin, self.spark_task, following.width, self.tables(), sizes, lineage)
        )
        self.sending_ns.update(shared_out(time.perf_counter_ns() - started, sizes))
        return found

    def tables(self) -> dict[Parcel, pa.Table]:
        """The parcels, each as one table."""
        return {parcel: pa.Table.from_batches(batches) for parcel, batches in self.parcels.items() if batches}

    def captured(self) -> dict[tuple[str, str, int], pa.Table]:
        return {name: pa.Table.from_batches(batches) for name, batches in self.emitted.items()}

    def _post(self, parcel: Parcel, batch: pa.RecordBatch) -> None:
        self.parcels.setdefault(parcel, []).append(batch)

    def _subscribers(self, source: str, stream: str) -> list[_Subscription]:
        found = self._subscriptions.get((source, stream))
        if found is None:
            found = self._subscriptions[source, stream] = [
                self._subscribe(bolt, given)
                for bolt in self.plan.bolts
                for given in bolt.inputs
                if (given.source, given.stream) == (source, stream)
            ]
        return found

    def _subscribe(self, bolt: BoltSpec, given: Input) -> _Subscription:
        home = self.layout.home[bolt.id]
        if bolt.is_dataframe:
            return _Subscription(bolt, home, None)
        # Each Spark task starts its even spread at another task, or small batches would all go to one.
        start = self.spark_task
        if given.edge is Edge.EXCHANGE:
            return _Subscription(
                bolt, home, open_router(given.grouping, bolt.tasks, bolt.id, start, bolt.first_task)
            )
        if home is self.stage:
            tasks = home.hosted(bolt, self.spark_task)
        else:
            tasks = home.local_tasks(bolt, self.spark_task)
        return _Subscription(bolt, home, open_local_router(tasks, bolt.id, start, together=bolt.merges))

    def _spark_task_of(self, bolt: BoltSpec, home: Stage, task: int) -> int:
        return self.spark_task % home.width if bolt.folds_anywhere else home.spark_task_of(bolt, task)
