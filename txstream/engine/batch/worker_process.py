"""What a worker process keeps between batches: the plan's emitter, what bolts have opened, open stores,
and rows of states.

Topologies in one Spark session share its worker processes. Each topology has its own `WorkerProcess` here.

Invariant: a process serves one run of a topology at a time. When it gets the plan of another run of it,
it first closes what the run before opened. It closes what another topology opened when that has had no Spark
task here for a minute, because nobody tells a worker process that a run has ended.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from txstream.api.bolts import Bolt, WorkerContext
from txstream.api.spouts import PartitionEmitter
from txstream.core.batch_metas import MetaCodec
from txstream.core.entry_points import TASKS, load
from txstream.core.errors import UsageError
from txstream.engine.batch.execution_plan import BoltSpec, ExecutionPlan
from txstream.engine.states.state_cache import StateCache
from txstream.engine.states.worker_databases import OpenStores

if TYPE_CHECKING:
    from txstream.engine.batch.collector import Collector, Send
    from txstream.engine.batch.layout import Stage
    from txstream.engine.batch.messages import WorkOrder
    from txstream.engine.batch.task_tier import TaskTier, TieredTask, Tracking
    from txstream.engine.states.task_map_state import TaskMapState

log = logging.getLogger(__name__)

# Spark ends a worker process after the same idle time.
IDLE_SECONDS = 60.0


class WorkerProcess:
    """A worker process of one run. Serves one Spark task at a time."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self.plan = plan
        self.host = socket.gethostname()
        # Spark keeps one Python daemon per executor, so its process id tells executors on a host apart.
        self.worker = f"{self.host}:{os.getppid()}"
        self._spout: tuple[PartitionEmitter[Any], MetaCodec[Any]] | None = None
        self._resources: dict[str, tuple[Bolt, Any]] = {}
        self.stores = OpenStores()
        # By component, name of the state, and task.
        self.state_caches: dict[tuple[str, str, int], StateCache] = {}
        # The collectors and states of bolts in the present Spark task.
        self.left_open: list[Collector | TaskMapState] = []
        self.used_at = 0.0

    def spout(self) -> tuple[PartitionEmitter[Any], MetaCodec[Any]]:
        """The emitter, opened when first needed, and the codec of its metas."""
        if self._spout is None:
            source = self.plan.create_source()
            emitter = source.emitter(self.plan.context)
            emitter.tells_digests = self.plan.is_transactional
            self._spout = emitter, MetaCodec(source.meta_type)
        return self._spout

    def get_ready(self) -> None:
        """Open the emitter and import what the bolts need, before there is a batch. If that fails, the first
        batch tries again, and reports it."""
        try:
            self.spout()
            for bolt in self.plan.bolts:
                bolt.create()
        except Exception:
            log.info("topology %r could not be made ready yet", self.plan.topology_id, exc_info=True)

    def resource(self, spec: BoltSpec, bolt: Bolt) -> Any:
        """What `prepare_worker` has opened for this component in this process, None if the class of `bolt`
        does not define it. It is called when first needed, on an instance of its own."""
        if type(bolt).prepare_worker is Bolt.prepare_worker:
            return None
        if spec.id not in self._resources:
            plan = self.plan
            addresses = plan.context.addresses
            context = WorkerContext(
                plan.topology_id, spec.id, self.worker, self.host, plan.settings, addresses
            )
            opener = spec.create()
            self._resources[spec.id] = (opener, opener.prepare_worker(context))
        return self._resources[spec.id][1]

    def track(self, order: WorkOrder, stage: Stage, spark_task: int) -> Tracking | None:
        """What keeps the trees of tuples in a Spark task; None if they are not tracked."""
        if not self.plan.tracks:
            return None
        run = int(self.plan.run_id, 16)
        return self._tier.tracking([run, order.attempt.attempt, stage.position, spark_task])

    def tiered_task(self, spec: BoltSpec, task: int, send: Send) -> TieredTask | None:
        """What the topology's tier adds to a bolt task; None in a topology of batches."""
        return self._tier.task(spec, task, send, tracks=self.plan.tracks) if self.plan.fed else None

    @cached_property
    def _tier(self) -> TaskTier:
        found: TaskTier | None = load(TASKS, self.plan.tier, f"tier {self.plan.tier!r}")
        if found is None:
            raise UsageError(
                f"topology {self.plan.topology_id!r} needs the tier {self.plan.tier!r}, which no package on "
                "this worker has"
            )
        return found

    def end_task(self) -> None:
        """Close what the bolts of a Spark task were given. The task has ended, perhaps with a failure."""
        while self.left_open:
            self.left_open.pop().close()

    def close(self) -> None:
        """Close everything. A failure to close is logged, so that the rest is closed all the same."""
        opened, self._resources = self._resources, {}
        for component, (bolt, resource) in reversed(opened.items()):
            try:
                bolt.close_worker(resource)
            except (Exception, SystemExit):
                log.warning("close_worker of component %r failed", component, exc_info=True)
        spout, self._spout = self._spout, None
        if spout is not None:
            try:
                spout[0].close()
            except (Exception, SystemExit):
                log.warning("the emitter of %r failed to close", self.plan.spout_id, exc_info=True)
        self.stores.close()


# By topology.
_processes: dict[str, WorkerProcess] = {}


def worker_process(plan: ExecutionPlan, *, clock: Callable[[], float] = time.monotonic) -> WorkerProcess:
    """Return this process's `WorkerProcess` for the run of `plan`, for a Spark task that begins now."""
    now = clock()
    for topology_id, process in list(_processes.items()):
        is_over = process.plan.run_id != plan.run_id
        if topology_id != plan.topology_id:
            is_over = now - process.used_at >= IDLE_SECONDS
        if is_over:
            del _processes[topology_id]
            process.close()
    if plan.topology_id not in _processes:
        _processes[plan.topology_id] = WorkerProcess(plan)
    process = _processes[plan.topology_id]
    process.used_at = now
    return process


def close_worker_process() -> None:
    """Close what is open. Called when the process ends in good order."""
    while _processes:
        _, process = _processes.popitem()
        process.close()
