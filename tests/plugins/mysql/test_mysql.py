"""MySQL and MariaDB without a server: which statements are sent, and what their errors mean."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pymysql
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from support.lists import each
from support.states import word_table

from txstream.api.reducers import Put
from txstream.core.errors import ServiceUnavailableError, StateTableError, StateValueError, UsageError
from txstream.core.semantics import Semantics
from txstream.plugins.mysql.column_types import TextKey, key_lengths, refuse_too_long, shown
from txstream.plugins.mysql.connect import classify, is_mariadb, refuse_old_server
from txstream.plugins.mysql.dialect import MySQLDialect
from txstream.state import open_sql_database, place_of
from txstream.state.sql.errors import Kind
from txstream.state.sql.tables import build_table
from txstream.state.sql.writer import TableWriter

URL = "mysql://me@host/db"


@pytest.fixture
def dialect() -> MySQLDialect:
    return MySQLDialect(sa.make_url(URL), 10.0, 30.0)


def server_dialect(*, mariadb: bool) -> Any:
    found = mysql.dialect(paramstyle="format")
    found.is_mariadb = mariadb
    return found


class Connection:
    """Records the statements that it is asked to execute."""

    def __init__(self, *, mariadb: bool, limit: int = 1 << 24) -> None:
        self.dialect = server_dialect(mariadb=mariadb)
        self.info = {"txstream_packet_bytes": limit}
        self.sent: list[tuple[str, tuple[Any, ...]]] = []

    def exec_driver_sql(self, statement: str, parameters: tuple[Any, ...]) -> None:
        self.sent.append((statement, parameters))


def upserts(dialect: MySQLDialect, connection: Connection, rows: int, **options: Any) -> list[str]:
    writer = TableWriter(word_table(**options), dialect)
    deltas = pa.table({"word": [f"w{n}" for n in range(rows)], "n": list(range(rows))})
    assert writer._upsert.execute(connection, writer.prepare(deltas), 7)[0] == rows  # type: ignore[arg-type]
    return [
        " ".join((statement % tuple(map(repr, parameters))).split())
        for statement, parameters in connection.sent
    ]


@pytest.mark.parametrize("mariadb", [True, False])
def test_the_statement_of_a_chunk(dialect: MySQLDialect, mariadb: bool) -> None:
    (statement,) = upserts(dialect, Connection(mariadb=mariadb), 2, semantics=Semantics.TRANSACTIONAL)
    row = "" if mariadb else "ROW"
    assert statement == (
        f"INSERT INTO `word_count` (`word`, `n`, `txid`) "
        f"WITH txstream_delta (`word`, `n`) AS (VALUES {row}('w0', 0), {row}('w1', 1)) "
        f"SELECT txstream_delta.`word`, CASE WHEN (`word_count`.`word` IS NULL) THEN txstream_delta.`n` "
        f"ELSE CASE WHEN (`word_count`.txid = 7) THEN `word_count`.`n` "
        f"ELSE coalesce(`word_count`.`n` + txstream_delta.`n`, `word_count`.`n`, txstream_delta.`n`) END END "
        f"AS anon_1, "
        f"CASE WHEN (`word_count`.`word` IS NULL OR `word_count`.txid <= 7) THEN 7 END AS anon_2 "
        f"FROM txstream_delta LEFT OUTER JOIN `word_count` ON `word_count`.`word` = txstream_delta.`word` "
        f"ON DUPLICATE KEY UPDATE `n` = VALUES(`n`), `txid` = VALUES(`txid`)"
    )


def test_the_statement_of_a_chunk_without_transactions(dialect: MySQLDialect) -> None:
    (statement,) = upserts(dialect, Connection(mariadb=False), 2, semantics=Semantics.NON_TRANSACTIONAL)
    assert statement == (
        "INSERT INTO `word_count` (`word`, `n`) VALUES ('w0', 0), ('w1', 1) "
        "ON DUPLICATE KEY UPDATE `n` = "
        "coalesce(`word_count`.`n` + VALUES(`n`), `word_count`.`n`, VALUES(`n`))"
    )


@pytest.mark.parametrize("semantics", list(Semantics), ids=str)
def test_names_that_the_driver_would_take_for_formats(dialect: MySQLDialect, semantics: Semantics) -> None:
    spec = word_table("t%s", key="`k%` string", value="`v%%` bigint", semantics=semantics)
    writer = TableWriter(spec, dialect)
    connection = Connection(mariadb=True)
    deltas = writer.prepare(pa.table({"k%": ["a"], "v%%": [1]}))
    assert writer._upsert.execute(connection, deltas, 7)[0] == 1  # type: ignore[arg-type]
    ((statement, parameters),) = connection.sent
    found = re.findall(r"[tkv]%+s?", statement % parameters)
    assert {name for name in found if not name.startswith("prev")} == {"t%s", "k%", "v%%"}


@pytest.mark.parametrize("semantics", [Semantics.OPAQUE, Semantics.TRANSACTIONAL])
def test_a_newer_row_gets_a_null_that_is_refused(dialect: MySQLDialect, semantics: Semantics) -> None:
    (statement,) = upserts(dialect, Connection(mariadb=True), 1, semantics=semantics)
    assert "CASE WHEN (`word_count`.`word` IS NULL OR `word_count`.txid <= 7) THEN 7 END" in statement


def test_a_chunk_is_cut_where_the_server_takes_no_more(dialect: MySQLDialect) -> None:
    connection = Connection(mariadb=True, limit=30_000)
    statements = upserts(dialect, connection, 1000)
    assert len(statements) > 2
    assert all(len(statement) < 30_000 for statement in statements)
    words = re.findall(r"'(w\d+)'", " ".join(statements))
    assert words == sorted(f"w{n}" for n in range(1000))


@pytest.mark.parametrize(("mariadb", "expected"), [(True, "utf8mb4_nopad_bin"), (False, "utf8mb4_0900_bin")])
def test_trailing_blanks_count_on_both(dialect: MySQLDialect, mariadb: bool, expected: str) -> None:
    spec = word_table(value="v string", reducers={"v": Put()})
    table = build_table(spec.state, spec.semantics, dialect)
    for column in (table.c.word, table.c.v, table.c.prev_v):
        assert column.type.compile(server_dialect(mariadb=mariadb)).endswith(f"COLLATE {expected}")


def test_settings_of_a_session(dialect: MySQLDialect) -> None:
    both = (
        "sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', "
        "default_storage_engine = InnoDB, sql_select_limit = 18446744073709551615, sql_big_selects = 1, "
        "sql_safe_updates = 0, sql_quote_show_create = 1, completion_type = 'NO_CHAIN', "
        "innodb_lock_wait_timeout = 20, lock_wait_timeout = 20, "
        "net_read_timeout = 15, net_write_timeout = 15, "
    )
    assert dialect.session_settings(mariadb=True) == (
        f"{both}idle_transaction_timeout = 15, idle_write_transaction_timeout = 15, max_statement_time = 30.0"
    )
    # MySQL can limit only idle sessions and SELECT statements.
    assert dialect.session_settings(mariadb=False) == f"{both}wait_timeout = 15, max_execution_time = 30000"


@pytest.mark.parametrize(
    ("message_timeout", "expected"), [(0.3, 1), (1.0, 1), (3.9, 1), (4.0, 2), (61.0, 30)]
)
def test_a_frozen_client_is_ended_before_the_message_timeout(message_timeout: float, expected: int) -> None:
    """The limit is in whole seconds and never 0, which would mean no limit."""
    found = MySQLDialect(sa.make_url(URL), 10.0, message_timeout)
    assert found.idle_timeout_seconds == expected
    assert found.lock_timeout_seconds > found.idle_timeout_seconds
    assert found.silence_seconds > found.lock_timeout_seconds


@each(
    ("version", "expected"),
    [
        ("5.5.5-10.11.6-MariaDB-0+deb12u1", True),
        ("11.4.2-MariaDB", True),
        ("8.0.36", False),
        ("9.1.0", False),
    ],
)
def test_servers_are_told_apart(version: str, expected: bool) -> None:
    assert is_mariadb(version) is expected


@each(
    "version",
    ["8.0.19", "8.4.0-debug", "9.7.4-2", "10.3.3-MariaDB", "5.5.5-10.11.6-MariaDB-0+deb12u1", "what"],
)
def test_servers_that_are_new_enough(version: str) -> None:
    refuse_old_server(version, "here/db")


@each(
    ("version", "expected"),
    [
        ("5.7.44-log", "is MySQL 5.7.44-log, and txstream needs MySQL 8.0.19 or newer"),
        ("8.0.18", "needs MySQL 8.0.19"),
        ("8.0.11-TiDB-v8.1.0", "needs MySQL 8.0.19"),
        ("5.5.5-10.2.44-MariaDB", "needs MariaDB 10.3.3"),
    ],
)
def test_servers_that_are_too_old(version: str, expected: str) -> None:
    with pytest.raises(ServiceUnavailableError, match=rf"database here/db: .*{expected}"):
        refuse_old_server(version, "here/db")


@pytest.mark.parametrize(
    ("query", "error", "expected"),
    [
        ("nonsense=1&other=2", UsageError, "the option nonsense, other, which PyMySQL does not know"),
        ("ssl_disabled=maybe", UsageError, "ssl_disabled=maybe; write true or false"),
        ("connect_timeout=soon", UsageError, "an option that cannot be used: .*'soon'"),
        ("compress=true", UsageError, "an option that cannot be used: compress"),
        ("ssl_verify_identity=true", UsageError, "without ssl_ca; name the file"),
        (
            "ssl_ca=/nowhere.pem",
            ServiceUnavailableError,
            r"cannot be read .*\(ssl_ca=/nowhere.pem\): .*No such",
        ),
        (
            "ssl_cert=NONE&ssl_key=NONE",
            ServiceUnavailableError,
            r"\(ssl_cert=.*, ssl_key=.*\): \[SSL\]",
        ),
    ],
)
def test_options_that_cannot_be_used(query: str, error: type[Exception], expected: str) -> None:
    query = query.replace("NONE", __file__)  # a file that is not a certificate
    with pytest.raises(error, match=f"database host/db.*{expected}") as told:
        open_sql_database(f"mysql://me:hidden@host/db?{query}").check()
    assert "hidden" not in str(told.value)


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (
            pymysql.err.OperationalError(1205, "Lock wait timeout"),
            Kind.LOCKED,
            "Lock wait timeout (error 1205)",
        ),
        (pymysql.err.OperationalError(1213, "Deadlock found"), Kind.LOCKED, "Deadlock"),
        (pymysql.err.OperationalError(2006, "MySQL server has gone away"), Kind.UNREACHABLE, "gone away"),
        (pymysql.err.OperationalError(2013, "Lost connection"), Kind.UNREACHABLE, "Lost connection"),
        (pymysql.err.InterfaceError(0, ""), Kind.UNREACHABLE, "the connection is closed"),
        (pymysql.err.Error("Already closed"), Kind.OTHER, "Already closed"),
        (pymysql.err.OperationalError(1290, "--read-only"), Kind.UNREACHABLE, "read-only"),
        (pymysql.err.OperationalError(1836, "Running in read-only mode"), Kind.UNREACHABLE, "read-only"),
        (pymysql.err.OperationalError(1021, "Disk full"), Kind.UNREACHABLE, "Disk full"),
        (pymysql.err.OperationalError(1114, "The table is full"), Kind.UNREACHABLE, "full"),
        (pymysql.err.OperationalError(4031, "disconnected by inactivity"), Kind.UNREACHABLE, "inactivity"),
        (pymysql.err.DataError(1264, "Out of range"), Kind.VALUE, "Out of range"),
        (pymysql.err.DataError(1690, "BIGINT value is out of range"), Kind.VALUE, "out of range"),
        (pymysql.err.DataError(1406, "Data too long"), Kind.VALUE, "too long"),
        (pymysql.err.OperationalError(3819, "Check constraint is violated"), Kind.VALUE, "Check"),
        (pymysql.err.OperationalError(4025, "CONSTRAINT failed"), Kind.VALUE, "CONSTRAINT"),
        (pymysql.err.ProgrammingError(1146, "Table doesn't exist"), Kind.MISSING, "doesn't exist"),
        (pymysql.err.OperationalError(1054, "Unknown column"), Kind.MISSING, "Unknown column"),
        (pymysql.err.OperationalError(1142, "CREATE command denied"), Kind.DENIED, "denied"),
        (pymysql.err.OperationalError(1045, "Access denied for user"), Kind.UNREACHABLE, "Access denied"),
        (pymysql.err.OperationalError(3032, "in offline mode"), Kind.UNREACHABLE, "offline"),
        (pymysql.err.OperationalError(1862, "Your password has expired"), Kind.UNREACHABLE, "expired"),
        (pymysql.err.OperationalError(1194, "is marked as crashed"), Kind.DAMAGED, "crashed"),
        (pymysql.err.ProgrammingError(1064, "You have an error"), Kind.OTHER, "You have an error"),
        (pymysql.err.IntegrityError(1048, "cannot be null"), Kind.VALUE, "cannot be null"),
        (pymysql.err.OperationalError(29999, "No disk"), Kind.UNREACHABLE, "No disk (error 29999)"),
        (pymysql.err.OperationalError(1050, "exists", sqlstate="42S01"), Kind.OTHER, "exists"),
        (pymysql.err.OperationalError(1226, "resource", sqlstate="42000"), Kind.UNREACHABLE, "resource"),
    ],
)
def test_what_errors_mean(error: pymysql.err.Error, kind: Kind, message: str) -> None:
    found = classify(error, lost=False)
    assert found.kind is kind
    assert message in found.message


def test_a_connection_that_was_given_up_is_an_outage_whatever_was_said() -> None:
    assert (
        classify(pymysql.err.InternalError("Packet sequence number wrong"), lost=True).kind
        is Kind.UNREACHABLE
    )


KEYS = pa.schema([("i", pa.int32()), ("s", pa.string()), ("b", pa.binary()), ("d", pa.decimal128(20, 5))])


def test_text_and_bytes_share_what_a_primary_key_has_left() -> None:
    # 4 bytes for the integer, 8 + 4 for fifteen and five digits; 3056 for two columns, 4 a character.
    assert key_lengths(KEYS, "t") == {"i": None, "s": 382, "b": 1528, "d": None}


def test_more_keys_than_fit() -> None:
    many = pa.schema([(f"k{number}", pa.int64()) for number in range(385)])
    with pytest.raises(StateTableError, match=r"table 't': its 385 key columns do not fit.* 3072 bytes"):
        key_lengths(many, "t")


def test_a_key_too_long_is_named() -> None:
    refuse_too_long("t", "k", pa.chunked_array([["🦀🦀", "ab"]]), 2)
    with pytest.raises(
        StateValueError, match=r"key column 'k' of table 't': 'abc'... has 3 characters, and 2"
    ):
        refuse_too_long("t", "k", pa.chunked_array([["🦀🦀", "abc"]]), 2)


def test_decimals_that_mysql_cannot_keep_are_left_to_mariadb(dialect: MySQLDialect) -> None:
    assert dialect.column_type(pa.decimal128(38, 38)) is not None  # unknown until the first connection
    engine: Any = dialect.create_engine()
    engine.dialect.server_version_info = (8, 0, 36)
    for mariadb, expected in ((True, True), (False, False)):
        engine.dialect.is_mariadb = mariadb
        assert (dialect.column_type(pa.decimal128(38, 38)) is not None) is expected
        assert dialect.column_type(pa.decimal128(38, 30)) is not None


def test_widths_of_integers_say_nothing() -> None:
    here = server_dialect(mariadb=True)
    assert shown(here, mysql.BIGINT(display_width=20)) == shown(here, sa.BigInteger()) == "BIGINT"
    assert shown(here, mysql.BIGINT(display_width=20, unsigned=True)) == "BIGINT UNSIGNED"
    assert shown(here, mysql.TINYINT(display_width=1)) == shown(here, sa.Boolean()) == "BOOL"
    assert shown(here, mysql.TINYINT(display_width=4)) == shown(here, mysql.TINYINT()) == "TINYINT"


def test_a_collation_says_its_character_set() -> None:
    here = server_dialect(mariadb=False)
    found = mysql.VARCHAR(768, collation="utf8mb4_0900_bin")
    assert shown(here, found) == shown(here, TextKey(768)) == "VARCHAR(768) COLLATE utf8mb4_0900_bin"
    assert shown(here, mysql.VARCHAR(768, charset="utf8mb4")) != shown(here, found)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array(["not known"]), "('not known')"),
        (pa.array(["it's"]), "(CONVERT(X'69742773' USING utf8mb4))"),
        (pa.array(["\\é"]), "(CONVERT(X'5cc3a9' USING utf8mb4))"),
        (pa.array([b"\0a"]), "(X'0061')"),
        (pa.array([5]), "5"),
    ],
)
def test_defaults_of_text_and_bytes_are_expressions(
    dialect: MySQLDialect, values: Any, expected: str
) -> None:
    column_type = dialect.column_type(values.type)
    assert column_type is not None
    found = dialect.literal(pa.chunked_array([values]), column_type)
    options = {"literal_binds": True}
    assert str(found.compile(dialect=mysql.dialect(), compile_kwargs=options)) == expected


@each("url", ["mysql://host/db", "mariadb://host:3306/db", "mysql+pymysql://me:pw@HOST/db?x=y"])
def test_one_place_however_it_is_spelled(url: str) -> None:
    assert place_of(url) == place_of("mysql://host/db")
    assert place_of(url) != place_of("mysql://host:3307/db")


@pytest.mark.parametrize("url", ["mysql:///db?unix_socket=/run/%s", "postgresql:///db?host=/run/%s"])
def test_two_sockets_are_two_places(url: str) -> None:
    assert place_of(url % "a") != place_of(url % "b")
    assert place_of(url % "a") == place_of(f"{url % 'a'}&connect_timeout=3")


def test_a_password_is_not_shown() -> None:
    database = open_sql_database("mariadb://me:hidden@host/db?ssl_key=a&ssl_key_password=hidden")
    assert "hidden" not in database.display_url


@each("url", ["mysql://me@host", "mariadb://me@host:3306/", "mysql://me@host/?ssl_disabled=true"])
def test_a_url_without_a_database(url: str) -> None:
    with pytest.raises(UsageError, match=r"names no database; write .* mysql://user@host/name"):
        open_sql_database(url)
