"""One driver's turn: from its election to the end of its last batch.

Order, and why: elected first, so that a standby waits without touching anything; then the source and Spark,
so that a run whose topic or cluster is not there leaves nothing behind; then identity and tables, so that a
mismatch is told before an epoch is claimed; then the recovery protocol; then batches.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txstream.api.errors import (
    FencedError,
    PartitionUnavailableError,
    ServiceUnavailableError,
    SparkLostError,
    UsageError,
)
from txstream.api.spouts import PartitionCoordinator, SpoutContext
from txstream.api.topology import Topology
from txstream.engine.batch.plan import ExecutionPlan, compile_topology
from txstream.engine.batch.runner import BatchRunner
from txstream.engine.commit.bindings import map_bindings
from txstream.engine.commit.committer import Committer, StateTarget, state_targets
from txstream.engine.driver.loop import EventLoop, LoopOptions, RunAbortedError
from txstream.engine.driver.retention import LedgerPruner
from txstream.engine.driver.retries import WARM_UP_SECONDS
from txstream.engine.driver.waiting import Waiting
from txstream.engine.fault_points import PointListener
from txstream.engine.report import RunReport
from txstream.engine.start.takeover import take_up
from txstream.metas import MetaCodec
from txstream.settings import Settings
from txstream.state import FenceLockedError, StateBackend, open_database
from txstream.transaction import Txid
from txstream.zookeeper import Leadership, ProgressStore, ZooKeeper, ZooKeeperProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txstream.engine.spark.process import SparkProcess

log = logging.getLogger(__name__)

CAUGHT_UP = "caught-up"
_RETRY_SECONDS = 0.5

RunnerFactory = Callable[[ExecutionPlan], BatchRunner]


@dataclass(eq=False)
class Turn:
    """What `start` was asked for, and how far it has come. `run` is called once, on a thread of its own; the
    rest is for any thread.

    `state` is for people. `loop` and `goal`, the end of the log when that is where the turn ends, are there
    once batches run.
    """

    topology: Topology
    settings: Settings
    spark: SparkSession | None
    until: str | None
    until_txid: int | None
    wait_for_leadership: bool
    listener: PointListener
    runner_factory: RunnerFactory | None
    state: str = "starting"
    loop: EventLoop | None = None
    goal: Any = None
    _spark_process: SparkProcess | None = None
    _stop: threading.Event = field(default_factory=threading.Event)
    _abort: threading.Event = field(default_factory=threading.Event)

    @property
    def is_told_to_stop(self) -> bool:
        return self._stop.is_set()

    def stop(self) -> None:
        """End between two batches."""
        self._stop.set()
        loop = self.loop
        if loop is not None:
            loop.stop()

    def abort(self) -> None:
        """End at once, as a crash would; the next run recovers."""
        self._stop.set()
        self._abort.set()
        loop = self.loop
        if loop is not None:
            loop.abort()

    def run(self) -> RunReport | None:
        """The whole turn. Raises what ended it; None when it was stopped before its first batch."""
        with contextlib.ExitStack() as stack:
            return self._run(stack)

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
            wait=self.wait_for_leadership, should_stop=self._stop.is_set, waiting=self._waiting
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
        if self._stop.is_set():
            return None  # rather than start Spark for nothing
        # Before anything is stored too: a bolt that cannot be shipped and a Spark that does not start.
        plan = compile_topology(topology, self._context(), uuid.uuid4().hex)
        create_runner = self.runner_factory or self._start_spark(stack)
        if self._stop.is_set():
            return None
        self.state = "recovering"
        until_txid = None if self.until_txid is None else Txid(self.until_txid)
        taken = take_up(
            topology, store, targets, codec, locked=self._wait_for_fence, last_txid=lambda _: until_txid
        )
        goal = self.goal = self._targets(spout) if self.until == CAUGHT_UP else None
        if self._stop.is_set():
            return None
        bindings = map_bindings(topology, taken.identity.uuid, targets)
        runner = create_runner(replace(plan, bindings=bindings))
        stack.callback(runner.close)
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
                warm_up_seconds=WARM_UP_SECONDS if self.runner_factory is None else 0.0,
                targets=goal,
                listener=self.listener,
            ),
            slots=taken.slots,
        )
        self.loop = loop
        self.state = "running"
        if self._stop.is_set():
            loop.stop()
        watch = threading.Thread(
            target=self._watch, args=(leadership, store, loop), name="txstream-leader", daemon=True
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
            failure_reasons=dict(statistics.failure_reasons),
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
            settings.make_data_dir()
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
        waiting, what = Waiting(), "the end of the log"
        while True:
            try:
                targets = spout.targets()
            except PartitionUnavailableError as error:
                waiting.begin(what, what, error)
                if self._stop.wait(_RETRY_SECONDS):
                    raise RunAbortedError("the run was stopped while a partition was unreadable") from error
            else:
                waiting.end(what)
                return targets

    def _start_spark(self, stack: contextlib.ExitStack) -> RunnerFactory:
        from txstream.engine.spark.master import await_executor
        from txstream.engine.spark.process import SparkProcess
        from txstream.engine.spark.runner import SparkRunner
        from txstream.engine.spark.session import (
            own_context,
            share_path,
            warn_of_missing_settings,
            worker_settings,
        )

        settings = self.settings
        self.state = "starting Spark"
        if self.spark is None:
            slots = max(component.parallelism for component in self.topology.components)
            workers = worker_settings(self.topology.workers, slots, settings.master)
            context = stack.enter_context(
                own_context(
                    master=settings.master,
                    app_name=f"txstream {self.topology.id}",
                    conf={**workers, **settings.spark_conf},
                    log_file=settings.spark_log,
                    package=settings.package,
                    connect_timeout_seconds=settings.connect_timeout_seconds,
                )
            )
        else:
            context = self.spark.sparkContext
        self._spark_process = SparkProcess.of(context._gateway)
        stack.enter_context(self._spark_process.blamed())
        if self.spark is not None:
            warn_of_missing_settings(context)
        share_path(context)
        for path in settings.py_files:
            context.addPyFile(str(Path(path).resolve()))
        self.state = f"waiting for an executor of {context.master}"
        await_executor(
            context,
            patience_seconds=settings.connect_timeout_seconds,
            wait=self._stop.wait,
            tell=self._waiting,
        )
        return lambda plan: SparkRunner(context, plan, self.spark)

    def _should_abort(self) -> bool:
        return self._abort.is_set() or (self.loop is not None and self.loop.aborted)

    def _waiting(self, message: str) -> None:
        log.warning("%s", message)

    def _wait_for(self, what: str, check: Callable[[], None]) -> None:
        loop = self.loop
        if loop is None:
            check()
        else:
            loop.wait_for(what, check)

    def _watch(self, leadership: Leadership, store: ProgressStore, loop: EventLoop) -> None:
        """Spark must be there. After a lost session: leader still if the epoch is still ours; then stand for
        election again."""
        while not self._abort.wait(_RETRY_SECONDS):
            try:
                if self._spark_process is not None:
                    self._spark_process.check()
                if leadership.held:
                    continue
                store.verify()
                leadership.acquire(wait=True, should_stop=self._stop_watching(store), waiting=self._waiting)
            except (FencedError, SparkLostError) as error:
                loop.abort(error)
                return
            except ServiceUnavailableError as error:
                log.info("ZooKeeper is away: %s", error)

    def _stop_watching(self, store: ProgressStore) -> Callable[[], bool]:
        def stopped() -> bool:
            store.verify()  # raises FencedError once the leader that we wait behind has claimed its epoch
            return self._abort.is_set()

        return stopped
