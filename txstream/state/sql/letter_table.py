"""The table `txstream_dead_letter`: the records that batches leave out, each with its bytes and its error.

Invariant: a topology's life has one row per txid and place; a second one breaks the primary key and with it
the commit. Rows of one life are never touched for another. The invariants of `state.stored_letters` hold
because each function here is part of the transaction that commits or undoes a batch.

There is no index beside the key: a batch has few dead letters, and short columns come first, so that rows are
counted without their bytes being read.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    Select,
    and_,
    bindparam,
    delete,
    func,
    insert as sql_insert,
    select,
    tuple_,
    update,
)

from txstream.core.dead_letters import DeadLetter, LetterKey
from txstream.core.errors import LateRecordError
from txstream.core.transaction import AttemptId, TransactionAttempt, Txid
from txstream.state.sql.errors import rows_missing
from txstream.state.sql.framework_tables import dead_letter
from txstream.state.stored_letters import DEAD, StoredDeadLetter, cleaned, not_dead, place_of, retried_in

_HEAVY = ("key", "value", "headers", "traceback")
_MOST_KEYS = 100  # in one question
_ATTEMPT = ("topology", "uuid", "txid", "attempt")
_COUNTED = select(func.count()).select_from(dead_letter)
# Made once: to make them takes SQLAlchemy as long as the database takes to answer.
_INSERT = sql_insert(dead_letter)
_OF_ATTEMPT = _COUNTED.where(*(dead_letter.c[name] == bindparam(name) for name in _ATTEMPT))


def insert(
    connection: Connection,
    topology: str,
    uuid: str,
    txid: Txid,
    attempt: AttemptId,
    letters: Sequence[DeadLetter],
    when: datetime,
) -> None:
    """Write the rows of a batch."""
    mine = {"topology": topology, "uuid": uuid, "txid": txid, "attempt": attempt}
    batch = mine | {"status": DEAD, "when": when}
    rows = [batch | _columns(cleaned(one)) | {"place": place_of(one.source)} for one in letters]
    if rows:
        connection.execute(_INSERT, rows)
        _prove(connection, _OF_ATTEMPT, len(rows), TransactionAttempt(txid, attempt), **mine)


def undo(connection: Connection, topology: str, uuid: str, txid: Txid) -> None:
    """Remove the rows that batch `txid` wrote, and make those that it retried dead again."""
    mine = _of(topology, uuid)
    connection.execute(delete(dead_letter).where(mine, dead_letter.c.txid == txid))
    connection.execute(
        update(dead_letter).where(mine, dead_letter.c.status == retried_in(txid)).values(status=DEAD)
    )


def mark_retried(
    connection: Connection, topology: str, uuid: str, keys: Sequence[LetterKey], txid: Txid
) -> None:
    """See `DeadLetterTransaction.mark_retried`."""
    marked: list[tuple[Txid, str]] = []
    for key in sorted(keys, key=lambda key: (key.txid, key.place)):  # in order, against deadlocks
        row = and_(_of(topology, uuid), dead_letter.c.txid == key.txid, dead_letter.c.place == key.place)
        dead = update(dead_letter).where(row, dead_letter.c.status == DEAD)
        if not connection.execute(dead.values(status=retried_in(txid))).rowcount:
            status = connection.execute(select(dead_letter.c.status).where(row)).scalar()
            if status is None:
                continue
            if status != DEAD:
                raise not_dead(topology, key, status, txid)
        marked.append((key.txid, key.place))
    mine = and_(_of(topology, uuid), dead_letter.c.status == retried_in(txid))
    for start in range(0, len(marked), _MOST_KEYS):
        some = marked[start : start + _MOST_KEYS]
        these = tuple_(dead_letter.c.txid, dead_letter.c.place).in_(some)
        _prove(connection, _COUNTED.where(mine, these), len(some), f"txid {txid}")


def read(
    connection: Connection, topology: str, *, whole: bool, key: LetterKey | None = None
) -> list[StoredDeadLetter]:
    """Return a topology's rows, oldest batch first; only `whole` ones have their bytes and traceback."""
    columns = [column for column in dead_letter.columns if whole or column.name not in _HEAVY]
    query = select(*columns).where(dead_letter.c.topology == topology)
    if key is not None:
        query = query.where(dead_letter.c.txid == key.txid, dead_letter.c.place == key.place)
    rows = connection.execute(query.order_by(dead_letter.c.txid, dead_letter.c.place)).mappings()
    return [_stored(row) for row in rows]


def counts(connection: Connection, topology: str) -> dict[tuple[Txid, str], int]:
    """Return the number of a topology's rows by txid and status."""
    by = dead_letter.c.txid, dead_letter.c.status
    query = select(*by, func.count()).where(dead_letter.c.topology == topology).group_by(*by)
    return {(Txid(txid), status): number for txid, status, number in connection.execute(query)}


def late(connection: Connection, topology: str) -> int:
    """Return how many of a topology's rows are late records, and dead as yet."""
    is_late = and_(dead_letter.c.status == DEAD, dead_letter.c.exception == LateRecordError.__name__)
    query = select(func.count()).where(dead_letter.c.topology == topology, is_late)
    return int(connection.execute(query).scalar_one())


def drop(connection: Connection, topology: str, keys: Sequence[LetterKey]) -> int:
    """Delete these rows. Returns how many there were."""
    gone = 0
    for key in sorted(keys, key=lambda key: (key.txid, key.place)):
        row = and_(dead_letter.c.topology == topology, dead_letter.c.txid == key.txid)
        gone += connection.execute(delete(dead_letter).where(row, dead_letter.c.place == key.place)).rowcount
    return gone


def _of(topology: str, uuid: str) -> ColumnElement[bool]:
    return and_(dead_letter.c.topology == topology, dead_letter.c.uuid == uuid)


def _prove(connection: Connection, count: Select[int], rows: int, whose: object, **values: object) -> None:
    """Require that just so many rows are there. A trigger may have taken some, without an error."""
    found = connection.execute(count, values).scalar_one()
    if found != rows:
        raise rows_missing(dead_letter.name, whose, rows, rows - found)


def _columns(letter: DeadLetter) -> dict[str, Any]:
    return {
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "timestamp": letter.timestamp_ms,
        "key": letter.key,
        "value": letter.value,
        "headers": letter.headers,
        "component": letter.component,
        "exception": letter.exception,
        "message": letter.message,
        "traceback": letter.traceback,
    }


def _stored(found: RowMapping) -> StoredDeadLetter:
    letter = DeadLetter(
        source=found["place"],
        topic=found["topic"],
        partition=found["partition"],
        offset=found["offset"],
        timestamp_ms=found["timestamp"],
        key=found.get("key"),
        value=found.get("value"),
        headers=found.get("headers"),
        component=found["component"],
        exception=found["exception"],
        message=found["message"],
        traceback=found.get("traceback", ""),
    )
    return StoredDeadLetter(
        topology=found["topology"],
        uuid=found["uuid"],
        txid=Txid(found["txid"]),
        place=found["place"],
        attempt=AttemptId(found["attempt"]),
        status=found["status"],
        when=found["when"],
        letter=letter,
    )
