"""The framework's own tables, and their revision in a database: read, created, upgraded.

Invariants. One fence row per topology; its attempt only grows. At most one ledger row per topology and
txid, and for transactional and opaque state it is written by the transaction that wrote the state. One
ownership row per state table, written by the transaction that created the table. At most one dead letter per
topology, life, txid and place, written by the transaction that committed the batch.

A database is at no revision (it has none of these tables) or at exactly one. A change holds the definitions'
lock and is one transaction. MySQL and MariaDB commit each step by itself. There, a marker table exists from
before a change's first step until after its last; the next holder of the lock that finds it continues the
change.

A new database gets the tables as described here. The scripts of `txstream.migrations` upgrade an older one to
the same tables; a test compares the two. Reading the revision needs no script, and neither does creating the
tables in one transaction: both work from a zip. Upgrading runs Alembic's scripts, which must be files on
disk. Creating does so too on MySQL and MariaDB, where it may have to continue an interrupted change. Alembic
is imported only then, because it costs as much start-up time as all of SQLAlchemy.
"""

from __future__ import annotations

import importlib.resources
import io
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    DateTime,
    Dialect,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    TypeDecorator,
    inspect,
    text,
)

import txstream
from txstream.core.errors import SchemaRevisionError
from txstream.state.declarations import TABLE_LENGTH
from txstream.state.records import SchemaDamagedError
from txstream.state.stored_letters import PLACE_LENGTH

if TYPE_CHECKING:
    from alembic.config import Config

REVISIONS = ("0001", "0002", "0003", "0004")
"""Every revision, oldest first. They are listed here because scripts cannot be read from a zip; a test
compares the list with the scripts."""

HEAD = REVISIONS[-1]
VERSION_TABLE = "txstream_alembic_version"  # alembic_version belongs to the user's own Alembic

TOPOLOGY_LENGTH = 255
UUID_LENGTH = 36

metadata = MetaData()


class Document(Text):
    """Text of any length. A dialect whose TEXT has an end compiles this, or another type here, to its own."""


class Binary(LargeBinary):
    """Bytes of any length."""


class Instant(DateTime):
    """A time to the microsecond, with its zone where the database keeps one."""


class Utc(TypeDecorator[datetime]):
    """An aware time, kept in UTC. SQLite stores no zone, so reading adds it again."""

    impl = Instant(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _topology(**options: Any) -> Column[str]:
    return Column("topology", String(TOPOLOGY_LENGTH), nullable=False, **options)


def _uuid(**options: Any) -> Column[str]:
    return Column("uuid", String(UUID_LENGTH), nullable=False, **options)


fence = Table(
    "txstream_fence",
    metadata,
    _topology(primary_key=True),
    _uuid(),
    Column("attempt", BigInteger, nullable=False),
    Column("identity", Document(), nullable=True),
)

batch = Table(
    "txstream_batch",
    metadata,
    _topology(primary_key=True),
    _uuid(),
    Column("txid", BigInteger, primary_key=True, autoincrement=False),
    Column("attempt", BigInteger, nullable=False),
    Column("semantics", String(32), nullable=False),
    Column("status", String(16), nullable=False),
    Column("metas", Document(), nullable=False),
    Column("tuples", BigInteger, nullable=False),
    Column("keys", BigInteger, nullable=False),
    Column("planned_at", Utc, nullable=False),
    Column("processed_at", Utc, nullable=False),
    Column("committed_at", Utc, nullable=True),
    Column("error", Document(), nullable=True),
    Column("details", Document(), nullable=True),
)

owned_table = Table(
    "txstream_table",
    metadata,
    Column("table_name", String(TABLE_LENGTH), primary_key=True),
    _topology(),
    _uuid(),
    Column("declaration", Document(), nullable=False),
    Column("created_at", Utc, nullable=False),
)

dead_letter = Table(
    "txstream_dead_letter",
    metadata,
    _topology(primary_key=True),
    _uuid(primary_key=True),
    Column("txid", BigInteger, primary_key=True, autoincrement=False),
    Column("place", String(PLACE_LENGTH), primary_key=True),
    Column("attempt", BigInteger, nullable=False),
    Column("status", String(64), nullable=False),
    Column("when", Utc, nullable=False),
    Column("topic", Document(), nullable=True),
    Column("partition", BigInteger, nullable=True),
    Column("offset", BigInteger, nullable=True),
    Column("timestamp", BigInteger, nullable=True),  # milliseconds since 1970, as Kafka has them
    Column("component", Document(), nullable=False),
    Column("exception", Document(), nullable=False),
    Column("message", Document(), nullable=False),
    Column("traceback", Document(), nullable=False),
    Column("key", Binary(), nullable=True),
    Column("headers", Binary(), nullable=True),
    Column("value", Binary(), nullable=True),
)

version = Table(
    VERSION_TABLE,
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc"),
)
"""Alembic's own table, as Alembic creates it."""


COMMITS_EACH_STEP = "txstream_commits_each_step"
"""Execution option of a connection: what its dialect says of that."""

_UNFINISHED = "txstream_alembic_unfinished"


def commits_each_step(connection: Connection) -> bool:
    """Whether this database commits each DDL statement by itself."""
    return bool(connection.get_execution_options()[COMMITS_EACH_STEP])


def read_revision(connection: Connection, database: str) -> str | None:
    """Return the revision of the framework's tables; None when there are none or a change is unfinished.

    Raises SchemaDamagedError when the tables and the version table contradict each other.
    """
    names = {VERSION_TABLE, _UNFINISHED, *metadata.tables}
    present = sorted(names.intersection(inspect(connection).get_table_names()))
    if _UNFINISHED in present:
        return None
    rows: list[str] = []
    if VERSION_TABLE in present:
        rows = list(connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalars())  # noqa: S608
    tables = [name for name in present if name != VERSION_TABLE]
    if not rows and not tables:
        return None
    if len(rows) != 1 or not tables:
        raise SchemaDamagedError(
            f"database {database}: {VERSION_TABLE} has {rows or 'no revision'}, and of txstream's tables "
            f"there are {', '.join(tables) or 'none'}; restore what is missing, or drop them all"
        )
    return rows[0]


def refuse_other_revision(revision: str, database: str) -> None:
    """Raise SchemaRevisionError unless this is the revision that this txstream works with."""
    if revision == HEAD:
        return
    if revision in REVISIONS:
        raise SchemaRevisionError(
            f"database {database}: txstream's tables are of revision {revision}, this txstream needs {HEAD}; "
            f"type `txstream db upgrade` with the --database of this one"
        )
    raise _newer(revision, database)


def create_or_check(connection: Connection, database: str) -> None:
    """Create the framework's tables if there are none. Raises SchemaRevisionError for another revision."""
    revision = read_revision(connection, database)
    if revision is not None:
        refuse_other_revision(revision, database)
    elif commits_each_step(connection):
        _run_scripts(connection)
    else:
        metadata.create_all(connection, checkfirst=False)
        version.create(connection)
        connection.execute(version.insert().values(version_num=HEAD))


def upgrade(connection: Connection, database: str) -> tuple[str | None, str]:
    """Upgrade the tables to the newest revision. Returns (old revision, new revision)."""
    revision = _revision_to_upgrade(connection, database)
    if revision != HEAD:
        _run_scripts(connection)
    return revision, HEAD


def upgrade_sql(connection: Connection, database: str) -> tuple[str | None, str, str]:
    """Return (old revision, new revision, statements) of what `upgrade` would do. Changes nothing."""
    if inspect(connection).has_table(_UNFINISHED):
        raise SchemaRevisionError(
            f"database {database}: an upgrade of txstream's tables was broken off, and what is left of it "
            f"cannot be shown as statements; `txstream db upgrade` goes on with it"
        )
    revision = _revision_to_upgrade(connection, database)
    statements = io.StringIO()
    if revision != HEAD:
        from alembic import command

        command.upgrade(_config(connection, statements), f"{revision or 'base'}:{HEAD}", sql=True)
    return revision, HEAD, statements.getvalue().strip()


def _revision_to_upgrade(connection: Connection, database: str) -> str | None:
    revision = read_revision(connection, database)
    if revision is not None and revision not in REVISIONS:
        raise _newer(revision, database)
    return revision


def _run_scripts(connection: Connection, *, to: str = HEAD) -> None:
    from alembic import command

    config = _config(connection)
    if not commits_each_step(connection):
        command.upgrade(config, to)
        return
    config.attributes["resuming"] = inspect(connection).has_table(_UNFINISHED)
    # Some servers accept no table without a primary key.
    connection.execute(text(f"CREATE TABLE IF NOT EXISTS {_UNFINISHED} (revision VARCHAR(32) PRIMARY KEY)"))
    command.upgrade(config, to)
    connection.execute(text(f"DROP TABLE {_UNFINISHED}"))


def _config(connection: Connection, output: TextIO | None = None) -> Config:
    from alembic.config import Config

    # Alembic announces each script at level INFO; users see the framework's own messages instead.
    logger = logging.getLogger("alembic")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.WARNING)
    config = Config(output_buffer=output)
    # The configuration is an ini file in memory, in which a percent sign must be doubled.
    config.set_main_option("script_location", str(_script_folder()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def _script_folder() -> Path:
    folder = importlib.resources.files("txstream.migrations")
    if isinstance(folder, Path) and (folder / "env.py").is_file():
        return folder
    raise SchemaRevisionError(
        "txstream's tables can only be upgraded here by an installed txstream, and this one runs from "
        f"{folder}; type `txstream db upgrade` where it is installed, with the same --database"
    )


def _newer(revision: str, database: str) -> SchemaRevisionError:
    return SchemaRevisionError(
        f"database {database}: txstream's tables are of revision {revision}, which txstream "
        f"{txstream.__version__} does not know (its newest is {HEAD}); use a newer txstream, one that knows "
        f"revision {revision}"
    )
