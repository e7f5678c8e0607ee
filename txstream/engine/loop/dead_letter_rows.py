"""Makes the rows of a batch's dead letters: its records are read again, as the source has them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from txstream.api.errors import ShortReadError
from txstream.api.spouts import PartitionedSpout, PartitionEmitter, SpoutContext
from txstream.batch_metas import BatchMetas
from txstream.dead_letters import DeadLetter, Excluded
from txstream.engine.loop.isolation import Found, alone_in
from txstream.transaction import TransactionAttempt

Letters = Callable[[TransactionAttempt, BatchMetas[Any], Sequence[Found]], Sequence[DeadLetter]]
"""Returns the rows of what a batch leaves out. Message and traceback are known only of what was found now."""

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
    emitter = source.undecoded().emitter(context)
    try:
        return [
            _letter(
                record, _row(emitter, attempt, metas, record), told.get((record.partition, record.offset))
            )
            for record in metas.excluded
        ]
    finally:
        emitter.close()


def _row(
    emitter: PartitionEmitter[Any], attempt: TransactionAttempt, metas: BatchMetas[Any], record: Excluded
) -> Mapping[str, Any]:
    alone = alone_in(metas, record).partitions[record.partition]
    for batch in emitter.emit(attempt, record.partition, alone):
        for row in batch.to_pylist():
            found: Mapping[str, Any] = row
            return found
    raise ShortReadError(
        f"{attempt} leaves out the record at {record.offset} of partition {record.partition!r}, which is not "
        f"there to be kept as a dead letter"
    )


def _letter(record: Excluded, row: Mapping[str, Any], found: Found | None) -> DeadLetter:
    is_kafka = {"topic", "partition", "offset", "value"} <= row.keys()
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
