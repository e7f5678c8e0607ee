"""What a source implements, and the three semantics that can be put on it.

A batch's contents are fixed on the driver (`plan`) before a job reads them (`emit`), because Spark
recomputes lost partitions from lineage: what a job reads must not depend on when it reads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import pyarrow as pa

from txstream.api.errors import TopologyError
from txstream.api.schema import parse_schema
from txstream.semantics import Semantics
from txstream.transaction import TransactionAttempt, Txid

Meta = TypeVar("Meta")

DEFAULT_MAX_BATCH_RECORDS = 500_000


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A partition that cannot be read at planning time: it is left out of the batch, its place is kept."""

    reason: str


@dataclass(frozen=True, slots=True)
class SpoutContext:
    """What a source gets when it is opened, on the driver or on an executor.

    `addresses` come from the run's settings: "kafka" is the bootstrap servers, "redis" and "database" are
    URLs, with passwords. `fetch_timeout_seconds` is how long a read may make no progress before it is an
    outage. A tracked spout also finds which of its tasks it is, its id and all others as a bolt does in a
    `TopologyContext`, and the topology's `settings`.
    """

    topology_id: str
    component: str
    addresses: Mapping[str, str] = field(repr=False)  # with passwords
    fetch_timeout_seconds: float = 10.0
    connect_timeout_seconds: float = 10.0
    task_index: int = 0
    task_count: int = 1
    task_id: int = 0
    task_ids: Mapping[str, Sequence[int]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


class PartitionCoordinator(ABC, Generic[Meta]):
    """Decides what batches hold. One per run, on the driver, called from one thread at a time.

    The same `last` may come again (after a failed attempt): answer from it and from the log alone, never
    from what was planned before.
    """

    def is_ready(self) -> bool:
        """Is it worth opening a new transaction now? Called before each new plan; must not block."""
        return True

    @abstractmethod
    def plan(self, last: Mapping[str, Meta], limit: int) -> Mapping[str, Meta | Unavailable]:
        """What the next batch takes, at most `limit` records over all partitions.

        `last` holds, for every partition ever planned, the meta that its place is at. A partition that is
        not in the answer keeps its place; so does one that is `Unavailable`, which is recorded. A meta
        whose `is_empty` is true moves the place without making a batch worth opening; one with a number in
        `records` has at most so many rows, from which the engine chooses how many Spark tasks the batch is
        worth: more rows fail the attempt. May take up to two seconds; an outage must not cost the other
        partitions more.
        """

    def unreadable(self, metas: Mapping[str, Meta]) -> Mapping[str, Unavailable]:
        """Which of these planned partitions cannot be read now. A transactional replay waits for them."""
        return {}

    def targets(self) -> Mapping[str, Any]:
        """Where each partition ends now, for `until="caught-up"`: opaque to the framework.

        Raises PartitionUnavailableError when one cannot be asked. A source without an end never is
        caught up.
        """
        raise TopologyError(
            f"{type(self).__name__} has no end, so until='caught-up' never comes; use until_txid"
        )

    def reached(self, last: Mapping[str, Meta], targets: Mapping[str, Any]) -> bool:
        """Have the places in `last` reached every target?"""
        raise TopologyError(f"{type(self).__name__} cannot tell whether it has caught up; use until_txid")

    def lag_records(self, last: Mapping[str, Meta], targets: Mapping[str, Any]) -> int | None:
        """How many records are between the places in `last` and the targets; None where unknown."""
        return None

    def cleanup_before(self, txid: Txid) -> None:
        """Everything before `txid` is committed and will not be read again: what a source keeps for replays
        of those batches may go.

        Called after `txid` - 1 was advanced, from the thread that plans; may be called again for the same
        txid, and not at all for some. Optional: the default does nothing.
        """

    def close(self) -> None:
        """Called once at the end, also after a failure."""


class PartitionEmitter(ABC, Generic[Meta]):
    """Reads what was planned. Lives in a worker process on an executor and is kept between batches."""

    @abstractmethod
    def emit(self, attempt: TransactionAttempt, partition: str, meta: Meta) -> Iterator[pa.RecordBatch]:
        """Exactly the planned range, or an error; silence is never an answer.

        May be called again for the same attempt (speculation, lineage): it must then emit the same rows in
        the same order. Raises PartitionUnavailableError (also without progress for
        `fetch_timeout_seconds`), ShortReadError or DataLostError.
        """

    def emit_many(
        self, attempt: TransactionAttempt, metas: Mapping[str, Meta]
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Several planned partitions, as pairs of partition and rows. Override it where reading them together
        is faster; the rows of one partition must keep their order."""
        for partition, meta in metas.items():
            for batch in self.emit(attempt, partition, meta):
                yield partition, batch

    def emit_joined(
        self, attempt: TransactionAttempt, metas: Mapping[str, Meta]
    ) -> Iterator[tuple[Mapping[str, int], pa.RecordBatch]]:
        """The rows of `emit_many`, those of several partitions in one batch, one behind the other, and how
        many each partition has there. This is what the engine calls; override it where a thousand partitions
        with a few rows each should not cost a batch for each."""
        for partition, batch in self.emit_many(attempt, metas):
            yield {partition: batch.num_rows}, batch

    def close(self) -> None:
        """Called when the worker process drops the emitter."""


class PartitionedSpout(ABC, Generic[Meta]):
    """A source of partitions that can be read again: what a user implements, once, for all semantics.

    Instances are shipped to executors by pickle: keep addresses and options in them, not connections.
    """

    output: str | pa.Schema
    meta_type: ClassVar[type[Any]]
    is_replayable: ClassVar[bool] = True
    """Can a batch be read again after a restart? If not, only `NonTransactionalSpout` takes the source."""
    max_records_per_partition: int | None = None
    """The most that a plan takes of one partition, if it does not go by `limit` alone. A batch that has so
    much of one was cut off there: the next is planned at once, not after a wait for more."""

    @abstractmethod
    def coordinator(self, context: SpoutContext) -> PartitionCoordinator[Meta]:
        """Opened on the driver; by a standby that is warm perhaps days before its first plan, while another
        driver goes on."""

    @abstractmethod
    def emitter(self, context: SpoutContext) -> PartitionEmitter[Meta]:
        """Opened in each worker process on the executors."""

    def identity(self) -> Mapping[str, Any]:
        """What must not change under one topology id, as JSON values (Kafka: the topics)."""
        return {}


class SourceSpout(Generic[Meta]):
    """A source with a semantics: the first component of a topology."""

    semantics: ClassVar[Semantics]

    def __init__(
        self,
        source: PartitionedSpout[Meta],
        *,
        max_batch_records: int = DEFAULT_MAX_BATCH_RECORDS,
    ) -> None:
        if not isinstance(source, PartitionedSpout):
            raise TopologyError(
                f"{type(self).__name__} takes a partitioned source such as KafkaSource('lines'), "
                f"not {type(source).__name__}"
            )
        if not source.is_replayable and self.semantics is not Semantics.NON_TRANSACTIONAL:
            raise TopologyError(
                f"{source!r} cannot read a batch again after a restart; use NonTransactionalSpout, not "
                f"{type(self).__name__}"
            )
        if max_batch_records < 1:
            raise TopologyError(f"max_batch_records is {max_batch_records}; it must be at least 1")
        self.source = source
        self.max_batch_records = max_batch_records
        self.output: pa.Schema = parse_schema(source.output)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.source!r})"


class TransactionalSpout(SourceSpout[Meta]):
    """A txid always holds the same tuples: its plan is stored before it is read, and read again as it is."""

    semantics = Semantics.TRANSACTIONAL


class OpaqueSpout(SourceSpout[Meta]):
    """A tuple is committed in exactly one txid, but a replay plans anew: it goes on without what it lacks."""

    semantics = Semantics.OPAQUE


class NonTransactionalSpout(SourceSpout[Meta]):
    """Neither promise: at-least-once, the baseline to compare with. A crash counts tuples twice."""

    semantics = Semantics.NON_TRANSACTIONAL
