"""The watermark: up to which time the windows of a batch close. A pure fold over what was committed.

Invariants. The watermark of a batch is in its metas, never falls, and follows from metas and records of
batches that are committed: no clock, no timer and no machine has a say in a replay. `through` is the last of
these batches. Of each partition the latest time counts, and of these the earliest, without partitions of
which nothing was unread. A time that was after the clock of its batch's plan counts as that clock; if it was
more than a day after it, it says nothing.

A record is late if the batch before its own has closed one of its windows, or would have.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from txstream.api.retention import HorizonKeeper
from txstream.plugins.windows.times import DAY, SECOND

AHEAD = DAY
"""How far a time may be after the clock and still count: clocks differ, and people mix up zones."""

Latest = Mapping[str, int]
"""By partition, the latest time that counts."""

_TOLD = b"txstream.latest"


def watermark(
    before: int | None, latest: Latest, unread: Collection[str], grace: int
) -> tuple[int | None, list[str]]:
    """Return the watermark of a batch and the partitions that hold it back. `before` is that of the batch
    before, `latest` what is known of batches before it, `unread` the partitions that were not at their ends
    when it was planned."""
    unknown = sorted(partition for partition in unread if partition not in latest)
    if unknown or not unread:
        return before, unknown
    earliest = min(latest[partition] for partition in unread)
    found = earliest - grace
    behind = [one for one in sorted(unread) if latest[one] == earliest]
    holds = behind if earliest < max(latest.values()) else []
    return (found if before is None else max(before, found)), holds


def counted(time: int, clock: int) -> int | None:
    """Return as what time a record counts in a batch that was planned at `clock`; None if it says nothing."""
    return min(time, clock) if time <= clock + AHEAD else None


def later(one: Latest, *others: Latest) -> dict[str, int]:
    """Return the later time of each partition."""
    found = dict(one)
    for other in others:
        for partition, time in other.items():
            found[partition] = max(time, found.get(partition, time))
    return found


def told(latest: Latest) -> dict[bytes, bytes]:
    """Return what a task tells of the records that it got, as metadata."""
    return {_TOLD: json.dumps(latest, sort_keys=True).encode()} if latest else {}


def heard(told: Iterable[Mapping[bytes, bytes]]) -> list[Latest]:
    """The inverse of `told`, for all tasks of a batch."""
    return [json.loads(one[_TOLD]) for one in told if _TOLD in one]


class WindowKeeper(HorizonKeeper):
    """Keeps the watermark of one table. Its horizons have `clock` (of the plan), `through`, `waiting` (the
    partitions that were not at their ends though the batch has nothing of them), `late` (the watermark of the
    batch before), `since` (that of the one before it), `watermark`, and `held_by` (the partitions that hold
    it back). Times are microseconds since 1970, or null."""

    def __init__(self, grace: int) -> None:
        self._grace = grace
        self._known: tuple[int, Latest] = 0, {}

    def next(self, before: Any, taken: Collection[str], waiting: Collection[str], now: float) -> Any:
        through, latest = self._known
        last = None if before is None else before["watermark"]
        found, held_by = watermark(last, latest, {*taken, *waiting}, self._grace)
        return {
            "clock": math.floor(now * SECOND),
            "through": through,
            "waiting": sorted(waiting),
            "late": last,
            "since": None if before is None else before["late"],
            "watermark": found,
            "held_by": held_by,
        }

    def learned(self, horizon: Any, told: Sequence[Mapping[bytes, bytes]]) -> Any:
        return later(self._known[1], *heard(told))

    def committed(self, txid: int, learned: Any) -> None:
        self._known = txid, learned
