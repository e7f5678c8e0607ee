"""Asking the source: what a batch holds, and what may be forgotten.

Invariant: the source is asked from one thread, one question at a time, in the order of the questions.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from txstream.api.errors import BatchFailedError, ServiceUnavailableError
from txstream.api.spouts import PartitionCoordinator
from txstream.coordinator import Plan
from txstream.engine.batch.sizing import planned_records
from txstream.engine.driver.batches import Batches
from txstream.engine.driver.pace import Pace
from txstream.engine.driver.unreadable_partitions import CHECK_SECONDS, UnreadablePartitions
from txstream.engine.driver.waiting import Waiting
from txstream.engine.driver.workers import Lane
from txstream.metas import BatchMetas
from txstream.transaction import Txid
from txstream.zookeeper import ProgressStore

log = logging.getLogger(__name__)

_POLL_FIRST_SECONDS = 0.005
_POLL_LONGEST_SECONDS = 0.15
_SOURCE = "the source"


class Planning:
    """The source's side of the event loop; its methods are called on the loop's thread. `targets` is the end
    of the log where the run ends, if it does."""

    def __init__(
        self,
        batches: Batches,
        spout: PartitionCoordinator[Any],
        store: ProgressStore,
        waiting: Waiting,
        unreadable: UnreadablePartitions,
        pace: Pace,
        targets: Mapping[str, Any] | None,
    ) -> None:
        self._batches = batches
        self._spout = spout
        self._store = store
        self._waiting = waiting
        self._unreadable = unreadable
        self._pace = pace
        self._targets = targets
        self._poll_seconds = _POLL_FIRST_SECONDS
        self._planned_at: dict[Txid, datetime] = {}

    def planned_at(self, txid: Txid) -> datetime:
        """When it was planned; now for a plan that was stored by another driver."""
        return self._planned_at.get(txid, datetime.now(UTC))

    def plan(self, plan: Plan[Any]) -> None:
        """Have the source plan a batch."""
        batches, coordinator = self._batches, self._batches.coordinator
        limit = self._pace.size if plan.replay else self._pace.limit()
        if not limit:
            batches.carry_out(coordinator.nothing_to_plan(plan.ticket))
            batches.workers.after(self._pace.seconds_to_wait(), lambda: batches.carry_out(coordinator.wake()))
            return
        started = time.perf_counter()

        def work() -> BatchMetas[Any] | None:
            if not plan.replay:
                if self._targets is not None and self._spout.reached(plan.last, self._targets):
                    return None
                if not self._spout.is_ready():
                    return None
            metas = BatchMetas.from_plan(plan.last, self._spout.plan(plan.last, limit))
            self._unreadable.leave_out(metas.unavailable)
            if not (metas.has_work or plan.replay):
                return None
            self._store.check_size(metas)
            return metas

        def done(metas: BatchMetas[Any] | None) -> None:
            if not coordinator.is_planning(plan.ticket):
                return
            self._waiting.end(_SOURCE)
            if metas is None:
                self._poll_seconds = min(2 * self._poll_seconds, _POLL_LONGEST_SECONDS)
                batches.carry_out(coordinator.nothing_to_plan(plan.ticket))
                batches.workers.after(self._poll_seconds, lambda: batches.carry_out(coordinator.wake()))
                return
            self._poll_seconds = _POLL_FIRST_SECONDS
            self._planned_at[plan.txid] = datetime.now(UTC)
            records = planned_records(metas)
            self._pace.planned(plan.txid, limit if records is None else records, replay=plan.replay)
            batches.timing(plan.txid).plan_seconds = time.perf_counter() - started
            batches.carry_out(coordinator.planned(plan.ticket, metas))

        def failed(error: BaseException) -> None:
            if not coordinator.is_planning(plan.ticket):
                return
            if isinstance(error, (ServiceUnavailableError, BatchFailedError)):
                self._waiting.begin(_SOURCE, _SOURCE, error)
                batches.workers.after(CHECK_SECONDS, lambda: self._plan_again(plan))
            else:
                batches.fail_run(error)

        batches.workers.submit(Lane.PLAN, work, done, failed)

    def _plan_again(self, plan: Plan[Any]) -> None:
        if self._batches.coordinator.is_planning(plan.ticket):
            self.plan(plan)

    def forget(self, txid: Txid) -> None:
        """Everything up to `txid` is committed."""
        batches = self._batches
        self._planned_at.pop(txid, None)
        self._pace.advanced(txid)
        before = Txid(txid + 1)

        def failed(error: BaseException) -> None:
            if isinstance(error, (ServiceUnavailableError, BatchFailedError)):
                log.info("the source cannot forget what is before txid %d now: %s", before, error)
            else:
                batches.fail_run(error)

        batches.workers.submit(Lane.PLAN, lambda: self._spout.cleanup_before(before), lambda _: None, failed)
