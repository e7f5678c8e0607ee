"""What a run's driver reads from and writes to: ZooKeeper, databases, the source, Spark.

Invariant: what was opened is closed at the end, in the opposite order, however far a start has come.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from txstream.api.errors import FencedError, ServiceUnavailableError, SparkLostError, UsageError
from txstream.api.spouts import PartitionCoordinator, SpoutContext
from txstream.api.topology import Topology
from txstream.api.tracked_builder import TrackedTopology
from txstream.engine.batch.runner import BatchRunner
from txstream.engine.commit.committer import StateTarget, state_targets
from txstream.engine.driver.driver import RunnerFactory
from txstream.engine.driver.retention import LedgerPruner
from txstream.engine.driver.waiting import RunAbortedError
from txstream.engine.driver.workers import ThreadWorkers, Workers
from txstream.metas import MetaCodec
from txstream.settings import Settings
from txstream.state import FenceLockedError, StateBackend, open_database
from txstream.zookeeper import Leadership, ProgressStore, Requests, ZooKeeper, ZooKeeperProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txstream.engine.spark.process import SparkProcess

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5


class Abortable(Protocol):
    """What can be ended at once, from any thread."""

    def abort(self, error: BaseException | None = None) -> None: ...


class RunServices:
    """`Services` of a run. `spark` is a session of the user's; with a `runner_factory` there is no Spark."""

    def __init__(
        self,
        topology: Topology,
        settings: Settings,
        *,
        spark: SparkSession | None = None,
        wait_for_leadership: bool = True,
        runner_factory: RunnerFactory | None = None,
    ) -> None:
        # A cancelled job may hold its thread for seconds, beside its successor.
        in_flight = 1 if isinstance(topology, TrackedTopology) else topology.max_spout_pending
        self.workers: Workers = ThreadWorkers(jobs=2 * in_flight + 2)
        self.state = "starting"
        self._topology = topology
        self._settings = settings
        self._spark = spark
        self._wait_for_leadership = wait_for_leadership
        self._runner_factory = runner_factory
        self._stack = contextlib.ExitStack()
        self._targets: Sequence[StateTarget] = ()
        self._spark_process: SparkProcess | None = None

    def connect(self) -> Sequence[StateTarget]:
        settings = self._settings
        self._connecting_to(f"ZooKeeper at {settings.require_zookeeper()}")
        self._zookeeper = ZooKeeper(
            settings.require_zookeeper(),
            connect_timeout_seconds=settings.connect_timeout_seconds,
            session_timeout_seconds=settings.session_timeout_seconds,
        )
        self._zookeeper.start()
        self._stack.callback(self._zookeeper.close)
        if settings.uses_default_database:
            settings.make_data_dir()
        self._targets = state_targets(
            self._topology,
            settings.database_url(),
            self._open_database,
            connect_timeout_seconds=settings.connect_timeout_seconds,
        )
        for target in self._targets:
            self._connecting_to(f"database {target.database.url_for_people}")
            target.database.check()
        return self._targets

    def asked_before(self) -> Requests:
        return self._zookeeper.requests(self._topology.id).read()

    def lead(self, codec: MetaCodec[Any]) -> ProgressStore:
        zookeeper, topology_id = self._zookeeper, self._topology.id
        self._leadership = Leadership(zookeeper, topology_id)
        self.state = "waiting for the present leader"
        self._leadership.acquire(
            wait=self._wait_for_leadership, should_stop=self._is_interrupted, waiting=self._warn
        )
        self._stack.callback(self._leadership.release)
        # A resumed process may get here long after it was elected; from here on the epoch decides.
        self._store = ZooKeeperProgress(
            zookeeper, topology_id, codec, waiting=self._warn, should_stop=self._is_interrupted
        )
        return self._store

    def context(self) -> SpoutContext:
        return source_context(self._topology, self._settings)

    def open_source(self, context: SpoutContext) -> PartitionCoordinator[Any]:
        self._connecting_to(f"the source of {context.component!r}")
        spout = self._topology.spout.source.coordinator(context)
        self._stack.callback(spout.close)
        return spout

    def start_engine(self) -> RunnerFactory:
        return self._runner_factory or self._start_spark()

    def keep(self, runner: BatchRunner) -> BatchRunner:
        self._stack.callback(runner.close)
        return runner

    def locked(self, error: FenceLockedError) -> None:
        """A frozen driver holds the fence inside its transaction: its end, or the database's, frees it."""
        self.state = f"waiting for a lock: {error}"
        self._warn(str(error))
        if self.workers.pause(_RETRY_SECONDS):
            raise RunAbortedError("the run was stopped while another driver held the fence") from error

    @contextlib.contextmanager
    def beside(self, loop: Abortable) -> Iterator[None]:
        """Old rows of the ledgers go, and the leadership is watched."""
        timeout_seconds = self._settings.connect_timeout_seconds
        watch = threading.Thread(target=self.watch, args=(loop,), name="txstream-leader", daemon=True)
        watch.start()
        databases = [target.database for target in self._targets]
        pruner = LedgerPruner(self._topology.id, databases, self._settings.keep)
        pruner.start()
        try:
            yield
        finally:
            self.state = "stopping"
            self.workers.interrupt()
            pruner.stop(timeout_seconds)
            watch.join(timeout_seconds)

    def __enter__(self) -> Self:
        self._stack.__enter__()
        return self

    def __exit__(self, *raised: Any) -> bool | None:
        return self._stack.__exit__(*raised)

    def watch(self, loop: Abortable) -> None:
        """Until the run ends: Spark must be there. After a lost session: leader still if the epoch is still
        ours; then stand for election again."""

        def should_stop() -> bool:
            self._store.verify()  # FencedError once the leader that we wait behind has claimed its epoch
            return self.workers.is_interrupted

        while not self.workers.pause(_RETRY_SECONDS):
            try:
                if self._spark_process is not None:
                    self._spark_process.check()
                if not self._leadership.held:
                    self._store.verify()
                    self._leadership.acquire(wait=True, should_stop=should_stop, waiting=self._warn)
            except (FencedError, SparkLostError) as error:
                loop.abort(error)
                return
            except ServiceUnavailableError as error:
                log.info("ZooKeeper is away: %s", error)

    def _is_interrupted(self) -> bool:
        return self.workers.is_interrupted

    def _warn(self, message: str) -> None:
        log.warning("%s", message)

    def _connecting_to(self, what: str) -> None:
        self.state = f"connecting to {what} (up to {self._settings.connect_timeout_seconds:g} s)"

    def _open_database(self, url: str) -> StateBackend:
        database = open_database(
            url,
            connect_timeout_seconds=self._settings.connect_timeout_seconds,
            message_timeout_seconds=self._topology.message_timeout_seconds,
        )
        self._stack.callback(database.close)
        if not database.outlives_process:
            raise UsageError(
                f"database {database.url_for_people} forgets everything when the driver ends, while the "
                f"topology's progress stays in ZooKeeper; it is for tests (txstream.testing): give the "
                f"run another one, for example sqlite:///state.db"
            )
        return database

    def _start_spark(self) -> RunnerFactory:
        from txstream.engine.spark.master import await_executor
        from txstream.engine.spark.process import SparkProcess
        from txstream.engine.spark.runner import SparkRunner
        from txstream.engine.spark.session import (
            own_context,
            share_path,
            warn_of_missing_settings,
            worker_settings,
        )

        settings, spark, stack = self._settings, self._spark, self._stack
        self.state = "starting Spark"
        if spark is None:
            slots = max(component.parallelism for component in self._topology.components)
            workers = worker_settings(self._topology.workers, slots, settings.master)
            context = stack.enter_context(
                own_context(
                    master=settings.master,
                    app_name=f"txstream {self._topology.id}",
                    conf={**workers, **settings.spark_conf},
                    log_file=settings.spark_log,
                    package=settings.package,
                    connect_timeout_seconds=settings.connect_timeout_seconds,
                )
            )
        else:
            context = spark.sparkContext
        self._spark_process = SparkProcess.of(context._gateway)
        stack.enter_context(self._spark_process.blamed())
        if spark is not None:
            warn_of_missing_settings(context)
        share_path(context)
        for path in settings.py_files:
            context.addPyFile(str(Path(path).resolve()))
        self.state = f"waiting for an executor of {context.master}"
        await_executor(
            context,
            patience_seconds=settings.connect_timeout_seconds,
            wait=self.workers.pause,
            tell=self._warn,
        )
        return lambda plan: SparkRunner(context, plan, spark)


def source_context(topology: Topology, settings: Settings) -> SpoutContext:
    """What a topology's source is told of where it is."""
    return SpoutContext(
        topology_id=topology.id,
        component=topology.components[0].id,
        addresses=settings.addresses(),
        fetch_timeout_seconds=settings.fetch_timeout_seconds,
        connect_timeout_seconds=settings.connect_timeout_seconds,
    )
