"""`why`: finds the batches, partitions and offsets that made a value, by running batches again, newest first.

A batch is run whole. If it changes the row, halves of its ranges are run, then halves of those that change
it, down to single records. The parts must add up to the result of the whole batch. Where they do not, because
records act together (in a bolt that compares them, for example), the batch is reported as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from txstream.api.reducers import Reducer
from txstream.core.batch_metas import halves
from txstream.core.digests import digest_of
from txstream.core.errors import DataLostError, UsageError
from txstream.core.transaction import Txid
from txstream.engine.batch.runner_contract import BatchResult
from txstream.engine.commit.committer import merged_deltas
from txstream.inspect.keys import check_key, parse_key
from txstream.inspect.ledgers import UnknownTxidError, standing
from txstream.inspect.tables import place_of_table
from txstream.inspect.tabular import Tabular
from txstream.plugins.audit.dry_runs import DryBatch, DryRuns, Lookups, ReplayedTable, dry_runs
from txstream.plugins.audit.replaying import alike, combined
from txstream.settings import Settings
from txstream.spouts.ranges import RecordSpan

if TYPE_CHECKING:
    from txstream.api.topology import Topology
    from txstream.state import StateBackend
    from txstream.state.reading import StoredRow

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class WhyPart:
    """What one record added to the row. If `offset` is None, what `start` to `end` - 1 of a partition added;
    if `partition` is None, what the batch added. `value` is the row's value after it, of columns that are
    sums. `made` are the columns of a maximum or minimum whose value is this part's."""

    txid: Txid
    partition: str | None
    offset: int | None
    start: int | None
    end: int | None
    delta: Values
    value: Values
    made: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Why(Tabular):
    """The parts of a row's `value` as of txid `as_of`, newest first. `value` is None if there is no row.

    A record that made a maximum or minimum is among them however far back it is; if the table has no other
    columns, they are all. If `is_complete`, the parts make the whole value; otherwise `notes` say what ended
    the search. `txids` are the first and the last batch that were looked at. `lookups` is "then" if rows were
    looked up in a table as it was before each batch, and "today" if one was read as it is today; a note names
    the table.
    """

    topology: str
    database: str
    table: str
    key: Values
    value: Values | None
    as_of: Txid
    parts: tuple[WhyPart, ...] = ()
    is_complete: bool = False
    txids: tuple[Txid, Txid] | None = None
    notes: tuple[str, ...] = ()
    lookups: Lookups = None

    def as_table(self) -> tuple[str, list[str], list[Sequence[object]]]:
        rows: list[Sequence[object]] = [
            (one.txid, one.partition, one.offset, str(one.delta), str(one.value)) for one in self.parts
        ]
        title = f"why {self.table} has {self.value} for {self.key}, as of txid {self.as_of}"
        return title, ["txid", "partition", "offset", "delta", "value"], rows


def why(
    topology: Topology,
    table: str,
    key: Sequence[Any] | Mapping[str, Any],
    settings: Settings | None = None,
    *,
    limit: int = 20,
    within: int = 1000,
    exact: bool = True,
    parse: bool = False,
    on_spark: bool = False,
) -> Why:
    """Return which records made the value of a row: at most `limit` parts, searched for in at most `within`
    batches, back from the last one that changed the row. The search ends once the parts make the value.

    `key` is as for `get`, texts with `parse`. With `exact=False` parts are ranges of partitions, which takes
    fewer runs. Batches run in this process, or, several at once, `on_spark`. Raises as `replay` and `get`,
    and UsageError for a table that is filled in the commit phase, whose bolts are not run.
    """
    for name, number in (("limit", limit), ("within", within)):
        if number < 1:
            raise UsageError(f"{name} is {number}; it must be at least 1")
    with dry_runs(topology, settings, on_spark=on_spark) as runs:
        wanted, database = _table(runs, table)
        with database.read_state(topology.id) as reading:
            stored = next(one for one in reading.tables() if one.name == table)
            values = parse_key(table, stored.key, list(key)) if parse else check_key(table, stored.key, key)
            row, as_of = reading.find(table, values), reading.as_of
        answer = Why(
            topology=topology.id,
            database=database.display_url,
            table=table,
            key=dict(zip(stored.key.names, values, strict=True)),
            value=None if row is None else row.value,
            as_of=as_of,
        )
        if row is None:
            return answer
        search = _Search(runs, database, wanted, answer.key, row, limit, exact=exact)
        newest = as_of if row.txid is None else row.txid
        search.back_from(newest, within)
        looked = (min(search.looked_at), max(search.looked_at)) if search.looked_at else None
        lookups, notes = runs.lookups([wanted.component], *(looked or (newest, newest)))
    parts = (*_with_values(search.parts, row.value, wanted.bolt.reducers), *search.far_back)
    return replace(
        answer,
        parts=parts,
        is_complete=search.is_complete,
        txids=looked,
        notes=(*notes, *search.notes),
        lookups=lookups,
    )


def _table(runs: DryRuns, table: str) -> tuple[ReplayedTable, StateBackend]:
    if table in runs.left_out:
        raise UsageError(
            f"table {table!r} is filled in the commit phase, whose bolts are not run dry; `txstream show` "
            f"has the ranges of the batch that changed a row last"
        )
    for one in runs.tables():
        if one.name == table and one.database is not None:
            return one, one.database
    place_of_table(runs.topology.id, table, runs.databases, None)  # raises an error that lists the tables
    raise UsageError(f"the code of topology {runs.topology.id!r} does not fill table {table!r}")


@dataclass
class _Search:
    """The search from batch to batch, back in time."""

    runs: DryRuns
    database: StateBackend
    table: ReplayedTable
    key: Values
    row: StoredRow
    limit: int
    exact: bool
    parts: list[WhyPart] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    looked_at: list[Txid] = field(default_factory=list)
    is_complete: bool = False
    far_back: list[WhyPart] = field(default_factory=list)  # beyond the limit, for a maximum or minimum
    _total: Values | None = None
    _is_cut: bool = False

    def __post_init__(self) -> None:
        extremes = [name for name, reducer in self._reducers.items() if reducer.merge in ("max", "min")]
        # The extremes whose record is not found yet. Without other columns nothing else is looked for.
        self._sought = [name for name in extremes if self.row.value[name] is not None]
        self._only_extremes = len(extremes) == len(self._reducers)

    def back_from(self, newest: Txid, within: int) -> None:
        last = max(1, newest - within + 1)
        try:
            txids = standing(self.runs.topology.id, self.database, newest, last)
            for batch, result in self.runs.replayed(txids):
                self._look(batch, result)
                if self.is_complete or (len(self.parts) >= self.limit and not self._sought):
                    break
        except (DataLostError, UnknownTxidError) as error:
            self.notes.append(f"of earlier batches nothing is known: {error}")
            return
        if self.is_complete:
            return
        if len(self.parts) >= self.limit:
            self.notes.append("there are more parts; a greater limit finds them")
        elif last > 1:
            self.notes.append(f"batches before txid {last} were not looked at; say within how many to look")
        else:
            self.notes.append("the parts of all batches do not make the value: other code may have run then")

    def _look(self, batch: DryBatch, result: BatchResult) -> None:
        txid = batch.attempt.txid
        self.looked_at.append(txid)
        deltas = self.table.deltas(result)
        written = self.table.written_in(batch)
        if written is not None and written.differences(digest_of(deltas, list(self.key))):
            self.notes.append(
                f"txid {txid} does not add today what it added then (`txstream replay` shows how): the code "
                f"has changed, or does not give the same each time"
            )
        delta = self._delta_in(deltas)
        if delta is None:
            return
        if not self._only_extremes:
            if not self._is_cut and len(self.parts) < self.limit:
                self.parts += self._parts_of(batch, result, delta)
                self._is_cut = len(self.parts) > self.limit
            else:
                self._is_cut = True
            del self.parts[self.limit :]
        self._look_for_extremes(batch, delta)
        self._total = delta if self._total is None else combined(self._reducers, delta, self._total)
        if self._only_extremes:
            self.is_complete = not self._sought
        else:
            self.is_complete = not self._is_cut and alike(self._total, self.row.value)

    def _look_for_extremes(self, batch: DryBatch, delta: Values) -> None:
        """Find the records of this batch that made a maximum or minimum, and mark or add them."""
        for name in [name for name in self._sought if delta[name] == self.row.value[name]]:
            self._sought.remove(name)
            found = self._maker(batch, name, delta)
            if not any(_mark(parts, found, name) for parts in (self.parts, self.far_back)):
                self.far_back.append(replace(found, made=(name,)))

    def _maker(self, batch: DryBatch, name: str, delta: Values) -> WhyPart:
        """Return the part of a batch that has the column's value: one record, if one has it by itself."""
        metas: dict[str, Any] = dict(batch.metas.partitions)
        while True:
            for half in halves(metas, exact=self.exact):
                found = self._delta_in(self.table.deltas(self.runs.run(batch, half)))
                if found is not None and found[name] == self.row.value[name]:
                    metas, delta = half, found
                    break
            else:
                break
        if len(metas) != 1:
            return WhyPart(batch.attempt.txid, None, None, None, None, delta, {})
        return _part(batch.attempt.txid, metas, delta)

    @property
    def _reducers(self) -> Mapping[str, Reducer]:
        return self.table.bolt.reducers

    def _delta_in(self, deltas: pa.Table) -> Values | None:
        """Return what deltas add to the row, or None if they do not touch it."""
        mask: Any = pa.repeat(True, deltas.num_rows)
        for place, value in enumerate(self.key.values()):
            column = deltas.column(place)
            mask = pc.and_(mask, pc.equal(column, pa.scalar(value, column.type)))
        rows = deltas.filter(mask).to_pylist()
        return {name: rows[0][name] for name in self._reducers} if rows else None

    def _parts_of(self, batch: DryBatch, whole: BatchResult, delta: Values) -> list[WhyPart]:
        """Return the parts of a batch: if there are more than there is room for, one more than that."""
        room = self.limit - len(self.parts) + 1
        found: list[WhyPart] = []
        results: list[BatchResult] = []
        for part, result in self._split(batch, dict(batch.metas.partitions), whole):
            found.append(part)
            results.append(result)
            if len(found) == room:
                return found
        together = self._delta_in(merged_deltas(self.table.component, self.table.bolt, results))
        if together is not None and alike(together, delta):
            return found
        self.notes.append(
            f"the records of txid {batch.attempt.txid} act together: none of them has a part of its own"
        )
        return [WhyPart(batch.attempt.txid, None, None, None, None, delta, {})]

    def _split(
        self, batch: DryBatch, metas: dict[str, Any], known: BatchResult | None
    ) -> Iterator[tuple[WhyPart, BatchResult]]:
        """Yield the parts of these ranges, which are not empty; the newest of a partition comes first."""
        result = self.runs.run(batch, metas) if known is None else known
        delta = self._delta_in(self.table.deltas(result))
        if delta is None:
            return
        if not metas:  # dead letters that were retried
            yield WhyPart(batch.attempt.txid, None, None, None, None, delta, {}), result
            return
        parts = list(halves(metas, exact=self.exact))
        if parts:
            for half in parts:
                yield from self._split(batch, half, None)
            return
        yield _part(batch.attempt.txid, metas, delta), result


def _mark(parts: list[WhyPart], found: WhyPart, name: str) -> bool:
    """Mark the part as the one that made a column's value, if it is among these."""
    for at, part in enumerate(parts):
        if (part.txid, part.partition, part.start) == (found.txid, found.partition, found.start):
            parts[at] = replace(part, made=(*part.made, name))
            return True
    return False


def _part(txid: Txid, metas: Mapping[str, Any], delta: Values) -> WhyPart:
    """Return what one partition's range added."""
    ((partition, meta),) = metas.items()
    start, end = (_whole(getattr(meta, name, None)) for name in ("start", "end"))
    offset = start if isinstance(meta, RecordSpan) and meta.end == meta.start + 1 else None
    return WhyPart(txid, partition, offset, start, end, delta, {})


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _with_values(parts: list[WhyPart], value: Values, reducers: Mapping[str, Reducer]) -> Iterator[WhyPart]:
    """Yield each part with the row's value after it, which is known where a part can be subtracted."""
    running = {name: value[name] for name, reducer in reducers.items() if reducer.merge == "sum"}
    for part in parts:
        yield replace(part, value=dict(running))
        for name, number in running.items():
            taken = part.delta[name]
            running[name] = number if taken is None or number is None else number - taken
