"""Savepoints: all states of all databases of a topology as of one txid, beside the topology that goes on.

Invariants. Nothing of the topology is written and no lock of it is taken: its rows are read in one snapshot
of each database, and all snapshots are as of one txid that one attempt committed. A savepoint that could not
be made is removed again; where that fails too, it is listed as half made, is never gone back to, and `drop`
removes it.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Column, MetaData, Table, inspect
from sqlalchemy.sql import quoted_name

from txstream.api.state import PREV_PREFIX, PREV_TXID_COLUMN, TXID_COLUMN
from txstream.core.backoff import Backoff
from txstream.core.errors import ServiceUnavailableError, TxstreamError, UsageError
from txstream.core.semantics import Semantics
from txstream.core.transaction import Txid
from txstream.inspect.databases import Databases, nowhere, open_databases, refuse_missing
from txstream.plugins.change import folders, registry
from txstream.plugins.change.registry import MADE, MAKING, SavedPart, SavedTable, Savepoint
from txstream.settings import Settings
from txstream.state import StateDatabase
from txstream.state.declarations import Owner
from txstream.state.sql import tables as state_tables
from txstream.state.sql.sql_reading import SqlStateReading

if TYPE_CHECKING:
    from txstream.state import BatchRecord, StateBackend

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
_BACKOFF = Backoff(first_seconds=0.01, longest_seconds=0.2)


def create_savepoint(
    topology_id: str,
    name: str,
    settings: Settings | None = None,
    *,
    to: Path | None = None,
    timeout_seconds: float = 60.0,
) -> Savepoint:
    """Copy all states of a topology as of its last committed batch, while it goes on: into tables beside
    them, or into the new folder `to` as Parquet files with a manifest of their digests.

    Waits until `timeout_seconds` for a moment in which all databases have committed the same batch, and, if
    it is transactional, no executors are committing the next. Raises UsageError for a name that is refused or
    taken, and for a topology without txids; UnknownTopologyError; ServiceUnavailableError if a database is
    away or there was no such moment.
    """
    with opened(topology_id, settings) as databases:
        return create_savepoint_in(topology_id, name, databases, to=to, timeout_seconds=timeout_seconds)


def create_savepoint_in(
    topology_id: str,
    name: str,
    databases: Sequence[StateDatabase],
    *,
    to: Path | None = None,
    timeout_seconds: float = 60.0,
) -> Savepoint:
    """Do what `create_savepoint` does, in databases that are open."""
    if not is_name(name):
        raise UsageError(
            f"a savepoint cannot be named {name!r:.60}: it is part of tables' names, so it begins with a "
            f"letter from a to z, and has at most 32 of these, digits and _"
        )
    if to is not None:
        to = to.resolve()
        folders.refuse(to)
    for database in databases:
        known = saved_in(database, topology_id).get(name)
        if known is not None:
            raise UsageError(
                f"topology {topology_id!r} has a savepoint {name!r} "
                f"{'of txid' if known.status == MADE else 'half made at txid'} {known.txid} already; "
                f"choose another name, or `txstream savepoint drop {topology_id} {name}`"
            )
    with contextlib.ExitStack() as stack:
        readings, row = _at_one_txid(topology_id, databases, stack, timeout_seconds)
        learned = learned_by(topology_id, row.txid, databases)
        parts = [_part(one, row, learned, name, to, number) for number, one in enumerate(databases)]
        begun: list[StateDatabase] = []
        try:
            for database, part in zip(databases, parts, strict=True):
                with database.sessions.writing(f"savepoint {name!r}") as (connection, _):
                    database.sessions.dialect.lock_definitions(connection)
                    registry.begin(connection, part)
                begun.append(database)
                _reached(f"database {len(begun) - 1} begun")
            # At once: a snapshot in which nobody asks for long is ended by its server.
            with ThreadPoolExecutor(len(databases), "txstream-savepoint") as pool:
                copied = list(pool.map(partial(_copied, txid=row.txid), databases, readings, parts))
            _reached("copied")
            by_url = dict(zip((one.display_url for one in databases), copied, strict=True))
            if to is not None:
                folders.write_manifest(to, topology_id, row, by_url)
            for number, (database, part) in enumerate(zip(databases, copied, strict=True)):
                with database.sessions.writing(f"savepoint {name!r}") as (connection, _):
                    registry.update(connection, part)
                _reached(f"database {number} made")
        except BaseException:
            with contextlib.suppress(TxstreamError):
                _remove_everywhere(topology_id, name, begun)
            raise
    return _together(name, by_url)


def _reached(step: str) -> None:
    """Called between any two steps that write, for tests that die there."""


def is_name(name: str) -> bool:
    """Whether a savepoint or a fork can be named so: it becomes part of tables' names."""
    return _NAME.fullmatch(name) is not None


def savepoints(topology_id: str, settings: Settings | None = None) -> list[Savepoint]:
    """Return a topology's savepoints, the oldest txid first; those that are half made are among them."""
    with opened(topology_id, settings) as databases:
        return saved(topology_id, databases)


def saved(topology_id: str, databases: Sequence[StateDatabase]) -> list[Savepoint]:
    """Do what `savepoints` does, in databases that are open."""
    parts = {one.display_url: saved_in(one, topology_id) for one in databases}
    names = {name for found in parts.values() for name in found}
    together = (
        _together(name, {url: found[name] for url, found in parts.items() if name in found}) for name in names
    )
    return sorted(together, key=lambda one: (one.txid, one.name))


def drop_savepoint(topology_id: str, name: str, settings: Settings | None = None) -> Savepoint:
    """Remove a savepoint, whole or half made, its tables or files with it. Raises UsageError if there is none
    of this name, or if a rewind to it has begun and is not finished."""
    with opened(topology_id, settings) as databases:
        return drop_savepoint_in(topology_id, name, databases)


def drop_savepoint_in(topology_id: str, name: str, databases: Sequence[StateDatabase]) -> Savepoint:
    """Do what `drop_savepoint` does, in databases that are open."""
    found = next((one for one in saved(topology_id, databases) if one.name == name), None)
    if found is None:
        raise no_savepoint(topology_id, name, databases)
    _remove_everywhere(topology_id, name, databases)
    return found


def _remove_everywhere(topology_id: str, name: str, databases: Sequence[StateDatabase]) -> None:
    for database in databases:  # half made from here on, wherever this ends
        if (part := saved_in(database, topology_id).get(name)) is not None:
            with database.sessions.writing(f"savepoint {name!r}") as (connection, _):
                registry.update(connection, replace(part, status=MAKING))
                # A rewind that held the row is over now, and one that comes later does not take it.
                _refuse_while_gone_back_to(topology_id, name, databases)
            _reached("marked")
    for number, database in enumerate(databases):
        remove(database, topology_id, name)
        _reached(f"database {number} removed")


def _refuse_while_gone_back_to(topology_id: str, name: str, databases: Sequence[StateDatabase]) -> None:
    rows = [database.last_batch(topology_id) for database in databases]
    if len({row and (row.txid, row.attempt) for row in rows}) > 1 and any(
        row is not None and row.details.get("rewind", {}).get("savepoint") == name for row in rows
    ):
        raise UsageError(
            f"topology {topology_id!r} is being rewound to savepoint {name!r}; the next `txstream run "
            f"{topology_id}` finishes that, then drop it"
        )


def no_savepoint(topology_id: str, name: str, databases: Sequence[StateDatabase]) -> UsageError:
    every = saved(topology_id, databases)
    there = ", ".join(f"{one.name}{'' if one.is_whole else ' (half made)'}" for one in every) or "none"
    return UsageError(f"topology {topology_id!r} has no savepoint {name!r}; it has {there}")


@contextlib.contextmanager
def opened(topology_id: str, settings: Settings | None) -> Iterator[list[StateDatabase]]:
    """Open all databases of a topology for reading and writing. Raises UnknownTopologyError,
    ServiceUnavailableError if one is away, and UsageError for a store that is no SQL database."""
    settings = (settings or Settings()).resolve()
    with open_databases(settings, topology_id, for_writing=True) as found:
        if not found.opened:
            raise nowhere(settings, topology_id)
        yield sql_databases(found)


def sql_databases(found: Databases) -> list[StateDatabase]:
    refuse_missing(found.missing)
    return [sql_database(one) for one in found.opened]


def sql_database(store: StateBackend) -> StateDatabase:
    if not isinstance(store, StateDatabase):
        raise UsageError(f"{store.display_url} is no SQL database, so it can have no savepoint")
    return store


def saved_in(database: StateDatabase, topology_id: str) -> dict[str, SavedPart]:
    with database.sessions.reading("its savepoints") as connection:
        return registry.read(connection, topology_id)


def learned_by(topology_id: str, txid: Txid, databases: Sequence[StateDatabase]) -> dict[str, Any]:
    """Return what windows knew at the end of a batch, by table, as far as the ledgers still have it."""
    rows = [one.batch(topology_id, txid) for one in databases]
    return {
        table: one for row in rows if row is not None for table, one in row.details.get("learned", {}).items()
    }


def learned_at(
    topology_id: str, saved_there: Savepoint, databases: Sequence[StateDatabase]
) -> Mapping[str, Any]:
    """Return what windows knew at a savepoint."""
    learned = next(iter(saved_there.parts.values())).learned
    return learned_by(topology_id, saved_there.txid, databases) if learned is None else learned


def _together(name: str, parts: dict[str, SavedPart]) -> Savepoint:
    some = list(parts.values())
    is_whole = len({(one.txid, one.attempt) for one in some}) == 1 and all(one.status == MADE for one in some)
    size = sum(one.bytes for one in some)
    # A database that joined the topology later has no part of it, and its states are not in it.
    return Savepoint(name, some[0].txid, some[0].at, size, is_whole, parts)


# --- the moment ---------------------------------------------------------------------------------------------


def _at_one_txid(
    topology_id: str, databases: Sequence[StateDatabase], stack: contextlib.ExitStack, timeout_seconds: float
) -> tuple[list[SqlStateReading], BatchRecord]:
    """Return a snapshot of each database, all as of one committed batch, and that batch's ledger row."""
    deadline, pause, looks = time.monotonic() + timeout_seconds, threading.Event().wait, 0
    while True:
        with contextlib.ExitStack() as tried:
            readings = [tried.enter_context(one.read_state(topology_id)) for one in databases]
            answer = boundary(topology_id, databases, readings)
            if not isinstance(answer, str):
                stack.push(tried.pop_all())
                return readings, answer
        looks += 1
        if time.monotonic() >= deadline:
            raise ServiceUnavailableError(
                f"topology {topology_id!r} had no moment for a savepoint within {timeout_seconds:g} s: "
                f"{answer}; try again after `txstream pause {topology_id}`"
            )
        pause(_BACKOFF.after(looks))


def boundary(
    topology_id: str, databases: Sequence[StateDatabase], readings: Sequence[SqlStateReading]
) -> BatchRecord | str:
    """Return the ledger row of the batch as of which all snapshots are, or why there is none."""
    txids = {one.as_of for one in readings}
    if len(txids) > 1:
        return f"its databases have committed txid {min(txids)} to {max(txids)}"
    (txid,) = txids
    rows = [database.batch(topology_id, txid) for database in databases]
    row = rows[0]
    if row is None:
        return "it has committed nothing yet"
    if row.semantics is Semantics.NON_TRANSACTIONAL:
        raise UsageError(
            f"topology {topology_id!r} is non-transactional: nothing says which rows belong to one txid; "
            f"use the tools of its databases"
        )
    if len({one and (one.attempt, one.status) for one in rows}) > 1:
        return f"its databases have txid {txid} from different attempts"
    if row.semantics is Semantics.TRANSACTIONAL and any(one.unfinished for one in readings):
        return f"executors are committing txid {txid + 1}, and its tables do not keep what was there before"
    return row


# --- the copy -----------------------------------------------------------------------------------------------


def _part(
    database: StateDatabase,
    row: BatchRecord,
    learned: Mapping[str, Any],
    name: str,
    to: Path | None,
    number: int,
) -> SavedPart:
    """Return what is to be made in one database. Raises UsageError for a table that cannot be made."""
    tables = []
    with database.sessions.reading("its tables") as connection:
        for owner in state_tables.owned_by(connection, row.topology):
            stored = str(state_tables.declared_table(owner, database.sessions.dialect).name)
            copy = f"{stored}__sp_{name}" if to is None else f"{number}-{stored}.parquet"
            if to is None:
                database.sessions.dialect.check_name(owner.table, "table", copy)
                if inspect(connection).has_table(copy):
                    raise UsageError(
                        f"{database.display_url} has a table {copy!r}, which is none of a savepoint; choose "
                        f"another name for it"
                    )
            tables.append(SavedTable(owner.table, copy, owner.declaration))
    return SavedPart(
        row.topology,
        name,
        row.uuid,
        row.txid,
        row.attempt,
        datetime.now(UTC),
        MAKING,
        0,
        row.metas,
        tuple(tables),
        None if to is None else str(to),
        learned,
    )


def _copied(database: StateDatabase, reading: SqlStateReading, part: SavedPart, txid: Txid) -> SavedPart:
    size, tables = 0, []
    for one in part.tables:
        rows = (_settled(found, txid) for found in reading.whole(one.table))
        if part.folder is None:
            table = copy_of(database, one)
            with database.sessions.writing(f"table {one.copy!r}") as (connection, _):
                table.create(connection)
            saved, more = _into_table(database, table, one, rows)
        else:
            saved, more = folders.write_table(Path(part.folder), one, rows)
        tables.append(saved)
        size += more
    return part.made(tables, size)


def copy_of(database: StateDatabase, one: SavedTable) -> Table:
    """Return the table that holds the rows of a state table in a savepoint."""
    owner = Owner(one.table, "", "", dict(one.declaration))
    live = state_tables.declared_table(owner, database.sessions.dialect)
    keys = {column.name for column in live.primary_key}
    columns = [
        Column(
            quoted_name(str(column.name), quote=True),
            column.type,
            primary_key=column.name in keys,
            autoincrement=False,
        )
        for column in live.columns
    ]
    options = database.sessions.dialect.table_options(keyed=bool(keys))
    return Table(quoted_name(one.copy, quote=True), MetaData(), *columns, **options)


def _into_table(
    database: StateDatabase, table: Table, one: SavedTable, parts: Iterator[pa.Table]
) -> tuple[SavedTable, int]:
    """Write rows, each part in a transaction of its own, so that a file's only writer is not held up."""
    rows = size = 0
    for part in parts:
        if part.num_rows:
            with database.sessions.writing(f"table {one.copy!r}") as (connection, _):
                connection.execute(table.insert(), driver_rows(database, part))
        rows, size = rows + part.num_rows, size + part.nbytes
    return SavedTable(one.table, one.copy, one.declaration, rows), size


def driver_rows(database: StateDatabase, part: pa.Table) -> list[dict[str, Any]]:
    """Return rows as the database's driver takes them."""
    columns = [database.sessions.dialect.to_driver(column) for column in part.columns]
    names = part.schema.names
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _settled(rows: pa.Table, txid: Txid) -> pa.Table:
    """Return rows of which an unfinished batch has changed some as rows that `txid` has left as they were:
    what they held before it is not known any more, and nobody needs it."""
    if TXID_COLUMN not in rows.schema.names:
        return rows
    unknown = pc.is_null(rows.column(TXID_COLUMN))
    if not pc.any(unknown).as_py():
        return rows
    for at, name in enumerate(rows.schema.names):
        if name in (TXID_COLUMN, PREV_TXID_COLUMN):
            known: Any = pa.scalar(int(txid), pa.int64())
        elif name.startswith(PREV_PREFIX) and name.removeprefix(PREV_PREFIX) in rows.schema.names:
            known = rows.column(name.removeprefix(PREV_PREFIX))
        else:
            continue
        rows = rows.set_column(at, rows.schema.field(at), pc.if_else(unknown, known, rows.column(name)))
    return rows


def remove(database: StateDatabase, topology_id: str, name: str) -> None:
    """Remove what a database has of a savepoint; its row goes last."""
    found = saved_in(database, topology_id).get(name)
    if found is None:
        return
    if found.folder is not None:
        folders.remove(Path(found.folder), found)
    with database.sessions.writing(f"savepoint {name!r}") as (connection, _):
        database.sessions.dialect.lock_definitions(connection)
        if found.folder is None:
            for one in found.tables:
                copy_of(database, one).drop(connection, checkfirst=True)
        registry.forget(connection, topology_id, name)
