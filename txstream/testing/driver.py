"""One driver's turn in a test: what `txstream.start` puts together, with ZooKeeper in memory.

Invariant: what outlives a driver is in the tree and in the databases; a new `Driver` finds everything there,
by the same recovery as a run.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from txstream.api.errors import UsageError
from txstream.api.spouts import SpoutContext
from txstream.api.topology import Topology
from txstream.coordinator import Coordinator, EmitBatch
from txstream.engine.batch.plan import ExecutionPlan, compile_topology
from txstream.engine.batch.recording import CallSink, recorded
from txstream.engine.batch.runner import BatchRunner
from txstream.engine.commit.bindings import map_bindings
from txstream.engine.commit.committer import Committer, state_targets
from txstream.engine.driver.loop import LoopOptions
from txstream.engine.fault_points import Point, PointListener, nobody_listens
from txstream.engine.start.takeover import take_up
from txstream.metas import MetaCodec
from txstream.settings import Settings
from txstream.state import FenceLockedError, StateBackend, open_database
from txstream.testing.attempts import Attempt, AttemptState, History
from txstream.testing.clock import ManualClock
from txstream.testing.gate import GatedRunner
from txstream.testing.inprocess import InProcessRunner
from txstream.testing.stepping import SteppedLoop
from txstream.transaction import TransactionAttempt, Txid
from txstream.zookeeper import ROOT, MemoryProgress, MemoryTree, OperatorRequests, Paths

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
    # Called at each point of a batch, but BEFORE_COMMIT once the test lets the commit begin.
    listener: PointListener = nobody_listens
    # Called when an attempt fails, before it is replayed.
    failed: Callable[[TransactionAttempt, BaseException], None] | None = None


class Driver:
    """Recovers when it is made, stands still until it is stepped. Raises what a run's start would."""

    def __init__(self, world: World, topology: Topology) -> None:
        self.topology = topology
        self.error: BaseException | None = None
        self._killed = False
        self._over = False
        self._world = world
        self._stack = contextlib.ExitStack()
        try:
            self._assemble()
        except BaseException:
            self._stack.close()
            raise
        self._thread = threading.Thread(target=self._main, name=f"txstream-{topology.id}", daemon=True)
        self._thread.start()

    def _assemble(self) -> None:
        world, topology = self._world, self.topology
        self.targets = state_targets(
            topology,
            world.database_url,
            self._open_database,
            connect_timeout_seconds=world.settings.connect_timeout_seconds,
            in_this_process=world.spark is None,
        )
        codec: MetaCodec[Any] = MetaCodec(topology.spout.source.meta_type)
        store = MemoryProgress(world.tree, topology.id, codec)
        context = self._context()
        self.spout = topology.spout.source.coordinator(context)
        self._stack.callback(self.spout.close)
        taken = take_up(
            topology,
            store,
            self.targets,
            codec,
            locked=_never_locked,
            last_txid=lambda current: Txid(current - 1),  # nothing is opened before a step asks for it
        )
        bindings = map_bindings(topology, taken.identity.uuid, self.targets)
        plan = compile_topology(topology, context, uuid.uuid4().hex, capture=True, bindings=bindings)
        plan = replace(plan, bolts=tuple(recorded(spec, world.calls) for spec in plan.bolts))
        self.gate = GatedRunner(self._create_runner(plan), world.history, self._beginning_commit)
        self._stack.callback(self.gate.close)
        committer = Committer(topology, taken.identity.uuid, self.targets, wait_for=self._wait_for)
        self._merge = committer.merge
        self._in_commit = frozenset(spec.id for spec in plan.bolts if spec.in_commit)
        current = taken.resume.progress.current
        world.history.committed(taken.resume.progress.committed_by)
        self.loop = SteppedLoop(
            taken.coordinator,
            self.spout,
            store,
            self.gate,
            committer,
            codec,
            LoopOptions(
                max_batch_records=topology.spout.max_batch_records,
                message_timeout_seconds=topology.message_timeout_seconds,
                max_attempts=topology.max_attempts,
                listener=self._reached,
            ),
            slots=taken.slots,
            gate=self.gate,
            clock=world.clock,
            emitting=self._emitting,
            moved=world.history.move,
            failed=self._failed,
        )
        self.gate.allow(process=current - 1, commit=current - 1)
        self._stack.callback(world.clock.listen(self.loop.events.wake))

    # --- for the test -------------------------------------------------------------------------------

    @property
    def coordinator(self) -> Coordinator[Any]:
        return self.loop.coordinator

    @property
    def has_ended(self) -> bool:
        return self._over

    @property
    def why_ended(self) -> str:
        return "it was killed" if self._killed else f"it ended with {self.error!r}"

    def settle(self, deadline: float) -> bool:
        """Let it do all that it may do now; False when the deadline came first."""
        quiet = self.loop.wait_until_quiet(lambda: self.has_ended, deadline)
        for batch in list(self.coordinator.active.values()):
            if batch.phase.value == AttemptState.PROCESSED:
                self._world.history.move(batch.attempt, AttemptState.PROCESSED)
        return quiet

    def end(self, deadline_seconds: float) -> bool:
        """End it as a crash would, and close everything; False when something still runs at the deadline. May
        be called again."""
        self._killed = self._killed or not self.has_ended
        self.gate.let_all_go()
        self.loop.abort()
        self.loop.events.release()
        self._thread.join(deadline_seconds)
        self._stack.close()
        self._world.history.lose_open()
        return self.has_ended

    @property
    def requests(self) -> OperatorRequests:
        """What an operator's command writes to."""
        return OperatorRequests(self._world.tree, Paths(ROOT, self.topology.id))

    def target_of(self, table: str) -> tuple[StateBackend, Any]:
        """The database of a state table, and what the table is declared as. Raises UsageError."""
        for target in self.targets:
            for spec in target.tables:
                if spec.state.table == table:
                    return target.database, spec.state
        names = [spec.state.table for target in self.targets for spec in target.tables]
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
            with self.loop.events.changed:
                self._over = True
                self.loop.events.changed.notify_all()

    def _reached(self, point: Point, txid: Txid, open_batches: dict[Txid, str]) -> None:
        if point is not Point.BEFORE_COMMIT:
            self._world.listener(point, txid, open_batches)

    def _beginning_commit(self, attempt: TransactionAttempt) -> None:
        self._world.listener(Point.BEFORE_COMMIT, attempt.txid, self.loop.open_batches())

    def _emitting(self, emit: EmitBatch[Any]) -> None:
        history = self._world.history
        txid = emit.attempt.txid
        streams: dict[str, Mapping[str, Any]] = {c.id: c.streams for c in self.topology.components}
        history.add(
            Attempt(
                emit.attempt,
                len(history.of(txid)) + 1,
                emit.metas,
                streams,
                self._in_commit,
                self._merge,
            )
        )

    def _failed(self, attempt: TransactionAttempt, error: BaseException) -> None:
        found = self._world.history.find(attempt)
        if found is not None:
            found.error = error
            self._world.history.move(attempt, AttemptState.FAILED)
        if self._world.failed is not None:
            self._world.failed(attempt, error)

    def _open_database(self, url: str) -> StateBackend:
        database = open_database(
            url,
            connect_timeout_seconds=self._world.settings.connect_timeout_seconds,
            message_timeout_seconds=self.topology.message_timeout_seconds,
        )
        self._stack.callback(database.close)
        database.check()
        return database

    def _context(self) -> SpoutContext:
        settings = self._world.settings
        return SpoutContext(
            topology_id=self.topology.id,
            component=self.topology.components[0].id,
            addresses=settings.addresses(),
            fetch_timeout_seconds=settings.fetch_timeout_seconds,
            connect_timeout_seconds=settings.connect_timeout_seconds,
        )

    def _create_runner(self, plan: ExecutionPlan) -> BatchRunner:
        spark = self._world.spark
        if spark is None:
            return InProcessRunner(plan, width=self._world.width)
        from txstream.engine.spark.runner import SparkRunner

        return SparkRunner(spark.sparkContext, plan, spark)

    def _wait_for(self, what: str, check: Callable[[], None]) -> None:
        self.loop.wait_for(what, check)


def _never_locked(error: FenceLockedError) -> None:
    raise error
