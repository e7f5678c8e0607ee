"""The decisions of a history: drawn from a seed, recorded as they are drawn, or played again.

A history is a tree of steps. A step holds the decisions made in it, in order, and the steps that others took
while an actor slept in it. Every decision is a small whole number, and 0 is the simplest choice: no fault,
the first of several, the fewest. So any history becomes simpler when a step is left out or a decision is set
to 0.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from txstream.core.errors import UsageError

T = TypeVar("T")


@dataclass
class Step:
    """One step of a history. `meanwhile` has a list of steps for each time that others went on within it."""

    draws: list[int] = field(default_factory=list)
    meanwhile: list[list[Step]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_document(self) -> dict[str, Any]:
        """Return the step as JSON values. `notes` are for people: nothing reads them back."""
        document: dict[str, Any] = {}
        if self.notes:
            document["notes"] = self.notes
        if self.draws:
            document["draws"] = self.draws
        if self.meanwhile:
            document["meanwhile"] = [[step.to_document() for step in steps] for steps in self.meanwhile]
        return document

    @classmethod
    def from_document(cls, document: Any) -> Step:
        """Return the step that a document describes. Raises UsageError when it describes none."""
        try:
            draws = [int(draw) for draw in document.get("draws", ())]
            meanwhile = [
                [cls.from_document(step) for step in steps] for steps in document.get("meanwhile", ())
            ]
        except (AttributeError, TypeError, ValueError) as error:
            raise UsageError(f"{document!r:.100} is no step of a schedule: {error}") from error
        return cls(draws, meanwhile)


class Chances:
    """Decisions drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random  # noqa: S311 - it must be the same each time

    def happens(self, probability: float) -> bool:
        return self._random() < probability

    def below(self, count: int) -> int:
        return int(self._random() * count)

    def between(self, low: int, high: int) -> int:
        """Choose a number from low to high, both included."""
        return low + self.below(high - low + 1)

    def pick(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def steps(self, count: int, take: Callable[[], None]) -> None:
        """Take this many steps."""
        for _ in range(count):
            take()

    def note(self, what: str) -> None:
        """Note what has happened, for people."""


class Written(Chances):
    """Decisions drawn from a seed and recorded in `history`."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.history = self._here = Step()

    def happens(self, probability: float) -> bool:
        found = super().happens(probability)
        self._here.draws.append(int(found))
        return found

    def below(self, count: int) -> int:
        found = super().below(count)
        self._here.draws.append(found)
        return found

    def steps(self, count: int, take: Callable[[], None]) -> None:
        outer, taken = self._here, list[Step]()
        outer.meanwhile.append(taken)
        try:
            for _ in range(count):
                self._here = Step()
                taken.append(self._here)
                take()
        finally:
            self._here = outer


class Played(Chances):
    """The decisions of a history, played again. A decision that the history lacks is the simplest one.
    `history` is a copy with only the decisions that were asked for. What happens goes into its notes."""

    def __init__(self, history: Step) -> None:
        self.history = self._here = Step()
        self._source, self._at, self._slept = history, 0, 0

    def happens(self, probability: float) -> bool:
        return self._next(2) > 0

    def below(self, count: int) -> int:
        return self._next(count)

    def steps(self, count: int, take: Callable[[], None]) -> None:
        source, slept = self._source, self._slept
        self._slept += 1
        steps = source.meanwhile[slept] if slept < len(source.meanwhile) else []
        before = self._here, self._source, self._at, self._slept
        taken = list[Step]()
        self._here.meanwhile.append(taken)
        try:
            for step in steps:
                self._here, self._source, self._at, self._slept = Step(), step, 0, 0
                taken.append(self._here)
                take()
        finally:
            self._here, self._source, self._at, self._slept = before

    def note(self, what: str) -> None:
        self._here.notes.append(what)

    def _next(self, count: int) -> int:
        draws, at = self._source.draws, self._at
        self._at += 1
        found = min(draws[at], count - 1) if at < len(draws) else 0
        self._here.draws.append(found)
        return found
