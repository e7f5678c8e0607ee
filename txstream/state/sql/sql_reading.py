"""`StateReading` over one transaction of a SQL database that sees one snapshot.

Invariant: it only reads, and everything that it returns comes from that transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from sqlalchemy import (
    ColumnElement,
    Connection,
    MappingResult,
    Select,
    Table,
    and_,
    case,
    func,
    not_,
    null,
    or_,
    select,
)

from txstream.api.state import PREV_PREFIX, PREV_TXID_COLUMN, REMOVED, TXID_COLUMN
from txstream.core.errors import StateTableError
from txstream.core.transaction import Txid
from txstream.core.wording import counted
from txstream.state.declarations import Owner, declared_spec
from txstream.state.reading import StateReading, StoredRow, StoredTable
from txstream.state.records import COMMITTED, BatchRecord
from txstream.state.sql import ledger, tables as state_tables
from txstream.state.sql.dialect import StateDialect, key_columns
from txstream.state.sql.framework_tables import batch


class SqlStateReading(StateReading):
    """Reads from `connection`, whose transaction has begun. `database` is its URL without the password."""

    def __init__(self, connection: Connection, dialect: StateDialect, database: str, topology: str) -> None:
        self._connection = connection
        self._dialect = dialect
        self._database = database
        self._topology = topology
        rows = ledger.read_last(connection, topology, 1)
        self._last = rows[0] if rows else None
        self._as_of = Txid(0)
        if self._last is not None and self._last.status == COMMITTED:
            self._as_of = self._last.txid
        elif self._last is not None:
            committed = select(func.max(batch.c.txid)).where(
                batch.c.topology == topology, batch.c.status == COMMITTED
            )
            self._as_of = Txid(connection.execute(committed).scalar_one() or 0)
        self._owners = {owner.table: owner for owner in state_tables.owned_by(connection, topology)}

    @property
    def last(self) -> BatchRecord | None:
        return self._last

    @property
    def as_of(self) -> Txid:
        return self._as_of

    def tables(self) -> list[StoredTable]:
        return [self._stored(owner) for owner in self._owners.values()]

    def query(self, table: str) -> tuple[StoredTable, Select[Any]]:
        """Return a table, and the query for its rows as of the last committed batch."""
        stored, found = self._table(table)
        return stored, self._as_committed(stored, found)

    def count(self, table: str) -> int:
        return self._number(select(func.count()).select_from(self.query(table)[1].subquery()))

    def find(self, table: str, key: Sequence[Any]) -> StoredRow | None:
        stored, found = self._table(table)
        if len(key) != len(stored.key):
            raise StateTableError(
                f"state table {table!r} has {counted(len(stored.key), 'key column')} "
                f"({', '.join(stored.key.names)}), got {counted(len(key), 'value')}"
            )
        wanted = [
            found.c[field.name]
            == self._dialect.to_driver(pa.chunked_array([pa.array([value], field.type)]))[0]
            for field, value in zip(stored.key, key, strict=True)
        ]
        rows = self._rows(stored, self._as_committed(stored, found).where(and_(*wanted)))
        return rows[0] if rows else None

    def top(self, table: str, n: int) -> list[StoredRow]:
        stored, found = self._table(table)
        query = self._as_committed(stored, found)
        greatest = self._dialect.ordering(query.selected_columns[stored.value.names[0]])
        return self._rows(stored, query.order_by(greatest.desc(), *self._by_key(found)).limit(n))

    def whole(self, table: str) -> Iterator[pa.Table]:
        stored, found = self._table(table)
        schema = state_tables.stored_schema(self._owners[table], found)
        query = self._or_removed(stored, found).execution_options(yield_per=_PART_ROWS)
        yield schema.empty_table()
        for rows in self._connection.execute(query).mappings().partitions():
            values = {one.name: [value_of(row[one.name], one.type) for row in rows] for one in schema}
            yield pa.table(values, schema)

    def columns(self, table: str, n: int) -> list[dict[str, Any]]:
        """Return the rows of `top`, but as stored, committed or not, as column -> value in table order."""
        stored, found = self._table(table)
        greatest = self._dialect.ordering(found.c[stored.value.names[0]]).desc()
        query = state_tables.rows_there(found).order_by(greatest, *self._by_key(found)).limit(n)
        return [dict(row) for row in self._connection.execute(query).mappings()]

    def written_by(self, table: str, txid: int, limit: int | None = None) -> list[StoredRow]:
        stored, found = self._table(table)
        self._require_txid(stored)
        query = select(*found.columns, (found.c[TXID_COLUMN] > self._as_of).label(_UNFINISHED)).where(
            found.c[TXID_COLUMN] == txid
        )
        return self._rows(stored, query.order_by(*self._by_key(found)).limit(limit))

    def count_written_by(self, table: str, txid: int) -> int:
        stored, found = self._table(table)
        self._require_txid(stored)
        return self._number(select(func.count()).select_from(found).where(found.c[TXID_COLUMN] == txid))

    def written_since(self, table: str, txid: int) -> Iterator[StoredRow]:
        stored, found = self._table(table)
        query = select(found).where(found.c[TXID_COLUMN].between(txid, self._as_of))
        query = query.order_by(found.c[TXID_COLUMN]).execution_options(yield_per=10_000)
        return _rows_of(stored, self._connection.execute(query).mappings())

    def marked(self, table: str, flag: str, time: str, after: Any, until: datetime) -> Iterator[StoredRow]:
        stored, found = self._table(table)
        limits = pa.chunked_array([pa.array([after, until], stored.value.field(time).type)])
        first, last = self._dialect.to_driver(limits)
        query = select(found).where(found.c[flag], found.c[time] <= last)
        rows = self._connection.execute(query if first is None else query.where(found.c[time] > first))
        return _rows_of(stored, rows.mappings())

    # --- for fsck -----------------------------------------------------------------------------------

    def differences(self, table: str) -> list[str] | None:
        _, found = self._table(table)
        return state_tables.differences_from_declaration(self._connection, self._dialect, found, table)

    def newest_row(self, table: str) -> tuple[int, Mapping[str, Any] | None]:
        stored, found = self._table(table)
        greatest = self._number(select(func.coalesce(func.max(found.c[TXID_COLUMN]), 0)))
        rows = self.written_by(stored.name, greatest, limit=1)
        return greatest, rows[0].key if rows else None

    def rows_before_the_first(self, table: str) -> int:
        _, found = self._table(table)
        return self._number(select(func.count()).select_from(found).where(found.c[TXID_COLUMN] < 1))

    def rows_half_created(self, table: str) -> int:
        stored, found = self._table(table)
        if not stored.has_prev or stored.on_conflict is not None or len(stored.value) < 2:
            return 0
        prevs = [found.c[f"{PREV_PREFIX}{name}"] for name in stored.value.names]
        mixed = and_(or_(*(p.is_(None) for p in prevs)), or_(*(p.is_not(None) for p in prevs)))
        return self._number(select(func.count()).select_from(found).where(mixed))

    # --- inside -------------------------------------------------------------------------------------

    def _stored(self, owner: Owner) -> StoredTable:
        return StoredTable.of(declared_spec(owner), owner.uuid)

    def _table(self, name: str) -> tuple[StoredTable, Table]:
        owner = self._owners.get(name)
        if owner is None:
            raise StateTableError(
                f"topology {self._topology!r} has no state table {name!r} in {self._database}; it has "
                f"{', '.join(self._owners) or 'none'}"
            )
        return self._stored(owner), state_tables.declared_table(owner, self._dialect)

    def _require_txid(self, table: StoredTable) -> None:
        if not table.has_txid:
            raise StateTableError(
                f"state table {table.name!r} is non-transactional: its rows do not remember which batch "
                f"changed them"
            )

    def _created_since(self, stored: StoredTable, table: Table) -> Any:
        """Return the condition for rows created by an uncommitted batch; None where the table cannot tell."""
        if not stored.tells_before:
            return None
        kinds = {"prev_txid"} if PREV_TXID_COLUMN in table.c else {"prev"}
        prevs = [column for column in table.columns if kinds & column.info.keys()]
        return and_(table.c[TXID_COLUMN] > self._as_of, *(prev.is_(None) for prev in prevs))

    def _as_committed(self, stored: StoredTable, table: Table) -> Select[Any]:
        """Return the query for the rows as of the last committed batch, as far as the table knows them."""
        query = self._or_removed(stored, table)
        return query.where(not_(query.selected_columns[REMOVED])) if stored.removes else query

    def _or_removed(self, stored: StoredTable, table: Table) -> Select[Any]:
        if TXID_COLUMN not in table.c:
            return select(table)
        since = table.c[TXID_COLUMN] > self._as_of
        hidden = self._created_since(stored, table)
        if hidden is None:
            return select(table, since.label(_UNFINISHED))
        if not stored.has_prev:  # what remains is never changed
            return select(table).where(not_(hidden))
        columns: list[Any] = []
        for column in table.columns:
            if "delta" in column.info:
                before: Any = table.c[f"{PREV_PREFIX}{column.name}"]
                columns.append(case((since, before), else_=column).label(column.name))
            elif "key" in column.info:
                columns.append(column)
            else:
                columns.append(case((since, null()), else_=column).label(column.name))
        return select(*columns, since.label(_UNFINISHED)).where(not_(hidden))

    def _rows(self, table: StoredTable, query: Select[Any]) -> list[StoredRow]:
        return [*_rows_of(table, self._connection.execute(query).mappings())]

    def _by_key(self, table: Table) -> list[ColumnElement[Any]]:
        return [self._dialect.ordering(column) for column in key_columns(table)]

    def _number(self, query: Select[Any]) -> int:
        return int(self._connection.execute(query).scalar_one())


_PART_ROWS = 10_000
_UNFINISHED = "txstream_unfinished"


def _rows_of(table: StoredTable, rows: MappingResult) -> Iterator[StoredRow]:
    # Lists, because to go through a schema takes longer than to read a row's values.
    tells = _UNFINISHED in rows.keys()  # noqa: SIM118 - of a result, which is no dict
    keys, values = ([(one.name, one.type) for one in schema] for schema in (table.key, table.value))
    for row in rows:
        prev, knows_before = None, True
        if table.has_prev:
            prev = {name: value_of(row[f"{PREV_PREFIX}{name}"], kind) for name, kind in values}
            if table.on_conflict is None:
                created = all(value is None for value in prev.values())
            else:
                knows_before = row[PREV_TXID_COLUMN] is None or row[PREV_TXID_COLUMN] != row[TXID_COLUMN]
                created = row[PREV_TXID_COLUMN] is None or not knows_before
            if created or (table.removes and row[f"{PREV_PREFIX}{REMOVED}"] is not False):
                prev = None
        yield StoredRow(
            {name: value_of(row[name], kind) for name, kind in keys},
            {name: value_of(row[name], kind) for name, kind in values},
            prev,
            row[TXID_COLUMN] if table.has_txid else None,
            tells and bool(row[_UNFINISHED]),
            table.removes and row.get(REMOVED, False) is not False,
            knows_before,
        )


_INTEGERS = pa.int8(), pa.int16(), pa.int32(), pa.int64()
_AS_THEY_ARE = {one.id for one in (*_INTEGERS, pa.float32(), pa.float64(), pa.string(), pa.large_string())}


def value_of(value: Any, data_type: pa.DataType) -> Any:
    """Return the Python value of a declared type. Databases that lack a type keep it as another one."""
    if value is None or data_type.id in _AS_THEY_ARE:
        return value
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, str) and pa.types.is_temporal(data_type):
        return pa.scalar(value).cast(data_type).as_py()
    if isinstance(value, str) and pa.types.is_decimal(data_type):
        return Decimal(value)
    if pa.types.is_boolean(data_type):
        return bool(value)
    if isinstance(value, datetime) and pa.types.is_timestamp(data_type) and data_type.tz is not None:
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    return value
