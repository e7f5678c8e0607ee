"""Opens ZooKeeper and a topology's databases for inspection: with deadlines, and without creating anything.

Invariant: a database of the topology that cannot be opened is named, with what would help. None is left out
silently. Each fence lists all databases of its topology, without their passwords.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from txstream.core.errors import (
    CorruptStateError,
    SchemaRevisionError,
    ServiceUnavailableError,
    StateTableError,
    TxstreamError,
    UsageError,
)
from txstream.core.waits import wait_until
from txstream.inspect.records import MissingDatabase
from txstream.settings import Settings
from txstream.settings.given_secrets import as_typed

if TYPE_CHECKING:
    from txstream.api.topology import Topology
    from txstream.state import FenceRow, StateBackend
    from txstream.zookeeper import ZooKeeper
    from txstream.zookeeper.candidates import Candidate

_OPTION = "give its URL with --state-database (or state_databases in txstream.toml)"
GRANT_REMEDY = "grant its account the right to read txstream's tables and the state tables"
# Reading a large table may take longer than a commit.
_READING_SECONDS = 300.0
# ZooKeeper ends a session at the next of its ticks, and a leader may have spoken just before we looked.
_SESSION_SLACK_SECONDS = 4.0


NOWHERE = MissingDatabase(
    "",
    "none that is known here has anything of it",
    "give the one that it was run with by --database or TXSTREAM_DATABASE",
)
"""Of a topology whose databases nobody has named."""


class UnknownTopologyError(TxstreamError):
    """No topology of this id was found."""

    exit_status: ClassVar[int] = 1

    def __init__(self, topology_id: str, sentence: str | None = None) -> None:
        super().__init__(
            sentence
            or f"there is no topology {topology_id!r} in this ZooKeeper and database; "
            "`txstream topologies` lists those that are"
        )


@contextlib.contextmanager
def open_zookeeper(settings: Settings) -> Iterator[ZooKeeper]:
    """Open ZooKeeper. Raises UsageError without an address, ServiceUnavailableError if it does not answer in
    time."""
    from txstream.zookeeper import ZooKeeper

    zookeeper = ZooKeeper.of(settings)
    zookeeper.start()
    try:
        yield zookeeper
    finally:
        zookeeper.close()


@dataclass
class Databases:
    """Open databases, in the order in which they were found, and those that could not be opened."""

    opened: list[StateBackend] = field(default_factory=list)
    missing: list[MissingDatabase] = field(default_factory=list)
    fences: dict[str, FenceRow | None] = field(default_factory=dict)
    """Fences by URL without password; filled only if one topology was asked for."""
    known: dict[str, StateBackend | None] = field(default_factory=dict)
    """What each URL and each place (`place_of`) led to; None if it could not be opened."""
    topology_id: str | None = None
    """The topology that was asked for; None for all."""
    error: TxstreamError | None = None
    """Why the first of the missing could not be opened that the settings name."""

    def at(self, url: str) -> StateBackend | None:
        """Return the open database that a URL leads to, perhaps opened by another of its URLs."""
        from txstream.state import place_of

        return self.known.get(url) or self.known.get(place_of(url))

    def missing_of_topology(self) -> list[MissingDatabase]:
        """Return those of the missing that the topology that was asked for may have: where one of its
        databases lists all, no other."""
        from txstream.state import place_of

        listed = {place_of(url) for fence in self.fences.values() if fence for url in databases_of(fence)}
        return [one for one in self.missing if not listed or place_of(one.database) in listed]

    def require(self, url: str) -> StateBackend:
        """As `at`. Raises ServiceUnavailableError if it is not open."""
        found = self.at(url)
        if found is None:
            raise ServiceUnavailableError(f"database {without_password(url)} is not open")
        return found

    def listed_twice(self) -> list[tuple[str, str]]:
        """Return pairs of URLs that one fence lists as two databases and that are one."""
        from txstream.state import place_of

        pairs = []
        for fence in self.fences.values():
            first: dict[int, str] = {}
            for url in [] if fence is None else databases_of(fence):
                one = self.at(url)
                # A URL of a place that was open already was not opened itself, so nothing was asked about it.
                if one is not None and place_of(other := first.setdefault(id(one), url)) != place_of(url):
                    pairs.append((other, url))
        return pairs


Where = Settings | Databases | None
"""Where a reader looks: by addresses, or in databases that are open."""


@contextlib.contextmanager
def open_databases(
    settings: Settings,
    topology_id: str | None = None,
    *,
    strict: bool = True,
    for_writing: bool = False,
    all_given: bool = False,
) -> Iterator[Databases]:
    """Open the databases of a topology, or of all topologies: those of the settings that know it, and those
    that its fences name.

    With `strict`, ServiceUnavailableError is raised if a database of the settings does not answer; otherwise
    it is one more missing database. With `all_given`, the databases of the settings are included whether they
    know the topology or not: a deleted topology may have left tables. `for_writing` keeps the timeouts of a
    run, since others wait for what it locks. A database that several URLs lead to is opened once.
    """
    with contextlib.ExitStack() as stack:
        found = Databases(topology_id=topology_id)
        given = [settings.database_url(), *settings.state_databases]
        pending = deque((url, True) for url in given)
        places: dict[str, StateBackend] = {}
        from txstream.state import place_of

        while pending:
            url, is_given = pending.popleft()
            # A URL that was given may have what one that a fence lists lacks: a password, another schema.
            if url in found.known or (not is_given and place_of(url) in found.known):
                continue
            found.known[url] = None
            is_open = found.known.setdefault(place_of(url), None) is not None
            try:
                database = _opened(settings, url, stack, for_writing=for_writing, is_given=is_given)
                if database is None:
                    continue
                first = places.setdefault(database.place() or place_of(url), database)
                shown = database.display_url
                found.known |= dict.fromkeys((url, shown, place_of(url), place_of(shown)), first)
                if first is not database:
                    continue
                listed, belongs = _look(database, topology_id, found)
            except TxstreamError as error:
                if is_open:
                    continue  # by a URL that has the password
                if is_given and (strict or isinstance(error, UsageError)):
                    raise
                if is_given and isinstance(error, _NoFileError) and url == settings.database_url():
                    continue  # no run has made it yet; if one has, another database names it
                if is_given:
                    found.error = found.error or error
                found.missing.append(_missing(url, error))
                continue
            if belongs or all_given or not is_given:
                found.opened.append(database)
            pending.extend((other, False) for other in listed)
        yield found


class _NoFileError(ServiceUnavailableError):
    """The SQLite file does not exist."""


def _opened(
    settings: Settings, url: str, stack: contextlib.ExitStack, *, for_writing: bool, is_given: bool
) -> StateBackend | None:
    from txstream.state import open_database
    from txstream.state.sql.urls import is_hidden

    if is_hidden(url):
        raise ServiceUnavailableError("only its URL without the password is known")
    if is_missing_file(url):
        if is_given and url == settings.database_url():
            return None
        raise _NoFileError("there is no such file")
    options = {} if for_writing else {"message_timeout_seconds": _READING_SECONDS}
    database = open_database(url, connect_timeout_seconds=settings.connect_timeout_seconds, **options)
    stack.callback(database.close)
    database.check()
    return database


def _look(database: StateBackend, topology_id: str | None, found: Databases) -> tuple[list[str], bool]:
    """Return the databases that this one names, and whether it has anything of the topology."""
    if topology_id is None:
        rows = database.topologies()
        return [url for row in rows for url in databases_of(row)], True
    fence = database.read_fence(topology_id)
    found.fences[database.display_url] = fence
    if fence is not None:
        return databases_of(fence), True
    return [], database.last_batch(topology_id) is not None


def databases_of(fence: FenceRow) -> list[str]:
    """Return the databases of a topology that a fence lists; empty for a row of an older txstream."""
    listed = (fence.identity or {}).get("databases")
    return [url for url in listed if isinstance(url, str)] if isinstance(listed, list) else []


def _missing(url: str, error: TxstreamError) -> MissingDatabase:
    from txstream.state.sql.errors import REMEDY
    from txstream.state.sql.urls import is_hidden

    shown = without_password(url)
    remedy = "start or repair it"
    if isinstance(error, _NoFileError):
        remedy = f"restore it, or {_OPTION} if it is elsewhere"
    elif is_hidden(url):
        remedy = _OPTION
    elif isinstance(error, SchemaRevisionError):
        remedy = upgrade_remedy(shown)
    elif isinstance(error, StateTableError):
        remedy = GRANT_REMEDY
    elif isinstance(error, CorruptStateError):
        remedy = "restore what is damaged from a backup of one moment"
    elif isinstance(error, ServiceUnavailableError):
        remedy = f"{remedy}, or {_OPTION} if it needs others"
    # The place and the remedy are shown beside the reason.
    reason = str(error).removeprefix(f"database {shown} ").removesuffix(f"; start or repair it, or {REMEDY}")
    return MissingDatabase(shown, reason, remedy)


def upgrade_remedy(url: str) -> str:
    """Return what helps if the framework's tables have another revision; the error says which of the two."""
    return (
        f"type `txstream db upgrade --database {as_typed(url)}`, or use the newer txstream that it belongs to"
    )


def without_password(url: str) -> str:
    """Return a URL without its secrets; if it cannot be parsed, only the part before the first colon."""
    from txstream.state.sql.urls import shown

    return shown(url)


@contextlib.contextmanager
def opened(topology_id: str, settings: Settings | None = None) -> Iterator[Databases]:
    """Open the databases of a topology. Readers take them in place of settings, and do not open them again.
    A database that cannot be opened is left out, as readers say. Raises UnknownTopologyError,
    ServiceUnavailableError, and UsageError for tracked tuples."""
    with topology_databases(settings, topology_id, []) as databases:
        yield databases


@contextlib.contextmanager
def topology_databases(
    where: Where, topology_id: str, missing: list[MissingDatabase] | None = None
) -> Iterator[Databases]:
    """Open the databases that know a topology, unless they are open. Those that cannot be opened are added to
    `missing`; if that is None, ServiceUnavailableError is raised. Raises UsageError for tracked tuples, which
    have no batches, and UnknownTopologyError; if ZooKeeper has the topology, it was run with another
    database, and the message says so."""
    with contextlib.ExitStack() as stack:
        if isinstance(where, Databases):
            databases = where
            if databases.topology_id != topology_id:
                raise UsageError(f"these databases were opened for {databases.topology_id!r}")
        else:
            settings = (where or Settings()).resolve()
            databases = stack.enter_context(open_databases(settings, topology_id, strict=False))
            if not databases.opened:
                if databases.error is not None:
                    refuse_tracked(settings, topology_id)  # it needs no database
                    raise databases.error
                raise nowhere(settings, topology_id)
        away = databases.missing_of_topology()
        if missing is None:
            refuse_missing(away)
        else:
            missing += away
        yield databases


def refuse_missing(missing: Sequence[MissingDatabase]) -> None:
    """Raise ServiceUnavailableError that names what could not be opened, and what would help."""
    if missing:
        raise ServiceUnavailableError("; ".join(map(str, missing)))


def nowhere(settings: Settings, topology_id: str) -> TxstreamError:
    """Return the error for a topology that no database knows."""
    if settings.zookeeper:
        with open_zookeeper(settings) as zookeeper:
            known = topology_id in zookeeper.topologies()
            if known and is_tracked(zookeeper, topology_id):
                return tracks_tuples(topology_id)
        if known:
            return UnknownTopologyError(
                topology_id,
                f"topology {topology_id!r} is in ZooKeeper, but {display_place(settings)} has nothing of "
                "it; give the database that it was run with by --database or TXSTREAM_DATABASE; if that is "
                f"lost for good, `txstream delete {topology_id}` says how to forget the rest",
            )
    return UnknownTopologyError(topology_id)


def is_tracked(zookeeper: ZooKeeper, topology_id: str) -> bool:
    """Return whether ZooKeeper knows this as a topology of tracked tuples."""
    try:
        identity = zookeeper.identity(topology_id)
    except CorruptStateError:
        return False
    return identity is not None and identity.is_tracked


def tracks_tuples(topology_id: str) -> UsageError:
    """Return the error of what is about batches, for a topology of tracked tuples."""
    return UsageError(
        f"topology {topology_id!r} tracks tuples: it has no batches; `txstream status {topology_id}` shows "
        f"its trees"
    )


def refuse_tracked(settings: Settings, topology_id: str) -> None:
    """Raise UsageError for a topology of tracked tuples. Do nothing if ZooKeeper cannot be asked."""
    if settings.zookeeper:
        with contextlib.suppress(ServiceUnavailableError), open_zookeeper(settings) as zookeeper:
            if is_tracked(zookeeper, topology_id):
                raise tracks_tuples(topology_id)


def not_in_zookeeper(settings: Settings, topology_id: str) -> UnknownTopologyError:
    """Return the error for a topology that ZooKeeper lacks; it names databases that the topology filled."""
    with open_databases(settings, topology_id, strict=False) as databases:
        places = " and ".join(database.display_url for database in databases.opened)
    if not places:
        return UnknownTopologyError(topology_id)
    return UnknownTopologyError(
        topology_id,
        f"topology {topology_id!r} is not in ZooKeeper, but {places} has been filled by it; "
        f"`txstream fsck {topology_id}` says how that is mended",
    )


def display_place(settings: Settings) -> str:
    """Return the settings' database for a message, which says so if a SQLite file does not exist."""
    url = settings.database_url()
    if is_missing_file(url):
        return f"{without_password(url).partition(':///')[2]} (no such file)"
    return without_password(url)


def is_missing_file(url: str) -> bool:
    """Return whether this is the URL of a SQLite file that does not exist."""
    scheme, separator, path = url.partition(":///")
    return bool(separator) and scheme.split("+")[0] == "sqlite" and not Path(path.partition("?")[0]).exists()


def living_driver(
    zookeeper: ZooKeeper, topology_id: str, waiting: Callable[[str], None] | None = None
) -> Candidate | None:
    """Return the driver that leads the topology or will lead it; None if there is none, or all have ended.

    Of a driver elsewhere (another machine, another container, one of an older txstream) this is not known.
    It is given the time in which its session would end; `waiting` is then called with a sentence.
    """
    found = zookeeper.living_driver(topology_id)
    if found is None or found.runs():
        return found
    seconds = (found.session_seconds or zookeeper.session_timeout_seconds) + _SESSION_SLACK_SECONDS
    if waiting is not None:
        waiting(
            f"waiting up to {seconds:g} s to see whether {found.driver} still runs topology {topology_id!r}"
        )

    def is_known() -> bool:
        nonlocal found
        found = zookeeper.living_driver(topology_id)
        return found is None or bool(found.runs())

    wait_until(is_known, seconds)
    return found


def with_states_of(settings: Settings, topology: Topology | None) -> Settings:
    """Return the settings with the URLs of a topology's states, passwords included, among the databases."""
    if topology is None:
        return settings
    states = [*(bolt.state for bolt, _ in topology.states), *(use.state for use in topology.map_states)]
    urls = dict.fromkeys(state.url for state in states if state.url is not None)
    return replace(settings, state_databases=(*settings.state_databases, *urls))
