"""The last hour of a topology, minute by minute, from the ledger of its first database: records/s, lag, and
the time from plan to commit.

An hour of a live topology is tens of thousands of rows. Of more than a few hundred, every so many-th is read,
and stands for those up to the next: the rate is an estimate then, which the page says.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import TYPE_CHECKING, Any

from txstream import inspect
from txstream.core.errors import ServiceUnavailableError, UsageError

if TYPE_CHECKING:
    from txstream.plugins.web.site import Site
    from txstream.state import BatchRecord, StateBackend

MINUTES = 60
_MOST_READ = 240
_KEPT_SECONDS = 20.0


def last_hour(site: Site, topology_id: str, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Any:
    """Return `records_per_second`, `lag_records` and `commit_seconds`, each with a number for each minute,
    the oldest first; None where nothing was committed, or nothing noted. `stride` says that one batch of so
    many was read. None if the ledger cannot be read, or has nothing of the hour."""

    def read() -> dict[str, Any] | None:
        try:
            with inspect.opened(topology_id, site.settings) as databases:
                return _minutes(databases.opened[0], topology_id, now())
        except (ServiceUnavailableError, UsageError, inspect.UnknownTopologyError):
            return None

    return site.memo(("hour", topology_id), read, _KEPT_SECONDS)


def _minutes(database: StateBackend, topology_id: str, now: datetime) -> dict[str, Any] | None:
    begin = now - timedelta(minutes=MINUTES)
    newest, oldest = database.last_batch(topology_id), database.oldest_txid(topology_id)
    if newest is None or oldest is None or (newest.committed_at or now) < begin:
        return None
    first = _first_since(begin, database, topology_id, int(oldest), int(newest.txid))
    stride = -(-(newest.txid - first + 1) // _MOST_READ)
    if stride == 1:
        rows = database.batches(topology_id, limit=newest.txid - first + 1, before=newest.txid + 1)
    else:
        txids = range(first, newest.txid + 1, stride)
        rows = [row for txid in txids if (row := database.batch(topology_id, txid)) is not None]
    minutes: list[list[BatchRecord]] = [[] for _ in range(MINUTES)]
    for row in rows:
        if row.committed_at is not None and begin <= row.committed_at:
            minutes[min(MINUTES - 1, int((row.committed_at - begin).total_seconds() // 60))].append(row)
    return {
        "stride": stride,
        "records_per_second": [round(sum(row.tuples for row in of) * stride / 60, 1) for of in minutes],
        "lag_records": [
            max((lag for row in of if (lag := row.details.get("lag_records")) is not None), default=None)
            for of in minutes
        ],
        "commit_seconds": [round(median(map(_seconds, of)), 3) if of else None for of in minutes],
    }


def _seconds(row: BatchRecord) -> float:
    return 0.0 if row.committed_at is None else (row.committed_at - row.planned_at).total_seconds()


def _first_since(begin: datetime, database: StateBackend, topology_id: str, low: int, high: int) -> int:
    """Return the first txid that was committed since then, of those from `low` to `high`, which was."""
    while low < high:
        middle = (low + high) // 2
        row = database.batch(topology_id, middle)
        if row is None or (row.committed_at is not None and row.committed_at < begin):
            low = middle + 1
        else:
            high = middle
    return low
