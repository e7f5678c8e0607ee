"""Spark as a driver uses it: started, kept warm while the driver stands by, and ended.

Invariants. Without a session of the user's, Spark gets a process of its own. Whatever was started is ended,
however far a start has come. If that process has ended, the next start makes another one.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow.acero  # noqa: F401 - otherwise the first batch imports it, when it groups rows
from pyspark import cloudpickle

from txstream.api.topology import Topology
from txstream.core.errors import SparkLostError, UsageError
from txstream.core.wording import a
from txstream.engine.batch.execution_plan import ExecutionPlan
from txstream.engine.spark.computed_bolts import ComputedBolts, computed_bolts
from txstream.engine.spark.java_process import SparkProcess
from txstream.engine.spark.master import Master, await_executor
from txstream.engine.spark.session import DEFAULT_MASTER, own_context, share_path, warn_of_missing_settings
from txstream.engine.spark.spark_runner import SparkRunner, pickled
from txstream.settings import Settings

if TYPE_CHECKING:
    from pyspark import Broadcast, SparkContext
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

# The first time, workers import all that a batch needs. That takes seconds, and longer on a busy machine.
_WARM_SECONDS = 60.0


def check_source(topology: Topology) -> None:
    """Raise UsageError for a source that only this process can read."""
    if not topology.fed and not (source := topology.spout.source).other_process:
        raise UsageError(
            f"component {topology.components[0].id!r} reads {a(type(source).__name__)}, which is in this "
            f"process alone, where Spark's workers cannot read it; use a FileSpout, or run it locally with "
            f"start(topology, runner_factory=InProcessRunner)"
        )


class SparkEngine:
    """Starts and ends Spark. `pause` waits so many seconds, and returns True when the run is to end, which
    ends a start too. `warn` is told why a cluster gives no executor. `residents` is how many Spark tasks are
    to stay for small batches: it is set before the start. Only `check` may be called from several threads at
    once."""

    def __init__(
        self,
        settings: Settings,
        app_name: str,
        conf: Mapping[str, str],
        session: SparkSession | None = None,
        *,
        pause: Callable[[float], bool],
        report_state: Callable[[str], None] = log.debug,
        warn: Callable[[str], None] = log.warning,
    ) -> None:
        self._settings = settings
        self._app_name = app_name
        self._conf = conf
        self._session = session
        self.residents = 0
        self._pause = pause
        self._report_state = report_state
        self._warn = warn
        self._forget()

    def _forget(self) -> None:
        self._opened = contextlib.ExitStack()
        self._context: SparkContext | None = None
        self._process = SparkProcess(None)
        self._computed: ComputedBolts | None = None
        self._warm: tuple[str, Broadcast[bytes]] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: Any) -> bool | None:
        """End what was started. An error caused by the end of Spark's process is raised as SparkLostError."""
        opened = self._opened
        self._forget()
        return opened.__exit__(*raised)

    def check(self) -> None:
        """Raise SparkLostError when Spark's process has ended."""
        self._process.check()

    def start(self) -> SparkContext:
        """Start Spark unless it is up, and wait for an executor."""
        with contextlib.suppress(SparkLostError):
            self.check()
            if self._context is not None:
                return self._context
        self.__exit__(None, None, None)
        self._report_state("starting Spark")
        settings = self._settings
        if self._session is None:
            context = self._opened.enter_context(
                own_context(
                    master=Master(settings.master or DEFAULT_MASTER).with_slots(self.residents).url,
                    app_name=self._app_name,
                    conf=self._conf,
                    log_file=settings.spark_log,
                    package=settings.package,
                    connect_timeout_seconds=settings.connect_timeout_seconds,
                    is_given_up=lambda: self._pause(0),
                )
            )
        else:
            context = self._session.sparkContext
            warn_of_missing_settings(context)
        self._context, self._process = context, SparkProcess.of(context._gateway)
        self._opened.enter_context(self._process.blamed())
        share_path(context)
        with self._given_up_on_stop():
            for path in settings.py_files:
                context.addPyFile(str(Path(path).resolve()))
            self._report_state(f"waiting for an executor of {context.master}")
            await_executor(
                context, patience_seconds=settings.connect_timeout_seconds, wait=self._pause, warn=self._warn
            )
        return context

    def create_runner(self, plan: ExecutionPlan) -> SparkRunner:
        context = self.start()
        return SparkRunner(context, plan, self._session, computed=self._computed, residents=self.residents)

    def keep_warm(self, plan: ExecutionPlan) -> None:
        """Start Spark unless it is up, and have Python workers import what a batch needs. That also keeps
        Spark from ending them as idle. If it fails, Spark is ended, so the next start makes a new one."""
        with contextlib.ExitStack() as stack:
            stack.push(self._end_if_failed)
            context = self.start()
            stack.enter_context(self._given_up_on_stop())
            if self._session is None:
                reason = f"Spark has run no job within {_WARM_SECONDS:g} s, and is started again"
                stack.enter_context(self._process.killed_after(_WARM_SECONDS, reason))
            stack.enter_context(self._process.blamed())
            if self._warm is None:
                # An id of its own: the plan that is run has states too, which only a leader knows.
                run_id = uuid.uuid4().hex
                self._warm = run_id, context.broadcast(pickled(plan))
                self._computed = computed_bolts(context, self._session, plan)
            run_id, shipped = self._warm
            tasks = min(context.defaultParallelism, max(plan.slots({}).values(), default=1))
            get_ready = functools.partial(_get_ready, shipped, run_id)
            context.parallelize(range(tasks), tasks).mapPartitions(get_ready).count()

    def _given_up_on_stop(self) -> contextlib.AbstractContextManager[None]:
        """Kill this run's Java process if the run is stopped in this block: the process may be frozen."""
        if self._session is not None:
            return contextlib.nullcontext()
        return self._process.killed_when(lambda: self._pause(0))

    def _end_if_failed(self, kind: object, *raised: Any) -> bool:
        if kind is not None:
            self.__exit__(None, None, None)
        return False


def _get_ready(shipped: Broadcast[bytes], run_id: str, numbers: Iterable[int]) -> Iterable[int]:
    """A Spark task that imports what those of a batch need: this module brings the engine's modules, the
    plan brings the user's."""
    if run_id not in _ready:
        plan: ExecutionPlan = cloudpickle.loads(shipped.value)
        if not plan.fed:
            plan.create_source().emitter(plan.context).close()
        for bolt in plan.bolts:
            bolt.create()
        _ready.add(run_id)
    return numbers


# Runs that this worker process is ready for.
_ready: set[str] = set()
