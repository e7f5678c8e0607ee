"""The executors' side of `KafkaSource`: planned ranges as Arrow record batches.

Invariants:

- One emitter, one client, one connection per broker in each worker process, kept between batches. Connections
  are opened by the first read.
- A range gives the same rows in the same order whenever it is read; rows of one partition are ordered by
  offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from txstream.api.errors import DecodeError, PartitionUnavailableError, ServiceUnavailableError
from txstream.api.spouts import PartitionEmitter, SpoutContext
from txstream.spouts.kafka import KafkaRange, KafkaSource
from txstream.spouts.kafka_client import KafkaClient
from txstream.spouts.kafka_fetch import CHUNK_OFFSETS, RangeFetcher, RangeRead
from txstream.spouts.kafka_protocol import Partition
from txstream.spouts.kafka_records import Headers, RecordColumns, first_invalid
from txstream.transaction import TransactionAttempt

_CHUNK_BYTES = 16 * 1024 * 1024
_MAX_PARTITION_BYTES = 8 * 1024 * 1024
_MAX_BYTES = 64 * 1024 * 1024
_MILLISECONDS = pa.timestamp("ms", tz="UTC")


class KafkaPartitionEmitter(PartitionEmitter[KafkaRange]):
    """Reads ranges with one Kafka client."""

    def __init__(self, source: KafkaSource, context: SpoutContext) -> None:
        self._source = source
        self._context = context
        self._client: KafkaClient | None = None
        self._fetcher: RangeFetcher | None = None

    def emit(self, attempt: TransactionAttempt, partition: str, meta: KafkaRange) -> Iterator[pa.RecordBatch]:
        """The rows of one range. Errors as in the contract, and DecodeError for invalid UTF-8."""
        for _, batch in self.emit_many(attempt, {partition: meta}):
            yield batch

    def emit_many(
        self, attempt: TransactionAttempt, metas: Mapping[str, KafkaRange]
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The rows of several ranges, read together; chunks of different partitions are interleaved."""
        reads = [RangeRead(name, wanted) for name, wanted in metas.items() if not wanted.is_empty]
        if not reads:
            return
        for read in self._open().run(reads):
            rows = len(read.columns)
            if rows and (read.finished or rows >= CHUNK_OFFSETS or read.columns.size_bytes >= _CHUNK_BYTES):
                yield read.name, self._batch(read.partition, read.take())

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
        except ServiceUnavailableError as error:  # on an executor that is an outage: the batch waits
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

    def _batch(self, partition: Partition, columns: RecordColumns) -> pa.RecordBatch:
        rows = len(columns)
        schema = self._source.output
        replace = self._source.errors == "replace"
        return pa.RecordBatch.from_arrays(
            [
                _payload("key", columns.keys, schema.field("key").type, partition, columns, replace),
                _payload("value", columns.values, schema.field("value").type, partition, columns, replace),
                pa.repeat(pa.scalar(partition.topic), rows),
                pa.repeat(pa.scalar(partition.number, pa.int32()), rows),
                pa.array(columns.offsets, pa.int64()),
                pa.array(columns.timestamps, pa.int64())
                .cast(_MILLISECONDS)
                .cast(schema.field("timestamp").type),
                pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(columns.timestamp_types)]),
                _headers(columns, schema.field("headers").type, partition, replace),
            ],
            schema=schema,
        )


def _payload(
    what: str,
    column: list[bytes | None],
    data_type: pa.DataType,
    partition: Partition,
    columns: RecordColumns,
    replace: bool,
) -> pa.Array:
    """Keys or values. Arrow checks UTF-8 for the whole column; the culprit is looked for only if there is
    one."""
    if column.count(None) == len(column):
        return pa.nulls(len(column), data_type)
    raw = pa.array(column, pa.binary())
    if data_type == pa.binary():
        return raw
    try:
        return raw.cast(data_type)
    except pa.ArrowInvalid:
        invalid = first_invalid(column)
        if invalid is None:
            raise
        if replace:
            return pa.array([v if v is None else v.decode(errors="replace") for v in column], data_type)
        row, error = invalid
        raise _not_utf8(what, partition, columns.offsets[row], error) from error


def _headers(columns: RecordColumns, data_type: pa.DataType, partition: Partition, replace: bool) -> pa.Array:
    """Null where a record has none, as Spark has it."""
    rows = len(columns)
    if not columns.headers:
        return pa.nulls(rows, data_type)
    shown: list[list[dict[str, Any]] | None] = [None] * rows
    for row, headers in columns.headers.items():
        try:
            shown[row] = _decoded(headers, "replace" if replace else "strict")
        except UnicodeDecodeError as error:
            raise _not_utf8("name of a header", partition, columns.offsets[row], error) from error
    return pa.array(shown, data_type)


def _decoded(headers: Headers, errors: str) -> list[dict[str, Any]]:
    return [{"key": key.decode(errors=errors), "value": value} for key, value in headers]


def _not_utf8(what: str, partition: Partition, offset: int, error: UnicodeDecodeError) -> DecodeError:
    return DecodeError(
        f"the {what} of the record at offset {offset} of topic {partition.topic!r}, partition "
        f"{partition.number}, is not UTF-8 ({error.reason} at byte {error.start}); read it with "
        f"errors='replace' or as 'binary'"
    )
