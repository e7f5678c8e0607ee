"""What a source implements, and the three semantics that can be put on it.

A batch's contents are fixed on the driver (`plan`) before a job reads them (`emit`). Spark recomputes lost
partitions from lineage, so what a job reads must not depend on when it reads.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txstream.api.rows import UnfitValueError, to_column
from txstream.api.schema import parse_schema
from txstream.core.batch_metas import Unavailable as Unavailable
from txstream.core.errors import DecodeError, TopologyError
from txstream.core.readings import Reading
from txstream.core.semantics import Semantics
from txstream.core.transaction import TransactionAttempt, Txid

if TYPE_CHECKING:
    from txstream.core.dead_letters import DeadLetter, LetterSender

Meta = TypeVar("Meta")

DEFAULT_MAX_BATCH_RECORDS = 500_000


@dataclass(frozen=True, slots=True)
class SpoutContext:
    """What a source gets when it is opened, on the driver or on an executor.

    `addresses` come from the run's settings: "kafka" holds the bootstrap servers; "database" and
    "schema_registry" hold URLs with passwords. A read that makes no progress for `fetch_timeout_seconds`
    counts as an outage. `is_transactional`: a batch must be the same whenever it is read again. `task_index`
    and the four fields after it are for tracked spouts and mean the same as in a
    bolt's `TopologyContext`.
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
    is_transactional: bool = False


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Records that are in the log and cannot be read before something else has ended: how many, behind what,
    in words for people ("an open transaction of producer 7"), and since when, as far as the source knows."""

    records: int
    behind: str
    since: datetime


class PartitionCoordinator(ABC, Generic[Meta]):
    """Decides what batches hold. There is one per run, on the driver, called from one thread at a time.

    The same `last` may come again, after a failed attempt. Answer from it and from the log alone, never from
    an earlier plan.
    """

    def is_ready(self) -> bool:
        """Is it worth opening a new transaction now? Called before each new plan; must not block."""
        return True

    @abstractmethod
    def plan(self, last: Mapping[str, Meta], limit: int) -> Mapping[str, Meta | Unavailable]:
        """Return what the next batch takes: at most `limit` records over all partitions.

        `last` maps every partition ever planned to the meta that marks its place. A partition that is missing
        from the answer keeps its place. So does one that is `Unavailable`, and the batch records it. A meta
        whose `is_empty` is true moves the place, but is no reason to open a batch. A number in a meta's
        `records` is the most rows it may have; more rows fail the attempt. The engine derives the number of
        Spark tasks from it. May take up to two seconds: an outage must not delay the other partitions longer.

        Where a partition begins may be something that the log cannot tell again later ("at the end, now").
        Answer such a place with an empty meta whose `is_first_place` is true, too. The engine then commits it
        in a batch without records, for which it leaves out all other ranges of the answer, and plans nothing
        more until that is done. A place that is only remembered here is lost with the process.
        """

    untaken_records: int | None = None
    """How many records the last `plan` saw and did not take, over all partitions; None if it cannot tell
    without asking again. Only for the ledger, to show the lag later."""

    passed_over: Collection[str] = ()
    """The partitions of which the last `plan` saw records and took none."""

    held_back: Mapping[str, HeldBack] = MappingProxyType({})
    """Which partitions have records that the last `plan` or `targets` saw and that cannot be read yet. A run
    shows what has been held back for some seconds as a wait. Targets and lag are to count such records."""

    read_ahead: Mapping[str, bytes] = MappingProxyType({})
    """What the last `plan` has read already of the ranges that it answered, by partition, in a form that the
    emitter's `take_ahead` knows: some kilobytes that came with the answer about where the log ends."""

    def unreadable(self, metas: Mapping[str, Meta]) -> Mapping[str, Unavailable]:
        """Return those of these planned partitions that cannot be read now. A transactional replay waits for
        them."""
        return {}

    def services_away(self) -> Mapping[str, str]:
        """Return which services besides the log do not answer now though emitters need them, each with the
        reason: "the schema registry at registry:8081". Asked after an attempt has failed with
        ServiceUnavailableError; the next one waits for them."""
        return {}

    def targets(self) -> Mapping[str, Any]:
        """Return where each partition ends now, for `until="caught-up"`. The framework does not look inside.

        Raises PartitionUnavailableError when a partition cannot be asked. A source without an end is never
        caught up; the default raises TopologyError.
        """
        raise TopologyError(
            f"{type(self).__name__} has no end, so until='caught-up' never comes; use until_txid"
        )

    def reached(self, last: Mapping[str, Meta], targets: Mapping[str, Any]) -> bool:
        """Return whether the places in `last` have reached every target."""
        raise TopologyError(f"{type(self).__name__} cannot tell whether it has caught up; use until_txid")

    def lag_records(self, last: Mapping[str, Meta], targets: Mapping[str, Any]) -> int | None:
        """Return how many records lie between the places in `last` and the targets, or None if unknown."""
        return None

    def cleanup_before(self, txid: Txid) -> None:
        """Drop what is kept for replays of batches before `txid`: they are committed and not read again.

        Called after `txid` - 1 was advanced, from the thread that plans. May be called again for the same
        txid, and not at all for some. Optional: the default does nothing.
        """

    wants_committed: bool = False
    """Whether `committed` is to be called."""

    def committed(self, places: Mapping[str, Meta]) -> None:
        """Learn the places of a batch whose commit is stored: the last meta of each partition. For those who
        watch the source; must neither block nor raise.

        Called from the thread that plans, in the order of txids, perhaps not for some. Optional: the default
        does nothing.
        """

    def close(self) -> None:
        """Called once at the end, also after a failure."""


Offsets: TypeAlias = Sequence[int] | npt.NDArray[np.int64]

Unfit = Callable[[str, int, DecodeError], None]
"""Is told of a record that cannot be decoded: its partition, its offset, and why."""


class PartitionEmitter(ABC, Generic[Meta]):
    """Reads what was planned. Lives in a worker process on an executor, and is kept from batch to batch."""

    @abstractmethod
    def emit(self, attempt: TransactionAttempt, partition: str, meta: Meta) -> Iterator[pa.RecordBatch]:
        """Yield exactly the planned range, or raise; never end early in silence.

        May be called again for the same attempt (speculation, lineage); it must then emit the same rows in
        the same order. Raises PartitionUnavailableError (also after `fetch_timeout_seconds` without
        progress), ShortReadError or DataLostError.
        """

    def emit_many(
        self, attempt: TransactionAttempt, metas: Mapping[str, Meta]
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the rows of several planned partitions, as pairs of partition and rows. Override it if
        reading them together is faster; the rows of one partition must keep their order."""
        for partition, meta in metas.items():
            for batch in self.emit(attempt, partition, meta):
                yield partition, batch

    def emit_joined(
        self, attempt: TransactionAttempt, metas: Mapping[str, Meta]
    ) -> Iterator[tuple[Mapping[str, int], pa.RecordBatch]]:
        """Yield the rows of `emit_many`, with those of several partitions one after the other in one record
        batch, and how many of its rows each partition has. The engine calls this method. Override it if a
        thousand partitions with a few rows each should not cost a record batch for each."""
        for partition, batch in self.emit_many(attempt, metas):
            yield {partition: batch.num_rows}, batch

    def emit_fitting(
        self, attempt: TransactionAttempt, metas: Mapping[str, Meta], unfit: Unfit
    ) -> Iterator[tuple[Mapping[str, int], pa.RecordBatch, Offsets | None]]:
        """As `emit_joined`, without the records that cannot be decoded, and with the offset of each row. The
        engine calls this method where a topology asks for dead letters. For each record that fails twice, the
        second time by itself, call `unfit`, which raises if the record must not be left out. What a service
        that is away may cause is raised as ever. Override it if `emit` decodes; the default answers None for
        offsets: those of a range whose positions are records follow from the rows before.
        """
        for counts, batch in self.emit_joined(attempt, metas):
            yield counts, batch, None

    def take_ahead(self, metas: Mapping[str, Meta], ahead: Mapping[str, bytes]) -> None:
        """Learn what the coordinator has read ahead of these ranges, before they are emitted. It is only
        sometimes there; what was planned counts. Optional: the default does nothing."""

    def keep_stored(self, most_bytes: int) -> None:
        """Keep up to so many bytes of what is emitted or refused from now on, as it is stored, for
        `take_stored`; forget what was kept before. Optional: the default keeps nothing."""

    def take_stored(self, places: Sequence[tuple[str, int]]) -> pa.Table | None:
        """Return these records, by partition and offset, as `PartitionedSpout.undecoded` has them, and forget
        what is kept. None if one of them is not there: then the driver reads them again."""
        return None

    tells_digests: bool = False
    """Whether `take_reading` is to tell digests of partitions; set by the engine before anything is read."""

    known: Mapping[str, str] = MappingProxyType({})
    """The fingerprints of what earlier batches have fetched, as `take_reading` told them, by name. Raise
    InputChangedError for another one: what is decoded then may fail, and is not to blame."""

    def take_reading(self) -> Reading:
        """Return what has been emitted since the last call (`txstream.core.readings`), as far as the source
        can tell: a replay of what may be committed is compared with it. The records of the digests are those
        that `PartitionedSpout.undecoded` has. Optional: the default tells nothing."""
        return Reading()

    def close(self) -> None:
        """Called when the worker process drops the emitter."""


class PartitionedSpout(ABC, Generic[Meta]):
    """A source of partitions that can be read again. A user implements it once, for all semantics.

    Instances are shipped to executors by pickle: keep addresses and options in them, not connections.
    """

    output: str | pa.Schema
    meta_type: ClassVar[type[Any]]
    other_process: ClassVar[bool] = True
    """Whether other processes can read it. Spark's workers are such: a run on Spark refuses a source that is
    in its own process alone."""
    max_records_per_partition: int | None = None
    """The most records that a plan takes from one partition, if `limit` is not the only bound. A batch that
    takes as many was cut off there, so the next one is planned at once, without a wait for more records."""

    @abstractmethod
    def coordinator(self, context: SpoutContext) -> PartitionCoordinator[Meta]:
        """Open the driver's side. A warm standby opens it perhaps days before its first plan, while another
        driver is still running."""

    @abstractmethod
    def emitter(self, context: SpoutContext) -> PartitionEmitter[Meta]:
        """Open the executors' side, in each worker process."""

    def undecoded(self) -> PartitionedSpout[Meta]:
        """Return a source of the same records that reads them as they are stored, for dead letters. Rows with
        columns `topic`, `partition`, `offset` and `value`, and perhaps `key`, `timestamp` and `headers`, are
        kept as in Kafka, those of any other source as JSON. Override it if `emit` decodes, and may refuse to.
        """
        return self

    def decoded(self, letters: Sequence[DeadLetter]) -> pa.RecordBatch:
        """Return the records of dead letters as `emit` would, without asking the source. Raises DecodeError.

        This reads the JSON of `undecoded`; override it together with that.
        """
        rows = [json.loads(letter.value or b"{}") for letter in letters]
        schema = parse_schema(self.output)
        columns = [_column([row.get(one.name) for row in rows], one, letters) for one in schema]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def letter_decoder(self, context: SpoutContext) -> Callable[[Sequence[DeadLetter]], pa.RecordBatch]:
        """Return `decoded` for one run. Override this instead if decoding needs an address; what it returns
        may raise ServiceUnavailableError, too."""
        return self.decoded

    def letter_topic(self, topic: str, context: SpoutContext, timeout_seconds: float) -> LetterSender:
        """Connect to a topic beside the source, to send dead letters to. Called on the driver, off its loop,
        again after each failure. Without one, DeadLetters(topic=...) is refused."""
        raise NotImplementedError(f"{type(self).__name__} has no topics")

    def leaving_out(self, place: str) -> Self:
        """Return this source without a place (Kafka: a topic) to which the topology writes: what it writes
        would come back as input. Called when a topology is built. Raises TopologyError if the user named that
        place as one to read. The default reads no such place."""
        return self

    def unpublished(self) -> Self:
        """Return this source without what tells others how far it is read (Kafka: `publish_group`)."""
        return self

    def starting(self, start: Literal["earliest"] | datetime) -> Self:
        """Return this source as one that begins there: at the first record that is left, or the first of that
        time or later. Raises TopologyError if it cannot."""
        if start == "earliest":
            return self
        raise TopologyError(f"{type(self).__name__} does not know its records by their time")

    def identity(self) -> Mapping[str, Any]:
        """Return what must not change under one topology id, as JSON values (Kafka: the topics)."""
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
        if max_batch_records < 1:
            raise TopologyError(f"max_batch_records is {max_batch_records}; it must be at least 1")
        self.source = source
        self.max_batch_records = max_batch_records
        self.output: pa.Schema = parse_schema(source.output)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.source!r})"


class TransactionalSpout(SourceSpout[Meta]):
    """A txid always holds the same tuples: its plan is stored before it is read, and replays use it."""

    semantics = Semantics.TRANSACTIONAL


class OpaqueSpout(SourceSpout[Meta]):
    """A tuple is committed in exactly one txid. A replay is planned again, without what it cannot read."""

    semantics = Semantics.OPAQUE


class NonTransactionalSpout(SourceSpout[Meta]):
    """At-least-once: neither promise holds. The baseline to compare with; a crash counts tuples twice."""

    semantics = Semantics.NON_TRANSACTIONAL


def _column(values: Sequence[Any], field: pa.Field, letters: Sequence[DeadLetter]) -> pa.Array:
    """Return a column from JSON values; those of a type that JSON lacks are there as text."""
    try:
        return to_column(values, field)
    except UnfitValueError as error:
        try:
            return pa.array(values, pa.string()).cast(field.type)
        except (pa.ArrowException, TypeError):
            raise DecodeError(f"{letters[error.row].source}: {error}") from error
