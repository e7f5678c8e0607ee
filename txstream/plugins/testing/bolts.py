"""`run_bolt`: runs one task of one bolt on rows from the test, with the checks that a run makes."""

from __future__ import annotations

import contextlib
import copy
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import pyarrow as pa

from txstream.api.bolt_checks import check_bolt, check_methods
from txstream.api.bolts import (
    BatchBolt,
    Bolt,
    Committer,
    DataFrameBolt,
    OutputFieldsDeclarer,
    StateCommitter,
)
from txstream.api.groupings import Grouping, GroupingKind
from txstream.api.reducers import Put
from txstream.api.rows import UnfitValueError, to_record_batch
from txstream.api.schema import format_schema, format_type, parse_schema
from txstream.api.spouts import (
    OpaqueSpout,
    PartitionCoordinator,
    PartitionedSpout,
    PartitionEmitter,
    SpoutContext,
)
from txstream.api.state import SqlState
from txstream.api.topology import Component, Topology
from txstream.api.tuples import DEFAULT_STREAM, Chunk
from txstream.core.batch_metas import BatchMetas
from txstream.core.errors import StateValueError, TopologyError, TupleError, TxstreamError, UsageError
from txstream.core.semantics import Semantics
from txstream.core.transaction import TransactionAttempt, Txid, attempt_id
from txstream.engine.batch.execution_plan import BoltSpec, ExecutionPlan, compile_topology
from txstream.engine.batch.executor_failures import TaskFailedError
from txstream.engine.batch.stage import Stopwatch, TaskRuntime
from txstream.engine.batch.worker_process import WorkerProcess
from txstream.engine.states.bindings import StateBinding
from txstream.engine.states.state_cells import Cells, UnfitCellError
from txstream.engine.states.worker_databases import OpenStores, StorePlace
from txstream.plugins.testing.attempts import Row, rows_of
from txstream.spouts.memory import MemoryRange
from txstream.state.folding import new_fold

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txstream.state import StateBackend, TableSpec

_TIMEOUT_SECONDS = 1.0


# A row is a tuple with a value for each field. When there is one field, a row may be that field's value
# itself, unless the value is a tuple.
Rows: TypeAlias = Sequence[Any]
Schema: TypeAlias = str | pa.Schema

_NO_ROWS = "test-rows"


@dataclass(frozen=True)
class BoltRun:
    """What a bolt did.

    streams: the tuples that it emitted, by stream, in the order of emission.
    direct: the tuples that it emitted directly, by stream, each with the task that was chosen.
    deltas: the rows that a state bolt folded: the key columns, then one delta per value column.
    instance: the bolt as it was at the end; None for a DataFrameBolt.
    states: the states that the bolt reads and writes itself, by name, after its batch has been written.
    written: what it wrote to them: value by key.
    """

    streams: Mapping[str, list[Row]]
    direct: Mapping[str, list[tuple[int, Row]]] = field(default_factory=dict)
    deltas: list[Row] = field(default_factory=list)
    instance: Bolt | None = None
    states: Mapping[str, dict[Any, Any]] = field(default_factory=dict)
    written: Mapping[str, dict[Any, Any]] = field(default_factory=dict)

    @property
    def emitted(self) -> list[Row]:
        """The tuples emitted to the default stream. Raises UsageError for a bolt that declares none."""
        if DEFAULT_STREAM not in self.streams:
            raise UsageError(
                f"this bolt declares no default stream; it declares "
                f"{', '.join(map(repr, self.streams)) or 'no output'}"
            )
        return self.streams[DEFAULT_STREAM]


def run_bolt(
    bolt: Bolt,
    rows: Rows | Mapping[str, Rows],
    schema: Schema | Mapping[str, Schema],
    *,
    component: str = "bolt",
    attempt: TransactionAttempt | None = None,
    task: int = 0,
    task_count: int = 1,
    task_counts: Mapping[str, int] | None = None,
    settings: Mapping[str, Any] | None = None,
    chunk_rows: int | None = None,
    finish: bool = True,
    spark: SparkSession | None = None,
    states: Mapping[str, Mapping[Any, Any]] | None = None,
) -> BoltRun:
    """Run one task of a bolt for one attempt: `prepare_worker`, `prepare`, all rows, `finish_batch`,
    `close_worker`. It runs a fresh copy of the bolt that went through pickle, as in a run.

    rows, schema: the input and its fields, such as "word string, n bigint". For several inputs both are
        mappings by component. A component's name takes ".stream" for a stream other than the default one. The
        inputs come in the order of `rows`, one after the other.
    component, attempt, task, task_count, settings: what the bolt finds in its context. `task_counts` are the
        task counts of other components.
    chunk_rows: how many rows come at once, for bolts that override `execute_batch` or `execute_chunk`. None
        passes each input whole.
    finish: False leaves the batch as it is after its last tuple.
    spark: the session that a DataFrameBolt runs on. Other bolts need none.
    states: what the bolt's declared states hold before the batch: by name, value by key. A state that is not
        given is empty. The task may write any key here; in a run, only the keys that its grouping sends to
        it.

    Raises what an attempt in a run fails with: the bolt's own TxstreamError, or for any other error a
    BoltError that names component, task and tuple, with that error as its cause. Raises TopologyError and
    SchemaError as `build` does, UsageError and TupleError for rows that do not fit `schema`.
    """
    check_bolt(component, bolt)
    check_methods(component, bolt)
    if not 0 <= task < task_count:
        raise UsageError(f"task {task} is none of {task_count} tasks, which count from 0")
    inputs = [_Input(name, *parsed) for name, parsed in _inputs(rows, schema).items()]
    instance = copy.copy(bolt)
    declarer = OutputFieldsDeclarer(component, [given.schema for given in inputs])
    instance.declare_output_fields(declarer)
    attempt = attempt or TransactionAttempt(Txid(1), attempt_id(1, 1))
    declared = Component(
        id=component,
        instance=instance,
        parallelism=1,
        tasks=task_count,
        streams=declarer.streams,
        inputs=tuple(Grouping(GroupingKind.GLOBAL, given.source, given.stream) for given in inputs),
        is_committer=isinstance(bolt, Committer),
        direct_streams=frozenset(declarer.direct_streams),
    )
    if isinstance(bolt, DataFrameBolt):
        if spark is None:
            raise UsageError(
                f"{type(bolt).__name__} is a DataFrameBolt, which Spark computes; pass spark=, a SparkSession"
            )
        with _interruptible():
            return _run_on_spark(declared, inputs, attempt, settings or {}, spark)
    plan = _compile([declared], settings or {})
    kept = BoltStates(instance, component, states or {})
    plan = replace(
        plan, bolts=(*plan.bolts, *_others(task_counts or {}, component)), bindings={component: kept.bindings}
    )
    with _interruptible():
        return _run_task(plan, plan.bolts[0], inputs, attempt, task, chunk_rows, kept, finish=finish)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Raise a KeyboardInterrupt as itself. The bolt runs in the thread that Ctrl-C interrupts, so its error
    may have one as its cause."""
    try:
        yield
    except TxstreamError as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, KeyboardInterrupt):
                raise cause from None
            cause = cause.__cause__
        raise


# --- the input ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Input:
    """The rows of one subscription. `name` is a component, with ".stream" unless it is the default stream."""

    name: str
    schema: pa.Schema
    batch: pa.RecordBatch

    @property
    def source(self) -> str:
        return self.name.partition(".")[0]

    @property
    def stream(self) -> str:
        return self.name.partition(".")[2] or DEFAULT_STREAM


def _inputs(
    rows: Rows | Mapping[str, Rows], schema: Schema | Mapping[str, Schema]
) -> dict[str, tuple[pa.Schema, pa.RecordBatch]]:
    if isinstance(rows, Mapping) != isinstance(schema, Mapping):
        raise UsageError("give rows and schema both for one input, or both as mappings by input")
    by_input = dict(rows) if isinstance(rows, Mapping) else {"input": rows}
    schemas = dict(schema) if isinstance(schema, Mapping) else {"input": schema}
    if set(by_input) != set(schemas):
        raise UsageError(
            f"rows are given for {', '.join(sorted(by_input))}, schemas for {', '.join(sorted(schemas))}"
        )
    found: dict[str, tuple[pa.Schema, pa.RecordBatch]] = {}
    for name, given in by_input.items():
        parsed = parse_schema(schemas[name])
        found[name] = (parsed, _batch(name, given, parsed))
    return found


def _batch(name: str, rows: Rows, schema: pa.Schema) -> pa.RecordBatch:
    if isinstance(rows, (str, bytes)) or not isinstance(rows, Iterable):
        raise UsageError(f"the rows of {name!r} must be a list of rows, not {rows!r:.100}")
    values = [row if isinstance(row, tuple) or len(schema) != 1 else (row,) for row in rows]
    for number, row in enumerate(values):
        if not isinstance(row, (tuple, list)) or len(row) != len(schema):
            raise TupleError(
                f"row {number} of {name!r} is {row!r:.200}; its schema takes {len(schema)} field(s): "
                f"{format_schema(schema)}"
            )
    try:
        return to_record_batch(values, schema)
    except UnfitValueError as error:
        raise TupleError(
            f"row {error.row} of {name!r} has {error.value!r:.200} in field {error.field.name!r}, which is "
            f"{format_type(error.field.type)}"
        ) from error


# --- in this process ---------------------------------------------------------------------------------------


def _run_task(
    plan: ExecutionPlan,
    spec: BoltSpec,
    inputs: Sequence[_Input],
    attempt: TransactionAttempt,
    task: int,
    chunk_rows: int | None,
    kept: BoltStates,
    *,
    finish: bool,
) -> BoltRun:
    streams: dict[str, list[Row]] = {stream: [] for stream in spec.streams}
    direct: dict[str, list[tuple[int, Row]]] = {stream: [] for stream in spec.direct_streams}

    def send(_: int, batch: pa.RecordBatch, stream: str, chosen: int | None) -> None:
        streams[stream] += rows_of(batch)
        if chosen is not None:
            direct[stream] += [(chosen, row) for row in rows_of(batch)]

    process = WorkerProcess(plan)
    process.stores = kept
    try:
        runtime = TaskRuntime(spec, task, 0, attempt, process, send, Stopwatch())
        for given in inputs:
            for batch in _chunks(given.batch, chunk_rows):
                runtime.receive(Chunk(batch, given.source, given.stream))
        deltas: list[Row] = []
        if finish:
            runtime.finish()
            if isinstance(runtime.bolt, StateCommitter):
                with runtime.working():
                    fold = new_fold(runtime.bolt)
                    fold.add_partial(runtime.bolt.deltas())
                    deltas = rows_of(fold.finish())
        return BoltRun(streams, direct, deltas, runtime.bolt, kept.rows, kept.written)
    except TaskFailedError as error:
        raise error.failure.to_error(attempt) from error.__cause__
    finally:
        process.close()


def _chunks(batch: pa.RecordBatch, rows: int | None) -> Iterator[pa.RecordBatch]:
    size = rows or max(1, batch.num_rows)
    for start in range(0, batch.num_rows, size):
        yield batch.slice(start, size)


def _others(task_counts: Mapping[str, int], component: str) -> Iterator[BoltSpec]:
    """Yield the other components. They do not run; only their tasks are counted."""
    for name, tasks in task_counts.items():
        if name != component:
            yield BoltSpec(id=name, pickled=b"", tasks=tasks, slots=1, inputs=(), streams={})


# --- on Spark ----------------------------------------------------------------------------------------------


class _Feed(BatchBolt):
    """Stands in for a component above the tested one: emits the given rows."""

    def __init__(self, batches: Mapping[str, pa.RecordBatch]) -> None:
        self.batches = batches

    def execute(self, tup: Any) -> None:
        raise NotImplementedError("nothing is read above the rows of a test")

    def finish_batch(self) -> None:
        for stream, batch in self.batches.items():
            self.collector.emit_batch(batch, stream)


def _run_on_spark(
    declared: Component,
    inputs: Sequence[_Input],
    attempt: TransactionAttempt,
    settings: Mapping[str, Any],
    spark: SparkSession,
) -> BoltRun:
    from txstream.engine.spark.spark_runner import SparkRunner

    components = []
    for source in dict.fromkeys(given.source for given in inputs):
        given_here = {given.stream: given for given in inputs if given.source == source}
        components.append(
            Component(
                id=source,
                instance=_Feed({stream: given.batch for stream, given in given_here.items()}),
                parallelism=1,
                tasks=1,
                streams={stream: given.schema for stream, given in given_here.items()},
                inputs=(Grouping(GroupingKind.GLOBAL, _NO_ROWS),),
            )
        )
    runner = SparkRunner(spark.sparkContext, _compile([*components, declared], settings, capture=True), spark)
    try:
        result = runner.run(attempt, BatchMetas())
        runner.release(result)
    finally:
        runner.close()
    streams: dict[str, list[Row]] = {stream: [] for stream in declared.streams}
    for emitted in sorted(result.emitted, key=lambda emitted: emitted.task):
        if emitted.component == declared.id:
            streams[emitted.stream] += rows_of(emitted.tuples)
    return BoltRun(streams)


# --- the plan ----------------------------------------------------------------------------------------------


def _compile(
    components: Sequence[Component], settings: Mapping[str, Any], *, capture: bool = False
) -> ExecutionPlan:
    """Compile a plan of these components below a spout without rows."""
    spout = OpaqueSpout(_NoRows())
    topology = Topology(
        id="test",
        components=(Component(_NO_ROWS, spout, 1, 1, {DEFAULT_STREAM: spout.output}), *components),
        max_spout_pending=1,
        message_timeout_seconds=1.0,
        max_attempts=1,
        settings=settings,
    )
    context = SpoutContext(topology.id, _NO_ROWS, {})
    return compile_topology(topology, context, uuid.uuid4().hex, capture=capture)


class _NoRows(PartitionedSpout[MemoryRange]):
    """A source that is never read."""

    output = "nothing string"
    meta_type: ClassVar[type[MemoryRange]] = MemoryRange

    def coordinator(self, context: SpoutContext) -> PartitionCoordinator[MemoryRange]:
        raise UsageError("the bolt's input are the rows of the test")

    def emitter(self, context: SpoutContext) -> PartitionEmitter[MemoryRange]:
        raise UsageError("the bolt's input are the rows of the test")


class BoltStates(OpenStores):
    """The states that a bolt declares, each a store of its own. The state's name serves as the store's URL.

    Raises TopologyError when `states` is not a mapping of names to SqlState, UsageError for rows of a state
    that is not declared, StateValueError for rows that a table cannot hold.
    """

    def __init__(self, bolt: Bolt, component: str, rows: Mapping[str, Mapping[Any, Any]]) -> None:
        super().__init__()
        declared = bolt.states if isinstance(bolt, BatchBolt) else {}
        if not isinstance(declared, Mapping) or not all(isinstance(s, SqlState) for s in declared.values()):
            raise TopologyError(
                f"component {component!r}: its attribute states is {declared!r:.200}; it must be a mapping "
                f"of names to SqlState"
            )
        unknown = sorted(set(rows) - set(declared))
        if unknown:
            raise UsageError(
                f"component {component!r} declares no state {unknown[0]!r}; it declares "
                f"{', '.join(map(repr, declared)) or 'none'}"
            )
        self._stores = {name: _DictStore(name, state, rows.get(name, {})) for name, state in declared.items()}
        self.bindings = {name: _binding(name, state) for name, state in declared.items()}

    @property
    def rows(self) -> dict[str, dict[Any, Any]]:
        """What each state holds: value by key."""
        return {name: dict(store.rows) for name, store in self._stores.items()}

    @property
    def written(self) -> dict[str, dict[Any, Any]]:
        """What was written to each state: value by key."""
        return {name: dict(store.written) for name, store in self._stores.items()}

    def get(self, place: StorePlace, topology: str) -> StateBackend:
        return self._stores[place.url]  # type: ignore[return-value]  # a task reads and writes, no more


class _DictStore:
    """The parts of a `StateBackend`, and of the topology bound to it, that a task needs."""

    def __init__(self, name: str, state: SqlState, rows: Mapping[Any, Any]) -> None:
        self._keys = Cells(state.key_schema, are_keys=True)
        self._values = Cells(state.value_schema, are_keys=False)
        self._schema = pa.schema([*state.key_schema, *state.value_schema]).remove_metadata()
        self.written: dict[Any, Any] = {}
        try:
            self.rows = {self._keys.fit(key): self._values.fit(value) for key, value in rows.items()}
        except UnfitCellError as error:
            raise StateValueError(f"the rows of state {name!r} (table {state.table!r}): {error}") from error

    def of(self, topology: str, uuid: str, semantics: Semantics) -> _DictStore:
        return self

    def read(self, spec: TableSpec, keys: pa.Table, *, before: Txid) -> pa.Table:
        found = [key for key in self._keys.read(keys) if key in self.rows]
        columns = [*self._keys.columns(found), *self._values.columns([self.rows[key] for key in found])]
        return pa.Table.from_arrays(columns, schema=self._schema)

    def write(self, attempt: TransactionAttempt, writes: Sequence[tuple[TableSpec, pa.Table]]) -> int:
        for _, deltas in writes:
            self.written.update(zip(self._keys.read(deltas), self._values.read(deltas), strict=True))
        self.rows.update(self.written)
        return sum(deltas.num_rows for _, deltas in writes)


def _binding(name: str, state: SqlState) -> StateBinding:
    return StateBinding(
        place=StorePlace(name, _TIMEOUT_SECONDS, _TIMEOUT_SECONDS),
        topology="test",
        uuid="test",
        state=state,
        table_semantics=Semantics.OPAQUE,
        semantics=Semantics.OPAQUE,
        reducers={column: Put() for column in state.value_names},
    )
