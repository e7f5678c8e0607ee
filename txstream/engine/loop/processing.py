"""Processes batches: an attempt's job, when it begins, and the merged deltas that it leaves for the commit.

Invariants. What an attempt left is kept until its commit takes it or it is dropped, never both. A stored plan
that was recovered or has failed before begins only when all its partitions can be read.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from typing import Any

from txstream.batch_metas import MetaCodec
from txstream.coordinator import EmitBatch, Phase
from txstream.engine.batch.runner_contract import BatchResult, BatchRunner
from txstream.engine.commit.committer import Committer, Prepared, ProcessedBatch
from txstream.engine.loop.open_batches import Batches, Watcher
from txstream.engine.loop.planning import Planning
from txstream.engine.loop.unreadable_partitions import UnreadablePartitions
from txstream.engine.loop.workers import Lane
from txstream.report import Statistics
from txstream.transaction import TransactionAttempt, Txid

log = logging.getLogger(__name__)


class Processing:
    """The jobs of the event loop. Methods are called on the loop's thread, except `cancel` and `release`."""

    def __init__(
        self,
        batches: Batches,
        runner: BatchRunner,
        committer: Committer,
        planning: Planning,
        unreadable: UnreadablePartitions,
        watcher: Watcher,
        statistics: Statistics,
        codec: MetaCodec[Any],
    ) -> None:
        self._codec = codec
        self._statistics = statistics
        self._batches = batches
        self._runner = runner
        self._committer = committer
        self._planning = planning
        self._unreadable = unreadable
        self._watcher = watcher
        self._processed: dict[TransactionAttempt, ProcessedBatch] = {}
        self._emitted: set[Txid] = set()

    def emit(self, emit: EmitBatch[Any]) -> None:
        """Process an attempt, after the wait that its txid's failures call for."""
        txid = emit.attempt.txid
        self._statistics.replayed_attempts += txid in self._emitted
        self._emitted.add(txid)

        def start() -> None:
            if emit.stored and txid in self._unreadable.recheck:
                self._unreadable.wait_for(emit, self._start_job)
            else:
                self._start_job(emit)

        failures = self._batches.failures.of(txid)
        if failures is not None and failures.delay_seconds:
            self._batches.workers.after(failures.delay_seconds, start)
        else:
            start()

    def take(self, attempt: TransactionAttempt) -> ProcessedBatch:
        """Return what a processed attempt left, for its commit to take."""
        return self._processed.pop(attempt)

    def drop(self, attempt: TransactionAttempt) -> None:
        """Have the job of a dropped attempt stopped, and drop what it left: its batch is replayed."""
        self._batches.workers.submit(Lane.CANCEL, lambda: self.cancel(attempt))
        dropped = self._processed.pop(attempt, None)
        if dropped is not None:
            self._release_soon(dropped.result)

    def committed(self, txid: Txid) -> None:
        """Forget a txid: nothing of it will be asked for again."""
        self._emitted.discard(txid)

    def cancel(self, attempt: TransactionAttempt) -> None:
        """Ask the runner to stop an attempt."""
        try:
            self._runner.cancel(attempt)
        except Exception as error:  # noqa: BLE001 - only a wish; a lost cluster must not hide the cause
            log.info("%s could not be cancelled: %s", attempt, error)

    def release(self, result: BatchResult) -> None:
        """Drop what the runner keeps of a batch."""
        try:
            self._runner.release(result)
        except Exception as error:  # noqa: BLE001 - the batch is not affected; what is kept ends with Spark
            log.info("what was kept of a batch could not be dropped: %s", error)

    def _release_soon(self, result: BatchResult) -> None:
        self._batches.workers.submit(Lane.CANCEL, lambda: self.release(result))

    def _start_job(self, emit: EmitBatch[Any]) -> None:
        batches, attempt = self._batches, emit.attempt
        if not batches.is_active(attempt):
            return

        def work() -> tuple[BatchResult, Prepared, float]:
            result = self._runner.run(attempt, emit.metas)
            started = time.perf_counter()
            try:
                deltas = self._committer.prepare(result)
            except BaseException:
                self.release(result)
                raise
            return result, deltas, time.perf_counter() - started

        def done(processed: tuple[BatchResult, Prepared, float]) -> None:
            result, deltas, merge_seconds = processed
            batches.failures.time.ended()
            self._watcher.processed(attempt, result)
            if batches.is_active(attempt):
                batches.timing(attempt.txid).merge_seconds = merge_seconds
                self._keep(emit, result, deltas)
            else:
                self._release_soon(result)
            batches.carry_out(batches.coordinator.ack(attempt))
            self._planning.job_ended()

        def is_due() -> bool:
            return batches.coordinator.active[attempt.txid].phase is Phase.PROCESSING

        batches.failures.when_overdue(attempt, "processed", is_due)
        batches.workers.submit(
            Lane.JOB,
            work,
            done,
            lambda error: batches.failures.failed(attempt, error),
            attempt=attempt,
        )

    def _keep(self, emit: EmitBatch[Any], result: BatchResult, deltas: Prepared) -> None:
        attempt = emit.attempt
        timing = self._batches.timing(attempt.txid)
        timing.records, timing.width = result.records, result.width
        timing.job_seconds = result.job_seconds
        timing.read_seconds = result.read_seconds
        timing.process_seconds = result.process_seconds
        failures = self._batches.failures.of(attempt.txid)
        self._processed[attempt] = ProcessedBatch(
            result,
            deltas,
            planned_at=self._planning.planned_at(attempt.txid),
            processed_at=datetime.now(UTC),
            error=failures.last_error if failures is not None else None,
            attempts=failures.for_ledger(emit.metas, self._codec.encode_meta) if failures is not None else (),
        )
