"""What the metas of sources with numbered records have in common: a range, which may be empty and then only
holds a place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """Positions `[start, end)` of one partition. Raises ValueError for what is no range."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ValueError(f"start {self.start} and end {self.end} are not a range of positions")

    @property
    def is_empty(self) -> bool:
        """True when the range holds a place only."""
        return self.start == self.end


@dataclass(frozen=True, slots=True)
class RecordSpan(Span):
    """A span whose positions are records, or were: some may be gone, or be no row."""

    @property
    def records(self) -> int:
        """At most so many records: what the engine chooses the number of Spark tasks by."""
        return self.end - self.start
