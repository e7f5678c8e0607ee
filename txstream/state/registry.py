"""Which backend a URL means: those that ship with txstream, and those of others.

The scheme of a URL chooses the backend. `register_backend` adds a scheme to this process; an entry point of
an installed package adds it to every process: drivers, executors and the command line.

Invariant: looking up a scheme connects to nothing, and loads no backend but the one asked for.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol

from txstream.core.entry_points import STATE_BACKENDS, load, names
from txstream.core.errors import ServiceUnavailableError, UsageError
from txstream.core.wording import a
from txstream.state.backend import StateBackend
from txstream.state.sql import urls
from txstream.state.sql.database import StateDatabase

DEFAULT_CONNECT_TIMEOUT_SECONDS: Final = 10.0
DEFAULT_MESSAGE_TIMEOUT_SECONDS: Final = 30.0

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")


class BackendFactory(Protocol):
    """Opens the store that a URL means; usually the backend's class itself. It connects to nothing yet.

    `connect_timeout_seconds` limits the time to reach the store. `message_timeout_seconds` is the topology's:
    if its process freezes, no transaction may keep its locks longer than that, where the store can ensure it.
    Raises UsageError for a URL that cannot be used.

    The factory may have an attribute `place_of(url) -> str`, which returns the same text for every spelling
    of one store's URL. Without it, two URLs are one store only if they are equal.
    """

    def __call__(
        self, url: str, *, connect_timeout_seconds: float, message_timeout_seconds: float
    ) -> StateBackend: ...


_registered: dict[str, BackendFactory] = {}
_lock = threading.Lock()


def open_database(
    url: str,
    *,
    connect_timeout_seconds: float = DEFAULT_CONNECT_TIMEOUT_SECONDS,
    message_timeout_seconds: float = DEFAULT_MESSAGE_TIMEOUT_SECONDS,
) -> StateBackend:
    """Return the backend of a URL. Connects to nothing yet.

    Raises UsageError for a URL that cannot be used, ServiceUnavailableError when a package that it needs is
    not installed.
    """
    scheme = scheme_of(url)
    if scheme is None or urls.is_sql(scheme):
        return StateDatabase(
            url,
            connect_timeout_seconds=connect_timeout_seconds,
            message_timeout_seconds=message_timeout_seconds,
        )
    factory = _factory(scheme)
    if factory is None:
        raise _unknown(url, scheme)
    backend = factory(
        url, connect_timeout_seconds=connect_timeout_seconds, message_timeout_seconds=message_timeout_seconds
    )
    if not isinstance(backend, StateBackend):
        raise UsageError(
            f"the factory registered for {scheme}:// answered with {type(backend).__name__}, which is no "
            f"StateBackend"
        )
    return backend


def open_sql_database(url: str, **options: Any) -> StateDatabase:
    """Return the SQL database of a URL, for what only those can do. Raises UsageError for another store."""
    database = open_database(url, **options)
    if not isinstance(database, StateDatabase):
        raise UsageError(
            f"{database.display_url} is no SQL database; it is {a(type(database).__name__)}, which has its "
            f"own tools for this"
        )
    return database


def register_backend(scheme: str, factory: BackendFactory) -> Callable[[], None]:
    """Open `scheme://...` URLs with `factory` in this process. Returns a function that undoes it.

    It takes precedence over an entry point of that scheme. Executors and the command line are other
    processes: for them a package declares the entry point
    `[project.entry-points."txstream.state_backends"]`, `scheme = "module:factory"`. Raises UsageError for a
    scheme that is invalid, is txstream's own, or is registered already.
    """
    _refuse_scheme(scheme)
    with _lock:
        if scheme in _registered:
            raise UsageError(f"a state backend is registered for {scheme}:// already; choose another scheme")
        _registered[scheme] = factory

    def take_back() -> None:
        with _lock:
            if _registered.get(scheme) is factory:
                del _registered[scheme]

    return take_back


def known_schemes() -> list[str]:
    """Return every scheme that `open_database` knows in this process, txstream's own first."""
    own = sorted(urls.sql_schemes())
    with _lock:
        others = {*_registered, *names(STATE_BACKENDS)}
    return [*own, *sorted(others - set(own))]


def place_of(url: str) -> str:
    """Return the same text for every spelling of one store's URL, which has one fence and one ledger. A URL
    that is not understood is its own place."""
    scheme = scheme_of(url)
    if scheme is None or urls.is_sql(scheme):
        return urls.place_of(url)
    try:
        place_of = getattr(_factory(scheme), "place_of", None)
        return url if place_of is None else str(place_of(url))
    except (ServiceUnavailableError, UsageError):
        return url  # opening it raises the error


def scheme_of(url: str) -> str | None:
    """Return what stands before `://`, in lower case; None where that is not a scheme."""
    scheme, separator, _ = url.partition("://")
    scheme = scheme.lower()
    return scheme if separator and _SCHEME.fullmatch(scheme) else None


def _factory(scheme: str) -> BackendFactory | None:
    with _lock:
        registered = _registered.get(scheme)
    if registered is not None:
        return registered
    installed: BackendFactory | None = load(STATE_BACKENDS, scheme, f"state backend for {scheme}://")
    return installed


def _refuse_scheme(scheme: str) -> None:
    if not isinstance(scheme, str) or not _SCHEME.fullmatch(scheme):
        raise UsageError(
            f"{scheme!r} cannot be the scheme of a state backend: a scheme begins with a letter and has "
            f"lower-case letters, digits, '+', '.' and '-' only, without the '://'"
        )
    if urls.is_sql(scheme):
        raise UsageError(f"{scheme}:// is a SQL dialect's; register the state backend under another scheme")


def _unknown(url: str, scheme: str) -> UsageError:
    return UsageError(
        f"database {urls.shown(url)}: {scheme!r} is not supported; known are {', '.join(known_schemes())}, "
        f"for example {urls.EXAMPLES}. A state backend of your own becomes known by "
        f"txstream.register_backend({scheme!r}, factory) or, to executors and commands too, by an entry "
        f"point in the group {STATE_BACKENDS!r}"
    )
