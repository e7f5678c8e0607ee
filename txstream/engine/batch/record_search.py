"""Finds the records at which the processing of a batch fails, inside Spark tasks.

Each task has pieces of the batch. It processes a piece as a batch of one Spark task, in which an exchange is
a list append, and halves one that fails until single records are left. So one Spark job finds the bad records
of all partitions, whichever bolt they make fail. Where late tuples say which records they come from, these
are tried at once, without halving. What comes behind a DataFrame bolt, and what a state refuses, is left to
the driver, whose trials are jobs (`isolation`).

Invariants. Nothing of a trial leaves its Spark task but how single records fail. A failure that no record
causes, such as an outage, ends the search. Once its time is over, no further trial begins: what was not tried
counts as not found.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from txstream.core.batch_metas import BatchMetas, alone_in, halves, holds_record, is_left, only, only_record
from txstream.core.dead_letters import Excluded
from txstream.core.errors import LateRecordError, TxstreamError
from txstream.core.fault_points import CrashError
from txstream.core.transaction import TransactionAttempt
from txstream.engine.batch.execution_plan import ExecutionPlan
from txstream.engine.batch.executor_failures import OF_A_RECORD, Failure, describe
from txstream.engine.batch.layout import max_width
from txstream.engine.batch.messages import ANSWER, Answer, WorkOrder
from txstream.engine.batch.sizing import batch_width, planned_records, work_order
from txstream.engine.batch.sought import Sought
from txstream.engine.batch.worker import run_first_stage
from txstream.engine.batch.worker_process import WorkerProcess

_LATE_AT_ONCE: Final = 1_000
_PIECE_RECORDS: Final = 20_000
"""So the search takes little longer than one pass over the batch, and its time is looked at often enough.
To try a piece takes a few milliseconds more than its records."""


class FailingRecord(NamedTuple):
    """A record that fails by itself, and how."""

    partition: str
    offset: int
    error: TxstreamError


def search_shares(
    plan: ExecutionPlan,
    attempt: TransactionAttempt,
    parts: Sequence[BatchMetas[Any]],
    slots: Mapping[str, int],
    *,
    most: int,
    seconds: float,
    sought: Sought | None = None,
    record_seconds: float | None = None,
) -> list[str]:
    """Return what each Spark task of a search is to look through. It ends when it has found `most` records
    that are not late, or after so many `seconds`. The tasks are as many as a batch of these parts would get.
    With `sought`, records that make this tuple count as failing."""
    sizes = [planned_records(part) for part in parts]
    records = None if None in sizes else sum(filter(None, sizes))
    partitions = sum(len(part.partitions) for part in parts)
    width = batch_width(records, partitions, max_width(plan, slots), record_seconds)
    largest = min(_PIECE_RECORDS, -(-sum(map(_size, parts)) // width))
    pieces = sorted((piece for part in parts for piece in _cut(part, largest)), key=_size, reverse=True)
    shares = [pieces[at::width] for at in range(min(width, len(pieces)))]
    return [
        json.dumps(
            {
                "orders": [
                    replace(work_order(attempt, piece, plan, slots, width=1), sought=sought).to_json()
                    for piece in share
                ],
                "most": most,
                "seconds": seconds,
            }
        )
        for share in shares
    ]


def _cut(part: BatchMetas[Any], largest: int) -> list[BatchMetas[Any]]:
    """Return pieces of a part, of at most `largest` records each if it can be cut so."""
    smaller = (
        [part.part(half) for half in halves(part.partitions, exact=True)] if _size(part) > largest else []
    )
    return [piece for half in smaller for piece in _cut(half, largest)] or [part]


def _size(part: BatchMetas[Any]) -> int:
    return max(1, planned_records(part) or 1)


def search_share(plan: ExecutionPlan, share: str, process: WorkerProcess) -> str:
    """Look through one share, in a Spark task. A failure that ends the search comes back as an answer."""
    document = json.loads(share)
    search = _Search(plan, process, document["most"], time.monotonic() + document["seconds"])
    ended_by: Failure | None = None
    try:
        for text in document["orders"]:
            search.look_through(WorkOrder.from_json(text))
    except _SearchEndedError as error:
        ended_by = error.failure
    except CrashError:
        raise
    except BaseException as error:  # noqa: BLE001 - every failure is reported, none is lost
        ended_by = describe(error, plan.spout_id, None)
    found = [[partition, offset, failure.to_document()] for partition, offset, failure in search.found]
    return json.dumps({"found": found, "failure": ended_by and ended_by.to_document()})


def records_found(attempt: TransactionAttempt, answers: Sequence[str]) -> list[FailingRecord]:
    """Return what all Spark tasks of a search have found. Raises the first error that ended one."""
    documents = [json.loads(answer) for answer in answers]
    for document in documents:
        if document["failure"] is not None:
            raise Failure(**document["failure"]).to_error(attempt)
    found = [
        FailingRecord(partition, offset, Failure(**failure).to_error(attempt))
        for document in documents
        for partition, offset, failure in document["found"]
    ]
    return sorted(found, key=lambda one: (one.partition, one.offset))


class _SearchEndedError(Exception):
    """A trial failed in a way that no record causes."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class _Search:
    """The search of one Spark task. `found` are partition, offset and failure of each record."""

    def __init__(self, plan: ExecutionPlan, process: WorkerProcess, most: int, until: float) -> None:
        self._plan = plan
        self._process = process
        self._most = most
        self._until = until
        self.found: list[tuple[str, int, Failure]] = []
        self._others = 0  # of those found, which are not late

    def look_through(self, order: WorkOrder) -> None:
        codec = self._process.spout()[1]
        ranges = {name: codec.decode_meta(meta, name) for name, meta in order.assignments[0].items()}
        excluded = (Excluded(name, at, "", "") for name, offsets in order.excluded.items() for at in offsets)
        self._search(order, BatchMetas(ranges, excluded=tuple(excluded), horizons=order.horizons))

    def _search(self, order: WorkOrder, part: BatchMetas[Any]) -> None:
        if self._others >= self._most or time.monotonic() >= self._until or not is_left(part):
            return
        failure = self._failure(order, part)
        if failure is None:
            return
        if not isinstance(failure.to_error(order.attempt), OF_A_RECORD):
            raise _SearchEndedError(failure)
        alone = only_record(part)
        if alone is not None:
            self._add(*alone, failure)
            return
        left = self._without_late(order, part, failure)
        if left is not None:
            self._search(order, left)
            return
        for half in halves(part.partitions, exact=True):
            self._search(order, part.part(half))

    def _add(self, partition: str, offset: int, failure: Failure) -> None:
        self.found.append((partition, offset, failure))
        self._others += failure.error != LateRecordError.__name__

    def _without_late(
        self, order: WorkOrder, part: BatchMetas[Any], failure: Failure
    ) -> BatchMetas[Any] | None:
        """Try by themselves the records that the failure names as late. Return the part without those that
        fail so, or None if there are none."""
        left_out = {(one.partition, one.offset) for one in part.excluded}
        named = [Excluded(*place, "", "") for place in failure.late if tuple(place) not in left_out]
        named = [record for record in named if holds_record(part, record)]
        found: list[Excluded] = []
        while named and time.monotonic() < self._until:
            late = self._all_late(order, part, named)
            if not late:
                late, alone = named[:1], self._failure(order, alone_in(part, named[0]))
                if alone is None or alone.error != LateRecordError.__name__:
                    named = named[1:]
                    continue
                self._add(named[0].partition, named[0].offset, alone)
            found += late
            tried = {*late}
            named = [record for record in named if record not in tried]
        return part.leaving_out(found) if found else None

    def _all_late(
        self, order: WorkOrder, part: BatchMetas[Any], named: Sequence[Excluded]
    ) -> Sequence[Excluded]:
        """Try some of the records that are said to be late, and nothing else. Return those that are, if that
        tells. It does if a task got all of them as the spout emitted them, each was late, and together they
        name these very records: whatever the fields mean, each record has a late row of its own."""
        some = named[:_LATE_AT_ONCE]
        if len(some) < 2:
            return ()
        failure = self._failure(order, only(part, some))
        if failure is None or not failure.all_late:
            return ()
        late = {(partition, offset) for partition, offset in failure.late}
        found = [one for one in some if (one.partition, one.offset) in late]
        if len(found) < len(late):
            return ()
        if len(found) < len(some):  # others went to other tasks
            return self._all_late(order, part, found)
        for one in found:
            self._add(one.partition, one.offset, replace(failure, late=()))
        return found

    def _failure(self, order: WorkOrder, part: BatchMetas[Any]) -> Failure | None:
        """Try a part. Return how it fails, or None."""
        smaller = work_order(order.attempt, part, self._plan, order.slots, width=1)
        smaller = replace(smaller, sought=order.sought)
        for target, message in run_first_stage(self._plan, 0, smaller, self._process):
            if target == ANSWER:
                return Answer.decode(message).failure
        return None
