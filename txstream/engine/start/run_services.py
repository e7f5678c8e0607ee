"""What a run's driver reads from and writes to: ZooKeeper, databases, the source, Spark.

Invariant: whatever was opened is closed at the end, in reverse order, however far the start got.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from txstream.api.bolts import DataFrameBolt
from txstream.api.spouts import PartitionCoordinator, SpoutContext
from txstream.api.topology import BATCHES, Topology
from txstream.core.batch_metas import MetaCodec
from txstream.core.errors import (
    TxstreamError,
    UsageError,
)
from txstream.core.semantics import Semantics
from txstream.core.waiting import RunAbortedError
from txstream.engine.batch.execution_plan import ExecutionPlan
from txstream.engine.batch.runner_contract import BatchRunner
from txstream.engine.batch.sizing import resident_tasks
from txstream.engine.commit.committer import StateTarget, state_targets
from txstream.engine.loop.event_loop import EventLoop
from txstream.engine.loop.leadership_watch import Abortable, watch_leadership
from txstream.engine.loop.ledger_pruning import LedgerPruner
from txstream.engine.loop.workers import ThreadWorkers, Workers
from txstream.engine.start.companions import Companion, Leading, installed_companions
from txstream.engine.start.driver import RunnerFactory
from txstream.engine.start.takeover import check_identity
from txstream.engine.start.warm_standby import Readiness
from txstream.settings import COLD, WARM, Settings
from txstream.state import FenceLockedError, StateBackend, open_database
from txstream.zookeeper import (
    Leadership,
    ProgressStore,
    Requests,
    ZooKeeper,
    ZooKeeperProgress,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txstream.engine.spark.engine import SparkEngine

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5


class RunServices:
    """The `Services` of a run. `spark` is the user's own session; a `runner_factory` does without Spark."""

    def __init__(
        self,
        topology: Topology,
        settings: Settings,
        *,
        spark: SparkSession | None = None,
        wait_for_leadership: bool = True,
        runner_factory: RunnerFactory | None = None,
    ) -> None:
        # A cancelled job may hold its thread for seconds while its successor runs.
        in_flight = topology.max_spout_pending if topology.tier == BATCHES else 1
        self.workers: Workers = ThreadWorkers(jobs=2 * in_flight + 2)
        self.state = "starting"
        self._topology = topology
        self._settings = settings
        self._wait_for_leadership = wait_for_leadership
        self._stack = contextlib.ExitStack()
        self._targets: Sequence[StateTarget] = ()
        self._source: PartitionCoordinator[Any] | None = None
        self._engine: SparkEngine | None = None
        self._engine_state = "starting Spark"
        self._is_engine_awaited = False
        self._create_runner = runner_factory or self._make_engine(spark).create_runner

    def connect(self) -> Sequence[StateTarget]:
        settings = self._settings
        self._connecting_to(f"ZooKeeper at {settings.require_zookeeper()}")
        self._zookeeper = ZooKeeper.of(settings)
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
            self._connecting_to(f"database {target.database.display_url}")
            target.database.check()
        return self._targets

    def asked_before(self) -> Requests:
        return self._zookeeper.requests(self._topology.id).read()

    def lead(self, codec: MetaCodec[Any], plan: ExecutionPlan) -> ProgressStore:
        zookeeper, topology_id = self._zookeeper, self._topology.id
        if self._engine is not None:
            self._engine.residents = resident_tasks(plan, self._topology.resident_tasks)
            self._stack.push(self._engine)
        is_warm = self._wait_for_leadership and self._settings.standby == WARM
        readiness = Readiness(
            self._steps(plan, codec) if is_warm else {}, self.workers.pause, self._report_ready
        )
        self._stack.callback(readiness.end)
        self._leadership = Leadership(zookeeper, topology_id, WARM if is_warm else COLD)
        self.state = "starting"
        self._leadership.acquire(
            wait=self._wait_for_leadership, should_stop=self._is_interrupted, waiting=self._stands_by
        )
        self._stack.callback(self._leadership.release)
        readiness.end()
        # A process that was suspended may get here long after its election; from here on the epoch decides.
        self._store = ZooKeeperProgress(
            zookeeper, topology_id, codec, waiting=self._warn, should_stop=self._is_interrupted
        )
        return self._store

    def _steps(self, plan: ExecutionPlan, codec: MetaCodec[Any]) -> dict[str, Callable[[], object]]:
        """Return what a warm standby keeps ready, each with the step that makes it so; Spark is the last."""
        steps: dict[str, Callable[[], object]] = {}
        for target in self._targets:
            steps[f"database {target.database.display_url}"] = target.database.check
        if not plan.fed:
            steps["the source"] = partial(self.open_source, plan.context)
            reader = ZooKeeperProgress(
                self._zookeeper,
                self._topology.id,
                codec,
                deadline_seconds=self._settings.connect_timeout_seconds,
            )
            steps["the identity and the tables"] = partial(
                check_identity, self._topology, reader, self._targets
            )
        if self._engine is not None:
            steps["Spark"] = partial(self._on_engine, partial(self._engine.keep_warm, plan))
        return steps

    def _report_ready(self) -> None:
        self.state = "standing by, ready to take over"
        self._warn(f"topology {self._topology.id!r}: this standby is warm, ready to take over")

    def context(self) -> SpoutContext:
        return source_context(self._topology, self._settings)

    def open_source(self, context: SpoutContext) -> PartitionCoordinator[Any]:
        if self._source is None:
            self._connecting_to(f"the source of {context.component!r}")
            self._source = self._topology.spout.source.coordinator(context)
            self._stack.callback(self._source.close)
        return self._source

    def start_engine(self) -> RunnerFactory:
        if self._engine is not None:
            self.state = self._engine_state
            self._is_engine_awaited = True
            self._on_engine(self._engine.start)
        return self._create_runner

    def keep(self, runner: BatchRunner) -> BatchRunner:
        self._stack.callback(runner.close)
        return runner

    def locked(self, error: FenceLockedError) -> None:
        """Wait a moment. A frozen driver's transaction holds the fence until the driver or database ends."""
        self.state = f"waiting for a lock: {error}"
        self._warn(str(error))
        if self.workers.pause(_RETRY_SECONDS):
            raise RunAbortedError("the run was stopped while another driver held the fence") from error

    @contextlib.contextmanager
    def beside(self, loop: Abortable) -> Iterator[None]:
        """Run the companions, and watch the leadership."""
        timeout_seconds = self._settings.connect_timeout_seconds
        watch = threading.Thread(target=self.watch, args=(loop,), name="txstream-leader", daemon=True)
        watch.start()
        companions = list(self._companions(loop))
        for companion in companions:
            companion.start()
        try:
            yield
        finally:
            self.state = "stopping"
            self.workers.interrupt()
            for companion in reversed(companions):
                companion.stop(timeout_seconds)
            watch.join(timeout_seconds)

    def _companions(self, loop: Abortable) -> Iterator[Companion]:
        databases = [target.database for target in self._targets]
        yield LedgerPruner(self._topology.id, databases, self._settings.keep)
        if isinstance(loop, EventLoop):
            yield from installed_companions(
                Leading(
                    self._topology, self.context(), databases, self._store, lambda: loop.coordinator.current
                )
            )

    def __enter__(self) -> Self:
        self._stack.__enter__()
        return self

    def __exit__(self, *raised: Any) -> bool | None:
        return self._stack.__exit__(*raised)

    def watch(self, loop: Abortable) -> None:
        """Check until the run ends that Spark is there and that this driver leads."""
        check_engine = self._engine.check if self._engine is not None else lambda: None
        watch_leadership(
            self._leadership,
            self._store,
            self.workers,
            loop,
            check_engine=check_engine,
            waiting=self._warn,
        )

    def _is_interrupted(self) -> bool:
        return self.workers.is_interrupted

    def _stands_by(self, message: str) -> None:
        self.state = "waiting to take over"
        self._warn(message)

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
                f"database {database.display_url} forgets everything when the driver ends, while the "
                f"topology's progress stays in ZooKeeper; it is for tests (txstream.testing): give the "
                f"run another one, for example sqlite:///state.db"
            )
        return database

    def _make_engine(self, spark: SparkSession | None) -> SparkEngine:
        from txstream.engine.spark.engine import SparkEngine, check_source
        from txstream.engine.spark.log import writable_spark_log
        from txstream.engine.spark.master import Master
        from txstream.engine.spark.session import DEFAULT_MASTER, JAVA_OPTIONS, worker_settings

        topology, settings = self._topology, self._settings
        conf = dict(settings.spark_conf)
        check_source(topology)
        if spark is None:
            Master(settings.master or DEFAULT_MASTER).refuse()
            slots = max(component.parallelism for component in topology.components)
            if any(isinstance(bolt.instance, DataFrameBolt) for bolt in topology.bolts):
                conf = {"spark.driver.extraJavaOptions": JAVA_OPTIONS, **conf}  # here Java's own work counts
            conf = {**worker_settings(topology.workers, slots, settings.master), **conf}
            log_file = settings.spark_log or writable_spark_log(settings.log_dir, topology.id)
            settings = replace(settings, spark_log=log_file)

        def report_state(state: str) -> None:
            self._engine_state = state
            if self._is_engine_awaited:
                self.state = state

        self._engine = SparkEngine(
            settings,
            f"txstream {topology.id}",
            conf,
            spark,
            pause=self.workers.pause,
            report_state=report_state,
        )
        return self._engine

    def _on_engine(self, start: Callable[[], object]) -> None:
        """Run `start`. If the run was stopped meanwhile, a failure is put down to that."""
        try:
            start()
        except TxstreamError as error:
            if self.workers.is_interrupted:
                raise RunAbortedError("the run was stopped while Spark started") from error
            raise


def source_context(topology: Topology, settings: Settings) -> SpoutContext:
    """Return the context of a topology's source: its ids, addresses and deadlines."""
    return SpoutContext(
        topology_id=topology.id,
        component=topology.components[0].id,
        addresses=settings.addresses(),
        fetch_timeout_seconds=settings.fetch_timeout_seconds,
        connect_timeout_seconds=settings.connect_timeout_seconds,
        is_transactional=topology.semantics is Semantics.TRANSACTIONAL,
    )
