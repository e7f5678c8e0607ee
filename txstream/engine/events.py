"""The queue behind the event loop: answers from pools, and timers.

Invariant: events run one at a time, on the thread that calls `next`; any thread may post one, but only that
thread may set a timer.
"""

from __future__ import annotations

import heapq
import itertools
import queue
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

Event = Callable[[], None]


class EventQueue:
    """Events in the order in which they came; a timer that is due goes first."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._timers: list[tuple[float, int, Event]] = []
        self._timer_numbers = itertools.count()

    def post(self, event: Event) -> None:
        """From any thread."""
        self._events.put(event)

    def after(self, seconds: float, event: Event) -> None:
        """Have `event` come in so many seconds."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._timer_numbers), event))

    def next(self) -> Event:
        """The next event; blocks until there is one."""
        while True:
            now = time.monotonic()
            if self._timers and self._timers[0][0] <= now:
                return heapq.heappop(self._timers)[2]
            try:
                return self._events.get(timeout=self._timers[0][0] - now if self._timers else None)
            except queue.Empty:
                continue

    def submit(
        self,
        pool: ThreadPoolExecutor,
        work: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Run `work` on a pool; its result or its error comes back as an event."""

        def finished(future: Future[T]) -> None:
            if future.cancelled():
                return
            error = future.exception()
            if error is None:
                result = future.result()
                self.post(lambda: done(result))
            else:
                self.post(lambda: failed(error))

        pool.submit(work).add_done_callback(finished)
