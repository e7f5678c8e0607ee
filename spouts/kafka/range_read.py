"""One planned range while it is read, and the fetches that bring it."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from txstream.core.backoff import Backoff
from txstream.spouts.kafka import KafkaRange
from txstream.spouts.kafka.protocol import Partition
from txstream.spouts.kafka.record_blocks import RecordColumns

_BACKOFF = Backoff(first_seconds=0.05, longest_seconds=0.5)


class RangeRead:
    """One partition's range while it is read."""

    def __init__(self, name: str, wanted: KafkaRange) -> None:
        self.name = name
        self.partition = Partition.parse(name)
        self.range = wanted
        self.position = wanted.start
        self.ahead = wanted.start  # the next fetch asks from here
        self.columns = RecordColumns()
        self.waited_seconds = 0.0
        self.not_before = 0.0
        self.failures = 0
        self.damaged = 0
        self.reason = "its leader sent nothing"
        self.strange_since: float | None = None
        self.end_checked_at = 0.0

    @property
    def finished(self) -> bool:
        return self.position >= self.range.end

    @property
    def planned(self) -> str:
        return f"offsets {self.range.start} to {self.range.end} (exclusive)"

    def take(self) -> RecordColumns:
        columns, self.columns = self.columns, RecordColumns()
        return columns

    def put_off(self, reason: str) -> None:
        """Try again after a pause, which grows with every failure."""
        self.reason = reason
        self.failures += 1
        self.not_before = time.monotonic() + _BACKOFF.after(self.failures)

    def advance(self, position: int) -> None:
        self.position = self.ahead = position
        self.waited_seconds = 0.0
        self.failures = self.damaged = 0


class Fetch(NamedTuple):
    """A fetch on its way: kafka-python's future, and the offset at which it asks for each of its ranges."""

    future: Any
    asked: dict[RangeRead, int]
    is_ahead: bool
