"""The contract between the event loop and a runner, which processes a batch and runs the commit's bolts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from txstream.core.batch_metas import BatchMetas
from txstream.core.digests import TableDigest
from txstream.core.placement import EdgeTuples, TaskPlace
from txstream.core.readings import NOTHING_READ, Reading
from txstream.core.transaction import TransactionAttempt
from txstream.engine.batch.edge_counts import EdgeCount
from txstream.engine.batch.messages import LeftOut, Tracked, WorkOrder

if TYPE_CHECKING:
    from txstream.engine.batch.record_search import FailingRecord
    from txstream.engine.batch.shares import StateWrite
    from txstream.engine.batch.sought import Sought


class Emitted(NamedTuple):
    """What one task of a component emitted to one stream in one attempt."""

    component: str
    stream: str
    task: int
    tuples: pa.Table


@dataclass(frozen=True)
class BatchResult:
    """What one phase of a batch gives: unmerged deltas by committer, and where its time went.

    `places` are the tasks that ran. `written` is the number of rows that they wrote through a `MapState`,
    `written_by` the digests of those rows, by component and state. `crossing` counts the tuples sent into the
    commit phase, `edges` those that each subscription received; `sending_ns` and `taking_ns` are the time
    that edges took (`edge_counts`). `kept` is the runner's own: what the commit phase reads, until `release`.
    `tracked` is what Spark tasks report of trees of tuples. `by_residents` says that residents ran it.
    `left_out` are the records that Spark tasks have left out, and `lineages` what the last messages say of
    that (`leaving_out`).
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
    written_by: Mapping[tuple[str, str], TableDigest] = field(default_factory=dict)
    tracked: Sequence[Tracked] = ()
    edges: EdgeCount = field(default_factory=Counter)
    sending_ns: EdgeCount = field(default_factory=Counter)
    taking_ns: EdgeCount = field(default_factory=Counter)
    by_residents: bool = False
    left_out: Sequence[LeftOut] = ()
    lineages: Mapping[str, str] = field(default_factory=dict)
    reading: Reading = NOTHING_READ

    def to_commit(self, order: WorkOrder, committed: TransactionAttempt | None) -> WorkOrder:
        """Return the order of the commit phase: what is computed again leaves out the same records."""
        known = tuple(one.known_as for one in self.left_out)
        return replace(order, committed=committed, spare=0, left_out=known, lineages=self.lineages)


def edges_of(processed: BatchResult, finished: BatchResult) -> list[EdgeTuples]:
    """Return what passed on each edge in both phases. Nobody knows how long Spark takes to take in what a
    DataFrame bolt reads."""
    sending = processed.sending_ns + finished.sending_ns
    taking = processed.taking_ns + finished.taking_ns
    return [
        EdgeTuples(
            edge.source,
            edge.stream,
            edge.component,
            tuples,
            round(sending[edge] * 1e-9, 6),
            None if edge in sending and edge not in taking else round(taking[edge] * 1e-9, 6),
        )
        for edge, tuples in (processed.edges + finished.edges).items()
    ]


class BatchRunner(Protocol):
    """Processes batches. Called from several threads at once, one per batch in flight.

    `slots` are those that were changed since the start, `fetched` what batches have fetched. An attempt uses
    them as they are when it starts.
    """

    slots: Mapping[str, int]
    fetched: Mapping[str, str]

    def run(self, attempt: TransactionAttempt, metas: BatchMetas[Any], spare: int = 0) -> BatchResult:
        """Process one attempt, whose tasks may leave out up to `spare` records. Raises the TxstreamError that
        an executor reported, or another on a crash."""

    def find(
        self,
        attempt: TransactionAttempt,
        parts: Sequence[BatchMetas[Any]],
        *,
        most: int,
        seconds: float,
        sought: Sought | None = None,
    ) -> Sequence[FailingRecord]:
        """Return records in these parts of a batch that fail by themselves, or, if a tuple is sought, that
        make it (`is_sought`), as far as one job can tell (see `record_search`). Each Spark task of it stops
        at `most` records, and begins nothing more after so many `seconds`. Raises as `run`."""

    def commit(
        self,
        attempt: TransactionAttempt,
        processed: BatchResult,
        committed: TransactionAttempt | None = None,
    ) -> BatchResult:
        """Run the bolts of the commit phase, if there are any. Called only for the current txid, once per
        attempt. `committed` is the attempt that was committed last, None if unknown. Raises as `run`."""

    def write(self, attempt: TransactionAttempt, writes: Sequence[StateWrite]) -> Sequence[int]:
        """Have Spark tasks write these deltas in shares (see `shares`), after the driver has begun the commit
        of this attempt in their databases. Returns how many rows of each were written. Raises as `run`; any
        share may then have been written already, or may still be written."""

    def release(self, processed: BatchResult) -> None:
        """Drop what was kept for the commit of a result that is no longer needed."""

    def cancel(self, attempt: TransactionAttempt) -> None:
        """Ask a running attempt to stop; it may go on for a while."""

    def end_trial(self, attempt: TransactionAttempt) -> None:
        """Have the call that is under way for the attempt raise; the attempt may run again."""

    def close(self) -> None: ...


@runtime_checkable
class FedRunner(Protocol):
    """Processes micro-batches of tuples that come from the driver. `slots` as in `BatchRunner`."""

    slots: Mapping[str, int]

    def feed(self, order: WorkOrder, messages: Sequence[bytes]) -> BatchResult:
        """Process one micro-batch. `messages` has one for each Spark task of the first stage. Raises as
        `BatchRunner.run`."""

    def cancel(self, attempt: TransactionAttempt) -> None:
        """As `BatchRunner.cancel`."""

    def close(self) -> None: ...


NOTHING = BatchResult({}, 0, 0.0, 0.0, 0.0)
