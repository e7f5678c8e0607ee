"""What PostgreSQL, MySQL and MariaDB share: the time limits of a session, and a deadline for a server that
stops answering without closing its connection.

The kernel of a frozen server still acknowledges packets, so TCP's timeouts never end the wait, and the
server's statement timeout is frozen too. Shutting the socket down from another thread does end it.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import threading
import time
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Self

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from txstream.state.sql.dialect import StateDialect, Touch

_GRACE_SECONDS = 5


class ServerDialect(StateDialect):
    """A database that is reached through a socket."""

    least: ClassVar[str] = "least"
    greatest: ClassVar[str] = "greatest"
    silence: ClassVar[tuple[int, ...]] = ()
    """The driver's error code for a server that did not answer; empty where it has none."""

    def __init__(self, url: Any, connect_timeout_seconds: float, message_timeout_seconds: float) -> None:
        super().__init__(url, connect_timeout_seconds, message_timeout_seconds)
        self.idle_timeout_seconds = self.countable(message_timeout_seconds / 2)
        self.lock_timeout_seconds = self.idle_timeout_seconds + _GRACE_SECONDS
        self.statement_timeout_seconds = max(message_timeout_seconds, self.lock_timeout_seconds)
        self.silence_seconds = self.statement_timeout_seconds + _GRACE_SECONDS

    def countable(self, seconds: float) -> float:
        """Return a time rounded to what the server can count."""
        return seconds

    @abstractmethod
    def descriptor(self, connection: Connection) -> int | None:
        """Return the socket's file descriptor; None when it is closed, which the next statement reports."""

    @contextlib.contextmanager
    def deadline(self, connection: Connection, seconds: float | None = None) -> Iterator[Touch]:
        line = self.descriptor(connection)
        if line is None:
            yield lambda: None
            return
        seconds = self.silence_seconds if seconds is None else seconds
        with Watchdog(line, seconds) as watchdog:
            try:
                yield watchdog.touch
            except (DBAPIError, connection.dialect.loaded_dbapi.Error) as error:
                cause = getattr(error, "orig", error)
                if watchdog.bitten and cause is not None:
                    # The driver only saw its connection end; only this code knows why.
                    cause.args = (*self.silence, f"the server did not answer for {seconds:g} s")
                raise

    def ping(self, connection: Connection) -> None:
        try:
            connection.dialect.do_ping(driver_of(connection))
        except connection.dialect.loaded_dbapi.Error as error:
            raise DBAPIError("ping", None, error) from error


def driver_of(connection: Connection) -> Any:
    """Return the driver's own connection."""
    return connection.connection.driver_connection


class Watchdog:
    """Shuts a socket down unless `touch` is called at least every `seconds`; a context manager.

    `bitten` says afterwards whether it shut the socket down. One thread, which stays, watches for all of a
    process: starting and ending one for each transaction takes as long as its statements.
    """

    def __init__(self, fileno: int, seconds: float) -> None:
        # A duplicate: the driver may close its own descriptor, whose number may then be another file's.
        self._descriptor = os.dup(fileno)
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._watch = _watch
        self.bitten = False

    def touch(self) -> None:
        """Record that the server has answered: the time starts afresh."""
        self._deadline = time.monotonic() + self._seconds

    def __enter__(self) -> Self:
        self._watch.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.remove(self)
        os.close(self._descriptor)

    @property
    def deadline(self) -> float:
        """When it bites, by the monotonic clock."""
        return self._deadline

    def bite(self) -> None:
        """Shut the socket down."""
        self.bitten = True
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._descriptor)) as line:
            line.shutdown(socket.SHUT_RDWR)


class _Watch:
    """The thread that watches, and what it watches. A watchdog that was removed bites no more."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._watched: set[Watchdog] = set()
        self._wakes_at = math.inf
        self._thread: threading.Thread | None = None

    def add(self, watchdog: Watchdog) -> None:
        with self._changed:
            self._watched.add(watchdog)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="txstream-database-deadline", daemon=True
                )
                self._thread.start()
            elif watchdog.deadline < self._wakes_at:
                self._changed.notify()

    def remove(self, watchdog: Watchdog) -> None:
        with self._changed:
            self._watched.discard(watchdog)

    def _run(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                for watchdog in [one for one in self._watched if one.deadline <= now]:
                    self._watched.discard(watchdog)
                    watchdog.bite()
                # A deadline that is put off meanwhile is only looked at too early.
                self._wakes_at = min((one.deadline for one in self._watched), default=math.inf)
                self._changed.wait(None if self._wakes_at == math.inf else max(0.0, self._wakes_at - now))


_watch = _Watch()


def _watch_alone() -> None:
    """Threads do not survive a fork, and the lock may have been held."""
    global _watch
    _watch = _Watch()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_watch_alone)
