"""One driver of the simulation: the real recovery, coordinator, progress store and committer, no threads.

What the event loop's pools would do is done step by step: a step carries out one command, or hands one
answer to the coordinator. So every order of answers that pools could give can come up, and a driver can be
left alone between any two steps and inside any write.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from support.inmemory import Range

from simulation.executors import Counts, Task
from simulation.model import NOW, UUID, Database
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
from txstream.engine.commit.committer import Committer, ProcessedBatch, StateTarget
from txstream.engine.commit.open_databases import StorePlace
from txstream.engine.start.recovery import Resume
from txstream.metas import BatchMetas
from txstream.semantics import Semantics
from txstream.state import AnswerLostError, BatchRecord, Commit, FenceRow, TableSpec, TopologyLife
from txstream.transaction import AttemptId, AttemptSequence, Epoch, TransactionAttempt
from txstream.zookeeper import LostAnswerError, MemoryProgress

if TYPE_CHECKING:
    from simulation.world import World


class CrashError(BaseException):
    """The driver's process is gone. Not an Exception: nothing of the driver may catch it."""


class UnexplainedError(AssertionError):
    """A driver met an error that nothing in its world explains."""


class DatabaseView:
    """A database, and the topology bound to it, as one driver sees it: every call may crash, be
    interrupted, lose its answer."""

    def __init__(self, database: Database, driver: Driver) -> None:
        self.database = database
        self.url_for_people = database.name
        self.on_executors = database.on_executors
        self.life = TopologyLife("t", UUID, driver.world.semantics)
        self._driver = driver
        self._world = driver.world

    @property
    def store(self) -> DatabaseView:
        return self

    def of(self, topology: str, uuid: str, semantics: Semantics, tables: Sequence[TableSpec]) -> DatabaseView:
        return self

    def read_fence(self) -> FenceRow | None:
        self._driver.pass_point(f"read the fence of {self.database.name}")
        return FenceRow("t", UUID, self.database.fence)

    def raise_fence(self, attempt: AttemptId) -> None:
        self._driver.pass_point(f"raise the fence of {self.database.name}")
        self._world.mutations.raise_fence(self.database, attempt)
        self._driver.pass_point(f"raised the fence of {self.database.name}")

    def last_batch(self) -> BatchRecord | None:
        self._driver.pass_point(f"read the ledger of {self.database.name}")
        return self.database.last_batch()

    def commit(self, commit: Commit, *, reached: Any) -> None:
        what = f"{commit.attempt}: {dict(commit.deltas['words'])}"
        late = functools.partial(self.database.commit, commit)
        with self._call(f"commit {commit.attempt} to", what, late):
            self.database.commit(commit)
            self._world.note(f"{self.database.name} has committed {what}")

    def begin_commit(self, commit: Commit, *, reached: Any) -> None:
        database, what = self.database, f"the beginning of {commit.attempt}"
        late = functools.partial(database.begin_commit_at_once, commit)
        try:
            with self._call(f"begin {commit.attempt} in", what, late):
                if self._world.random.random() < 0.5:
                    database.begin_commit_at_once(commit)
                else:
                    for step in database.begin_commit(commit):
                        self._driver.pass_point(f"{step} of {what} in {database.name}")
                self._world.note(f"{database.name} has begun {commit.attempt}")
        except AnswerLostError:
            self._world.mutations.begin_answer_lost()

    def end_commit(self, commit: Commit, *, keys: int, reached: Any) -> None:
        if self._world.mutations.skips_the_end(self.database):
            return
        what = f"the end of {commit.attempt}"
        late = functools.partial(self.database.end_commit, commit)
        with self._call(f"end {commit.attempt} in", what, late):
            self.database.end_commit(commit)
            self._world.note(f"{self.database.name} has ended {commit.attempt}")

    @contextlib.contextmanager
    def _call(self, doing: str, what: str, late: Callable[[], None]) -> Iterator[None]:
        """Around one call to the server: it may be lost before, be applied later, or lose its answer."""
        world, name = self._world, self.database.name
        self._driver.pass_point(f"{doing} {name}")
        if world.happens("database away"):
            raise ServiceUnavailableError(f"{name} is away")
        if world.happens("commit late"):
            world.note(f"{what} is late at {name}")
            world.late_calls.append((name, what, late))
            raise AnswerLostError(f"{name} did not answer")
        yield
        self._driver.pass_point(f"did {doing} {name}")
        if world.happens("answer lost"):
            raise AnswerLostError(f"{name} did not answer")

    def check(self) -> None:
        if self._world.happens("database away"):
            raise ServiceUnavailableError(f"{self.database.name} is away")

    def outcome(self, attempt: TransactionAttempt) -> bool:
        self._driver.pass_point(f"ask {self.database.name} for {attempt}")
        return self._world.mutations.outcome(self.database, attempt)


class Store(MemoryProgress):
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
        self.store = Store(world.tree, "t", world.codec, hook=self._hook)

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

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        self.is_started = False
        self.has_nothing_to_plan = False
        self.committed: TransactionAttempt | None = None
        self._commands: list[Command[Range]] = []
        self._answers: list[Callable[[], list[Command[Range]]]] = []
        self._attempts: list[TransactionAttempt] = []
        self._processed: dict[TransactionAttempt, Any] = {}
        self._open()

    def _open(self) -> None:
        world = self.world
        self._views = [DatabaseView(database, self) for database in world.databases]
        (bolt, semantics), *_ = world.topology.states
        table = TableSpec(bolt.state, semantics, bolt.reducers)
        self._component = world.topology.bolts[-1].id
        self._targets = [
            StateTarget(
                view,  # type: ignore[arg-type]  # a model of one
                (table,),
                (self._component,),
                StorePlace(view.database.name, 1.0, 1.0),
                frozenset({"words"} if view.database.written_by_bolts else ()),
            )
            for view in self._views
        ]
        self._committer = Committer(world.topology, UUID, self._targets, wait_for=self._wait_for)

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
        world = self.world
        world.note(f"{self} starts")
        epoch = world.mutations.take_over(self.store, self._views)
        resume: Resume = world.mutations.recover("t", world.semantics, self.store, self._views, world.codec)
        progress = resume.progress
        world.note(f"{self} has epoch {epoch}, current {progress.current}, replays {set(resume.replays)}")
        self.coordinator = world.mutations.coordinator(
            world.semantics,
            current=progress.current,
            stored={txid: batch.metas for txid, batch in progress.batches.items()},
            next_attempt=AttemptSequence(epoch).next,
            max_spout_pending=world.random.randint(1, 3),
            replays=resume.replays,
        )
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
        self.has_nothing_to_plan = not metas.has_work
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
            self._processed[attempt] = self.world.log.fold(emit.metas)
            self._answers.append(lambda: self.coordinator.ack(attempt))

    def _commit(self, emit: EmitCommit[Range]) -> None:
        attempt, metas = emit.attempt, self.world.codec.encode(emit.metas)
        batch = ProcessedBatch(BatchResult({}, 0, 0.0, 0.0, 0.0), NOW, NOW, None)
        merged = self._deltas_of(self._processed.pop(attempt))
        executors = self.world.executors
        try:
            begun = self._committer.begin(attempt, metas, batch, lambda point: None)
            # What bolts of the commit phase write themselves, between the beginning and the end.
            executors.wait_for(self, attempt, self._start_bolts(attempt, begun, merged))
            self._committer.commit(
                attempt,
                metas,
                batch,
                merged,
                lambda point: self.pass_point(f"{point} of {attempt}"),
                write=lambda attempt, writes: executors.write(self, attempt, writes),
                begun=begun,
            )
        except StaleAttemptError as error:
            self.store.verify()
            raise UnexplainedError(f"{self}: {attempt} is stale, though the epoch is its own") from error
        except (BatchFailedError, ServiceUnavailableError) as error:
            self.world.note(f"{self}: {error}")
            self._answers.append(lambda: self.coordinator.fail(attempt))
        else:
            self._answers.append(lambda: self.coordinator.ack(attempt))

    def _deltas_of(self, held: Any) -> dict[str, Any]:
        """What a batch holds, by component."""
        return {self._component: Counts(held)}

    def _start_bolts(
        self, attempt: TransactionAttempt, begun: Collection[int], merged: Mapping[str, Any]
    ) -> list[Task]:
        executors, deltas = self.world.executors, merged[self._component]
        started = [executors.start(attempt, self.world.databases[at], deltas) for at in sorted(begun)]
        return [task for tasks in started for task in tasks]

    def _send_stale_message(self) -> None:
        """An ack or a fail of an attempt that is no longer the active one."""
        attempt = self.world.random.choice(self._attempts)
        active = self.coordinator.active.get(attempt.txid)
        if active is None or active.attempt != attempt:
            self._take(self.coordinator.fail(attempt))
            self._take(self.coordinator.ack(attempt))
