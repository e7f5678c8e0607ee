"""One driver in a test: the driver that every run has, stepped by the test, with ZooKeeper in memory.

Invariant: whatever outlives a driver is in the tree and in the databases. A new `SteppedDriver` recovers it
all from there, as a run does.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from txstream.api.topology import Topology
from txstream.core.coordinator import Coordinator, EmitBatch
from txstream.core.errors import UsageError
from txstream.core.fault_points import Point, PointListener, nobody_listens
from txstream.core.transaction import TransactionAttempt, Txid
from txstream.engine.batch.execution_plan import ExecutionPlan
from txstream.engine.batch.runner_contract import BatchResult, BatchRunner
from txstream.engine.commit.committer import StateTarget, merged_deltas, state_committers
from txstream.engine.loop.open_batches import Watcher
from txstream.engine.start.batch_tier import BatchTier
from txstream.engine.start.driver import Driver
from txstream.plugins.local.local_runner import InProcessRunner
from txstream.plugins.proof.zookeeper_tree import MemoryTree
from txstream.plugins.testing.attempts import Attempt, AttemptState, History
from txstream.plugins.testing.clock import ManualClock
from txstream.plugins.testing.recorded_calls import CallSink, recorded
from txstream.plugins.testing.services import MemoryServices
from txstream.plugins.testing.stepping import SteppedWorkers
from txstream.settings import Settings
from txstream.spouts.memory.failure_markers import CrashError
from txstream.state import StateBackend
from txstream.zookeeper import ROOT, OperatorRequests, Paths, ProgressStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class World:
    """What all drivers of a test share. `spark` is None for batches without Spark, of `width` Spark tasks."""

    tree: MemoryTree
    database_url: str
    settings: Settings
    clock: ManualClock
    history: History
    calls: CallSink
    spark: SparkSession | None = None
    width: int | None = None
    listener: PointListener = nobody_listens
    # Called when an attempt fails, before it is replayed.
    failed: Callable[[TransactionAttempt, BaseException], None] | None = None


class SteppedDriver:
    """A driver that recovers when it is created, then stands still until it is stepped. The constructor
    raises what a run's start would."""

    def __init__(self, world: World, topology: Topology) -> None:
        if world.spark is not None:
            from txstream.engine.spark.engine import check_source

            check_source(topology)
        self.topology = topology
        self.error: BaseException | None = None
        self._killed = False
        self._over = False
        self._world = world
        self._stack = contextlib.ExitStack()
        self.workers = SteppedWorkers(jobs=2 * topology.max_spout_pending + 2, clock=world.clock)
        self._services = MemoryServices(
            topology,
            world.tree,
            world.database_url,
            self._create_runner,
            self.workers,
            settings=world.settings,
            in_this_process=world.spark is None,
        )
        self._history = _HistoryWriter(world, topology, self.workers)
        # Time stands still here, so a rate limit would never allow another record.
        unhurried = replace(topology, max_records_per_second=None)
        tier = BatchTier(unhurried, listener=self._reached, watcher=self._history, capture=True)
        driver = Driver(self._services, tier)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._services)
            loop = driver.start()
            assert loop is not None
            assert driver.taken is not None
            stack.callback(world.clock.listen(self.workers.wake))
            self._stack = stack.pop_all()
        self.loop = loop
        self.spout = loop.spout
        current = self.coordinator.current
        # No txid is opened before a step asks for it.
        self.coordinator.last_txid = Txid(current - 1)
        self.workers.allow(process=current - 1, commit=current - 1)
        world.history.committed(driver.taken.resume.progress.committed_by)
        self._thread = threading.Thread(target=self._main, name=f"txstream-{topology.id}", daemon=True)
        self._thread.start()

    # --- for the test -------------------------------------------------------------------------------

    @property
    def coordinator(self) -> Coordinator[Any]:
        return self.loop.coordinator

    @property
    def targets(self) -> Sequence[StateTarget]:
        """The databases of the topology's states."""
        return self._services.targets

    @property
    def store(self) -> ProgressStore:
        """Where the driver writes its progress."""
        return self._services.store

    @property
    def has_ended(self) -> bool:
        return self._over

    @property
    def why_ended(self) -> str:
        return "it was killed" if self._killed else f"it ended with {self.error!r}"

    def open_up_to(self, txid: int | None) -> None:
        """Open no txid after this one; None for no bound. Call it while the topology stands still."""
        self.coordinator.last_txid = None if txid is None else Txid(txid)
        self.workers.post(lambda: self.loop.carry_out(self.coordinator.sync()))

    def fail(self, attempt: TransactionAttempt, error: BaseException) -> None:
        """Fail an attempt where it is: held back, or processed and waiting for its turn to commit."""
        if not self.workers.fail(attempt, error):
            self.workers.post(lambda: self.loop.failures.failed(attempt, error))

    def settle(self, deadline: float) -> bool:
        """Let the driver do everything that it may do now. Returns False when the deadline came first."""
        quiet = self.workers.run_until_quiet(lambda: self.has_ended, deadline)
        for batch in list(self.coordinator.active.values()):
            if batch.phase.value == AttemptState.PROCESSED:
                self._world.history.move(batch.attempt, AttemptState.PROCESSED)
        return quiet

    def where(self) -> Any:
        """Return what changes with progress: the current txid, and the active attempts with their phases."""
        active = self.coordinator.active.values()
        return self.coordinator.current, tuple((batch.attempt, batch.phase) for batch in active)

    def still_running(self) -> list[str]:
        """Return the calls of bolts that attempts are in now; none when batches run on Spark."""
        return self._runner.still_running() if isinstance(self._runner, InProcessRunner) else []

    def end(self, deadline_seconds: float) -> bool:
        """End the driver as a crash would, and close everything. May be called again. Returns False when
        something still runs at the deadline."""
        self._killed = self._killed or not self.has_ended
        self.loop.abort()
        self.workers.let_all_go()
        self._thread.join(deadline_seconds)
        self._stack.close()
        self._world.history.lose_open()
        return self.has_ended

    @property
    def requests(self) -> OperatorRequests:
        """Where an operator's command writes its requests."""
        return OperatorRequests(self._world.tree, Paths(ROOT, self.topology.id))

    def target_of(self, table: str) -> tuple[StateBackend, Any]:
        """Return the database of a state table and the table's declaration. Raises UsageError for a table
        that the topology does not fill."""
        names = []
        for target in self.targets:
            for spec in target.tables:
                if spec.state.table == table:
                    return target.database, spec.state
                names.append(spec.state.table)
        raise UsageError(
            f"topology {self.topology.id!r} fills no table {table!r}; it fills {', '.join(names) or 'none'}"
        )

    # --- inside -------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            self.loop.run()
        except BaseException as error:  # noqa: BLE001 - raised in the test, by the step that meets it
            self.error = error
        finally:
            with self.workers.changed:
                self._over = True
                self.workers.changed.notify_all()

    def _reached(self, point: Point, txid: Txid, open_batches: dict[Txid, str]) -> None:
        if point is Point.BEFORE_COMMIT:
            self.workers.begin_commit()
            open_batches = self.loop.open_batches()
        self._world.listener(point, txid, open_batches)

    def _create_runner(self, plan: ExecutionPlan) -> BatchRunner:
        world = self._world
        self._history.in_commit = frozenset(spec.id for spec in plan.bolts if spec.in_commit)
        plan = replace(plan, bolts=tuple(recorded(spec, world.calls) for spec in plan.bolts))
        if world.spark is None:
            self._runner: BatchRunner = InProcessRunner(plan, width=world.width)
        else:
            from txstream.engine.spark.spark_runner import SparkRunner

            self._runner = SparkRunner(world.spark.sparkContext, plan, world.spark)
        return self._runner


class _HistoryWriter(Watcher):
    """Records what happens to each attempt. `in_commit` names the bolts that run in the commit phase."""

    in_commit: frozenset[str] = frozenset()

    def __init__(self, world: World, topology: Topology, workers: SteppedWorkers) -> None:
        self._world = world
        self._history = world.history
        self._workers = workers
        self._streams: dict[str, Mapping[str, Any]] = {c.id: c.streams for c in topology.components}
        self._bolts = state_committers(topology)

    def emitting(self, emit: EmitBatch[Any]) -> None:
        number = len(self._history.of(emit.attempt.txid)) + 1
        self._history.add(
            Attempt(emit.attempt, number, emit.metas, self._streams, self.in_commit, self._merged)
        )

    def processed(self, attempt: TransactionAttempt, result: BatchResult) -> None:
        self._attempt(attempt).processed = result

    def committing(self, attempt: TransactionAttempt) -> None:
        self._history.move(attempt, AttemptState.COMMITTING)

    def bolts_committed(self, attempt: TransactionAttempt, result: BatchResult) -> None:
        self._attempt(attempt).finished = result

    def committed(self, attempt: TransactionAttempt) -> None:
        self._history.move(attempt, AttemptState.COMMITTED)

    def dropped(self, attempt: TransactionAttempt) -> None:
        self._history.move(attempt, AttemptState.DROPPED)
        self._workers.drop(attempt)

    def failed(self, attempt: TransactionAttempt, error: BaseException) -> None:
        if isinstance(error, CrashError):
            raise error  # it stands for the driver's death, so no failure is handled any more
        self._attempt(attempt).error = error
        self._history.move(attempt, AttemptState.FAILED)
        if self._world.failed is not None:
            self._world.failed(attempt, error)

    def _merged(self, *results: BatchResult) -> dict[str, pa.Table]:
        return {component: merged_deltas(component, bolt, results) for component, bolt in self._bolts.items()}

    def _attempt(self, attempt: TransactionAttempt) -> Attempt:
        found = self._history.find(attempt)
        assert found is not None, f"{attempt} was never emitted"
        return found
