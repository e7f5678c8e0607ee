"""How many records the next batch may hold: the spout's maximum, or fewer to meet a latency or a rate (pure).

Invariants. The limit is never above the spout's `max_batch_records`. To meet a latency it is not lowered
below `FLOOR_RECORDS`. Over any period, no more records are planned than `max_records_per_second` allows for
that period plus one second. A batch that was planned is not planned again for the sake of either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from txstream.core.transaction import Txid

FLOOR_RECORDS: Final = 100
"""Below this, the batch itself takes longer than its records, so fewer would not help."""

_FIRST_RECORDS: Final = 10_000
_AIM: Final = 0.8  # of the latency, because batches differ
_FULL: Final = 0.8  # of the limit: a smaller batch says nothing about larger ones
_MOST_CHANGE: Final = 2.0  # from one batch to the next
_BURST_SECONDS: Final = 1.0
# A batch waits until it has this much of the rate: many tiny batches would be a waste.
_LEAST_SECONDS: Final = 0.1
_ROUNDING: Final = 1e-6  # of a record


class Pace:
    """See the module. `now` returns seconds. Every `planned` batch goes to `advanced` once it is stored."""

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
        """The limit regardless of the rate: for a replay, whose records were counted before."""
        return self._size

    def limit(self) -> int:
        """Return how many records a new batch may hold now; 0 if it has to wait for `seconds_to_wait`."""
        if self._rate is None:
            return self._size
        self._count()
        allowed = self._allowance + _ROUNDING
        return min(self._size, int(allowed)) if allowed >= self._least else 0

    def seconds_to_wait(self) -> float:
        """Return the seconds until `limit` is above 0."""
        if self._rate is None:
            return 0.0
        self._count()
        return max(0.0, (self._least - self._allowance) / self._rate)

    def planned(self, txid: Txid, records: int, *, replay: bool = False) -> None:
        """Count a planned batch. Its latency begins here. The latency of a replay, or of a batch without
        records, says nothing about its size."""
        if replay or not records:
            self._planned.pop(txid, None)
            return
        self._planned[txid] = (self._now(), records, self._size)
        self._allowance -= records

    def advanced(self, txid: Txid) -> None:
        """Adapt the limit to the time that a batch took until it was committed and stored."""
        known = self._planned.pop(txid, None)
        if known is None or self._latency is None:
            return
        at, records, limit = known
        # If the clock stood still, the batch counts as extremely fast.
        wanted = self._latency * _AIM / max(self._now() - at, 1e-9)
        change = min(_MOST_CHANGE, max(1 / _MOST_CHANGE, wanted))
        if records >= _FULL * limit:
            size = int(records * change)
            self._size = max(self._size, size) if change > 1.0 else min(self._size, size)
        elif change < 1.0:
            # A small batch was slow, for whatever reason: lower the limit, not below half or this batch.
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
