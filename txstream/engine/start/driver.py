"""One driver of a topology, from its election to its last batch or tree. Only here its parts come together.

What the driver reads from and writes to is passed in as `Services`: the real ones in a run (`run_services`),
others in tests and in the simulation. What differs between batches and tracked tuples is the `Tier`.
`Driver.start` fixes the order of a start, which is the same for both.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from txstream.api.spouts import PartitionCoordinator, SpoutContext
from txstream.api.topology import Topology
from txstream.core.batch_metas import MetaCodec
from txstream.core.coordinator import Coordinator
from txstream.core.errors import TxstreamError
from txstream.core.transaction import TransactionAttempt, Txid
from txstream.core.waiting import Waiting
from txstream.engine.batch.execution_plan import ExecutionPlan, compile_topology
from txstream.engine.batch.runner_contract import BatchRunner
from txstream.engine.commit.committer import StateTarget
from txstream.engine.commit.state_targets import map_bindings
from txstream.engine.loop.leadership_watch import Abortable
from txstream.engine.loop.operator_changes import Steered
from txstream.engine.loop.report import BatchTiming, RunProgress, RunReport
from txstream.engine.loop.workers import Workers
from txstream.engine.start.takeover import Settler, Takeover, check_identity, take_up
from txstream.state import FenceLockedError
from txstream.zookeeper import ProgressStore, Requests

log = logging.getLogger(__name__)

RunnerFactory = Callable[[ExecutionPlan], BatchRunner]


class Services(AbstractContextManager["Services"], Protocol):
    """What a driver reads from and writes to; leaving the context closes all of it. The methods are called
    in this order, each once, except `locked`. `state` says what the driver is doing."""

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
        """Open the source and return its coordinator, which the driver asks. Not with tracked tuples."""

    def start_engine(self) -> RunnerFactory:
        """Start what runs batches, unless it is up, and return what makes the runner."""

    def locked(self, error: FenceLockedError) -> None:
        """Wait before the next try while a frozen driver holds a fence, or raise to give up."""

    def keep(self, runner: BatchRunner) -> BatchRunner:
        """Return `runner`, and close it at the end."""

    def beside(self, loop: Abortable) -> AbstractContextManager[object]:
        """Return the context of what goes on beside the batches, from the first to the last."""


class Loop(Abortable, Protocol):
    """What a driver needs of a tier's loop. `stop` and `abort` may be called from any thread."""

    @property
    def ended_by(self) -> TransactionAttempt | None:
        """The attempt whose failure has ended the run, if one has."""

    def run(self) -> None:
        """Work until the run has ended. Raises what ended it, unless it ended well."""

    def stop(self) -> None:
        """End well, soon."""


L = TypeVar("L", bound=Loop)


@dataclass(frozen=True)
class Ready:
    """What a tier's loop is made of, once the topology is taken up."""

    workers: Workers
    targets: Sequence[StateTarget]
    store: ProgressStore
    plan: ExecutionPlan
    runner: BatchRunner
    taken: Takeover
    waiting: Waiting


@dataclass(eq=False)
class Tier(ABC, Generic[L]):
    """What batches, or tracked tuples, bring to their driver. The driver calls `open` and `prepare` in this
    order, each once; the rest may be called from any thread, once there is a loop.

    `until_caught_up` ends the turn once everything is done that the source has. The first attempts, and those
    after a timeout, have `warm_up_seconds` on top of the message timeout. `until_txid` is the last txid.
    `plan`, if given, was compiled before; with `capture` the runner keeps what components emit. `loop` is set
    once batches or tuples may run, and `context`, that of the source, before.
    """

    open_work: ClassVar[str] = "the open batches are committed"
    """What a run that is stopped waits for, in words."""

    topology: Topology
    _: KW_ONLY
    until_caught_up: bool = False
    warm_up_seconds: float = 0.0
    until_txid: int | None = None
    plan: ExecutionPlan | None = None
    capture: bool = False
    loop: L | None = field(init=False, default=None)
    context: SpoutContext | None = field(init=False, default=None)

    @property
    @abstractmethod
    def codec(self) -> MetaCodec[Any]:
        """How the metas in the progress store are read and written."""

    @abstractmethod
    def open(self, services: Services, context: SpoutContext) -> None:
        """Open the source, before anything is written, if that takes nothing out of it."""

    @abstractmethod
    def prepare(self, ready: Ready) -> L:
        """Return the loop."""

    def steered(self, coordinator: Coordinator[Any]) -> Steered:
        """Return what obeys operators."""
        return coordinator

    @abstractmethod
    def report(self, taken: Takeover, seconds: float) -> RunReport:
        """Return what the run did."""

    @abstractmethod
    def progress(self, seconds: float) -> RunProgress:
        """Return a snapshot of a run that has taken `seconds` so far."""

    @abstractmethod
    def how_far(self) -> str:
        """Return, in words, how far a run without a report has come."""

    def explain(self, error: TxstreamError) -> None:
        """Add to the error that ended the run what only this tier knows. The runner is still open."""

    @property
    def timings(self) -> list[BatchTiming]:
        return []

    @property
    def running(self) -> L:
        assert self.loop is not None
        return self.loop

    @property
    def story(self) -> Sequence[str]:
        """What the run's state machine has seen, if it has one."""
        return ()


class Driver(Generic[L]):
    """One driver's turn. `run` is called once; `stop`, `abort` and the rest may be called from any thread."""

    def __init__(self, services: Services, tier: Tier[L], settlers: Sequence[Settler] = ()) -> None:
        self.tier = tier
        self._settlers = settlers
        self.taken: Takeover | None = None
        self.targets: Sequence[StateTarget] = ()
        self.waiting = Waiting(services.workers.pause)
        self._services = services
        self._stopped = threading.Event()

    @property
    def loop(self) -> L | None:
        return self.tier.loop

    @property
    def state(self) -> str:
        """What the driver is doing, in words."""
        return self._services.state

    @property
    def is_told_to_stop(self) -> bool:
        return self._stopped.is_set()

    def progress(self, seconds: float) -> RunProgress:
        """Return a snapshot of the run, which has taken `seconds` so far."""
        if self.loop is None:
            return RunProgress(self.tier.topology.id, 0, {}, 0, 0, 0, seconds, self.state, None)
        return self.tier.progress(seconds)

    def stop(self) -> None:
        """End the run between two batches, or once the open trees have ended."""
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
                    try:
                        self.tier.explain(error)
                    except Exception:  # what is told is why the run ended, whatever happens here
                        log.warning("the error could not be explained", exc_info=True)
                    raise
            assert self.taken is not None
            return self.tier.report(self.taken, time.monotonic() - started)

    def start(self) -> L | None:
        """Do everything that comes before the first batch, in the safe order. Return None if stopped.

        A bolt that cannot be shipped is reported before the election. The election comes next, so that a
        standby waits without writing anything. What is only asked of ZooKeeper, databases and source is asked
        before Spark starts. Source and Spark come before identity, tables, epoch, fences and recovery
        (`take_up`), so that a run without its topic or cluster leaves nothing behind.
        """
        tier, services = self.tier, self._services
        topology = tier.topology
        targets = self.targets = services.connect()
        asked_before = services.asked_before()
        context = tier.context = services.context()
        plan = tier.plan or compile_topology(topology, context, uuid.uuid4().hex, capture=tier.capture)
        store = services.lead(tier.codec, plan)
        if self.is_told_to_stop:
            return None
        check_identity(topology, store, targets)
        tier.open(services, context)
        if self.is_told_to_stop:
            return None
        create_runner = services.start_engine()
        if self.is_told_to_stop:
            return None
        services.state = "recovering"
        taken = self.taken = take_up(
            topology,
            store,
            targets,
            tier.codec,
            locked=services.locked,
            last_txid=None if tier.until_txid is None else Txid(tier.until_txid),
            asked_before=asked_before,
            steered=tier.steered,
            settlers=self._settlers,
        )
        bindings = map_bindings(topology, taken.identity.uuid, targets)
        runner = services.keep(create_runner(replace(plan, bindings=bindings)))
        tier.loop = tier.prepare(Ready(services.workers, targets, store, plan, runner, taken, self.waiting))
        return tier.loop
