"""Which database a SQLAlchemy URL means, and how to print the URL without secrets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote_plus

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from txstream.core.entry_points import SQL_DIALECTS, load, names
from txstream.core.errors import ServiceUnavailableError, UsageError

if TYPE_CHECKING:
    from txstream.state.sql.dialect import StateDialect

EXAMPLES = "sqlite:///state.db, postgresql://user@host/name or mysql://user@host/name"
_SECRET = re.compile("pass(?!file)|pwd|secret|token|key", re.IGNORECASE)  # in the name of an option
_HIDDEN = "***"

_loaded: dict[str, type[StateDialect]] = {}  # by scheme: looking among installed packages takes 10 ms


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
    dialect = _dialect(parsed)
    scheme, _, driver = parsed.drivername.partition("+")
    if dialect is None or driver not in ("", dialect.driver):
        instead = (
            f"supported are {', '.join(sorted(sql_schemes()))}, for example {EXAMPLES}"
            if dialect is None
            else f"{dialect.label} is reached by {scheme}+{dialect.driver}, which {scheme} alone means too"
        )
        raise UsageError(
            f"database {without_password(parsed)}: {parsed.drivername!r} is not supported; {instead}"
        )
    return dialect(parsed, connect_timeout_seconds, message_timeout_seconds)


def sql_schemes() -> set[str]:
    """Return the schemes of SQL databases' URLs, without `+driver`."""
    return set(names(SQL_DIALECTS))


def is_sql(scheme: str) -> bool:
    """Return whether URLs of this scheme, which may have a `+driver`, mean SQL databases."""
    name = scheme.partition("+")[0]
    return name in _loaded or name in sql_schemes()


def _dialect(url: URL) -> type[StateDialect] | None:
    """Return the dialect for a URL's scheme, whatever its driver; None if no package has one. Raises as
    `load` does."""
    scheme = url.drivername.partition("+")[0]
    if scheme not in _loaded:
        installed: type[StateDialect] | None = load(SQL_DIALECTS, scheme, f"SQL dialect for {scheme}://")
        if installed is None:
            return None
        _loaded[scheme] = installed
    return _loaded[scheme]


def dialect_behind(url: str) -> type[StateDialect] | None:
    """Return the dialect for a URL; None for one that is not understood or whose dialect cannot be loaded."""
    try:
        return _dialect(make_url(url))
    except (ArgumentError, ValueError, ServiceUnavailableError, UsageError):
        return None


def place_of(url: str) -> str:
    """Return the same text for every spelling of one database's URL. The user is ignored, and all options but
    those that name a place. A URL that is not understood is its own place.

    Different texts may still mean one database: only the database itself can tell (`StateBackend.place`).
    """
    dialect = dialect_behind(url)
    return url if dialect is None else dialect.place_of(make_url(url))


def without_password(url: URL) -> str:
    """Return a URL that may be printed and logged: its secrets are replaced with ***."""
    hidden = {name: _HIDDEN for name in url.query if _SECRET.search(name)}
    return url.update_query_dict(hidden).render_as_string(hide_password=True)


def is_hidden(url: str) -> bool:
    """Tell whether a URL was made by `without_password` and lacks a secret."""
    return _HIDDEN in unquote_plus(url)


def shown(url: str) -> str:
    """Return any URL so that it may be printed; only its scheme if no password can be found in it."""
    try:
        return without_password(make_url(url))
    except (ArgumentError, ValueError):
        return f"{url.partition(':')[0]}:..."
