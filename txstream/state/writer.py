"""Writing one state table: the value rules of `txstream.semantics` as SQL.

Invariants. `restore` runs before any delta of its batch. Every upsert carries the condition that no row is
newer than the batch, and the number of rows written is compared, so a regression ends the transaction
before anything of it is committed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection, Table, bindparam, case, delete, select, tuple_, update

from txstream.api.errors import StateValueError, TxidRegressionError, TxstreamError
from txstream.api.schema import format_type
from txstream.api.state import PREV_PREFIX, TXID_COLUMN
from txstream.semantics import Semantics
from txstream.state.dialect import INTEGER_RANGES, StateDialect, Touch
from txstream.state.records import TableSpec
from txstream.state.tables import build_table
from txstream.state.values import chunks, prepare, shown_key
from txstream.transaction import TransactionAttempt

_LOOKUP_ROWS = 500
_LONG_KEY_BYTES = 2000  # PostgreSQL's limit is 2704, MySQL's 3072, less what other columns take


class TableWriter:
    """The prepared statements of one state table."""

    def __init__(self, spec: TableSpec, dialect: StateDialect) -> None:
        self.spec = spec
        self._dialect = dialect
        self._table: Table = build_table(spec.state, spec.semantics, dialect)
        self._upsert = dialect.upsert(self._table, self._update)
        if spec.semantics is Semantics.OPAQUE:
            values = spec.state.value_names
            here = self._table.c[TXID_COLUMN] == bindparam("restored_txid")
            # All prevs are set when a row changes its txid, so the first one tells who created the row.
            created = self._prev(values[0]).is_(None)
            self._delete_created = delete(self._table).where(here, created)
            self._put_back = (
                update(self._table)
                .where(here)
                .values({self._table.c[name]: self._prev(name) for name in values})
            )

    def restore(self, connection: Connection, txid: int) -> None:
        """Undo what an earlier attempt of this batch wrote (opaque): value = prev for every row that carries
        its txid, and rows that it created are deleted. Without an index on txid this reads the table."""
        connection.execute(self._delete_created, {"restored_txid": txid})
        connection.execute(self._put_back, {"restored_txid": txid})

    def read(self, connection: Connection, keys: pa.Table, before: int) -> pa.Table:
        """The rows of `keys` that exist, with key and value columns, as they were before batch `before`."""
        state = self.spec.state
        places: list[int] = []
        rows: list[dict[str, Any]] = []
        for place, stored in self._stored(connection, before, keys):
            places.append(place)
            rows.append(stored)
        found = keys.select(list(state.key_names)).take(pa.array(places, pa.int64()))
        for field in state.value_schema:
            found = found.append_column(field, self._column([row[field.name] for row in rows], field.type))
        return found

    def prepare(self, deltas: pa.Table) -> pa.Table:
        """Deltas checked and in the order to write them in. Raises StateValueError or StateTableError."""
        return prepare(self.spec, deltas, self._dialect)

    def write(
        self, connection: Connection, attempt: TransactionAttempt, deltas: pa.Table, answered: Touch
    ) -> None:
        """Merge prepared deltas into the table. Raises TxidRegressionError or StateValueError."""
        if self.spec.semantics is Semantics.OPAQUE:
            deltas = self._without_nulls(connection, attempt, deltas)
        for chunk in chunks(deltas, self._upsert.chunk_rows):
            written = self._upsert.execute(connection, chunk, attempt.txid)
            answered()
            if written != chunk.num_rows:
                raise self._regression(connection, attempt, chunk)

    def explain(
        self,
        connection: Connection,
        attempt: TransactionAttempt,
        deltas: pa.Table,
        refused: TxstreamError,
    ) -> StateValueError | None:
        """After the database has refused a value, and outside of that transaction: the sum that does not
        fit, with its key, or the size of a large key; None when it was neither."""
        state = self.spec.state
        sums = [field for field in state.value_schema if self.spec.reducers[field.name].merge == "sum"]
        for row, stored in self._stored(connection, attempt.txid, deltas):
            for field in sums:
                delta, base = deltas.column(field.name)[row].as_py() or 0, stored[field.name] or 0
                if not _fits(base + delta, field.type):
                    return StateValueError(
                        f"table {state.table!r}, key {shown_key(self.spec, deltas, row)}: column "
                        f"{field.name!r} ({format_type(field.type)}) cannot hold {base} + {delta} = "
                        f"{base + delta}, found in {attempt}; declare a wider type"
                    )
        longest = max((_longest(deltas.column(name)) for name in state.key_names), default=0)
        if longest > _LONG_KEY_BYTES:
            return StateValueError(
                f"table {state.table!r}: a key has {longest} bytes, too many for the database's index: "
                f"{refused}"
            )
        return None

    # --- the rules ----------------------------------------------------------------------------------

    def _prev(self, name: str) -> Any:
        return self._table.c[f"{PREV_PREFIX}{name}"]

    def _update(self, excluded: Any) -> tuple[dict[str, Any], Any]:
        """What becomes of a row that exists, `excluded` being the row that would be inserted, and when it
        may be written. An insert's prev is NULL: this batch creates the row."""
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
                changes[name] = case((same_batch, again), else_=merged[name])
                changes[prev.name] = case((same_batch, prev), else_=columns[name])
            else:
                changes[name] = case((same_batch, columns[name]), else_=merged[name])
        return changes, columns[TXID_COLUMN] <= excluded[TXID_COLUMN]

    def _regression(
        self, connection: Connection, attempt: TransactionAttempt, chunk: pa.Table
    ) -> TxidRegressionError:
        table = self.spec.state.table
        for row, stored in self._stored(connection, attempt.txid, chunk):
            if stored[TXID_COLUMN] > attempt.txid:
                return TxidRegressionError(
                    f"table {table!r}, key {shown_key(self.spec, chunk, row)}: the row carries txid "
                    f"{stored[TXID_COLUMN]}, newer than {attempt}, which was about to be written; the table "
                    f"holds results of another run of this topology"
                )
        return TxidRegressionError(
            f"table {table!r}: the database did not write all {chunk.num_rows} rows of a chunk of {attempt}; "
            f"is there a trigger or a rule on the table?"
        )

    def _without_nulls(
        self, connection: Connection, attempt: TransactionAttempt, deltas: pa.Table
    ) -> pa.Table:
        """Nulls in an opaque table's deltas replaced by what changes nothing.

        An upsert cannot carry them: the NOT NULL of the row it would insert is checked first. For a row
        that exists, a null delta means its value before this batch; a row that does not exist has none.
        """
        names = [name for name in self.spec.state.value_names if deltas.column(name).null_count]
        if not names:
            return deltas
        filled = {name: deltas.column(name).to_pylist() for name in names}
        rows = [row for row in range(deltas.num_rows) if any(filled[name][row] is None for name in names)]
        found = dict(self._stored(connection, attempt.txid, deltas.take(pa.array(rows, pa.int64()))))
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
                    )
                # What a sum adds must be nothing; a minimum or maximum may meet the same value again.
                filled[name][row] = 0 if self.spec.reducers[name].merge == "sum" else stored[name]
        for name in names:
            place, field = deltas.column_names.index(name), deltas.schema.field(name)
            deltas = deltas.set_column(place, field, self._column(filled[name], field.type))
        return deltas

    def _column(self, values: list[Any], data_type: pa.DataType) -> pa.ChunkedArray:
        if pa.types.is_temporal(data_type) and any(isinstance(value, str) for value in values):
            values = [
                value if not isinstance(value, str) else pa.scalar(value).cast(data_type).as_py()
                for value in values
            ]
        return pa.chunked_array([pa.array(values, data_type)])

    def _stored(
        self, connection: Connection, txid: int, deltas: pa.Table
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """The rows of these keys that exist: the key's place in `deltas`, and by column what the row held
        before batch `txid` (its txid as it is). A row that this batch created counts as absent."""
        columns = self._table.c
        keys = [columns[name] for name in self.spec.state.key_names]
        opaque = self.spec.semantics is Semantics.OPAQUE
        for start in range(0, deltas.num_rows, _LOOKUP_ROWS):
            part = deltas.slice(start, _LOOKUP_ROWS)
            wanted = list(zip(*(self._dialect.to_driver(part.column(key.name)) for key in keys), strict=True))
            places = {key: start + place for place, key in enumerate(wanted)}
            condition = (
                keys[0].in_([key[0] for key in wanted]) if len(keys) == 1 else tuple_(*keys).in_(wanted)
            )
            for row in connection.execute(select(self._table).where(condition)).mappings():
                place = places[tuple(row[key] for key in keys)]
                stored = {column.name: row[column] for column in columns}
                if opaque and stored[TXID_COLUMN] == txid:
                    for name in self.spec.state.value_names:
                        stored[name] = stored[f"{PREV_PREFIX}{name}"]
                    if stored[self.spec.state.value_names[0]] is None:
                        continue
                yield place, stored


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
