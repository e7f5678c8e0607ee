"""Answers as JSON values: what `--json` prints. Names here are public: new ones may come, none is changed.

Times are ISO 8601, bytes are hexadecimal, and decimals are text, as are numbers that JSON does not have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from txstream.core.semantics import Semantics
from txstream.core.transaction import epoch_of

if TYPE_CHECKING:
    from txstream.core.failing_batch import FailingBatch
    from txstream.inspect.records import (
        Batch,
        BatchDetails,
        FailedAttempt,
        LedgerEntry,
        PartitionRange,
        StateRow,
    )


def plain_value(value: Any) -> Any:
    """Return a column's value as a JSON value."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (bytes, memoryview)):
        return bytes(value).hex()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def document(answer: Any) -> Any:
    """Return a dataclass of this package as JSON values, field by field."""
    if is_dataclass(answer) and not isinstance(answer, type):
        return {field.name: document(getattr(answer, field.name)) for field in fields(answer)}
    if isinstance(answer, Mapping):
        return {str(name): document(value) for name, value in answer.items()}
    if isinstance(answer, (list, tuple)):
        return [document(value) for value in answer]
    return plain_value(answer)


def plain_partitions(metas: Mapping[str, Any]) -> dict[str, Any]:
    """Return a ledger row's ranges for scripts: only start and end where a meta has them."""
    return {partition: plain_range(meta) for partition, meta in metas.get("partitions", {}).items()}


def plain_range(meta: Any) -> Any:
    if isinstance(meta, Mapping) and {"start", "end"} <= meta.keys():
        return {"start": meta["start"], "end": meta["end"]}
    return meta


def places_of(metas: Mapping[str, Any]) -> dict[str, int]:
    """Return where partitions begin that have had a first place and nothing since, as a ledger row has it."""
    return {
        partition: meta["end"]
        for partition, meta in metas.get("carried", {}).items()
        if isinstance(meta, Mapping) and meta.get("first_place") == "known"
    }


def entry_document(txid: int, row: LedgerEntry) -> dict[str, Any]:
    """Return a ledger row. `partitions` is what the batch read, only start and end where a meta has them."""
    found: dict[str, Any] = {
        "txid": txid,
        "attempt": row.attempt,
        "epoch": epoch_of(row.attempt),
        "status": row.status,
        "semantics": str(row.semantics),
        "tuples": row.tuples,
        "keys": row.keys,
        "lag_records": row.lag_records,
        "partitions": plain_partitions(row.metas),
        "unavailable": row.metas.get("unavailable", {}),
        "planned_at": iso(row.planned_at),
        "processed_at": iso(row.processed_at),
        "committed_at": iso(row.committed_at),
        "error": row.error,
    }
    skipped = {
        partition: {"from": meta["skipped_from"], "to": meta.get("start")}
        for partition, meta in {**row.metas.get("carried", {}), **row.metas.get("partitions", {})}.items()
        if isinstance(meta, dict) and meta.get("skipped_from") is not None
    }
    if skipped:
        found["skipped"] = skipped
    return found


def batch_document(batch: Batch) -> dict[str, Any]:
    """Return a batch: its first ledger row, `keys` over all databases, and each row under `databases`."""
    found = entry_document(batch.txid, batch.first)
    found |= {"status": batch.status, "keys": batch.keys, "databases": _rows_by_database(batch)}
    found |= {"dead_letters": batch.dead_letters, "timings": dict(batch.timings)}
    return found


def details_document(details: BatchDetails) -> dict[str, Any]:
    """Return what `batch_document` does, and `ranges` (a list, with records and the stored meta), `path`,
    `failed_attempts`, `taken_up` (by partition, txids) and `phases` (seconds that add up)."""
    from txstream.inspect.phases import phases

    return {
        **batch_document(details.batch),
        "phases": {step: round(seconds, 6) for step, seconds in phases(details.batch).items()},
        "ranges": [_range_document(one) for one in details.ranges],
        "path": details.path,
        "failed_attempts": [_attempt_document(one) for one in details.failed_attempts],
        "taken_up": {name: list(txids) for name, txids in details.taken_up.items()},
    }


def _range_document(one: PartitionRange) -> dict[str, Any]:
    return {
        "partition": one.partition,
        "start": one.start,
        "end": one.end,
        "records": one.records,
        "skipped_from": one.skipped_from,
        "meta": one.meta,
    }


def _attempt_document(one: FailedAttempt) -> dict[str, Any]:
    return {
        "attempt": one.attempt,
        "error": one.error,
        "failed_at": iso(one.failed_at),
        "ranges": None
        if one.ranges is None
        else {held.partition: plain_range(held.meta) for held in one.ranges},
        "left_out": list(one.left_out),
        "more": one.more,
        "traceback": one.traceback,
    }


def failing_document(batch: FailingBatch) -> dict[str, Any]:
    """Return a batch whose attempts fail: the latest of them, and what it holds as far as that is known."""
    from txstream.inspect.ledgers import attempts_in, ranges_in

    return {
        "txid": batch.txid,
        "status": "retrying" if batch.may_pass else "failing",
        "failed_attempts": batch.failed_attempts,
        "last_attempt": batch.attempt,
        "last_failed_at": batch.at.isoformat(),
        "reasons": dict(batch.reasons),
        "ranges": [_range_document(one) for one in ranges_in(batch.metas)],
        "more_ranges": batch.metas.get("more", 0),
        "latest_attempts": [_attempt_document(one) for one in attempts_in(batch.attempts, batch.metas)],
    }


def _rows_by_database(batch: Batch) -> list[dict[str, Any]]:
    return [
        {
            "database": row.database,
            "attempt": row.attempt,
            "status": row.status,
            "keys": row.keys,
            "committed_at": iso(row.committed_at),
        }
        for row in batch.entries
    ]


def flat_row(
    row: StateRow,
    semantics: Semantics,
    plain: Callable[[Any], Any] = plain_value,
    *,
    has_prev: bool = False,
) -> dict[str, Any]:
    """Return a row by column, in the table's order: keys, each value followed by its prev_, then txid."""
    found = {name: plain(value) for name, value in row.key.items()}
    for name, value in row.value.items():
        found[name] = plain(value)
        if has_prev:
            found[f"prev_{name}"] = None if row.prev is None else plain(row.prev.get(name))
    if semantics is not Semantics.NON_TRANSACTIONAL:
        found["txid"] = row.txid
    return found


def iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
