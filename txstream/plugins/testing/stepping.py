"""Workers that a test steps: they stand still between two steps, and hold attempts back.

Invariants. While the workers stand still, `next` returns no event, so the coordinator does not change between
two steps and other threads may read it. A permission, a failure, being dropped or the end of the driver lets
an attempt that is held back go, so no thread waits for ever.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from typing import Any, TypeVar

from txstream.core.errors import BatchFailedError
from txstream.core.transaction import TransactionAttempt
from txstream.engine.loop.workers import Clock, Event, Lane, ThreadWorkers
from txstream.spouts.memory.failure_markers import CrashError

T = TypeVar("T")


class SteppedWorkers(ThreadWorkers):
    """Workers that the test steps. The marks are the greatest txids that may be processed and committed."""

    def __init__(self, *, jobs: int, clock: Clock) -> None:
        super().__init__(jobs=jobs, clock=clock)
        self.process_up_to: float = 0
        self.commit_up_to: float = 0
        self._alone: set[int] = set()
        self._stands_still = True
        self._blocks = False
        self._unanswered = 0
        self._held_back: dict[TransactionAttempt, Lane] = {}
        # The attempt whose commit the commit lane's thread works on.
        self._commits: TransactionAttempt | None = None
        self._dropped: set[TransactionAttempt] = set()
        self._failing: dict[TransactionAttempt, BaseException] = {}
        self._closed = False

    def wall_clock(self) -> float:
        return self.clock()

    # --- for the test's thread ----------------------------------------------------------------------

    def allow(self, *, process: float, commit: float) -> None:
        """Set both marks."""
        with self.changed:
            self.process_up_to, self.commit_up_to = process, commit
            self.changed.notify_all()

    def allow_one(self, txid: int) -> None:
        """Let attempts of this txid be processed, whatever the marks say, until the marks are lowered."""
        with self.changed:
            self._alone.add(txid)
            self.changed.notify_all()

    def lower(self, txid: int) -> None:
        """Hold back everything after this txid."""
        with self.changed:
            self.process_up_to = min(self.process_up_to, txid)
            self.commit_up_to = min(self.commit_up_to, txid)
            self._alone = {one for one in self._alone if one <= txid}

    def held_back(self) -> list[TransactionAttempt]:
        """Return the attempts that wait for a permission."""
        with self.changed:
            return [attempt for attempt, lane in self._held_back.items() if not self._may_go(attempt, lane)]

    def fail(self, attempt: TransactionAttempt, error: BaseException) -> bool:
        """Fail an attempt that is held back. Returns False when it is not held back."""
        with self.changed:
            if attempt not in self._held_back:
                return False
            self._failing[attempt] = error
            self.changed.notify_all()
            return True

    def drop(self, attempt: TransactionAttempt) -> None:
        """Stop holding an attempt back, because it is replayed."""
        with self.changed:
            self._dropped.add(attempt)
            self.changed.notify_all()

    def let_all_go(self) -> None:
        """Stop standing still, and end attempts that are held back with a CrashError: the driver is gone."""
        with self.changed:
            self._closed = True
            self._stands_still = False
            self.changed.notify_all()

    def wake(self) -> None:
        """Look at the clock again, because the test has moved it."""
        with self.changed:
            self.changed.notify_all()

    def run_until_quiet(self, ended: Callable[[], bool], deadline: float) -> bool:
        """Let the loop go on until it has nothing more to do or has ended. Returns False when the deadline,
        by `time.monotonic`, comes first."""
        with self.changed:
            self._stands_still = False
            self.changed.notify_all()
            try:
                timeout = max(0.0, deadline - time.monotonic())
                return self.changed.wait_for(lambda: ended() or self.is_quiet(), timeout)
            finally:
                self._stands_still = not self._closed

    def is_quiet(self) -> bool:
        """Whether everything is handled except what is held back. Call it under `changed`."""
        return self._blocks and not self.is_ready() and self._unanswered == len(self.held_back())

    def skip_waits(self) -> int:
        """Make every timer due except the deadlines. Returns how many."""
        with self.changed:
            now = self.clock()
            waits = [timer for timer in self.timers if not timer.is_deadline]
            # Timers due at the same time fire in the order of their numbers, so keep the order they had.
            renumbered = [
                timer if timer.is_deadline else timer._replace(due=now, number=next(self._timer_numbers))
                for timer in sorted(self.timers)
            ]
            heapq.heapify(renumbered)
            self.timers = renumbered
            self.changed.notify_all()
            return len(waits)

    # --- for the event loop -------------------------------------------------------------------------

    def submit(
        self,
        lane: Lane,
        work: Callable[[], T],
        done: Callable[[T], None] | None = None,
        failed: Callable[[BaseException], None] | None = None,
        *,
        attempt: TransactionAttempt | None = None,
    ) -> None:
        def permitted() -> T:
            if lane is Lane.JOB and attempt is not None:
                self._pass(attempt, lane)
            if lane is Lane.COMMIT:
                self._commits = attempt
            return work()

        if lane is Lane.CANCEL:
            super().submit(lane, work, done, failed)
            return
        with self.changed:
            self._unanswered += 1
        super().submit(lane, permitted, self._counted(done), self._counted(failed))

    def begin_commit(self) -> None:
        """Hold back the commit that begins. Called from the commit's work, which cleans up if this raises."""
        if self._commits is not None:
            self._pass(self._commits, Lane.COMMIT)

    def next(self) -> Event:
        with self.changed:
            while self._stands_still or not self.is_ready():
                self._blocks = True
                self.changed.notify_all()
                self.changed.wait(None if self._stands_still else self._seconds_to_timer())
            self._blocks = False
            return self._pop()

    def shut_down(self) -> None:
        self.let_all_go()
        super().shut_down()

    def _counted(self, handle: Callable[[Any], None] | None) -> Callable[[Any], None]:
        def handled(answer: Any) -> None:
            with self.changed:
                self._unanswered -= 1
            if handle is not None:
                handle(answer)

        return handled

    def _may_go(self, attempt: TransactionAttempt, lane: Lane) -> bool:
        if attempt in self._dropped or attempt in self._failing or self._closed:
            return True
        if lane is Lane.COMMIT:
            return attempt.txid <= self.commit_up_to
        return attempt.txid <= self.process_up_to or attempt.txid in self._alone

    def _pass(self, attempt: TransactionAttempt, lane: Lane) -> None:
        """Block until an attempt may be processed, or until its commit may begin."""
        with self.changed:
            self._held_back[attempt] = lane
            self.changed.notify_all()
            try:
                self.changed.wait_for(lambda: self._may_go(attempt, lane))
            finally:
                del self._held_back[attempt]
            if self._closed:
                raise CrashError(f"{attempt}: the driver is gone")
            if attempt in self._failing:
                raise self._failing.pop(attempt)
            if attempt in self._dropped:
                raise BatchFailedError(f"{attempt} was cancelled while the test held it back")
