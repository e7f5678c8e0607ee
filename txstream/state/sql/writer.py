"""Writing one state table: the value rules of `txstream.core.semantics` as SQL.

Invariants. `restore` runs before any delta of its batch. An upsert leaves rows that are newer than the batch
unwritten, and the number of rows written is checked, so a regression ends the transaction before anything is
committed.

Built-in reducers are part of the upsert statement. User-written ones read, modify and write inside the
transaction, after the fence and the restore, and each key is read and written by this one writer. So no other
attempt can change what was read before it is written. A share that is written twice under one attempt reads
the same values, or values that the upsert then leaves alone.
"""

from __future__ import annotations

import decimal
import functools
import math
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection, Table, case, delete, false, func, insert, select, true, update

from txstream.api.reducers import Custom
from txstream.api.retention import limit_of
from txstream.api.rows import UnfitValueError, to_column
from txstream.api.schema import format_type
from txstream.api.state import BATCH, GONE, PREV_PREFIX, PREV_TXID_COLUMN, REMOVED, TXID_COLUMN
from txstream.core.errors import StateValueError, TxidRegressionError, TxstreamError
from txstream.core.semantics import Semantics
from txstream.core.transaction import TransactionAttempt
from txstream.state.records import TableSpec
from txstream.state.sql.dialect import INTEGER_RANGES, Carries, StateDialect, Touch
from txstream.state.sql.errors import rows_missing
from txstream.state.sql.tables import build_table, copies_written
from txstream.state.values import check_key_values, check_value, chunks, prepare, shown_key

_EXACT = decimal.Context(prec=100)
_REMOVED_AT_ONCE = 5_000
_LONG_KEY_BYTES = 2000  # PostgreSQL's limit is 2704, MySQL's 3072, minus what other columns take


class TableWriter:
    """The prepared statements of one state table."""

    def __init__(self, spec: TableSpec, dialect: StateDialect) -> None:
        self.spec = spec
        self._dialect = dialect
        self._table: Table = build_table(spec.state, spec.semantics, dialect)
        self._custom = custom_columns(spec)
        self._copies_written = copies_written(spec.state, dialect)
        self._upsert = dialect.upsert(self._table, self._update if spec.is_keyed else None)
        if self._copies_written:
            self._upsert.copy_to(dialect.overwrite(self._changes), self._copied())
        carries: Carries | None = None
        if spec.semantics is not Semantics.NON_TRANSACTIONAL:
            keeps_older = spec.state.on_conflict == "ignore" or spec.state.sequence_by is not None
            carries = "<=" if keeps_older else "="
        self._lookup = dialect.lookup(self._table, self._looked_up(), carries)
        self._undo: list[Any] = []
        if spec.semantics is Semantics.OPAQUE and not spec.appends:
            # All prevs are set when a row's txid changes: the first one tells whether that txid created it.
            created = self._prev(spec.state.value_names[0]).is_(None)
            before = {self._table.c[name]: self._prev(name) for name in spec.state.value_names}
            self._undo = [delete(self._table).where(created), update(self._table).values(before)]

    def restore(self, connection: Connection, txid: int) -> None:
        """See `StateTransaction.restore`. Without an index on txid this reads the whole table."""
        # A value, because SQLAlchemy takes a parameter named as a column for that column's new value.
        for statement in self._undo:
            connection.execute(statement.where(self._table.c[TXID_COLUMN] == txid))

    def mark(self, connection: Connection, txid: int, until: datetime) -> None:
        """See `StateTransaction.mark`."""
        assert self.spec.state.marks is not None
        columns, semantics = self._table.c, self.spec.semantics
        flag, time = (columns[name] for name in self.spec.state.marks)
        field = self.spec.state.value_schema.field(time.name)
        limit = self._dialect.literal(pa.chunked_array([pa.array([until], field.type)]), time.type)
        changes: list[tuple[Any, Any]] = []
        if semantics is Semantics.OPAQUE:  # first, because MySQL assigns one after the other
            for name in self.spec.state.value_names:
                kept = case((columns[TXID_COLUMN] == txid, self._prev(name)), else_=columns[name])
                changes.append((self._prev(name), kept))
        changes.append((flag, true()))
        if semantics is not Semantics.NON_TRANSACTIONAL:
            changes.append((columns[TXID_COLUMN], txid))
        due = update(self._table).where(flag == false(), time <= limit)
        connection.execute(due.ordered_values(*changes))

    @functools.cached_property
    def _changes(self) -> Table:
        """The table of changes: one object, so that SQLAlchemy compiles what is written to it once."""
        assert self.spec.state.changes is not None
        return build_table(self.spec.state.changes, Semantics.OPAQUE, self._dialect)

    def _copied(self) -> dict[str, Any]:
        """Return the columns of a change as expressions over the row: as it is now, or as it was before."""
        state, columns = self.spec.state, self._table.c
        values: dict[str, Any] = {name: columns[name] for name in state.shown_names}
        gone: Any = columns[REMOVED] if state.removed_by is not None else false()
        if state.keeps_versions:
            values = {name: self._prev(name).label(name) for name in values}
            created = columns.get(PREV_TXID_COLUMN, self._prev(state.value_names[0])).is_(None)
            gone = created if state.removed_by is None else func.coalesce(self._prev(REMOVED), true())
        found = {TXID_COLUMN: columns[TXID_COLUMN], BATCH: columns[TXID_COLUMN].label(BATCH)}
        return {
            **found,
            **{name: columns[name] for name in state.key_names},
            **values,
            GONE: gone.label(GONE),
        }

    def keep_changes(self, connection: Connection, txid: int) -> None:
        """See `StateTransaction.keep_changes`."""
        if not self._copies_written:
            rows = select(*self._copied().values()).where(self._table.c[TXID_COLUMN] == txid)
            connection.execute(insert(self._changes).from_select(list(self._copied()), rows))

    def remove_expired(self, connection: Connection, horizon: int, most: int, answered: Touch) -> None:
        """See `StateTransaction.remove_expired`."""
        state = self.spec.state
        assert state.keep_on is not None
        column = self._table.c[state.keep_on]
        field = pa.schema([*state.key_schema, *state.value_schema]).field(state.keep_on)
        limit = pa.chunked_array([pa.array([limit_of(field.type, horizon)], field.type)])
        before = self._dialect.literal(limit, column.type)
        removal = self._dialect.removal(self._table, state.keep_on, before, _REMOVED_AT_ONCE)
        removed = 0
        while removed < most:
            rows = connection.execute(removal).rowcount
            answered()
            if rows < _REMOVED_AT_ONCE:
                return
            removed += rows

    def forget_removed(self, connection: Connection, txid: int) -> None:
        """See `StateTransaction.forget_removed`."""
        columns: Any = self._table.c
        forget: Any = delete(self._table)
        if self.spec.state.sequence_by is not None:
            gone = [column for column in columns if {"prev", "prev_txid", "kept"} & column.info.keys()]
            forget = update(self._table).values({**dict.fromkeys(gone), columns[REMOVED]: None})
        if self.spec.semantics is not Semantics.NON_TRANSACTIONAL:
            forget = forget.where(columns[TXID_COLUMN] < txid)
        connection.execute(forget.where(columns[REMOVED] == true()))

    def read(self, connection: Connection, keys: pa.Table, before: int) -> pa.Table:
        """Return the rows of `keys` that exist. See `StateBackend.read`."""
        state = self.spec.state
        check_key_values(self.spec, keys, self._dialect)
        self._dialect.check_keys(state.table, keys.select(list(state.key_names)))
        places, stored = self._stored(connection, before, keys)
        found = keys.select(list(state.key_names)).take(places)
        return pa.Table.from_arrays(
            [*found.columns, *(stored.column(name) for name in state.value_names)],
            schema=pa.schema([*state.key_schema, *state.value_schema]),
        )

    def prepare(self, deltas: pa.Table) -> pa.Table:
        """Check the deltas and put them in the order to write. Raises StateValueError or StateTableError."""
        deltas = prepare(self.spec, deltas, self._dialect)
        self._dialect.check_keys(self.spec.state.table, deltas.select(list(self.spec.state.key_names)))
        return deltas

    def write(
        self, connection: Connection, attempt: TransactionAttempt, deltas: pa.Table, answered: Touch
    ) -> None:
        """Merge prepared deltas into the table. Raises TxidRegressionError or StateValueError."""
        if self._custom:
            deltas = self._called(connection, attempt, deltas)
        if self.spec.semantics is Semantics.OPAQUE:
            deltas = self._without_nulls(connection, attempt, deltas)
        self._upserted(connection, attempt, deltas, answered)

    def _upserted(
        self, connection: Connection, attempt: TransactionAttempt, deltas: pa.Table, answered: Touch
    ) -> None:
        """Write rows that may be there."""
        for chunk in chunks(deltas, self._upsert.chunk_rows):
            written, may_lose = self._upsert.execute(connection, chunk, attempt.txid)
            answered()
            self._prove(connection, attempt, chunk, written, may_lose)

    def _prove(
        self,
        connection: Connection,
        attempt: TransactionAttempt,
        rows: pa.Table,
        written: int,
        may_lose: bool | None = None,
    ) -> None:
        """Require that the rows are there now, under their keys and with the batch's txid. `written` is how
        many the database has counted. They are looked up only where it `may_lose` what it counts: to look
        them up takes up to half as long as the commit."""
        counted = written == rows.num_rows
        if may_lose is None and counted and self.spec.is_keyed:
            may_lose = self._dialect.may_lose(connection, self._table)
        if may_lose and counted and self.spec.is_keyed:
            written = self._lookup.count(connection, rows, attempt.txid)
        if written != rows.num_rows:
            raise self._refused(connection, attempt, rows, rows.num_rows - written)

    def explain(
        self, connection: Connection, attempt: TransactionAttempt, deltas: pa.Table, refused: TxstreamError
    ) -> StateValueError | None:
        """Return the error for a value that the database refused, called outside of that transaction.

        It names the sum that does not fit and its key, or the size of a large key; None when it is neither.
        """
        state = self.spec.state
        sums = [field for field in state.value_schema if self.spec.reducers[field.name].merge == "sum"]
        for row, stored in self._stored_rows(connection, attempt.txid, deltas):
            for field in sums:
                delta, base = deltas.column(field.name)[row].as_py(), stored[field.name]
                if delta is None or base is None:
                    continue
                total = _plus(base, delta)
                if not _fits(total, field.type):
                    return StateValueError(
                        f"table {state.table!r}, key {shown_key(self.spec, deltas, row)}: column "
                        f"{field.name!r} ({format_type(field.type)}) cannot hold {base} + {delta} = "
                        f"{total}, found in {attempt}; declare a wider type"
                    ).of_row(state.table, shown_key(self.spec, deltas, row))
        return self._explained_key(deltas, refused)

    def _explained_key(self, deltas: pa.Table, refused: TxstreamError) -> StateValueError | None:
        state = self.spec.state
        longest = max((_longest(deltas.column(name)) for name in state.key_names), default=0)
        if longest > _LONG_KEY_BYTES:
            return StateValueError(
                f"table {state.table!r}: a key has {longest} bytes, too many for the database's index: "
                f"{refused}"
            )
        return None

    # --- the rules ----------------------------------------------------------------------------------

    def _looked_up(self) -> dict[str, pa.DataType]:
        found: dict[str, pa.DataType] = {}
        for field in self.spec.state.value_schema:
            found[field.name] = field.type
            if self.spec.keeps_prev:
                found[f"{PREV_PREFIX}{field.name}"] = field.type
        if self.spec.semantics is not Semantics.NON_TRANSACTIONAL:
            found[TXID_COLUMN] = pa.int64()
        if self.spec.keeps_prev and self.spec.appends:
            found[PREV_TXID_COLUMN] = pa.int64()
        return found

    def _prev(self, name: str) -> Any:
        return self._table.c[f"{PREV_PREFIX}{name}"]

    def _update(self, excluded: Any) -> tuple[dict[str, Any], Any]:
        """Return the new values of an existing row and the condition under which it may be written.
        `excluded` is the row that would be inserted. An insert's prev is NULL: this batch creates the row."""
        columns, spec = self._table.c, self.spec
        merged = {
            name: self._dialect.merged(spec.reducers[name], columns[name], excluded[name])
            for name in spec.state.value_names
        }
        if spec.semantics is Semantics.NON_TRANSACTIONAL:
            return merged, None
        same_batch = columns[TXID_COLUMN] == excluded[TXID_COLUMN]
        changes: dict[str, Any] = {TXID_COLUMN: excluded[TXID_COLUMN]}
        for name in spec.state.value_names:
            if spec.semantics is Semantics.OPAQUE:
                prev = self._prev(name)
                again = self._dialect.merged(spec.reducers[name], prev, excluded[name])
                if spec.state.marks is not None and name == spec.state.marks[0]:
                    again = merged[name]  # a share that a task writes again comes behind the marks
                changes[name] = case((same_batch, again), else_=merged[name])
                changes[prev.name] = case((same_batch, prev), else_=columns[name])
            else:
                changes[name] = case((same_batch, columns[name]), else_=merged[name])
        return changes, columns[TXID_COLUMN] <= excluded[TXID_COLUMN]

    def _refused(
        self, connection: Connection, attempt: TransactionAttempt, chunk: pa.Table, missing: int
    ) -> TxstreamError:
        table = self.spec.state.table
        for row, stored in self._stored_rows(connection, attempt.txid, chunk):
            if stored.get(TXID_COLUMN, 0) > attempt.txid:
                return TxidRegressionError(
                    f"table {table!r}, key {shown_key(self.spec, chunk, row)}: the row carries txid "
                    f"{stored[TXID_COLUMN]}, newer than {attempt}, which was about to be written; the table "
                    f"holds results of another run of this topology"
                )
        return rows_missing(table, attempt, chunk.num_rows, missing)

    def _called(self, connection: Connection, attempt: TransactionAttempt, deltas: pa.Table) -> pa.Table:
        places, stored = self._stored(connection, attempt.txid, deltas)
        deltas = called(self.spec, attempt, deltas, places, stored)
        for name in self._custom:
            column = deltas.column(name)
            check_value(self._dialect, self.spec.state.table, name, column, self.spec.reducers[name])
        return deltas

    def _without_nulls(
        self, connection: Connection, attempt: TransactionAttempt, deltas: pa.Table
    ) -> pa.Table:
        """Replace the nulls in an opaque table's deltas with values that change nothing.

        An upsert cannot carry nulls: the database first checks the NOT NULL columns of the row to insert. A
        null delta of an existing row means its value before this batch. A new row has none: StateValueError.
        """
        names = [name for name in self.spec.state.value_names if deltas.column(name).null_count]
        if not names:
            return deltas
        filled = {name: deltas.column(name).to_pylist() for name in names}
        rows = [row for row in range(deltas.num_rows) if any(filled[name][row] is None for name in names)]
        found = dict(self._stored_rows(connection, attempt.txid, deltas.take(pa.array(rows, pa.int64()))))
        for position, row in enumerate(rows):
            for name in names:
                if filled[name][row] is not None:
                    continue
                stored = found.get(position)
                if stored is None:
                    raise StateValueError(
                        f"table {self.spec.state.table!r}, key {shown_key(self.spec, deltas, row)}: column "
                        f"{name!r} is NOT NULL and got only nulls in {attempt}; filter them out before "
                        f"the state"
                    ).of_row(self.spec.state.table, shown_key(self.spec, deltas, row))
                # A sum must add zero. A minimum or maximum may be given the same value again.
                filled[name][row] = 0 if self.spec.reducers[name].merge == "sum" else stored[name]
        for name in names:
            place, field = deltas.column_names.index(name), deltas.schema.field(name)
            deltas = deltas.set_column(place, field, [pa.array(filled[name], field.type)])
        return deltas

    def _stored(self, connection: Connection, txid: int, keys: pa.Table) -> tuple[pa.Array, pa.Table]:
        """Return the existing rows of these keys: the place of each in `keys`, and its columns. In an opaque
        table its values are those before batch `txid`, and a row that this batch created counts as absent.
        The row's txid is as stored."""
        numbers, columns = self._lookup.find(connection, keys)
        places, stored = pa.array(numbers, pa.int64()), dict(columns)
        if self.spec.semantics is not Semantics.OPAQUE:
            return places, pa.table(stored)
        same_batch = created = pc.equal(stored[TXID_COLUMN], txid)
        if self.spec.keeps_prev:
            # Values of a merged row are NOT NULL, so a null prev is that of a row that its batch created.
            first = f"{PREV_PREFIX}{self.spec.state.value_names[0]}"
            before = stored.pop(PREV_TXID_COLUMN) if self.spec.appends else stored[first]
            created = pc.and_(same_batch, before.is_null())
            for name in self.spec.state.value_names:
                prev = stored.pop(f"{PREV_PREFIX}{name}")
                if same_batch.true_count:
                    stored[name] = pc.if_else(same_batch, prev, stored[name])
        there, found = pc.invert(created), pa.table(stored)
        return (places.filter(there), found.filter(there)) if created.true_count else (places, found)

    def _stored_rows(
        self, connection: Connection, txid: int, keys: pa.Table
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        places, stored = self._stored(connection, txid, keys)
        return zip(places.to_pylist(), stored.to_pylist(), strict=True)


def _plus(base: Any, delta: Any) -> Any:
    # Python's own decimal addition rounds to 28 digits.
    return _EXACT.add(base, delta) if isinstance(base, decimal.Decimal) else base + delta


def _fits(total: Any, data_type: pa.DataType) -> bool:
    if pa.types.is_floating(data_type):
        return math.isfinite(pa.scalar(total, data_type).as_py())
    if pa.types.is_decimal(data_type):
        return bool(abs(total) < 10 ** (data_type.precision - data_type.scale))
    low, high = INTEGER_RANGES[data_type]
    return bool(low <= total <= high)


def _longest(column: pa.ChunkedArray) -> int:
    data_type = column.type
    if not (pa.types.is_string(data_type) or pa.types.is_binary(data_type)):
        return 0
    return pc.max(pc.binary_length(column)).as_py() or 0


def custom_columns(spec: TableSpec) -> tuple[str, ...]:
    """Return the value columns whose reducer is a user's function."""
    return tuple(name for name in spec.state.value_names if isinstance(spec.reducers[name], Custom))


def called(
    spec: TableSpec, attempt: TransactionAttempt, deltas: pa.Table, places: pa.Array, stored: pa.Table
) -> pa.Table:
    """Return `deltas` with the custom columns' deltas replaced by the values to write.

    `stored` has the existing rows as they were before this batch, and `places` the row of `deltas` that each
    belongs to. Raises StateValueError for a value that its column cannot hold, or from the function.
    """
    places = places.to_pylist()
    if TXID_COLUMN in stored.column_names:
        # The upsert leaves rows of this batch as they are and refuses rows of a newer one, so neither needs a
        # value. In an opaque table rows of this batch are written again, from their values before it.
        txids = stored.column(TXID_COLUMN).to_pylist()
    else:
        txids = [0] * len(places)
    opaque = spec.semantics is spec.semantics.OPAQUE
    due = [
        (at, place)
        for at, (place, txid) in enumerate(zip(places, txids, strict=True))
        if txid < attempt.txid or (opaque and txid == attempt.txid)
    ]
    for name in custom_columns(spec):
        reducer, field = spec.reducers[name], spec.state.value_schema.field(name)
        before, values = stored.column(name).to_pylist(), deltas.column(name).to_pylist()
        for at, place in due:
            values[place] = _merged(spec, attempt, deltas, name, before[at], values[place], place)
        try:
            column = to_column(values, field.with_nullable(True))
        except UnfitValueError as error:
            raise StateValueError(
                f"table {spec.state.table!r}, key {shown_key(spec, deltas, error.row)}: column {name!r} "
                f"({format_type(field.type)}) cannot hold {error.value!r:.100}, which {reducer} gave in "
                f"{attempt}"
            ).of_row(spec.state.table, shown_key(spec, deltas, error.row)) from error
        deltas = deltas.set_column(deltas.column_names.index(name), field, [column])
    return deltas


def _merged(
    spec: TableSpec,
    attempt: TransactionAttempt,
    deltas: pa.Table,
    name: str,
    stored: Any,
    delta: Any,
    row: int,
) -> Any:
    if stored is None or delta is None:
        return delta if stored is None else stored
    try:
        return spec.reducers[name].combine(stored, delta)
    except StateValueError as error:
        raise StateValueError(
            f"table {spec.state.table!r}, key {shown_key(spec, deltas, row)}: column {name!r}: {error}, in "
            f"{attempt}"
        ).of_row(spec.state.table, shown_key(spec, deltas, row)) from error.__cause__
