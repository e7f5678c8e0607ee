"""What many schedules of one topology showed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from txstream.core.errors import TxstreamError
from txstream.core.wording import counted
from txstream.plugins.proof.simulation.schedules import Schedule
from txstream.plugins.proof.simulation.world import World

_LEAST = 3
_NO_FAULTS = frozenset(("code changes", "meanwhile"))
"""What happens in schedules and goes wrong in none."""
_LEAST_BATCHES = 2


class SimulationError(TxstreamError):
    """A schedule ended with a wrong result, or none could have shown one. `report` holds a schedule that
    failed, shrunk."""

    def __init__(self, report: SimulationReport) -> None:
        told = report.not_deterministic or f"nothing was shown: {report.nothing_shown}"
        if report.failure is not None:
            told = f"{report.failure}\n{report.failure.told}"
        super().__init__(told)
        self.report = report


class NothingShownError(TxstreamError):
    """A schedule passed that could not have failed."""


@dataclass
class Broken:
    """A failed schedule: `first` as found, `schedule` as far as it was shrunk, `told` what happens in it."""

    first: Schedule
    schedule: Schedule
    kind: str
    error: str
    told: str = ""

    def __str__(self) -> str:
        if self.first.crashes == ():
            which = "without faults"
        elif self.first.crashes is not None:
            which = f"with crashes at points {' and '.join(map(str, self.first.crashes))}"
        else:
            which = f"of seed {self.first.seed}"
        return f"the schedule {which} fails: {self.kind}: {self.error}"


@dataclass
class SimulationReport:
    """What the schedules of a simulation did and found.

    `schedules` counts the schedules by seed, `exhaustive` those by crash points. `points` are all points that
    drivers passed, `crash_points` those where they crashed, and `crash_pairs` two successive crashes of a
    history. `inexact` counts wrong results of a topology that does not promise exact ones (a
    non-transactional one). `bolt_runs` counts how often bolts ran, over the same `rows`. `most_batches` is
    how many batches a schedule committed at most; `is_empty` says that all tables must stay empty.
    """

    topology: str
    semantics: str
    schedules: int = 0
    exhaustive: int = 0
    on_sqlite: int = 0
    cpu_seconds: float = 0.0
    inexact: int = 0
    bolt_runs: int = 0
    rows: int = 0
    most_batches: int = 0
    is_empty: bool = False
    points: set[str] = field(default_factory=set)
    crash_points: Counter[str] = field(default_factory=Counter)
    crash_pairs: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    failure: Broken | None = None
    not_deterministic: str | None = None
    """What showed, before any schedule ran, that a component is not deterministic."""
    note: str | None = None
    """What people must know of the truth, if anything."""

    @property
    def exact(self) -> bool:
        """Whether every table was right in every schedule, and could have been wrong."""
        return not (self.failure or self.not_deterministic or self.inexact or self.nothing_shown)

    @property
    def nothing_shown(self) -> str | None:
        """Why schedules that passed show nothing, if that is so."""
        if self.failure or self.not_deterministic or self.inexact:
            return None
        if self.is_empty:
            return "no row reaches a table, so all tables stay empty"
        if self.most_batches < _LEAST_BATCHES:
            most = counted(self.most_batches, "batch", "batches")
            return f"no schedule committed more than {most}; give more rows"
        if not self.struck:
            return "no fault struck in any schedule; run more schedules, or longer ones"
        return None

    @property
    def struck(self) -> int:
        """How many faults struck."""
        return sum(n for fault, n in self.faults.items() if fault not in _NO_FAULTS)

    @property
    def rate(self) -> float:
        """Schedules per second of CPU time."""
        return (self.schedules + self.exhaustive) / self.cpu_seconds if self.cpu_seconds else 0.0

    def add(self, world: World) -> None:
        """Add what happened in a world."""
        self.points |= world.points
        self.crash_points.update(world.crashes)
        self.crash_pairs.update(zip(world.crashes, world.crashes[1:], strict=False))
        self.faults.update(world.happened)
        self.bolt_runs += world.bolt_runs
        self.most_batches = max(self.most_batches, world.batches_committed)

    def join(self, other: SimulationReport) -> None:
        """Add the report of another process."""
        self.schedules += other.schedules
        self.exhaustive += other.exhaustive
        self.on_sqlite += other.on_sqlite
        self.cpu_seconds += other.cpu_seconds
        self.inexact += other.inexact
        self.bolt_runs += other.bolt_runs
        self.most_batches = max(self.most_batches, other.most_batches)
        self.points |= other.points
        self.crash_points += other.crash_points
        self.crash_pairs += other.crash_pairs
        self.faults += other.faults

    def to_document(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        points = sorted(self.points)
        failure = self.failure
        return {
            "topology": self.topology,
            "semantics": self.semantics,
            "exact": self.exact,
            "schedules": self.schedules,
            "exhaustive": self.exhaustive,
            "on_sqlite": self.on_sqlite,
            "inexact": self.inexact,
            "bolt_runs": self.bolt_runs,
            "rows": self.rows,
            "cpu_seconds": round(self.cpu_seconds, 3),
            "per_cpu_second": round(self.rate, 1),
            "faults": dict(sorted(self.faults.items())),
            "crash_points": {point: self.crash_points[point] for point in points},
            "crash_pairs": {
                first: {then: n for then in points if (n := self.crash_pairs[first, then])}
                for first in points
            },
            "note": self.note,
            "not_deterministic": self.not_deterministic,
            "nothing_shown": self.nothing_shown,
            "failure": None
            if failure is None
            else {
                "seed": failure.first.seed,
                "crashes": failure.first.crashes,
                "error": failure.kind,
                "message": failure.error,
                "told": failure.told.split("\n"),
            },
        }

    def lines(self) -> list[str]:
        """Return the report as lines for people."""
        done = f"{self.schedules:,} schedules"
        if self.exhaustive:
            done += f", {self.exhaustive:,} with chosen crash points"
        if self.on_sqlite:
            done += f", {self.on_sqlite:,} on SQLite"
        found = [f"{done}; {self.rate:,.0f} in a second of one core"]
        faults = ", ".join(f"{name} {n:,}" for name, n in self.faults.most_common())
        found.append(f"faults: {faults or 'none'}")
        hit = sum(1 for point in self.points if self.crash_points[point])
        pairs = sum(1 for pair in self.crash_pairs if self.crash_pairs[pair] and self.points.issuperset(pair))
        least = sorted(self.points, key=lambda point: (self.crash_points[point], point))[:_LEAST]
        shown = ", ".join(f"{point} {self.crash_points[point]:,}" for point in least)
        found.append(f"crash points: {hit} of {len(self.points)} hit; least often: {shown}")
        found.append(f"pairs of crash points: {pairs:,} of {len(self.points) ** 2:,} hit")
        found.append(
            f"bolts ran {self.bolt_runs:,} times over {counted(self.rows, 'row')}: whatever they do outside, "
            f"such as a request to a service, is done as often"
        )
        if self.note is not None:
            found.append(self.note)
        if self.inexact:
            found.append(
                f"not exact in {counted(self.inexact, 'schedule')}, as non-transactional topologies are"
            )
        return found
