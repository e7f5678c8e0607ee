"""What the page reads: ZooKeeper and the databases, as commands read them.

Invariants.
- One session with ZooKeeper serves all pages. It is dropped when anything was unavailable, so that the next
  look begins anew. While ZooKeeper is away, one look in two seconds tries, and the others are told at once.
- What many open pages ask for at once is read once (`memo`); an answer is kept for a second or two, an error
  as well. The number of kept answers is bounded.
- Nothing is written, except requests to drivers (`ask`), and by what is behind a button of an installed
  package (`pages`), as commands write.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from txstream.cli.asking import ask
from txstream.core.entry_points import PAGES, every
from txstream.core.errors import ServiceUnavailableError, TxstreamError, UsageError
from txstream.inspect.databases import UnknownTopologyError, is_tracked, open_zookeeper
from txstream.inspect.overview import look, topologies_in
from txstream.inspect.standing import Standing, standing_of
from txstream.plugins.web.comparing import Comparing
from txstream.settings import Settings

if TYPE_CHECKING:
    from txstream.api.topology import Topology
    from txstream.inspect.pages import Page
    from txstream.inspect.records import FsckReport, TopologySummary
    from txstream.inspect.snapshot import Snapshot
    from txstream.zookeeper import ZooKeeper

T = TypeVar("T")

_PATIENCE_SECONDS = 3.0  # a person waits for the page
_ANSWER_SECONDS = 15.0
_FRESH_SECONDS = 1.0
_AWAY_SECONDS = 2.0
_MOST_KEPT = 500


@dataclass
class _Kept:
    """One answer, or the error instead of it, until `expires`."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    expires: float = 0.0
    value: Any = None
    error: TxstreamError | None = None


class Site:
    """The services of the page. Thread-safe. `code` returns a topology's code, or raises UsageError."""

    def __init__(self, settings: Settings, *, code: Callable[[str], Topology] | None = None) -> None:
        seconds = min(settings.connect_timeout_seconds, _PATIENCE_SECONDS)
        self.settings = replace(settings, connect_timeout_seconds=seconds)
        self._code = code
        self.comparing = Comparing(settings)
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._session: tuple[ZooKeeper, contextlib.ExitStack] | None = None
        self._away: tuple[float, ServiceUnavailableError | None] = 0.0, None
        self._kept: dict[Any, _Kept] = {}
        self.checked: dict[str, tuple[float, FsckReport]] = {}
        """The last fsck of each topology, and when it was, in seconds since 1970."""

    @contextlib.contextmanager
    def zookeeper(self) -> Iterator[ZooKeeper]:
        """Yield the session with ZooKeeper. Raises ServiceUnavailableError."""
        with self._opening:
            if self._session is None:
                self._session = self._opened()
            session = self._session
        try:
            yield session[0]
        except ServiceUnavailableError:
            self._drop(session)
            raise

    def _opened(self) -> tuple[ZooKeeper, contextlib.ExitStack]:
        at, error = self._away
        if error is not None and time.monotonic() - at < _AWAY_SECONDS:
            raise error.with_traceback(None)
        stack = contextlib.ExitStack()
        try:
            return stack.enter_context(open_zookeeper(self.settings)), stack
        except ServiceUnavailableError as error:
            self._away = time.monotonic(), error
            raise

    def close(self) -> None:
        self.comparing.close()
        if self._session is not None:
            self._drop(self._session)

    def _drop(self, session: tuple[ZooKeeper, contextlib.ExitStack]) -> None:
        with self._opening:
            if self._session is not session:
                return
            self._session = None
        # Closing waits for a server that may be away.
        threading.Thread(target=session[1].close, name="txstream-ui-close", daemon=True).start()

    def memo(self, key: tuple[Any, ...], read: Callable[[], T], seconds: float = _FRESH_SECONDS) -> T:
        """Return what `read` returned less than `seconds` ago, for any page. Errors are kept, too."""
        with self._lock:
            if len(self._kept) >= _MOST_KEPT:
                now = time.monotonic()
                self._kept = {name: one for name, one in self._kept.items() if one.expires > now}
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            kept = self._kept.setdefault(key, _Kept())
        with kept.lock:
            if time.monotonic() >= kept.expires:
                try:
                    kept.value, kept.error = read(), None
                except TxstreamError as error:
                    kept.value, kept.error = None, error
                kept.expires = time.monotonic() + seconds
            if kept.error is not None:
                raise kept.error.with_traceback(None)
            value: T = kept.value
            return value

    def topologies(self) -> list[TopologySummary]:
        """As `txstream topologies`."""

        def read() -> list[TopologySummary]:
            with self.zookeeper() as zookeeper:
                return topologies_in(self.settings, zookeeper)

        return self.memo(("topologies",), read)

    def standing(self, topology_id: str) -> Standing:
        """As `txstream status ID`."""

        def read() -> Standing:
            with self.zookeeper() as zookeeper:
                return standing_of(self.settings, topology_id, zookeeper)

        return self.memo(("standing", topology_id), read)

    def look(self, topology_id: str) -> Snapshot:
        """Return what ZooKeeper has of a topology."""

        def read() -> Snapshot:
            with self.zookeeper() as zookeeper:
                return look(zookeeper, topology_id)

        return self.memo(("look", topology_id), read)

    def is_tracked(self, topology_id: str) -> bool:
        """Whether it is known to be a topology of tracked tuples."""

        def read() -> bool:
            with self.zookeeper() as zookeeper:
                return is_tracked(zookeeper, topology_id)

        try:
            return self.memo(("tracked", topology_id), read)
        except TxstreamError:
            return False

    def pages(self, topology_id: str) -> Mapping[str, Page]:
        """Return what installed packages add about a topology, by name."""

        def read() -> Mapping[str, Page]:
            with self.zookeeper() as zookeeper:
                made = every(PAGES, "page")
                found = [page for pages in made for page in pages(self.settings, zookeeper, topology_id)]
            return {page.name: page for page in found}

        return self.memo(("pages", topology_id), read)

    def mark(self, topology_id: str | None) -> str:
        """Return a text that changes when a page about a topology, or about all of them, would show something
        else. An outage is such a change."""

        def read() -> str:
            with self.zookeeper() as zookeeper:
                ids = zookeeper.topologies() if topology_id is None else [topology_id]
                about = "" if topology_id is not None else self.comparing.mark()
                return about + repr([_mark_of(zookeeper, one) for one in ids])

        try:
            return self.memo(("mark", topology_id), read, _FRESH_SECONDS / 2)
        except TxstreamError as error:
            return str(error)

    def code_of(self, topology_id: str) -> Topology:
        """Return a topology's code. Raises UsageError if it is not known here."""
        if self._code is None:
            raise UsageError(f"the code of topology {topology_id!r} is not known here")
        return self._code(topology_id)

    def ask(self, topology_id: str, kind: str, body: Mapping[str, Any], by: str) -> Mapping[str, Any] | None:
        """Ask the driver, as a command does, for `by`. Raises NotRunningError,
        UsageError if the driver refuses, and ServiceUnavailableError if it does not answer."""
        with self.zookeeper() as zookeeper:
            if topology_id not in zookeeper.topologies():
                raise UnknownTopologyError(topology_id)
            return ask(zookeeper, topology_id, kind, body, _ANSWER_SECONDS, later=False, by=by)[1]


def _mark_of(zookeeper: ZooKeeper, topology_id: str) -> object:
    try:
        seen = look(zookeeper, topology_id)
    except TxstreamError as error:
        if isinstance(error, ServiceUnavailableError):
            raise
        return str(error)
    current = None if seen.progress is None else seen.progress.current
    paused = None if seen.in_force.paused is None else seen.in_force.paused.request_id
    return topology_id, current, seen.epoch, seen.leader, seen.failing, seen.waiting, paused, seen.trees
