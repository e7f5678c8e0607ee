"""`MemoryBackend`: state in this process, by name, for tests.

Invariants. All backends of one name in one process share one store, and only `forget` ends it. A writing
transaction collects its changes and puts them into the store at its end, all at once, under `_Store.mutex`.
Readers hold the mutex, so they see whole transactions only. A transaction takes its locks in the order of
their names, so that no two wait for each other.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import ClassVar
from urllib.parse import unquote

from txstream.core.errors import UsageError
from txstream.plugins.proof.stores.backend import StoreBackend
from txstream.plugins.proof.stores.layout import Overlay, Spaces, Transaction
from txstream.state.records import FenceLockedError

SCHEME = "memory"


class MemoryBackend(StoreBackend):
    """The store `memory://NAME` of this process. Raises UsageError for a URL without a name.

    `message_timeout_seconds` limits the wait for a lock that another transaction holds.
    """

    label: ClassVar[str] = "memory"
    on_executors: ClassVar[bool] = False
    outlives_process: ClassVar[bool] = False
    removes_expired: ClassVar[bool] = True
    marks_rows: ClassVar[bool] = True
    hides_removed: ClassVar[bool] = True

    def __init__(
        self, url: str, *, connect_timeout_seconds: float = 10.0, message_timeout_seconds: float = 30.0
    ) -> None:
        name = name_of(url)
        super().__init__(f"{SCHEME}://{name}")
        self._lock_timeout_seconds = message_timeout_seconds
        self._store = _open(name)

    @contextlib.contextmanager
    def transaction(
        self,
        *,
        exclusive: Sequence[str] = (),
        shared: Sequence[str] = (),
        timeout_seconds: float | None = None,
    ) -> Iterator[Transaction]:
        store = self._store
        if not exclusive and not shared:
            with store.mutex:
                yield Overlay(store.spaces)
            return
        bound = self._lock_timeout_seconds if timeout_seconds is None else timeout_seconds
        deadline = time.monotonic() + bound
        with contextlib.ExitStack() as locks:
            for name, alone in sorted([*((n, True) for n in exclusive), *((n, False) for n in shared)]):
                if not store.lock(name).acquire(alone=alone, deadline=deadline):
                    raise FenceLockedError(
                        f"{self.display_url}: another transaction has held the lock {name!r} for "
                        f"{bound:g} s; wait until it ends"
                    )
                locks.callback(store.lock(name).release, alone=alone)
            changes = Overlay(store.spaces)
            yield changes
            with store.mutex:
                changes.apply()

    @staticmethod
    def place_of(url: str) -> str:
        """Return the same text for every spelling of one store's URL."""
        return f"{SCHEME}://{name_of(url)}"

    def close(self) -> None:
        """Do nothing: the store stays for the next backend of its name."""


def name_of(url: str) -> str:
    """Return the name in `memory://NAME`. Raises UsageError when there is none."""
    scheme, separator, name = url.partition("://")
    name = unquote(name).strip("/")
    if scheme.lower() != SCHEME or not separator or not name:
        raise UsageError(f"the database {url!r} has no name; write for example {SCHEME}://words")
    return name


def forget(name: str) -> None:
    """Drop the store of a name with all its content. Backends that have it open keep the dropped store."""
    with _stores_lock:
        _stores.pop(name, None)


class _Lock:
    """Shared by several holders or held by one alone; a request to hold it alone goes before later ones."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sharing = 0
        self._alone = False
        self._waiting_alone = 0

    def acquire(self, *, alone: bool, deadline: float) -> bool:
        """Return False when the lock was not granted before the deadline."""
        with self._changed:
            self._waiting_alone += alone
            try:
                free = self._changed.wait_for(
                    lambda: self._is_free(alone), max(0.0, deadline - time.monotonic())
                )
            finally:
                self._waiting_alone -= alone
                self._changed.notify_all()
            if not free:
                return False
            self._alone = alone
            self._sharing += not alone
            return True

    def _is_free(self, alone: bool) -> bool:
        if self._alone:
            return False
        return self._sharing == 0 if alone else self._waiting_alone == 0

    def release(self, *, alone: bool) -> None:
        with self._changed:
            if alone:
                self._alone = False
            else:
                self._sharing -= 1
            self._changed.notify_all()


class _Store:
    def __init__(self) -> None:
        self.mutex = threading.RLock()
        self.spaces: Spaces = {}
        self._locks: dict[str, _Lock] = {}

    def lock(self, name: str) -> _Lock:
        with self.mutex:
            return self._locks.setdefault(name, _Lock())


_stores: dict[str, _Store] = {}
_stores_lock = threading.Lock()


def _open(name: str) -> _Store:
    with _stores_lock:
        return _stores.setdefault(name, _Store())
