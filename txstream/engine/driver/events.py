"""The queue behind the event loop: answers from pools, and timers.

Invariants: events run one at a time, on the thread that calls `next`; any thread may post one, but only that
thread may set a timer. Everything here changes under `changed`, and whoever changes it tells those who wait.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, Protocol, TypeVar

T = TypeVar("T")

Event = Callable[[], None]


class Clock(Protocol):
    """Seconds from any start, which never go back; calling it tells them."""

    def __call__(self) -> float: ...

    def seconds_until(self, due: float) -> float | None:
        """How long to block, in real seconds, before it is worth asking again; None when only `wake` can
        make it so."""


class MonotonicClock:
    """The clock of ordinary runs."""

    def __call__(self) -> float:
        return time.monotonic()

    def seconds_until(self, due: float) -> float | None:
        return max(0.0, due - time.monotonic())


class _Timer(NamedTuple):
    due: float
    number: int
    event: Event
    is_deadline: bool


class EventQueue:
    """Events in the order in which they came; a timer that is due goes first.

    `changed` is notified of every change, for whoever watches. While the queue is held, `next` hands out
    nothing: the loop stands still.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or MonotonicClock()
        self.changed = threading.Condition()
        self._events: deque[Event] = deque()
        self._timers: list[_Timer] = []
        self._timer_numbers = itertools.count()
        self._deadlines = False
        self._outstanding = 0
        self._waits = False
        self._held = False

    def post(self, event: Event) -> None:
        """From any thread."""
        with self.changed:
            self._events.append(event)
            self.changed.notify_all()

    def after(self, seconds: float, event: Event) -> None:
        """Have `event` come in so many seconds."""
        with self.changed:
            timer = _Timer(self.clock() + seconds, next(self._timer_numbers), event, self._deadlines)
            heapq.heappush(self._timers, timer)

    def next(self) -> Event:
        """The next event; blocks until there is one."""
        with self.changed:
            while True:
                if not self._held:
                    if self._is_due():
                        return heapq.heappop(self._timers).event
                    if self._events:
                        return self._events.popleft()
                self._waits = True
                self.changed.notify_all()
                self.changed.wait(self._seconds_to_timer())
                self._waits = False

    def submit(
        self,
        pool: ThreadPoolExecutor,
        work: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Run `work` on a pool; its result or its error comes back as an event."""

        def answer(future: Future[T]) -> Event | None:
            if future.cancelled():
                return None
            error = future.exception()
            if error is not None:
                return lambda: failed(error)
            result = future.result()
            return lambda: done(result)

        def finished(future: Future[T]) -> None:
            event = answer(future)
            with self.changed:
                self._outstanding -= 1
                if event is not None:
                    self._events.append(event)
                self.changed.notify_all()

        with self.changed:
            self._outstanding += 1
        try:
            future = pool.submit(work)
        except BaseException:
            with self.changed:
                self._outstanding -= 1
            raise
        future.add_done_callback(finished)

    # --- for whoever steps a loop ---------------------------------------------------------------------

    def hold(self) -> None:
        """Hand out nothing until `release`."""
        with self.changed:
            self._held = True

    def release(self) -> None:
        with self.changed:
            self._held = False
            self.changed.notify_all()

    def wake(self) -> None:
        """The clock was moved by hand."""
        with self.changed:
            self.changed.notify_all()

    def is_quiet(self, held_back: int) -> bool:
        """Has everything been handled but `held_back` pieces of work, which wait for a permission? Ask it
        under `changed`."""
        nothing_to_do = self._waits and not self._events and not self._is_due()
        return nothing_to_do and self._outstanding == held_back

    @contextlib.contextmanager
    def adding_deadlines(self) -> Iterator[None]:
        """Timers that are set meanwhile say how long work may take; `skip_waits` leaves them alone."""
        self._deadlines = True
        try:
            yield
        finally:
            self._deadlines = False

    def skip_waits(self) -> int:
        """Make every timer due that is no deadline; how many."""
        with self.changed:
            now = self.clock()
            waits = sum(not timer.is_deadline for timer in self._timers)
            # In the order in which they were due: equal times go by their numbers.
            renumbered = [
                timer if timer.is_deadline else timer._replace(due=now, number=next(self._timer_numbers))
                for timer in sorted(self._timers)
            ]
            heapq.heapify(renumbered)
            self._timers = renumbered
            self.changed.notify_all()
            return waits

    def _is_due(self) -> bool:
        return bool(self._timers) and self._timers[0].due <= self.clock()

    def _seconds_to_timer(self) -> float | None:
        if self._held or not self._timers:
            return None
        return self.clock.seconds_until(self._timers[0].due)
