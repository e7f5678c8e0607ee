"""PostgreSQL through psycopg 3.

Locks. Every transaction is READ COMMITTED, whatever the server's default. Under REPEATABLE READ a transaction
that waited at the fence would not see the ledger row of the one it waited for, and would restore nothing,
without an error. The server ends a session that is idle in a transaction, such as a frozen driver's, before
`message_timeout` has passed; a session that waits for the fence waits longer than that.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, cast

import pyarrow as pa
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Date,
    DateTime,
    Engine,
    Numeric,
    Table,
    Text,
    create_engine,
    event,
    func,
    literal_column,
    select,
    text,
    types,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import DBAPIError

from txstream.api.reducers import Reducer
from txstream.state.sql.dialect import COLUMN_TYPES, INTEGER_RANGES, Lookup, Upsert
from txstream.state.sql.errors import Failure, Kind, driver_error, one_line
from txstream.state.sql.postgresql_statements import BYTE_ORDER, UnnestLookup, UnnestUpsert, plain_type
from txstream.state.sql.server_timeouts import ServerDialect, driver_of

# A copy of a server's files has its system identifier, and a timeline of its own once it is promoted. The
# schema is the one that the search path leads to, whatever set it.
_PLACE = text(
    "SELECT concat_ws('/', 'postgresql', (SELECT system_identifier FROM pg_control_system()), "
    "(SELECT timeline_id FROM pg_control_checkpoint()), (SELECT oid FROM pg_database WHERE datname = "
    "current_database()), coalesce(to_regclass('txstream_fence')::oid::text, current_schema()))"
)
_DEFINITIONS_LOCK = 0x74787374  # "txst": all users of the database share the numbers of advisory locks

# https://www.postgresql.org/docs/current/errcodes-appendix.html: codes first, then whole classes.
_KINDS: dict[str, Kind] = {
    "40003": Kind.UNREACHABLE,  # statement_completion_unknown
    "55P03": Kind.LOCKED,  # lock_not_available
    "40P01": Kind.LOCKED,  # deadlock_detected
    "42501": Kind.DENIED,
    "42P01": Kind.MISSING,
    "42703": Kind.MISSING,
    "54000": Kind.VALUE,  # program_limit_exceeded: a key too long for an index
    "25006": Kind.UNREACHABLE,  # read_only_sql_transaction: a standby server
    "08": Kind.UNREACHABLE,
    "22": Kind.VALUE,
    "23": Kind.VALUE,
    "25": Kind.UNREACHABLE,  # idle_in_transaction_session_timeout among them
    "28": Kind.UNREACHABLE,
    "3D": Kind.UNREACHABLE,
    "40": Kind.LOCKED,
    "53": Kind.UNREACHABLE,  # disk full, out of memory, too many connections
    "57": Kind.UNREACHABLE,  # shutting down, starting up, statement_timeout
    "58": Kind.UNREACHABLE,
    "XX": Kind.DAMAGED,
}


class PostgreSQLDialect(ServerDialect):
    name: ClassVar[str] = "postgresql"
    label: ClassVar[str] = "PostgreSQL"
    longest_name: ClassVar[int | None] = 63  # bytes; the server cuts a longer name without an error
    taken_columns: ClassVar[frozenset[str]] = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
    taken_tables: ClassVar[frozenset[str]] = frozenset({"excluded"})  # a keyword of the upsert

    def create_engine(self) -> Engine:
        deadline = str(max(1, math.ceil(self.connect_timeout_seconds)))
        wanted = {
            "connect_timeout": deadline,
            "application_name": "txstream",
            # Whatever encoding the database has; the server reports text that it cannot store.
            "client_encoding": "utf8",
            "keepalives_idle": deadline,
            "keepalives_interval": "2",
            "keepalives_count": "3",
            "tcp_user_timeout": str(_milliseconds(self.message_timeout_seconds)),
        }
        engine = create_engine(
            self.url.set(drivername="postgresql+psycopg"),
            isolation_level="READ COMMITTED",
            pool_size=2,
            pool_timeout=self.connect_timeout_seconds,
            use_native_hstore=False,  # it would ask the server for an unused type on every start
            connect_args={name: value for name, value in wanted.items() if name not in self.url.query},
        )
        event.listen(engine, "connect", self._set_timeouts)
        return engine

    def _set_timeouts(self, driver: Any, _record: object) -> None:
        self._configure(
            driver,
            idle_in_transaction_session_timeout=_milliseconds(self.idle_timeout_seconds),
            lock_timeout=_milliseconds(self.lock_timeout_seconds),
            statement_timeout=_milliseconds(self.statement_timeout_seconds),
            # In another zone the first and last possible days have years that Python does not know.
            timezone="UTC",
        )

    @staticmethod
    def _configure(driver: Any, **settings: object) -> None:
        calls = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in settings.items())
        driver.autocommit = True  # in a transaction, a rollback would undo the settings
        driver.execute(f"SELECT {calls}")
        driver.autocommit = False

    def descriptor(self, connection: Connection) -> int:
        return int(driver_of(connection).fileno())

    def place(self, connection: Connection) -> str | None:
        return cast("str | None", connection.execute(_PLACE).scalar())

    def lock_definitions(self, connection: Connection) -> None:
        connection.execute(select(func.pg_advisory_xact_lock(_DEFINITIONS_LOCK)))

    @contextlib.contextmanager
    def lock_timeout(self, connection: Connection, seconds: float) -> Iterator[None]:
        driver = driver_of(connection)
        self._configure(driver, lock_timeout=_milliseconds(seconds))
        try:
            yield
        finally:
            if not driver.closed:
                self._configure(driver, lock_timeout=_milliseconds(self.lock_timeout_seconds))

    def classify(self, error: DBAPIError) -> Failure:
        cause = driver_error(error)
        state = getattr(cause, "sqlstate", None) or ""
        message = one_line(cause)
        if error.connection_invalidated or not state:
            # psycopg invents no SQLSTATE. Without one there was no answer, or one that it did not understand.
            outage = error.connection_invalidated or _is_operational(error)
            return Failure(Kind.UNREACHABLE if outage else Kind.OTHER, message)
        return Failure(_KINDS.get(state) or _KINDS.get(state[:2], Kind.OTHER), message)

    def name_length(self, name: str) -> int:
        return len(name.encode())

    def stored_name(self, name: str) -> str:
        return name.encode()[: self.longest_name].decode(errors="ignore")

    # --- tables -------------------------------------------------------------------------------------

    def insert(self, table: Table) -> Any:
        return postgresql.insert(table)

    def column_type(self, data_type: pa.DataType) -> types.TypeEngine[Any] | None:
        if pa.types.is_decimal128(data_type):
            return Numeric(data_type.precision, data_type.scale)
        if pa.types.is_timestamp(data_type) and data_type.unit in ("s", "ms", "us"):
            return DateTime(timezone=data_type.tz is not None)
        found = Date if pa.types.is_date32(data_type) else COLUMN_TYPES.get(data_type)
        return None if found is None else found()

    def key_types(self, keys: pa.Schema, table: str) -> dict[str, types.TypeEngine[Any]]:
        # An index in byte order, the order in which keys are written, is a third faster than one in a
        # language's order. A system library's new version may change a language's order, but not this one.
        return {
            name: Text(collation=BYTE_ORDER) if isinstance(found, Text) else found
            for name, found in super().key_types(keys, table).items()
        }

    def shown_type(self, connection: Connection, column_type: Any) -> str:
        # Accepted with that collation or with the database's default, which tables of an earlier txstream
        # have. Both agree on which texts are equal; a collation of another name may not.
        return super().shown_type(connection, plain_type(column_type))

    def value_check(self, column: Column[Any], data_type: pa.DataType) -> ColumnElement[bool] | None:
        if data_type != pa.int8():  # the only integer whose range PostgreSQL does not check itself
            return None
        low, high = INTEGER_RANGES[data_type]
        return column.between(low, high)

    def table_options(self) -> dict[str, Any]:
        # Every batch updates its keys. With free room in each page, a row's new version stays beside the old
        # one and the index is not touched. Measured on 10,000 hot keys: a third faster, a fifth of the size.
        return {"postgresql_with": {"fillfactor": 50}}

    def to_driver(self, column: pa.ChunkedArray) -> list[Any]:
        values: list[Any] = column.to_pylist()
        return values

    def ordering(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        # The order of the values, whatever collation the database was created with.
        return column.collate(BYTE_ORDER) if isinstance(column.type, Text) else column

    def literal(self, column: pa.ChunkedArray, column_type: types.TypeEngine[Any]) -> ColumnElement[Any]:
        value = self.to_driver(column)[0]
        if isinstance(value, bytes):
            return literal_column(f"'\\x{value.hex()}'")
        return super().literal(column, column_type)

    def be_patient(self, connection: Connection) -> None:
        connection.execute(select(func.set_config("statement_timeout", "0", True)))

    def merged(self, reducer: Reducer, stored: Any, delta: Any) -> ColumnElement[Any]:
        if reducer.merge in ("min", "max"):
            stored, delta = self.ordering(stored), self.ordering(delta)
        return super().merged(reducer, stored, delta)

    def upsert(self, table: Table, update: Callable[[Any], tuple[dict[str, Any], Any]]) -> Upsert:
        return UnnestUpsert(table, update)

    def lookup(self, table: Table, columns: Mapping[str, pa.DataType]) -> Lookup:
        return UnnestLookup(table, columns)


def _is_operational(error: DBAPIError) -> bool:
    return type(error).__name__ in ("OperationalError", "InterfaceError", "InternalError")


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))
