"""How an attempt of a batch is processed and committed by bolts: the contract that the event loop knows.

Invariant: the numbers of tuples sent and received are equal on every edge before a result is given out; those
that are sent into the commit phase are compared there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa

from txstream.api.errors import ShortBatchError
from txstream.assignment import TaskPlace
from txstream.engine.layout import lay_out, max_width
from txstream.engine.messages import Answer, EdgeCount
from txstream.engine.plan import ExecutionPlan
from txstream.engine.wire import WorkOrder
from txstream.metas import BatchMetas, MetaCodec
from txstream.transaction import TransactionAttempt

if TYPE_CHECKING:
    from txstream.engine.shares import StateWrite


class Emitted(NamedTuple):
    """What one task of a component emitted to one stream in one attempt."""

    component: str
    stream: str
    task: int
    tuples: pa.Table


@dataclass(frozen=True)
class BatchResult:
    """What a processed batch leaves: unmerged deltas by committer, and where its time went.

    `places` are the tasks that ran, `written` the rows that they wrote through a `MapState`, `written_by`
    the same by component and state. `kept` is the runner's own: what the commit phase reads, until `release`.
    """

    deltas: Mapping[str, list[pa.Table]]
    records: int
    job_seconds: float
    read_seconds: float
    process_seconds: float
    width: int = 1
    places: Sequence[TaskPlace] = ()
    emitted: Sequence[Emitted] = ()
    crossing: EdgeCount = field(default_factory=Counter)
    kept: Any = None
    written: int = 0
    written_by: Mapping[tuple[str, str], int] = field(default_factory=dict)


class BatchRunner(Protocol):
    """Processes batches. Called from several threads at once, one per batch in flight.

    `slots` are those that were changed since the start; an attempt uses them as they are when it starts.
    """

    slots: Mapping[str, int]

    def run(self, attempt: TransactionAttempt, metas: BatchMetas[Any]) -> BatchResult:
        """Process one attempt. Raises the TxstreamError that an executor reported, or another on a crash."""

    def commit(
        self,
        attempt: TransactionAttempt,
        processed: BatchResult,
        committed: TransactionAttempt | None = None,
    ) -> BatchResult:
        """Run the bolts of the commit phase, if there are any: only for the current txid, once per attempt.
        `committed` is the attempt that was committed last, None when that is not known. Raises as `run`."""

    def write(self, attempt: TransactionAttempt, writes: Sequence[StateWrite]) -> Sequence[int]:
        """Have tasks write these deltas in shares (see `shares`), after the driver has begun the commit of
        this attempt in their databases; how many rows of each were written. Raises as `run`; then any of the
        shares may be written, or be written still."""

    def release(self, processed: BatchResult) -> None:
        """The result is not needed any more: drop what is kept for its commit."""

    def cancel(self, attempt: TransactionAttempt) -> None:
        """Ask a running attempt to stop; it may go on for a while."""

    def close(self) -> None: ...


# --- what a batch is worth -----------------------------------------------------------------------------

_ONE_TASK_RECORDS = 4_000
_TWO_TASK_RECORDS = 40_000


def batch_width(records: int | None, partitions: int, max_width: int) -> int:
    """How many Spark tasks a batch is worth: a task costs more than 1,000 records (measured, 2 cores).

    A large batch is worth all of them even where it is read from one partition, for the bolts behind an
    exchange.
    """
    if partitions == 0:
        wanted = 1
    elif records is None:
        wanted = min(max_width, partitions)
    elif records <= _ONE_TASK_RECORDS:
        wanted = 1
    elif records <= _TWO_TASK_RECORDS:
        wanted = min(2, partitions)
    else:
        wanted = max_width
    return max(1, min(wanted, max_width))


def planned_records(metas: BatchMetas[Any]) -> int | None:
    """How many records a batch holds, as planned; None where the source's metas do not say."""
    known = [getattr(meta, "records", None) for meta in metas.partitions.values()]
    return None if None in known else sum(filter(None, known))


def work_order(
    attempt: TransactionAttempt,
    metas: BatchMetas[Any],
    plan: ExecutionPlan,
    codec: MetaCodec[Any],
    slots: Mapping[str, int],
    *,
    width: int | None = None,
) -> WorkOrder:
    """Spread a batch's partitions over the Spark tasks of its first stage, the largest first.

    The batch gets as many Spark tasks as it is worth, or `width`, as far as slots go.
    """
    sizes = {partition: getattr(meta, "records", None) for partition, meta in metas.partitions.items()}
    widest = max_width(plan, slots)
    width = (
        batch_width(planned_records(metas), len(sizes), widest)
        if width is None
        else max(1, min(width, widest))
    )
    layout = lay_out(plan, width, slots)
    if layout.is_simple and width > len(sizes):
        width = max(1, len(sizes))  # nothing but reading is spread, and there is nothing to read for more
        layout = lay_out(plan, width, slots)
    readers = layout.stages[0].width
    assignments: list[dict[str, Any]] = [{} for _ in range(readers)]
    loads = [0] * readers
    for partition, meta in sorted(
        metas.partitions.items(), key=lambda item: (-(sizes[item[0]] or 1), item[0])
    ):
        lightest = loads.index(min(loads))
        assignments[lightest][partition] = codec.encode_meta(meta)
        loads[lightest] += sizes[partition] or 1
    return WorkOrder(attempt, width, assignments, dict(slots))


# --- what comes back -----------------------------------------------------------------------------------


def open_answers(attempt: TransactionAttempt, messages: Iterable[bytes]) -> list[Answer]:
    """The Spark tasks' answers. Raises the error of the first that failed."""
    answers = [Answer.decode(message) for message in messages]
    for answer in answers:
        if answer.failure is not None:
            raise answer.failure.to_error(attempt)
    return answers


def collect_result(
    plan: ExecutionPlan,
    attempt: TransactionAttempt,
    answers: Iterable[Answer],
    job_seconds: float,
    width: int,
    *,
    crossing: EdgeCount | None = None,
    kept: Any = None,
) -> BatchResult:
    """Put the answers of a phase together; `crossing` is what was sent to the commit phase that it is.

    Raises ShortBatchError when an edge did not deliver what was sent.
    """
    deltas: dict[str, list[pa.Table]] = {}
    emitted: list[Emitted] = []
    places: list[TaskPlace] = []
    under_way: EdgeCount = Counter(crossing or {})
    written: Counter[tuple[str, str]] = Counter()
    records, read_seconds, process_seconds = 0, 0.0, 0.0
    for answer in answers:
        written.update(answer.written)
        records += answer.records
        read_seconds += answer.read_seconds
        process_seconds += answer.process_seconds
        places += answer.places
        emitted += [Emitted(*name, table) for name, table in answer.emitted.items()]
        for component, table in answer.deltas.items():
            deltas.setdefault(component, []).append(table)
        under_way.update(answer.sent)
        under_way.subtract(answer.received)
    later = {bolt.id for bolt in plan.bolts if bolt.in_commit} if crossing is None else set()
    for edge, count in under_way.items():
        if count and edge.component not in later:
            raise ShortBatchError(
                f"{attempt}: {edge.component!r} got {abs(count)} tuples {'less' if count > 0 else 'more'} "
                f"from stream {edge.stream!r} of {edge.source!r} than were sent to it"
            )
    return BatchResult(
        deltas,
        records,
        job_seconds,
        read_seconds,
        process_seconds,
        width,
        sorted(places, key=lambda place: (place.component, place.task)),
        emitted,
        +under_way,
        kept,
        written.total(),
        written,
    )


NOTHING = BatchResult({}, 0, 0.0, 0.0, 0.0)
