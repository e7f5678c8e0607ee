"""Base classes for the metas of sources with numbered records: ranges. An empty range only holds a place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True, slots=True)
class Span:
    """Positions `[start, end)` of one partition. Raises ValueError for what is not a range."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ValueError(f"start {self.start} and end {self.end} are not a range of positions")

    @property
    def is_empty(self) -> bool:
        """True when the range only holds a place."""
        return self.start == self.end


@dataclass(frozen=True, slots=True)
class RecordSpan(Span):
    """A span whose positions are, or were, records: some may be gone or not be rows."""

    @property
    def records(self) -> int:
        """An upper bound on the records, from which the engine chooses the number of Spark tasks."""
        return self.end - self.start

    def until(self, end: int) -> Self:
        """The part of the span before `end`."""
        return replace(self, end=end)
