"""What an answer brought of a log beyond the range that it was asked for. The next range mostly begins there,
often in the middle of a record batch, and need not fetch that again. What the driver read with the plan
(`log_tail`) is kept here as well.

Invariants:

- A range is served whole or not at all, and only if the offset before its end has the leader epoch that was
  planned. What was kept came from one answer, so by Kafka's log matching all before that offset is as planned
  too, even if the log was cut back meanwhile.
- Nothing is kept for longer than a few seconds, and nothing that needs to know of aborted transactions.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from txstream.spouts.kafka.range_read import RangeRead
from txstream.spouts.kafka.record_batches import Fetched, epoch_before

_KEPT_SECONDS = 5.0
_MOST_BYTES = 32 * 1024 * 1024


class KeptAnswer(NamedTuple):
    """Record batches from `start` on; as far as it is decoded, like a partition's data in an answer."""

    records: bytes
    start: int
    topic_id: str
    answered_at: float
    aborted_transactions: None = None
    high_watermark: int | None = None
    last_stable_offset: int | None = None


class KeptAnswers:
    """The rests of answers, by partition."""

    def __init__(self) -> None:
        self._kept: dict[str, KeptAnswer] = {}
        self._bytes = 0

    def keep(self, read: RangeRead, data: Any, part: Fetched) -> None:
        """Keep what an answer, or what was kept of one, holds behind a range that is read."""
        self._forget(read.name)
        wanted = read.range
        if data.aborted_transactions or not wanted.topic_id:
            return
        rest = bytes(memoryview(part.data)[part.rest_at :])
        if rest:
            answered_at = data.answered_at if isinstance(data, KeptAnswer) else time.monotonic()
            self.put(read.name, KeptAnswer(rest, wanted.end, wanted.topic_id, answered_at))

    def put(self, name: str, answer: KeptAnswer) -> None:
        """Keep what an answer holds of a partition."""
        self._forget(name)
        self._kept[name] = answer
        self._bytes += len(answer.records)
        while self._bytes > _MOST_BYTES:
            self._forget(next(iter(self._kept)))

    def of(self, read: RangeRead) -> KeptAnswer | None:
        """Return what holds the whole of a range, as it was planned."""
        kept, wanted = self._kept.get(read.name), read.range
        if kept is None or wanted.leader_epoch is None:
            return None
        if time.monotonic() - kept.answered_at > _KEPT_SECONDS or wanted.topic_id != kept.topic_id:
            self._forget(read.name)
            return None
        is_there = kept.start <= read.position
        return kept if is_there and epoch_before(kept.records, wanted.end) == wanted.leader_epoch else None

    def _forget(self, name: str) -> None:
        kept = self._kept.pop(name, None)
        if kept is not None:
            self._bytes -= len(kept.records)
