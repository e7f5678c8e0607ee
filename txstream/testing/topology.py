"""`TopologyTest`: a topology run batch by batch, as far as the test says, without Spark or on it.

Coordinator, event loop, recovery, commit and state are those of every run; ZooKeeper is in memory, the
database a file of the test's unless another is given.

Invariant: between two calls of the test the topology stands still.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from txstream.api.errors import BatchFailedError, TxstreamError, UsageError
from txstream.api.topology import Topology
from txstream.api.tuples import DEFAULT_STREAM
from txstream.coordinator import Phase
from txstream.engine.points import Point
from txstream.engine.recording import Call
from txstream.settings import Settings
from txstream.testing.attempts import Attempt, History, Row
from txstream.testing.calls import CallLog
from txstream.testing.clock import ManualClock
from txstream.testing.driver import Driver, World
from txstream.testing.failures import CrashError
from txstream.transaction import TransactionAttempt, Txid
from txstream.zookeeper import MemoryTree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEADLINE_SECONDS = 60.0
_MOST_ATTEMPTS = 100
_ALL_ROWS = 1_000_000
_PATIENCE_STEP_SECONDS = 0.01
_PROCESSED = (Phase.PROCESSED, Phase.COMMITTING, Phase.ADVANCING)
_FAIL_POINTS = (Point.BEFORE_COMMIT, Point.INSIDE_COMMIT, Point.AFTER_COMMIT)


class NotReachedError(TxstreamError):
    """A step of a test cannot get where it should; says what was waited for and how the topology stands."""


class TopologyTest:
    """A topology under control of the test. Use it as a context manager, from one thread.

    topology: what is tested. How much a batch holds is the spout's `max_batch_records`.
    spark: a SparkSession to run the batches on; None runs them in this process, where DataFrame bolts cannot.
    database: a SQLAlchemy URL for states without a url of their own; None is a SQLite file that is removed.
    settings: addresses and deadlines for the source, as for a run.
    clock: what message timeouts go by; it stands at 0 until the test moves it (`test.clock.advance(30)`).
    width: without Spark, how many Spark tasks each batch is spread over; None as Spark would.
    patience_seconds: how long, in real seconds, a step asks a source again that has nothing, or cannot be
        read. 0 is right for sources that are changed by the test alone.
    deadline_seconds: how long, in real seconds, any step may take.

    Waits between attempts and between questions to the source take no time here: a step that depends on one
    skips it. Steps raise what ends a run (a bolt's error after `max_attempts`, CrashError), NotReachedError
    when the topology stands still or the deadline has come, UsageError for what cannot be meant.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        spark: SparkSession | None = None,
        database: str | None = None,
        settings: Settings | None = None,
        clock: ManualClock | None = None,
        width: int | None = None,
        patience_seconds: float = 0.0,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        self.topology = topology
        self.clock = clock or ManualClock()
        self.patience_seconds = patience_seconds
        self.deadline_seconds = deadline_seconds
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        if database is None:
            self._directory = tempfile.TemporaryDirectory(prefix="txstream-test-")
            database = f"sqlite:///{Path(self._directory.name) / 'state.db'}"
        self.database_url = database
        self._history = History()
        self._calls = CallLog()
        # What the driver meets at a point of its commit; and the failure that lowers the marks when it comes.
        self._ambushes: dict[tuple[Point, int], BaseException] = {}
        self._awaited_failure: BaseException | None = None
        self._world = World(
            tree=MemoryTree(),
            database_url=database,
            settings=settings or Settings(),
            clock=self.clock,
            history=self._history,
            calls=self._calls,
            listener=self._reached_point,
            failed=self._attempt_failed,
            spark=spark,
            width=width,
        )
        self._driver: Driver | None = None
        self._opened: float = 0
        self._outside = threading.Event()  # never set: waiting for it gives the outside world time

    def __enter__(self) -> Self:
        if self._driver is None:
            self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the topology and remove the test's own database."""
        try:
            self._end_driver()
        finally:
            if self._directory is not None:
                self._directory.cleanup()

    # --- steps --------------------------------------------------------------------------------------

    def open(self, txid: int | None = None) -> Attempt:
        """Plan a txid (by default the next that is not open) and begin its processing, but hold it before
        its source is read. What must be committed for it first is committed."""
        driver = self._running()
        if txid is None:
            txid = max([driver.coordinator.current - 1, *driver.coordinator.active]) + 1
        self._allow(driver, opened=txid)
        self._step(f"txid {txid} to be opened", txid, lambda: self._is_open(driver, txid))
        return self._present(txid)

    def process(self, txid: int | None = None, *, alone: bool = False) -> Attempt:
        """Process everything up to a txid (by default the next that is not processed), but commit nothing
        that need not be committed before it. With `alone`, open txids before it are held back."""
        driver = self._running()
        current = driver.coordinator.current
        if txid is None:
            txid = next(t for t in itertools.count(current) if not self._is_processed(driver, t))
        if alone:
            self._allow(driver, opened=txid)
            driver.gate.allow_one(txid)
        else:
            self._allow(driver, processed=txid)
        wanted = range(txid if alone else min(current, txid), txid + 1)
        self._step(
            f"txid {txid} to be processed", txid, lambda: all(self._is_processed(driver, t) for t in wanted)
        )
        return self._present(txid)

    def commit(self, txid: int | None = None) -> Attempt:
        """Commit everything up to a txid (by default the next one)."""
        driver = self._running()
        if txid is None:
            txid = driver.coordinator.current
        self._allow(driver, committed=txid)
        self._step(f"txid {txid} to be committed", txid, lambda: driver.coordinator.current > txid)
        return self._present(txid)

    def run(self) -> list[Attempt]:
        """Process and commit all that the source has now; the attempts that committed it."""
        driver = self._running()
        first = driver.coordinator.current
        targets = driver.spout.targets()
        self._allow(driver, committed=math.inf)

        def caught_up() -> bool:
            committed = driver.coordinator.committed_metas().positions()
            return driver.coordinator.is_idle and driver.spout.reached(committed, targets)

        self._step("all that the source has to be committed", None, caught_up)
        last = driver.coordinator.current - 1
        self._lower(driver, last)
        return [self._present(txid) for txid in range(first, last + 1)]

    def settle(self) -> None:
        """Let the topology do what it can do now without a further permission and without waiting."""
        self._settle(self._running(), "the topology to settle")

    def fail(
        self,
        txid: int | None = None,
        reason: str | BaseException = "failed by the test",
        *,
        at: Point | None = None,
    ) -> Attempt:
        """Fail the present attempt of a txid (by default the next to commit) where it is: held before
        processing, processed, or held before its commit. A txid that is not open is opened first.

        That attempt and all later ones are dropped; they go again when a step asks for them. A string is the
        reason of a BatchFailedError; an exception is failed with as it is. With `at` (BEFORE_COMMIT,
        INSIDE_COMMIT or AFTER_COMMIT) the txid is committed up to that point, and fails there.
        """
        driver = self._running()
        if txid is None:
            txid = driver.coordinator.current
        if txid < driver.coordinator.current:
            raise UsageError(f"txid {txid} is committed; what is committed cannot fail")
        error = reason if isinstance(reason, BaseException) else BatchFailedError(reason)
        if at is not None:
            return self._fail_at(driver, txid, error, at)
        if txid not in driver.coordinator.active:
            self.open(txid)
        attempt = self._present(txid)
        self._lower(driver, txid - 1)
        driver.loop.fail(attempt.id, error)
        self._settle(driver, f"txid {txid} to fail")
        return attempt

    def crash(self, at: Point | None = None, txid: int | None = None) -> None:
        """Kill the driver: what is in ZooKeeper and in the database stays, all else is lost. With `at`, when
        `txid` (by default the next to commit) gets to that point on its way through the commit."""
        driver = self._running()
        if at is not None:
            txid = driver.coordinator.current if txid is None else txid
            with self._ambush(at, txid, CrashError(f"killed {at}, txid {txid}")):
                try:
                    self.commit(txid)
                except CrashError:
                    return
            raise NotReachedError(f"the driver did not die: txid {txid} is committed and never was {at}")
        self._end_driver()

    def restart(self, topology: Topology | None = None) -> None:
        """Start a new driver, which recovers from ZooKeeper and the database; one that is still alive is
        killed first. With `topology`, of the same id, the new driver runs that."""
        if topology is not None and topology.id != self.topology.id:
            raise UsageError(f"topology {topology.id!r} is another one than {self.topology.id!r}")
        self._end_driver()
        self.topology = topology or self.topology
        self._start()

    # --- what is there ------------------------------------------------------------------------------

    @property
    def current(self) -> Txid:
        """The txid to commit next."""
        return self._any_driver().coordinator.current

    @property
    def phases(self) -> dict[Txid, Phase]:
        """Where each open txid is."""
        self._settle_if_running()
        return {txid: batch.phase for txid, batch in self._any_driver().coordinator.active.items()}

    @property
    def waiting_for(self) -> str | None:
        """The outages that the topology waits for, for people."""
        return self._any_driver().loop.waiting_for

    @property
    def calls(self) -> list[Call]:
        """The calls of all bolts so far, in the order in which they were made."""
        return list(self._calls)

    def attempts(self, txid: int) -> list[Attempt]:
        """All attempts of a txid, in the order in which they began."""
        self._settle_if_running()
        return self._history.of(txid)

    def emitted(
        self, component: str, txid: int, stream: str = DEFAULT_STREAM, *, task: int | None = None
    ) -> list[Row]:
        """What a component emitted in the last attempt of a txid that got through the component's phase; see
        `Attempt.emitted`."""
        attempts = self.attempts(txid)
        if not attempts:
            raise UsageError(f"txid {txid} was never opened")
        through = [attempt for attempt in attempts if attempt.has_been_through(component)]
        return (through or attempts)[-1].emitted(component, stream, task=task)

    def emitted_by_txid(self, component: str, stream: str = DEFAULT_STREAM) -> dict[int, list[Row]]:
        """As `emitted`, for each txid that has been through the component's phase."""
        return {
            txid: self.emitted(component, txid, stream)
            for txid in self._history.txids()
            if any(attempt.has_been_through(component) for attempt in self.attempts(txid))
        }

    def rows(self, table: str) -> list[dict[str, Any]]:
        """The rows of a state table, by column, the framework's columns among them; the greatest first value
        first."""
        database, _ = self._any_driver().target_of(table)
        return database.top(table, topology=self.topology.id, n=_ALL_ROWS)

    def table(self, table: str) -> dict[Any, Any]:
        """A state table as a dict of key to value; tuples where either has several columns."""
        _, state = self._any_driver().target_of(table)
        return {
            _one_or_all(row, state.key_names): _one_or_all(row, state.value_names) for row in self.rows(table)
        }

    # --- inside -------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._driver = Driver(self._world, self.topology)
        self._opened = self._driver.coordinator.current - 1

    def _any_driver(self) -> Driver:
        if self._driver is None:
            raise UsageError("enter the TopologyTest first: with TopologyTest(topology) as test: ...")
        return self._driver

    def _running(self) -> Driver:
        driver = self._any_driver()
        if driver.has_ended:
            why = "it crashed" if driver.error is None else f"it ended with {driver.error!r}"
            raise UsageError(f"the topology does not run: {why}; call restart() first")
        return driver

    def _end_driver(self) -> None:
        driver = self._driver
        if driver is not None and not driver.end(self.deadline_seconds):
            raise NotReachedError(
                f"the topology did not end within {self.deadline_seconds:g} s; does a bolt still run?"
            )

    def _allow(
        self, driver: Driver, *, opened: float = 0, processed: float = 0, committed: float = 0
    ) -> None:
        """Raise the marks as far as asked for, and as far as the bound on open batches makes it necessary."""
        wanted = max(opened, processed, committed)
        if wanted < 1:
            raise UsageError(f"there is no txid {wanted:g}; txids begin at 1")
        gate = driver.gate
        # Of a run without a bound, all is committed anyway.
        before = wanted - self.topology.max_spout_pending
        committed = max(committed, gate.commit_up_to, before)
        processed = max(processed, gate.process_up_to, committed)
        self._opened = max(opened, processed, self._opened)
        gate.allow(process=processed, commit=committed)
        driver.loop.open_up_to(None if self._opened == math.inf else int(self._opened))

    def _lower(self, driver: Driver, txid: int) -> None:
        """Nothing after this txid goes on until a step asks for it."""
        self._opened = min(self._opened, txid)
        driver.gate.lower(txid)
        driver.loop.open_up_to(int(self._opened))

    def _is_open(self, driver: Driver, txid: int) -> bool:
        return txid < driver.coordinator.current or txid in driver.coordinator.active

    def _is_processed(self, driver: Driver, txid: int) -> bool:
        batch = driver.coordinator.active.get(Txid(txid))
        return txid < driver.coordinator.current or (batch is not None and batch.phase in _PROCESSED)

    def _present(self, txid: int) -> Attempt:
        attempts = self._history.of(txid)
        if not attempts:
            raise UsageError(f"txid {txid} was committed before this test began, so nothing is known of it")
        return attempts[-1]

    def _fail_at(self, driver: Driver, txid: int, error: BaseException, at: Point) -> Attempt:
        if at not in _FAIL_POINTS:
            raise UsageError(
                f"an attempt cannot fail {at}; it can {', '.join(_FAIL_POINTS)}, and crash at every point"
            )
        attempts = self._history.of

        def failed() -> bool:
            return any(attempt.error is error for attempt in attempts(txid))

        with self._ambush(at, txid, error):
            self._awaited_failure = error
            try:
                self._allow(driver, committed=txid)
                self._step(f"txid {txid} to fail {at}", txid, failed)
            finally:
                self._awaited_failure = None
        return next(attempt for attempt in attempts(txid) if attempt.error is error)

    @contextlib.contextmanager
    def _ambush(self, point: Point, txid: int, error: BaseException) -> Iterator[None]:
        self._ambushes[point, txid] = error
        try:
            yield
        finally:
            self._ambushes.pop((point, txid), None)

    def _reached_point(self, point: Point, txid: Txid, open_batches: dict[Txid, str]) -> None:
        error = self._ambushes.pop((point, txid), None)
        if error is not None:
            raise error

    def _attempt_failed(self, attempt: TransactionAttempt, error: BaseException) -> None:
        """On the loop's thread, before the attempt is replayed."""
        if error is self._awaited_failure:
            self._lower(self._any_driver(), attempt.txid - 1)

    # --- waiting ------------------------------------------------------------------------------------

    def _settle_if_running(self) -> None:
        driver = self._any_driver()
        if not driver.has_ended:
            self._settle(driver, "the topology to settle")

    def _settle(self, driver: Driver, what: str, deadline: float | None = None) -> None:
        if deadline is None:
            deadline = time.monotonic() + self.deadline_seconds
        quiet = driver.settle(deadline)
        if driver.has_ended:
            self._end_driver()
            if driver.error is not None:
                raise driver.error
        if not quiet:
            raise NotReachedError(
                f"waited {self.deadline_seconds:g} s for {what}, and something still runs; "
                f"{self._describe(driver)}"
            )

    def _step(self, what: str, txid: int | None, reached: Callable[[], bool]) -> None:
        """Let the topology go on until `reached` holds, asked when it stands still."""
        driver = self._running()
        loop = driver.loop
        deadline = time.monotonic() + self.deadline_seconds
        patient_until: float | None = None
        failed_before, current = loop.statistics.failed_attempts, driver.coordinator.current
        while True:
            self._settle(driver, what, deadline)
            if reached():
                return
            doomed = None if txid is None else loop.doomed(Txid(txid))
            if doomed is not None:
                raise NotReachedError(
                    f"waited for {what}, which will not be: once the txids before it are committed, the "
                    f"topology ends with: {doomed}"
                ) from doomed
            if driver.coordinator.current != current:
                failed_before, current = loop.statistics.failed_attempts, driver.coordinator.current
            failed = loop.statistics.failed_attempts - failed_before
            if failed > _MOST_ATTEMPTS:
                raise NotReachedError(
                    f"waited for {what}, but {failed} attempts failed; {self._describe(driver)}"
                )
            before = loop.where()
            if loop.events.skip_waits():
                self._settle(driver, what, deadline)
                if reached():
                    return
                if loop.where() != before:
                    patient_until = None
                    continue
            now = time.monotonic()
            patient_until = patient_until or now + self.patience_seconds
            if now >= min(patient_until, deadline):
                raise NotReachedError(f"waited for {what}, but {self._describe(driver)}, and nothing moves")
            self._outside.wait(_PATIENCE_STEP_SECONDS)

    def _describe(self, driver: Driver) -> str:
        """How the topology stands, in one line."""
        held = {attempt for attempt, _ in driver.gate.held_back()}
        parts = [f"txid {driver.coordinator.current} is to be committed next"]
        for batch in driver.coordinator.active.values():
            where = "held back by the test" if batch.attempt in held else "not held back"
            parts.append(f"{batch.attempt} is {batch.phase} ({where})")
        if not driver.coordinator.active:
            parts.append("nothing is open, so the source had nothing")
        if driver.loop.waiting_for is not None:
            parts.append(f"waiting for {driver.loop.waiting_for}")
        failures = [
            a for txid in self._history.txids() for a in self._history.of(txid) if a.error is not None
        ]
        if failures:
            parts.append(f"the last failure was {failures[-1].error}")
        return "; ".join(parts)


def _one_or_all(row: dict[str, Any], names: Sequence[str]) -> Any:
    return row[names[0]] if len(names) == 1 else tuple(row[name] for name in names)
