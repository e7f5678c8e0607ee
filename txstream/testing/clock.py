"""A clock that only the test moves."""

from __future__ import annotations

import threading
from collections.abc import Callable

from txstream.api.errors import UsageError


class ManualClock:
    """Seconds from 0 on that pass only by `advance`; calling the clock tells them, as `time.monotonic` does.

    It may be read and moved from any thread. `TopologyTest` has one: what takes time by it (the message
    timeout) happens exactly when it is moved past that time.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []

    def __call__(self) -> float:
        return self._seconds

    def __repr__(self) -> str:
        return f"ManualClock({self._seconds:g})"

    def seconds_until(self, due: float) -> float | None:
        """It passes at no time by itself."""
        return None

    def advance(self, seconds: float) -> None:
        """Move the clock on. Raises UsageError for a negative number."""
        if not seconds >= 0:
            raise UsageError(f"a clock cannot be moved by {seconds!r} seconds; time only goes on")
        with self._lock:
            self._seconds += seconds
            listeners = list(self._listeners)
        for tell in listeners:
            tell()

    def listen(self, moved: Callable[[], None]) -> Callable[[], None]:
        """Have `moved` called, by whoever moves the clock, after each move; what is returned ends it."""
        with self._lock:
            self._listeners.append(moved)

        def stop() -> None:
            with self._lock:
                self._listeners.remove(moved)

        return stop
