"""Processes batches: an attempt's job, when it begins, and the merged deltas that it leaves for the commit.

Invariants. What an attempt left is kept until its commit takes it or it is dropped, never both. A stored plan
that was recovered or has failed before begins only when all its partitions can be read.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from txstream.core.batch_metas import BatchMetas, MetaCodec
from txstream.core.coordinator import BatchPhase, EmitBatch
from txstream.core.dead_letters import DeadLetter
from txstream.core.failing_batch import SEARCHED
from txstream.core.readings import Reading
from txstream.core.transaction import TransactionAttempt, Txid
from txstream.core.wording import counted
from txstream.engine.batch.record_search import FailingRecord
from txstream.engine.batch.runner_contract import BatchResult
from txstream.engine.batch.sizing import planned_records
from txstream.engine.batch.sought import Sought, is_sought
from txstream.engine.commit.committer import Prepared, ProcessedBatch
from txstream.engine.letters.isolation import Found, Isolated, Isolation, found_at
from txstream.engine.letters.window import LetterWindow
from txstream.engine.loop.open_batches import Batches
from txstream.engine.loop.parts import LoopParts
from txstream.engine.loop.planning import Planning
from txstream.engine.loop.report import Statistics
from txstream.engine.loop.unreadable_partitions import UnreadablePartitions
from txstream.engine.loop.workers import Lane

log = logging.getLogger(__name__)

_LOOKED_AT = 0.05  # of the message timeout: how often it is looked at whether a trial hangs
_TOLD_SECONDS = 1.0
_MOST_FOUND = 10
"""By each Spark task that looks for the record at which a run has ended: when many fail, it is the code."""


class _Processed(NamedTuple):
    """What comes of a batch before its commit."""

    result: BatchResult
    deltas: Prepared
    merge_seconds: float


class Processing:
    """The jobs of the event loop. Methods are called on the loop's thread, except `cancel` and `release`."""

    def __init__(
        self,
        batches: Batches,
        parts: LoopParts,
        planning: Planning,
        unreadable: UnreadablePartitions,
        statistics: Statistics,
        codec: MetaCodec[Any],
    ) -> None:
        self._codec = codec
        self._waiting = parts.waiting
        self._statistics = statistics
        self._batches = batches
        self._runner = parts.runner
        self._committer = parts.committer
        self._planning = planning
        self._unreadable = unreadable
        self._watcher = parts.watcher
        self._processed: dict[TransactionAttempt, ProcessedBatch] = {}
        self._emitted: set[Txid] = set()
        self._letters = parts.letters
        self._retries = parts.retries
        self._read_before = parts.read_before
        # What was found to fail by itself in open batches.
        self._found: dict[Txid, Sequence[Found]] = {}
        self._isolation: Isolation[_Processed] | None = None
        self._window: LetterWindow | None = None
        topology = parts.topology
        if topology.dead_letters is not None:
            self._window = LetterWindow(topology.id, topology.dead_letters, parts.retries.first_store)
            self._isolation = Isolation(
                topology.dead_letters,
                lambda attempt, metas: self._process(attempt, metas, is_checked=True),
                lambda processed: self.release(processed.result),
                partial(parts.runner.find, seconds=topology.message_timeout_seconds / 3),
            )

    def emit(self, emit: EmitBatch[Any]) -> None:
        """Process an attempt, after the wait that its txid's failures call for."""
        txid = emit.attempt.txid
        self._statistics.replayed_attempts += txid in self._emitted
        self._emitted.add(txid)

        failures = self._batches.failures.of(txid)

        def start() -> None:
            is_placed = emit.stored and txid in self._unreadable.recheck
            if is_placed or (failures is not None and failures.by_service):
                self._unreadable.wait_for(emit, self._start_job)
            else:
                self._start_job(emit)

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
        self._read_before.committed(txid)
        self._found.pop(txid, None)
        if self._window is not None:
            self._window.committed(txid)

    def cancel(self, attempt: TransactionAttempt) -> None:
        """Ask the runner to stop an attempt."""
        _wish(lambda: self._runner.cancel(attempt), f"{attempt} could not be cancelled")

    def release(self, result: BatchResult) -> None:
        """Drop what the runner keeps of a batch."""
        _wish(lambda: self._runner.release(result), "what was kept of a batch could not be dropped")

    def _release_soon(self, result: BatchResult) -> None:
        self._batches.workers.submit(Lane.CANCEL, lambda: self.release(result))

    def _start_job(self, emit: EmitBatch[Any]) -> None:
        batches, attempt = self._batches, emit.attempt
        if not batches.is_active(attempt):
            return

        isolates, known = batches.failures.isolates(attempt), self._found.get(attempt.txid, ())
        searches = isolates or batches.failures.searches_at_once(attempt)
        hangs, spare = isolates and batches.failures.hangs(attempt), 0
        if self._isolation is not None and not searches and batches.coordinator.may_leave_out(attempt):
            spare = self._isolation.spare(emit.metas)

        def is_wanted() -> bool:
            return batches.is_active(attempt)

        may_be_committed = not batches.coordinator.may_leave_out(attempt)
        is_adopted = emit.stored and not self._planning.has_planned(attempt.txid)

        def check(done: Isolated[_Processed], letters: Sequence[DeadLetter]) -> Reading:
            reading, before, now = done.processed.result.reading, emit.metas, done.metas
            if not searches:  # tasks have read what they have left out
                new = {(one.record.partition, one.record.offset) for one in done.found}
                left_out = zip(now.excluded, letters, strict=True) if letters else ()
                reading = reading.without(
                    (one.partition, one.offset, letter.key, letter.value)
                    for one, letter in left_out
                    if (one.partition, one.offset) in new
                )
            planned = planned_records(before) if is_adopted and not before.excluded else None
            return self._read_before.check(
                attempt, reading, may_be_committed=may_be_committed, planned=planned
            )

        def work() -> tuple[Isolated[_Processed], Sequence[DeadLetter], Reading, float]:
            began, found, letters = time.perf_counter(), known, list[DeadLetter]()
            if emit.metas.excluded and self._isolation is not None:
                found = self._isolation.tell_again(attempt, emit.metas, known, is_wanted)
            if searches and self._isolation is not None:
                done = self._isolation.run(attempt, emit.metas, is_wanted, hangs=hangs)
                kept = done.processed.result.job_seconds + done.processed.merge_seconds
            else:
                started = time.perf_counter()
                done = self._without_left_out(attempt, emit.metas, spare)
                kept = time.perf_counter() - started
            try:
                if self._window is not None:
                    self._window.processed(attempt, done.metas, done.processed.result.records)
                if done.metas.excluded:
                    if any(not one.record.is_late for one in done.found) and self._window is not None:
                        self._window.require_few(attempt, done.metas)
                    self._planning.check_size(done.metas)
                    letters = self._letters(attempt, done.metas, [*found, *done.found])
                # Never less than nothing: the parts are measured by other clocks, which simulations set.
                spent = max(0.0, time.perf_counter() - began - kept)
                search_seconds = spent if searches or letters else 0.0
                return done, letters, check(done, letters), search_seconds
            except BaseException:
                self.release(done.processed.result)
                raise

        def done(worked: tuple[Isolated[_Processed], Sequence[DeadLetter], Reading, float]) -> None:
            isolated, letters, reading, search_seconds = worked
            result = isolated.processed.result
            self._tell_search(attempt)
            batches.failures.time.ended()
            self._watcher.processed(attempt, result)
            if batches.is_active(attempt):
                timing = batches.timing(attempt.txid)
                timing.merge_seconds = isolated.processed.merge_seconds
                timing.search_seconds = search_seconds
                self._keep(emit, isolated, letters, reading)
                if searches:
                    batches.failures.searched(has_found=bool(isolated.found))
                if isolated.metas != emit.metas:
                    self._leave_out(attempt, emit.metas, isolated)
            else:
                self._release_soon(result)
            batches.carry_out(batches.coordinator.ack(attempt))

        def watch(trials: int, since: float) -> None:
            isolation, time = self._isolation, batches.failures.time

            def is_due() -> bool:
                if batches.coordinator.active[attempt.txid].phase is not BatchPhase.PROCESSING:
                    return False
                begun = 0 if isolation is None else isolation.trials(attempt)
                now = batches.workers.now()
                if begun != trials:  # each trial has a time of its own
                    watch(begun, now)
                    return False
                if isolates and isolation is not None:
                    if now - since < time.of_trial(isolation.share(attempt)):
                        watch(begun, since)
                        return False
                    if isolation.end_trial(attempt):
                        end = partial(self._runner.end_trial, attempt)
                        what = f"a trial of {attempt} could not be ended"
                        batches.workers.submit(Lane.CANCEL, lambda: _wish(end, what))
                        watch(begun, now)
                        return False
                return True

            # Looked at often: a trial begins when it likes, and one that hangs costs no more than its time.
            after = time.of_trial(_LOOKED_AT) if isolates else None
            batches.failures.when_overdue(attempt, "processed", is_due, after)

        def failed(error: BaseException) -> None:
            self._tell_search(attempt)
            batches.failures.failed(attempt, error)

        watch(0, batches.workers.now())
        batches.workers.submit(Lane.JOB, work, done, failed, attempt=attempt)
        if searches:
            batches.workers.after(_TOLD_SECONDS, lambda: self._tell_search(attempt))

    def _tell_search(self, attempt: TransactionAttempt) -> None:
        """Show what an attempt that searches looks through, every second until it has ended."""
        trying = None if self._isolation is None else self._isolation.trying.get(attempt)
        if trying is None or not self._batches.is_active(attempt):
            self._waiting.drop(str(attempt))
            return
        self._waiting.begin(str(attempt), f"{SEARCHED}{attempt.txid}", attempt, trying)
        self._batches.workers.after(_TOLD_SECONDS, lambda: self._tell_search(attempt))

    def rehearse(self, attempt: TransactionAttempt, metas: BatchMetas[Any], *, in_stores: bool) -> None:
        """Do to a batch what comes before its commit and, `in_stores`, the commit too; nothing of it remains.
        Raises as an attempt fails."""
        processed = self._process(attempt, metas, is_checked=True, is_rehearsed=in_stores)
        self.release(processed.result)

    def find(
        self,
        attempt: TransactionAttempt,
        metas: BatchMetas[Any],
        seconds: float,
        sought: Sought | None = None,
    ) -> Sequence[FailingRecord]:
        """Return some records of a batch that by themselves fail, or make the tuple that is sought for the
        commit phase, as far as workers can tell."""
        most = _MOST_FOUND if sought is None else 1
        found = self._runner.find(attempt, [metas], most=most, seconds=seconds, sought=sought)
        return [one for one in found if sought is None or is_sought(one.error)]

    def _process(
        self,
        attempt: TransactionAttempt,
        metas: BatchMetas[Any],
        spare: int = 0,
        *,
        is_checked: bool = False,
        is_rehearsed: bool = False,
    ) -> _Processed:
        """Do to a batch what comes before its commit. `is_checked`: raise what a database would refuse; if
        one has refused the batch, or `is_rehearsed`, its commit is rehearsed."""
        self._runner.fetched = self._read_before.fetched
        result = self._runner.run(attempt, self._retries.loaded(metas, attempt.txid), spare)
        started = time.perf_counter()
        try:
            deltas = self._committer.prepare(result)
            self._committer.refuse_late(deltas, metas.horizons)
            if is_checked:
                self._committer.check(deltas)
                failures = self._batches.failures.of(attempt.txid)
                if is_rehearsed or (failures is not None and failures.in_commit):
                    self._committer.rehearse(attempt, deltas)
        except BaseException:
            self.release(result)
            raise
        return _Processed(result, deltas, time.perf_counter() - started)

    def _without_left_out(
        self, attempt: TransactionAttempt, metas: BatchMetas[Any], spare: int
    ) -> Isolated[_Processed]:
        """Process a batch. It leaves out the up to `spare` records that its Spark tasks have left out; raises
        the first one's error if there are more."""
        processed = self._process(attempt, metas, spare)
        left_out = processed.result.left_out
        if len(left_out) > spare:
            self.release(processed.result)
            raise left_out[0].failure.to_error(attempt)
        if not left_out:
            return Isolated(metas, processed, [])
        found = [
            found_at(one.partition, one.offset, one.failure.to_error(attempt))._replace(row=one.row)
            for one in left_out
        ]
        return Isolated(metas.leaving_out(one.record for one in found), processed, found)

    def _leave_out(
        self, attempt: TransactionAttempt, planned: BatchMetas[Any], isolated: Isolated[_Processed]
    ) -> None:
        """Have the batch commit without what was found, and say so: each reason once, no record's content."""
        self._found[attempt.txid] = [*self._found.get(attempt.txid, ()), *isolated.found]
        reasons = Counter((one.record.component, one.record.exception) for one in isolated.found)
        seconds = self._batches.timing(attempt.txid).search_seconds
        for (component, kind), number in sorted(reasons.items()):
            log.warning(
                "txid %d: %s: %s in component %r; search %.3f s",
                *(attempt.txid, counted(number, "dead letter"), kind, component, seconds),
                extra={"about": attempt},
            )
        again = set(planned.retried).difference(isolated.metas.retried)
        if again:
            self._retries.failed(again)
            again_words = counted(len(again), "dead letter")
            log.warning("txid %d: %s failed again", attempt.txid, again_words, extra={"about": attempt})
        coordinator = self._batches.coordinator
        self._batches.carry_out(coordinator.leave_out(attempt, isolated.metas))

    def _keep(
        self,
        emit: EmitBatch[Any],
        isolated: Isolated[_Processed],
        letters: Sequence[DeadLetter],
        reading: Reading,
    ) -> None:
        attempt, processed = emit.attempt, isolated.processed
        result = processed.result
        timing = self._batches.timing(attempt.txid)
        timing.records, timing.width = result.records, result.width
        timing.job_seconds = result.job_seconds
        timing.read_seconds = result.read_seconds
        timing.process_seconds = result.process_seconds
        failures = self._batches.failures.of(attempt.txid)
        self._processed[attempt] = ProcessedBatch(
            result,
            processed.deltas,
            planned_at=self._planning.planned_at(attempt.txid),
            processed_at=datetime.now(UTC),
            error=failures.last_error if failures is not None else None,
            attempts=failures.for_ledger(emit.metas, self._codec.encode_meta) if failures is not None else (),
            letters=letters,
            retried=isolated.metas.retried,
            reading=reading,
        )


def _wish(ask: Callable[[], object], failed: str) -> None:
    """Ask the runner for what no batch depends on: a lost cluster must not hide the cause."""
    try:
        ask()
    except Exception as error:  # noqa: BLE001 - said, and nothing else
        log.info("%s: %s", failed, error)
