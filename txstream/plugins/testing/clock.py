"""A clock that only the test moves."""

from __future__ import annotations

import threading
from collections.abc import Callable

from txstream.core.errors import UsageError


class ManualClock:
    """A clock that moves only by `advance`. Calling it returns its seconds, as `time.monotonic` does.

    It begins at 0 unless given another, and may be read and moved from any thread. `TopologyTest` has one:
    a message timeout happens exactly when the clock is moved past it.
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
        """Return None: this clock never reaches a time by itself."""
        return None

    def advance(self, seconds: float) -> None:
        """Move the clock on. Raises UsageError for a negative number."""
        if not seconds >= 0:
            raise UsageError(f"a clock cannot be moved by {seconds!r} seconds; time only goes on")
        with self._lock:
            self._seconds += seconds
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def listen(self, moved: Callable[[], None]) -> Callable[[], None]:
        """Call `moved` after each move, on the thread that made it. The returned function ends this."""
        with self._lock:
            self._listeners.append(moved)

        def stop() -> None:
            with self._lock:
                self._listeners.remove(moved)

        return stop
