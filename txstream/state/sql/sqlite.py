"""SQLite, the embedded default.

Locks. The driver is in autocommit mode, and every write transaction begins with BEGIN IMMEDIATE: Python's
default would run the fence's statement outside of the transaction. Only the process itself can end its
transaction, so a frozen writer keeps its lock until it is woken or killed. The error message names it.

`synchronous=FULL`, not WAL's usual NORMAL: NORMAL may lose the last commits when the power fails, and
ZooKeeper would already have advanced past them.

Types are in `sqlite_values`. Tables are WITHOUT ROWID: one tree instead of two.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Table,
    create_engine,
    event,
    func,
    update,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError

from txstream.api.errors import ServiceUnavailableError
from txstream.api.reducers import Reducer
from txstream.state.sql import sqlite_values
from txstream.state.sql.dialect import Lookup, StateDialect, Upsert
from txstream.state.sql.errors import REMEDY, Failure, Kind, driver_error, one_line
from txstream.state.sql.framework_tables import fence
from txstream.state.sql.sqlite_statements import RowsLookup, RowsUpsert

READ_ONLY = "txstream_read_only"
"""Execution option of a connection that only reads: its transactions take no lock."""

# https://www.sqlite.org/rescode.html; the low byte of an extended code is its primary code.
_KINDS: dict[int, Kind] = {
    sqlite3.SQLITE_BUSY: Kind.LOCKED,
    sqlite3.SQLITE_LOCKED: Kind.LOCKED,
    sqlite3.SQLITE_CANTOPEN: Kind.UNREACHABLE,
    sqlite3.SQLITE_READONLY: Kind.UNREACHABLE,
    sqlite3.SQLITE_FULL: Kind.UNREACHABLE,
    sqlite3.SQLITE_IOERR: Kind.UNREACHABLE,
    sqlite3.SQLITE_PERM: Kind.UNREACHABLE,
    sqlite3.SQLITE_PROTOCOL: Kind.LOCKED,
    sqlite3.SQLITE_NOTADB: Kind.DAMAGED,
    sqlite3.SQLITE_CORRUPT: Kind.DAMAGED,
    sqlite3.SQLITE_CONSTRAINT: Kind.VALUE,
    sqlite3.SQLITE_TOOBIG: Kind.VALUE,
    sqlite3.SQLITE_MISMATCH: Kind.VALUE,
}


class SQLiteDialect(StateDialect):
    name: ClassVar[str] = "sqlite"
    label: ClassVar[str] = "SQLite"
    snapshot_isolation: ClassVar[str | None] = None
    # The upsert's name for the new row. As a table's name it would mean the existing row, without an error.
    taken_tables: ClassVar[frozenset[str]] = frozenset({"excluded"})
    taken_prefixes: ClassVar[tuple[str, ...]] = ("sqlite_",)

    @property
    def path(self) -> Path:
        return Path(self.url.database or "")

    def create_engine(self) -> Engine:
        engine = create_engine(
            self.url.set(drivername="sqlite+pysqlite"),
            pool_timeout=self.connect_timeout_seconds,
            connect_args={"timeout": self.connect_timeout_seconds},
        )
        event.listen(engine, "connect", self._configure)
        event.listen(engine, "begin", _begin)
        return engine

    def _configure(self, connection: Any, _record: object) -> None:
        connection.isolation_level = None
        sqlite_values.add_functions(connection)
        _turn_on_log(connection, self.connect_timeout_seconds)
        connection.execute("PRAGMA synchronous = FULL").close()

    def check(self) -> None:
        path = self.path
        folder = path.parent
        if not folder.is_dir():
            raise ServiceUnavailableError(
                f"database {path}: there is no folder {folder.absolute()}; create it, or {REMEDY}"
            )
        # SQLite writes its log beside the file, so the folder must be writable too.
        for found in (folder, path):
            if found.exists() and not os.access(found, os.W_OK):
                raise ServiceUnavailableError(
                    f"database {path}: {found.absolute()} cannot be written by this user; change its "
                    f"permissions, or {REMEDY}"
                )

    def is_there(self) -> bool:
        return self.path.exists()

    def place(self, connection: Connection) -> str | None:
        found = self.path.stat()  # a second path to a file, by a link or a mount, is the same file
        return f"sqlite:{found.st_dev}:{found.st_ino}"

    def hold_fence(self, connection: Connection, topology: str, uuid: str, attempt: int) -> bool:
        # SQLite has no FOR SHARE, and SQLAlchemy drops it silently. This update changes nothing, but takes
        # the database's only write lock.
        held = (
            update(fence)
            .where(fence.c.topology == topology, fence.c.uuid == uuid, fence.c.attempt == attempt)
            .values(attempt=fence.c.attempt)
        )
        return connection.execute(held).rowcount == 1

    @contextlib.contextmanager
    def lock_timeout(self, connection: Connection, seconds: float) -> Iterator[None]:
        driver: Any = connection.connection.driver_connection
        driver.execute(f"PRAGMA busy_timeout = {max(1, round(seconds * 1000))}").close()
        try:
            yield
        finally:
            usual = round(self.connect_timeout_seconds * 1000)
            driver.execute(f"PRAGMA busy_timeout = {usual}").close()

    def classify(self, error: DBAPIError) -> Failure:
        cause = driver_error(error)
        code = getattr(cause, "sqlite_errorcode", None)
        message = one_line(cause)
        if code is None:
            return Failure(Kind.OTHER, message)
        kind = _KINDS.get(code & 0xFF, Kind.OTHER)
        if kind is Kind.LOCKED:
            message = f"{message}{_holders(self.path)}"
        elif code == sqlite3.SQLITE_ERROR and message.startswith(("no such table", "no such column")):
            kind = Kind.MISSING
        return Failure(kind, message)

    # --- tables -------------------------------------------------------------------------------------

    def insert(self, table: Table) -> Any:
        return sqlite.insert(table)

    column_type = staticmethod(sqlite_values.column_type)
    value_check = staticmethod(sqlite_values.value_check)
    to_driver = staticmethod(sqlite_values.to_driver)
    from_driver = staticmethod(sqlite_values.from_driver)
    ordering = staticmethod(sqlite_values.ordering)

    def table_options(self) -> dict[str, Any]:
        return {"sqlite_with_rowid": False}

    def merged(self, reducer: Reducer, stored: Any, delta: Any) -> ColumnElement[Any]:
        both = sqlite_values.merged(reducer.merge, stored, delta)
        if both is None:
            return super().merged(reducer, stored, delta)
        return func.coalesce(both, stored, delta, type_=stored.type)

    def upsert(self, table: Table, update: Callable[[Any], tuple[dict[str, Any], Any]]) -> Upsert:
        return RowsUpsert(table, update)

    def lookup(self, table: Table, columns: Mapping[str, pa.DataType]) -> Lookup:
        return RowsLookup(table, columns)


def _turn_on_log(connection: Any, timeout_seconds: float) -> None:
    """Turn on WAL, which the file keeps from then on. While another session writes to a new file, as when
    several drivers start at once, SQLite refuses this at once instead of waiting as for other locks."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").close()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            _pause()
        else:
            return


def _pause() -> None:
    time.sleep(0.005)


def _begin(connection: Connection) -> None:
    read_only = connection.get_execution_options().get(READ_ONLY, False)
    connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")


def _holders(path: Path) -> str:
    """Return text that names the processes holding SQLite's write lock, as far as the system tells.

    Read from /proc: opening the files to ask would drop this process's own locks when they are closed.
    """
    shared_memory = Path(f"{path}-shm")
    try:
        inode = shared_memory.stat().st_ino
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return ""
    holders = []
    for line in lines:
        words = line.split()
        # "7: POSIX  ADVISORY  WRITE 4711 08:01:131 120 120": byte 120 of the -shm file is WAL's write lock.
        if len(words) == 8 and words[3] == "WRITE" and words[5].endswith(f":{inode}") and words[6] == "120":
            holders.append(f"process {words[4]} ({_status(int(words[4]))})")
    return f"; held by {', '.join(holders)}" if holders else ""


def _status(pid: int) -> str:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "ended"
    # "State:	T (stopped)"
    return next(
        (line.partition("(")[2].rstrip(")") for line in lines if line.startswith("State:")), "unknown"
    )
