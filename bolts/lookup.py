"""`LookupBolt`: a stream joined with a table of the same topology.

Invariants. What a tuple gets is the row of its key as it was before the batch, changed by all that the batch
itself has for the table. Both are fixed by the batch's metas, so every attempt of it gets the same. A row
that an undone attempt of this batch has written is read as it was before (`StateBackend.read`). The task that
has a tuple also gets all that the batch has for the row of its key: see `follow`.

A worker process keeps rows from batch to batch if the table's txids are indexed: it first asks for what was
changed since, and forgets that (`_Kept`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from txstream.api.bolts import OutputFieldsDeclarer, TableReader, WorkerContext
from txstream.api.declarer import check_number
from txstream.api.groupings import Grouping, GroupingKind
from txstream.api.schema import format_schema, format_type
from txstream.api.state import REMOVED, SqlState, SqlTable
from txstream.api.tuples import Chunk, Tuple, one_row
from txstream.core.errors import StateValueError, TopologyError, UsageError
from txstream.core.semantics import Semantics
from txstream.core.transaction import Txid
from txstream.state.folding import new_fold
from txstream.state.values import normal_keys

if TYPE_CHECKING:
    from txstream.state import StateBackend, TableSpec

Missing = Literal["null", "dead-letter", "wait"]
Row = tuple[Any, ...]
"""The value columns of a row, hidden ones too."""

_AGAIN: Final = frozenset({"min", "max", "last", "put"})
"""Merges that change nothing when a batch's delta is in the row already."""


class LookupBolt(TableReader):
    """Adds columns of a table's row to each tuple: `LookupBolt(users, on="user", columns="name, city")`.

    `table` is the state that a `SqlStateBolt` or `SqlAppendBolt` of the topology fills, or that bolt's
    component; `on` names the fields of the input that
    are its key, in the order of the key's columns. `columns` are value columns, by default all; as a mapping
    they get other names: `{"user_name": "name"}`. A tuple sees the table as of the batch before its own, and
    then all that its own batch has for the table. Where there is no row, or a key is null, `missing` says
    what happens: with "null" the columns are null; with "dead-letter" the record becomes one.

    Any grouping will do. Grouped by the fields of `on`, a task gets of the table's input only what is for its
    keys; otherwise each task gets all of it. The topology runs one batch at a time. If the table has
    `index_txid=True`, each worker process keeps up to `cache_rows` rows from batch to batch. Raises
    TopologyError.
    """

    def __init__(
        self,
        table: str | SqlState,
        *,
        on: str | Sequence[str],
        columns: str | Sequence[str] | Mapping[str, str] | None = None,
        missing: Missing = "null",
        cache_rows: int = 50_000,
        table_first: bool = False,
    ) -> None:
        if table_first:
            raise TopologyError(
                "which topics fill a table is known to its source alone: "
                "KafkaSource([...], table_first='users') reads the topic users to its end before any other"
            )
        if missing == "wait":
            raise TopologyError(
                "missing='wait' cannot be exact: a tuple that waits would belong to two batches; take "
                "missing='dead-letter' and `txstream dead-letters retry`, which gives it a batch of its own"
            )
        if missing not in get_args(Missing):
            raise TopologyError(f"missing is {missing!r}; it must be 'null' or 'dead-letter'")
        self.of_state = table if isinstance(table, SqlState) else None
        self.reads = table.table if isinstance(table, SqlState) else table
        self.on = (on,) if isinstance(on, str) else tuple(on)
        if isinstance(columns, str):
            columns = [name.strip() for name in columns.split(",")]
        self.columns = columns if columns is None or isinstance(columns, Mapping) else {n: n for n in columns}
        self.missing = missing
        self.cache_rows = check_number("cache_rows", cache_rows, least=0)

    # --- when the topology is built -----------------------------------------------------------------

    def follow(self, inputs: Sequence[Grouping], own: Sequence[Grouping]) -> Sequence[Grouping]:
        """Subscribe to what the table's bolt gets: the task of a tuple then has all that is for its key."""
        self._own = {(one.component, one.stream) for one in own}
        self._followed = {(one.component, one.stream) for one in inputs}
        keys: tuple[str, ...] = ()
        if all(one.kind is GroupingKind.FIELDS and one.fields == self.on for one in own):
            kind, keys = GroupingKind.FIELDS, self.table.state.key_names
        elif all(one.kind is GroupingKind.GLOBAL for one in own):
            kind = GroupingKind.GLOBAL
        else:
            kind = GroupingKind.ALL
        both = self._own & self._followed
        if both and (kind is GroupingKind.ALL or (keys and keys != self.on)):
            raise TopologyError(
                f"a LookupBolt and its table {self.reads!r} both get the stream of {min(both)[0]!r}; group "
                f"it for the LookupBolt by the key of the table ({', '.join(self.table.state.key_names)})"
            )
        return [
            Grouping(kind, one.component, one.stream, keys)
            for one in inputs
            if (one.component, one.stream) not in both
        ]

    def check_table(self, semantics: Semantics, *, sets_aside: bool) -> None:
        state, merges = self.table.state, {one.merge for one in self.table.reducers.values()}
        why = ""
        if state.keep is not None or state.horizon_keeper() is not None:
            why = "its rows are removed, or its windows closed, by the commit, and not by a batch's records"
        elif semantics is Semantics.TRANSACTIONAL and not merges <= _AGAIN:
            why = "a row that is added up keeps what it was before a batch only with semantics='opaque'"
        elif self.missing == "dead-letter" and not sets_aside:
            why = "missing='dead-letter' needs dead_letters=DeadLetters() in the topology's builder"
        if why:
            raise TopologyError(f"table {state.table!r} cannot be looked up by a LookupBolt: {why}")

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        state, given = self.table.state, declarer.inputs[: len(self._own)]
        who = f"component {declarer.component!r}, which looks up in table {state.table!r}"
        if any(not one.equals(given[0]) for one in given):
            shown = " and ".join(map(format_schema, given))
            raise TopologyError(f"{who}: its inputs must have the same fields; they have {shown}")
        if len(self.on) != len(state.key_names):
            raise TopologyError(
                f"{who}: on names {', '.join(self.on)}; the key is {format_schema(state.key_schema)}"
            )
        for name, column in zip(self.on, state.key_schema, strict=True):
            found = given[0].field(name).type if name in given[0].names else None
            if found is None or not found.equals(column.type):
                is_there = "there is none" if found is None else f"it is {format_type(found)}"
                raise TopologyError(
                    f"{who}: field {name!r} must be {format_type(column.type)}, as key column "
                    f"{column.name!r}; {is_there}"
                )
        if self.columns is None:
            self.columns = {name: name for name in state.shown_names}
        unknown = [name for name in self.columns.values() if name not in state.shown_names]
        if unknown:
            raise TopologyError(
                f"{who}: there is no value column {unknown[0]!r}; it has {', '.join(state.shown_names)}"
            )
        twice = sorted({*self.columns} & {*given[0].names})
        if twice:
            raise TopologyError(
                f"{who}: its input has a field {twice[0]!r} already; give the column another name, as in "
                f"columns={{'{self.reads}_{twice[0]}': {twice[0]!r}}}"
            )
        added = [pa.field(new, state.shown_schema.field(name).type) for new, name in self.columns.items()]
        self._schema = pa.schema([*given[0], *added])
        declarer.declare(self._schema)

    def prepare_worker(self, context: WorkerContext) -> list[_Kept]:
        """Return what this process keeps; a task takes it out while it works with it."""
        return []

    # --- in a batch ---------------------------------------------------------------------------------

    def execute(self, tup: Tuple) -> None:
        self.execute_chunk(one_row(tup._chunk, tup._row))

    def execute_chunk(self, chunk: Chunk) -> None:
        stream = chunk.source_component, chunk.source_stream
        if stream in self._followed:
            self.table.execute_chunk(chunk)
        if stream in self._own:
            vars(self).setdefault("_held", []).append(chunk.batch)

    def finish_batch(self) -> None:
        held: list[pa.RecordBatch] = vars(self).pop("_held", [])
        if not held:
            return
        tuples = pa.Table.from_batches(held).combine_chunks()
        of_row, keys = _numbered([normal_keys(tuples.column(name)) for name in self.on])
        rows = self._with_own(self._before(keys), keys)
        places = [self.table.state.value_names.index(name) for name in (self.columns or {}).values()]
        found = [rows[key] for key in keys]
        if self.missing == "dead-letter" and None in found:
            self._refuse(tuples, of_row, found)
        take = pa.array(of_row, pa.int64())
        added = [
            pa.array([None if row is None else row[place] for row in found], field.type).take(take)
            for place, field in zip(places, list(self._schema)[len(tuples.column_names) :], strict=True)
        ]
        whole = pa.Table.from_arrays([*tuples.columns, *added], schema=self._schema)
        for batch in whole.to_batches():
            self.collector.emit_batch(batch)

    def _before(self, keys: Iterable[Row]) -> dict[Row, Row | None]:
        """Return the rows of these keys as they were before the batch."""
        if self.context.open_table is None:
            raise UsageError(f"table {self.table.state.table!r} can be looked up in a run only")
        store, spec = self.context.open_table()
        rows: dict[Row, Row | None] = dict.fromkeys(keys)
        wanted = [key for key in rows if None not in key]
        if not (spec.state.index_txid and self.cache_rows) or spec.semantics is Semantics.NON_TRANSACTIONAL:
            rows.update(self._read(store, spec, wanted))
            return rows
        # Nobody else has what is kept as long as this task works with it.
        kept = self.context.resource.pop() if self.context.resource else _Kept(spec.state, self.cache_rows)
        kept.forget_changes(store, self.context.topology_id, self.batch_id.txid)
        known = kept.known(wanted)
        found = self._read(store, spec, [key for key in wanted if key not in known])
        rows.update(known)
        rows.update(found)
        kept.keep(found)
        self.context.resource.append(kept)
        return rows

    def _read(self, store: StateBackend, spec: TableSpec, keys: Sequence[Row]) -> dict[Row, Row | None]:
        """Read the rows of these keys; None for one without a row."""
        rows: dict[Row, Row | None] = dict.fromkeys(keys)
        asked = _table_of(spec.state, keys)
        asked = asked.filter(_can_be_there(asked))
        if asked.num_rows:
            answer = store.read(spec, asked, before=self.batch_id.txid)
            values = _rows(answer, spec.state.value_names)
            rows.update(zip(_rows(answer, spec.state.key_names), values, strict=True))
        return rows

    def _with_own(self, before: dict[Row, Row | None], keys: Mapping[Row, int]) -> dict[Row, Row | None]:
        """Return the rows with what this batch has for them, None for those that are not there."""
        state, fold = self.table.state, new_fold(self.table)
        fold.add_partial(self.table.deltas())
        deltas = fold.finish()
        rows = dict(before)
        values = _rows(deltas, state.value_names)
        for key, delta in zip(_rows(deltas, state.key_names), values, strict=True):
            if key in keys:
                rows[key] = self._merged(rows[key], delta)
        if state.removed_by is not None:
            removed = state.value_names.index(REMOVED)
            rows = {
                key: None if row is None or row[removed] is not False else row for key, row in rows.items()
            }
        return rows

    def _merged(self, row: Row | None, delta: Row) -> Row | None:
        """Return a row with what a batch has for it, as the table does it."""
        state = self.table.state
        if isinstance(state, SqlTable):
            if row is None:
                return delta
            older = False
            if state.sequence_by is not None:
                place = state.value_names.index(state.sequence_by)
                older = row[place] > delta[place]
            return row if older or state.on_conflict != "replace" else delta
        if row is None:
            return None if set(delta) == {None} else delta
        reducers = (self.table.reducers[name] for name in state.value_names)
        return tuple(
            reducer.combine(old, new)
            if old is not None and new is not None
            else (new if old is None else old)
            for reducer, old, new in zip(reducers, row, delta, strict=True)
        )

    def _refuse(self, tuples: pa.Table, of_row: Sequence[int], found: Sequence[Row | None]) -> None:
        first = next(row for row, number in enumerate(of_row) if found[number] is None)
        (values,) = tuples.slice(first, 1).to_pylist()
        shown = ", ".join(f"{name}={values[name]!r:.200}" for name in self.on)
        raise StateValueError(f"table {self.table.state.table!r} has no row for {shown}")


class _Kept:
    """Rows of a table that a worker process keeps, those that were used last; None for a key without a row.

    Invariant: they are as they were before batch `_before`. Of a batch after that, a row that has changed
    carries the txid of the change or a later one; so does one that an undone attempt has written. Only a
    removed row may be gone without a trace, once the batch after the removal is committed.
    """

    def __init__(self, state: SqlState, most: int) -> None:
        self._state = state
        self._most = most
        self._rows: OrderedDict[Row, Row | None] = OrderedDict()
        self._before = 0

    def forget_changes(self, store: StateBackend, topology: str, txid: Txid) -> None:
        """Forget what is not known to be as it was before batch `txid`."""
        before, self._before = self._before, txid
        if before == txid or not self._rows:
            return
        leaves_no_trace = self._state.removed_by is not None and self._state.sequence_by is None
        if before > txid or (leaves_no_trace and txid - before > 1):
            self._rows.clear()
            return
        with store.read_state(topology) as reading:
            if reading.as_of != txid - 1:
                self._rows.clear()  # another driver is at work, or one database is ahead of another
                return
            table, names = self._state.table, self._state.key_names
            changed = chain(reading.written_since(table, before), reading.written_by(table, txid))
            keys = [tuple(row.key[name] for name in names) for row in islice(changed, self._most)]
        if len(keys) == self._most:  # to read them all again takes no longer
            self._rows.clear()
            return
        for key in _rows(_table_of(self._state, keys), names):  # as the bolt's own keys
            self._rows.pop(key, None)

    def known(self, keys: Iterable[Row]) -> dict[Row, Row | None]:
        """Return the rows of these keys, as far as they are here."""
        found = {key: self._rows[key] for key in keys if key in self._rows}
        for key in found:
            self._rows.move_to_end(key)
        return found

    def keep(self, rows: Mapping[Row, Row | None]) -> None:
        """Keep rows as they were before the batch."""
        self._rows.update(rows)
        while len(self._rows) > self._most:
            self._rows.popitem(last=False)


def _numbered(columns: Sequence[pa.ChunkedArray]) -> tuple[list[int], dict[Row, int]]:
    """Return the number of each row's key, and the keys by number."""
    keys: dict[Row, int] = {}
    if len(columns) == 1:
        encoded = columns[0].combine_chunks().dictionary_encode("encode")
        keys = {(value,): number for number, value in enumerate(encoded.dictionary.to_pylist())}
        return encoded.indices.to_pylist(), keys
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    return [keys.setdefault(key, len(keys)) for key in rows], keys


def _rows(table: pa.Table, names: Sequence[str]) -> Iterable[Row]:
    return zip(*(table.column(name).to_pylist() for name in names), strict=True)


def _table_of(state: SqlState, keys: Sequence[Row]) -> pa.Table:
    columns = zip(*keys, strict=True) if keys else [()] * len(state.key_names)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, state.key_schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=state.key_schema.remove_metadata())


def _can_be_there(keys: pa.Table) -> pa.ChunkedArray:
    """Tell which keys a row may have: no database keeps NaN, NUL in text, or a year beyond 9999."""
    fit: Any = pa.chunked_array([pa.repeat(True, keys.num_rows)])
    for column in keys.columns:
        if pa.types.is_string(column.type):
            fit = pc.and_(fit, pc.invert(pc.match_substring(column, "\0")))
        elif pa.types.is_floating(column.type):
            fit = pc.and_(fit, pc.invert(pc.is_nan(column)))
    return fit
