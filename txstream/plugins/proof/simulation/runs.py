"""Runs many schedules of one topology, in one process or in several.

Invariant: the seed alone decides which schedules run and what happens in each, however many processes run
them.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from txstream.api.topology import Topology
from txstream.core.errors import UsageError
from txstream.core.semantics import Semantics
from txstream.plugins.proof.simulation.determinism import NotDeterministicError, check_determinism
from txstream.plugins.proof.simulation.program import Program
from txstream.plugins.proof.simulation.report import (
    Broken,
    NothingShownError,
    SimulationError,
    SimulationReport,
)
from txstream.plugins.proof.simulation.schedules import Schedule, outcome, shrunk
from txstream.plugins.proof.simulation.world import ON_SQLITE, STEPS, truth_of

Told = Callable[[SimulationReport], None]

_CHUNK = 200
_COLLECT_EVERY = 100
_SHORT_RUN_BATCHES = 2


def _nobody_listens(report: SimulationReport) -> None:
    """Ignore the progress."""


def simulate(
    topology: Topology,
    rows: Mapping[str, Sequence[Any]] | Sequence[Any] | None = None,
    *,
    schedules: int = 200,
    seed: int = 0,
    jobs: int = 1,
    steps: int = STEPS,
    exhaustive: bool = False,
    on_sqlite: float = ON_SQLITE,
    expected: Mapping[str, Any] | None = None,
) -> SimulationReport:
    """Run a topology through seeded schedules of crashes, lost and late answers, zombies, partition outages
    and changes of how it commits. Each must leave in the tables what a plain fold leaves: the bolts called
    one after the other over the rows, and the reducers in Python, without the engine.

    rows: the rows to read in place of the topology's own source, by partition, or as a list that is dealt
        over three partitions. A row is a tuple, a mapping by field, or the value of the only field. None
        takes the rows of its MemorySpout.
    schedules, seed: the schedules have the seeds `seed` to `seed + schedules - 1`.
    jobs: how many processes run them.
    steps: how many steps the part with faults has.
    exhaustive: also run every crash point of a short run, and every pair of them.
    on_sqlite: the share of schedules whose states are in a real SQLite file instead of in memory.
    expected: what tables must hold, in place of the fold, by table: values by key, with tuples where there
        are several columns.

    First, each bolt gets a part of its input again, in another process (`check_determinism`).

    Raises SimulationError when a bolt then emits something else, with the first schedule that fails, shrunk,
    or when nothing was shown: no table got
    a row, no schedule committed two batches, or no fault struck. Raises UsageError for what cannot be
    simulated. A non-transactional topology does not fail; the report says how often it was not exact.
    """
    program = Program(topology, rows, expected=expected)
    report = run_schedules(
        program,
        schedules=schedules,
        seed=seed,
        jobs=jobs,
        steps=steps,
        exhaustive=exhaustive,
        on_sqlite=on_sqlite,
    )
    if not report.exact and not report.inexact:
        raise SimulationError(report)
    return report


def run_schedules(
    program: Program,
    *,
    schedules: int,
    seed: int = 0,
    jobs: int = 1,
    steps: int = STEPS,
    exhaustive: bool = False,
    on_sqlite: float = ON_SQLITE,
    progress: Told = _nobody_listens,
) -> SimulationReport:
    """As `simulate`, for a program. Calls `progress` now and then. A failure is in the report, not raised."""
    if schedules < (not exhaustive) or jobs < 1 or steps < 1:
        raise UsageError("a simulation needs at least one schedule, one job and one step")
    with _quiet():
        try:
            check_determinism(program.topology, program.rows)
        except NotDeterministicError as error:
            topology = program.topology
            return SimulationReport(topology.id, str(topology.semantics), not_deterministic=str(error))
        except Exception:
            truth_of(program)  # it tells a user's mistake as every run does
            raise
        hunt = Hunt(program, steps, on_sqlite)
        report = hunt.report()
        if (found := hunt.truth_differs()) is None:
            chunks = [
                range(at, min(at + _CHUNK, seed + schedules)) for at in range(seed, seed + schedules, _CHUNK)
            ]
            short = hunt.crash_points() if exhaustive and hunt.must_be_exact else iter(())
            found = hunt.go_through(short, report)
            progress(report)
            if found is None:
                for part, wrong in _in_processes(hunt, chunks, jobs):
                    report.join(part)
                    progress(report)
                    if wrong is not None:
                        found = wrong
                        break
        if found is not None:
            report.failure = hunt.told(found)
    return report


def replay(program: Program, schedule: Schedule, say: Callable[[str], None]) -> Exception | None:
    """Run one schedule, saying each step. Returns what went wrong, if anything did."""
    with _quiet():
        world = schedule.world(program, truth_of(program))
        world.say = say
        wrong = outcome(world)
    if wrong is None and truth_of(program).is_empty:
        return NothingShownError("no row reaches a table, so all tables stay empty")
    if wrong is None and not world.happened and schedule.crashes != ():
        return NothingShownError("no fault struck")
    return wrong


class _Wrong(NamedTuple):
    """A failure as plain values, because not every error can be sent from one process to another."""

    schedule: Schedule
    kind: str
    message: str

    @classmethod
    def of(cls, schedule: Schedule, error: Exception) -> _Wrong:
        return cls(schedule, type(error).__name__, str(error))


class Hunt:
    """Looks for a schedule that fails."""

    def __init__(self, program: Program, steps: int, on_sqlite: float) -> None:
        self.program = program
        self.steps = steps
        self.on_sqlite = on_sqlite
        self.expected = truth_of(program)
        self.must_be_exact = program.topology.semantics is not Semantics.NON_TRANSACTIONAL

    def report(self) -> SimulationReport:
        topology = self.program.topology
        return SimulationReport(
            topology.id,
            str(topology.semantics),
            note=self.expected.note,
            is_empty=self.expected.is_empty,
            rows=sum(batch.num_rows for batch in self.program.rows.values()),
        )

    def truth_differs(self) -> _Wrong | None:
        """Run without faults, in each way of committing. Returns the first failure."""
        for commit in range(len(self.program.commits())):
            schedule = Schedule(0, 1, crashes=(), commit=commit, cut=(2, 2))
            error = outcome(schedule.world(self.program, self.expected))
            if error is not None:
                return _Wrong.of(schedule, error)
        return None

    def seeds(self, seeds: range) -> tuple[SimulationReport, _Wrong | None]:
        """Run the schedules of these seeds until one fails."""
        report = self.report()
        found = self.go_through((Schedule(seed, self.steps, self.on_sqlite) for seed in seeds), report)
        return report, found

    def go_through(self, schedules: Iterator[Schedule], report: SimulationReport) -> _Wrong | None:
        started = time.process_time()
        gc.disable()  # histories are short, and most of their objects are freed without a collection
        gc.freeze()  # collections then skip all imports and what is kept of earlier histories
        try:
            for number, schedule in enumerate(schedules, 1):
                if number % _COLLECT_EVERY == 0:
                    gc.collect()
                    gc.freeze()
                world = schedule.world(self.program, self.expected)
                error = outcome(world)
                report.add(world)
                report.on_sqlite += world.is_on_sqlite
                if schedule.crashes is None:
                    report.schedules += 1
                else:
                    report.exhaustive += 1
                    self._points = world.passed
                world.take_apart()
                if error is not None and self.must_be_exact:
                    return _Wrong.of(schedule, error)
                report.inexact += error is not None
        finally:
            gc.unfreeze()
            gc.enable()
            report.cpu_seconds += time.process_time() - started
        return None

    def crash_points(self) -> Iterator[Schedule]:
        """Yield every crash point of a run of a few batches, in each way of committing. Then, after each of
        them, yield every later point of that run as a second crash."""
        most = max(batch.num_rows for batch in self.program.rows.values())
        cut = -(-most // _SHORT_RUN_BATCHES)
        for commit in range(len(self.program.commits())):
            base = Schedule(0, 1, crashes=(), commit=commit, pending=2, cut=(cut, cut))
            yield base
            ends = []
            for first in range(self._points):
                yield _crashing(base, first)
                ends.append(self._points)
            for first, end in enumerate(ends):
                for then in range(first + 1, end):
                    yield _crashing(base, first, then)

    def told(self, wrong: _Wrong) -> Broken:
        """Return the failure, shrunk."""
        first, kind, message = wrong
        smaller = shrunk(first.written(self.program, self.expected), self.program, self.expected, kind)
        world = smaller.world(self.program, self.expected)
        again = outcome(world)
        if again is None or type(again).__name__ != kind:
            message += (
                "; with the same decisions it did not come again: the topology is not the same each time"
            )
            return Broken(first, first, kind, message)
        return Broken(first, smaller, kind, str(again), world.tell())


def _crashing(base: Schedule, *crashes: int) -> Schedule:
    return replace(base, crashes=crashes)


def _in_processes(
    hunt: Hunt, chunks: Sequence[range], jobs: int
) -> Iterator[tuple[SimulationReport, _Wrong | None]]:
    if jobs == 1:
        yield from map(hunt.seeds, chunks)
        return
    global _hunt
    _hunt = hunt
    # Forked, so that bolts need not be importable by name.
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("fork")) as pool:
        waiting = iter(chunks)
        pending = {pool.submit(_seeds, chunk) for chunk in islice(waiting, 2 * jobs)}
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            pending |= {pool.submit(_seeds, chunk) for chunk in islice(waiting, len(done))}
            for future in done:
                yield future.result()


_hunt: Hunt


def _seeds(seeds: range) -> tuple[SimulationReport, _Wrong | None]:
    return _hunt.seeds(seeds)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the product's log, or its messages about faults would be most of the output."""
    log = logging.getLogger("txstream")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
