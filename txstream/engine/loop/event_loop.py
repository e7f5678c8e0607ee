"""The event loop: it owns the coordinator, has its commands carried out, and feeds the answers back.

Invariants. Only the loop's thread changes the coordinator; the workers do everything that blocks, and their
answers come back as events. Plans, ZooKeeper writes and commits have one lane each, so each kind is done in
the order in which it was asked for. Once a commit is acked, nothing fails that attempt any more: `Advance` is
repeated until it is answered, or the run ends.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from txstream.core.batch_metas import BatchMetas, MetaCodec
from txstream.core.coordinator import (
    Advance,
    Amend,
    Cancel,
    Command,
    EmitBatch,
    EmitCommit,
    Persist,
    Plan,
    shown,
)
from txstream.core.fault_points import Point
from txstream.core.transaction import TransactionAttempt, Txid, about
from txstream.core.waiting import RunAbortedError
from txstream.engine.loop.commit_phase import CommitPhase
from txstream.engine.loop.failed_attempts import FailedAttempts
from txstream.engine.loop.operator_changes import Judgement
from txstream.engine.loop.operator_requests import Operators, question
from txstream.engine.loop.pace import Pace
from txstream.engine.loop.parts import LoopParts
from txstream.engine.loop.planning import Planning
from txstream.engine.loop.processing import Processing
from txstream.engine.loop.report import BatchTiming, Statistics
from txstream.engine.loop.unreadable_partitions import UnreadablePartitions
from txstream.engine.loop.workers import Event, Lane
from txstream.zookeeper import Request

log = logging.getLogger(__name__)


class EventLoop:
    """See the module. `run` returns when the run has ended well; otherwise it raises the `failure`."""

    def __init__(self, parts: LoopParts) -> None:
        topology, store, workers, coordinator = parts.topology, parts.store, parts.workers, parts.coordinator
        self.workers = workers
        self.coordinator = coordinator
        coordinator.story.clock = workers.now
        self.spout = parts.spout
        self.log_end = parts.log_end
        self.statistics = Statistics()
        self.caught_up = False
        self.failure: BaseException | None = None
        self._store = store
        self.waiting = parts.waiting
        self._until_txid = parts.until_txid
        self._listener = parts.listener
        self._watcher = parts.watcher
        self._runner = parts.runner
        self._retries = parts.retries
        self._ends = False
        self._timings: dict[Txid, BatchTiming] = {}
        # The attempt that committed the txid before the current one, if this loop saw it commit.
        self._committed: TransactionAttempt | None = None
        stored_plans = {txid for txid in coordinator.stored_txids() if txid >= coordinator.current}
        self._recovered = frozenset(stored_plans)
        self._operators = Operators(self, store, parts.runner, parts.waiting, parts.steering)
        self.unreadable = UnreadablePartitions(
            self, parts.spout, store, parts.waiting, stored_plans, self._operators.left_out
        )
        self.failures = FailedAttempts(
            self,
            topology,
            store,
            self.unreadable,
            self._operators,
            parts.watcher,
            self.statistics,
            parts.warm_up_seconds,
        )
        pace = Pace(
            topology.spout.max_batch_records,
            now=workers.now,
            max_batch_latency_seconds=topology.max_batch_latency_seconds,
            max_records_per_second=topology.max_records_per_second,
        )
        self._planning = Planning(self, parts, self.unreadable, pace)
        self._keepers = parts.committer.keepers
        self._retries, self._letters = parts.retries, parts.letters
        codec: MetaCodec[Any] = MetaCodec(topology.spout.source.meta_type)
        self.processing = Processing(self, parts, self._planning, self.unreadable, self.statistics, codec)
        self._commits = CommitPhase(self, parts, codec, self.statistics, self.processing.release)

    # --- for other threads --------------------------------------------------------------------------

    def stop(self) -> None:
        """End on a txid boundary: open nothing more, and finish what is open."""
        self.workers.post(self._drain)

    def abort(self, error: BaseException | None = None) -> None:
        """End now; what is open is left to the next run."""
        self.workers.post(lambda: self.fail_run(error or RunAbortedError("the run was aborted")))
        self.workers.interrupt()

    @property
    def ended_by(self) -> TransactionAttempt | None:
        """The attempt whose failure has ended the run, if one has."""
        return self.failures.ended_by

    @property
    def waiting_for(self) -> str | None:
        """The outages that the run waits for, as text for people; None if there are none."""
        return self.waiting.shown

    def open_batches(self) -> dict[Txid, str]:
        return {txid: str(batch.phase) for txid, batch in list(self.coordinator.active.items())}

    def reach(self, point: Point, txid: Txid) -> None:
        self._listener(point, txid, self.open_batches())

    # --- the loop -----------------------------------------------------------------------------------

    def run(self) -> None:
        """Carry out commands until the run ends. Raises the error that ended it, FencedError among others."""
        try:
            self.begin()
            while not self.is_over:
                self.handle(self.workers.next())
        except BaseException as error:
            self.fail_run(error)
            raise
        finally:
            self._shut_down()
        if self.failure is not None:
            raise self.failure

    def begin(self) -> None:
        """Carry out the first commands."""
        self._operators.begin()
        self.log_end.go_on(self)
        self.carry_out(self.coordinator.sync())
        self._look_for_the_end()

    def handle(self, event: Event) -> None:
        """Handle one event."""
        event()
        self._look_for_the_end()

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to handle."""
        return self.failure is not None or (self._ends and self._operators.has_finished)

    def _look_for_the_end(self) -> None:
        if not self._ends and self.failure is None and self._has_ended():
            self._ends = True
            self._drain()
            self._operators.finish()

    def _has_ended(self) -> bool:
        coordinator = self.coordinator
        if not coordinator.is_idle:
            return False
        # Judged by what is committed, never by a plan: a plan's replay may hold less.
        last = coordinator.committed_metas().positions()
        self.caught_up = self.log_end.is_reached(last)
        ended = self._until_txid is not None and coordinator.current > self._until_txid
        caught_up = self.caught_up and (coordinator.is_paused or not self._retries.are_asked)
        return caught_up or coordinator.is_draining or ended

    def _shut_down(self) -> None:
        self.workers.interrupt()
        self._operators.shut_down()
        for batch in self.coordinator.active.values():
            self.processing.cancel(batch.attempt)
        self.workers.shut_down()
        self._letters.close()

    def fail_run(self, error: BaseException) -> None:
        self.failure = self.failure or error

    def _drain(self) -> None:
        self.coordinator.drain()
        self.carry_out(self.coordinator.sync())

    def carry_out(self, commands: list[Command[Any]]) -> None:
        for command in commands:
            if log.isEnabledFor(logging.DEBUG):
                log.debug("%s", shown(command))
            match command:
                case Plan():
                    self._planning.plan(command)
                case Persist():
                    self._persist(command)
                case Amend():
                    self._amend(command)
                case EmitBatch():
                    self._watcher.emitting(command)
                    self.processing.emit(command)
                case EmitCommit(attempt):
                    self._commits.commit(command, self.processing.take(attempt), self._committed)
                case Advance():
                    self._advance(command)
                case Cancel(attempt):
                    self._watcher.dropped(attempt)
                    self.failures.drop(attempt)
                    self.processing.drop(attempt)

    def steered(self) -> None:
        self.carry_out(self.coordinator.sync())

    def question(self, request: Request) -> Callable[[], Judgement] | None:
        return question(request, self.coordinator, self._runner)

    def is_active(self, attempt: TransactionAttempt) -> bool:
        batch = self.coordinator.active.get(attempt.txid)
        return batch is not None and batch.attempt == attempt

    def timing(self, txid: Txid) -> BatchTiming:
        return self._timings.setdefault(txid, BatchTiming(txid))

    # --- persist and advance ------------------------------------------------------------------------

    def _persist(self, persist: Persist[Any]) -> None:
        started = time.perf_counter()

        @about(persist.txid)
        def work() -> BatchMetas[Any]:
            self.reach(Point.BEFORE_PERSIST, persist.txid)
            stored = self._store.persist(persist.txid, persist.metas)
            self.reach(Point.AFTER_PERSIST, persist.txid)
            return stored

        def done(metas: BatchMetas[Any]) -> None:
            self.timing(persist.txid).persist_seconds = time.perf_counter() - started
            self.carry_out(self.coordinator.persisted(persist.txid, metas))

        self.workers.submit(Lane.WRITE, work, done, self.fail_run)

    def _amend(self, amend: Amend[Any]) -> None:
        @about(amend.txid)
        def work() -> None:
            self._store.amend(amend.txid, amend.metas)

        def done(_: None) -> None:
            self.carry_out(self.coordinator.amended(amend.txid))

        self.workers.submit(Lane.WRITE, work, done, self.fail_run)

    def _advance(self, advance: Advance[Any]) -> None:
        started, txid = time.perf_counter(), advance.txid
        attempt = TransactionAttempt(txid, advance.attempt)
        self._watcher.committed(attempt)
        self._keepers.committed(txid)

        def work() -> None:
            self.reach(Point.BEFORE_ADVANCE, txid)
            self._store.advance(txid, advance.attempt, advance.metas if advance.store else None)
            self.reach(Point.AFTER_ADVANCE, txid)

        def done(_: None) -> None:
            self._committed = attempt
            timing = self._timings.pop(txid, BatchTiming(txid))
            timing.advance_seconds = time.perf_counter() - started
            self.statistics.add(timing, is_recovered=txid in self._recovered)
            self._watcher.advanced(timing)
            self.failures.committed(txid)
            self.processing.committed(txid)
            self.carry_out(self.coordinator.advanced(txid))
            self._planning.forget(txid)
            self._operators.advanced(self.statistics.assignment)
            self.failures.end_if_doomed()

        self.workers.submit(Lane.WRITE, work, done, self.fail_run, attempt=attempt)
        self._planning.go_on()
