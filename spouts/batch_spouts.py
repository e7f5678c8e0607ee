"""`BatchSpout`: the general contract, for a source without partitions, like Storm's transactional spout.

It is a `PartitionedSpout` with a single partition, "batch", so there is one path through the engine. The
partition's meta carries the txid and the user's own meta.

Storm has a coordinator and an emitter here. `BatchSpout` has the methods of both on one class, because most
sources open the same connection for both. txstream copies the instance, once on the driver and once in each
worker process, and uses each copy for one side only.
"""

from __future__ import annotations

import copy
import json
import logging
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar, final

import pyarrow as pa

from txstream.api.bolts import OutputCollector
from txstream.api.rows import UnfitValueError, to_record_batch
from txstream.api.schema import format_schema, format_type, parse_schema
from txstream.api.spouts import PartitionCoordinator, PartitionedSpout, PartitionEmitter, SpoutContext
from txstream.api.tuples import DEFAULT_STREAM
from txstream.core.batch_metas import MetaCodec
from txstream.core.errors import (
    BatchFailedError,
    CorruptStateError,
    ServiceUnavailableError,
    TopologyError,
    TupleError,
    UsageError,
)
from txstream.core.transaction import FIRST_TXID, TransactionAttempt, Txid
from txstream.core.wording import a

__tracebackhide__ = True  # errors begin in the spout's own code
log = logging.getLogger(__name__)

Meta = TypeVar("Meta")

BATCH_PARTITION = "batch"

_FLUSH_ROWS = 50_000


@dataclass(frozen=True, slots=True)
class BatchTransaction:
    """The stored meta of a `BatchSpout`: the txid, and the user's meta as JSON.

    If `is_empty`, the transaction holds nothing, and `meta` is that of the last one that held something.
    """

    txid: int
    meta: dict[str, Any] | None = None
    is_empty: bool = False

    def __post_init__(self) -> None:
        if self.txid < 1 or (self.meta is None and not self.is_empty):
            raise ValueError(f"txid {self.txid} with meta {self.meta} is no transaction")


class BatchSpout(PartitionedSpout[BatchTransaction], Generic[Meta]):
    """A source that decides itself what each transaction holds.

        class Orders(BatchSpout[OrderIds]):
            output = "city string, amount bigint"
            batch_meta_type = OrderIds          # a frozen dataclass of JSON values

            def initialize_transaction(self, txid, previous_meta): ...
            def emit_batch(self, attempt, meta, collector): ...

        OpaqueSpout(Orders(...))

    Instances are shipped by pickle: keep addresses in them, and open connections in `open`, which is called
    on copies. A copy does not see attributes that were set on another.

    `max_batch_records` does not apply: `initialize_transaction` decides how much a transaction holds. One
    Spark task emits all of it, so a `PartitionedSpout` is better for a source that can be read in parts.
    """

    meta_type: ClassVar[type[Any]] = BatchTransaction
    batch_meta_type: ClassVar[type[Any]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "meta_type" in cls.__dict__:
            raise TopologyError(
                f"{cls.__name__} sets meta_type; for a BatchSpout it is called batch_meta_type"
            )
        if "batch_meta_type" in cls.__dict__:
            MetaCodec(cls.batch_meta_type)

    # --- what a user implements ---------------------------------------------------------------------------

    def open(self, context: SpoutContext) -> None:
        """Called once on each copy, before anything else: on the driver, and in each worker process."""

    def is_ready(self) -> bool:
        """Driver. Return whether a new transaction is worth opening. Called before each; must not block."""
        return True

    @abstractmethod
    def initialize_transaction(self, txid: Txid, previous_meta: Meta | None) -> Meta | None:
        """Driver. Return what transaction `txid` holds, or None if there is nothing to open one for.

        `previous_meta` is the answer for the transaction before, committed or not; None for the first. Called
        in strict txid order, from one thread at a time. After a failed attempt an opaque topology calls it
        again for the same txid, with the same `previous_meta`; a transactional topology stores the answer and
        uses it for every replay. Decide by `previous_meta` and the source alone, never by an earlier answer.
        May take up to two seconds. In an outage raise PartitionUnavailableError; the engine waits.
        """

    @abstractmethod
    def emit_batch(self, attempt: TransactionAttempt, meta: Meta, collector: OutputCollector) -> None:
        """Executor. Emit the tuples of a transaction: exactly those that `meta` stands for.

        Called again for a replay, and perhaps twice for one attempt (speculation, lineage). The same meta
        must give the same tuples in the same order. Raise PartitionUnavailableError if they cannot be read
        now, DataLostError if they no longer exist. They are held in memory, as Arrow, until this returns.
        """

    def cleanup_before(self, txid: Txid) -> None:
        """Driver. Drop what is kept for transactions before `txid`: they are committed and never emitted
        again. May be called again for the same txid, and not at all for some. If it raises
        PartitionUnavailableError (an outage), a later call makes up for it; any other error ends the run."""

    def targets(self) -> Mapping[str, Any]:
        """Driver. Return where the source ends now, for until="caught-up". Default: raises TopologyError."""
        raise TopologyError(
            f"{type(self).__name__} has no end, so until='caught-up' never comes; override targets() and "
            f"reached(), or use until_txid"
        )

    def reached(self, previous_meta: Meta | None, targets: Mapping[str, Any]) -> bool:
        """Driver. Return whether the transactions up to `previous_meta` have reached `targets`."""
        raise TopologyError(
            f"{type(self).__name__} cannot tell whether it has caught up; override reached(), or use "
            f"until_txid"
        )

    def lag_records(self, previous_meta: Meta | None, targets: Mapping[str, Any]) -> int | None:
        """Driver. Return how many records are still to come up to `targets`, or None if unknown."""
        return None

    def close(self) -> None:
        """Called once at the end, on each copy that was opened."""

    # --- how the engine sees it -----------------------------------------------------------------------------

    @final
    def coordinator(self, context: SpoutContext) -> PartitionCoordinator[BatchTransaction]:
        return _BatchCoordinator(self._opened(context), self._codec())

    @final
    def emitter(self, context: SpoutContext) -> PartitionEmitter[BatchTransaction]:
        schema = parse_schema(self.output)
        return _BatchEmitter(self._opened(context), self._codec(), context.component, schema)

    def _opened(self, context: SpoutContext) -> BatchSpout[Meta]:
        """Return an opened copy, so that the instance that is shipped holds no connection."""
        opened = copy.copy(self)
        opened.open(context)
        return opened

    def _codec(self) -> MetaCodec[Meta]:
        kind = getattr(self, "batch_meta_type", None)
        if kind is None:
            raise TopologyError(
                f"{type(self).__name__} has no batch_meta_type; set it to the frozen dataclass that "
                f"initialize_transaction answers"
            )
        return MetaCodec(kind)


class _BatchCoordinator(PartitionCoordinator[BatchTransaction], Generic[Meta]):
    """The driver's side. It counts txids by the metas, which come back in strict txid order. A replay that
    finds nothing gets an empty meta, so that it counts too."""

    def __init__(self, spout: BatchSpout[Meta], codec: MetaCodec[Meta]) -> None:
        self._spout = spout
        self._codec = codec

    def is_ready(self) -> bool:
        return self._spout.is_ready()

    def plan(self, last: Mapping[str, BatchTransaction], limit: int) -> Mapping[str, BatchTransaction]:
        before = last.get(BATCH_PARTITION)
        txid = FIRST_TXID if before is None else Txid(before.txid + 1)
        meta = self._spout.initialize_transaction(txid, self._previous(before))
        if meta is None:
            carried = None if before is None else before.meta
            return {BATCH_PARTITION: BatchTransaction(txid, carried, is_empty=True)}
        return {BATCH_PARTITION: BatchTransaction(txid, self._encode(meta))}

    def cleanup_before(self, txid: Txid) -> None:
        try:
            self._spout.cleanup_before(txid)
        except (BatchFailedError, ServiceUnavailableError) as error:
            log.info("%s could not clean up before txid %d: %s", type(self._spout).__name__, txid, error)

    def targets(self) -> Mapping[str, Any]:
        return self._spout.targets()

    def reached(self, last: Mapping[str, BatchTransaction], targets: Mapping[str, Any]) -> bool:
        return self._spout.reached(self._previous(last.get(BATCH_PARTITION)), targets)

    def lag_records(self, last: Mapping[str, BatchTransaction], targets: Mapping[str, Any]) -> int | None:
        return self._spout.lag_records(self._previous(last.get(BATCH_PARTITION)), targets)

    def close(self) -> None:
        self._spout.close()

    def _previous(self, before: BatchTransaction | None) -> Meta | None:
        return None if before is None or before.meta is None else _decode(self._codec, before)

    def _encode(self, meta: Meta) -> dict[str, Any]:
        kind, name = self._codec.meta_type, type(self._spout).__name__
        if type(meta) is not kind:
            raise TopologyError(
                f"{name}.initialize_transaction answered {meta!r:.200}; it must be {a(kind.__name__)} or None"
            )
        document = self._codec.encode_meta(meta)
        try:
            back = self._codec.decode_meta(json.loads(json.dumps(document)), f"{name}'s meta")
        except (TypeError, ValueError, CorruptStateError) as error:
            raise TopologyError(
                f"{name}.initialize_transaction answered {meta!r:.200}, which cannot be stored as JSON: "
                f"{error}"
            ) from error
        if back != meta:
            raise TopologyError(
                f"{name}.initialize_transaction answered {meta!r:.200}, which comes back from JSON as "
                f"{back!r:.200}; its fields must be JSON values"
            )
        return document


class _BatchEmitter(PartitionEmitter[BatchTransaction], Generic[Meta]):
    """The executors' side."""

    def __init__(
        self, spout: BatchSpout[Meta], codec: MetaCodec[Meta], component: str, schema: pa.Schema
    ) -> None:
        self._spout = spout
        self._codec = codec
        self._component = component
        self._schema = schema

    def emit(
        self, attempt: TransactionAttempt, partition: str, meta: BatchTransaction
    ) -> Iterator[pa.RecordBatch]:
        if meta.is_empty:
            return
        collector = BatchCollector(self._component, self._schema)
        # Typed as Any, to look at what it returns: a generator, an easy mistake, would silently emit nothing.
        emit_batch: Any = self._spout.emit_batch
        answer = emit_batch(attempt, _decode(self._codec, meta), collector)
        if answer is not None:
            raise TopologyError(
                f"{type(self._spout).__name__}.emit_batch returned {a(type(answer).__name__)}; it must emit "
                f"by its collector and return nothing"
            )
        yield from collector.finish()

    def close(self) -> None:
        self._spout.close()


class BatchCollector:
    """An `OutputCollector` for one stream, "default". Holds what was emitted, as Arrow."""

    def __init__(self, component: str, schema: pa.Schema) -> None:
        self._component = component
        self._schema = schema
        self._rows: list[Sequence[Any]] = []
        self._batches: list[pa.RecordBatch] = []
        self._is_open = True

    def emit(self, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        self._check_stream(stream)
        if type(values) is not tuple:
            if not isinstance(values, Iterable) or isinstance(values, (str, bytes, Mapping, Set)):
                raise self._wrong_arity(values)
            values = tuple(values)  # the caller may change a list before it is turned into Arrow
        if len(values) != len(self._schema):
            raise self._wrong_arity(values)
        self._rows.append(values)
        if len(self._rows) >= _FLUSH_ROWS:
            self._flush()

    def emit_batch(self, batch: pa.RecordBatch, stream: str = DEFAULT_STREAM) -> None:
        self._check_stream(stream)
        if not batch.schema.equals(self._schema):
            raise TupleError(
                f"component {self._component!r} emitted a batch of {format_schema(batch.schema)} to stream "
                f"{stream!r}, which is declared as {format_schema(self._schema)}"
            )
        self._flush()
        if batch.num_rows:
            self._batches.append(batch)

    def emit_direct(self, task: int, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        self._check_stream(stream)
        raise TupleError(
            f"component {self._component!r} emitted directly to stream {stream!r}, which is not declared "
            f"with direct=True; a spout has no such streams"
        )

    def finish(self) -> list[pa.RecordBatch]:
        """Close the collector and return all that was emitted, in order."""
        self._is_open = False
        self._flush()
        return self._batches

    def _flush(self) -> None:
        if not self._rows:
            return
        rows, self._rows = self._rows, []
        try:
            self._batches.append(to_record_batch(rows, self._schema))
        except UnfitValueError as error:
            raise TupleError(
                f"component {self._component!r} emitted {error.value!r:.200} ({type(error.value).__name__}) "
                f"in field {error.field.name!r} of stream {DEFAULT_STREAM!r}, which is declared as "
                f"{format_type(error.field.type)}"
            ) from error

    def _check_stream(self, stream: str) -> None:
        if not self._is_open:
            raise UsageError(
                f"component {self._component!r} used a collector outside of its attempt; take the one that "
                f"emit_batch gets, and use it until that returns"
            )
        if stream != DEFAULT_STREAM:
            raise TupleError(
                f"component {self._component!r} emitted to stream {stream!r}, but declares {DEFAULT_STREAM!r}"
            )

    def _wrong_arity(self, values: object) -> TupleError:
        return TupleError(
            f"component {self._component!r} emitted {values!r:.200} to stream {DEFAULT_STREAM!r}, which "
            f"takes a tuple of {len(self._schema)} field(s): {format_schema(self._schema)}"
        )


def _decode(codec: MetaCodec[Meta], transaction: BatchTransaction) -> Meta:
    return codec.decode_meta(transaction.meta, f"the meta of txid {transaction.txid}")
