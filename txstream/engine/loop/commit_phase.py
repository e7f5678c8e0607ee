"""The commit phase of the event loop: begin, bolts, the states' transactions, deadlines.

Invariants. One thread commits, so commits are carried out in the order in which they were asked for. Once the
commit of an attempt's successor begins, the driver writes nothing more for the attempt that was given up.
Bolts and executors' writes are limited by `message_timeout_seconds`, and the runner does not wait for
cancelled ones. Waiting for a database has no limit. A deadline may fail an attempt at the very moment when
its last transaction commits. That does no harm: the next attempt undoes and redoes what it finds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from txstream.core.batch_metas import MetaCodec
from txstream.core.coordinator import EmitCommit
from txstream.core.errors import StateValueError
from txstream.core.fault_points import Point
from txstream.core.transaction import TransactionAttempt, Txid
from txstream.engine.batch.runner_contract import NOTHING, BatchResult, edges_of
from txstream.engine.batch.shares import StateWrite
from txstream.engine.commit.committer import Committing, Prepared, ProcessedBatch
from txstream.engine.loop.open_batches import Batches
from txstream.engine.loop.parts import LoopParts
from txstream.engine.loop.report import Statistics
from txstream.engine.loop.workers import Lane


class CommitPhase:
    """Carries out the event loop's commits. Call `commit` on the loop's thread. `release` drops what the
    runner keeps of a processed batch for the bolts of this phase."""

    def __init__(
        self,
        batches: Batches,
        parts: LoopParts,
        codec: MetaCodec[Any],
        statistics: Statistics,
        release: Callable[[BatchResult], None],
    ) -> None:
        self._batches = batches
        self._committer = parts.committer
        self._runner = parts.runner
        self._codec = codec
        self._watcher = parts.watcher
        self._statistics = statistics
        self._release = release
        self._has_bolts = any(bolt.runs_in_commit for bolt in parts.topology.bolts)
        self._past_bolts: set[TransactionAttempt] = set()
        # Added and removed by the thread that commits.
        self._writing: set[TransactionAttempt] = set()

    def commit(
        self, emit: EmitCommit[Any], batch: ProcessedBatch, committed: TransactionAttempt | None
    ) -> None:
        """Run the bolts of the commit phase, if there are any, then the states' transactions. If those bolts
        write states, the commit of their databases begins before them. `committed` is the attempt that was
        committed last."""
        attempt, batches = emit.attempt, self._batches
        self._watcher.committing(attempt)
        timing = batches.timing(attempt.txid)
        one = Committing(
            attempt,
            self._codec.encode(emit.metas),
            replace(
                batch,
                timings=timing.before_commit(),
                timings_before=self._statistics.in_commit_of(Txid(attempt.txid - 1)),
                lag_records=timing.lag_records,
            ),
            lambda point: batches.reach(point, attempt.txid),
            batches.coordinator.committed_metas().horizons,
        )
        if not self._has_bolts:
            self._past_bolts = {attempt}
            self._commit_states(one, NOTHING, frozenset())
        elif self._committer.begins_before_bolts:
            self._begin(one, committed)
        else:
            self._run_bolts(one, committed)

    def _begin(self, one: Committing, committed: TransactionAttempt | None) -> None:
        def work() -> frozenset[int]:
            try:
                one.reached(Point.BEFORE_COMMIT)
                return self._committer.begin(one)
            except BaseException:
                self._release(one.batch.result)
                raise

        def done(begun: frozenset[int]) -> None:
            if self._batches.is_active(one.attempt):
                self._run_bolts(one, committed, begun)
            else:
                self._batches.workers.submit(Lane.COMMIT, lambda: self._release(one.batch.result))

        self._submit(one.attempt, work, done)

    def _run_bolts(
        self, one: Committing, committed: TransactionAttempt | None, begun: frozenset[int] | None = None
    ) -> None:
        attempt, batch = one.attempt, one.batch
        started = time.perf_counter()

        def work() -> BatchResult:
            try:
                if begun is None:
                    one.reached(Point.BEFORE_COMMIT)
                return self._runner.commit(attempt, batch.result, committed)
            finally:
                self._release(batch.result)

        def done(finished: BatchResult) -> None:
            self._watcher.bolts_committed(attempt, finished)
            if self._batches.is_active(attempt):
                seconds = batch.timings["commit_bolts"] = time.perf_counter() - started
                self._batches.timing(attempt.txid).commit_bolts_seconds = seconds
                self._past_bolts = {attempt}
                self._commit_states(one, finished, begun or frozenset())

        self._batches.failures.when_overdue(
            attempt, "through its commit phase", lambda: attempt not in self._past_bolts
        )
        self._submit(attempt, work, done)

    def _commit_states(self, one: Committing, finished: BatchResult, begun: frozenset[int]) -> None:
        attempt, batch = one.attempt, one.batch
        started = time.perf_counter()
        timing = self._batches.timing(attempt.txid)

        def work() -> tuple[Prepared, float]:
            deltas, merged_seconds = batch.deltas, 0.0
            if self._has_bolts:
                deltas = {**deltas, **self._committer.prepare(finished, in_commit=True)}
                merged_seconds = time.perf_counter() - started
                timing.merge_seconds += merged_seconds
                batch.timings["merge"] = timing.merge_seconds
            else:
                one.reached(Point.BEFORE_COMMIT)
            try:
                self._committer.commit(
                    one, deltas, write=self._write_shares, begun=begun, written=finished.written_by
                )
            except StateValueError as error:
                if self._has_bolts:  # which may have effects that nobody knows
                    vars(error)["wrote_nothing"] = False
                raise
            one.reached(Point.AFTER_COMMIT)
            return deltas, merged_seconds

        def done(worked: tuple[Prepared, float]) -> None:
            deltas, merged_seconds = worked
            timing.commit_seconds = time.perf_counter() - started - merged_seconds
            if not self._has_bolts:
                self._watcher.bolts_committed(attempt, finished)
            timing.dead_letters = len(batch.letters)
            self._watcher.wrote(attempt, deltas, batch.letters)
            places = [*batch.result.places, *finished.places]
            edges = edges_of(batch.result, finished)
            self._statistics.saw(attempt, places, edges, by_residents=batch.result.by_residents)
            self._batches.carry_out(self._batches.coordinator.ack(attempt))

        self._submit(attempt, work, done)

    def _write_shares(self, attempt: TransactionAttempt, writes: Sequence[StateWrite]) -> Sequence[int]:
        """Have tasks write shares, on the thread that commits. A deadline ends it, because a frozen task must
        not hold everything up for ever."""

        def set_deadline() -> None:
            self._batches.failures.when_overdue(
                attempt, "written by executors", lambda: attempt in self._writing
            )

        self._writing.add(attempt)
        self._batches.workers.post(set_deadline)
        try:
            return self._runner.write(attempt, writes)
        finally:
            self._writing.discard(attempt)

    def _submit(
        self, attempt: TransactionAttempt, work: Callable[[], Any], done: Callable[[Any], None]
    ) -> None:
        def failed(error: BaseException) -> None:
            self._batches.failures.failed(attempt, error, is_writing=attempt in self._past_bolts)

        self._batches.workers.submit(Lane.COMMIT, work, done, failed, attempt=attempt)
