"""SQLite, the embedded default, and its statements over many rows.

Locks. The driver is in autocommit mode, and every write transaction begins with BEGIN IMMEDIATE: Python's
default would run the fence's statement outside of the transaction. Only the process itself can end its
transaction, so a frozen writer keeps its lock until it is woken or killed. The error message names it.

`synchronous=FULL`, not WAL's usual NORMAL: NORMAL may lose the last commits when the power fails, and
ZooKeeper would already have advanced past them.

Types are in `sqlite_values`. Tables are WITHOUT ROWID: one tree instead of two.

Statements are lists of VALUES. A list takes two thirds of the time of the driver's `executemany` for an
upsert, and three quarters of the time of IN for a look-up. The text of a full list never changes, so a
connection parses it once.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import pyarrow as pa
from sqlalchemy import (
    URL,
    ColumnElement,
    Connection,
    Engine,
    Table,
    column as plain_column,
    create_engine,
    event,
    func,
    literal_column,
    null,
    select,
    table as plain_table,
    true,
    update,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError

from txstream.api.reducers import Reducer
from txstream.api.state import TXID_COLUMN
from txstream.core.errors import ServiceUnavailableError, UsageError
from txstream.plugins.local import sqlite_values
from txstream.state.sql.dialect import (
    READ_ONLY,
    Carries,
    Found,
    Lookup,
    StateDialect,
    Update,
    Upsert,
    key_columns,
)
from txstream.state.sql.errors import REMEDY, Failure, Kind, driver_error, one_line
from txstream.state.sql.framework_tables import fence
from txstream.state.sql.urls import without_password

_MOST_PARAMETERS: Final = 999  # every SQLite allows as many
_MOST_ROWS: Final = 100  # measured with two columns: shorter lists are as fast, longer ones slower
_LIST: Final = "txstream_list"  # no state table can have this name
_HERE: Final = "\0"  # a mark: in no name and in no other text of a statement


class RowsUpsert(Upsert):
    """INSERT ... WITH list AS (VALUES ...) SELECT ... FROM list ON CONFLICT."""

    chunk_rows: ClassVar[int] = 50_000

    def __init__(self, table: Table, update: Update | None) -> None:
        self._names = [column.name for column in table.c if {"key", "delta"} & column.info.keys()]
        self._has_txid = any("txid" in column.info for column in table.c)
        rows = plain_table(_LIST, *(plain_column(f"v{place}") for place in range(len(self._names))))
        places = dict(zip(self._names, rows.c, strict=True))
        values: dict[str, Any] = {
            column.name: literal_column("?") if "txid" in column.info else places.get(column.name, null())
            for column in table.c
        }
        # The condition is needed: without one SQLite's parser takes ON CONFLICT for a join's ON.
        query = select(*values.values()).where(true()).prefix_with(_HERE)
        insert: Any = sqlite.insert(table).from_select(list(values), query)
        if update is not None:
            changes, condition = update(insert.excluded)
            insert = insert.on_conflict_do_update(
                index_elements=list(table.primary_key.columns), set_=changes, where=condition
            )
        dialect = sqlite.dialect(paramstyle="qmark")
        sql = str(insert.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))
        # The driver counts rows only of statements that begin with INSERT, so the list comes after that.
        before, after = sql.split(f"SELECT {_HERE}")
        self._lists = _Lists(rows.c.keys(), f"SELECT {after}", before=before, with_last=self._has_txid)

    def execute(self, connection: Connection, deltas: pa.Table, txid: int) -> tuple[int, bool | None]:
        columns = [sqlite_values.to_driver(deltas.column(name)) for name in self._names]
        last = (txid,) if self._has_txid else ()
        return sum(cursor.rowcount for cursor in self._lists.execute(connection, columns, last)), None


class RowsLookup(Lookup):
    """A join of the table with a list of the keys."""

    def __init__(
        self, table: Table, columns: Mapping[str, pa.DataType], carries: Carries | None = None
    ) -> None:
        quoted = sqlite.dialect().identifier_preparer.quote
        self._keys = [column.name for column in key_columns(table)]
        self._columns = dict(columns)
        names = [f"key{place}" for place in range(len(self._keys))]
        same = [f"t.{quoted(key)} = k.{name}" for key, name in zip(self._keys, names, strict=True)]
        # CROSS JOIN keeps the keys first, so that each is looked up in the tree of the table.
        found = f"FROM {_LIST} AS k CROSS JOIN {quoted(table.name)} AS t WHERE {' AND '.join(same)}"
        wanted = ", ".join(f"t.{quoted(name)}" for name in columns)
        self._lists = _Lists(["place", *names], f"SELECT k.place, {wanted} {found}")
        self._has_txid = carries is not None
        if carries is not None:
            found += f" AND t.{TXID_COLUMN} {carries} ?"
        self._counts = _Lists(names, f"SELECT count(*) {found}", with_last=self._has_txid)

    def find(self, connection: Connection, keys: pa.Table) -> Found:
        columns = [sqlite_values.to_driver(keys.column(name)) for name in self._keys]
        found: list[tuple[Any, ...]] = []
        for cursor in self._lists.execute(connection, [list(range(keys.num_rows)), *columns]):
            found += cursor.fetchall()
        places, *values = zip(*found, strict=True) if found else [()] * (len(self._columns) + 1)
        return list(places), {
            name: sqlite_values.from_driver(list(column), data_type)
            for (name, data_type), column in zip(self._columns.items(), values, strict=True)
        }

    def count(self, connection: Connection, keys: pa.Table, txid: int) -> int:
        columns = [sqlite_values.to_driver(keys.column(name)) for name in self._keys]
        last = (txid,) if self._has_txid else ()
        return sum(cursor.fetchone()[0] for cursor in self._counts.execute(connection, columns, last))


class _Lists:
    """A statement over a list of rows, executed as often as all rows need."""

    def __init__(self, names: Sequence[str], sql: str, *, before: str = "", with_last: bool = False) -> None:
        self._head = f"{before}WITH {_LIST} ({', '.join(names)}) AS (VALUES "
        self._row = f"({', '.join('?' * len(names))})"
        self._tail = f") {sql}"
        self._width = len(names)
        self._rows = max(1, min(_MOST_ROWS, (_MOST_PARAMETERS - with_last) // self._width))
        self._full = self._text(self._rows)

    def execute(
        self, connection: Connection, columns: Sequence[list[Any]], last: tuple[Any, ...] = ()
    ) -> Iterator[sqlite3.Cursor]:
        """Yield a cursor per list. Rows are given by column; the parameters `last` follow each list's. Raises
        DBAPIError."""
        driver: Any = connection.connection.driver_connection
        width, count = self._width, len(columns[0])
        values: list[Any] = [None] * (width * count)
        for place, column in enumerate(columns):
            values[place::width] = column
        for start in range(0, count, self._rows):
            rows = min(self._rows, count - start)
            sql = self._full if rows == self._rows else self._text(rows)
            try:
                yield driver.execute(sql, (*values[start * width : (start + rows) * width], *last))
            except sqlite3.Error as error:
                raise DBAPIError(sql, None, error) from error

    def _text(self, rows: int) -> str:
        return f"{self._head}{', '.join([self._row] * rows)}{self._tail}"


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
    driver: ClassVar[str] = "pysqlite"
    package: ClassVar[str] = "txstream"
    isolation: ClassVar[str] = "SERIALIZABLE"
    snapshot_isolation: ClassVar[str | None] = None
    # The upsert's name for the new row. As a table's name it would mean the existing row, without an error.
    taken_tables: ClassVar[frozenset[str]] = frozenset({"excluded"})
    taken_prefixes: ClassVar[tuple[str, ...]] = ("sqlite_",)

    def __init__(self, url: URL, connect_timeout_seconds: float, message_timeout_seconds: float) -> None:
        name = url.database or ""
        if name in ("", ":memory:") or url.query.get("mode") == "memory":
            raise UsageError(
                "a SQLite database in memory forgets everything when the driver ends; give it a file, for "
                "example sqlite:///state.db"
            )
        if name.startswith("file:"):
            raise UsageError(
                f"database {without_password(url)}: give SQLite's file as a path, for example "
                f"sqlite:///state.db"
            )
        super().__init__(url, connect_timeout_seconds, message_timeout_seconds)

    @classmethod
    def place_of(cls, url: URL) -> str:
        return f"sqlite:{Path(url.database or '').resolve()}"

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

    def table_options(self, *, keyed: bool = True, updated: bool = True) -> dict[str, Any]:
        return {"sqlite_with_rowid": False} if keyed else {}

    def merged(self, reducer: Reducer, stored: Any, delta: Any) -> ColumnElement[Any]:
        both = sqlite_values.merged(reducer.merge, stored, delta)
        if both is None:
            return super().merged(reducer, stored, delta)
        return func.coalesce(both, stored, delta, type_=stored.type)

    def may_lose(self, connection: Connection, table: Table) -> bool:
        # A constraint may be made with ON CONFLICT REPLACE; the key's own index is of origin pk.
        asked = (
            "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'trigger' AND "
            "lower(tbl_name) = lower(?1)) OR EXISTS "
            "(SELECT 1 FROM pragma_index_list(?1) WHERE \"unique\" AND origin <> 'pk')"
        )
        return bool(connection.exec_driver_sql(asked, (str(table.name),)).scalar_one())

    def upsert(self, table: Table, update: Update | None) -> Upsert:
        return RowsUpsert(table, update)

    def lookup(
        self, table: Table, columns: Mapping[str, pa.DataType], carries: Carries | None = None
    ) -> Lookup:
        return RowsLookup(table, columns, carries)


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
