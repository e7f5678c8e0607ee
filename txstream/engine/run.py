"""`start` and `run`: from a built topology to a running one.

Order, and why: elected first, so that a standby waits without touching anything; then identity and tables,
so that a mismatch is told before an epoch is claimed; then the recovery protocol; then batches.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from txstream.api.errors import (
    FencedError,
    PartitionUnavailableError,
    ServiceUnavailableError,
    UsageError,
)
from txstream.api.spouts import PartitionCoordinator, SpoutContext
from txstream.api.topology import Topology
from txstream.engine.assembly import take_up
from txstream.engine.bindings import Bindings, map_bindings
from txstream.engine.commit import Committer, StateTarget, state_targets
from txstream.engine.loop import EventLoop, LoopOptions, RunAbortedError
from txstream.engine.plan import ExecutionPlan, compile_topology
from txstream.engine.points import PointListener, nobody_listens
from txstream.engine.pruning import LedgerPruner
from txstream.engine.report import RunProgress, RunReport
from txstream.engine.runner import BatchRunner
from txstream.metas import MetaCodec
from txstream.settings import Settings
from txstream.state import FenceLockedError, StateBackend, open_database
from txstream.transaction import Txid
from txstream.zookeeper import Leadership, ProgressStore, ZooKeeper, ZooKeeperProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

CAUGHT_UP = "caught-up"
_RETRY_SECONDS = 0.5

RunnerFactory = Callable[[ExecutionPlan], BatchRunner]


class RunningTopology:
    """A topology that runs in a thread of this process. A context manager: leaving it stops the topology.

    `stop` ends it between two batches; `wait` blocks until it has ended and raises what ended it.
    """

    def __init__(
        self,
        topology: Topology,
        settings: Settings,
        *,
        spark: SparkSession | None,
        until: str | None,
        until_txid: int | None,
        wait_for_leadership: bool,
        listener: PointListener,
        runner_factory: RunnerFactory | None,
    ) -> None:
        self.topology = topology
        self.settings = settings
        self.state = "starting"
        self._spark = spark
        self._until = until
        self._until_txid = until_txid
        self._wait_for_leadership = wait_for_leadership
        self._listener = listener
        self._runner_factory = runner_factory
        self._loop: EventLoop | None = None
        self._stop = threading.Event()
        self._abort = threading.Event()
        self._error: BaseException | None = None
        self._report: RunReport | None = None
        self._started = time.monotonic()
        self._lag: int | None = None
        self._goal: Any = None
        self._thread = threading.Thread(target=self._main, name=f"txstream-{topology.id}", daemon=True)
        self._thread.start()

    # --- for the caller -----------------------------------------------------------------------------

    def wait(self, timeout_seconds: float | None = None) -> RunReport:
        """Block until the run has ended. Raises the error that ended it, or TimeoutError."""
        self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            raise TimeoutError(f"topology {self.topology.id!r} still runs after {timeout_seconds:g} s")
        if self._error is not None:
            raise self._error
        if self._report is None:
            raise RunAbortedError(f"topology {self.topology.id!r} was stopped before its first batch")
        return self._report

    def stop(self, grace_seconds: float = 30.0) -> None:
        """End between two batches; after `grace_seconds` (an outage, say) end at once. Does not raise what
        the run ended with: see `wait` and `last_error`."""
        self._stop.set()
        loop = self._loop
        if loop is not None:
            loop.stop()
        self._thread.join(grace_seconds)
        if self._thread.is_alive():
            self.abort()
            self._thread.join(grace_seconds)

    def abort(self) -> None:
        """End at once, as a crash would; the next run recovers."""
        self._stop.set()
        self._abort.set()
        loop = self._loop
        if loop is not None:
            loop.abort()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    @property
    def last_error(self) -> BaseException | None:
        """What ended the run, if it failed."""
        return self._error

    @property
    def progress(self) -> RunProgress:
        """A snapshot; cheap, from any thread."""
        loop = self._loop
        if loop is None:
            return RunProgress(
                self.topology.id, 0, {}, 0, 0, 0, time.monotonic() - self._started, self.state, None
            )
        statistics = loop.statistics
        return RunProgress(
            topology=self.topology.id,
            committed_txid=loop.coordinator.current - 1,
            active=loop.open_batches(),
            batches=statistics.batches,
            records=statistics.records,
            failed_attempts=statistics.failed_attempts,
            seconds=time.monotonic() - self._started,
            waiting_for=loop.waiting_for,
            lag_records=self._lag_records(loop),
        )

    def _lag_records(self, loop: EventLoop) -> int | None:
        """How far what is committed is from the goal, if there is one."""
        if self._goal is not None:
            # KeyError: the loop's thread has just let go of that batch; the figure before it will do.
            with contextlib.suppress(KeyError):
                committed = loop.coordinator.committed_metas().positions()
                self._lag = loop.spout.lag_records(committed, self._goal)
        return self._lag

    @property
    def timings(self) -> list[Any]:
        """Where the time of each batch went (`BatchTiming`), oldest first."""
        loop = self._loop
        return list(loop.statistics.timings) if loop is not None else []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- the run ------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            with contextlib.ExitStack() as stack:
                self._report = self._run(stack)
        except BaseException as error:  # noqa: BLE001 - kept for wait(), which raises it in the caller
            if not (isinstance(error, RunAbortedError) and self._stop.is_set()):
                self._error = error
        finally:
            self.state = "ended"

    def _run(self, stack: contextlib.ExitStack) -> RunReport | None:
        settings, topology = self.settings, self.topology
        self._connecting_to(f"ZooKeeper at {settings.require_zookeeper()}")
        zookeeper = ZooKeeper(
            settings.require_zookeeper(),
            connect_timeout_seconds=settings.connect_timeout_seconds,
            session_timeout_seconds=settings.session_timeout_seconds,
        )
        zookeeper.start()
        stack.callback(zookeeper.close)
        targets = self._open_databases(stack)

        leadership = Leadership(zookeeper, topology.id)
        self.state = "waiting for the present leader"
        leadership.acquire(
            wait=self._wait_for_leadership, should_stop=self._stop.is_set, waiting=self._waiting
        )
        stack.callback(leadership.release)
        if self._stop.is_set():
            return None

        # A resumed process may get here long after it was elected; from here on the epoch decides.
        codec: MetaCodec[Any] = MetaCodec(topology.spout.source.meta_type)
        store = ZooKeeperProgress(
            zookeeper, topology.id, codec, waiting=self._waiting, should_stop=self._should_abort
        )
        # Opened before anything is stored: a topic that does not exist must leave nothing behind.
        self._connecting_to(f"the source of {topology.components[0].id!r}")
        spout = topology.spout.source.coordinator(self._context())
        stack.callback(spout.close)
        self.state = "recovering"
        until_txid = None if self._until_txid is None else Txid(self._until_txid)
        taken = take_up(
            topology, store, targets, codec, locked=self._wait_for_fence, last_txid=lambda _: until_txid
        )
        goal = self._goal = self._targets(spout) if self._until == CAUGHT_UP else None
        if self._stop.is_set():
            return None  # rather than start Spark for nothing
        self.state = "starting Spark"
        runner = self._create_runner(stack, map_bindings(topology, taken.identity.uuid, targets))
        committer = Committer(topology, taken.identity.uuid, targets, wait_for=self._wait_for)
        loop = EventLoop(
            taken.coordinator,
            spout,
            store,
            runner,
            committer,
            codec,
            LoopOptions(
                max_batch_records=topology.spout.max_batch_records,
                message_timeout_seconds=topology.message_timeout_seconds,
                max_attempts=topology.max_attempts,
                targets=goal,
                listener=self._listener,
            ),
            slots=taken.slots,
        )
        self._loop = loop
        self.state = "running"
        if self._stop.is_set():
            loop.stop()
        watch = threading.Thread(
            target=self._watch_leadership, args=(leadership, store, loop), name="txstream-leader", daemon=True
        )
        watch.start()
        pruner = LedgerPruner(topology.id, [target.database for target in targets], settings.keep)
        pruner.start()
        started = time.monotonic()
        try:
            loop.run()
        finally:
            self.state = "stopping"
            self._abort.set()
            pruner.stop(settings.connect_timeout_seconds)
            watch.join(settings.connect_timeout_seconds)
        statistics = loop.statistics
        return RunReport(
            topology=topology.id,
            uuid=taken.identity.uuid,
            semantics=str(topology.semantics),
            epoch=taken.epoch,
            first_txid=statistics.first_txid,
            last_txid=taken.coordinator.current - 1,
            batches=statistics.batches,
            records=statistics.records,
            failed_attempts=statistics.failed_attempts,
            replayed_attempts=statistics.replayed_attempts,
            recovered_batches=statistics.recovered_batches,
            seconds=round(time.monotonic() - started, 3),
            caught_up=loop.caught_up,
        )

    def _connecting_to(self, what: str) -> None:
        self.state = f"connecting to {what} (up to {self.settings.connect_timeout_seconds:g} s)"

    def _open_databases(self, stack: contextlib.ExitStack) -> list[StateTarget]:
        settings = self.settings

        def opened(url: str) -> StateBackend:
            database = open_database(
                url,
                connect_timeout_seconds=settings.connect_timeout_seconds,
                message_timeout_seconds=self.topology.message_timeout_seconds,
            )
            stack.callback(database.close)
            if not database.outlives_process:
                raise UsageError(
                    f"database {database.url_for_people} forgets everything when the driver ends, while the "
                    f"topology's progress stays in ZooKeeper; it is for tests (txstream.testing): give the "
                    f"run another one, for example sqlite:///state.db"
                )
            return database

        if settings.uses_default_database:
            settings.data_dir.mkdir(parents=True, exist_ok=True)
        targets = state_targets(
            self.topology,
            settings.database_url(),
            opened,
            connect_timeout_seconds=settings.connect_timeout_seconds,
        )
        for target in targets:
            self._connecting_to(f"database {target.database.url_for_people}")
            target.database.check()
        return targets

    def _wait_for_fence(self, error: FenceLockedError) -> None:
        """A frozen driver holds the fence inside its transaction: its end, or the database's, frees it."""
        self.state = f"waiting for a lock: {error}"
        self._waiting(str(error))
        if self._stop.wait(_RETRY_SECONDS):
            raise RunAbortedError("the run was stopped while another driver held the fence") from error

    def _context(self) -> SpoutContext:
        settings = self.settings
        return SpoutContext(
            topology_id=self.topology.id,
            component=self.topology.components[0].id,
            addresses=settings.addresses(),
            fetch_timeout_seconds=settings.fetch_timeout_seconds,
            connect_timeout_seconds=settings.connect_timeout_seconds,
        )

    def _targets(self, spout: PartitionCoordinator[Any]) -> Any:
        """The end of the log as it is now. A partition that cannot be asked is waited for."""
        while True:
            try:
                return spout.targets()
            except PartitionUnavailableError as error:
                log.warning("not caught up until every partition can be read: %s", error)
                if self._stop.wait(_RETRY_SECONDS):
                    raise RunAbortedError("the run was stopped while a partition was unreadable") from error

    def _create_runner(self, stack: contextlib.ExitStack, bindings: Bindings) -> BatchRunner:
        plan = compile_topology(self.topology, self._context(), uuid.uuid4().hex, bindings=bindings)
        if self._runner_factory is not None:
            runner = self._runner_factory(plan)
        else:
            from txstream.engine.session import create_context, warn_of_missing_settings, worker_settings
            from txstream.engine.spark_runner import SparkRunner

            if self._spark is None:
                slots = max(component.parallelism for component in self.topology.components)
                workers = worker_settings(self.topology.workers, slots, self.settings.master)
                context = create_context(
                    master=self.settings.master,
                    app_name=f"txstream {self.topology.id}",
                    conf={**workers, **self.settings.spark_conf},
                    log_file=self.settings.spark_log,
                    package=self.settings.package,
                )
                stack.callback(context.stop)
            else:
                context = self._spark.sparkContext
                warn_of_missing_settings(context)
            for path in self.settings.py_files:
                context.addPyFile(str(Path(path).resolve()))
            runner = SparkRunner(context, plan, self._spark)
        stack.callback(runner.close)
        return runner

    def _should_abort(self) -> bool:
        return self._abort.is_set() or (self._loop is not None and self._loop.aborted)

    def _waiting(self, message: str) -> None:
        log.warning("%s", message)

    def _wait_for(self, what: str, check: Callable[[], None]) -> None:
        loop = self._loop
        if loop is None:
            check()
        else:
            loop.wait_for(what, check)

    def _watch_leadership(self, leadership: Leadership, store: ProgressStore, loop: EventLoop) -> None:
        """After a lost session: leader still if the epoch is still ours; then stand for election again."""
        while not self._abort.wait(_RETRY_SECONDS):
            if leadership.held:
                continue
            try:
                store.verify()
                leadership.acquire(wait=True, should_stop=self._stop_watching(store), waiting=self._waiting)
            except FencedError as error:
                loop.abort(error)
                return
            except ServiceUnavailableError as error:
                log.info("ZooKeeper is away: %s", error)

    def _stop_watching(self, store: ProgressStore) -> Callable[[], bool]:
        def stopped() -> bool:
            store.verify()  # raises FencedError once the leader that we wait behind has claimed its epoch
            return self._abort.is_set()

        return stopped


def start(
    topology: Topology,
    spark: SparkSession | None = None,
    settings: Settings | None = None,
    *,
    until: str | None = None,
    until_txid: int | None = None,
    wait_for_leadership: bool = True,
    listener: PointListener = nobody_listens,
    runner_factory: RunnerFactory | None = None,
) -> RunningTopology:
    """Start a topology in the background.

    `until="caught-up"` ends it when the log's end as of now is committed, `until_txid=N` after txid N;
    otherwise it runs until stopped. With `wait_for_leadership=False` a topology that runs elsewhere is an
    error (LeaderExistsError) instead of something to stand by for. `spark` is a session of yours; without
    one, one is made and stopped. Raises UsageError for an impossible combination; everything else is raised
    by `wait`.
    """
    if until not in (None, CAUGHT_UP):
        raise UsageError(f"until={until!r}: it is {CAUGHT_UP!r} or not given")
    if until is not None and until_txid is not None:
        raise UsageError("give until='caught-up' or until_txid, not both")
    if until_txid is not None and until_txid < 1:
        raise UsageError(f"until_txid is {until_txid}; txids begin at 1")
    return RunningTopology(
        topology,
        (settings or Settings()).resolve(),
        spark=spark,
        until=until,
        until_txid=until_txid,
        wait_for_leadership=wait_for_leadership,
        listener=listener,
        runner_factory=runner_factory,
    )


def run(
    topology: Topology,
    spark: SparkSession | None = None,
    settings: Settings | None = None,
    *,
    until: str | None = CAUGHT_UP,
    until_txid: int | None = None,
    wait_for_leadership: bool = True,
) -> RunReport:
    """Start a topology and wait for its end. Raises what ended it when it failed; see `start`."""
    if until_txid is not None and until == CAUGHT_UP:
        until = None
    running = start(
        topology, spark, settings, until=until, until_txid=until_txid, wait_for_leadership=wait_for_leadership
    )
    try:
        return running.wait()
    except BaseException:
        running.abort()
        raise
