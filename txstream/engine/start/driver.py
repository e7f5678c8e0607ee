"""One driver of a topology, from its election to its last batch. Its parts are put together only here.

What the driver reads from and writes to is passed in as `Services`: the real ones in a run (`run_services`),
others in tests and in the simulation. `Driver.start` fixes the order of a start.
"""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from txstream.api.errors import TxstreamError
from txstream.api.spouts import PartitionCoordinator, SpoutContext
from txstream.api.topology import Topology
from txstream.batch_metas import BatchMetas, MetaCodec
from txstream.engine.batch.execution_plan import ExecutionPlan, compile_topology
from txstream.engine.batch.runner_contract import BatchRunner
from txstream.engine.commit.bindings import map_bindings
from txstream.engine.commit.committer import Committer, StateTarget
from txstream.engine.loop.event_loop import EventLoop
from txstream.engine.loop.failing_record import name_record
from txstream.engine.loop.log_end import LogEnd
from txstream.engine.loop.open_batches import Watcher
from txstream.engine.loop.outages import Waiting
from txstream.engine.loop.workers import Workers
from txstream.engine.report import RunReport
from txstream.engine.start.identity import check_identity
from txstream.engine.start.takeover import Takeover, take_up
from txstream.fault_points import PointListener, nobody_listens
from txstream.state import FenceLockedError
from txstream.transaction import AttemptId, TransactionAttempt, Txid
from txstream.zookeeper import ProgressStore, Requests

RunnerFactory = Callable[[ExecutionPlan], BatchRunner]


class Services(AbstractContextManager["Services"], Protocol):
    """What a driver reads from and writes to; leaving the context closes all of it. The methods are called
    in this order, each once, except `locked`. `state` tells people what the driver is doing."""

    workers: Workers
    state: str

    def connect(self) -> Sequence[StateTarget]:
        """Reach the progress store and the topology's databases. Return the databases, open and answering."""

    def asked_before(self) -> Requests:
        """Return the requests so far. What operators ask while this driver stands by is meant for it too."""

    def context(self) -> SpoutContext:
        """Return the addresses and deadlines for the source, on the driver and on executors."""

    def lead(self, codec: MetaCodec[Any], plan: ExecutionPlan) -> ProgressStore:
        """Wait to be elected, and return the store to write to from now on. A warm standby starts what will
        run `plan`, and opens the source, while it waits."""

    def open_source(self, context: SpoutContext) -> PartitionCoordinator[Any]:
        """Open the source and return its coordinator, which the driver asks."""

    def start_engine(self) -> RunnerFactory:
        """Start what runs batches, unless it is up, and return what makes the runner."""

    def locked(self, error: FenceLockedError) -> None:
        """Wait before the next try while a frozen driver holds a fence, or raise to give up."""

    def keep(self, runner: BatchRunner) -> BatchRunner:
        """Return `runner`, and close it at the end."""

    def beside(self, loop: EventLoop) -> AbstractContextManager[object]:
        """Return the context of what goes on beside the batches, from the first to the last."""


class Driver:
    """One driver's turn. `run` is called once; `stop`, `abort` and the rest may be called from any thread.

    `until_caught_up` ends the turn once everything up to the log's end, as it is at the start, is committed;
    `until_txid` ends it after that txid. `loop` is set once batches may run. `plan`, if given, was compiled
    before; `committer` is the class that commits.
    """

    def __init__(
        self,
        topology: Topology,
        services: Services,
        *,
        until_caught_up: bool = False,
        until_txid: int | None = None,
        warm_up_seconds: float = 0.0,
        gather_seconds: float = 0.0,
        listener: PointListener = nobody_listens,
        watcher: Watcher | None = None,
        capture: bool = False,
        plan: ExecutionPlan | None = None,
        committer: type[Committer] = Committer,
    ) -> None:
        self.topology = topology
        self.loop: EventLoop | None = None
        self.taken: Takeover | None = None
        self.waiting = Waiting(services.workers.pause)
        self._services = services
        self._until_caught_up = until_caught_up
        self._until_txid = until_txid
        self._warm_up_seconds = warm_up_seconds
        self._gather_seconds = gather_seconds
        self._listener = listener
        self._watcher = watcher
        self._capture = capture
        self._plan = plan
        self._committer = committer
        self._stopped = threading.Event()
        self._process: Callable[[TransactionAttempt, BatchMetas[Any]], None] | None = None

    @property
    def state(self) -> str:
        """What the driver is doing, for people."""
        return self._services.state

    @property
    def is_told_to_stop(self) -> bool:
        return self._stopped.is_set()

    @property
    def goal(self) -> Mapping[str, Any] | None:
        """The end of the log at which the turn ends, once that is known."""
        return None if self.loop is None else self.loop.log_end.targets

    def stop(self) -> None:
        """End the run between two batches."""
        self._stopped.set()
        if self.loop is None:
            self._services.workers.interrupt()
        else:
            self.loop.stop()

    def abort(self) -> None:
        """End the run at once, as a crash would; the next run recovers."""
        self._stopped.set()
        self._services.workers.interrupt()
        if self.loop is not None:
            self.loop.abort()

    def run(self) -> RunReport | None:
        """Run the whole turn. Return None if it was stopped before its first batch. Raises what ended it."""
        with self._services as services:
            loop = self.start()
            if loop is None or self.is_told_to_stop:
                return None
            started = time.monotonic()
            services.state = "running"
            with services.beside(loop):
                try:
                    loop.run()
                except TxstreamError as error:
                    self._name_record(loop, error)
                    raise
            return self._report(loop, time.monotonic() - started)

    def start(self) -> EventLoop | None:
        """Do everything that comes before the first batch, in the safe order. Return None if stopped.

        A bolt that cannot be shipped is reported before the election. The election comes next, so that a
        standby waits without writing anything. What is only asked of ZooKeeper, databases and source is asked
        before Spark starts. Source and Spark come before identity, tables, epoch, fences and recovery
        (`take_up`), so that a run without its topic or cluster leaves nothing behind.
        """
        topology, services = self.topology, self._services
        codec: MetaCodec[Any] = MetaCodec(topology.spout.source.meta_type)
        targets = services.connect()
        asked_before = services.asked_before()
        context = services.context()
        plan = self._plan or compile_topology(topology, context, uuid.uuid4().hex, capture=self._capture)
        store = services.lead(codec, plan)
        if self.is_told_to_stop:
            return None
        check_identity(topology, store, targets)
        spout = services.open_source(context)
        if self.is_told_to_stop:
            return None
        create_runner = services.start_engine()
        if self.is_told_to_stop:
            return None
        services.state = "recovering"
        last_txid = None if self._until_txid is None else Txid(self._until_txid)
        taken = self.taken = take_up(
            topology,
            store,
            targets,
            codec,
            locked=services.locked,
            last_txid=last_txid,
            asked_before=asked_before,
        )
        log_end = LogEnd(spout, self.waiting)
        if self._until_caught_up:
            log_end.ask()
        bindings = map_bindings(topology, taken.identity.uuid, targets)
        runner = services.keep(create_runner(replace(plan, bindings=bindings)))
        progress = taken.resume.progress
        committer = self._committer(
            topology,
            taken.identity.uuid,
            targets,
            wait_for=self.waiting.until,
            committed_by={Txid(progress.current - 1): progress.committed_by},
        )
        self._process = partial(_processed, runner, committer)
        self.loop = EventLoop(
            topology,
            taken.coordinator,
            spout,
            store,
            runner,
            committer,
            services.workers,
            self.waiting,
            taken.steering,
            log_end,
            until_txid=self._until_txid,
            warm_up_seconds=self._warm_up_seconds,
            gather_seconds=self._gather_seconds,
            listener=self._listener,
            watcher=self._watcher,
        )
        return self.loop

    def _name_record(self, loop: EventLoop, error: TxstreamError) -> None:
        """Add to an error of a batch where its record is. Nothing that this processes can be committed."""
        attempt, numbers = loop.failures.ended_by, itertools.count(1)
        if attempt is None or self._process is None or error is not loop.failure:
            return
        process = self._process

        def part(metas: BatchMetas[Any]) -> None:
            # A number of its own each time: the run's own attempts were cancelled when it ended.
            process(replace(attempt, attempt=AttemptId(attempt.attempt + next(numbers))), metas)

        name_record(error, loop.coordinator.metas(attempt.txid), part)

    def _report(self, loop: EventLoop, seconds: float) -> RunReport:
        topology, taken, statistics = self.topology, self.taken, loop.statistics
        assert taken is not None
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
            seconds=round(seconds, 3),
            caught_up=loop.caught_up,
            failure_reasons=dict(statistics.failure_reasons),
            stopped_by=taken.steering.stopped_by,
        )


def _processed(
    runner: BatchRunner, committer: Committer, attempt: TransactionAttempt, metas: BatchMetas[Any]
) -> None:
    """Process a batch up to what its commit would write, and drop what came of it."""
    result = runner.run(attempt, metas)
    try:
        committer.check(committer.prepare(result))
    finally:
        runner.release(result)
