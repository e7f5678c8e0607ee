"""`replay`: runs committed batches again, dry, and compares what they would add with what they added.

What a batch added to a table is gone, except for its digest and the rows that no later batch has changed. An
opaque row that still carries the txid holds the value before it. So for those rows, and for keys that the
batch has not written, differences are shown by key. The others are counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from txstream.api.retention import late_rows
from txstream.api.state import REMOVED
from txstream.api.tuples import DEFAULT_STREAM
from txstream.core.digests import digest_of
from txstream.core.errors import UsageError
from txstream.core.transaction import AttemptId, Txid
from txstream.plugins.audit.dry_runs import DryBatch, DryRuns, Lookups, ReplayedTable, dry_runs
from txstream.plugins.audit.key_differences import KeyDifference, KeyDifferences, of_both
from txstream.settings import Settings

if TYPE_CHECKING:
    from txstream.api.reducers import Reducer
    from txstream.api.topology import Topology
    from txstream.engine.batch.runner_contract import BatchResult
    from txstream.state.reading import StateReading

_LOOK_UPS = 10_000
_MOST_DIFFERENCES = 10_000
_FLOAT_DIGITS = 1e-9


@dataclass(frozen=True, slots=True)
class ReplayChange:
    """A row that the replay would change differently: its value before the batch (None: no row), after the
    batch (None: the batch did not write it), and after the replay (None: the replay does not touch it)."""

    key: Mapping[str, Any]
    before: Mapping[str, Any] | None
    written: Mapping[str, Any] | None
    replayed: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class TableReplay:
    """One table in one batch. `rows` counts those of the replay, `rows_written` those of the batch.

    `same` is None if that is unknown, and `note` says why. `differs` names what differs: rows, keys, value
    columns. `changes` are some of the rows that differ. `untold` counts rows that cannot be compared: later
    batches have changed them since, they have expired (`keep`), or the table keeps no earlier values.
    """

    txid: Txid
    table: str
    same: bool | None
    rows: int | None = None
    rows_written: int | None = None
    differs: tuple[str, ...] = ()
    changes: tuple[ReplayChange, ...] = ()
    untold: int = 0
    note: str | None = None
    database: str | None = None


@dataclass(frozen=True, slots=True)
class BatchReplay:
    """One batch. `records` came from the source now, `records_read` when it was committed; `differs` says in
    words what it was made from then and is not there now: records, or the schema of an id. `tuples` are those
    of the component that was asked for: `txid` and `task`, then its fields."""

    txid: Txid
    attempt: AttemptId
    records: int
    records_read: int
    tables: tuple[TableReplay, ...]
    tuples: pa.Table | None = field(default=None, repr=False)
    differs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Replay:
    """The batches in the order of their txids. `into` is the table with the deltas, if one was asked for.
    `differences` are those of all batches by key, the largest first, of `differing` keys as many as were
    asked for. `looked_up` are the tables that rows were looked up in as they are today. `lookups` is "today"
    if there is one, "then" if all were read as they were before each batch, and `notes` says which."""

    topology: str
    batches: tuple[BatchReplay, ...]
    into: str | None = None
    differences: tuple[KeyDifference, ...] = ()
    differing: int = 0
    looked_up: tuple[str, ...] = ()
    lookups: Lookups = None
    notes: tuple[str, ...] = ()

    @property
    def tables(self) -> list[TableReplay]:
        return [table for batch in self.batches for table in batch.tables]

    @property
    def same(self) -> bool:
        """Whether at least one row could be compared, and all tables that could be are the same, made from
        the same records."""
        made = any(batch.differs for batch in self.batches)
        return self.shown and not made and all(table.same is not False for table in self.tables)

    @property
    def shown(self) -> bool:
        """Whether a table that could be compared got a row, from the batches or from the replay."""
        return any(table.same is not None and (table.rows or table.rows_written) for table in self.tables)

    @property
    def tuples(self) -> pa.Table | None:
        """The tuples of all batches."""
        found = [batch.tuples for batch in self.batches if batch.tuples is not None]
        return pa.concat_tables(found) if found else None


def replay(
    topology: Topology,
    txid: int,
    settings: Settings | None = None,
    *,
    last: int | None = None,
    component: str | None = None,
    stream: str | None = None,
    into: str | None = None,
    table: str | None = None,
    changes: int = 20,
    production: Topology | None = None,
    on_spark: bool = False,
) -> Replay:
    """Run batch `txid`, or those up to `last`, again over exactly the ledger's ranges, and compare what they
    would add to each table with what they added. Nothing of the topology is touched.

    With `component`, keep the tuples that it emitted to `stream` (by default its only one, or "default"); for
    a state's bolt, its deltas. With `into`, write the deltas of `table` (by default the only one) into a new
    table of this name. `changes` is the most rows to show of each table that differs, and the most keys to
    show of all of them. With `production`, the code that committed the batches, every key can be compared
    even if later batches have changed its row since (`key_differences`). It runs in this process unless
    `on_spark` or a DataFrame bolt asks for Spark.

    Raises UnknownTopologyError, UnknownTxidError, UsageError, DataLostError for a range that is gone,
    PartitionUnavailableError for one that cannot be read now, and the error with which an attempt fails.
    """
    end = txid if last is None else last
    if not 1 <= txid <= end:
        raise UsageError(f"txids {txid} to {end} are no range of txids, which begin at 1")
    with ExitStack() as stack:
        runs = stack.enter_context(
            dry_runs(topology, settings, capture=component is not None, on_spark=on_spark)
        )
        older = None if production is None else stack.enter_context(dry_runs(production, settings))
        wanted = None if component is None else _Wanted.of(runs, component, stream)
        tables = runs.tables()
        scratch = None if into is None else _scratch(tables, into, table)
        parts: list[tuple[int, pa.Table]] = []
        found: list[BatchReplay] = []
        differing = KeyDifferences()
        for batch, result in runs.replayed(range(txid, end + 1)):
            deltas = {one.component: one.deltas(result) for one in tables}
            if scratch is not None:
                parts.append((batch.attempt.txid, deltas[scratch.component]))
            compared = [
                _compared(runs, one, batch, deltas[one.component], changes, older, differing)
                for one in tables
            ]
            compared += [_left_out(name, batch) for name in runs.left_out]
            found.append(
                BatchReplay(
                    txid=batch.attempt.txid,
                    attempt=batch.attempt.attempt,
                    records=result.records,
                    records_read=batch.records,
                    tables=tuple(compared),
                    tuples=None if wanted is None else wanted.tuples(batch, result),
                    differs=tuple(batch.reading.differences(result.reading)),
                )
            )
        if scratch is not None and into is not None:
            _write_scratch(scratch, into, parts)
        asked = {one.component for one in tables} | ({component} if component is not None else set())
        looked_up = tuple(runs.looked_up_today(asked, txid))
        lookups, notes = runs.lookups(asked, txid, end)
    shown = differing.largest(changes)
    told = looked_up, lookups, tuple(notes)
    return Replay(topology.id, tuple(found), into, shown, len(differing), *told)


# --- what differs ------------------------------------------------------------------------------------------


def _left_out(name: str, batch: DryBatch) -> TableReplay:
    note = "filled in the commit phase, whose bolts are not run dry"
    return TableReplay(batch.attempt.txid, name, None, note=note)


def _compared(
    runs: DryRuns,
    table: ReplayedTable,
    batch: DryBatch,
    deltas: pa.Table,
    limit: int,
    production: DryRuns | None,
    differing: KeyDifferences,
) -> TableReplay:
    txid = batch.attempt.txid
    written = table.written_in(batch)
    if written is None or table.database is None:
        note = "the ledger has no digest of it: it was committed by an older txstream, or without this table"
        return TableReplay(txid, table.name, None, deltas.num_rows, note=note)
    place = table.database.display_url
    digest = digest_of(deltas, table.bolt.state.key_names)
    differs = tuple(written.differences(digest))
    if not differs:
        return TableReplay(txid, table.name, True, digest.rows, written.rows, database=place)
    if production is None and (looked_up := runs.looked_up_today([table.component], txid)):
        note = (
            f"what it would get today differs ({'; '.join(differs)}): it was looked up in "
            f"{', '.join(map(repr, looked_up))}, read as of today"
        )
        return TableReplay(txid, table.name, None, digest.rows, written.rows, note=note, database=place)
    exact = None if production is None else of_both(production, table, batch, deltas)
    most = max(limit, _MOST_DIFFERENCES) if exact is None else limit
    with table.database.read_state(runs.topology.id) as reading:
        changes, untold = _changes(reading, table, txid, deltas, most)
    if exact is None:
        keys = table.bolt.state.key_names
        told = ((tuple(one.key[n] for n in keys), one.before, one.written, one.replayed) for one in changes)
        differing.add(table, txid, told)
    else:
        untold = 0
        differing.add(table, txid, exact)
    return TableReplay(
        txid, table.name, False, digest.rows, written.rows, differs, changes[:limit], untold, database=place
    )


def _changes(
    reading: StateReading, table: ReplayedTable, txid: int, deltas: pa.Table, limit: int
) -> tuple[tuple[ReplayChange, ...], int]:
    stored = next(one for one in reading.tables() if one.name == table.name)
    if not stored.has_txid:
        return (), deltas.num_rows
    deltas, expired = _without_expired(reading, table, deltas)
    keys, reducers = table.bolt.state.key_names, table.bolt.reducers
    replayed = {tuple(row[name] for name in keys): row for row in deltas.to_pylist()}
    found: list[ReplayChange] = []
    untold = expired
    for row in reading.written_by(table.name, txid):
        delta = replayed.pop(tuple(row.key[name] for name in keys), None)
        after = None if delta is None or delta.get(REMOVED) else combined(reducers, row.prev, delta)
        written = None if row.removed else row.value
        if delta is not None and not stored.tells_before:
            untold += 1  # a transactional row does not keep its earlier value
        elif (
            delta is None or (after is None) is not (written is None) or not alike(after or {}, written or {})
        ):
            found.append(ReplayChange(row.key, row.prev, written, after))
    for number, (key, delta) in enumerate(replayed.items()):
        other = reading.find(table.name, key) if number < _LOOK_UPS and len(found) < limit else None
        if stored.keeps_older and other is not None and (other.txid or txid) < txid:
            continue  # the older row was kept, and still is
        is_forgotten = stored.removes and other is None  # a later batch may have removed it
        if number >= _LOOK_UPS or is_forgotten or (other and (other.txid is None or other.txid > txid)):
            untold += 1
        elif len(found) < limit:
            before = None if other is None else other.value
            names = dict(zip(keys, key, strict=True))
            after = None if delta.get(REMOVED) else combined(reducers, before, delta)
            found.append(ReplayChange(names, before, None, after))
    return tuple(found[:limit]), untold


def _without_expired(reading: StateReading, table: ReplayedTable, deltas: pa.Table) -> tuple[pa.Table, int]:
    """Return the rows that are not removed since, or about to be, and how many are."""
    state, last = table.bolt.state, reading.last
    horizon = None if last is None else last.metas.get("horizons", {}).get(state.table)
    if horizon is None or state.keep_on is None:
        return deltas, 0
    late = late_rows(deltas.column(state.keep_on), horizon)
    kept = deltas if late is None else deltas.filter(pc.invert(late))
    return kept, deltas.num_rows - kept.num_rows


def combined(
    reducers: Mapping[str, Reducer], stored: Mapping[str, Any] | None, delta: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a row's values with a delta merged in, as the table does it."""
    found: dict[str, Any] = {}
    for name, reducer in reducers.items():
        old, new = None if stored is None else stored.get(name), delta[name]
        is_merged = old is not None and new is not None
        found[name] = reducer.combine(old, new) if is_merged or reducer.merge == "put" else _either(old, new)
    return found


def _either(old: Any, new: Any) -> Any:
    return new if old is None else old


def alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether values are the same, floats except for their last digits. Columns that one side lacks do
    not count."""
    return all(
        math.isclose(value, other[name], rel_tol=_FLOAT_DIGITS)
        if isinstance(value, float) and isinstance(other[name], float)
        else value == other[name]
        for name, value in one.items()
        if name in other
    )


# --- tuples of a component ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Wanted:
    component: str
    stream: str
    schema: pa.Schema
    state: ReplayedTable | None = None

    @classmethod
    def of(cls, runs: DryRuns, component: str, stream: str | None) -> _Wanted:
        found = runs.topology.component(component)
        if component != runs.plan.spout_id and runs.plan.bolt(component).in_commit:
            raise UsageError(
                f"component {component!r} runs in the commit phase, which is not run dry; name one before it"
            )
        state = next((one for one in runs.tables() if one.component == component), None)
        if state is not None:
            schema = pa.schema([*state.bolt.state.key_schema, *state.bolt.state.value_schema])
            return cls(component, "", schema, state)
        if stream is None:
            stream = next(iter(found.streams)) if len(found.streams) == 1 else DEFAULT_STREAM
        if stream not in found.streams:
            streams = ", ".join(map(repr, found.streams)) or "none"
            raise UsageError(f"component {component!r} has no stream {stream!r}; it has {streams}")
        return cls(component, stream, found.streams[stream])

    def tuples(self, batch: DryBatch, result: BatchResult) -> pa.Table:
        return pa.concat_tables(self._parts(batch, result))

    def _parts(self, batch: DryBatch, result: BatchResult) -> Iterator[pa.Table]:
        yield self._placed(batch, 0, self.schema.empty_table())
        if self.state is not None:
            yield self._placed(batch, 0, self.state.deltas(result))
            return
        mine = [one for one in result.emitted if (one.component, one.stream) == (self.component, self.stream)]
        for emitted in sorted(mine, key=lambda one: one.task):
            yield self._placed(batch, emitted.task, emitted.tuples)

    def _placed(self, batch: DryBatch, task: int, tuples: pa.Table) -> pa.Table:
        """Return the tuples with txid and task in front, unless fields have these names."""
        table = pa.Table.from_arrays(tuples.columns, schema=self.schema.remove_metadata())
        for name, number in (("task", task), ("txid", batch.attempt.txid)):
            if name not in self.schema.names:
                column = pa.repeat(pa.scalar(number, pa.int64()), table.num_rows)
                table = table.add_column(0, name, pa.chunked_array([column]))
        return table


# --- a table of the deltas ---------------------------------------------------------------------------------


def _scratch(tables: Sequence[ReplayedTable], into: str, table: str | None) -> ReplayedTable:
    """Return the table whose deltas go into the new one. Raises UsageError before anything is run."""
    from txstream.plugins.audit.scratch_tables import refuse_scratch
    from txstream.state import StateDatabase

    found = [one for one in tables if table in (None, one.name)]
    if len(found) != 1:
        there = ", ".join(one.name for one in tables) or "none"
        raise UsageError(f"say by table (--table) whose deltas go into {into!r}; those replayed are {there}")
    (chosen,) = found
    if not isinstance(chosen.database, StateDatabase):
        raise UsageError(f"table {chosen.name!r} is in no SQL database, so {into!r} cannot be made beside it")
    refuse_scratch(chosen.database, into, chosen.bolt.state)
    return chosen


def _write_scratch(table: ReplayedTable, into: str, parts: Sequence[tuple[int, pa.Table]]) -> None:
    from txstream.plugins.audit.scratch_tables import write_scratch
    from txstream.state import StateDatabase

    if isinstance(table.database, StateDatabase):
        write_scratch(table.database, into, table.bolt.state, parts)
