"""The commit phase as the event loop has it carried out: begin, bolts, the states' transactions, deadlines.

Invariants. One thread commits, so commits are carried out in the order in which they were asked for. Of an
attempt that was given up the driver writes nothing once its successor's commit begins. Bolts, and what
executors write, have `timeout_seconds`; the runner does not wait for them when they are cancelled. Waiting
for a database has no end. An attempt that a deadline fails in the very moment in which its last transaction
commits does no harm: the next one undoes and redoes what it finds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from txstream.api.errors import (
    BatchFailedError,
    BatchTimeoutError,
    BoltError,
    ServiceUnavailableError,
    StaleAttemptError,
)
from txstream.coordinator import EmitCommit
from txstream.engine.batch.runner import BatchResult, BatchRunner
from txstream.engine.commit.committer import Committer, ProcessedBatch
from txstream.engine.commit.shares import StateWrite
from txstream.engine.driver.events import EventQueue
from txstream.engine.fault_points import Point
from txstream.engine.report import BatchTiming
from txstream.metas import MetaCodec
from txstream.transaction import TransactionAttempt, Txid

# What fails an attempt's transactions, but not the run: outages, and tasks that died. Data that cannot be
# stored could not be stored the next time either.
_COMMITS_AGAIN = (BatchFailedError, ServiceUnavailableError, BoltError)


@dataclass
class CommitPhase:
    """The commits of the event loop; its methods are called on the loop's thread.

    `enter` and `reach` are called on the thread that commits, before anything of a commit and at each of its
    points. `release` drops what was kept of a processed batch, `set_deadline` sets a timer, `timing` has the
    times of a txid. What came of an attempt is told to `acked`, `failed` or `stale` (a fence was newer);
    `fail_run` ends the run. `is_active` says whether an attempt still counts.
    """

    committer: Committer
    runner: BatchRunner
    codec: MetaCodec[Any]
    events: EventQueue
    timeout_seconds: float
    enter: Callable[[TransactionAttempt], None]
    reach: Callable[[Point, Txid], None]
    release: Callable[[BatchResult], None]
    set_deadline: Callable[[float, Callable[[], None]], None]
    timing: Callable[[Txid], BatchTiming]
    acked: Callable[[TransactionAttempt, ProcessedBatch, BatchResult], None]
    failed: Callable[[TransactionAttempt, BaseException], None]
    stale: Callable[[TransactionAttempt, StaleAttemptError], None]
    fail_run: Callable[[BaseException], None]
    is_active: Callable[[TransactionAttempt], bool]

    def __post_init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "txstream-commit")
        self._past_bolts: set[TransactionAttempt] = set()
        # Added and removed by the thread that commits.
        self._writing: set[TransactionAttempt] = set()

    def shut_down(self) -> None:
        """Wait for the step that is being done; do no other."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def commit(
        self, emit: EmitCommit[Any], batch: ProcessedBatch, committed: TransactionAttempt | None
    ) -> None:
        """The bolts of the commit phase first, then the states' transactions; where those bolts write states,
        their databases' commit begins before. `committed` is the attempt that was committed last."""
        attempt = emit.attempt
        batch = replace(batch, timings=self.timing(attempt.txid).before_commit())
        if not self.committer.begins_before_bolts:
            self._run_bolts(emit, batch, committed, frozenset())
            return

        def work() -> frozenset[int]:
            try:
                self.enter(attempt)
                metas = self.codec.encode(emit.metas)
                return self.committer.begin(attempt, metas, batch, self._reached(attempt))
            except BaseException:
                self.release(batch.result)
                raise

        def done(begun: frozenset[int]) -> None:
            if self.is_active(attempt):
                self._run_bolts(emit, batch, committed, begun)
            else:
                self._pool.submit(self.release, batch.result)

        self.events.submit(self._pool, work, done, lambda error: self._failed(attempt, error))

    def _run_bolts(
        self,
        emit: EmitCommit[Any],
        batch: ProcessedBatch,
        committed: TransactionAttempt | None,
        begun: frozenset[int],
    ) -> None:
        attempt = emit.attempt
        started = time.perf_counter()

        def work() -> BatchResult:
            try:
                if not self.committer.begins_before_bolts:
                    self.enter(attempt)
                return self.runner.commit(attempt, batch.result, committed)
            finally:
                self.release(batch.result)

        def done(finished: BatchResult) -> None:
            if self.is_active(attempt):
                seconds = time.perf_counter() - started
                self.timing(attempt.txid).commit_bolts_seconds = batch.timings["commit_bolts"] = seconds
                self._past_bolts = {attempt}
                self._commit_states(emit, batch, finished, begun)

        self._fail_when_overdue(attempt, "through its commit phase", lambda: attempt not in self._past_bolts)
        self.events.submit(self._pool, work, done, lambda error: self._failed(attempt, error))

    def _commit_states(
        self, emit: EmitCommit[Any], batch: ProcessedBatch, finished: BatchResult, begun: frozenset[int]
    ) -> None:
        attempt = emit.attempt
        started = time.perf_counter()
        timing = self.timing(attempt.txid)

        def work() -> None:
            deltas = self.committer.merge(batch.result, finished)
            timing.merge_seconds = batch.timings["merge"] = time.perf_counter() - started
            self.committer.commit(
                attempt,
                self.codec.encode(emit.metas),
                batch,
                deltas,
                self._reached(attempt),
                write=self._write_shares,
                begun=begun,
                written=finished.written_by,
            )
            self.reach(Point.AFTER_COMMIT, attempt.txid)

        def done(_: None) -> None:
            timing.commit_seconds = time.perf_counter() - started - timing.merge_seconds
            self.acked(attempt, batch, finished)

        self.events.submit(self._pool, work, done, lambda error: self._failed(attempt, error))

    def _reached(self, attempt: TransactionAttempt) -> Callable[[str], None]:
        return lambda point: self.reach(Point(point), attempt.txid)

    def _write_shares(self, attempt: TransactionAttempt, writes: Sequence[StateWrite]) -> Sequence[int]:
        """On the thread that commits: tasks write, and a frozen one must not hold everything up for ever."""

        def set_deadline() -> None:
            self._fail_when_overdue(attempt, "written by executors", lambda: attempt in self._writing)

        self._writing.add(attempt)
        self.events.post(set_deadline)
        try:
            return self.runner.write(attempt, writes)
        finally:
            self._writing.discard(attempt)

    def _fail_when_overdue(
        self, attempt: TransactionAttempt, done: str, is_overdue: Callable[[], bool]
    ) -> None:
        def look() -> None:
            if self.is_active(attempt) and is_overdue():
                error = BatchTimeoutError(
                    f"{attempt} was not {done} within {self.timeout_seconds:g} s (message_timeout_seconds)"
                )
                self.failed(attempt, error)

        self.set_deadline(self.timeout_seconds, look)

    def _failed(self, attempt: TransactionAttempt, error: BaseException) -> None:
        if isinstance(error, StaleAttemptError):
            self.stale(attempt, error)
        elif attempt in self._past_bolts and not isinstance(error, _COMMITS_AGAIN):
            self.fail_run(error)
        else:
            self.failed(attempt, error)
