"""One run of a comparison: a driver over real services, with the faults of the schedule, and its results.

Invariant: after `removed`, nothing that a run stored under its id is left, however the run ended, unless it
is to be kept.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from txstream.api.spouts import PartitionCoordinator, SpoutContext, Unavailable
from txstream.api.topology import Topology
from txstream.core.batch_metas import BatchMetas
from txstream.core.fault_points import CrashError
from txstream.core.transaction import TransactionAttempt, Txid
from txstream.engine.batch.runner_contract import BatchResult, BatchRunner
from txstream.engine.letters.retry_policy import WARM_UP_SECONDS
from txstream.engine.start.batch_tier import BatchTier
from txstream.engine.start.driver import Driver
from txstream.engine.start.run_services import RunServices, source_context
from txstream.plugins.compare.attempts import Timeline
from txstream.plugins.compare.schedule import Fault, Injector
from txstream.plugins.local.local_runner import InProcessRunner
from txstream.plugins.proof.simulation.variant import Positions, clipped, fixed_end, is_reached
from txstream.settings import Settings
from txstream.state import StateBackend, open_database
from txstream.zookeeper import ZooKeeper

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ALL_ROWS = 100_000_000

Rows = dict[tuple[Any, ...], tuple[Any, ...]]
"""Values by key, of one state table."""


@dataclass
class Outcome:
    """What a run did and stored. `tables` are by the topology's names for them; `size` is in bytes; `dead`
    has the place of each dead letter."""

    timeline: Timeline
    injector: Injector
    tables: dict[str, Rows] = field(default_factory=dict)
    size: int = 0
    round_trips: int = 0
    drivers: int = 0
    dead: list[str] = field(default_factory=list)


class _Source(PartitionCoordinator[Any]):
    """The source up to a fixed end, without the partitions that the schedule has taken away."""

    def __init__(self, inner: PartitionCoordinator[Any], end: Positions, injector: Injector) -> None:
        self._inner = inner
        self._end = end
        self._injector = injector

    def is_ready(self) -> bool:
        return self._inner.is_ready()

    def plan(self, last: Mapping[str, Any], limit: int) -> Mapping[str, Any]:
        plan = clipped(self._inner.plan(last, limit), self._end)
        self.passed_over = self._inner.passed_over
        return {**plan, **_away(self._injector.unplannable(last), plan)}

    def unreadable(self, metas: Mapping[str, Any]) -> Mapping[str, Unavailable]:
        return {**self._inner.unreadable(metas), **_away(self._injector.unreadable(), metas)}

    def services_away(self) -> Mapping[str, str]:
        return self._inner.services_away()

    def targets(self) -> Positions:
        return self._end

    def reached(self, last: Mapping[str, Any], targets: Mapping[str, Any]) -> bool:
        return is_reached(last, targets)

    def cleanup_before(self, txid: Txid) -> None:
        self._inner.cleanup_before(txid)

    def close(self) -> None:
        self._inner.close()


def _away(reasons: Mapping[str, str], partitions: Mapping[str, Any]) -> dict[str, Unavailable]:
    return {name: Unavailable(reason) for name, reason in reasons.items() if name in partitions}


class _Runner:
    """The runner, with attempts that fail as the schedule says. All else is passed on to the runner."""

    def __init__(self, inner: BatchRunner, injector: Injector) -> None:
        self._inner = inner
        self._injector = injector

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def run(self, attempt: TransactionAttempt, metas: BatchMetas[Any], spare: int = 0) -> BatchResult:
        self._injector.emitting(attempt, metas.partitions)
        result = self._inner.run(attempt, metas, spare)
        self._injector.emitted(attempt)
        return result


class _Services(RunServices):
    """The services of a run, with the schedule's faults between them and the driver."""

    def __init__(
        self, topology: Topology, settings: Settings, end: Positions, injector: Injector, **options: Any
    ) -> None:
        super().__init__(topology, settings, **options)
        self._end = end
        self._injector = injector

    @property
    def round_trips(self) -> int:
        return self._zookeeper.round_trips if hasattr(self, "_zookeeper") else 0

    def open_source(self, context: SpoutContext) -> PartitionCoordinator[Any]:
        return _Source(super().open_source(context), self._end, self._injector)

    def keep(self, runner: BatchRunner) -> BatchRunner:
        kept: Any = _Runner(super().keep(runner), self._injector)
        return kept  # type: ignore[no-any-return]


def end_of_log(topology: Topology, settings: Settings, records: int) -> Positions:
    """Return what `fixed_end` does. The source is asked once, before all runs."""
    context = source_context(topology, settings)
    spout = topology.spout.source.coordinator(context)
    with contextlib.closing(spout):
        return fixed_end(spout, records)


def play(
    topology: Topology,
    settings: Settings,
    end: Positions,
    faults: tuple[Fault, ...],
    *,
    spark: SparkSession | None,
    prefix: str,
) -> Outcome:
    """Run a topology to the end through its faults. When a driver dies, the next one follows at once.

    Without `spark`, batches run in this process. The names of the run's tables begin with `prefix`.
    """
    factory = InProcessRunner if spark is None else None
    injector = Injector(faults)
    outcome = Outcome(Timeline(), injector)
    while True:
        services = _Services(topology, settings, end, injector, spark=spark, runner_factory=factory)
        outcome.drivers += 1
        tier = BatchTier(
            topology,
            until_caught_up=True,
            warm_up_seconds=WARM_UP_SECONDS if spark is not None else 0.0,
            listener=injector.reached,
            watcher=outcome.timeline,
        )
        driver = Driver(services, tier)
        try:
            driver.run()
        except CrashError:
            outcome.timeline.driver_died()
        else:
            break
        finally:
            outcome.round_trips += services.round_trips
    with _databases(topology, settings) as databases:
        for database in databases:
            _read(database, topology, prefix, outcome)
            outcome.dead += [one.place for one in database.dead_letters(topology.id, whole=False)]
    return outcome


@contextlib.contextmanager
def removed(topology: Topology, settings: Settings, *, keep: bool = False) -> Iterator[None]:
    """Remove whatever the topology has stored by the end of the block, unless `keep`."""
    try:
        yield
    finally:
        if not keep:
            with _databases(topology, settings) as databases:
                for database in databases:
                    database.delete(topology.id, drop_state=True)
            with ZooKeeper.of(settings) as zookeeper:
                zookeeper.delete_topology(topology.id, force=True)  # its driver was in this process


@contextlib.contextmanager
def _databases(topology: Topology, settings: Settings) -> Iterator[list[StateBackend]]:
    states = [*(bolt.state for bolt, _ in topology.states), *(use.state for use in topology.map_states)]
    urls = dict.fromkeys(state.url or settings.database_url() for state in states)
    with contextlib.ExitStack() as stack:
        opened = []
        for url in urls or [settings.database_url()]:
            opened.append(open_database(url, connect_timeout_seconds=settings.connect_timeout_seconds))
            stack.callback(opened[-1].close)
        yield opened


def _read(database: StateBackend, topology: Topology, prefix: str, outcome: Outcome) -> None:
    # How far a run has come when it closes windows depends on its batches: that a row is closed is left out.
    marks = {bolt.state.table: bolt.state.marks[0] for bolt, _ in topology.states if bolt.state.marks}
    with database.read_state(topology.id) as state:
        for table in state.tables():
            found = state.top(table.name, _ALL_ROWS)
            rows: Rows = {}
            seen: Counter[tuple[Any, ...]] = Counter()
            for row in found:
                key = tuple(row.key.values())
                seen[key] += 1
                # Rows of a table without a primary key may come twice; then all but the first are surplus.
                again = () if seen[key] == 1 else (f"again {seen[key]}",)
                left_out = {marks[table.name]: False} if table.name in marks else {}
                rows[*key, *again] = tuple({**row.value, **left_out}.values())
            outcome.tables[table.name.removeprefix(prefix)] = rows
            outcome.size += sum(_size(value) for row in found for value in table.columns(row).values())


def _size(value: object) -> int:
    """Return the bytes of a value as databases store it, without overhead."""
    return (
        len(str(value).encode()) if isinstance(value, str) else len(value) if isinstance(value, bytes) else 8
    )
