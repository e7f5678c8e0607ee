"""Asking the source: what a batch holds, whether a stored plan can be read, what may be forgotten.

Invariant: the source is asked from one thread, one question at a time, in the order of the questions.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from txstream.api.errors import BatchFailedError, ServiceUnavailableError
from txstream.api.spouts import PartitionCoordinator, Unavailable
from txstream.coordinator import Command, Coordinator, EmitBatch, Plan
from txstream.engine.driver.events import EventQueue
from txstream.engine.driver.waiting import Waiting
from txstream.metas import BatchMetas
from txstream.transaction import TransactionAttempt, Txid
from txstream.zookeeper import ProgressStore

log = logging.getLogger(__name__)

_POLL_FIRST_SECONDS = 0.005
_POLL_LONGEST_SECONDS = 0.15
_PARTITION_CHECK_SECONDS = 0.5
_SOURCE = "the source"
_NAMED_PARTITIONS = 8


@dataclass
class Planning:
    """The source's side of the event loop; its methods are called on the loop's thread.

    `do_all` carries the coordinator's commands out, `planned` is told how long a plan took, `fail_run` ends
    the run, `is_active` says whether an attempt still counts.
    """

    coordinator: Coordinator[Any]
    spout: PartitionCoordinator[Any]
    store: ProgressStore
    events: EventQueue
    waiting: Waiting
    max_batch_records: int
    targets: Mapping[str, Any] | None
    do_all: Callable[[list[Command[Any]]], None]
    planned: Callable[[Txid, float], None]
    fail_run: Callable[[BaseException], None]
    is_active: Callable[[TransactionAttempt], bool]

    def __post_init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "txstream-plan")
        self._poll_seconds = _POLL_FIRST_SECONDS
        # What the last plan could not read, with the reasons.
        self.left_out: Mapping[str, str] = {}

    def shut_down(self) -> None:
        """Wait for the question that is being answered; ask no other."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def plan(self, plan: Plan[Any]) -> None:
        """Have the source plan a batch."""
        started = time.perf_counter()

        def work() -> BatchMetas[Any] | None:
            if not plan.replay:
                if self.targets is not None and self.spout.reached(plan.last, self.targets):
                    return None
                if not self.spout.is_ready():
                    return None
            metas = BatchMetas.from_plan(plan.last, self.spout.plan(plan.last, self.max_batch_records))
            self._tell_left_out(metas.unavailable)
            if not (metas.has_work or plan.replay):
                return None
            self.store.check_size(metas)
            return metas

        def done(metas: BatchMetas[Any] | None) -> None:
            if not self.coordinator.is_planning(plan.ticket):
                return
            self.waiting.end(_SOURCE)
            if metas is None:
                self._poll_seconds = min(2 * self._poll_seconds, _POLL_LONGEST_SECONDS)
                self.do_all(self.coordinator.nothing_to_plan(plan.ticket))
                self.events.after(self._poll_seconds, lambda: self.do_all(self.coordinator.wake()))
                return
            self._poll_seconds = _POLL_FIRST_SECONDS
            self.planned(plan.txid, time.perf_counter() - started)
            self.do_all(self.coordinator.planned(plan.ticket, metas))

        def failed(error: BaseException) -> None:
            if not self.coordinator.is_planning(plan.ticket):
                return
            if isinstance(error, (ServiceUnavailableError, BatchFailedError)):
                self.waiting.begin(_SOURCE, _SOURCE, error)
                self.events.after(_PARTITION_CHECK_SECONDS, lambda: self._plan_again(plan))
            else:
                self.fail_run(error)

        self.events.submit(self._pool, work, done, failed)

    def _tell_left_out(self, unavailable: Mapping[str, str]) -> None:
        """Say when batches begin to go without a partition, and when it is back; not in every batch."""
        gone, back = unavailable.keys() - self.left_out.keys(), self.left_out.keys() - unavailable.keys()
        self.left_out = unavailable
        if gone:
            reasons = "; ".join(sorted({unavailable[partition] for partition in gone}))
            they = "it" if len(gone) == 1 else "they"
            log.warning("batches go on without %s until %s can be read: %s", _listed(gone), they, reasons)
        if back:
            log.warning("batches have %s again", _listed(back))

    def _plan_again(self, plan: Plan[Any]) -> None:
        if self.coordinator.is_planning(plan.ticket):
            self.plan(plan)

    def await_partitions(self, emit: EmitBatch[Any], start: Callable[[EmitBatch[Any]], None]) -> None:
        """Start a stored plan when all its partitions can be read; this is not the attempt's time."""
        key = f"txid {emit.attempt.txid}"
        if not self.is_active(emit.attempt):
            self.waiting.drop(key)
            return

        def again(what: str, reason: object) -> None:
            self.waiting.begin(key, what, f"{emit.attempt} cannot start ({reason})")
            self.events.after(_PARTITION_CHECK_SECONDS, lambda: self.await_partitions(emit, start))

        def done(unreadable: Mapping[str, Unavailable]) -> None:
            if unreadable:
                names = sorted(unreadable)
                again(f"partition {', '.join(names)}", "; ".join(unreadable[name].reason for name in names))
            else:
                self.waiting.end(key)
                start(emit)

        def failed(error: BaseException) -> None:
            if isinstance(error, (ServiceUnavailableError, BatchFailedError)):
                again(f"the partitions of {key}", error)
            else:
                self.fail_run(error)

        self.events.submit(self._pool, lambda: self.spout.unreadable(emit.metas.partitions), done, failed)

    def forget_before(self, txid: Txid) -> None:
        """Everything before `txid` is committed, and so is `txid` itself."""

        def failed(error: BaseException) -> None:
            if isinstance(error, (ServiceUnavailableError, BatchFailedError)):
                log.info("the source cannot forget what is before txid %d now: %s", txid, error)
            else:
                self.fail_run(error)

        self.events.submit(self._pool, lambda: self.spout.cleanup_before(txid), lambda _: None, failed)


def _listed(partitions: Collection[str]) -> str:
    """ "partitions lines/1, lines/3", cut where there are many."""
    named = sorted(partitions)
    more = f" and {len(named) - _NAMED_PARTITIONS:,} more" if len(named) > _NAMED_PARTITIONS else ""
    return f"partition{'s' if len(named) > 1 else ''} {', '.join(named[:_NAMED_PARTITIONS])}{more}"
