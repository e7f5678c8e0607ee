"""How many records the next batch may hold: the most that the spout allows, or less, to meet a latency or a
rate (pure).

Invariants. A limit is never above the spout's `max_batch_records`, nor, with a latency to meet, below
`FLOOR_RECORDS`. Over any time, no more records are planned than `max_records_per_second` allows for it and
one second more. What was planned is not planned again for the sake of either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from txstream.transaction import Txid

FLOOR_RECORDS: Final = 100
"""What takes longer than this many records is the batch itself: fewer would not help."""

_FIRST_RECORDS: Final = 10_000
_AIM: Final = 0.8  # of the latency: batches differ
_FULL: Final = 0.8  # of the limit: a batch with less says nothing of larger ones
_MOST_CHANGE: Final = 2.0  # from one batch to the next
_BURST_SECONDS: Final = 1.0
# A trickle of allowance is no reason for a trickle of batches.
_LEAST_SECONDS: Final = 0.1
_ROUNDING: Final = 1e-6  # of a record


class Pace:
    """`now` tells seconds. `advanced` is told of every batch that was `planned`, once it is stored."""

    def __init__(
        self,
        max_batch_records: int,
        *,
        now: Callable[[], float],
        max_batch_latency_seconds: float | None = None,
        max_records_per_second: float | None = None,
    ) -> None:
        self._most = max_batch_records
        self._now = now
        self._latency = max_batch_latency_seconds
        self._rate = max_records_per_second
        self._size = max_batch_records
        if self._latency is not None:
            self._size = min(self._most, _FIRST_RECORDS)
        self._planned: dict[Txid, tuple[float, int, int]] = {}
        self._allowance = self._burst
        self._counted_at = now()

    @property
    def size(self) -> int:
        """The limit without regard to the rate: for a replay, whose records were counted before."""
        return self._size

    def limit(self) -> int:
        """How many records a new batch may hold now; 0 when it has to wait for `seconds_to_wait`."""
        if self._rate is None:
            return self._size
        self._count()
        allowed = self._allowance + _ROUNDING
        return min(self._size, int(allowed)) if allowed >= self._least else 0

    def seconds_to_wait(self) -> float:
        """Until `limit` is above 0."""
        if self._rate is None:
            return 0.0
        self._count()
        return max(0.0, (self._least - self._allowance) / self._rate)

    def planned(self, txid: Txid, records: int, *, replay: bool = False) -> None:
        """A batch was planned. Its latency is counted from here; that of a replay is not that of its size."""
        if replay:
            self._planned.pop(txid, None)
            return
        self._planned[txid] = (self._now(), records, self._size)
        self._allowance -= records

    def advanced(self, txid: Txid) -> None:
        """A batch is committed and stored: how long that took says how large the next ones may be."""
        known = self._planned.pop(txid, None)
        if known is None or self._latency is None:
            return
        at, records, limit = known
        # A clock that stood still: as fast as can be.
        wanted = self._latency * _AIM / max(self._now() - at, 1e-9)
        change = min(_MOST_CHANGE, max(1 / _MOST_CHANGE, wanted))
        if records >= _FULL * limit:
            size = int(records * change)
            self._size = max(self._size, size) if change > 1.0 else min(self._size, size)
        elif change < 1.0:
            # A small batch that was slow, for whatever reason: fewer next time, but not so few as that.
            self._size = min(self._size, max(records, int(limit / _MOST_CHANGE)))
        self._size = min(self._most, max(FLOOR_RECORDS, self._size))

    @property
    def _burst(self) -> float:
        return max(1.0, (self._rate or 0.0) * _BURST_SECONDS)

    @property
    def _least(self) -> float:
        assert self._rate is not None
        return max(1.0, min(self._rate * _LEAST_SECONDS, float(self._size)))

    def _count(self) -> None:
        assert self._rate is not None
        now = self._now()
        self._allowance = min(self._burst, self._allowance + (now - self._counted_at) * self._rate)
        self._counted_at = now
