"""`TopologyTest`: runs a topology batch by batch, as far as the test says, with or without Spark.

Coordinator, event loop, recovery, commit and state are those of every run. ZooKeeper is in memory, and the
database is a file of the test's own unless another is given.
"""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, overload

from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.topology import Topology
from txstream.api.tuples import DEFAULT_STREAM
from txstream.core.coordinator import BatchPhase
from txstream.core.errors import BatchFailedError, UsageError
from txstream.core.fault_points import At, Point, nobody_listens
from txstream.core.semantics import Semantics
from txstream.core.transaction import Txid
from txstream.plugins.proof.zookeeper_tree import MemoryTree
from txstream.plugins.testing.attempts import Attempt, CallFile, CallList, CallLog, History, Row
from txstream.plugins.testing.clock import ManualClock
from txstream.plugins.testing.control import Control, NotReachedError
from txstream.plugins.testing.driver import World
from txstream.plugins.testing.recorded_calls import Call
from txstream.plugins.testing.services import StoredProgress
from txstream.plugins.tracked.builder import TopologyBuilder, TrackedTopology
from txstream.settings import Settings
from txstream.spouts.memory.failure_markers import CrashError
from txstream.zookeeper import Kind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txstream.plugins.testing.tracked import TrackedTest

DEADLINE_SECONDS = 60.0
_ALL_ROWS = 1_000_000
_PERSIST_POINTS = (Point.BEFORE_PERSIST, Point.AFTER_PERSIST)
_POINTS = tuple(Point)
_FAIL_POINTS = _POINTS[_POINTS.index(Point.BEFORE_COMMIT) : _POINTS.index(Point.BEFORE_ADVANCE)]


class TopologyTest:
    """A topology under control of the test. Use it as a context manager, from one thread.

    topology: the topology to test, or its builder as far as it is declared, even without a committer. For a
        topology of tracked tuples the constructor returns a `TrackedTest`. The spout's `max_batch_records`
        limits a batch.
    spark: a SparkSession to run the batches on. None runs them in this process, which DataFrame bolts cannot.
    database: a SQLAlchemy URL for states without a url of their own. None uses a SQLite file that is removed
        at the end.
    settings: addresses and deadlines for the source, as for a run.
    clock: the clock of the message timeouts. It stands at 0 until the test moves it
        (`test.clock.advance(30)`). For tables with `keep` its seconds are those since 1970, so begin at
        a time of your own: `ManualClock(datetime(2026, 1, 31, tzinfo=UTC).timestamp())`.
    width: without Spark, how many Spark tasks each batch is spread over; None as Spark would.
    patience_seconds: how long, in real seconds, a step goes on asking a source that has nothing or cannot be
        read. 0 is right for a source that only the test changes.
    deadline_seconds: how long, in real seconds, a step may take.

    `zookeeper` holds what ZooKeeper stores of the topology, text by path. A test may read and damage it.

    Waits between attempts and between questions to the source take no time: a step that depends on one skips
    it. Steps raise what ends a run (a bolt's error after `max_attempts`, CrashError), NotReachedError when
    the topology stands still or the deadline has passed, and UsageError for arguments that make no sense.
    """

    def __new__(cls, topology: object, **_: Any) -> Self:
        if cls is TopologyTest and isinstance(topology, (TrackedTopology, TopologyBuilder)):
            from txstream.plugins.testing.tracked import TrackedTest  # derives from this class

            return object.__new__(TrackedTest)  # type: ignore[return-value]  # as the overload says
        return super().__new__(cls)

    @overload
    def __init__(  # type: ignore[misc]  # what `__new__` makes of these arguments
        self: TrackedTest,
        topology: TrackedTopology | TopologyBuilder,
        *,
        spark: SparkSession | None = None,
        settings: Settings | None = None,
        clock: ManualClock | None = None,
        width: int | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        topology: Topology | TransactionalTopologyBuilder,
        *,
        spark: SparkSession | None = None,
        database: str | None = None,
        settings: Settings | None = None,
        clock: ManualClock | None = None,
        width: int | None = None,
        patience_seconds: float = 0.0,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None: ...

    def __init__(
        self,
        topology: Topology | TransactionalTopologyBuilder | TopologyBuilder,
        *,
        spark: SparkSession | None = None,
        database: str | None = None,
        settings: Settings | None = None,
        clock: ManualClock | None = None,
        width: int | None = None,
        patience_seconds: float = 0.0,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        self.topology = _built(topology)
        self.clock = clock or ManualClock()
        self._directory = tempfile.TemporaryDirectory(prefix="txstream-test-")
        directory = Path(self._directory.name)
        self.database_url = database or f"sqlite:///{directory / 'state.db'}"
        self._history = History()
        self._calls: CallLog = CallList() if spark is None else CallFile(directory / "calls")
        tree = MemoryTree()
        self.zookeeper = StoredProgress(tree, self.topology.id)
        world = World(
            tree=tree,
            database_url=self.database_url,
            settings=settings or Settings(),
            clock=self.clock,
            history=self._history,
            calls=self._calls,
            spark=spark,
            width=width,
            listener=nobody_listens,
        )
        self._control = Control(world, patience_seconds=patience_seconds, deadline_seconds=deadline_seconds)

    def __enter__(self) -> Self:
        self._control.start(self.topology)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the topology and remove what the test has stored, except in a database passed by the user."""
        try:
            self._control.end()
        finally:
            self._directory.cleanup()

    # --- steps --------------------------------------------------------------------------------------

    def open(self, txid: int | None = None) -> Attempt:
        """Plan a txid (by default the next that is not open) and begin to process it, but hold it before its
        source is read. Txids that must be committed first are committed."""
        control = self._control
        if txid is None:
            txid = next(t for t in itertools.count(self.current) if not control.is_open(t))
        control.allow(opened=txid)
        control.step(f"txid {txid} to be opened", lambda: control.is_open(txid), txid)
        return self._present(txid)

    def process(self, txid: int | None = None, *, alone: bool = False) -> Attempt:
        """Process everything up to a txid (by default the next that is not processed). Only txids that must
        be committed before it are committed. With `alone`, open txids before it are held back."""
        control = self._control
        if txid is None:
            txid = next(t for t in itertools.count(self.current) if not control.is_processed(t))
        if alone:
            control.allow_alone(txid)
        else:
            control.allow(processed=txid)
        wanted = range(txid if alone else min(self.current, txid), txid + 1)
        control.step(f"txid {txid} to be processed", lambda: all(map(control.is_processed, wanted)), txid)
        return self._present(txid)

    def commit(self, txid: int | None = None) -> Attempt:
        """Commit everything up to a txid (by default the next one)."""
        control = self._control
        if txid is None:
            txid = self.current
        control.allow(committed=txid)
        control.step(f"txid {txid} to be committed", lambda: self.current > txid, txid)
        return self._present(txid)

    def run(self) -> list[Attempt]:
        """Process and commit all that the source has now. Returns the attempts that committed it.

        Up to `max_spout_pending` batches are processed at once, as in a run, so the order in which bolts are
        called for different txids varies.
        """
        control = self._control
        driver = control.running
        first = self.current
        targets = driver.spout.targets()
        control.allow(committed=math.inf)

        def caught_up() -> bool:
            committed = driver.coordinator.committed_metas().positions()
            return driver.coordinator.is_idle and driver.spout.reached(committed, targets)

        try:
            control.step("all that the source has to be committed", caught_up)
        finally:
            if not driver.has_ended:
                control.lower(max([self.current - 1, *driver.coordinator.active]))
        return [self._present(txid) for txid in range(first, self.current)]

    def settle(self) -> None:
        """Let the topology do what it may do without another step and without waiting."""
        self._control.settle()

    def fail(
        self,
        txid: int | None = None,
        reason: str | BaseException = "failed by the test",
        *,
        at: Point | None = None,
    ) -> Attempt:
        """Fail the current attempt of a txid (by default the next to commit), and return it.

        The attempt fails where it is: held before it is processed, processed, or held before its commit. A
        txid that is not open is opened first. The attempts of later txids are dropped. All are replayed when
        a step asks for them. A string becomes the reason of a BatchFailedError; an exception is used as it
        is. With `at`, a point from BEFORE_COMMIT to AFTER_COMMIT that its commit passes, the txid is
        committed up to that point and fails there.
        """
        control = self._control
        driver = control.running
        txid = self._uncommitted(txid, "fail")
        error = reason if isinstance(reason, BaseException) else BatchFailedError(reason)
        if at is not None:
            return self._fail_at(txid, error, at)
        if not control.is_open(txid):
            self.open(txid)
        attempt = self._present(txid)
        control.lower(txid - 1)
        driver.fail(attempt.id, error)
        control.settle(f"txid {txid} to fail")
        return attempt

    def crash(self, at: Point | None = None, txid: int | None = None) -> None:
        """Kill the driver. What is in ZooKeeper and in the database stays, and all else is lost.

        With `at`, the driver dies when `txid` (by default the next to commit) gets to that point of its plan
        or its commit.
        """
        control = self._control
        if at is None:
            control.running  # noqa: B018 - a dead driver cannot be killed
            control.end()
            return
        txid = self._uncommitted(txid, "crash")
        step = self.commit
        if at in _PERSIST_POINTS:
            step = self.open
            if self.topology.semantics is not Semantics.TRANSACTIONAL:
                raise UsageError(f"only a transactional spout's plan is persisted, so nothing crashes {at}")
            if control.is_open(txid):
                raise UsageError(f"txid {txid} is open, so its plan is persisted; it cannot crash {at}")
        with control.ambush(here := At(at, txid), CrashError(f"the test killed the driver {here.shown}")):
            try:
                step(txid)
            except CrashError:
                return
        raise NotReachedError(f"the driver did not die: txid {txid} never was {at}")

    def scale(self, slots: Mapping[str, int]) -> None:
        """Ask for other slots, as `txstream scale` does. Batches opened from now on use them. Raises
        UsageError when the topology refuses them."""
        control = self._control
        requests = control.running.requests
        request = requests.ask(Kind.SCALE, slots)
        control.settle("the slots to be changed")
        answer = requests.wait_answer(request, 0.0)
        if answer is None:
            raise NotReachedError(f"the request for other slots, {dict(slots)}, was not answered")
        if answer.refused is not None:
            raise UsageError(answer.refused)

    def restart(self, topology: Topology | TransactionalTopologyBuilder | None = None) -> None:
        """Start a new driver, which recovers from ZooKeeper and the database. Kills a driver that still runs.
        With `topology`, which must have the same id, the new driver runs that topology."""
        new = self.topology if topology is None else _built(topology)
        if new.id != self.topology.id:
            raise UsageError(
                f"topology {new.id!r} cannot go on where {self.topology.id!r} was; give it the same id"
            )
        self.topology = new
        self._control.start(self.topology)

    # --- what is there ------------------------------------------------------------------------------

    @property
    def current(self) -> Txid:
        """The txid to commit next."""
        return self._control.driver.coordinator.current

    @property
    def phases(self) -> dict[Txid, BatchPhase]:
        """The phase of each open txid: "processing", "processed" or "committing"."""
        self._settle_if_running()
        coordinator = self._control.driver.coordinator
        return {txid: batch.phase for txid, batch in coordinator.active.items()}

    @property
    def waiting_for(self) -> str | None:
        """The outages that the topology waits for, in words; None when it waits for none."""
        return self._control.driver.loop.waiting_for

    def calls(self, txid: int | None = None, *, component: str | None = None) -> list[Call]:
        """Return the calls of bolts so far, in order; with `txid` or `component`, only those of it.

        On Spark, only calls in workers on this machine are known. What Spark computes again is called again.
        """
        return [
            call
            for call in self._calls.calls()
            if txid in (None, call.attempt.txid) and component in (None, call.component)
        ]

    def attempts(self, txid: int) -> list[Attempt]:
        """Return all attempts of a txid, in the order in which they began."""
        self._settle_if_running()
        return self._history.of(txid)

    def emitted(
        self, component: str, txid: int, stream: str = DEFAULT_STREAM, *, task: int | None = None
    ) -> list[Row]:
        """Return what a component emitted in the last attempt of a txid that finished the component's phase.
        See `Attempt.emitted`."""
        attempts = self.attempts(txid)
        if not attempts:
            raise UsageError(f"txid {txid} was never opened in this test")
        through = [attempt for attempt in attempts if attempt.has_been_through(component)]
        return (through or attempts)[-1].emitted(component, stream, task=task)

    def emitted_by_txid(self, component: str, stream: str = DEFAULT_STREAM) -> dict[int, list[Row]]:
        """As `emitted`, for each txid that has finished the component's phase."""
        return {
            txid: self.emitted(component, txid, stream)
            for txid in self._history.txids()
            if any(attempt.has_been_through(component) for attempt in self.attempts(txid))
        }

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a state table, each as column -> value, the framework's columns included.

        The row with the greatest first value comes first. Raises UsageError for a table that this topology
        does not fill.
        """
        database, _ = self._control.driver.target_of(table)
        return database.top(table, topology=self.topology.id, n=_ALL_ROWS)

    def table(self, table: str) -> dict[Any, Any]:
        """Return a state table as a dict of key to value. A key or value of several columns is a tuple."""
        _, state = self._control.driver.target_of(table)
        return {
            _one_or_all(row, state.key_names): _one_or_all(row, state.shown_names) for row in self.rows(table)
        }

    # --- inside -------------------------------------------------------------------------------------

    def _settle_if_running(self) -> None:
        if not self._control.driver.has_ended:
            self._control.settle()

    def _uncommitted(self, txid: int | None, verb: str) -> int:
        current = self._control.running.coordinator.current
        if txid is None:
            return current
        if txid < current:
            raise UsageError(f"txid {txid} is committed, so it cannot {verb}; txid {current} is the next one")
        return txid

    def _present(self, txid: int) -> Attempt:
        attempts = self._history.of(txid)
        if not attempts:
            raise UsageError(f"txid {txid} was committed before this test began, so nothing is known of it")
        return attempts[-1]

    def _fail_at(self, txid: int, error: BaseException, at: Point) -> Attempt:
        if at not in _FAIL_POINTS:
            raise UsageError(
                f"an attempt cannot fail {at}; it can {', '.join(_FAIL_POINTS)}, and crash at every point"
            )
        with self._control.ambush(At(at, txid), error):
            self._control.allow(committed=txid)
            self._control.step(
                f"txid {txid} to fail {at}", lambda: self._failed_with(txid, error) is not None
            )
        found = self._failed_with(txid, error)
        if found is None:
            raise NotReachedError(f"txid {txid} did not fail {at}")
        return found

    def _failed_with(self, txid: int, error: BaseException) -> Attempt | None:
        return next((attempt for attempt in self._history.of(txid) if attempt.error is error), None)


def _one_or_all(row: dict[str, Any], names: Sequence[str]) -> Any:
    return row[names[0]] if len(names) == 1 else tuple(row[name] for name in names)


def _built(topology: Topology | TransactionalTopologyBuilder | TopologyBuilder) -> Topology:
    if isinstance(topology, (TrackedTopology, TopologyBuilder)):
        raise UsageError("tracked tuples cannot go on where batches were; begin a new TopologyTest")
    return topology if isinstance(topology, Topology) else topology._build(stacklevel=4)
