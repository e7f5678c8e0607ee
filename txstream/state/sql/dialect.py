"""What differs between databases, behind one interface: a new database is one more subclass.

Every subclass comes in by an entry point of an installed package, ours as well as a stranger's: in the group
`txstream.sql_dialects`, with the scheme of its URLs.

Invariants that every subclass keeps. A write transaction takes its lock with its first statement, and sees
what other transactions committed before the lock was granted. When its process or the server freezes, the
database or a deadline ends it, wherever the database can do that.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal

import pyarrow as pa
from sqlalchemy import (
    REAL,
    URL,
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Delete,
    Double,
    Engine,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    bindparam,
    delete,
    func,
    literal,
    literal_column,
    select,
    true,
    tuple_,
    types,
)
from sqlalchemy.exc import DBAPIError

from txstream.api.reducers import Reducer
from txstream.api.schema import format_type
from txstream.api.state import TXID_COLUMN, SqlState
from txstream.core.errors import StateTableError
from txstream.core.semantics import Semantics
from txstream.state.sql.errors import Failure
from txstream.state.sql.framework_tables import fence

Touch = Callable[[], None]
"""Tells a transaction's deadline that the database still answers."""

Asked = tuple[Any, Mapping[str, Any]]
"""A statement and its parameters."""

READ_ONLY: Final = "txstream_read_only"
"""Execution option of a connection that only reads: in SQLite its transactions take no lock."""

BEGINS_LATER: Final = "txstream_begins_later"
"""Execution option of a connection whose transaction begins with `StateDialect.begin` or `begin_with`."""

INTEGER_RANGES: Final[dict[pa.DataType, tuple[int, int]]] = {
    pa.int8(): (-(2**7), 2**7 - 1),
    pa.int16(): (-(2**15), 2**15 - 1),
    pa.int32(): (-(2**31), 2**31 - 1),
    pa.int64(): (-(2**63), 2**63 - 1),
}


COLUMN_TYPES: Final[dict[pa.DataType, Callable[[], types.TypeEngine[Any]]]] = {
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
}
"""The types that need no parameters; a dialect may use others for some."""


Update = Callable[[Any], tuple[dict[str, Any], Any]]


def key_columns(table: Table) -> list[Column[Any]]:
    """Return the key columns of a state table, which need not be its primary key."""
    return [column for column in table.columns if "key" in column.info]


def halved(rows: pa.Table, fits: Callable[[pa.Table], bool]) -> Iterator[pa.Table]:
    """Yield `rows`, halved again and again until each part fits or has one row."""
    if rows.num_rows < 2 or fits(rows):
        yield rows
        return
    half = rows.num_rows // 2
    yield from halved(rows.slice(0, half), fits)
    yield from halved(rows.slice(half), fits)


class Upsert(ABC):
    """A prepared upsert of one table: compiled once, executed for each chunk."""

    chunk_rows: ClassVar[int]

    @abstractmethod
    def execute(self, connection: Connection, deltas: pa.Table, txid: int) -> tuple[int, bool | None]:
        """Write a chunk. Returns the number of rows written: fewer than the chunk has when a row is newer.
        Beside it stands what `StateDialect.may_lose` says of the table, None if that is to be asked."""

    def copy_to(self, overwrite: Any, copied: Mapping[str, Any]) -> None:
        """Put each written row that carries the chunk's txid then into another table, too, by the insert that
        `StateDialect.overwrite` returns for it: `copied` has the columns there, as expressions over those
        here. Optional: see `StateDialect.copies_written`."""
        raise NotImplementedError


class BulkInsert(ABC):
    """A prepared insert of rows that are most likely new, better than an upsert from so many rows on."""

    chunk_rows: ClassVar[int]
    least_rows: ClassVar[int]

    @abstractmethod
    def execute(self, connection: Connection, rows: pa.Table, txid: int) -> int | None:
        """Insert a chunk. Returns the number of rows written; None when a key is there already: then the
        chunk, of which rows may have been written, is to be upserted."""


Found = tuple[list[int], dict[str, pa.Array]]
"""Rows that were found: the index of each row's key among the keys, and the requested columns."""


Carries = Literal["=", "<="]
"""How the txid of a row that a batch has written compares with the batch's: an older row may be left."""


class Lookup(ABC):
    """A prepared look-up of one table's rows by their keys. `keys` has the key columns, no key twice."""

    @abstractmethod
    def find(self, connection: Connection, keys: pa.Table) -> Found:
        """Return the rows that exist, in any order."""

    @abstractmethod
    def count(self, connection: Connection, keys: pa.Table, txid: int) -> int:
        """Return how many rows exist and carry the txid; in a table without txids, how many exist."""


class StateDialect(ABC):
    """One kind of database."""

    name: ClassVar[str]  # SQLAlchemy's name for it
    label: ClassVar[str]  # its name in messages
    driver: ClassVar[str]  # SQLAlchemy's name for its driver
    package: ClassVar[str]  # what pip installs for that
    port: ClassVar[int | None] = None
    """Of its server, where a URL names none; None for a file."""
    place_options: ClassVar[tuple[str, ...]] = ()
    """The options of a URL that name the server, the database or the schema, beside host, port and
    database."""
    isolation: ClassVar[str] = "READ COMMITTED"
    """The isolation level that its sessions ask for."""
    clock: ClassVar[str | None] = None
    """SQL for the server's present time; None where that is this machine's."""
    commits_each_step: ClassVar[bool] = False
    """Whether it commits each DDL statement by itself, so that tables are created in steps that can be
    resumed."""
    snapshot_isolation: ClassVar[str | None] = "REPEATABLE READ"
    """The isolation level under which a transaction sees one snapshot; None where every level does."""
    asks_at_release: ClassVar[bool] = False
    """Whether returning a connection to its pool sends something to the server."""
    copies_written: ClassVar[bool] = False
    """Whether its upserts have `copy_to`."""

    def __init__(self, url: URL, connect_timeout_seconds: float, message_timeout_seconds: float) -> None:
        """Connects to nothing yet. Raises UsageError for a URL that cannot be used."""
        self.url = url
        self.tables: dict[tuple[SqlState, Semantics], Table] = {}  # those that were built for it
        self.connect_timeout_seconds = connect_timeout_seconds
        self.message_timeout_seconds = message_timeout_seconds

    # --- URLs ---------------------------------------------------------------------------------------

    @classmethod
    def place_of(cls, url: URL) -> str:
        """Return the same text for every spelling of one database's URL: the user is ignored, and all options
        but `place_options`."""
        # A socket's path is an option, and its case matters.
        host = url.query.get("unix_socket") or url.query.get("host") or (url.host or "").lower()
        port = url.query.get("port") or url.port or cls.port
        named = "".join(f"&{one}={url.query[one]}" for one in cls.place_options if one in url.query)
        return f"{cls.name}:{host}:{port}/{url.database}{named}"

    def right_to_create(self, account: str) -> str:
        """Return what lets an account create tables: the statement where there is one."""
        return f"give {account} the right to create tables"

    # --- connections --------------------------------------------------------------------------------

    @abstractmethod
    def create_engine(self) -> Engine:
        """Return an engine whose connections have the isolation and the timeouts that the protocol needs."""

    def check(self) -> None:  # noqa: B027 - most have nothing to add
        """Raise ServiceUnavailableError for what connecting would not reveal: a file that is not writable."""

    def is_there(self) -> bool:
        """Whether the database exists, so that connecting would not create it."""
        return True

    @abstractmethod
    def place(self, connection: Connection) -> str | None:
        """Return which place the framework's tables are in, or would be made in; see `StateBackend.place`."""

    @contextlib.contextmanager
    def deadline(self, connection: Connection, seconds: float | None = None) -> Iterator[Touch]:
        """Break `connection` off when the server is silent for `seconds` while the block runs; by default
        for longer than any of the server's own timeouts."""
        yield lambda: None

    def ping(self, connection: Connection) -> None:  # noqa: B027 - a file needs none
        """Raise DBAPIError when the server has dropped this connection. Called outside of any transaction."""

    def lock_definitions(self, connection: Connection) -> None:  # noqa: B027 - SQLite has one writer
        """Keep other drivers from creating tables until this transaction ends."""

    def begin(self, connection: Connection) -> None:  # noqa: B027 - for most there is nothing to say first
        """Begin the transaction of a connection with the option `BEGINS_LATER`, unless it has begun."""

    def begin_with(
        self, connection: Connection, update: Asked, query: Asked
    ) -> tuple[int, Iterable[Sequence[Any]]] | None:
        """Begin a transaction with two statements in one round trip. Returns how many rows the first changed,
        and what the second, which sees what was committed while the first waited, found: numbers may be text.
        None: they are to be sent one after the other."""
        return None

    def hold_fence(self, connection: Connection, topology: str, uuid: str, attempt: int) -> bool:
        """Lock a topology's fence in share mode until the transaction ends, if it is at `attempt`; return
        False if it is not. This is the transaction's first statement. It is a locking read, so it waits for
        a transaction that is raising the fence."""
        held = (
            select(fence.c.attempt)
            .where(fence.c.topology == topology, fence.c.uuid == uuid, fence.c.attempt == attempt)
            .with_for_update(read=True)
        )
        return connection.execute(held).one_or_none() is not None

    @abstractmethod
    def lock_timeout(self, connection: Connection, seconds: float) -> contextlib.AbstractContextManager[None]:
        """Limit how long `connection` waits for other writers while the block runs. Entered before the
        transaction begins. The usual limit is longer than the database lets a frozen writer keep its
        transaction open."""

    @abstractmethod
    def classify(self, error: DBAPIError) -> Failure:
        """Return what a driver's error means."""

    # --- names --------------------------------------------------------------------------------------

    longest_name: ClassVar[int | None] = None
    """The maximum length of a table's or column's name, as `name_length` counts; None for no limit."""

    taken_columns: ClassVar[frozenset[str]] = frozenset()
    taken_tables: ClassVar[frozenset[str]] = frozenset()
    taken_prefixes: ClassVar[tuple[str, ...]] = ()
    """In lower case: names that no column or no table can have here, even in quotes, and prefixes that no
    table's name can have."""

    def name_length(self, name: str) -> int:
        """Return the length of a name as this database counts it."""
        return len(name)

    def stored_name(self, name: str) -> str:
        """Return a name, which may be too long, as this database stores it."""
        return name

    def check_name(self, table: str, what: str, name: str) -> None:
        """Raise StateTableError for a name of a table or column that this database refuses or shortens."""
        if self.longest_name is not None and self.name_length(name) > self.longest_name:
            raise StateTableError(
                f"state table {table!r}: {what} {name!r} has length {self.name_length(name)} and exceeds "
                f"maximum length of {self.longest_name} in {self.label}; choose a shorter name"
            )
        is_table = what == "table"
        taken = name.lower() in (self.taken_tables if is_table else self.taken_columns)
        if taken or (is_table and name.lower().startswith(self.taken_prefixes)):
            raise StateTableError(
                f"state table {table!r}: {self.label} keeps the name {name!r} for itself, so no {what} can "
                f"have it; choose another name"
            )

    # --- tables -------------------------------------------------------------------------------------

    @abstractmethod
    def insert(self, table: Table) -> Any:
        """Return SQLAlchemy's insert of this dialect."""

    def overwrite(self, table: Table) -> Any:
        """Return an insert that replaces the row with the same primary key."""
        insert = self.insert(table)
        others = [column.name for column in table.columns if not column.primary_key]
        return insert.on_conflict_do_update(
            index_elements=list(table.primary_key.columns),
            set_={name: insert.excluded[name] for name in others},
        )

    @abstractmethod
    def column_type(self, data_type: pa.DataType) -> types.TypeEngine[Any] | None:
        """Return the column type for an Arrow type; None when this database cannot keep it exactly."""

    def type_of(self, field: pa.Field, table: str) -> types.TypeEngine[Any]:
        """Return the field's `column_type`. If it is None, raise StateTableError with column and type."""
        found = self.column_type(field.type)
        if found is None:
            raise StateTableError(
                f"state table {table!r}: {self.label} cannot keep column {field.name!r} of type "
                f"{format_type(field.type)} exactly; use another type or another database"
            )
        return found

    def key_types(self, keys: pa.Schema, table: str) -> dict[str, types.TypeEngine[Any]]:
        """Return the types of a table's key columns by name. Raises StateTableError as `type_of` does."""
        return {field.name: self.type_of(field, table) for field in keys}

    def shown_type(self, connection: Connection, column_type: Any) -> str:
        """Return a type as text that is equal for the declared type and for the one in the database."""
        return str(column_type.compile(connection.dialect))

    def value_check(self, column: Column[Any], data_type: pa.DataType) -> ColumnElement[bool] | None:
        """Return a CHECK condition for a type whose range the database does not check itself; else None."""
        return None

    @abstractmethod
    def table_options(self, *, keyed: bool = True, updated: bool = True) -> dict[str, Any]:
        """Return the keyword arguments for `Table` that say how it is stored: one with a primary key or
        without, whose rows are updated or never changed."""

    def check_values(  # noqa: B027 - most have nothing to add to `values.check_column`
        self, table: str, name: str, column: pa.ChunkedArray, reducer: Reducer | None
    ) -> None:
        """Raise StateValueError for a value that this database, unlike others, would refuse or change. A key
        has no reducer."""

    def check_keys(self, table: str, keys: pa.Table) -> None:  # noqa: B027 - most have room for any key
        """Raise StateValueError for a key that is too long for its column."""

    @abstractmethod
    def to_driver(self, column: pa.ChunkedArray) -> list[Any]:
        """Return the values of a column as this database's driver takes them."""

    def from_driver(self, values: list[Any], data_type: pa.DataType) -> pa.Array:
        """Return a column from the values that a SQLAlchemy statement returned for it."""
        return pa.array(values, data_type)

    def ordering(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return the expression to sort by; not the column itself where that sorts the values wrongly."""
        return column

    def literal(self, column: pa.ChunkedArray, column_type: types.TypeEngine[Any]) -> ColumnElement[Any]:
        """Return the only value of `column` as SQL text, for a column's default."""
        value = self.to_driver(column)[0]
        if isinstance(value, bytes):
            return literal_column(f"X'{value.hex()}'")
        return literal(value, column_type)

    def refuse_unfit(self, connection: Connection, table: Table) -> None:  # noqa: B027 - most are asked later
        """Raise StateTableError for what somebody has given a state table and would lose rows. Called at the
        start; what comes later is found by `may_lose`."""

    @abstractmethod
    def may_lose(self, connection: Connection, table: Table) -> bool:
        """Whether a row that this transaction has written may be gone, although the database has counted it:
        it went into another row, or something that reacts to it took it. Asked of the catalog, which cannot
        change for the table any more: the transaction that has written holds its lock. Not asked where an
        upsert has asked it in its own message, which saves a round trip."""

    def be_patient(self, connection: Connection) -> None:  # noqa: B027 - most have no limit of their own
        """Lift the time limit on statements for the rest of this transaction."""

    # --- statements ---------------------------------------------------------------------------------

    @abstractmethod
    def upsert(self, table: Table, update: Update | None) -> Upsert:
        """Prepare the upsert of key and value columns. `update` is called with `excluded`; it returns the new
        values of an existing row and the condition under which that row may be written. Without it, the table
        has no primary key and rows are only inserted."""

    def bulk_insert(self, table: Table) -> BulkInsert | None:
        """Prepare the insert of rows that are most likely new; None where the upsert is as fast."""
        return None

    def removal(self, table: Table, column: str, before: ColumnElement[Any], most: int) -> Delete:
        """Prepare the deletion of at most `most` rows whose `column` is less than a value."""
        old, keys = table.alias("old"), key_columns(table)
        chosen = select(*(old.c[key.name] for key in keys)).where(old.c[column] < before)
        chosen = chosen.order_by(old.c[column]).limit(
            most
        )  # so that it uses the index, whatever is estimated
        return delete(table).where((keys[0] if len(keys) == 1 else tuple_(*keys)).in_(chosen))

    def lookup(
        self, table: Table, columns: Mapping[str, pa.DataType], carries: Carries | None = None
    ) -> Lookup:
        """Prepare the look-up of these columns of a table, which become arrays of these types. `carries` is
        for a table with txids that are to be counted."""
        return _InLookup(self, table, columns, carries)

    least: ClassVar[str] = "min"
    greatest: ClassVar[str] = "max"

    def merged(self, reducer: Reducer, stored: Any, delta: Any) -> ColumnElement[Any]:
        """Return SQL for `stored` with `delta` merged in. Null is the identity of every reducer: a null on
        one side gives the other side, so a missing `prev` needs no special case."""
        match reducer.merge:
            case "sum":
                both: Any = stored + delta
            case "min":
                both = getattr(func, self.least)(stored, delta)
            case "max":
                both = getattr(func, self.greatest)(stored, delta)
            case "last":
                return func.coalesce(delta, stored, type_=stored.type)
            case "put" | "custom":
                return delta  # type: ignore[no-any-return]  # what is written is what the row becomes
            case other:
                raise StateTableError(f"reducer {reducer} merges by {other!r}, which no database does here")
        return func.coalesce(both, stored, delta, type_=stored.type)


class _InLookup(Lookup):
    """A look-up by SELECT ... WHERE (key) IN (...), which every database understands."""

    chunk_rows: ClassVar[int] = 500

    def __init__(
        self, dialect: StateDialect, table: Table, columns: Mapping[str, pa.DataType], carries: Carries | None
    ) -> None:
        self._dialect = dialect
        self._keys = key_columns(table)
        self._columns = dict(columns)
        self._query = select(*self._keys, *(table.c[name] for name in columns))
        self._count = select(func.count()).select_from(table).where(carried(table, carries))

    def find(self, connection: Connection, keys: pa.Table) -> Found:
        width = len(self._keys)
        places: list[int] = []
        found: list[Any] = []
        for start, wanted, condition in self._parts(keys):
            place_of = {key: start + place for place, key in enumerate(wanted)}
            for row in connection.execute(self._query.where(condition)):
                places.append(place_of[tuple(row[:width])])
                found.append(row[width:])
        arrays = {
            name: self._dialect.from_driver([row[place] for row in found], data_type)
            for place, (name, data_type) in enumerate(self._columns.items())
        }
        return places, arrays

    def count(self, connection: Connection, keys: pa.Table, txid: int) -> int:
        return sum(
            connection.execute(self._count.where(condition), {"mine": txid}).scalar_one()
            for _, _, condition in self._parts(keys)
        )

    def _parts(self, keys: pa.Table) -> Iterator[tuple[int, list[tuple[Any, ...]], ColumnElement[bool]]]:
        """Yield the place of the first key of each part, its keys, and the condition that a row has one."""
        for start in range(0, keys.num_rows, self.chunk_rows):
            part = keys.slice(start, self.chunk_rows)
            columns = [self._dialect.to_driver(part.column(key.name)) for key in self._keys]
            wanted = list(zip(*columns, strict=True))
            one = len(self._keys) == 1
            yield start, wanted, self._keys[0].in_(columns[0]) if one else tuple_(*self._keys).in_(wanted)


def carried(table: Table, carries: Carries | None) -> ColumnElement[bool]:
    """Return the condition that a row carries the txid that is bound as `mine`."""
    return true() if carries is None else table.c[TXID_COLUMN].bool_op(carries)(bindparam("mine"))
