"""The runner behind a gate: an attempt is processed, and committed by bolts, when the test lets it.

Invariant: an attempt that waits at the gate is let go by a permission, by a failure, by its cancellation or
by the end of the driver, so no thread waits there for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from txstream.api.errors import BatchFailedError
from txstream.engine.batch.runner import BatchResult, BatchRunner
from txstream.engine.commit.shares import StateWrite
from txstream.engine.driver.events import EventQueue
from txstream.metas import BatchMetas
from txstream.spouts.markers import CrashError
from txstream.testing.attempts import AttemptState, History
from txstream.testing.inprocess import InProcessRunner
from txstream.transaction import TransactionAttempt


class GatedRunner:
    """A `BatchRunner` around another. `process_up_to` and `commit_up_to` are the greatest txids that may be
    processed and committed; what each attempt answered goes into the history. `beginning_commit` is called
    when an attempt's commit is let through, and may raise."""

    def __init__(
        self,
        inner: BatchRunner,
        history: History,
        beginning_commit: Callable[[TransactionAttempt], None],
    ) -> None:
        self.process_up_to: float = 0
        self.commit_up_to: float = 0
        self._alone: set[int] = set()
        self._inner = inner
        self._history = history
        self._beginning_commit = beginning_commit
        self._changed = threading.Condition()
        self._waiting: dict[TransactionAttempt, AttemptState] = {}
        self._cancelled: set[TransactionAttempt] = set()
        self._failing: dict[TransactionAttempt, BaseException] = {}
        self._closed = False

    def attach(self, events: EventQueue) -> None:
        """Watch and be watched under the loop's own lock."""
        self._changed = events.changed

    @property
    def slots(self) -> Mapping[str, int]:
        return self._inner.slots

    @slots.setter
    def slots(self, slots: Mapping[str, int]) -> None:
        self._inner.slots = slots

    def allow(self, *, process: float, commit: float) -> None:
        """Set both marks."""
        with self._changed:
            self.process_up_to, self.commit_up_to = process, commit
            self._changed.notify_all()

    def allow_one(self, txid: int) -> None:
        """Let attempts of this txid be processed, whatever the marks say, until the marks are lowered."""
        with self._changed:
            self._alone.add(txid)
            self._changed.notify_all()

    def lower(self, txid: int) -> None:
        """Let nothing after this txid go on."""
        with self._changed:
            self.process_up_to = min(self.process_up_to, txid)
            self.commit_up_to = min(self.commit_up_to, txid)
            self._alone = {one for one in self._alone if one <= txid}

    def held_back(self) -> list[tuple[TransactionAttempt, AttemptState]]:
        """Who waits, and in which phase."""
        with self._changed:
            return [waiting for waiting in self._waiting.items() if not self._may_go(*waiting)]

    def fail(self, attempt: TransactionAttempt, error: BaseException) -> bool:
        """Have an attempt that waits here fail; False when it does not wait."""
        with self._changed:
            if attempt not in self._waiting:
                return False
            self._failing[attempt] = error
            self._changed.notify_all()
            return True

    def still_running(self) -> list[str]:
        """In which calls of bolts attempts are now, where batches run in this process."""
        return self._inner.still_running() if isinstance(self._inner, InProcessRunner) else []

    # --- for the event loop -------------------------------------------------------------------------

    def run(self, attempt: TransactionAttempt, metas: BatchMetas[Any]) -> BatchResult:
        """Process an attempt once it is let through."""
        self._pass(attempt, AttemptState.PROCESSING)
        result = self._inner.run(attempt, metas)
        found = self._history.find(attempt)
        if found is not None:
            found.processed = result
        return result

    def enter_commit(self, attempt: TransactionAttempt) -> None:
        """Let an attempt's commit begin, once it is let through."""
        self._pass(attempt, AttemptState.COMMITTING)
        self._beginning_commit(attempt)

    def commit(
        self,
        attempt: TransactionAttempt,
        processed: BatchResult,
        committed: TransactionAttempt | None = None,
    ) -> BatchResult:
        """Run the bolts of an attempt's commit phase."""
        result = self._inner.commit(attempt, processed, committed)
        found = self._history.find(attempt)
        if found is not None:
            found.finished = result
        return result

    def write(self, attempt: TransactionAttempt, writes: Sequence[StateWrite]) -> Sequence[int]:
        return self._inner.write(attempt, writes)

    def release(self, processed: BatchResult) -> None:
        self._inner.release(processed)

    def cancel(self, attempt: TransactionAttempt) -> None:
        """Let it go, if it waits, and ask it to stop, if it runs."""
        with self._changed:
            self._cancelled.add(attempt)
            self._changed.notify_all()
        self._inner.cancel(attempt)

    def close(self) -> None:
        """End the waits of all and close the runner."""
        self.let_all_go()
        self._inner.close()

    def let_all_go(self) -> None:
        """The driver is gone: who waits ends with a CrashError."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _may_go(self, attempt: TransactionAttempt, phase: AttemptState) -> bool:
        if attempt in self._cancelled or attempt in self._failing or self._closed:
            return True
        if phase is AttemptState.COMMITTING:
            return attempt.txid <= self.commit_up_to
        return attempt.txid <= self.process_up_to or attempt.txid in self._alone

    def _pass(self, attempt: TransactionAttempt, phase: AttemptState) -> None:
        with self._changed:
            self._waiting[attempt] = phase
            self._changed.notify_all()
            try:
                self._changed.wait_for(lambda: self._may_go(attempt, phase))
            finally:
                del self._waiting[attempt]
            if self._closed:
                raise CrashError(f"{attempt}: the driver is gone")
            if attempt in self._failing:
                raise self._failing.pop(attempt)
            if attempt in self._cancelled:
                raise BatchFailedError(f"{attempt} was cancelled while the test held it back")
