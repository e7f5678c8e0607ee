"""Which database a SQLAlchemy URL means, and how to print the URL without secrets."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote_plus

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from txstream.core.errors import UsageError

if TYPE_CHECKING:
    from txstream.state.sql.dialect import StateDialect


class _Kind(NamedTuple):
    """A kind of database: where its `StateDialect` is, loaded only for a database that is used; its port; and
    the options that name the server, the database or the schema beside host, port and database of the URL."""

    module: str
    name: str
    port: int | None = None
    places: tuple[str, ...] = ()

    def load(self) -> type[StateDialect]:
        found: type[StateDialect] = getattr(importlib.import_module(self.module), self.name)
        return found


_SQLITE: Final = _Kind("txstream.state.sql.sqlite", "SQLiteDialect")
_POSTGRESQL: Final = _Kind(
    "txstream.state.sql.postgresql",
    "PostgreSQLDialect",
    5432,
    ("dbname", "hostaddr", "options", "passfile", "service", "servicefile", "target_session_attrs"),
)
_MYSQL: Final = _Kind(
    "txstream.state.sql.mysql",
    "MySQLDialect",
    3306,
    ("database", "db", "init_command", "read_default_file", "read_default_group"),
)
_KINDS: Final = {
    "sqlite": _SQLITE,
    "sqlite+pysqlite": _SQLITE,
    "postgres": _POSTGRESQL,
    "postgresql": _POSTGRESQL,
    "postgresql+psycopg": _POSTGRESQL,
    "mysql": _MYSQL,
    "mysql+pymysql": _MYSQL,
    "mariadb": _MYSQL,
    "mariadb+pymysql": _MYSQL,
}
SQL_SCHEMES = frozenset(name.partition("+")[0] for name in _KINDS)
"""The schemes of SQL databases' URLs, without `+driver`."""

EXAMPLES = "sqlite:///state.db, postgresql://user@host/name or mysql://user@host/name"
_SECRET = re.compile("pass(?!file)|pwd|secret|token|key", re.IGNORECASE)  # in the name of an option
_HIDDEN = "***"


def dialect_of(url: str, connect_timeout_seconds: float, message_timeout_seconds: float) -> StateDialect:
    """Return the dialect that handles `url`. Raises UsageError for a URL that cannot be used."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        # The message leaves the URL out: one that is almost right may contain a password.
        raise UsageError(
            f"the database {url.partition(':')[0]!r}:... is not a SQLAlchemy URL; write for "
            f"example {EXAMPLES}"
        ) from error
    kind = _KINDS.get(parsed.drivername)
    if kind is None:
        raise UsageError(
            f"database {without_password(parsed)}: {parsed.drivername!r} is not supported; supported are "
            f"SQLite, PostgreSQL with psycopg, and MySQL and MariaDB with PyMySQL, for example {EXAMPLES}"
        )
    if kind is _SQLITE:
        _refuse_no_file(parsed)
    if kind is _MYSQL and not parsed.database and "read_default_file" not in parsed.query:
        # The server would accept the session and then refuse every table in it.
        raise UsageError(
            f"the URL {without_password(parsed)} names no database; write for example mysql://user@host/name"
        )
    return kind.load()(parsed, connect_timeout_seconds, message_timeout_seconds)


def place_of(url: str) -> str:
    """Return the same text for every spelling of one database's URL. The user is ignored, and all options but
    those that name a place. A URL that is not understood is its own place.

    Different texts may still mean one database: only the database itself can tell (`StateBackend.place`).
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return url
    kind = _KINDS.get(parsed.drivername)
    if kind is _SQLITE:
        return f"sqlite:{Path(parsed.database or '').resolve()}"
    name = parsed.drivername if kind is None else kind.name
    # A socket's path is an option, and its case matters.
    host = parsed.query.get("unix_socket") or parsed.query.get("host") or (parsed.host or "").lower()
    port = parsed.query.get("port") or parsed.port or (None if kind is None else kind.port)
    options = () if kind is None else kind.places
    named = "".join(f"&{one}={parsed.query[one]}" for one in options if one in parsed.query)
    return f"{name}:{host}:{port}/{parsed.database}{named}"


def without_password(url: URL) -> str:
    """Return a URL that may be printed and logged: its secrets are replaced with ***."""
    hidden = {name: _HIDDEN for name in url.query if _SECRET.search(name)}
    return url.update_query_dict(hidden).render_as_string(hide_password=True)


def is_hidden(url: str) -> bool:
    """Tell whether a URL was made by `without_password` and lacks a secret."""
    return _HIDDEN in unquote_plus(url)


def _refuse_no_file(url: URL) -> None:
    name = url.database or ""
    if name in ("", ":memory:") or url.query.get("mode") == "memory":
        raise UsageError(
            "a SQLite database in memory forgets everything when the driver ends; give it a file, for "
            "example sqlite:///state.db"
        )
    if name.startswith("file:"):
        raise UsageError(
            f"database {without_password(url)}: give SQLite's file as a path, for example sqlite:///state.db"
        )


def shown(url: str) -> str:
    """Return any URL so that it may be printed; only its scheme if no password can be found in it."""
    try:
        return without_password(make_url(url))
    except (ArgumentError, ValueError):
        return f"{url.partition(':')[0]}:..."
