"""Batches as the ledgers have them, over all databases of a topology."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from txstream.core.errors import UsageError
from txstream.core.transaction import AttemptId, Txid
from txstream.core.wording import in_order
from txstream.inspect.databases import Where, topology_databases
from txstream.inspect.records import (
    Batch,
    BatchDetails,
    Batches,
    FailedAttempt,
    LedgerEntry,
    MissingDatabase,
    PartitionRange,
    numbers_of,
)

if TYPE_CHECKING:
    from txstream.state import BatchRecord, StateBackend

_CHUNK = 1000
COMMITTED, COMMITTING, PARTIAL = "committed", "committing", "partial"


class UnknownTxidError(UsageError):
    """The ledger has no batch of this txid; the message says which txids it has."""

    exit_status = 1


def batches(
    topology_id: str,
    settings: Where = None,
    *,
    last: int | None = None,
    before: int | None = None,
    since: datetime | None = None,
    failed: bool = False,
    left_out: bool = False,
    missing: list[MissingDatabase] | None = None,
) -> Batches:
    """Return a topology's batches, oldest first. `before` takes those before a txid, `since` those committed
    at a time (with a time zone) or later, `failed` those that had trouble (a failed attempt, or not committed
    everywhere), `left_out` those that went without a partition. `last` takes only the newest of these.
    Batches older than those asked for are not read.

    Raises UnknownTopologyError, and UsageError for arguments that make no sense. Databases that cannot be
    opened are added to the list `missing`; without the list ServiceUnavailableError is raised.
    """
    for name, number in (("last", last), ("before", before)):
        if number is not None and number < 1:
            raise UsageError(f"{name} is {number}; it must be at least 1")
    if since is not None and since.tzinfo is None:
        raise UsageError(
            f"since is {since.isoformat()}, without a time zone; give one, for example datetime.UTC"
        )

    def is_asked_for(one: Batch) -> bool:
        return (
            (since is None or _moment(one) >= since)
            and (not failed or _had_trouble(one))
            and (not left_out or bool(part_of(one.first.metas, "unavailable")))
        )

    is_part = since is not None or failed or left_out
    limit: int | None = _CHUNK if is_part and (last is not None or since is not None) else last
    with topology_databases(settings, topology_id, missing) as databases:
        while True:
            rows = {
                db.display_url: db.batches(topology_id, limit=limit, before=before) for db in databases.opened
            }
            merged = merge(rows)
            following = None
            if merged and before is not None:
                following = next(_after(topology_id, merged[-1].txid, databases.opened), None)
            merged = _with_commits(merged, following)
            found = [one for one in merged if is_asked_for(one)]
            enough = last is not None and len(found) > last
            older = since is not None and merged and _moment(merged[0]) < since
            # One more than was asked for, because the first may be read only in part if databases are apart.
            if limit is None or not is_part or enough or older or all(len(r) < limit for r in rows.values()):
                break
            limit *= 4
        found = _with_dead_letters(topology_id, found, databases.opened)
    return Batches(found[-last:] if last is not None else found)


def _with_dead_letters(
    topology_id: str, found: Sequence[Batch], databases: Sequence[StateBackend]
) -> list[Batch]:
    from txstream.inspect.left_out import left_out

    counts = left_out(topology_id, databases)
    return [replace(one, dead_letters=counts[one.txid]) if counts[one.txid] else one for one in found]


def _with_commits(merged: Sequence[Batch], following: BatchRecord | None) -> list[Batch]:
    """Add what the row of the next txid has of each commit. `following` is a row after the last batch."""
    told = {one.txid: one.first.details.get("timings_before") for one in merged}
    if following is not None:
        told[following.txid] = following.details.get("timings_before")
    return [
        replace(one, in_commit=numbers_of(before)) if (before := told.get(Txid(one.txid + 1))) else one
        for one in merged
    ]


def _moment(batch: Batch) -> datetime:
    return batch.first.committed_at or batch.first.planned_at


def _had_trouble(batch: Batch) -> bool:
    return batch.status != COMMITTED or any(failed_attempts(entry) for entry in batch.entries)


def batch(
    topology_id: str,
    txid: int,
    settings: Where = None,
    *,
    missing: list[MissingDatabase] | None = None,
) -> BatchDetails:
    """Return one batch in full. Raises UnknownTxidError, and as `batches`."""
    with topology_databases(settings, topology_id, missing) as databases:
        records = {db.display_url: db.batch(topology_id, txid) for db in databases.opened}
        rows = {url: [] if record is None else [record] for url, record in records.items()}
        if not any(rows.values()):
            raise no_such_txid(topology_id, txid, databases.opened)
        (one,) = _with_dead_letters(topology_id, merge(rows), databases.opened)
        (one,) = _with_commits([one], next(_after(topology_id, txid, databases.opened), None))
        found = details(one)
        return replace(found, taken_up=_taken_up(found, _after(topology_id, txid, databases.opened)))


def _after(topology_id: str, txid: int, databases: Sequence[StateBackend]) -> Iterator[BatchRecord]:
    """Yield the batches after a txid, one by one: what was left out mostly comes soon."""
    for later in range(txid + 1, txid + 1 + _CHUNK):
        rows = [row for database in databases if (row := database.batch(topology_id, later)) is not None]
        if not rows:
            return
        yield rows[0]


def _taken_up(found: BatchDetails, later: Iterator[BatchRecord]) -> dict[str, tuple[Txid, ...]]:
    """Return, for each partition that a batch left out, the later batches that hold what it would have held:
    what its failed attempts held, or else what came next of the partition."""
    until: dict[str, int] = {}
    for one in (one for failed in found.failed_attempts for one in failed.ranges or ()):
        until[one.partition] = max(one.end or 0, until.get(one.partition, 0))
    taken: dict[str, tuple[Txid, ...]] = dict.fromkeys(found.unavailable, ())
    missing = set(taken)
    while missing and (row := next(later, None)) is not None:
        held = part_of(row.metas, "partitions")
        for name in missing & held.keys():
            taken[name] += (row.txid,)
            end = range_of(name, held[name]).end
            if end is None or end >= until.get(name, 0):
                missing.discard(name)
    return taken


def no_such_txid(topology_id: str, txid: int, databases: Sequence[StateBackend]) -> UnknownTxidError:
    """Return the error for a missing txid, which names the existing ones."""
    oldest = [first for db in databases if (first := db.oldest_txid(topology_id)) is not None]
    newest = [row.txid for db in databases if (row := db.last_batch(topology_id)) is not None]
    txids = [min(oldest), max(newest)] if oldest and newest else []
    there = f"it has txid {txids[0]} to {txids[-1]}" if txids else "it has none yet"
    if txids and 0 < txid < txids[0]:
        there = f"it was pruned (`--keep-ledger`): the ledger begins at txid {txids[0]}"
    return UnknownTxidError(f"the ledger of topology {topology_id!r} has no txid {txid}; {there}")


def rewound_to(row: BatchRecord) -> Txid | None:
    """Return the txid that a batch has put all states back to; None for one that is no rewind."""
    told = row.details.get("rewind")
    to = told.get("to") if isinstance(told, Mapping) else None
    return Txid(to) if isinstance(to, int) else None


def standing_rows(rows: Sequence[BatchRecord]) -> list[BatchRecord]:
    """Return those of a ledger's rows, oldest first, whose effects were not undone by a rewind."""
    found: list[BatchRecord] = []
    newest = rows[-1].txid if rows else 0
    for row in reversed(rows):
        if row.txid <= newest:
            found.append(row)
            to = rewound_to(row)
            newest = newest if to is None else to
    return found[::-1]


def standing(topology_id: str, database: StateBackend, newest: int, oldest: int) -> Iterator[Txid]:
    """Yield the txids from `newest` down to `oldest` whose effects were not undone by a rewind."""
    txid = newest
    while txid >= oldest:
        row = database.batch(topology_id, txid)
        to = None if row is None else rewound_to(row)
        if to is None:
            yield Txid(txid)
        txid = txid - 1 if to is None else to


def merge(by_database: Mapping[str, Sequence[BatchRecord]]) -> list[Batch]:
    """Merge the ledger rows of several databases into batches, by txid."""
    entries: dict[Txid, list[LedgerEntry]] = {}
    first = {url: rows[0].txid for url, rows in by_database.items() if rows}
    for url, rows in by_database.items():
        for row in rows:
            entries.setdefault(row.txid, []).append(entry(url, row))
    found = []
    for txid, rows_of_it in sorted(entries.items()):
        # A database whose older rows were pruned had a row of this txid.
        absent = any(txid >= first.get(url, 1) for url in by_database if url not in _places(rows_of_it))
        statuses = {row.status for row in rows_of_it}
        status = COMMITTING if COMMITTING in statuses else PARTIAL if absent else COMMITTED
        found.append(Batch(txid, status, tuple(rows_of_it)))
    return found


def _places(entries: Iterable[LedgerEntry]) -> set[str]:
    return {entry.database for entry in entries}


def throughput(batches: Sequence[BatchRecord | LedgerEntry]) -> float:
    """Records per second from the first commit of these batches to the last, without Spark's start."""
    times = [row.committed_at for row in batches if row.committed_at is not None]
    seconds = (max(times) - min(times)).total_seconds() if times else 0.0
    return sum(row.tuples for row in batches[1:]) / seconds if seconds > 0 else 0.0


def entry(database: str, row: BatchRecord) -> LedgerEntry:
    """Return a ledger row with its database."""
    return LedgerEntry(
        database=database,
        uuid=row.uuid,
        attempt=row.attempt,
        semantics=row.semantics,
        status=row.status,
        tuples=row.tuples,
        keys=row.keys,
        planned_at=row.planned_at,
        processed_at=row.processed_at,
        committed_at=row.committed_at,
        error=row.error,
        metas=row.metas,
        details=row.details,
    )


# --- one batch -------------------------------------------------------------------------------------


def details(found: Batch) -> BatchDetails:
    """Return what is known of a batch from its ledger rows."""
    metas = found.first.metas
    ranges, carried = (_ranges(part_of(metas, name)) for name in ("partitions", "carried"))
    best = max(found.entries, key=lambda one: len(one.details))
    return BatchDetails(
        batch=found,
        ranges=ranges,
        skipped=tuple(place for place in carried if place.skipped_from is not None),
        unavailable={partition: str(why) for partition, why in part_of(metas, "unavailable").items()},
        path=_text(best.details.get("path")),
        timings=found.timings,
        failed_attempts=tuple(failed_attempts(best)),
    )


def range_of(partition: str, meta: Any) -> PartitionRange:
    """Return a stored meta as a range, as far as it is one."""
    fields = meta if isinstance(meta, Mapping) else {}
    start, end, skipped_from = (_whole(fields.get(name)) for name in ("start", "end", "skipped_from"))
    return PartitionRange(partition, start, end, skipped_from, meta)


def part_of(metas: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a part of stored metas ("partitions", "carried", "unavailable"); empty if it is no object."""
    part = metas.get(name, {})
    return part if isinstance(part, Mapping) else {}


def failed_attempts(found: LedgerEntry) -> list[FailedAttempt]:
    """Return the attempts that failed before the one of this row, as far as the row has them."""
    listed = found.details.get("attempts")
    if isinstance(listed, list) and listed:
        return attempts_in(listed, found.metas)
    # Rows of an older txstream have only the last error.
    return [FailedAttempt(None, found.error, None)] if found.error else []


def attempts_in(listed: Sequence[Any], metas: Mapping[str, Any]) -> list[FailedAttempt]:
    """Return failed attempts as they are stored beside `metas`."""
    failed, newer = [], None
    for one in reversed(listed):
        if not isinstance(one, Mapping):
            continue
        own = one.get("traceback")
        newer = newer if own is None else str(own)
        failed.append(
            FailedAttempt(
                None if _whole(one.get("attempt")) is None else AttemptId(one["attempt"]),
                str(one.get("error")),
                time_of(one.get("failed_at")),
                **_held(one, metas),
                traceback=newer if own is not None or one.get("same_traceback") is True else None,
            )
        )
    return failed[::-1]


def ranges_in(metas: Mapping[str, Any]) -> tuple[PartitionRange, ...]:
    """Return what stored metas hold, by partition in order."""
    return _ranges(part_of(metas, "partitions"))


def _held(failed: Mapping[str, Any], committed: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a failed attempt held; empty for rows of an older txstream."""
    if failed.get("same"):
        left_out = sorted(part_of(committed, "unavailable"), key=in_order)
        return {"ranges": _ranges(part_of(committed, "partitions")), "left_out": tuple(left_out)}
    if "ranges" not in failed:
        return {}
    left_out = sorted(map(str, failed.get("left_out") or ()), key=in_order)
    more = _whole(failed.get("more")) or 0
    return {"ranges": _ranges(part_of(failed, "ranges")), "left_out": tuple(left_out), "more": more}


def _ranges(metas: Mapping[str, Any]) -> tuple[PartitionRange, ...]:
    return tuple(range_of(partition, metas[partition]) for partition in sorted(metas, key=in_order))


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def time_of(value: Any) -> datetime | None:
    """Return a stored time, if it is one."""
    try:
        return datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
