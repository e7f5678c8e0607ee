"""What a topology's tables must hold, without the engine: the bolts called one after the other, the reducers
in Python, dicts for tables. The truth of `simulate` and `compare`.

Over 500 lines: it says again, in its own words, all that bolts, groupings and tables do.

Invariants. Nothing here comes from the engine or from a state store: a mistake that both made would look
right. Shared with them are what bolts get (`Tuple`, `TopologyContext`), the types of streams, and the
published hash of a fields grouping. Batches come one after the other; bolts have fresh instances for each.
A bolt reads its states as they were before the batch, with what its own task has written since.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Context, Decimal
from functools import reduce
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark import cloudpickle

from txstream.api.bolts import (
    BasicBolt,
    BatchBolt,
    StateCommitter,
    TopologyContext,
    WorkerContext,
    overrides,
)
from txstream.api.groupings import Grouping, GroupingKind
from txstream.api.map_state import MapState, Updater
from txstream.api.reducers import Count, Custom, Last, Max, Min, Reducer, Sum
from txstream.api.rows import to_record_batch
from txstream.api.stable_hash import task_of
from txstream.api.state import SqlState
from txstream.api.topology import Component, Topology
from txstream.api.tuples import DEFAULT_STREAM, Chunk
from txstream.bolts.aggregate import CountBolt, ReduceBolt
from txstream.bolts.append import SqlAppendBolt
from txstream.bolts.sql import SqlStateBolt
from txstream.core.errors import (
    BatchFailedError,
    BoltError,
    TupleError,
    TxstreamError,
    UsageError,
)
from txstream.core.transaction import AttemptId, TransactionAttempt, Txid

Values = tuple[Any, ...]
Table = dict[Values, Values]
Tables = dict[str, Table]
"""The values by key of each state table."""
Batch = Mapping[str, pa.RecordBatch]
"""The rows of a batch by partition."""

_ATTEMPTS = 10  # of a bolt that asks for a replay
_EXACT = Context(prec=200)
_EVENLY = (GroupingKind.SHUFFLE, GroupingKind.LOCAL_OR_SHUFFLE, GroupingKind.NONE)


class Delivery(NamedTuple):
    """Tuples on their way to a task."""

    source: str
    stream: str
    source_task: int
    rows: pa.RecordBatch


class Emitted(NamedTuple):
    """What a task emitted to a stream, in order; `direct` is the task that it chose."""

    task: int
    stream: str
    direct: int | None
    rows: pa.RecordBatch


Inboxes = Sequence[Sequence[Delivery]]
"""What each task of a bolt gets in a batch."""


@dataclass(frozen=True)
class Spec:
    """One bolt, as plain values that another process can be given."""

    id: str
    pickled: bytes
    tasks: int
    streams: Mapping[str, pa.Schema]
    topology: str
    settings: Mapping[str, Any]
    task_counts: Mapping[str, int]
    addresses: Mapping[str, str]


class Runner:
    """Calls one bolt, batch after batch. `tables` are its states, by the names that it gives them."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        bolt = self._fresh()
        states = bolt.states if isinstance(bolt, BatchBolt) else {}
        self.states: Mapping[str, SqlState] = dict(states)
        self.tables: dict[str, Table] = {name: {} for name in states}
        self.folded: Table = {}
        self.removed: dict[Values, Any] = {}  # the sequence of each removal
        if isinstance(bolt, StateCommitter):
            self.states = {"": bolt.state}
            self.tables = {"": self.folded}
        self._home = bolt
        self._resource: Any = None
        self._is_ready = False

    def run(self, txid: int, inboxes: Inboxes) -> list[Emitted]:
        """Give a batch to its tasks and return what they emit. Raises BoltError with what user code raised; a
        bolt that asks for a replay gets one."""
        for number in range(_ATTEMPTS):
            attempt = TransactionAttempt(Txid(txid), AttemptId(txid + (number << 32)))
            try:
                return self._run(attempt, inboxes)
            except BatchFailedError as error:
                failed = error
            except TxstreamError:
                raise
            except Exception as error:
                raise BoltError(
                    f"component {self.spec.id!r} raised {type(error).__name__}: {error}"
                ) from error
        raise failed

    def close(self) -> None:
        """Close what the bolt has opened for its process."""
        if self._is_ready:
            self._home.close_worker(self._resource)

    def _fresh(self) -> Any:
        return pickle.loads(self.spec.pickled)  # noqa: S301 - pickled by this very run

    def _run(self, attempt: TransactionAttempt, inboxes: Inboxes) -> list[Emitted]:
        if not self._is_ready:
            spec = self.spec
            worker = WorkerContext(spec.topology, spec.id, "0", "", spec.settings, spec.addresses)
            self._resource = self._home.prepare_worker(worker)
            self._is_ready = True
        found: list[Emitted] = []
        written: list[tuple[Table, Table]] = []
        for task, inbox in enumerate(inboxes):
            bolt = self._fresh()
            if type(bolt) is SqlAppendBolt:
                rows = _appended(self.folded, self.removed, bolt, list(_dicts(inbox)))
                written.append((self.folded, rows))
            elif type(bolt) is SqlStateBolt:
                keys = bolt.state.key_names
                deltas = _by_key(keys, bolt.reducers, _dicts(inbox))
                written.append((self.folded, _merged(self.folded, deltas, bolt)))
            elif type(bolt) in (ReduceBolt, CountBolt):
                by_key = _by_key(bolt.keys, bolt.reducers, _dicts(inbox))
                if not bolt.keys and not by_key:
                    by_key[()] = tuple(_partial(one, []) for one in bolt.reducers.values())
                found += self._emitted(task, {(DEFAULT_STREAM, None): [k + v for k, v in by_key.items()]})
            else:
                states = {name: _PlainState(self.states[name], table) for name, table in self._own()}
                out = _Collector(self.spec)
                self._call(bolt, task, attempt, states, out, inbox)
                found += self._emitted(task, out.rows)
                written += [(self.tables[name], state.written) for name, state in states.items()]
                if isinstance(bolt, StateCommitter):
                    named = [tuple(row.values()) for row in bolt.deltas().to_pylist()]
                    wide, end = len(bolt.state.key_names), len(bolt.reducers) + len(bolt.state.key_names)
                    rows = {row[:wide]: row[wide:end] for row in named}
                    written.append((self.folded, _merged(self.folded, rows, bolt)))
        for table, values in written:
            table.update(values)
            for key in self.removed.keys() & values.keys():
                del table[key]
        return found

    def _own(self) -> Iterable[tuple[str, Table]]:
        return () if "" in self.states else self.tables.items()

    def _emitted(self, task: int, rows: Mapping[tuple[str, int | None], list[Values]]) -> list[Emitted]:
        return [
            Emitted(task, stream, direct, to_record_batch(some, self.spec.streams[stream]))
            for (stream, direct), some in rows.items()
            if some
        ]

    def _call(
        self,
        bolt: Any,
        task: int,
        attempt: TransactionAttempt,
        states: Mapping[str, MapState[Any, Any]],
        out: _Collector,
        inbox: Sequence[Delivery],
    ) -> None:
        spec = self.spec
        context = TopologyContext(
            spec.topology,
            spec.id,
            task,
            spec.tasks,
            attempt,
            settings=spec.settings,
            task_counts=spec.task_counts,
            task_id=task,
            task_ids={name: range(count) for name, count in spec.task_counts.items()},
            resource=self._resource,
            states=states,
        )
        is_basic = isinstance(bolt, BasicBolt)
        if is_basic:
            bolt.prepare(context)
        else:
            bolt.prepare(context, out, attempt)
        for delivery in inbox:
            chunk = Chunk(delivery.rows, delivery.source, delivery.stream, delivery.source_task)
            if is_basic and overrides(bolt, BasicBolt.execute_batch):
                bolt.execute_batch(delivery.rows, out)
            elif is_basic:
                for tup in chunk.tuples():
                    bolt.execute(tup, out)
            else:
                bolt.execute_chunk(chunk)
        if not is_basic and not isinstance(bolt, StateCommitter):
            bolt.finish_batch()


class _Collector:
    """Keeps what a bolt emits, by stream and chosen task."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self.rows: dict[tuple[str, int | None], list[Values]] = {}

    def emit(self, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        self._add(None, values, stream)

    def emit_direct(self, task: int, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        self._add(task, values, stream)

    def emit_batch(self, batch: pa.RecordBatch, stream: str = DEFAULT_STREAM) -> None:
        for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            self._add(None, values, stream)

    def _add(self, direct: int | None, values: Sequence[Any], stream: str) -> None:
        if stream not in self._spec.streams or len(values) != len(self._spec.streams[stream]):
            raise TupleError(f"component {self._spec.id!r} emitted {values!r:.200} to stream {stream!r}")
        self.rows.setdefault((stream, direct), []).append(tuple(values))


class _PlainState(MapState[Any, Any]):
    """A state as one task sees it in one batch."""

    def __init__(self, state: SqlState, before: Table) -> None:
        self._state = state
        self._before = before
        self.written: Table = {}

    def multi_get(self, keys: Sequence[Any]) -> list[Any]:
        return [self._get(_fitted(key, self._state.key_schema)) for key in keys]

    def multi_put(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        for key, value in zip(keys, values, strict=True):
            self._put(_fitted(key, self._state.key_schema), value)

    def multi_update(self, keys: Sequence[Any], updaters: Updater[Any] | Sequence[Updater[Any]]) -> list[Any]:
        chosen = [updaters] * len(keys) if callable(updaters) else updaters
        fitted = [_fitted(key, self._state.key_schema) for key in keys]
        return [self._put(key, by(self._get(key))) for key, by in zip(fitted, chosen, strict=True)]

    def _get(self, key: Values) -> Any:
        found = self.written.get(key, self._before.get(key))
        return None if found is None else found[0] if len(found) == 1 else found

    def _put(self, key: Values, value: Any) -> Any:
        self.written[key] = _fitted(value, self._state.value_schema)
        return self._get(key)


def _fitted(given: Any, schema: pa.Schema) -> Values:
    """Return a key or a value as its columns hold it."""
    parts = (given,) if len(schema) == 1 else tuple(given)
    return tuple(pa.scalar(part, kind).as_py() for part, kind in zip(parts, schema.types, strict=True))


# --- reducers ----------------------------------------------------------------------------------------------


def _dicts(inbox: Sequence[Delivery]) -> Iterator[dict[str, Any]]:
    for delivery in inbox:
        yield from delivery.rows.to_pylist()


def _by_key(keys: Sequence[str], reducers: Mapping[str, Reducer], rows: Iterable[Mapping[str, Any]]) -> Table:
    """Return what rows add to each key."""
    grouped: dict[Values, list[Mapping[str, Any]]] = {}
    for row in rows:
        grouped.setdefault(tuple(row[name] for name in keys), []).append(row)
    return {
        key: tuple(_partial(reducer, some) for reducer in reducers.values()) for key, some in grouped.items()
    }


def _partial(reducer: Reducer, rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return what the rows of a key make. Nulls are skipped."""
    if isinstance(reducer, Count) and reducer.field is None:
        return len(rows)
    name = reducer.field or ""
    rows = [row for row in rows if row[name] is not None]
    values = [row[name] for row in rows]
    if isinstance(reducer, Count):
        return len(values)
    if isinstance(reducer, Sum):
        return reduce(_plus, values, 0)
    if isinstance(reducer, Min | Max):
        chosen: Any = min if isinstance(reducer, Min) else max
        return chosen(values, default=None)
    if isinstance(reducer, Last):
        by = (*reducer.order_fields, name)
        return max(rows, key=lambda row: [_place(row[one]) for one in by])[name] if rows else None
    if isinstance(reducer, Custom):
        merged = reducer.start
        for value in values:
            merged = value if merged is None else reducer.fn(merged, value)
        return merged
    raise UsageError(f"the plain fold does not know the reducer {reducer}")


def _appended(
    stored: Table, removed: dict[Values, Any], bolt: SqlAppendBolt, rows: Sequence[Mapping[str, Any]]
) -> Table:
    """Return the rows that a batch adds to a `SqlTable` or changes in it. Where a key may not come twice, the
    run itself must refuse the second row. A key that is in `removed` afterwards has no row."""
    table, found = bolt.state, Table()
    names = (*bolt.order_by, *table.shown_names)
    for row in sorted(rows, key=lambda row: [_place(row[name]) for name in names]):
        key = _columns(row, table.key_schema)
        if table.sequence_by is not None:
            place = table.shown_names.index(table.sequence_by)
            there = found.get(key, stored.get(key))
            before = removed.get(key) if there is None or key in removed else there[place]
            if before is not None and row[table.sequence_by] < before:
                continue
        if table.on_conflict == "replace" or (key not in stored and key not in found):
            found[key] = _columns(row, table.shown_schema)
            removed.pop(key, None)
            if bolt.removal is not None and bolt.removal.marks(row[bolt.removal.field]):
                removed[key] = None if table.sequence_by is None else row[table.sequence_by]
    return found


def _columns(row: Mapping[str, Any], schema: pa.Schema) -> Values:
    return tuple(pa.scalar(row[field.name], field.type).as_py() for field in schema)


def _merged(stored: Mapping[Values, Values], deltas: Mapping[Values, Values], bolt: StateCommitter) -> Table:
    """Return the rows that deltas change, as the columns of the table hold them."""
    state, found = bolt.state, {}
    for key, delta in deltas.items():
        old = stored.get(key, (None,) * len(delta))
        reducers = bolt.reducers.values()
        values = tuple(_one_merged(*three) for three in zip(reducers, old, delta, strict=True))
        found[_fitted(key if len(key) > 1 else key[0], state.key_schema)] = _fitted(
            values if len(values) > 1 else values[0], state.value_schema
        )
    return found


def _one_merged(reducer: Reducer, stored: Any, delta: Any) -> Any:
    if stored is None or delta is None:
        return delta if stored is None else stored
    if isinstance(reducer, Count | Sum):
        return _plus(stored, delta)
    if isinstance(reducer, Min | Max):
        return min(stored, delta) if isinstance(reducer, Min) else max(stored, delta)
    return reducer.fn(stored, delta) if isinstance(reducer, Custom) else delta  # the later batch is the last


def _plus(one: Any, other: Any) -> Any:
    decimal = isinstance(one, Decimal) or isinstance(other, Decimal)
    return _EXACT.add(Decimal(one), Decimal(other)) if decimal else one + other


def _place(value: Any) -> tuple[int, Any]:
    """Return a value's place in an order in which null comes first and NaN last."""
    if value is None:
        return 0, 0
    return (2, 0) if isinstance(value, float) and math.isnan(value) else (1, value)


# --- the walk over the graph -------------------------------------------------------------------------------


@dataclass
class PlainFold:
    """The fold of one topology, to which batches are added. With `evenly` False, the groupings that may
    choose any task always choose the first.

    `calls` is what each bolt got and emitted in each batch, by component, if `keeps_calls`. What `replaced`
    has for a component counts as what it emitted, by batch.
    """

    topology: Topology
    evenly: bool = True
    keeps_calls: bool = False
    addresses: Mapping[str, str] = field(default_factory=dict)
    replaced: Mapping[str, Sequence[list[Emitted]]] = field(default_factory=dict)
    calls: dict[str, list[tuple[Inboxes, list[Emitted]]]] = field(default_factory=dict)
    batches: int = 0

    def __post_init__(self) -> None:
        topology = self.topology
        counts = {one.id: one.tasks for one in topology.bolts}
        self.runners = {
            one.id: Runner(
                Spec(
                    one.id,
                    cloudpickle.dumps(one.instance),  # type: ignore[no-untyped-call]  # pyspark's copy
                    one.tasks,
                    one.streams,
                    topology.id,
                    topology.settings,
                    counts,
                    self.addresses,
                )
            )
            for one in topology.bolts
        }

    def add(self, batch: Batch) -> None:
        """Run the bolts over a batch, from the spout down. Raises what `Runner.run` raises."""
        self.batches += 1
        spout = self.topology.components[0]
        stream = next(iter(spout.streams))
        emitted = {spout.id: [Emitted(0, stream, None, rows) for rows in batch.values() if rows.num_rows]}
        for component in self.topology.bolts:
            inboxes = self._inboxes(component, emitted)
            found = self.runners[component.id].run(self.batches, inboxes)
            if component.id in self.replaced:
                found = self.replaced[component.id][self.batches - 1]
            emitted[component.id] = found
            if self.keeps_calls:
                self.calls.setdefault(component.id, []).append((inboxes, found))

    def tables(self) -> Tables:
        """Return what the tables hold now."""
        return {
            runner.states[name].table: dict(table)
            for runner in self.runners.values()
            for name, table in runner.tables.items()
        }

    def go_on_from(self, tables: Tables, batches: int) -> None:
        """Go on as if so many batches had left these tables."""
        self.batches = batches
        for runner in self.runners.values():
            for name, table in runner.tables.items():
                table.clear()
                table.update(tables[runner.states[name].table])

    def close(self) -> None:
        for runner in self.runners.values():
            runner.close()

    def _inboxes(self, component: Component, emitted: Mapping[str, Sequence[Emitted]]) -> Inboxes:
        # The deltas of a state's tasks are merged before they are written: one task makes them all.
        tasks = 1 if isinstance(component.instance, StateCommitter) else component.tasks
        inboxes: list[list[Delivery]] = [[] for _ in range(tasks)]
        for given in component.inputs:
            at = 0
            for one in emitted[given.component]:
                if one.stream != given.stream:
                    continue
                chosen = self._tasks(given, one, tasks, at)
                at += one.rows.num_rows
                for task, inbox in enumerate(inboxes):
                    rows = one.rows
                    if chosen is not None:
                        rows = rows.take(pa.array([n for n, t in enumerate(chosen) if t == task], pa.int64()))
                    if rows.num_rows:
                        inbox.append(Delivery(given.component, given.stream, one.task, rows))
        return inboxes

    def _tasks(self, given: Grouping, one: Emitted, tasks: int, at: int) -> list[int] | None:
        """Return the task of each row; None if every task gets all of them."""
        rows = one.rows.num_rows
        if tasks == 1 or given.kind is GroupingKind.ALL:
            return None
        if one.direct is not None:
            return [one.direct] * rows
        if given.kind in (GroupingKind.FIELDS, GroupingKind.PARTIAL_KEY):
            keys = zip(*(one.rows.column(name).to_pylist() for name in given.fields), strict=True)
            return [task_of(key, tasks) for key in keys]
        if given.kind in _EVENLY and self.evenly:
            return [(at + number) % tasks for number in range(rows)]
        return [0] * rows


def plain_fold(
    topology: Topology, batches: Iterable[Batch], *, evenly: bool = True, addresses: Mapping[str, str] = {}
) -> Tables:
    """Return what a topology's tables hold after these batches. Raises as `PlainFold.add`."""
    fold = PlainFold(topology, evenly, addresses=addresses)
    try:
        for batch in batches:
            fold.add(batch)
    finally:
        fold.close()
    return fold.tables()


# --- comparing tables ---------------------------------------------------------------------------------------


def equal(found: Mapping[Any, tuple[Any, ...]], expected: Mapping[Any, tuple[Any, ...]]) -> bool:
    """Return whether two tables are equal. Floats need only be close, as a sum depends on their order."""
    if found == expected:
        return True
    return found.keys() == expected.keys() and all(
        one == other or (isinstance(one, float) and isinstance(other, float) and math.isclose(one, other))
        for key, values in found.items()
        for one, other in zip(values, expected[key], strict=True)
    )


def difference(expected: Mapping[Any, Any], found: Mapping[Any, Any]) -> str:
    """Say in what two tables differ."""
    keys = [key for key in {**expected, **found} if found.get(key) != expected.get(key)]
    told = [
        f"{_one_or_all(key)} is {_one_or_all(found.get(key))}, not {_one_or_all(expected.get(key))}"
        for key in keys[:3]
    ]
    more = f" and {len(keys) - 3} further rows differ" if len(keys) > 3 else ""
    return f"{'; '.join(told)}{more}"


def _one_or_all(values: tuple[Any, ...] | None) -> str:
    return "missing" if values is None else repr(values[0] if len(values) == 1 else values)
