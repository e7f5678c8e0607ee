"""Asks the source what a batch holds, and tells it what it may forget.

Invariant: one thread asks the source, one question at a time, in the order of the questions.

As long as all waiting records fit into a small batch, the next batch gathers records until the one before it
is committed. Side by side, small batches slow each other down, and one that is planned before would have to
wait behind the other's commit, with fewer records.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from functools import partial
from typing import Any

from txstream.core.backoff import Backoff
from txstream.core.batch_metas import BatchMetas
from txstream.core.coordinator import BatchPhase, Plan
from txstream.core.dead_letters import LetterKey
from txstream.core.errors import BatchFailedError, ServiceUnavailableError
from txstream.core.transaction import Txid, about
from txstream.engine.batch.sizing import ONE_TASK_RECORDS, planned_records
from txstream.engine.loop.held_back import HeldBackRecords
from txstream.engine.loop.leadership_watch import if_leading
from txstream.engine.loop.open_batches import Batches
from txstream.engine.loop.pace import Pace
from txstream.engine.loop.parts import LoopParts
from txstream.engine.loop.unreadable_partitions import CHECK_SECONDS, UnreadablePartitions
from txstream.engine.loop.workers import Lane

log = logging.getLogger(__name__)

GATHER_SECONDS = 0.1
"""Longer than a small batch takes, and negligible beside a long one."""

_POLL = Backoff(first_seconds=0.01, longest_seconds=0.15)
_SOURCE = "the source"


class Planning:
    """The source's side of the event loop; its methods are called on the loop's thread. Nothing is planned
    beyond the loop's `log_end`."""

    def __init__(
        self, batches: Batches, parts: LoopParts, unreadable: UnreadablePartitions, pace: Pace
    ) -> None:
        self._batches = batches
        self._retries = parts.retries
        self._keepers = parts.committer.keepers
        self._spout = parts.spout
        self._store = parts.store
        self._waiting = parts.waiting
        self._unreadable = unreadable
        self._pace = pace
        self._log_end = parts.log_end
        self._held_back = HeldBackRecords(parts.waiting, batches.workers)
        self._idle_polls = 0
        self._planned_at: dict[Txid, datetime] = {}
        self._most_of_partition = parts.topology.spout.source.max_records_per_partition
        self._gather_seconds = parts.gather_seconds
        self._is_small = False
        self._gathering: Plan[Any] | None = None

    def planned_at(self, txid: Txid) -> datetime:
        """Return when a txid was planned; for a plan that another driver stored, the present time."""
        return self._planned_at.get(txid, datetime.now(UTC))

    def has_planned(self, txid: Txid) -> bool:
        """Whether this driver has planned a txid, and no earlier one."""
        return txid in self._planned_at

    def plan(self, plan: Plan[Any]) -> None:
        """Have the source plan a batch, now or once it has gathered its records."""
        if plan.replay or not self._is_small or not self._gather_seconds or self._all_committed():
            self._ask(plan)
            return
        self._gathering = plan
        self._batches.workers.after(self._gather_seconds, lambda: self._end_gathering(plan))

    def check_size(self, metas: BatchMetas[Any]) -> None:
        """Raise MetaTooLargeError for metas that could not be stored, with all that they leave out."""
        self._store.check_size(metas)

    def _all_committed(self) -> bool:
        """Return whether every open batch is committed, so that it only has to advance."""
        return all(batch.phase is BatchPhase.ADVANCING for batch in self._batches.coordinator.active.values())

    def go_on(self) -> None:
        """Plan the batch that gathers, if there is one and the batch before it is committed."""
        if self._gathering is not None and self._all_committed():
            self._end_gathering(self._gathering)

    def _end_gathering(self, plan: Plan[Any] | None) -> None:
        if plan is None or plan is not self._gathering:
            return
        self._gathering = None
        if self._batches.coordinator.is_planning(plan.ticket):
            self._ask(plan)

    def _ask(self, plan: Plan[Any]) -> None:
        batches = self._batches
        limit = self._pace.size if plan.replay else self._pace.limit()
        if not limit:
            self._plan_nothing(plan, self._pace.seconds_to_wait())
            return
        concerning = about(plan.txid)
        batches.workers.submit(
            Lane.PLAN,
            concerning(partial(self._metas_of, plan, limit, self._retried_before(plan))),
            concerning(partial(self._answered, plan, limit, time.perf_counter())),
            partial(self._not_answered, plan),
        )

    def _retried_before(self, plan: Plan[Any]) -> set[LetterKey] | None:
        """Return the dead letters that open batches before this one retry; None if no retry is asked for."""
        coordinator = self._batches.coordinator
        if not self._retries.are_asked:
            return None
        open_before = [txid for txid in coordinator.stored_txids() if coordinator.current <= txid < plan.txid]
        return {key for txid in open_before for key in coordinator.metas(txid).retried}

    def _metas_of(
        self, plan: Plan[Any], limit: int, retried: set[LetterKey] | None
    ) -> BatchMetas[Any] | None:
        """Return what the batch is to hold: dead letters that wait for a retry, or else new records. None if
        there is nothing. Called on the source's thread."""
        now = self._batches.workers.wall_clock()
        letters = () if retried is None else self._retries.next(retried, plan.txid)
        if letters:
            horizons = self._keepers.next(plan.horizons, (), (), now)
            metas = BatchMetas(carried=plan.last, horizons=horizons).retrying(letters)
            self._store.check_size(metas)
            return metas
        if not plan.replay and (self._log_end.is_reached(plan.last) or not self._spout.is_ready()):
            return None
        answer = self._spout.plan(plan.last, limit)
        metas = BatchMetas.from_plan(plan.last, answer, self._spout.untaken_records, self._spout.read_ahead)
        taken, spout = metas.partitions, self._spout
        waiting = {*metas.unavailable, *spout.passed_over, *spout.held_back}.difference(taken)
        if horizons := self._keepers.next(plan.horizons, taken, waiting, now):
            metas = metas.with_horizons(horizons)
        if metas.unavailable.keys() - self._unreadable.left_out.keys():
            self._store.verify()
        self._unreadable.leave_out(metas)
        if not (metas.has_work or plan.replay):
            return None
        self._store.check_size(metas)
        return metas

    def _answered(self, plan: Plan[Any], limit: int, started: float, metas: BatchMetas[Any] | None) -> None:
        batches, coordinator = self._batches, self._batches.coordinator
        if not coordinator.is_planning(plan.ticket):
            return
        self._waiting.end(_SOURCE)
        self._held_back.tell(self._spout.held_back)
        if metas is None:
            self._idle_polls += 1
            self._plan_nothing(plan, _POLL.after(self._idle_polls))
            return
        self._idle_polls = 0
        self._planned_at.setdefault(plan.txid, datetime.now(UTC))  # an opaque replay is one more plan
        records = planned_records(metas)
        self._is_small = self._is_all_there_is(metas, records, limit)
        self._pace.planned(plan.txid, limit if records is None else records, replay=plan.replay)
        timing = batches.timing(plan.txid)
        timing.plan_seconds, timing.lag_records = time.perf_counter() - started, metas.lag_records
        batches.carry_out(coordinator.planned(plan.ticket, metas))

    def _not_answered(self, plan: Plan[Any], error: BaseException) -> None:
        batches = self._batches
        if not batches.coordinator.is_planning(plan.ticket):
            return
        if not isinstance(error, (ServiceUnavailableError, BatchFailedError)):
            batches.fail_run(error)
        elif self._waiting.is_waiting(_SOURCE):
            batches.workers.after(CHECK_SECONDS, lambda: self._plan_again(plan))
        else:
            if_leading(batches, self._store, about(plan.txid)(partial(self._wait, plan, error)))

    def _wait(self, plan: Plan[Any], error: BaseException) -> None:
        """The source is away, or a database that has dead letters, and this driver still leads."""
        if self._batches.coordinator.is_planning(plan.ticket):
            away = getattr(error, "service", None) or _SOURCE
            self._waiting.begin(_SOURCE, away, error)
            self._batches.workers.after(CHECK_SECONDS, lambda: self._plan_again(plan))

    def _plan_nothing(self, plan: Plan[Any], seconds: float) -> None:
        """There is nothing for this batch now; look again after so many seconds."""
        batches, coordinator = self._batches, self._batches.coordinator
        batches.carry_out(coordinator.nothing_to_plan(plan.ticket))
        batches.workers.after(seconds, lambda: batches.carry_out(coordinator.wake()))

    def _is_all_there_is(self, metas: BatchMetas[Any], records: int | None, limit: int) -> bool:
        """Return whether a batch holds all that there was, and that is worth one Spark task at most."""
        if records is None or records > min(limit - 1, ONE_TASK_RECORDS):
            return False
        most = self._most_of_partition
        return most is None or all(meta.records < most for meta in metas.partitions.values())

    def _plan_again(self, plan: Plan[Any]) -> None:
        if self._batches.coordinator.is_planning(plan.ticket):
            self.plan(plan)

    def forget(self, txid: Txid) -> None:
        """Have the source forget what is committed: everything up to `txid`."""
        batches = self._batches
        self._planned_at.pop(txid, None)
        self._pace.advanced(txid)
        before = Txid(txid + 1)
        committed = batches.coordinator.committed_metas() if self._spout.wants_committed else None

        def work() -> None:
            if committed is not None:
                self._spout.committed(committed.positions())
            self._spout.cleanup_before(before)

        def failed(error: BaseException) -> None:
            if isinstance(error, (ServiceUnavailableError, BatchFailedError)):
                with about(txid):
                    log.info("the source cannot forget what is before txid %d now: %s", before, error)
            else:
                batches.fail_run(error)

        batches.workers.submit(Lane.PLAN, work, failed=failed)
