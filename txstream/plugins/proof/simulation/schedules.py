"""One schedule of a program, given by a seed, by its decisions, or by the points at which drivers crash.

A failing schedule is shrunk: steps are removed and decisions set to 0 as long as it still fails in the same
way.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from txstream.core.errors import UsageError
from txstream.plugins.proof.simulation.chances import Chances, Played, Step, Written
from txstream.plugins.proof.simulation.plain_fold import Tables
from txstream.plugins.proof.simulation.program import Program
from txstream.plugins.proof.simulation.truth import Truth
from txstream.plugins.proof.simulation.world import STEPS, World

FORMAT = 1
_SHRINK_SECONDS = 20.0
_MOST_STEPS = 3000


@dataclass(frozen=True)
class Schedule:
    """One schedule. `history` holds its decisions, if they are known.

    With `crashes`, drivers crash at the points with these numbers and nothing else happens. `commit` is then
    the number of the way of committing.
    """

    seed: int
    steps: int = STEPS
    on_sqlite: float = 0.0
    history: Step | None = None
    crashes: tuple[int, ...] | None = None
    commit: int = 0
    pending: int = 1
    cut: tuple[int, int] = (1, 4)

    def world(self, program: Program, expected: Truth | Tables | None) -> World:
        """Return a new world for this schedule."""
        if self.crashes is not None:
            return _CrashWorld(
                program,
                Played(Step([self.pending - 1, 0, self.commit])),
                expected,
                cut=self.cut,
                crash_at=frozenset(self.crashes),
            )
        chances = Chances(self.seed) if self.history is None else Played(self.history)
        return World(program, chances, expected, steps=self.steps, on_sqlite=self.on_sqlite, cut=self.cut)

    def written(self, program: Program, expected: Truth | Tables | None) -> Schedule:
        """Return the same schedule with its decisions. It is run once more to record them."""
        if self.crashes is not None or self.history is not None:
            return self
        chances = Written(self.seed)
        outcome(World(program, chances, expected, steps=self.steps, on_sqlite=self.on_sqlite, cut=self.cut))
        return replace(self, history=chances.history)

    def to_document(self, topology: str, what: str) -> dict[str, Any]:
        """Return the schedule as JSON values. `what` says for people what it shows."""
        document: dict[str, Any] = {"format": FORMAT, "topology": topology, "shows": what}
        document |= {"seed": self.seed, "steps": self.steps, "on_sqlite": self.on_sqlite, "cut": self.cut}
        if self.crashes is not None:
            return document | {"crashes": self.crashes, "commit": self.commit, "pending": self.pending}
        return document | {"history": None if self.history is None else self.history.to_document()}

    @classmethod
    def load(cls, file: Path, topology: str) -> Schedule:
        """Read a schedule from a file. Raises UsageError unless the file holds one of this topology."""
        try:
            document = json.loads(file.read_text(encoding="utf-8"))
            if document["format"] != FORMAT or document["topology"] != topology:
                raise UsageError(
                    f"{file} is a schedule of topology {document['topology']!r} in format "
                    f"{document['format']}; this is topology {topology!r} and format {FORMAT}"
                )
            history, crashes = document.get("history"), document.get("crashes")
            return cls(
                int(document["seed"]),
                int(document["steps"]),
                float(document["on_sqlite"]),
                None if history is None else Step.from_document(history),
                None if crashes is None else tuple(map(int, crashes)),
                int(document.get("commit", 0)),
                int(document.get("pending", 1)),
                (int(document["cut"][0]), int(document["cut"][1])),
            )
        except OSError as error:
            raise UsageError(f"{file} cannot be read: {error.strerror}") from error
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise UsageError(
                f"{file} is no schedule that `txstream simulate` has saved: {error!r}"
            ) from error


@dataclass
class _CrashWorld(World):
    """A world in which nothing happens but crashes at the points with these numbers."""

    crash_at: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.log.show_all()

    def happens(self, fault: str) -> bool:
        if fault != "crash" or not self.has_faults:
            return False
        self.passed += 1
        if self.passed - 1 in self.crash_at:
            self.happened[fault] += 1
            return True
        return False

    def run(self, *, alone: bool = False) -> None:
        for _ in range(_MOST_STEPS):
            driver = self.drivers[-1] if self.drivers and self.drivers[-1].is_alive else self.new_driver()
            self._say_step()
            driver.step()
            if self.is_finished_by(driver):
                break
        self._end_faults()
        self._finish(self.drivers[-1])


def outcome(world: World) -> Exception | None:
    """Run a world. Returns what went wrong, if anything did."""
    try:
        world.run()
    except Exception as error:  # noqa: BLE001 - any error is a finding of the simulation
        return error
    return None


def shrunk(schedule: Schedule, program: Program, expected: Truth | Tables, kind: str) -> Schedule:
    """Remove what a schedule does not need in order to fail with this kind of error. Returns the schedule
    itself when it does not fail again."""
    if schedule.history is None:
        return schedule
    ends_at = time.monotonic() + _SHRINK_SECONDS

    def fails(history: Step) -> Step | None:
        world = replace(schedule, history=history).world(program, expected)
        found = outcome(world)
        assert isinstance(world.chances, Played)
        return world.chances.history if type(found).__name__ == kind else None

    found = fails(schedule.history)
    if found is None:
        return schedule
    best = [found]
    for changed in _attempts(lambda: best[-1]):
        if time.monotonic() >= ends_at:
            break
        found = fails(changed)
        if found is not None and _size(found) < _size(best[-1]):
            best.append(found)
    return replace(schedule, history=best[-1])


def _size(history: Step) -> tuple[int, int]:
    """Return how many steps a history has, and how many decisions in them are not 0."""
    every = [step for _, step in _every(history)]
    return len(every), sum(draw > 0 for step in every for draw in step.draws)


_Path = tuple[tuple[int, int], ...]
"""The way to a step: at each level, the number of the list in `meanwhile` and the place in that list."""


def _every(step: Step, path: _Path = ()) -> Iterator[tuple[_Path, Step]]:
    yield path, step
    for number, steps in enumerate(step.meanwhile):
        for at, inner in enumerate(steps):
            yield from _every(inner, (*path, (number, at)))


def _copy(history: Step, path: _Path) -> tuple[Step, Step]:
    """Return a copy of a history, and the step of the copy at this path."""
    root = found = copy.deepcopy(history)
    for number, at in path:
        found = found.meanwhile[number][at]
    return root, found


def _attempts(best: Callable[[], Step]) -> Iterator[Step]:
    """Yield smaller variants of the best history so far, until none is better: without many steps, without
    one step, with one decision set to 0."""
    before = None
    while before != (before := _size(best())):
        for path in [path for path, step in _every(best()) if step.meanwhile]:
            for number in range(_lists(best(), path)):
                yield from _without_steps(best, path, number)
        for path in [path for path, _ in _every(best())]:
            at = 0
            while (step := _at(best(), path)) is not None and at < len(step.draws):
                if step.draws[at]:
                    root, there = _copy(best(), path)
                    there.draws[at] = 0
                    yield root
                at += 1


def _without_steps(best: Callable[[], Step], path: _Path, number: int) -> Iterator[Step]:
    size = _length(best(), path, number)
    while size:
        at = 0
        while at < (length := _length(best(), path, number)):
            root, there = _copy(best(), path)
            del there.meanwhile[number][at : at + size]
            yield root
            if _length(best(), path, number) >= length:  # the failure needs one of these steps
                at += size
        size //= 2


def _at(history: Step, path: _Path) -> Step | None:
    found = history
    for number, at in path:
        if number >= len(found.meanwhile) or at >= len(found.meanwhile[number]):
            return None
        found = found.meanwhile[number][at]
    return found


def _lists(history: Step, path: _Path) -> int:
    found = _at(history, path)
    return 0 if found is None else len(found.meanwhile)


def _length(history: Step, path: _Path, number: int) -> int:
    found = _at(history, path)
    return 0 if found is None or number >= len(found.meanwhile) else len(found.meanwhile[number])
