"""What differs between databases, behind one interface: a new database is one more subclass.

Invariants that every subclass keeps: a write transaction takes its lock with its first statement, reads
what other transactions committed before that, and is ended by the database or by a deadline when its
process freezes or the server does, wherever the database can do that.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Final

import pyarrow as pa
from sqlalchemy import URL, Column, ColumnElement, Connection, Engine, Table, func, select, types
from sqlalchemy.exc import DBAPIError

from txstream.api.errors import StateTableError
from txstream.api.reducers import Reducer
from txstream.api.schema import format_type
from txstream.state.failures import Failure
from txstream.state.framework import fence

Touch = Callable[[], None]
"""Tells a transaction's deadline that the database is still answering."""

INTEGER_RANGES: Final[dict[pa.DataType, tuple[int, int]]] = {
    pa.int8(): (-(2**7), 2**7 - 1),
    pa.int16(): (-(2**15), 2**15 - 1),
    pa.int32(): (-(2**31), 2**31 - 1),
    pa.int64(): (-(2**63), 2**63 - 1),
}


class Upsert(ABC):
    """A prepared upsert of one table: compiled once, executed for each chunk."""

    chunk_rows: ClassVar[int]

    @abstractmethod
    def execute(self, connection: Connection, deltas: pa.Table, txid: int) -> int:
        """Write a chunk; the number of rows written, which is less when a row refused."""


class StateDialect(ABC):
    """One kind of database."""

    name: ClassVar[str]  # as SQLAlchemy calls it
    label: ClassVar[str]  # as people do

    def __init__(self, url: URL, connect_timeout_seconds: float, message_timeout_seconds: float) -> None:
        self.url = url
        self.connect_timeout_seconds = connect_timeout_seconds
        self.message_timeout_seconds = message_timeout_seconds

    # --- connections --------------------------------------------------------------------------------

    @abstractmethod
    def create_engine(self) -> Engine:
        """An engine whose connections have the isolation and the timeouts that the protocol needs."""

    def check(self) -> None:  # noqa: B027 - most have nothing to add
        """Raise ServiceUnavailableError for what connecting would not find: a file that cannot be written."""

    def is_there(self) -> bool:
        """Would connecting find a database, rather than create one?"""
        return True

    @contextlib.contextmanager
    def deadline(self, connection: Connection, seconds: float | None = None) -> Iterator[Touch]:
        """While open, `connection` is broken off when the server is silent for `seconds`; by default for
        longer than any of its own timeouts."""
        yield lambda: None

    def ping(self, connection: Connection) -> None:  # noqa: B027 - a file needs none
        """Raise DBAPIError when the server has left this connection; outside of any transaction."""

    def lock_definitions(self, connection: Connection) -> None:  # noqa: B027 - SQLite has one writer
        """Keep other drivers from creating tables until this transaction ends."""

    def hold_fence(self, connection: Connection, topology: str, uuid: str, attempt: int) -> bool:
        """Lock the fence of a topology in share mode until the transaction ends, if it is at `attempt`; False
        when it is not. The transaction's first statement, and no plain read: it waits for who raises it."""
        held = (
            select(fence.c.attempt)
            .where(fence.c.topology == topology, fence.c.uuid == uuid, fence.c.attempt == attempt)
            .with_for_update(read=True)
        )
        return connection.execute(held).one_or_none() is not None

    @abstractmethod
    def lock_timeout(self, connection: Connection, seconds: float) -> contextlib.AbstractContextManager[None]:
        """While open, and before `connection` begins a transaction: how long it waits for other writers.
        Otherwise that is longer than the database lets a frozen writer keep its transaction open."""

    @abstractmethod
    def classify(self, error: DBAPIError) -> Failure:
        """What a driver's error means."""

    # --- tables -------------------------------------------------------------------------------------

    @abstractmethod
    def insert(self, table: Table) -> Any:
        """SQLAlchemy's insert of this dialect, which has `on_conflict_do_update`."""

    @abstractmethod
    def column_type(self, data_type: pa.DataType) -> types.TypeEngine[Any] | None:
        """The column type for an Arrow type; None when this database cannot keep it exactly."""

    def type_of(self, field: pa.Field, table: str) -> types.TypeEngine[Any]:
        """`column_type`, or StateTableError that names column and type."""
        found = self.column_type(field.type)
        if found is None:
            raise StateTableError(
                f"state table {table!r}: {self.label} cannot keep column {field.name!r} of type "
                f"{format_type(field.type)} exactly; use another type or another database"
            )
        return found

    def value_check(self, column: Column[Any], data_type: pa.DataType) -> ColumnElement[bool] | None:
        """A condition for a CHECK constraint where the database does not watch a type's range itself."""
        return None

    @abstractmethod
    def table_options(self) -> dict[str, Any]:
        """Keyword arguments for `Table` that say how it is stored."""

    @abstractmethod
    def check_values(self, table: str, name: str, column: pa.ChunkedArray, reducer: Reducer | None) -> None:
        """Raise StateValueError for a value that this database would refuse or change. No reducer: a key."""

    @abstractmethod
    def to_driver(self, column: pa.ChunkedArray) -> list[Any]:
        """The values of a column as this database's driver takes them."""

    # --- statements ---------------------------------------------------------------------------------

    @abstractmethod
    def upsert(self, table: Table, update: Callable[[Any], tuple[dict[str, Any], Any]]) -> Upsert:
        """Prepare the upsert of key and value columns. `update`, given `excluded`, answers with the new
        values of a row that exists and with the condition under which it may be written."""

    least: ClassVar[str] = "min"
    greatest: ClassVar[str] = "max"

    def merged(self, reducer: Reducer, stored: Any, delta: Any) -> ColumnElement[Any]:
        """SQL for `stored` with `delta` merged in. Null is the identity of every reducer: a null on one
        side gives the other side, so a missing `prev` needs no case of its own."""
        match reducer.merge:
            case "sum":
                both: Any = stored + delta
            case "min":
                both = getattr(func, self.least)(stored, delta)
            case "max":
                both = getattr(func, self.greatest)(stored, delta)
            case "put":
                return delta  # type: ignore[no-any-return]
            case other:
                raise StateTableError(f"reducer {reducer} merges by {other!r}, which no database does here")
        return func.coalesce(both, stored, delta, type_=stored.type)
