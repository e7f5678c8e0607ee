"""Attempts that fail or take too long: they are replayed, or they end the run.

Invariants. A superseded attempt's failure has no effect, unless a newer leader caused it. An error ends the
run only once the batches before it are committed; otherwise every run would end before them again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from txstream.api.topology import Topology
from txstream.core.batch_metas import MetaCodec
from txstream.core.errors import PartitionUnavailableError, ServiceUnavailableError, StaleAttemptError
from txstream.core.failing_batch import FailingBatch
from txstream.core.semantics import Semantics
from txstream.core.transaction import TransactionAttempt, Txid
from txstream.engine.batch.sizing import planned_records
from txstream.engine.letters.retry_policy import (
    AttemptTime,
    TxidFailures,
    Verdict,
    count_reason,
    judge,
    may_be_a_record,
    reason_of,
    reason_without_data,
)
from txstream.engine.loop.leadership_watch import if_leading
from txstream.engine.loop.open_batches import Batches, Watcher
from txstream.engine.loop.operator_requests import Operators
from txstream.engine.loop.report import Statistics
from txstream.engine.loop.unreadable_partitions import UnreadablePartitions
from txstream.engine.loop.workers import Lane
from txstream.zookeeper import ProgressStore

log = logging.getLogger(__name__)

_TIMEOUTS_BEFORE_ISOLATION = 2
"""In a row. A single one is more often a slow start, or a service that is away, than a record."""

_REMEMBERED_SECONDS = 60.0
"""So long, batches are searched at once after one that a search has found bad records in, until there is one
without any: a search takes as long as an attempt, so a single bad record costs no more than one in vain."""


class FailedAttempts:
    """The event loop's failed attempts. Its methods are called on the loop's thread."""

    def __init__(
        self,
        batches: Batches,
        topology: Topology,
        store: ProgressStore,
        unreadable: UnreadablePartitions,
        operators: Operators,
        watcher: Watcher,
        statistics: Statistics,
        warm_up_seconds: float,
    ) -> None:
        self.time = AttemptTime(topology.message_timeout_seconds, warm_up_seconds)
        self._batches = batches
        self._topology = topology
        # What fails then is kept as a dead letter, and nowhere else.
        self._hides_data = topology.dead_letters is not None
        self._codec: MetaCodec[Any] = MetaCodec(topology.spout.source.meta_type)
        self._store = store
        self._unreadable = unreadable
        self._operators = operators
        self._watcher = watcher
        self._statistics = statistics
        self._of_txid: dict[Txid, TxidFailures] = {}
        self._doomed: dict[TransactionAttempt, BaseException] = {}
        # When the last search ended, if it has found something.
        self._found_at: float | None = None
        self.failing: FailingBatch | None = None
        """The batch that failed last, until it is committed."""
        self.ended_by: TransactionAttempt | None = None
        """The attempt whose failure has ended the run."""

    def of(self, txid: Txid) -> TxidFailures | None:
        """Return a txid's failures in this run, or None if there are none. They are kept until it commits."""
        return self._of_txid.get(txid)

    def when_overdue(
        self, attempt: TransactionAttempt, done: str, is_due: Callable[[], bool], after: float | None = None
    ) -> None:
        """Fail the attempt as not `done` if `is_due()` holds when its time is up, or `after` some seconds."""
        seconds = self.time.seconds

        def overdue() -> None:
            if self._batches.is_active(attempt) and attempt not in self._doomed and is_due():
                self.failed(attempt, self.time.is_over(attempt, done, seconds))

        self._batches.workers.after(seconds if after is None else after, overdue, is_deadline=True)

    def failed(self, attempt: TransactionAttempt, error: BaseException, *, is_writing: bool = False) -> None:
        """Handle an attempt's failure. `is_writing`: it failed in the transactions of its states."""
        if isinstance(error, StaleAttemptError):
            self._watcher.fenced(attempt)
            self._verify_leader(attempt, error)
            return
        if not self._batches.is_active(attempt):
            why = self._told(error) if self._hides_data else error
            log.debug("ignoring the failure of superseded %s: %s", attempt, why)
            return
        if isinstance(error, (PartitionUnavailableError, ServiceUnavailableError)):
            if_leading(self._batches, self._store, lambda: self._judge(attempt, error, is_writing=is_writing))
        else:
            self._judge(attempt, error, is_writing=is_writing)

    def _judge(self, attempt: TransactionAttempt, error: BaseException, *, is_writing: bool) -> None:
        if not self._batches.is_active(attempt):
            return
        self._watcher.failed(attempt, error)
        if judge(error, is_writing=is_writing) is Verdict.FATAL and not self._calls_for_isolation(
            error, attempt, is_writing=is_writing
        ):
            self._end_with(attempt, error)
            return
        self.time.ended(error)
        coordinator, statistics = self._batches.coordinator, self._statistics
        failures = self._of_txid.setdefault(attempt.txid, TxidFailures(self._hides_data))
        held = coordinator.metas(attempt.txid)
        error = failures.with_advice(error, planned_records(held))
        failures.add(error, attempt, held, is_writing=is_writing)
        statistics.failed_attempts += 1
        times = count_reason(statistics.failure_reasons, self._told(error))
        noted = failures.for_note(self._codec.encode_meta)
        reasons = dict(failures.reasons)
        self.failing = FailingBatch(attempt.txid, attempt.attempt, datetime.now(UTC), reasons, *noted)
        self._operators.failed(self.failing)
        if failures.bugs >= self._topology.max_attempts:
            self._end_with(attempt, error)
            return
        # Warns of a reason at once, and at its 10th, 100th ... time: an outage must not fill the screen.
        is_told = str(times).strip("0") == "1"
        so_often = f" (for the {times:,}th time)" if times > 1 else ""
        log.log(
            logging.WARNING if is_told else logging.INFO,
            "%s failed and will be replayed%s: %s", attempt, so_often, failures.last_error,
        )  # fmt: skip
        transactional = coordinator.semantics is Semantics.TRANSACTIONAL
        if isinstance(error, PartitionUnavailableError) or transactional:
            self._unreadable.recheck.update(txid for txid in coordinator.active if txid >= attempt.txid)
        if getattr(error, "wrote_nothing", False):
            coordinator.wrote_nothing(attempt)
        self._batches.carry_out(coordinator.fail(attempt, type(error).__name__))

    def _told(self, error: BaseException) -> str:
        """Return why an attempt failed, as this run may tell it."""
        return reason_without_data(error, is_output=True) if self._hides_data else reason_of(error)

    def isolates(self, attempt: TransactionAttempt) -> bool:
        """Return whether the attempt looks for records at which its batch fails, to leave them out."""
        failures = self._of_txid.get(attempt.txid)
        if self._topology.dead_letters is None or failures is None:
            return False
        if not failures.by_records and failures.timeouts < _TIMEOUTS_BEFORE_ISOLATION:
            return False
        return self._batches.coordinator.may_leave_out(attempt)

    def hangs(self, attempt: TransactionAttempt) -> bool:
        """Return whether all of the attempt's batch is known to hang."""
        failures = self._of_txid.get(attempt.txid)
        return failures is not None and failures.timeouts >= _TIMEOUTS_BEFORE_ISOLATION

    def searched(self, *, has_found: bool) -> None:
        """Note that a batch has come to its end by a search, which has found records or none."""
        self._found_at = self._batches.workers.now() if has_found else None

    def searches_at_once(self, attempt: TransactionAttempt) -> bool:
        """Return whether the attempt looks for records though nothing has failed yet: batches before it would
        have spared an attempt each. It ends with the first in which there is nothing to be found."""
        found_at, now = self._found_at, self._batches.workers.now()
        if found_at is None or now - found_at >= _REMEMBERED_SECONDS:
            return False
        return attempt.txid not in self._of_txid and self._batches.coordinator.may_leave_out(attempt)

    def _calls_for_isolation(
        self, error: BaseException, attempt: TransactionAttempt, *, is_writing: bool
    ) -> bool:
        """Return whether the next attempt looks for the records that cause an error which would end the run;
        an attempt that has looked already has found none."""
        failures = self._of_txid.get(attempt.txid)
        has_looked = failures is not None and (failures.in_commit if is_writing else failures.by_records)
        return self._topology.dead_letters is not None and may_be_a_record(error) and not has_looked

    def drop(self, attempt: TransactionAttempt) -> None:
        """Forget a fatal error of the attempt: its batch is replayed."""
        self._doomed.pop(attempt, None)

    def committed(self, txid: Txid) -> None:
        """Forget the failures of a committed txid: they are in the ledger."""
        self._of_txid.pop(txid, None)
        if self.failing is not None and self.failing.txid <= txid:
            self.failing = None

    def doomed(self, txid: Txid) -> BaseException | None:
        """Return the error that will end the run once the txids before this one are committed."""
        batch = self._batches.coordinator.active.get(txid)
        return None if batch is None else self._doomed.get(batch.attempt)

    def end_if_doomed(self) -> None:
        """End the run if it only waited for the txids before the current one to be committed."""
        error = self.doomed(self._batches.coordinator.current)
        if error is not None:
            self._fail_run(self._batches.coordinator.active[self._batches.coordinator.current].attempt, error)

    def _end_with(self, attempt: TransactionAttempt, error: BaseException) -> None:
        if attempt.txid == self._batches.coordinator.current:
            self._fail_run(attempt, error)
        else:
            self._doomed[attempt] = error  # it is never acked, which limits what is opened after it

    def _fail_run(self, attempt: TransactionAttempt, error: BaseException) -> None:
        self.ended_by = attempt
        self._batches.fail_run(error)

    def _verify_leader(self, attempt: TransactionAttempt, error: StaleAttemptError) -> None:
        """A fence was newer. If the epoch is still ours, our own newer attempt raised it, and goes on."""
        batches = self._batches

        def still_mine(_: None) -> None:
            if batches.is_active(attempt):
                batches.fail_run(error)

        batches.workers.submit(Lane.WRITE, self._store.verify, still_mine, batches.fail_run)
