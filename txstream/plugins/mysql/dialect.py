"""MySQL and MariaDB through PyMySQL.

Locks. Every transaction is READ COMMITTED, whatever the server's default. Under REPEATABLE READ a transaction
that waited at the fence would not see the ledger row of the one it waited for, and would restore nothing,
without an error. The server ends a session that is idle in a transaction, such as a frozen driver's, before
`message_timeout` has passed; a session that waits for the fence waits longer than that. MySQL cannot limit
idle transactions alone: it ends every session that is idle for that long, and the next batch after such a
pause connects again.

DDL is not transactional: CREATE TABLE commits what was done before it. So the code that creates tables
(`tables`, `framework_tables`) is written so that the next start can continue it.

Rowcounts count the rows found, not those changed: SQLAlchemy asks PyMySQL for CLIENT.FOUND_ROWS.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pyarrow as pa
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Date,
    Delete,
    Double,
    Engine,
    Table,
    create_engine,
    delete,
    event,
    func,
    inspect,
    literal_column,
    text,
    types,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.elements import Grouping

from txstream.api.reducers import Reducer
from txstream.core.errors import StateTableError, StateValueError, UsageError
from txstream.plugins.mysql import column_types as mysql_types
from txstream.plugins.mysql.column_types import BinaryKey, TextKey, TextValue, collation
from txstream.plugins.mysql.connect import classify, connect, is_mariadb, place
from txstream.plugins.mysql.statements import JoinedUpsert, PlainInsert
from txstream.state.records import FenceLockedError
from txstream.state.sql.dialect import COLUMN_TYPES, BulkInsert, Update, Upsert
from txstream.state.sql.errors import Failure, driver_error
from txstream.state.sql.server_timeouts import ServerDialect, driver_of
from txstream.state.sql.urls import without_password

PACKET_BYTES = "txstream_packet_bytes"
"""Key in the `info` of a pooled connection: the length of the longest statement that the server accepts."""

_DEFINING = "txstream_defining"
_PATIENT = "txstream_patient"
_ALL_ROWS = 2**64 - 1
# A lock's name is shared by the whole server and has at most 64 characters. MySQL 9.6 removed SHA1.
_LOCK = "CONCAT('txstream ', LEFT(SHA2(DATABASE(), 256), 40))"
# Each server has some of these; which, depends on its kind and version.
_SERVER = (
    "SHOW GLOBAL VARIABLES WHERE variable_name IN "
    "('server_uuid', 'server_uid', 'hostname', 'port', 'socket', 'datadir')"
)
_DATABASE = "SELECT IF(@@lower_case_table_names, LOWER(DATABASE()), DATABASE())"
_LONGEST_IDENTIFIER = 64
_LONGEST_FILE_NAME = 251  # 255 with its extension
_LARGEST_FLOAT = 3.4028234663852886e38
# Text that needs no escaping and is the same in every character set.
_PLAIN = re.compile(r"[\w .,:;/+-]*", re.ASCII)

# A value that does not fit is refused, and a backslash escapes, whatever the server's own mode is.
_MODE = "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION"

_COLUMN_TYPES: dict[pa.DataType, Callable[[], types.TypeEngine[Any]]] = {
    **COLUMN_TYPES,
    pa.string(): TextValue,
    pa.large_string(): TextValue,
    pa.binary(): mysql.LONGBLOB,
    pa.large_binary(): mysql.LONGBLOB,
    pa.int8(): mysql.TINYINT,
    pa.float32(): Double,  # FLOAT is shown with six digits, so readers would not get what was written
    pa.date32(): Date,
}


class MySQLDialect(ServerDialect):
    name: ClassVar[str] = "mysql"
    label: ClassVar[str] = "MySQL or MariaDB"
    driver: ClassVar[str] = "pymysql"
    package: ClassVar[str] = "txstream[mysql]"
    port: ClassVar[int | None] = 3306
    place_options: ClassVar[tuple[str, ...]] = (
        "database",
        "db",
        "init_command",
        "read_default_file",
        "read_default_group",
    )
    clock: ClassVar[str | None] = "utc_timestamp(6)"
    commits_each_step: ClassVar[bool] = True
    asks_at_release: ClassVar[bool] = True
    longest_name: ClassVar[int | None] = _LONGEST_IDENTIFIER
    silence: ClassVar[tuple[int, ...]] = (2013,)  # lost connection during query

    def __init__(self, url: Any, connect_timeout_seconds: float, message_timeout_seconds: float) -> None:
        if not url.database and "read_default_file" not in url.query:
            # The server would accept the session and then refuse every table in it.
            raise UsageError(
                f"the URL {without_password(url)} names no database; write for example mysql://user@host/name"
            )
        super().__init__(url, connect_timeout_seconds, message_timeout_seconds)
        self._engine: Engine | None = None

    def right_to_create(self, account: str) -> str:
        return f"GRANT ALL ON {self.url.database}.* TO {account};"

    def countable(self, seconds: float) -> int:
        return max(1, math.floor(seconds))

    def create_engine(self) -> Engine:
        try:
            engine = create_engine(
                self.url.set(drivername="mysql+pymysql"),
                isolation_level="READ COMMITTED",
                pool_size=2,
                pool_timeout=self.connect_timeout_seconds,
                max_identifier_length=_LONGEST_IDENTIFIER,
                connect_args={
                    "charset": "utf8mb4",
                    "connect_timeout": self.connect_timeout_seconds,
                    # For the handshake only; `_configure` removes them.
                    "read_timeout": self.connect_timeout_seconds,
                    "write_timeout": self.connect_timeout_seconds,
                    "program_name": "txstream",
                },
            )
        except ValueError as error:
            raise UsageError(
                f"the URL of database {place(self.url)} has an option that cannot be used: {error}"
            ) from error
        event.listen(engine, "do_connect", self._connect)
        # Before SQLAlchemy first looks at the server, where it learns how names are quoted.
        event.listen(engine, "connect", self._configure, insert=True)
        # After SQLAlchemy has set its own collation.
        event.listen(engine, "connect", _set_collation)
        event.listen(engine, "reset", self._put_back)
        self._engine = engine
        return engine

    def _connect(self, dialect: Any, _record: object, _arguments: object, options: dict[str, Any]) -> Any:
        return connect(dialect.loaded_dbapi, self.url, options)

    def _configure(self, driver: Any, record: Any) -> None:
        mariadb = is_mariadb(driver.get_server_info())
        with driver.cursor() as cursor:
            cursor.execute(f"SET SESSION {self.session_settings(mariadb=mariadb)}")
            cursor.execute("SELECT @@max_allowed_packet")
            (record.info[PACKET_BYTES],) = cursor.fetchone()
        # From here on a deadline watches the connection; it knows how long each wait may last.
        driver._read_timeout = driver._write_timeout = None

    def session_settings(self, *, mariadb: bool) -> str:
        """Return every session's settings in the syntax of SET."""
        return ", ".join(f"{name} = {value}" for name, value in self._settings(mariadb=mariadb).items())

    def _settings(self, *, mariadb: bool) -> dict[str, str | float]:
        settings: dict[str, str | float] = {
            "sql_mode": f"'{_MODE}'",
            "time_zone": "'+00:00'",
            "default_storage_engine": "InnoDB",
            # A server may have other values, meant for interactive use. A SELECT would then silently return
            # fewer rows, and a change without a key, a large join or a statement after COMMIT would be
            # refused.
            "sql_select_limit": _ALL_ROWS,
            "sql_big_selects": 1,
            "sql_safe_updates": 0,
            "sql_quote_show_create": 1,
            "completion_type": "'NO_CHAIN'",
            "innodb_lock_wait_timeout": self.lock_timeout_seconds,
            "lock_wait_timeout": self.lock_timeout_seconds,  # for CREATE and DROP
            # A client that freezes while it sends or receives holds its locks too.
            "net_read_timeout": self.idle_timeout_seconds,
            "net_write_timeout": self.idle_timeout_seconds,
        }
        if mariadb:
            settings["idle_transaction_timeout"] = self.idle_timeout_seconds
            settings["idle_write_transaction_timeout"] = self.idle_timeout_seconds
            settings["max_statement_time"] = self.statement_timeout_seconds
        else:
            settings["wait_timeout"] = self.idle_timeout_seconds
            settings["max_execution_time"] = round(self.statement_timeout_seconds * 1000)  # only for SELECT
        return settings

    def descriptor(self, connection: Connection) -> int | None:
        line = driver_of(connection)._sock
        return None if line is None else int(line.fileno())

    def place(self, connection: Connection) -> str | None:
        server = sorted(f"{name}={value}" for name, value in connection.execute(text(_SERVER)))
        return "/".join(["mysql", *server, str(connection.execute(text(_DATABASE)).scalar_one())])

    def lock_definitions(self, connection: Connection) -> None:
        # A session's lock, because each CREATE ends the transaction. It is released when the connection goes
        # back to its pool, or by the server when the session ends.
        connection.info[_DEFINING] = True
        wait = f"SELECT GET_LOCK({_LOCK}, {self.lock_timeout_seconds})"
        got = connection.exec_driver_sql(wait).scalar_one()
        if got != 1:
            raise FenceLockedError(
                f"another session has been creating txstream's tables in database {self.url.database!r} for "
                f"{self.lock_timeout_seconds} s; end that session, or wait until it is done"
            )

    def be_patient(self, connection: Connection) -> None:
        mariadb = is_mariadb(driver_of(connection).get_server_info())
        connection.info[_PATIENT] = setting = "max_statement_time" if mariadb else "max_execution_time"
        connection.exec_driver_sql(f"SET SESSION {setting} = 0")

    def _put_back(self, driver: Any, record: Any, _state: object) -> None:
        """When a connection goes back to its pool, undo what was set for one transaction but lasts for the
        session here."""
        defining, setting = record.info.pop(_DEFINING, False), record.info.pop(_PATIENT, None)
        if not driver.open or not (defining or setting):
            return
        with driver.cursor() as cursor:
            if defining:
                cursor.execute(f"DO RELEASE_LOCK({_LOCK})")
            if setting:
                usual = self._settings(mariadb=is_mariadb(driver.get_server_info()))[setting]
                cursor.execute(f"SET SESSION {setting} = {usual}")

    @contextlib.contextmanager
    def lock_timeout(self, connection: Connection, seconds: float) -> Iterator[None]:
        driver = driver_of(connection)
        _set_lock_timeout(driver, seconds)
        try:
            yield
        finally:
            if driver.open:
                _set_lock_timeout(driver, self.lock_timeout_seconds)

    def classify(self, error: DBAPIError) -> Failure:
        return classify(driver_error(error), lost=error.connection_invalidated)

    # --- tables -------------------------------------------------------------------------------------

    def check_name(self, table: str, what: str, name: str) -> None:
        super().check_name(table, what, name)
        if name.endswith(" ") or any(character > "\uffff" for character in name):
            raise StateTableError(
                f"state table {table!r}: {self.label} takes no {what} {name!r}, whose name ends with a blank "
                f"or has a character beyond U+FFFF in it; choose another name"
            )
        # A table is a file. In a file's name most characters beyond ASCII are written like @0123.
        plain = sum(character.isascii() and (character.isalnum() or character in "_$") for character in name)
        if what == "table" and plain + 5 * (len(name) - plain) > _LONGEST_FILE_NAME:
            raise StateTableError(
                f"state table {table!r}: {self.label} keeps it in a file, whose name may be longer than "
                f"{_LONGEST_FILE_NAME} bytes; choose a shorter name"
            )

    def insert(self, table: Table) -> Any:
        return mysql.insert(table)

    def overwrite(self, table: Table) -> Any:
        insert = mysql.insert(table)
        return insert.on_duplicate_key_update(
            {column.name: func.values(column) for column in table.columns if not column.primary_key}
        )

    def column_type(self, data_type: pa.DataType) -> types.TypeEngine[Any] | None:
        if pa.types.is_decimal128(data_type):
            # MySQL has at most 30 decimals. Whether it is MySQL or MariaDB is known only once connected.
            fits = data_type.scale <= 30 or self._engine is None or _may_be_mariadb(self._engine)
            return mysql.DECIMAL(data_type.precision, data_type.scale) if fits else None
        if pa.types.is_timestamp(data_type) and data_type.unit in ("s", "ms", "us"):
            return mysql.DATETIME(fsp=6)  # TIMESTAMP ends in 2038
        found = _COLUMN_TYPES.get(data_type)
        return None if found is None else found()

    def key_types(self, keys: pa.Schema, table: str) -> dict[str, types.TypeEngine[Any]]:
        if len(table) > _LONGEST_IDENTIFIER:
            raise StateTableError(
                f"state table {table!r}: a name in {self.label} has {_LONGEST_IDENTIFIER} characters at "
                f"most; choose a shorter one"
            )
        found = {}
        for name, length in mysql_types.key_lengths(keys, table).items():
            field = keys.field(name)
            if length is None:
                found[name] = self.type_of(field, table)
            else:
                found[name] = TextKey(length) if mysql_types.is_text(field.type) else BinaryKey(length)
        return found

    def value_check(self, column: Column[Any], data_type: pa.DataType) -> ColumnElement[bool] | None:
        return column.between(-_LARGEST_FLOAT, _LARGEST_FLOAT) if data_type == pa.float32() else None

    def table_options(self, *, keyed: bool = True, updated: bool = True) -> dict[str, Any]:
        return {
            "mysql_engine": "InnoDB",
            "mysql_row_format": "DYNAMIC",  # the only format with keys of 3072 bytes
            "mysql_default_charset": "utf8mb4",
            # Never a column's collation, so that the catalog always shows that of each column.
            "mysql_collate": "utf8mb4_bin",
        }

    def shown_type(self, connection: Connection, column_type: Any) -> str:
        return mysql_types.shown(connection.dialect, column_type)

    def check_values(self, table: str, name: str, column: pa.ChunkedArray, reducer: Reducer | None) -> None:
        if pa.types.is_floating(column.type):
            import pyarrow.compute as pc  # who only looks at a database does not need it

            row = pc.index(pc.is_finite(column), pa.scalar(False)).as_py()
            if row >= 0:
                raise StateValueError(
                    f"column {name!r} of table {table!r} got {column[row].as_py()}, which {self.label} "
                    f"cannot keep; filter it out before the state"
                )

    def check_keys(self, table: str, keys: pa.Table) -> None:
        for name, length in mysql_types.key_lengths(keys.schema, table).items():
            if length is not None:
                mysql_types.refuse_too_long(table, name, keys.column(name), length)

    def to_driver(self, column: pa.ChunkedArray) -> list[Any]:
        if pa.types.is_timestamp(column.type):
            if column.type.tz is not None:
                column = column.cast(pa.timestamp("us", tz="UTC"))
            column = column.cast(pa.timestamp("us"))  # DATETIME has no zone; zoned times are kept in UTC
        values: list[Any] = column.to_pylist()
        return values

    def literal(self, column: pa.ChunkedArray, column_type: types.TypeEngine[Any]) -> ColumnElement[Any]:
        found = super().literal(column, column_type)
        if mysql_types.is_text(column.type):
            text = self.to_driver(column)[0]
            if not _PLAIN.fullmatch(text):
                # MySQL stores an expression as text, with backslashes before quotes, and parses it in the
                # mode of the session that opens the table. Under NO_BACKSLASH_ESCAPES no session could open
                # it any more. After an introducer such as _utf8mb4 even a hexadecimal literal is stored so.
                found = literal_column(f"CONVERT(X'{text.encode().hex()}' USING utf8mb4)")
        elif not mysql_types.is_bytes(column.type):
            return found
        # MySQL accepts a default for text and bytes only in parentheses.
        return Grouping(found)

    def removal(self, table: Table, column: str, before: ColumnElement[Any], most: int) -> Delete:
        # MySQL has no LIMIT in a subquery of IN.
        return delete(table).where(table.c[column] < before).with_dialect_options(mysql_limit=most)

    def refuse_unfit(self, connection: Connection, table: Table) -> None:
        keyed = bool(table.primary_key.columns)
        second = [one["name"] for one in inspect(connection).get_indexes(table.name) if one["unique"]]
        if keyed and second:
            quoted = connection.dialect.identifier_preparer.quote_identifier
            raise StateTableError(
                f"state table {table.name!r} has the UNIQUE index {second[0]!r} beside its key, and "
                f"{self.label} would write a row of a new key over the row that has the same "
                f"value there; run ALTER TABLE {quoted(table.name)} DROP INDEX {quoted(str(second[0]))}"
            )

    def may_lose(self, connection: Connection, table: Table) -> bool:
        # ON DUPLICATE KEY UPDATE names no index. Triggers change rows here, but cannot take any.
        name = connection.dialect.identifier_preparer.format_table(table)
        _, definition = connection.exec_driver_sql(f"SHOW CREATE TABLE {name}").one()
        return "UNIQUE KEY" in definition

    def bulk_insert(self, table: Table) -> BulkInsert | None:
        return PlainInsert(self, table, PACKET_BYTES)

    def upsert(self, table: Table, update: Update | None) -> Upsert:
        return JoinedUpsert(self, table, update, PACKET_BYTES)


def _may_be_mariadb(engine: Engine) -> bool:
    dialect: Any = engine.dialect
    return dialect.is_mariadb or getattr(dialect, "server_version_info", None) is None


def _set_collation(driver: Any, _record: object) -> None:
    driver.set_character_set("utf8mb4", collation(mariadb=is_mariadb(driver.get_server_info())))


def _set_lock_timeout(driver: Any, seconds: float) -> None:
    with driver.cursor() as cursor:
        cursor.execute(f"SET SESSION innodb_lock_wait_timeout = {max(1, math.ceil(seconds))}")
