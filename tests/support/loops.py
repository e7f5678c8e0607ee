"""A driver with everything in memory: a log, a progress store, batches without Spark, a database.

A `Run` is one driver's turn; a second one over the same `World` is a restart.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from support.bolts import word_count
from support.inmemory import MemoryLog
from txstream.api.spouts import OpaqueSpout, SourceSpout
from txstream.api.topology import Topology
from txstream.core.batch_metas import BatchMetas
from txstream.core.fault_points import Point, PointListener, nobody_listens
from txstream.core.transaction import TransactionAttempt, Txid
from txstream.engine.batch.execution_plan import ExecutionPlan
from txstream.engine.batch.runner_contract import BatchResult, BatchRunner
from txstream.engine.loop.workers import Clock, Event, ThreadWorkers
from txstream.engine.start.batch_tier import BatchTier
from txstream.engine.start.driver import Driver, RunnerFactory
from txstream.plugins.proof.stores.memory import MemoryBackend
from txstream.plugins.proof.zookeeper_tree import MemoryTree
from txstream.plugins.testing.services import MemoryServices
from txstream.state import Commit, StateBackend, TopologyStates
from txstream.testing import InProcessRunner
from txstream.zookeeper import Requests

DEADLINE_SECONDS = 60.0
TOPOLOGY = "word-count"
_names = itertools.count()


def wait(event: threading.Event, what: str) -> None:
    assert event.wait(DEADLINE_SECONDS), f"not within {DEADLINE_SECONDS:g} s: {what}"


class ImpatientWorkers(ThreadWorkers):
    """Shortens the waits before a further try, which are for outages and only cost time in a test; `pauses`
    maps waits to the seconds that they do last."""

    pauses: Mapping[float, float] = {}

    def after(self, seconds: float, event: Event, *, is_deadline: bool = False) -> None:
        if not is_deadline:
            seconds = self.pauses.get(seconds, min(seconds, 0.001))
        super().after(seconds, event, is_deadline=is_deadline)

    def wake(self) -> None:
        """Have the loop look at the clock, which was moved by hand."""
        self.post(lambda: None)

    def pause(self, seconds: float) -> bool:
        return super().pause(min(seconds, 0.005))


class WatchedStates(TopologyStates):
    """Tells its table of each commit, before and after."""

    def commit(self, commit: Commit, **options: Any) -> None:
        table: Table = self.store.table  # type: ignore[attr-defined]
        table.attempts.append(commit.attempt)
        table.errors.append(commit.error)
        table.before(commit.attempt)
        super().commit(commit, **options)
        rows = [row for deltas in commit.deltas.values() for row in deltas.to_pylist()]
        table.batches[commit.attempt.txid] = commit.attempt, rows


@dataclass
class Table:
    """What was committed to the database. `before` is called before each commit, on the thread that commits,
    and may raise or block."""

    url: str
    batches: dict[Txid, tuple[TransactionAttempt, list[dict[str, Any]]]] = field(default_factory=dict)
    before: Callable[[TransactionAttempt], None] = lambda attempt: None
    attempts: list[TransactionAttempt] = field(default_factory=list)
    errors: list[str | None] = field(default_factory=list)

    def totals(self) -> dict[str, int]:
        database = MemoryBackend(self.url)
        return {row["word"]: row["n"] for row in database.top("words", topology=TOPOLOGY, n=1_000_000)}


@dataclass
class Place:
    """What outlives a driver."""

    tree: MemoryTree = field(default_factory=MemoryTree)
    states: type[TopologyStates] = WatchedStates

    def __post_init__(self) -> None:
        self.table = Table(f"memory://loops-{next(_names)}")

    def open_database(self, url: str, **_: Any) -> StateBackend:
        database = MemoryBackend(self.table.url)
        database.bound = self.states  # type: ignore[misc]  # of this one
        database.table = self.table  # type: ignore[attr-defined]
        return database


class World(Place):
    """A place, and the log of word-count topologies."""

    def __init__(
        self,
        log: MemoryLog,
        spout: type[SourceSpout[Any]] = OpaqueSpout,
        states: type[TopologyStates] = WatchedStates,
    ) -> None:
        super().__init__(states=states)
        self.log = log
        self.spout = spout


class CountingRunner(InProcessRunner):
    """Records every attempt that it is given, and keeps its result."""

    def __init__(self, plan: ExecutionPlan, *, width: int | None = None) -> None:
        super().__init__(plan, width=width)
        self.attempts: list[TransactionAttempt] = []
        self.results: dict[TransactionAttempt, BatchResult] = {}

    def run(self, attempt: TransactionAttempt, metas: BatchMetas[Any], spare: int = 0) -> BatchResult:
        self.attempts.append(attempt)
        result = self.results[attempt] = super().run(attempt, metas, spare)
        return result


class DriverRun:
    """One driver's turn, already leading. `until` is "caught-up", a txid or None."""

    def __init__(
        self,
        topology: Topology,
        place: Place,
        until: str | int | None = "caught-up",
        *,
        make_runner: RunnerFactory,
        listener: PointListener = nobody_listens,
        clock: Clock | None = None,
        asked_before: Requests | None = None,
        **options: Any,
    ) -> None:
        self.hook: Callable[[str, str], None] = lambda when, write: None
        self.listener = listener
        self.topology = topology
        self.workers = ImpatientWorkers(jobs=2 * topology.max_spout_pending + 2, clock=clock)
        self.services = MemoryServices(
            topology,
            place.tree,
            place.table.url,
            make_runner,
            self.workers,
            hook=lambda when, write: self.hook(when, write),
            open_database=place.open_database,
        )
        if asked_before is not None:  # as if it had stood by since then
            self.services.asked_before = lambda: asked_before  # type: ignore[method-assign]
        tier = BatchTier(
            topology,
            until_caught_up=until == "caught-up",
            until_txid=until if isinstance(until, int) else None,
            listener=lambda *reached: self.listener(*reached),
            **options,
        )
        self.driver = Driver(self.services, tier)
        loop = self.driver.start()
        assert loop is not None
        assert self.driver.taken is not None
        self.steering = self.driver.taken.steering
        self.loop = loop
        self.store = self.services.store
        self.coordinator = loop.coordinator
        self.spout = loop.spout
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._main, daemon=True)

    def start(self) -> Self:
        self._thread.start()
        return self

    def finish(self) -> Self:
        """Wait for the end; raise what the run ended with."""
        self._thread.join(DEADLINE_SECONDS)
        assert not self._thread.is_alive(), f"still running: {self.loop.open_batches()}"
        if self.error is not None:
            raise self.error
        return self

    def complete(self) -> Self:
        return self.start().finish()

    def _main(self) -> None:
        try:
            with self.services:
                self.loop.run()
        except BaseException as error:  # noqa: BLE001 - raised in finish
            self.error = error


class Run(DriverRun):
    """A word count's turn. `options` go to the topology; `width` is that of every batch."""

    runner: CountingRunner

    def __init__(
        self,
        world: World,
        until: str | int | None = "caught-up",
        *,
        max_batch_records: int = 2,
        width: int | None = None,
        options: Mapping[str, Any] = {},
        **others: Any,
    ) -> None:
        def make_runner(plan: ExecutionPlan) -> BatchRunner:
            self.runner = CountingRunner(plan, width=width)
            return self.runner

        self.world = world
        topology = word_count(
            world.log, spout=world.spout, parallelism=2, max_batch_records=max_batch_records, **options
        )
        super().__init__(topology, world, until, make_runner=make_runner, **others)


def words(log: MemoryLog) -> dict[str, int]:
    return dict(Counter(w for rows in log.partitions.values() for line in rows for w in (line or "").split()))


def failing_once(error: Exception, txid: int) -> Callable[[TransactionAttempt, str], None]:
    """Return a hook that raises at the first read of a txid."""
    failed: set[int] = set()

    def on_emit(attempt: TransactionAttempt, partition: str) -> None:
        if attempt.txid == txid and not failed:
            failed.add(attempt.txid)
            raise error

    return on_emit


def stop_when(run: Run, condition: Callable[[], bool]) -> None:
    """Stop the run once a batch has been advanced and the condition holds."""

    def listener(point: Point, txid: Txid, open_batches: dict[Txid, str]) -> None:
        if point is Point.AFTER_ADVANCE and condition():
            run.loop.stop()

    run.listener = listener
    if condition():
        run.loop.stop()
