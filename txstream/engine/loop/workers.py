"""Where a driver's work is done, and the queue of events through which its loop hears of it.

A run has threads; a test holds work back until it is asked for; a simulation does one piece at a time, in an
order that a seed decides. The loop is the same over all of them.

Invariants: events run one at a time, on the thread that calls `next`; any thread may post one, but only that
thread may submit work or set a timer. The work of one lane is done in the order in which it was submitted,
one piece after the other; only jobs run side by side.
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

from txstream.transaction import TransactionAttempt

T = TypeVar("T")

Event = Callable[[], None]


class Lane(StrEnum):
    """The kinds of work that a driver has done."""

    PLAN = "plan"
    """Questions to the source."""
    WRITE = "zookeeper"
    """Writes to the progress store."""
    JOB = "job"
    """Batches that are processed."""
    COMMIT = "commit"
    """Commits, with their bolts."""
    CANCEL = "cancel"
    """Requests to the runner, on a lane of their own, because they end jobs that are stuck."""


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
        """Have `work` done; `done` with its result, or `failed` with its error, comes as an event. Without
        them nobody hears of it. `attempt` is the one that the work processes or commits, if it does."""

    def now(self) -> float:
        """Seconds from any start, which never go back."""

    def post(self, event: Event) -> None:
        """Have an event handled. From any thread."""

    def after(self, seconds: float, event: Event, *, is_deadline: bool = False) -> None:
        """Have `event` come in so many seconds. A deadline says how long work may take; the others are waits
        before a further try."""

    def next(self) -> Event:
        """The next event; blocks until there is one."""

    def pause(self, seconds: float) -> bool:
        """Block before a further try; True when there is to be none. Called from inside work."""

    def interrupt(self) -> None:
        """Have every `pause` return True from now on. From any thread."""

    @property
    def is_interrupted(self) -> bool: ...

    def shut_down(self) -> None:
        """Wait for the work that is being done, but for jobs; do no other."""


class Clock(Protocol):
    """Seconds from any start, which never go back; calling it tells them."""

    def __call__(self) -> float: ...

    def seconds_until(self, due: float) -> float | None:
        """How long to block, in real seconds, before it is worth asking again; None when only a notification
        of `changed` can make it so."""


class MonotonicClock:
    """The clock of ordinary runs."""

    def __call__(self) -> float:
        return time.monotonic()

    def seconds_until(self, due: float) -> float | None:
        return max(0.0, due - time.monotonic())


class Timer(NamedTuple):
    """An event that comes at a time; those of one time come by their numbers."""

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
        def answer(future: Future[T]) -> None:
            if future.cancelled():
                return
            error = future.exception()
            if error is None and done is not None:
                result = future.result()
                self.post(lambda: done(result))
            if error is not None and failed is not None:
                self.post(lambda: failed(error))

        self._pools[lane].submit(work).add_done_callback(answer)

    def now(self) -> float:
        return self.clock()

    def post(self, event: Event) -> None:
        with self.changed:
            self.events.append(event)
            self.changed.notify_all()

    def after(self, seconds: float, event: Event, *, is_deadline: bool = False) -> None:
        with self.changed:
            timer = Timer(self.clock() + seconds, next(self._timer_numbers), event, is_deadline)
            heapq.heappush(self.timers, timer)

    def next(self) -> Event:
        """The next event: a timer that is due before those that were posted."""
        with self.changed:
            while not self.is_ready():
                self.changed.wait(self._seconds_to_timer())
            return self._pop()

    def is_ready(self) -> bool:
        """Is there something for `next`?"""
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
