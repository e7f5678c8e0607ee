"""How many Spark tasks a batch gets, which of its partitions each reads, and how many stay between batches.

A Spark task costs 10 ms of CPU in Spark and Python. That is more than reading 10,000 small records, and
nothing beside a bolt that takes a millisecond for each tuple. So the time that earlier batches took decides;
the number of records alone decides only while nothing else is known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from txstream.core.batch_metas import BatchMetas
from txstream.core.transaction import TransactionAttempt
from txstream.engine.batch.execution_plan import ExecutionPlan
from txstream.engine.batch.layout import lay_out, max_width
from txstream.engine.batch.messages import WorkOrder

ONE_TASK_RECORDS = 4_000
_TWO_TASK_RECORDS = 40_000
# How long a Spark task should read and run bolts. A batch of 10,000 small records takes 0.03 s: 2 cores do a
# sixth more of such batches in one Spark task each than in two.
TASK_SECONDS = 0.05
# A Spark task that stays saves the start of a job, so a batch has to take longer to be worth more tasks.
RESIDENT_SECONDS = 0.1
# As many as take that long if a record costs 10 µs, which few bolts exceed.
_ONE_RESIDENT_RECORDS = 10_000
_OLDER = 0.8  # the weight of a batch beside the one after it


class RecordCost:
    """The seconds that recent batches took for each record, summed over Spark tasks. Larger batches weigh
    more. If several threads add at once, what one of them adds may be lost."""

    def __init__(self) -> None:
        self._sums = 0.0, 0.0

    def add(self, records: int, seconds: float) -> None:
        """Add what a batch has taken. A batch without records changes nothing."""
        if records:
            records_before, taken = self._sums
            self._sums = _OLDER * records_before + records, _OLDER * taken + seconds

    @property
    def seconds(self) -> float | None:
        """The seconds for one record; None while nothing is known."""
        records, taken = self._sums
        return taken / records if records else None


def batch_width(
    records: int | None,
    partitions: int,
    max_width: int,
    record_seconds: float | None = None,
    *,
    can_stay: bool = False,
) -> int:
    """Return how many Spark tasks a batch is worth, if a record takes `record_seconds`. `can_stay`: there
    is a Spark task that stays, for a batch that needs no other.

    A large batch is worth `max_width` even when it is read from one partition, for the bolts behind an
    exchange.
    """
    if partitions == 0:
        wanted = 1
    elif records is None:
        wanted = min(max_width, partitions)
    elif record_seconds is not None:
        seconds = records * record_seconds
        wanted = 1 if can_stay and seconds <= RESIDENT_SECONDS else math.ceil(seconds / TASK_SECONDS)
    elif records <= (_ONE_RESIDENT_RECORDS if can_stay else ONE_TASK_RECORDS):
        wanted = 1
    elif records <= _TWO_TASK_RECORDS:
        wanted = min(2, partitions)
    else:
        wanted = max_width
    return max(1, min(wanted, max_width))


def planned_records(metas: BatchMetas[Any]) -> int | None:
    """Return how many records a batch holds, as planned; None if the source's metas do not say."""
    known = [getattr(meta, "records", None) for meta in metas.partitions.values()]
    return None if None in known else sum(filter(None, known))


def resident_tasks(plan: ExecutionPlan, asked: int | None) -> int:
    """Return how many Spark tasks are to stay for this plan's small batches; `asked` is the user's number.
    They only run batches of a single stage, and a batch of live data is worth one Spark task."""
    if plan.fed or not lay_out(plan, 1).is_simple:
        return 0
    return 1 if asked is None else asked


def work_order(
    attempt: TransactionAttempt,
    metas: BatchMetas[Any],
    plan: ExecutionPlan,
    slots: Mapping[str, int],
    *,
    width: int | None = None,
    record_seconds: float | None = None,
    can_stay: bool = False,
    spare: int = 0,
    known: Mapping[str, str] | None = None,
) -> WorkOrder:
    """Spread a batch's partitions over the Spark tasks of its first stage, the largest first.

    The batch gets `width` Spark tasks, or without it as many as it is worth if a record takes
    `record_seconds` (`can_stay`: see `batch_width`); in either case not more than the slots allow.
    """
    sizes = {partition: getattr(meta, "records", None) for partition, meta in metas.partitions.items()}
    widest = max_width(plan, slots)
    width = (
        batch_width(planned_records(metas), len(sizes), widest, record_seconds, can_stay=can_stay)
        if width is None
        else max(1, min(width, widest))
    )
    layout = lay_out(plan, width, slots)
    if layout.is_simple and width > len(sizes):
        width = max(1, len(sizes))  # only reading is spread, and there is nothing to read for more of them
        layout = lay_out(plan, width, slots)
    readers = layout.stages[0].width
    encoded = plan.codec.encode(metas)["partitions"]
    assignments: list[dict[str, Any]] = [{} for _ in range(readers)]
    loads = [0] * readers
    for partition in sorted(sizes, key=lambda partition: (-(sizes[partition] or 1), partition)):
        lightest = loads.index(min(loads))
        assignments[lightest][partition] = encoded[partition]
        loads[lightest] += sizes[partition] or 1
    return WorkOrder(
        attempt,
        width,
        assignments,
        dict(slots),
        excluded=metas.excluded_offsets(),
        letters=metas.letters,
        horizons=metas.horizons,
        ahead=metas.ahead if readers == 1 else {},
        known=known or {},
        # What a DataFrame bolt reads is kept, and computed again where it is lost, behind the answers.
        spare=0 if any(bolt.is_dataframe for bolt in plan.bolts) else spare,
    )
