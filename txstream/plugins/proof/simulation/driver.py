"""One driver of the simulation: the product's own `Driver` and event loop, over parts that fail.

A step starts the driver, does one piece of its work, or makes its loop handle one event; `chances` decide
which (`workers`). A driver can be stopped between any two steps and inside any write. Another piece of its
own work may run in the middle of one, as on another of its threads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from txstream.api.spouts import SpoutContext
from txstream.core.batch_metas import MetaCodec
from txstream.core.coordinator import EmitBatch
from txstream.core.errors import FencedError, ServiceUnavailableError, TxstreamError
from txstream.core.fault_points import CrashError, Point
from txstream.core.transaction import Epoch, TransactionAttempt, Txid
from txstream.engine.batch.execution_plan import ExecutionPlan
from txstream.engine.batch.runner_contract import BatchRunner
from txstream.engine.commit.committer import StateTarget
from txstream.engine.loop.event_loop import EventLoop
from txstream.engine.loop.open_batches import Watcher
from txstream.engine.loop.workers import Workers
from txstream.engine.start import driver as product
from txstream.engine.start.batch_tier import BatchTier
from txstream.engine.start.driver import Services
from txstream.engine.start.takeover import Settler, Takeover
from txstream.plugins.proof.simulation.program import Program
from txstream.plugins.proof.simulation.source import LogCoordinator
from txstream.plugins.proof.simulation.tasks import Runner
from txstream.plugins.proof.simulation.workers import SeededWorkers
from txstream.plugins.proof.zookeeper_tree import MemoryProgress
from txstream.state import FenceLockedError
from txstream.zookeeper import LostAnswerError, Requests

if TYPE_CHECKING:
    from txstream.plugins.proof.simulation.world import World


class UnexplainedError(TxstreamError):
    """A driver met an error that nothing in its world explains."""


class Progress(MemoryProgress):
    """The real progress store over the shared tree. It remembers the epoch that it claimed, and whom to tell
    of requests: the histories of users have no operator."""

    claimed = Epoch(0)
    tell_of_requests: Callable[[], None] = staticmethod(lambda: None)

    def claim_epoch(self, at_least: Epoch) -> Epoch:
        self.claimed = super().claim_epoch(at_least)
        return self.claimed

    def watch_requests(self, changed: Callable[[], None]) -> Callable[[], None]:
        self.tell_of_requests = changed
        return lambda: None


class Actor:
    """A process that writes to ZooKeeper and databases, and may die or sleep between any two writes."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.is_alive = True
        self.is_frozen = False
        self.is_started = True
        self.store = Progress(world.tree, world.topology_id, world.codec, hook=self._hook)

    def wall_clock(self) -> float:
        """Return what the clock of its machine says, in seconds since 1970."""
        return self.world.wall_clock(self.number)

    def _end(self, how: str) -> None:
        self.world.note(f"{self} {how}")
        self.is_alive = False

    def pass_point(self, where: str, whose: object = "") -> None:
        """Between two external reads or writes, the process may die, or sleep while others go on."""
        world = self.world
        if not world.has_faults:
            return
        if not self.is_alive:
            raise CrashError
        world.points.add(where)
        if world.happens("crash"):
            world.crashes.append(where)
            world.note(f"{self} is about to crash: {where} {whose}")
            raise CrashError
        if world.happens("freeze" if self.is_started else "freeze at start"):
            world.freeze(self, f"{where} {whose}")

    def _hook(self, when: str, write: str) -> None:
        """Called before and after each write to ZooKeeper."""
        self.pass_point(f"{when} {write}")
        if self.world.happens("answer lost"):
            self.world.note(f"{self}: the answer to {write} is lost, {when} it was applied")
            raise LostAnswerError(f"{write} was not answered")
        if when == "before" and self.world.happens("write late"):
            self.world.note(f"{self}: {write} is late")
            self.world.tree.delay_next_write()


class SimulatedDriver(Actor, Watcher):
    """One driver, from its election to its end. It is its own `Services`."""

    state = "simulated"
    settlers: Sequence[Settler] = ()

    def __init__(self, world: World, number: int, program: Program) -> None:
        super().__init__(world, number)
        self.program = program
        code = program.code(world.commit, world.pending)
        self.topology, self._plan = code.topology, code.plan
        self.targets = [
            replace(target, database=world.store_at(target.database.display_url, self))
            for target in code.targets
        ]
        self.pieces = SeededWorkers(self)
        self.workers: Workers = self.pieces
        self.is_started = False
        self.loop: EventLoop | None = None
        self._product: product.Driver[EventLoop] | None = None
        self._attempts: list[TransactionAttempt] = []

    def __str__(self) -> str:
        return f"driver {self.number}"

    def step(self) -> None:
        """Do one thing. A driver that crashes, or is fenced, is dead afterwards."""
        try:
            if self.loop is None:
                self._start()
            else:
                self._step(self.loop)
                if self.loop.failure is not None:
                    raise self.loop.failure
        except CrashError:
            self._end("crashes")
        except FencedError as error:
            if self.store.read_epoch() <= self.store.claimed:
                raise UnexplainedError(f"{self} was fenced, though nobody came after it") from error
            self._end(f"is fenced: {error}")

    def _start(self) -> None:
        self.world.note(f"{self} starts")
        tier = BatchTier(
            self.topology,
            listener=self._reached,
            watcher=self,
            plan=self._plan,
            committer=self.program.committer,
        )
        driver = self._product = product.Driver(self, tier, self.settlers)
        try:
            loop = driver.start()
        except ServiceUnavailableError as error:
            self._end(f"cannot start: {error}")
            return
        assert loop is not None
        assert driver.taken is not None
        self._lead(driver.taken)
        self.loop = loop
        self.is_started = True
        loop.begin()
        loop.coordinator.check()

    def _lead(self, taken: Takeover) -> None:
        progress, replays = taken.resume.progress, set(taken.resume.replays)
        self.world.note(f"{self} has epoch {taken.epoch}, current {progress.current}, replays {replays}")

    def _step(self, loop: EventLoop) -> None:
        if self._attempts and self.world.happens("stale message"):
            self._send_stale_message(loop)
        else:
            self.pieces.step(loop)

    def _send_stale_message(self, loop: EventLoop) -> None:
        """Send a fail and an ack of an attempt, unless it is the active one."""
        attempt, coordinator = self.world.chances.pick(self._attempts), loop.coordinator
        if not loop.is_active(attempt):
            loop.carry_out(coordinator.fail(attempt))
            loop.carry_out(coordinator.ack(attempt))
            coordinator.check()

    def pass_point(self, where: str, whose: object = "") -> None:
        if not self.world.has_faults:
            return
        super().pass_point(where, whose)
        if self.loop is not None and self.world.happens("meanwhile"):
            self.pieces.step(self.loop, meanwhile=True)

    def take_apart(self) -> None:
        """See `World.take_apart`."""
        waiting = None if self._product is None else self._product.waiting
        tier = None if self._product is None else self._product.tier
        for part in (waiting, tier, self._product, self.loop, self.pieces, self):
            if part is not None:
                vars(part).clear()

    # --- `Watcher` ------------------------------------------------------------------------------------

    def emitting(self, emit: EmitBatch[Any]) -> None:
        self._attempts.append(emit.attempt)

    def committed(self, attempt: TransactionAttempt) -> None:
        self.world.committed(self, attempt)

    def failed(self, attempt: TransactionAttempt, error: BaseException) -> None:
        self.world.note(f"{self}: {attempt} fails: {error}")

    def _reached(self, point: Point, txid: Txid, open_batches: dict[Txid, str]) -> None:
        self.pass_point(point.value, txid)

    # --- `Services` -----------------------------------------------------------------------------------

    def __enter__(self) -> Services:
        return self

    def __exit__(self, *raised: object) -> None:
        """Close nothing: nothing is open."""

    def connect(self) -> Sequence[StateTarget]:
        return self.targets

    def asked_before(self) -> Requests:
        return self.store.read_requests()

    def lead(self, codec: MetaCodec[Any], plan: ExecutionPlan) -> Progress:
        return self.store

    def context(self) -> SpoutContext:
        return self.program.context

    def open_source(self, context: SpoutContext) -> LogCoordinator:
        return LogCoordinator(self)

    def start_engine(self) -> Callable[[ExecutionPlan], BatchRunner]:
        return lambda plan: Runner(self, plan)

    def locked(self, error: FenceLockedError) -> None:
        self.pass_point("waiting for a lock")
        if self.world.happens("gives up"):
            raise error

    def keep(self, runner: BatchRunner) -> BatchRunner:
        return runner

    def beside(self, loop: object) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()
