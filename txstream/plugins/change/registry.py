"""Which savepoints there are: a table of this room's own, in each database of a topology.

Invariants. A row is there before anything else of its savepoint, and goes last: what is half made is always
known by name. It says `made` once all of this database's tables are whole. A savepoint is whole when it is
made in every database that the topology had at its txid. A rewind holds the row while it puts rows back, and
`drop` first says `making` in each, the first database before the others: so either finds the other there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from sqlalchemy import BigInteger, Column, Connection, MetaData, String, Table, delete, inspect, select

from txstream.core.errors import UsageError
from txstream.core.transaction import AttemptId, Txid
from txstream.state.sql.framework_tables import TOPOLOGY_LENGTH, UUID_LENGTH, Document, Utc

MAKING: Final = "making"
MADE: Final = "made"
_LEARNED: Final = "learned"  # in the column `metas`, whose own names are other ones
_NAME_LENGTH = 32

savepoint = Table(
    "txstream_savepoint",
    MetaData(),
    Column("topology", String(TOPOLOGY_LENGTH), primary_key=True),
    Column("name", String(_NAME_LENGTH), primary_key=True),
    Column("uuid", String(UUID_LENGTH), nullable=False),
    Column("txid", BigInteger, nullable=False),
    Column("attempt", BigInteger, nullable=False),
    Column("at", Utc, nullable=False),
    Column("status", String(16), nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("metas", Document(), nullable=False),
    Column("tables", Document(), nullable=False),
    Column("folder", Document(), nullable=True),
)


@dataclass(frozen=True, slots=True)
class SavedTable:
    """One state table in a savepoint. `copy` is the table or the file in the folder that holds its rows."""

    table: str
    copy: str
    declaration: Mapping[str, Any]
    rows: int = 0
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class SavedPart:
    """What one database has of a savepoint. `metas` are those of batch `txid`, as its ledger row has them;
    `learned` is what windows knew then, by table: the row is pruned one day. None: made by an older version,
    which left it to the ledger."""

    topology: str
    name: str
    uuid: str
    txid: Txid
    attempt: AttemptId
    at: datetime
    status: str
    bytes: int
    metas: Mapping[str, Any]
    tables: tuple[SavedTable, ...]
    folder: str | None = None
    learned: Mapping[str, Any] | None = None

    def made(self, tables: Sequence[SavedTable], size: int) -> SavedPart:
        return replace(self, status=MADE, tables=tuple(tables), bytes=size)


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A savepoint, whole or not. `bytes` is the size of its files, or of its rows' values in memory."""

    name: str
    txid: Txid
    at: datetime
    bytes: int
    is_whole: bool = True
    parts: Mapping[str, SavedPart] = field(default_factory=dict)
    """What each database has, by URL without password."""

    def to_document(self) -> dict[str, Any]:
        return {"name": self.name, "txid": self.txid, "at": self.at.isoformat(), "bytes": self.bytes}


def read(connection: Connection, topology: str, *, held: bool = False) -> dict[str, SavedPart]:
    """Return what a database has of a topology's savepoints, by name. With `held`, they stay as they are
    until the transaction ends."""
    if not inspect(connection).has_table(savepoint.name):
        return {}
    query = select(savepoint).where(savepoint.c.topology == topology)
    rows = connection.execute(query.with_for_update() if held else query)
    return {row["name"]: _part(row) for row in rows.mappings()}


def begin(connection: Connection, part: SavedPart) -> None:
    """Write the row of a savepoint that is to be made. Raises UsageError if there is one of this name. The
    definitions are locked."""
    savepoint.create(connection, checkfirst=True)
    if part.name in read(connection, part.topology):
        raise UsageError(
            f"topology {part.topology!r} has a savepoint {part.name!r}; choose another name, or "
            f"`txstream savepoint drop {part.topology} {part.name}`"
        )
    connection.execute(savepoint.insert().values(**_row(part)))


def update(connection: Connection, part: SavedPart) -> None:
    """Write what has become of a part."""
    mine = savepoint.c.topology == part.topology, savepoint.c.name == part.name
    connection.execute(savepoint.update().where(*mine).values(**_row(part)))


def forget(connection: Connection, topology: str, name: str) -> None:
    connection.execute(delete(savepoint).where(savepoint.c.topology == topology, savepoint.c.name == name))


def _row(part: SavedPart) -> dict[str, Any]:
    row = {column.name: getattr(part, column.name) for column in savepoint.columns}
    tables = [
        {"table": t.table, "copy": t.copy, "declaration": t.declaration, "rows": t.rows, "sha256": t.sha256}
        for t in part.tables
    ]
    metas = dict(part.metas) if part.learned is None else {**part.metas, _LEARNED: part.learned}
    return row | {"metas": json.dumps(metas), "tables": json.dumps(tables)}


def _part(row: Mapping[Any, Any]) -> SavedPart:
    found = {column.name: row[column.name] for column in savepoint.columns}
    tables = tuple(SavedTable(**one) for one in json.loads(row["tables"]))
    metas = json.loads(row["metas"])
    return SavedPart(**{**found, "learned": metas.pop(_LEARNED, None), "metas": metas, "tables": tables})
