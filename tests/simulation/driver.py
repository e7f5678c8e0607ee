"""One driver of the simulation: the real recovery, coordinator, progress store and committer, no threads.

What the event loop's pools would do is done step by step: a step carries out one command, or hands one
answer to the coordinator. So every order of answers that pools could give can come up, and a driver can be
left alone between any two steps and inside any write.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from support.inmemory import Range

from simulation.log import Held
from simulation.releases import Release
from simulation.tasks import bindings_of, processes_of
from txstream.api.errors import (
    BatchFailedError,
    FencedError,
    ServiceUnavailableError,
    StaleAttemptError,
)
from txstream.api.spouts import Unavailable
from txstream.coordinator import (
    Advance,
    Cancel,
    Command,
    EmitBatch,
    EmitCommit,
    Persist,
    Plan,
)
from txstream.engine.batch.runner import BatchResult
from txstream.engine.commit.committer import Committer, ProcessedBatch
from txstream.engine.start import takeover
from txstream.engine.start.takeover import Takeover
from txstream.metas import BatchMetas
from txstream.state import FenceLockedError
from txstream.transaction import Epoch, TransactionAttempt
from txstream.zookeeper import LostAnswerError, MemoryProgress

if TYPE_CHECKING:
    from simulation.world import World

NOW = datetime(2024, 5, 1, tzinfo=UTC)


class CrashError(BaseException):
    """The driver's process is gone. Not an Exception: nothing of the driver may catch it."""


class UnexplainedError(AssertionError):
    """A driver met an error that nothing in its world explains."""


class Progress(MemoryProgress):
    """The real progress store over the shared tree; remembers the epoch it claimed."""

    claimed = Epoch(0)

    def claim_epoch(self, at_least: Epoch) -> Epoch:
        self.claimed = super().claim_epoch(at_least)
        return self.claimed


class Actor:
    """A process that writes to ZooKeeper and databases, and may die or sleep between any two writes."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.is_alive = True
        self.is_frozen = False
        self.store = Progress(world.tree, "t", world.codec, hook=self._hook)

    def _end(self, how: str) -> None:
        self.world.note(f"{self} {how}")
        self.is_alive = False

    def pass_point(self, where: str) -> None:
        """Between two external reads or writes: the process may die here, or sleep while others go on."""
        world = self.world
        if world.happens("crash"):
            world.note(f"{self} is about to crash: {where}")
            raise CrashError
        if world.happens("freeze"):
            world.freeze(self, where)

    def _hook(self, when: str, write: str) -> None:
        """Around each write to ZooKeeper."""
        self.pass_point(f"{when} {write}")
        if self.world.happens("answer lost"):
            self.world.note(f"{self}: the answer to {write} is lost, {when} it was applied")
            raise LostAnswerError(f"{write} was not answered")
        if when == "before" and self.world.happens("write late"):
            self.world.note(f"{self}: {write} is late")
            self.world.tree.delay_next_write()


class Driver(Actor):
    """One driver's turn, from its election to its end."""

    def __init__(self, world: World, number: int, release: Release) -> None:
        super().__init__(world, number)
        self.release = release
        code = release.code(world.semantics, world.states, world.commit, world.pending)
        self.topology = code.topology
        self.targets = [
            replace(target, database=world.store_at(target.database.url_for_people, self))
            for target in code.targets
        ]
        self.is_started = False
        self.committed: TransactionAttempt | None = None
        self._commands: list[Command[Range]] = []
        self._answers: list[Callable[[], list[Command[Range]]]] = []
        self._attempts: list[TransactionAttempt] = []
        self._processed: dict[TransactionAttempt, Held] = {}

    def __str__(self) -> str:
        return f"driver {self.number}"

    def step(self) -> None:
        """Do one thing. A driver that crashes, or is fenced, is dead afterwards."""
        try:
            if self.is_started:
                self._step()
            else:
                self._start()
        except CrashError:
            self._end("crashes")
        except FencedError as error:
            if self.store.read_epoch() <= self.store.claimed:
                raise UnexplainedError(f"{self} was fenced, though nobody came after it") from error
            self._end(f"is fenced: {error}")

    def _wait_for(self, what: str, check: Callable[[], None]) -> None:
        for _ in range(1000):
            try:
                return check()
            except ServiceUnavailableError:
                self.pass_point(f"waiting for {what}")
        raise UnexplainedError(f"{what} never came back")

    # --- one turn -------------------------------------------------------------------------------------

    def _start(self) -> None:
        self.world.note(f"{self} starts")
        try:
            taken = takeover.take_up(
                self.topology, self.store, self.targets, self.world.codec, locked=self.locked
            )
        except ServiceUnavailableError as error:
            self._end(f"cannot start: {error}")
        else:
            self._lead(taken)

    def locked(self, error: FenceLockedError) -> None:
        self.pass_point("waiting for a lock")
        if self.world.random.random() < 0.3:
            raise error

    def _lead(self, taken: Takeover) -> None:
        progress, replays = taken.resume.progress, set(taken.resume.replays)
        self.world.note(f"{self} has epoch {taken.epoch}, current {progress.current}, replays {replays}")
        self.uuid = taken.identity.uuid
        self.coordinator = taken.coordinator
        self.bindings = bindings_of(self)
        self.processes = processes_of(self)
        self._committer = Committer(self.topology, self.uuid, self.targets, wait_for=self._wait_for)
        self.is_started = True
        self._take(self.coordinator.sync())

    def _take(self, commands: list[Command[Range]]) -> None:
        for command in commands:
            if isinstance(command, EmitBatch):
                self._attempts.append(command.attempt)
            if not isinstance(command, Cancel):
                self._commands.append(command)

    def _step(self) -> None:
        world = self.world
        if self._attempts and world.happens("stale message"):
            self._send_stale_message()
        elif self._answers and world.random.random() < 0.5:
            self._take(self._answers.pop(world.random.randrange(len(self._answers)))())
        else:
            command = self._pick_command()
            if command is not None:
                self._carry_out(command)
            elif self._answers:
                self._take(self._answers.pop(0)())
            else:
                self._take(self.coordinator.wake())

    def _pick_command(self) -> Command[Range] | None:
        """Any batch, but plans, writes to ZooKeeper and commits each in the order they were asked for."""
        seen: set[str] = set()
        candidates: list[Command[Range]] = []
        for command in self._commands:
            if isinstance(command, EmitBatch):
                if self._can_start(command):
                    candidates.append(command)
                continue
            kind = {Plan: "plan", EmitCommit: "commit"}.get(type(command), "write")
            if kind not in seen:
                seen.add(kind)
                candidates.append(command)
        if not candidates:
            return None
        command = self.world.random.choice(candidates)
        self._commands.remove(command)
        return command

    def _can_start(self, emit: EmitBatch[Range]) -> bool:
        return not (emit.stored and self.world.log.lost & set(emit.metas.partitions))

    def _carry_out(self, command: Command[Range]) -> None:
        match command:
            case Plan():
                self._plan(command)
            case Persist(txid, metas):
                stored = self.store.persist(txid, metas)
                self._answers.append(lambda: self.coordinator.persisted(txid, stored))
            case EmitBatch():
                self._process(command)
            case EmitCommit():
                self._commit(command)
            case Advance(txid, attempt, metas, store):
                self.store.advance(txid, attempt, metas if store else None)
                self.committed = TransactionAttempt(txid, attempt)
                self.world.note(f"{self} has advanced {txid}")
                self._answers.append(lambda: self.coordinator.advanced(txid))

    def _plan(self, plan: Plan[Range]) -> None:
        metas = BatchMetas.from_plan(plan.last, self._next_ranges(plan))
        self.world.note(f"{self} plans {plan.txid}", metas)
        if metas.has_work or plan.replay:
            self._answers.append(lambda: self.coordinator.planned(plan.ticket, metas))
        else:
            self._answers.append(lambda: self.coordinator.nothing_to_plan(plan.ticket))

    def _next_ranges(self, plan: Plan[Range]) -> dict[str, Range | Unavailable]:
        log, random = self.world.log, self.world.random
        ranges: dict[str, Range | Unavailable] = {}
        for partition, keys in log.partitions.items():
            start = plan.last[partition].end if partition in plan.last else 0
            if partition in log.lost:
                ranges[partition] = Unavailable("lost")
            elif start < len(keys):
                ranges[partition] = Range(start, min(len(keys), start + random.randint(1, 4)))
        return ranges

    def _process(self, emit: EmitBatch[Range]) -> None:
        attempt = emit.attempt
        if self.world.log.lost & set(emit.metas.partitions) or self.world.happens("batch fails"):
            self.world.note(f"{self}: {attempt} fails")
            self._answers.append(lambda: self.coordinator.fail(attempt))
        else:
            self._processed[attempt] = self.world.log.hold(emit.metas)
            self._answers.append(lambda: self.coordinator.ack(attempt))

    def _commit(self, emit: EmitCommit[Range]) -> None:
        attempt, metas = emit.attempt, self.world.codec.encode(emit.metas)
        batch = ProcessedBatch(BatchResult({}, 0, 0.0, 0.0, 0.0), NOW, NOW, None)
        held = self._processed.pop(attempt)
        tasks = self.world.tasks

        def reached(point: str) -> None:
            self.pass_point(f"{point} of {attempt}")

        try:
            begun = self._committer.begin(attempt, metas, batch, reached)
            # What bolts of the commit phase write themselves, between the beginning and the end.
            tasks.run_bolts(self, attempt, held)
            self._committer.commit(
                attempt,
                metas,
                batch,
                {d.table: d.deltas(held) for d in self.release.tables if not d.by_bolt},
                reached,
                write=lambda attempt, writes: tasks.write(self, attempt, writes),
                begun=begun,
            )
        except StaleAttemptError as error:
            self.store.verify()
            raise UnexplainedError(f"{self}: {attempt} is stale, though the epoch is its own") from error
        except (BatchFailedError, ServiceUnavailableError) as error:
            self.world.note(f"{self}: {error}")
            self._answers.append(lambda: self.coordinator.fail(attempt))
        else:
            self.world.note(f"{self} has committed {attempt}")
            self._answers.append(lambda: self.coordinator.ack(attempt))

    def _send_stale_message(self) -> None:
        """An ack or a fail of an attempt that is no longer the active one."""
        attempt = self.world.random.choice(self._attempts)
        active = self.coordinator.active.get(attempt.txid)
        if active is None or active.attempt != attempt:
            self._take(self.coordinator.fail(attempt))
            self._take(self.coordinator.ack(attempt))
