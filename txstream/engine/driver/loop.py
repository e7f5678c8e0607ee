"""The event loop: it owns the coordinator, has its commands carried out, and feeds the answers back.

Invariants. Only the loop's thread touches the coordinator; everything that blocks runs on a pool and comes
back as an event. Plans, ZooKeeper writes and commits each have one thread, so each kind is done in the
order in which it was asked for. Once a commit is acked, nothing fails that attempt any more: `Advance`
is repeated until it is answered, or the run ends.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from txstream.api.errors import (
    BatchTimeoutError,
    PartitionUnavailableError,
    ServiceUnavailableError,
    StaleAttemptError,
    TxstreamError,
)
from txstream.api.spouts import PartitionCoordinator
from txstream.coordinator import (
    Advance,
    Cancel,
    Command,
    Coordinator,
    EmitBatch,
    EmitCommit,
    Persist,
    Phase,
    Plan,
)
from txstream.engine.batch.runner import BatchResult, BatchRunner
from txstream.engine.batch.sizing import planned_records
from txstream.engine.commit.committer import Committer, ProcessedBatch
from txstream.engine.commit.phase import CommitPhase
from txstream.engine.driver.events import EventQueue
from txstream.engine.driver.operators import Operators, Slots
from txstream.engine.driver.planning import Planning
from txstream.engine.driver.retries import (
    BACKOFF_FIRST_SECONDS,
    BACKOFF_LONGEST_SECONDS,
    TxidFailures,
    Verdict,
    attempt_seconds,
    count_reason,
    judge,
    reason_of,
)
from txstream.engine.driver.waiting import Waiting
from txstream.engine.fault_points import Point, PointListener, nobody_listens
from txstream.engine.report import BatchTiming, Statistics
from txstream.failing import FailingBatch
from txstream.metas import BatchMetas, MetaCodec
from txstream.semantics import Semantics
from txstream.transaction import TransactionAttempt, Txid
from txstream.zookeeper import ProgressStore

log = logging.getLogger(__name__)


class RunAbortedError(TxstreamError):
    """The run was told to end now; whatever waits gives up. The next run recovers."""


@dataclass
class LoopOptions:
    """`until_txid` and `targets` (of caught-up) say when to end; neither means never."""

    max_batch_records: int
    message_timeout_seconds: float
    max_attempts: int
    warm_up_seconds: float = 0.0
    targets: Mapping[str, Any] | None = None
    until_txid: Txid | None = None
    listener: PointListener = nobody_listens


@dataclass
class EventLoop:
    """See the module. `run` returns when the run has ended; it raises what ended it.

    `slots` are those to begin with, which operators may change; without it they may not.
    """

    coordinator: Coordinator[Any]
    spout: PartitionCoordinator[Any]
    store: ProgressStore
    runner: BatchRunner
    committer: Committer
    codec: MetaCodec[Any]
    options: LoopOptions
    statistics: Statistics = field(default_factory=Statistics)
    caught_up: bool = False
    slots: Slots | None = None

    def __post_init__(self) -> None:
        pending = self.coordinator.max_spout_pending
        self._events = EventQueue()
        self._writes = ThreadPoolExecutor(1, "txstream-zookeeper")
        # A cancelled job may hold its thread for seconds, beside its successor.
        self._jobs = ThreadPoolExecutor(2 * pending + 2, "txstream-job")
        # On a thread of its own, or stuck jobs would keep those that are to end them from running.
        self._cancels = ThreadPoolExecutor(1, "txstream-cancel")
        self._abort = threading.Event()
        self._failure: BaseException | None = None
        self._processed: dict[TransactionAttempt, ProcessedBatch] = {}
        self._timings: dict[Txid, BatchTiming] = {}
        self._planned_at: dict[Txid, datetime] = {}
        self._failures: dict[Txid, TxidFailures] = {}
        self._doomed: dict[TransactionAttempt, BaseException] = {}
        self._emitted: set[Txid] = set()
        self._is_warm = False
        # The attempt before the current txid's, where this loop has seen it commit.
        self._committed: TransactionAttempt | None = None
        self._waiting = Waiting()
        self._recheck = set(self._stored_plans())
        self._recovered = set(self._recheck)
        self._semantics = self.coordinator.semantics
        self._planning = Planning(
            self.coordinator,
            self.spout,
            self.store,
            self._events,
            self._waiting,
            self.options.max_batch_records,
            self.options.targets,
            do_all=self._do_all,
            planned=self._planned,
            fail_run=self._fail_run,
            is_active=self._is_active,
        )
        self._commits = CommitPhase(
            self.committer,
            self.runner,
            self.codec,
            self._events,
            self.options.message_timeout_seconds,
            enter=self._enter_commit,
            reach=self._reach,
            release=self._release,
            set_deadline=self._set_deadline,
            timing=self._timing,
            acked=self._acked,
            failed=self._attempt_failed,
            stale=self._verify_leader,
            fail_run=self._fail_run,
            is_active=self._is_active,
        )
        self._operators = Operators(
            self.store, self.runner, self.slots, self._events, self._writes, self._fail_run
        )

    # --- for other threads --------------------------------------------------------------------------

    def stop(self) -> None:
        """End on a txid boundary: open nothing more, finish what is open."""
        self._events.post(self._drain)

    def abort(self, error: BaseException | None = None) -> None:
        """End now; what is open is left to the next run."""
        self._events.post(lambda: self._fail_run(error or RunAbortedError("the run was aborted")))
        self._abort.set()

    @property
    def aborted(self) -> bool:
        return self._abort.is_set()

    @property
    def waiting_for(self) -> str | None:
        """The outages that are waited for, for people."""
        return self._waiting.shown

    def open_batches(self) -> dict[Txid, str]:
        return {txid: str(batch.phase) for txid, batch in list(self.coordinator.active.items())}

    def wait_for(self, what: str, check: Callable[[], None]) -> None:
        """Block, with backoff, until `check` no longer raises ServiceUnavailableError. For pool threads.

        Raises RunAbortedError when the run is told to end."""
        delay = BACKOFF_FIRST_SECONDS
        while True:
            try:
                check()
            except ServiceUnavailableError as error:
                self._waiting.begin(what, what, error)
                if self._abort.wait(delay):
                    raise RunAbortedError(f"the run ended while it waited for {what}") from error
                delay = min(2 * delay, BACKOFF_LONGEST_SECONDS)
            else:
                self._waiting.end(what)
                return

    # --- the loop -----------------------------------------------------------------------------------

    def run(self) -> None:
        """Carry out commands until the run ends. Raises the error that ended it, FencedError among others."""
        try:
            self._operators.begin()
            self._do_all(self.coordinator.sync())
            while not self._finished():
                self._events.next()()
            if self._failure is None:
                self._operators.finish()
        except BaseException as error:
            self._failure = self._failure or error
            raise
        finally:
            self._shut_down()
        if self._failure is not None:
            raise self._failure

    def _finished(self) -> bool:
        if self._failure is not None:
            return True
        coordinator = self.coordinator
        if not coordinator.is_idle:
            return False
        # Judged by what is committed, never by a plan: a plan's replay may hold less.
        targets = self.options.targets
        last = coordinator.committed_metas().positions()
        self.caught_up = targets is not None and self.spout.reached(last, targets)
        ended = coordinator.last_txid is not None and coordinator.current > coordinator.last_txid
        return self.caught_up or coordinator.is_draining or ended

    def _shut_down(self) -> None:
        self._abort.set()
        self._operators.shut_down()
        for batch in self.coordinator.active.values():
            self._cancel(batch.attempt)
        # The jobs of superseded attempts may run on for a while; nobody waits for them.
        self._jobs.shutdown(wait=False, cancel_futures=True)
        self._planning.shut_down()
        self._writes.shutdown(wait=True, cancel_futures=True)
        self._commits.shut_down()
        self._cancels.shutdown(wait=True, cancel_futures=True)

    def _cancel(self, attempt: TransactionAttempt) -> None:
        try:
            self.runner.cancel(attempt)
        except Exception as error:  # noqa: BLE001 - only a wish; a cluster that is gone must not hide why
            log.info("%s could not be cancelled: %s", attempt, error)

    def _release(self, result: BatchResult) -> None:
        try:
            self.runner.release(result)
        except Exception as error:  # noqa: BLE001 - the batch itself is not concerned; what is kept goes with Spark
            log.info("what was kept of a batch could not be dropped: %s", error)

    def _fail_run(self, error: BaseException) -> None:
        self._failure = self._failure or error

    def _drain(self) -> None:
        self.coordinator.drain()
        self._do_all(self.coordinator.sync())

    def _stored_plans(self) -> list[Txid]:
        coordinator = self.coordinator
        return [txid for txid in coordinator.stored_txids() if txid >= coordinator.current]

    def _do_all(self, commands: list[Command[Any]]) -> None:
        for command in commands:
            match command:
                case Plan():
                    self._planning.plan(command)
                case Persist():
                    self._do_persist(command)
                case EmitBatch():
                    self._do_emit(command)
                case EmitCommit(attempt):
                    self._commits.commit(command, self._processed.pop(attempt), self._committed)
                case Advance():
                    self._do_advance(command)
                case Cancel(attempt):
                    self._doomed.pop(attempt, None)
                    self._cancels.submit(self._cancel, attempt)
                    dropped = self._processed.pop(attempt, None)
                    if dropped is not None:
                        self._cancels.submit(self._release, dropped.result)

    def _timing(self, txid: Txid) -> BatchTiming:
        return self._timings.setdefault(txid, BatchTiming(txid))

    def _planned(self, txid: Txid, seconds: float) -> None:
        self._planned_at[txid] = datetime.now(UTC)
        self._timing(txid).plan_seconds = seconds

    def _reach(self, point: Point, txid: Txid) -> None:
        self.options.listener(point, txid, self.open_batches())

    # --- persist and advance ------------------------------------------------------------------------

    def _do_persist(self, persist: Persist[Any]) -> None:
        started = time.perf_counter()

        def work() -> BatchMetas[Any]:
            self._reach(Point.BEFORE_PERSIST, persist.txid)
            stored = self.store.persist(persist.txid, persist.metas)
            self._reach(Point.AFTER_PERSIST, persist.txid)
            return stored

        def done(metas: BatchMetas[Any]) -> None:
            self._timing(persist.txid).persist_seconds = time.perf_counter() - started
            self._do_all(self.coordinator.persisted(persist.txid, metas))

        self._events.submit(self._writes, work, done, self._fail_run)

    def _do_advance(self, advance: Advance[Any]) -> None:
        started = time.perf_counter()

        def work() -> None:
            self._reach(Point.BEFORE_ADVANCE, advance.txid)
            self.store.advance(advance.txid, advance.attempt, advance.metas if advance.store else None)
            self._reach(Point.AFTER_ADVANCE, advance.txid)

        def done(_: None) -> None:
            self._committed = TransactionAttempt(advance.txid, advance.attempt)
            timing = self._timings.pop(advance.txid, BatchTiming(advance.txid))
            timing.advance_seconds = time.perf_counter() - started
            statistics = self.statistics
            statistics.timings.append(timing)
            statistics.batches += 1
            statistics.records += timing.records
            statistics.first_txid = statistics.first_txid or advance.txid
            if advance.txid in self._recovered:
                statistics.recovered_batches += 1
            self._failures.pop(advance.txid, None)
            self._emitted.discard(advance.txid)
            self._planned_at.pop(advance.txid, None)
            self._do_all(self.coordinator.advanced(advance.txid))
            self._planning.forget_before(advance.txid)
            self._operators.advanced(statistics.assignment)
            self._end_if_doomed()

        self._events.submit(self._writes, work, done, self._fail_run)

    # --- process ------------------------------------------------------------------------------------

    def _do_emit(self, emit: EmitBatch[Any]) -> None:
        txid = emit.attempt.txid
        failures = self._failures.get(txid)
        delay = failures.delay_seconds if failures is not None else 0.0
        self.statistics.replayed_attempts += txid in self._emitted
        self._emitted.add(txid)

        def start() -> None:
            if emit.stored and txid in self._recheck:
                self._planning.await_partitions(emit, self._start_job)
            else:
                self._start_job(emit)

        if delay:
            self._events.after(delay, start)
        else:
            start()

    def _start_job(self, emit: EmitBatch[Any]) -> None:
        attempt = emit.attempt
        if not self._is_active(attempt):
            return

        def done(result: BatchResult) -> None:
            self._is_warm = True
            timing = self._timing(attempt.txid)
            timing.records, timing.width = result.records, result.width
            timing.job_seconds = result.job_seconds
            timing.read_seconds = result.read_seconds
            timing.process_seconds = result.process_seconds
            if not self._is_active(attempt):
                self._cancels.submit(self._release, result)
            else:
                failures = self._failures.get(attempt.txid)
                self._processed[attempt] = ProcessedBatch(
                    result,
                    planned_at=self._planned_at.get(attempt.txid, datetime.now(UTC)),
                    processed_at=datetime.now(UTC),
                    error=failures.last_error if failures is not None else None,
                    attempts=tuple(failures.last) if failures is not None else (),
                )
            self._do_all(self.coordinator.ack(attempt))

        self._fail_when_overdue(attempt)
        self._events.submit(
            self._jobs,
            lambda: self.runner.run(attempt, emit.metas),
            done,
            lambda error: self._attempt_failed(attempt, error),
        )

    def _fail_when_overdue(self, attempt: TransactionAttempt) -> None:
        options = self.options
        timeout = attempt_seconds(
            options.message_timeout_seconds, options.warm_up_seconds, is_warm=self._is_warm
        )
        warm_up = " and a run's warm-up" if timeout > options.message_timeout_seconds else ""

        def overdue() -> None:
            if attempt in self._doomed or not self._is_active(attempt):
                return
            if self.coordinator.active[attempt.txid].phase is Phase.PROCESSING:
                error = BatchTimeoutError(
                    f"{attempt} was not processed within {timeout:g} s (message_timeout_seconds{warm_up})"
                )
                self._attempt_failed(attempt, error)

        self._set_deadline(timeout, overdue)

    def _set_deadline(self, seconds: float, overdue: Callable[[], None]) -> None:
        self._events.after(seconds, overdue)

    def _is_active(self, attempt: TransactionAttempt) -> bool:
        batch = self.coordinator.active.get(attempt.txid)
        return batch is not None and batch.attempt == attempt

    # --- commit -------------------------------------------------------------------------------------

    def _enter_commit(self, attempt: TransactionAttempt) -> None:
        """On the commit thread, before anything of a commit."""
        self._reach(Point.BEFORE_COMMIT, attempt.txid)

    def _acked(self, attempt: TransactionAttempt, batch: ProcessedBatch, finished: BatchResult) -> None:
        self.statistics.saw(attempt, batch.result, finished)
        self._do_all(self.coordinator.ack(attempt))

    def _verify_leader(self, attempt: TransactionAttempt, error: StaleAttemptError) -> None:
        """A fence was newer. If the epoch is still ours it was our own newer attempt, which goes on."""

        def still_mine(_: None) -> None:
            if self._is_active(attempt):
                self._fail_run(error)

        self._events.submit(self._writes, self.store.verify, still_mine, self._fail_run)

    # --- failure ------------------------------------------------------------------------------------

    def _end_with(self, attempt: TransactionAttempt, error: BaseException) -> None:
        """End the run with the error of this attempt, once the batches before it are committed: otherwise
        every run would end before them again."""
        if attempt.txid == self.coordinator.current:
            self._fail_run(error)
        else:
            self._doomed[attempt] = error  # never acked, it bounds what is opened behind it

    def _end_if_doomed(self) -> None:
        head = self.coordinator.active.get(self.coordinator.current)
        error = None if head is None else self._doomed.get(head.attempt)
        if error is not None:
            self._fail_run(error)

    def _attempt_failed(self, attempt: TransactionAttempt, error: BaseException) -> None:
        if not self._is_active(attempt):
            log.debug("ignoring the failure of superseded %s: %s", attempt, error)
            return
        verdict = judge(error)
        if verdict is Verdict.FATAL:
            self._end_with(attempt, error)
            return
        self._is_warm = True
        failures = self._failures.setdefault(attempt.txid, TxidFailures())
        error = failures.with_advice(error, planned_records(self.coordinator.metas(attempt.txid)))
        failures.add(error, attempt)
        self.statistics.failed_attempts += 1
        times = count_reason(self.statistics.failure_reasons, reason_of(error))
        reasons = dict(failures.reasons)
        self._operators.failed(FailingBatch(attempt.txid, attempt.attempt, datetime.now(UTC), reasons))
        if failures.bugs >= self.options.max_attempts:
            self._end_with(attempt, error)
            return
        # A reason is told at once, and again at its 10th, 100th ... time: an outage must not fill the screen.
        is_told = str(times).strip("0") == "1"
        so_often = f" (for the {times:,}th time)" if times > 1 else ""
        log.log(
            logging.WARNING if is_told else logging.INFO,
            "%s failed and will be replayed%s: %s", attempt, so_often, error,
        )  # fmt: skip
        if isinstance(error, PartitionUnavailableError) or self._semantics is Semantics.TRANSACTIONAL:
            self._recheck.update(txid for txid in self.coordinator.active if txid >= attempt.txid)
        self._do_all(self.coordinator.fail(attempt))
