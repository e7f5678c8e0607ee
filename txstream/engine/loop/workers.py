"""Where a driver's work is done, and the queue of events that brings the answers to its loop.

A run has threads; a test holds work back until it is asked for; a simulation does one piece at a time, in an
order that a seed decides. The loop is the same over all of them.

Invariants. Only the thread that calls `next` runs events, one at a time. Any thread may post an event, but
only that thread may submit work or set a timer. The work of a lane is done one piece at a time, in the order
in which it was submitted; only jobs run side by side.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from enum import StrEnum
from typing import NamedTuple, Protocol, TypeVar

from txstream.core.transaction import TransactionAttempt, concerning

T = TypeVar("T")

Event = Callable[[], None]


class Lane(StrEnum):
    """The kinds of work that a driver submits."""

    PLAN = "plan"
    """Questions to the source."""
    WRITE = "zookeeper"
    """Writes to the progress store."""
    JOB = "job"
    """Batches that are processed."""
    COMMIT = "commit"
    """Commits, with their bolts."""
    CANCEL = "cancel"
    """Cancels and releases in the runner. They have a lane of their own because they end stuck jobs."""


class Workers(Protocol):
    """See the module."""

    def submit(
        self,
        lane: Lane,
        work: Callable[[], T],
        done: Callable[[T], None] | None = None,
        failed: Callable[[BaseException], None] | None = None,
        *,
        attempt: TransactionAttempt | None = None,
    ) -> None:
        """Have `work` done. `done` with its result, or `failed` with its error, follows as an event; without
        them, result or error is dropped. `attempt` is the one that all this is about, if any."""

    def now(self) -> float:
        """Return seconds since some start; they never go back."""

    def wall_clock(self) -> float:
        """Return seconds since 1970, by this machine's clock, which may be wrong and may go back."""

    def post(self, event: Event) -> None:
        """Queue an event. From any thread."""

    def after(self, seconds: float, event: Event, *, is_deadline: bool = False) -> None:
        """Have `event` come after so many seconds. A deadline limits how long work may take; other timers are
        waits before a further try."""

    def next(self) -> Event:
        """Return the next event; blocks until there is one."""

    def pause(self, seconds: float) -> bool:
        """Block before a further try; return True if there is to be none. Not to be called by events."""

    def interrupt(self) -> None:
        """Make every `pause` return True from now on. From any thread."""

    @property
    def is_interrupted(self) -> bool: ...

    def shut_down(self) -> None:
        """Wait for the work that is under way, except jobs; drop the work that has not begun."""


class Clock(Protocol):
    """A clock: calling it returns seconds since some start, which never go back."""

    def __call__(self) -> float: ...

    def seconds_until(self, due: float) -> float | None:
        """Return how long to block, in real seconds, before it is worth asking again; None if only a
        notification of `changed` can make it so."""


class MonotonicClock:
    """The clock of ordinary runs."""

    def __call__(self) -> float:
        return time.monotonic()

    def seconds_until(self, due: float) -> float | None:
        return max(0.0, due - time.monotonic())


class Timer(NamedTuple):
    """An event that comes at a time; timers of the same time come in the order of their numbers."""

    due: float
    number: int
    event: Event
    is_deadline: bool


class ThreadWorkers:
    """The workers of a run: a thread for each lane, and threads for as many jobs as may be in flight.

    `changed` is notified whenever there may be something to do.
    """

    def __init__(self, *, jobs: int, clock: Clock | None = None) -> None:
        self.changed = threading.Condition()
        self.events: deque[Event] = deque()
        self.timers: list[Timer] = []
        self.clock: Clock = clock or MonotonicClock()
        self._timer_numbers = itertools.count()
        self._interrupted = threading.Event()
        self._pools = {
            lane: ThreadPoolExecutor(jobs if lane is Lane.JOB else 1, f"txstream-{lane}") for lane in Lane
        }

    def submit(
        self,
        lane: Lane,
        work: Callable[[], T],
        done: Callable[[T], None] | None = None,
        failed: Callable[[BaseException], None] | None = None,
        *,
        attempt: TransactionAttempt | None = None,
    ) -> None:
        context = concerning(attempt)

        def answer(future: Future[T]) -> None:
            if future.cancelled():
                return
            error = future.exception()
            if error is None and done is not None:
                result = future.result()
                self.post(lambda: context.run(done, result))
            if error is not None and failed is not None:
                self.post(lambda: context.run(failed, error))

        self._pools[lane].submit(context.run, work).add_done_callback(answer)

    def now(self) -> float:
        return self.clock()

    def wall_clock(self) -> float:
        return time.time()

    def post(self, event: Event) -> None:
        with self.changed:
            self.events.append(event)
            self.changed.notify_all()

    def after(self, seconds: float, event: Event, *, is_deadline: bool = False) -> None:
        with self.changed:
            timer = Timer(self.clock() + seconds, next(self._timer_numbers), event, is_deadline)
            heapq.heappush(self.timers, timer)

    def next(self) -> Event:
        """Return the next event; timers that are due come before posted events."""
        with self.changed:
            while not self.is_ready():
                self.changed.wait(self._seconds_to_timer())
            return self._pop()

    def is_ready(self) -> bool:
        """Return whether there is something for `next`."""
        return self._is_due() or bool(self.events)

    def pause(self, seconds: float) -> bool:
        return self._interrupted.wait(seconds)

    def interrupt(self) -> None:
        self._interrupted.set()

    @property
    def is_interrupted(self) -> bool:
        return self._interrupted.is_set()

    def shut_down(self) -> None:
        # The jobs of superseded attempts may run on for a while; nobody waits for them.
        self._pools[Lane.JOB].shutdown(wait=False, cancel_futures=True)
        for lane in (Lane.PLAN, Lane.WRITE, Lane.COMMIT, Lane.CANCEL):
            self._pools[lane].shutdown(wait=True, cancel_futures=True)

    def _pop(self) -> Event:
        return heapq.heappop(self.timers).event if self._is_due() else self.events.popleft()

    def _is_due(self) -> bool:
        return bool(self.timers) and self.timers[0].due <= self.clock()

    def _seconds_to_timer(self) -> float | None:
        return self.clock.seconds_until(self.timers[0].due) if self.timers else None
