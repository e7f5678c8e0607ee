"""The executors' side of `KafkaSource`: planned ranges as Arrow record batches.

Invariants:

- Each worker process has one emitter, with one client and one connection per broker, kept between batches.
  The first read opens the connections.
- A range gives the same rows in the same order whenever it is read. Rows of one partition are ordered by
  offset.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import pyarrow as pa

from txstream.api.spouts import Offsets, PartitionEmitter, SpoutContext, Unfit
from txstream.core.errors import PartitionUnavailableError, ServiceUnavailableError
from txstream.core.readings import Reading
from txstream.core.transaction import TransactionAttempt
from txstream.spouts.kafka import KafkaRange, KafkaSource
from txstream.spouts.kafka.client import KafkaClient
from txstream.spouts.kafka.columns import Part, Readers, fitting_batch, joined_batch, readers
from txstream.spouts.kafka.fetch import CHUNK_OFFSETS, RangeFetcher
from txstream.spouts.kafka.range_read import RangeRead

_CHUNK_BYTES = 16 * 1024 * 1024
_MAX_PARTITION_BYTES = 8 * 1024 * 1024
_MAX_BYTES = 64 * 1024 * 1024


class KafkaPartitionEmitter(PartitionEmitter[KafkaRange]):
    """Reads ranges with one Kafka client."""

    def __init__(self, source: KafkaSource, context: SpoutContext) -> None:
        self._source = source
        self._context = context
        self._client: KafkaClient | None = None
        self._fetcher: RangeFetcher | None = None
        self._read = readers(source, context)
        self._reading = Reading()
        self._stored: deque[tuple[str, Part]] | None = None
        self._room = 0

    def emit(self, attempt: TransactionAttempt, partition: str, meta: KafkaRange) -> Iterator[pa.RecordBatch]:
        """The rows of one range. Raises the contract's errors, and DecodeError for what cannot be decoded."""
        for _, batch in self.emit_many(attempt, {partition: meta}):
            yield batch

    def emit_many(
        self, attempt: TransactionAttempt, metas: Mapping[str, KafkaRange]
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The rows of several ranges, read together; chunks of different partitions are interleaved."""
        for counts, batch in self.emit_joined(attempt, metas):
            first = 0
            for partition, rows in counts.items():
                yield partition, batch.slice(first, rows)
                first += rows

    def emit_joined(
        self, attempt: TransactionAttempt, metas: Mapping[str, KafkaRange]
    ) -> Iterator[tuple[Mapping[str, int], pa.RecordBatch]]:
        """As `emit_many`, with chunks of several partitions in one batch and the row counts of each."""
        for names, parts in self._parts(metas):
            counts = {name: len(columns) for name, (_, columns) in zip(names, parts, strict=True)}
            yield counts, joined_batch(self._source, self._read, parts)

    def emit_fitting(
        self, attempt: TransactionAttempt, metas: Mapping[str, KafkaRange], unfit: Unfit
    ) -> Iterator[tuple[Mapping[str, int], pa.RecordBatch, Offsets | None]]:
        """As `emit_joined`, without the records that cannot be decoded."""
        for names, parts in self._parts(metas):
            found = fitting_batch(self._source, self._read, parts)
            for partition, offset, error in found.unfit:
                unfit(partition.name, offset, error)
            yield dict(zip(names, found.counts, strict=True)), found.batch, found.offsets

    def _parts(self, metas: Mapping[str, KafkaRange]) -> Iterator[tuple[list[str], list[Part]]]:
        """Yield what is made into one batch: names of partitions, and their records."""
        reads = [RangeRead(name, wanted) for name, wanted in metas.items() if not wanted.is_empty]
        if not reads:
            return
        self._read.know(self.known)
        for progressed in self._open().run(reads):
            for some in _chunks(progressed):
                parts = [(read.partition, read.take()) for read in some]
                if self.tells_digests:
                    self._reading += Reading({p.name: (len(c), c.digest()) for p, c in parts})
                if self._source.tombstones == "skip":
                    parts = [(partition, columns.with_values()) for partition, columns in parts]
                names = [read.name for read in some]
                if self._stored is not None:
                    self._keep(self._stored, zip(names, parts, strict=True))
                yield names, parts

    def keep_stored(self, most_bytes: int) -> None:
        """See `PartitionEmitter.keep_stored`. When there is too much, the oldest goes."""
        self._stored, self._room = deque() if most_bytes else None, most_bytes

    def _keep(self, stored: deque[tuple[str, Part]], read: Iterable[tuple[str, Part]]) -> None:
        for one in read:
            stored.append(one)
            self._room -= one[1][1].size_bytes
        while stored and self._room < 0:
            self._room += stored.popleft()[1][1].size_bytes

    def take_stored(self, places: Sequence[tuple[str, int]]) -> pa.Table | None:
        """See `PartitionEmitter.take_stored`."""
        kept, self._stored = self._stored or (), None
        parts = []
        for name, offset in places:
            some = ((part[0], part[1].at(offset)) for at, part in kept if at == name)
            found = next((one for one in some if len(one[1])), None)
            if found is None:
                return None
            parts.append(found)
        return pa.Table.from_batches([joined_batch(*self._undecoded, parts)])

    @cached_property
    def _undecoded(self) -> tuple[KafkaSource, Readers]:
        source = self._source.undecoded()
        return source, readers(source, self._context)

    def take_ahead(self, metas: Mapping[str, KafkaRange], ahead: Mapping[str, bytes]) -> None:
        """Keep what the coordinator's fetch has brought of these ranges: record batches from their starts."""
        self._open().keep_ahead({name: (metas[name], data) for name, data in ahead.items() if name in metas})

    def take_reading(self) -> Reading:
        """See `PartitionEmitter.take_reading`."""
        reading, self._reading = self._reading, Reading()
        return reading + Reading({}, self._read.take_fetched())

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = self._fetcher = None

    def _open(self) -> RangeFetcher:
        if self._fetcher is not None:
            return self._fetcher
        source, context = self._source, self._context
        options = dict(source.client_options)
        max_partition_bytes = int(options.pop("max_partition_fetch_bytes", _MAX_PARTITION_BYTES))
        max_bytes = int(options.pop("fetch_max_bytes", _MAX_BYTES))
        client = KafkaClient(
            source.address(context),
            options,
            client_id=options.get("client_id", f"txstream-{context.topology_id}-{context.component}"),
        )
        try:
            client.connect(context.connect_timeout_seconds)
        except ServiceUnavailableError as error:  # on an executor this is an outage: the batch waits
            client.close()
            raise PartitionUnavailableError(str(error)) from error
        self._client = client
        self._fetcher = RangeFetcher(
            client,
            read_committed=source.isolation_level == "read_committed",
            fetch_timeout_seconds=context.fetch_timeout_seconds,
            skip_lost=source.on_data_loss == "skip",
            max_partition_bytes=max_partition_bytes,
            max_bytes=max_bytes,
        )
        return self._fetcher


def _chunks(reads: Iterable[RangeRead]) -> Iterator[list[RangeRead]]:
    """The reads whose rows are ready, grouped into chunks."""
    ready: list[RangeRead] = []
    rows = size = 0
    for read in reads:
        count, taken = len(read.columns), read.columns.size_bytes
        if not count or not (read.finished or _is_chunk(count, taken)):
            continue
        ready.append(read)
        rows += count
        size += taken
        if _is_chunk(rows, size):
            yield ready
            ready, rows, size = [], 0, 0
    if ready:
        yield ready


def _is_chunk(rows: int, size_bytes: int) -> bool:
    return rows >= CHUNK_OFFSETS or size_bytes >= _CHUNK_BYTES
