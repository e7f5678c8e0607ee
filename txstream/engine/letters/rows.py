"""Makes the rows of a batch's dead letters: records as the source has them. Those that no worker has sent
along are read again."""

from __future__ import annotations

import base64
import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txstream.api.schema import parse_schema
from txstream.api.spouts import PartitionedSpout, PartitionEmitter, SpoutContext
from txstream.core.batch_metas import BatchMetas, until
from txstream.core.dead_letters import DeadLetter, Excluded
from txstream.core.errors import ShortReadError
from txstream.core.transaction import TransactionAttempt
from txstream.core.wording import counted
from txstream.engine.letters.isolation import Found

_KAFKA = {"topic", "partition", "offset", "value"}
_LARGEST_GAP = 1_000  # a read of its own takes longer than so many records
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class LetterReader:
    """Reads the records that batches leave out. May be called from several threads at once. Connections are
    kept until `close`: a batch with bad records is seldom the only one."""

    def __init__(self, source: PartitionedSpout[Any], context: SpoutContext) -> None:
        self._source = source
        self._context = context
        self._idle: deque[PartitionEmitter[Any]] = deque()

    def __call__(
        self, attempt: TransactionAttempt, metas: BatchMetas[Any], found: Sequence[Found]
    ) -> list[DeadLetter]:
        """Return the rows of what a batch leaves out; message and traceback are known only of what was found
        now. Raises what an emitter raises, and ShortReadError for a record that is not there."""
        if not metas.excluded:
            return []
        told = {(one.record.partition, one.record.offset): one for one in found}
        rows = {place: one.row for place, one in told.items() if one.row is not None}
        unread = [one for one in metas.excluded if (one.partition, one.offset) not in rows]
        if unread:
            rows |= self._read(attempt, replace(metas, excluded=tuple(unread)))
        return [
            _letter(one, rows[one.partition, one.offset], told.get((one.partition, one.offset)))
            for one in metas.excluded
        ]

    def _read(
        self, attempt: TransactionAttempt, metas: BatchMetas[Any]
    ) -> dict[tuple[str, int], Mapping[str, Any]]:
        source = self._source.undecoded()
        gap = _LARGEST_GAP if set(parse_schema(source.output).names) >= _KAFKA else 0
        try:
            emitter = self._idle.pop()
        except IndexError:
            emitter = source.emitter(self._context)
        try:
            rows = _rows(emitter, attempt, metas, gap)
        except BaseException:
            emitter.close()
            raise
        self._idle.append(emitter)
        return {(one.partition, one.offset): row for one, row in zip(metas.excluded, rows, strict=True)}

    def close(self) -> None:
        """Close what is idle."""
        while self._idle:
            self._idle.pop().close()


def _together(records: Sequence[Excluded], gap: int) -> Iterator[list[Excluded]]:
    """Yield what is worth one read, in order: records of one partition with at most so many others between
    two. Late ones may be thousands."""
    some: list[Excluded] = []
    for record in records:
        if some and (record.partition != some[-1].partition or record.offset > some[-1].offset + gap + 1):
            yield some
            some = []
        some.append(record)
    yield some


def _rows(
    emitter: PartitionEmitter[Any], attempt: TransactionAttempt, metas: BatchMetas[Any], gap: int
) -> list[Mapping[str, Any]]:
    """Return the records that a batch leaves out, in their order. Partitions are read at the same time."""
    by_partition: dict[str, list[list[Excluded]]] = {}
    for some in _together(metas.excluded, gap):
        by_partition.setdefault(some[0].partition, []).append(some)
    found: dict[str, list[Mapping[str, Any]]] = {name: [] for name in by_partition}
    for each in zip_longest(*by_partition.values()):
        wanted = {some[0].partition: [one.offset for one in some] for some in each if some}
        spans = {
            name: until(replace(metas.partitions[name], start=offsets[0]), offsets[-1] + 1)
            for name, offsets in wanted.items()
        }
        behind = {name: len(found[name]) for name in wanted}
        for name, batch in emitter.emit_many(attempt, spans):
            if set(batch.schema.names) >= _KAFKA:
                offsets = pa.array(wanted[name], pa.int64())
                batch = batch.filter(pc.is_in(batch.column("offset"), offsets))
            found[name] += batch.to_pylist()
        for name, offsets in wanted.items():
            there = len(found[name]) - behind[name]
            if there != len(offsets):
                raise ShortReadError(
                    f"{attempt} leaves out {counted(len(offsets), 'record')} from {offsets[0]} on of "
                    f"partition {name!r}, of which {there:,} are there to be kept as dead letters"
                )
    return [row for name in by_partition for row in found[name]]


def _letter(record: Excluded, row: Mapping[str, Any], found: Found | None) -> DeadLetter:
    is_kafka = row.keys() >= _KAFKA
    timestamp = row.get("timestamp") if is_kafka else None
    headers = row.get("headers") if is_kafka else None
    return DeadLetter(
        source=f"{record.partition}@{record.offset}",
        topic=row["topic"] if is_kafka else None,
        partition=row["partition"] if is_kafka else None,
        offset=record.offset,
        timestamp_ms=None if timestamp is None else (timestamp - _EPOCH) // timedelta(milliseconds=1),
        key=row.get("key") if is_kafka else None,
        value=row["value"] if is_kafka else json.dumps(row, default=str).encode(),
        headers=None if headers is None else _headers(headers),
        component=record.component,
        exception=record.exception,
        message="" if found is None else found.message,
        traceback="" if found is None else found.traceback,
    )


def _headers(headers: Sequence[Mapping[str, Any]]) -> bytes:
    pairs = [
        [one["key"], None if one["value"] is None else base64.b64encode(one["value"]).decode()]
        for one in headers
    ]
    return json.dumps(pairs).encode()
