"""The ledger: what each batch held and which attempt committed it.

Invariant: a row says `committed` exactly when the state in that database has the whole batch, because one
transaction writes the row and the last part of the state. Rows of non-transactional topologies only inform.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, delete, func, or_, select

from txstream.core.batch_metas import to_json
from txstream.core.errors import CorruptStateError
from txstream.core.semantics import Semantics
from txstream.core.transaction import AttemptId, Txid
from txstream.state.records import COMMITTED, COMMITTING, BatchRecord, BatchStatus
from txstream.state.sql.dialect import StateDialect
from txstream.state.sql.framework_tables import batch

_ENTRIES = select(batch.c.txid, batch.c.status, batch.c.attempt).where(
    batch.c.topology == bindparam("id"), batch.c.txid.between(bindparam("first"), bindparam("last"))
)


def entries(
    connection: Connection, topology: str, first: Txid, last: Txid
) -> dict[Txid, tuple[BatchStatus, AttemptId]]:
    """Return status and attempt of the rows from `first` to `last` that exist."""
    rows = connection.execute(*looking(topology, first, last))
    return {row.txid: (row.status, row.attempt) for row in rows}


def looking(topology: str, first: Txid, last: Txid) -> tuple[Select[Any], dict[str, Any]]:
    """Return the query of `entries`, and its parameters."""
    return _ENTRIES, {"id": topology, "first": first, "last": last}


class LedgerWriter:
    """The prepared upsert of a ledger row. It replaces the row that another attempt of its txid has left."""

    def __init__(self, dialect: StateDialect) -> None:
        self._upsert = dialect.overwrite(batch)

    def begin(self, connection: Connection, last: BatchRecord) -> None:
        """Make `last` the only row of its topology's ledger."""
        connection.execute(delete(batch).where(batch.c.topology == last.topology))
        self.write(connection, last)

    def write(self, connection: Connection, written: BatchRecord) -> None:
        """Write a row in place of whatever row its txid has."""
        row = {column.name: getattr(written, column.name) for column in batch.columns}
        row |= {"semantics": str(written.semantics), "metas": to_json(written.metas)}
        row["details"] = to_json(written.details) if written.details else None
        connection.execute(self._upsert, row)


def read_one(connection: Connection, topology: str, txid: int) -> BatchRecord | None:
    """Return the row of one txid; None when there is none."""
    rows = _read(connection, topology, select(batch).where(batch.c.txid == txid))
    return rows[0] if rows else None


def oldest(connection: Connection, topology: str) -> Txid | None:
    """Return the smallest txid of a topology's rows; None when there are none."""
    found = connection.execute(select(func.min(batch.c.txid)).where(batch.c.topology == topology)).scalar()
    return None if found is None else Txid(found)


def last_to_prune(
    connection: Connection, topology: str, committed_before: datetime | None, newest: int | None, rows: int
) -> Txid | None:
    """Return the last txid of the next `rows` rows that may go; None when none may. Rows go from the oldest
    on, so that the remaining ledger has no gap. The last two committed rows stay."""
    mine = batch.c.topology == topology
    first = oldest(connection, topology)
    committed = batch.c.status == COMMITTED
    last = connection.execute(select(func.max(batch.c.txid)).where(mine, committed)).scalar()
    if first is None or last is None:
        return None
    bounds = []
    if newest is not None:
        bounds.append(last - newest)
    if committed_before is not None:
        # The first row that stays. Sorted by the key, so that the search ends there.
        stays = mine, or_(batch.c.committed_at.is_(None), batch.c.committed_at >= committed_before)
        young = connection.execute(
            select(batch.c.txid).where(*stays).order_by(batch.c.txid).limit(1)
        ).scalar()
        bounds.append(last if young is None else young - 1)
    bound = min(max(bounds, default=0), last - 2, first + rows - 1)
    return Txid(bound) if bound >= first else None


def prune(connection: Connection, topology: str, last: Txid) -> int:
    """Delete the rows up to and including `last`. Returns how many."""
    gone = delete(batch).where(batch.c.topology == topology, batch.c.txid <= last)
    return connection.execute(gone).rowcount


def read_last(
    connection: Connection, topology: str, limit: int | None, before: int | None = None
) -> list[BatchRecord]:
    """Return the last `limit` rows, oldest first, of those before a txid; None for either means all."""
    query = select(batch).order_by(batch.c.txid.desc()).limit(limit)
    rows = _read(connection, topology, query if before is None else query.where(batch.c.txid < before))
    return rows[::-1]


def _read(connection: Connection, topology: str, query: Select[Any]) -> list[BatchRecord]:
    try:
        rows = connection.execute(query.where(batch.c.topology == topology)).all()
    except ValueError as error:  # SQLite keeps times as text, which somebody may have changed
        raise CorruptStateError(f"ledger of topology {topology!r}: a time cannot be read: {error}") from error
    return [_record(row) for row in rows]


def _record(row: Row[Any]) -> BatchRecord:
    where = f"ledger row of topology {row.topology!r}, txid {row.txid}"
    metas = _object(where, "metas", row.metas)
    if row.status not in (COMMITTING, COMMITTED):
        raise CorruptStateError(
            f"{where}: its status must be {COMMITTING} or {COMMITTED}, found {row.status!r}"
        )
    try:
        semantics = Semantics(row.semantics)
    except ValueError as error:
        raise CorruptStateError(f"{where}: there is no semantics {row.semantics!r}") from error
    return BatchRecord(
        topology=row.topology,
        uuid=row.uuid,
        txid=Txid(row.txid),
        attempt=AttemptId(row.attempt),
        semantics=semantics,
        status=row.status,
        metas=metas,
        tuples=row.tuples,
        keys=row.keys,
        planned_at=row.planned_at,
        processed_at=row.processed_at,
        committed_at=row.committed_at,
        error=row.error,
        details={} if row.details is None else _object(where, "details", row.details),
    )


def _object(where: str, name: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise CorruptStateError(f"{where}: its {name} are not JSON: {text!r:.200}") from error
    if not isinstance(found, dict):
        raise CorruptStateError(f"{where}: its {name} must be a JSON object, found {text!r:.200}")
    return found
