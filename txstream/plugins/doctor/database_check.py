"""Databases: reachable, of this txstream's revision, with the grants and the isolation that commits need."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial

from sqlalchemy import (
    Column,
    Connection,
    Integer,
    MetaData,
    Table,
    inspect,
    literal_column,
    select,
    table,
    text,
)
from sqlalchemy.exc import DBAPIError

from txstream.core.errors import TxstreamError
from txstream.inspect.databases import without_password
from txstream.plugins.doctor.checks import Check, WrongError
from txstream.plugins.doctor.clocks import Clocks
from txstream.plugins.doctor.triggers import triggers_found
from txstream.settings import Settings
from txstream.settings.given_secrets import as_typed
from txstream.state import StateDatabase, open_database
from txstream.state.records import AccessDeniedError
from txstream.state.sql import framework_tables as revisions

log = logging.getLogger(__name__)

_LOCK_SECONDS = 5.0
_ROUNDS = 10


class _UndoneError(Exception):
    """Ends a transaction that was only to show that it is allowed."""


def look_at_database(
    settings: Settings, url: str, tables: Sequence[str], clocks: Clocks, *, views: Sequence[str] = ()
) -> Iterator[Check]:
    """Yield the checks of one database. `tables` and `views` are those that the topology has there."""
    shown = without_password(url)
    if settings.uses_default_database and url == settings.database_url() and not settings.data_dir.exists():
        yield Check(f"database {shown}", True, "there is no file yet, and the first run makes it")
        return
    database = open_database(url, connect_timeout_seconds=settings.connect_timeout_seconds)
    try:
        database.check()
        name = f"database {shown}"
        if not isinstance(database, StateDatabase):
            yield Check(name, True, "it answers; what kind of store it is, its own package knows")
            return
        dialect = database._dialect
        if not dialect.is_there():
            yield Check(name, True, "there is no file yet, and the first run can make it")
            return
        version = ""
        with database.sessions.reading("a look") as connection:
            level = connection.get_isolation_level()
            present = set(inspect(connection).get_table_names())
            without = sorted(set(views) - set(inspect(connection).get_view_names()))
            version = ".".join(str(part) for part in connection.dialect.server_version_info or ())
            triggers = [*triggers_found(connection, [*sorted(_ours(present)), *tables])]
            if dialect.clock is not None:
                _compare_clock(connection, dialect.clock, f"database {shown}", clocks)
        yield Check(name, True, f"{dialect.label} {version}".strip())
        yield from _checked(f"{name}: revision", lambda: _revision(database), "txstream db upgrade")
        yield from _checked(f"{name}: isolation", lambda: _isolation(dialect.isolation, level), "")
        yield from _checked(
            f"{name}: grants",
            lambda: _grants(
                database, [*sorted(_ours(present)), *(t for t in tables if t in present)], tables
            ),
            "grant its account the right to create, read and write tables",
        )
        for found in triggers:
            yield Check(f"{name}: triggers", True, found)
        if dialect.name == "postgresql" and _shares_sessions(database):
            yield Check(
                f"{name}: pooler",
                True,
                "note: a pooler of transactions stands between, so that a session's settings and its "
                "prepared statements are another client's next; txstream works there, as it keeps none",
            )
        if without:
            yield from _checked(
                f"{name}: views",
                lambda: _views(database, without[0]),
                "grant its account the right to create views",
            )
    finally:
        database.close()


def _shares_sessions(database: StateDatabase) -> bool:
    """Whether two sessions of PostgreSQL get the same backend, or one gets another in its next transaction. A
    pooler of transactions gives out what is free, most often what was in use last, so this is soon seen."""
    asked, engine = "SELECT pg_backend_pid()", database.sessions.engine
    try:
        with engine.connect() as one, engine.connect() as other:
            for _ in range(_ROUNDS):
                first = one.exec_driver_sql(asked).scalar_one()
                one.rollback()
                if other.exec_driver_sql(asked).scalar_one() == first:
                    return True
                if one.exec_driver_sql(asked).scalar_one() != first:
                    return True
                one.rollback()
                other.rollback()
    except DBAPIError as error:  # an account that may have a single connection, for example
        log.info("whether a pooler stands before PostgreSQL is not known: %s", error.orig)
    return False


def _checked(name: str, look: Callable[[], str], remedy: str) -> Iterator[Check]:
    try:
        yield Check(name, True, look())
    except WrongError as error:
        yield Check(name, False, str(error), error.remedy)
    except TxstreamError as error:
        what, _, to_do = str(error).partition("; ")
        yield Check(name, False, what, to_do or remedy)


def _compare_clock(connection: Connection, clock: str, name: str, clocks: Clocks) -> None:
    before = time.time()
    theirs: datetime = connection.execute(text(f"SELECT {clock}")).scalar_one()
    if theirs.tzinfo is None:
        theirs = theirs.replace(tzinfo=UTC)
    clocks.compare(name, theirs.timestamp(), before)


def _ours(present: set[str]) -> set[str]:
    return present & {revisions.VERSION_TABLE, *revisions.metadata.tables}


def _revision(database: StateDatabase) -> str:
    with database.sessions.reading("its revision") as connection:
        revision = revisions.read_revision(connection, database.display_url)
    if revision is None:
        return "txstream has no tables there yet; the first run makes them"
    if revision != revisions.HEAD and revision in revisions.REVISIONS:
        raise WrongError(
            f"txstream's tables are of revision {revision}, this txstream needs {revisions.HEAD}",
            f"txstream db upgrade --database {as_typed(database.display_url)}",
        )
    revisions.refuse_other_revision(revision, database.display_url)
    return f"{revision}, as this txstream needs it"


def _isolation(wanted: str, level: str) -> str:
    if level != wanted:
        raise WrongError(
            f"its sessions get {level}, although txstream asks for {wanted}",
            "connect to the database itself: a pool between them must keep the isolation level",
        )
    return level


def _grants(database: StateDatabase, known: Sequence[str], wanted: Sequence[str]) -> str:
    """Try what a run does, in transactions that are undone; a scratch table goes even where a database
    commits each CREATE by itself. Where all tables exist, the right to create is not needed."""
    account = _account(database)
    for name in known:
        denied = _tried(database, partial(_no_rows, name))
        if denied is not None:
            raise WrongError(
                f"{account} may not read and write {name}: {denied}",
                f"GRANT SELECT, INSERT, UPDATE, DELETE ON {name} TO {account};",
            )
    missing = (set(wanted) | {*revisions.metadata.tables}) - set(known)
    scratch = Table(
        f"txstream_doctor_{uuid.uuid4().hex[:12]}", MetaData(), Column("id", Integer, primary_key=True)
    )
    denied = _tried(database, partial(_scratch, scratch))
    if denied is None:
        return f"{account} may create, read and write tables"
    if missing:
        raise WrongError(
            f"{account} may not create tables, and there is no {sorted(missing)[0]} yet: {denied}",
            database._dialect.right_to_create(account),
        )
    return f"{account} may read and write its tables, which are all there, but create none"


def _views(database: StateDatabase, wanted: str) -> str:
    """Try to create a view, as a table with `removed_by` needs one. In some databases that is another right
    than to create tables."""
    name, account = f"txstream_doctor_{uuid.uuid4().hex[:12]}", _account(database)

    def scratch(connection: Connection) -> None:
        connection.execute(text(f"CREATE VIEW {name} AS SELECT 1 AS id"))
        try:
            connection.execute(select(literal_column("id")).select_from(table(name)))
        finally:
            if revisions.commits_each_step(connection):
                connection.execute(text(f"DROP VIEW {name}"))

    denied = _tried(database, scratch)
    if denied is not None:
        raise WrongError(
            f"{account} may not create views, and there is no {wanted} yet: {denied}",
            database._dialect.right_to_create(account),
        )
    return f"{account} may create views"


def _account(database: StateDatabase) -> str:
    return database._dialect.url.username or "its account"


def _tried(database: StateDatabase, act: Callable[[Connection], None]) -> str | None:
    """Return why this is not allowed, or None. Nothing of it stays. Raises what else is wrong."""
    try:
        with database.sessions.writing("a trial", lock_timeout_seconds=_LOCK_SECONDS) as (connection, _):
            act(connection)
            raise _UndoneError
    except _UndoneError:
        return None
    except AccessDeniedError as error:
        return str(error).partition(": ")[2].partition("; ")[0] or str(error)


def _no_rows(name: str, connection: Connection) -> None:
    """Read, insert, change and delete no row: what is checked are the rights."""
    table = Table(name, MetaData(), autoload_with=connection)
    never = text("1 = 0")
    connection.execute(select(table).where(never))
    connection.execute(table.insert().from_select(list(table.columns), select(table).where(never)))
    column = next(iter(table.columns))
    connection.execute(table.update().where(never).values({column: column}))
    connection.execute(table.delete().where(never))


def _scratch(scratch: Table, connection: Connection) -> None:
    scratch.create(connection)
    try:
        connection.execute(scratch.insert().values(id=1))
        connection.execute(scratch.update().values(id=2))
        connection.execute(select(scratch))
        connection.execute(scratch.delete())
    finally:
        if revisions.commits_each_step(connection):
            scratch.drop(connection)
