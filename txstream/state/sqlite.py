"""SQLite, the embedded default.

Locks. The driver is in autocommit mode and every write transaction begins with BEGIN IMMEDIATE: Python's
default would run the fence's statement outside of the transaction. Nothing but the process itself ends a
transaction here, so a frozen writer keeps its lock until it is woken or killed; the message names it.

`synchronous=FULL`, not WAL's usual NORMAL: NORMAL may lose the last commits when the power fails, and
ZooKeeper would already have advanced past them.

Types. SQLite checks none, and turns an integer sum that overflows into a float; each value column has a
CHECK instead. Tables are WITHOUT ROWID, one tree instead of two. It has neither exact decimals nor NaN.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import (
    REAL,
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Double,
    Engine,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    and_,
    bindparam,
    create_engine,
    event,
    func,
    null,
    types,
    update,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError

from txstream.api.errors import ServiceUnavailableError, StateValueError
from txstream.api.reducers import Reducer
from txstream.state.dialect import INTEGER_RANGES, StateDialect, Upsert
from txstream.state.failures import REMEDY, Failure, Kind, driver_error, one_line
from txstream.state.framework import fence
from txstream.state.values import check_text, check_years

READ_ONLY = "txstream_read_only"
"""Execution option of a connection that only reads: such a transaction takes no lock."""

_SIMPLE: dict[pa.DataType, Callable[[], types.TypeEngine[Any]]] = {
    pa.string(): Text,
    pa.large_string(): Text,
    pa.binary(): LargeBinary,
    pa.large_binary(): LargeBinary,
    pa.bool_(): Boolean,
    pa.int8(): SmallInteger,
    pa.int16(): SmallInteger,
    pa.int32(): Integer,
    pa.int64(): BigInteger,
    pa.float32(): REAL,
    pa.float64(): Double,
    pa.date32(): Text,  # ISO 8601, as SQLite's own date functions read and write it
}

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

    @property
    def path(self) -> Path:
        return Path(self.url.database or "")

    def create_engine(self) -> Engine:
        engine = create_engine(
            self.url.set(drivername="sqlite+pysqlite"),
            pool_timeout=self.connect_timeout_seconds,
            connect_args={"timeout": self.connect_timeout_seconds},
        )
        event.listen(engine, "connect", _configure)
        event.listen(engine, "begin", _begin)
        return engine

    def check(self) -> None:
        path = self.path
        folder = path.parent
        if not folder.is_dir():
            raise ServiceUnavailableError(
                f"database {path}: there is no folder {folder.absolute()}; create it, or {REMEDY}"
            )
        # SQLite writes its log beside the file, so a writable file in a read-only folder is not enough.
        for found in (folder, path):
            if found.exists() and not os.access(found, os.W_OK):
                raise ServiceUnavailableError(
                    f"database {path}: {found.absolute()} cannot be written by this user; change its "
                    f"permissions, or {REMEDY}"
                )

    def is_there(self) -> bool:
        return self.path.exists()

    def hold_fence(self, connection: Connection, topology: str, uuid: str, attempt: int) -> bool:
        # It has no FOR SHARE, and SQLAlchemy leaves it out without a word; an update that changes nothing
        # takes the database's one write lock.
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

    def column_type(self, data_type: pa.DataType) -> types.TypeEngine[Any] | None:
        if pa.types.is_timestamp(data_type) and data_type.unit in ("s", "ms", "us"):
            return Text()
        found = _SIMPLE.get(data_type)
        return None if found is None else found()

    def value_check(self, column: Column[Any], data_type: pa.DataType) -> ColumnElement[bool] | None:
        if data_type not in INTEGER_RANGES:
            return None
        low, high = INTEGER_RANGES[data_type]
        kinds = ["integer", "null"] if column.nullable else ["integer"]
        whole = func.typeof(column).in_(kinds)
        return whole if data_type == pa.int64() else and_(whole, column.between(low, high))

    def table_options(self) -> dict[str, Any]:
        return {"sqlite_with_rowid": False}

    def check_values(self, table: str, name: str, column: pa.ChunkedArray, reducer: Reducer | None) -> None:
        data_type = column.type
        if pa.types.is_string(data_type) or pa.types.is_large_string(data_type):
            check_text(table, name, column)
        elif pa.types.is_date(data_type) or pa.types.is_timestamp(data_type):
            check_years(table, name, column)
        elif pa.types.is_floating(data_type):
            # NaN would be stored as NULL; so would the sum of two opposite infinities.
            fit = pc.is_finite(column) if reducer is not None and reducer.merge == "sum" else None
            fit = pc.invert(pc.is_nan(column)) if fit is None else fit
            row = pc.index(fit, pa.scalar(False)).as_py()
            if row >= 0:
                raise StateValueError(
                    f"column {name!r} of table {table!r} got {column[row].as_py()}, which SQLite cannot "
                    f"keep; filter it out before the state"
                )

    def to_driver(self, column: pa.ChunkedArray) -> list[Any]:
        data_type = column.type
        if pa.types.is_timestamp(data_type):
            zone = None if data_type.tz is None else "UTC"
            column = column.cast(pa.timestamp("us", tz=zone)).cast(pa.string())
        elif pa.types.is_date(data_type):
            column = column.cast(pa.string())
        values: list[Any] = column.to_pylist()
        return values

    def upsert(self, table: Table, update: Callable[[Any], tuple[dict[str, Any], Any]]) -> Upsert:
        return _ManyUpsert(self, table, update)


class _ManyUpsert(Upsert):
    """INSERT ... ON CONFLICT by the driver's executemany, which binds and steps in C."""

    chunk_rows: ClassVar[int] = 50_000

    def __init__(
        self,
        dialect: SQLiteDialect,
        table: Table,
        update: Callable[[Any], tuple[dict[str, Any], Any]],
    ) -> None:
        self._dialect = dialect
        values: dict[str, Any] = {}
        for column in table.columns:
            bound = bool({"key", "delta", "txid"} & column.info.keys())
            values[column.name] = bindparam(f"new_{column.name}", type_=column.type) if bound else null()
        insert: Any = sqlite.insert(table).values(values)
        changes, condition = update(insert.excluded)
        insert = insert.on_conflict_do_update(
            index_elements=list(table.primary_key.columns), set_=changes, where=condition
        )
        # Compiled once, to text: SQLAlchemy's own executemany would process each row in Python again.
        compiled = insert.compile(dialect=sqlite.dialect(paramstyle="qmark"))
        self._sql = str(compiled)
        self._names = [str(name).removeprefix("new_") for name in compiled.positiontup or ()]
        self._txid = next((column.name for column in table.columns if "txid" in column.info), None)

    def execute(self, connection: Connection, deltas: pa.Table, txid: int) -> int:
        columns = [
            [txid] * deltas.num_rows if name == self._txid else self._dialect.to_driver(deltas.column(name))
            for name in self._names
        ]
        rows = list(zip(*columns, strict=True))
        return connection.exec_driver_sql(self._sql, rows).rowcount


def _configure(connection: Any, _record: object) -> None:
    connection.isolation_level = None
    for pragma in ("journal_mode = WAL", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin(connection: Connection) -> None:
    read_only = connection.get_execution_options().get(READ_ONLY, False)
    connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")


def _holders(path: Path) -> str:
    """Which processes hold SQLite's write lock, as far as the system tells.

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
        return str(psutil.Process(pid).status())
    except psutil.Error:
        return "ended"
