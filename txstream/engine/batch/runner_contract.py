"""How an attempt of a batch is processed and committed by bolts: the contract that the event loop knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from txstream.batch_metas import BatchMetas
from txstream.digests import TableDigest
from txstream.engine.batch.edge_counts import EdgeCount
from txstream.engine.batch.messages import Tracked, WorkOrder
from txstream.placement import TaskPlace
from txstream.transaction import TransactionAttempt

if TYPE_CHECKING:
    from txstream.engine.commit.shares import StateWrite


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
    what it was, by component and state. `kept` is the runner's own: what the commit phase reads, until
    `release`. `tracked` is what Spark tasks tell of trees of tuples.
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
        this attempt in their databases; how many rows of each were written. Raises as `run`; any of the
        shares may then have been written, or may still be."""

    def release(self, processed: BatchResult) -> None:
        """The result is no longer needed: drop what was kept for its commit."""

    def cancel(self, attempt: TransactionAttempt) -> None:
        """Ask a running attempt to stop; it may go on for a while."""

    def close(self) -> None: ...


@runtime_checkable
class FedRunner(Protocol):
    """Processes micro-batches of tuples that come from the driver."""

    def feed(self, order: WorkOrder, messages: Sequence[bytes]) -> BatchResult:
        """Process one: a message for each Spark task of the first stage. Raises as `BatchRunner.run`."""

    def cancel(self, attempt: TransactionAttempt) -> None:
        """As `BatchRunner.cancel`."""

    def close(self) -> None: ...


NOTHING = BatchResult({}, 0, 0.0, 0.0, 0.0)
