"""Makes the rows of a batch's dead letters: its records are read again, as the source has them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
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

Letters = Callable[[TransactionAttempt, BatchMetas[Any], Sequence[Found]], Sequence[DeadLetter]]
"""Returns the rows of what a batch leaves out. Message and traceback are known only of what was found now."""

_KAFKA = {"topic", "partition", "offset", "value"}
_LARGEST_GAP = 100  # a read of its own takes longer than so many records
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def letters_of(
    source: PartitionedSpout[Any],
    context: SpoutContext,
    attempt: TransactionAttempt,
    metas: BatchMetas[Any],
    found: Sequence[Found],
) -> list[DeadLetter]:
    """Read the records that a batch leaves out. Raises what an emitter raises, and ShortReadError for a
    record that is not there."""
    if not metas.excluded:
        return []
    told = {(one.record.partition, one.record.offset): one for one in found}
    undecoded = source.undecoded()
    gap = _LARGEST_GAP if set(parse_schema(undecoded.output).names) >= _KAFKA else 0
    emitter = undecoded.emitter(context)
    try:
        return [
            _letter(record, row, told.get((record.partition, record.offset)))
            for some in _together(metas.excluded, gap)
            for record, row in zip(some, _rows(emitter, attempt, metas, some), strict=True)
        ]
    finally:
        emitter.close()


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
    emitter: PartitionEmitter[Any],
    attempt: TransactionAttempt,
    metas: BatchMetas[Any],
    records: Sequence[Excluded],
) -> list[Mapping[str, Any]]:
    partition, offsets = records[0].partition, [one.offset for one in records]
    span = until(replace(metas.partitions[partition], start=offsets[0]), offsets[-1] + 1)
    found: list[Mapping[str, Any]] = []
    for batch in emitter.emit(attempt, partition, span):
        if set(batch.schema.names) >= _KAFKA:
            batch = batch.filter(pc.is_in(batch.column("offset"), pa.array(offsets, pa.int64())))
        found += batch.to_pylist()
    if len(found) != len(records):
        raise ShortReadError(
            f"{attempt} leaves out {counted(len(records), 'record')} from {offsets[0]} on of partition "
            f"{partition!r}, of which {len(found):,} are there to be kept as dead letters"
        )
    return found


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
