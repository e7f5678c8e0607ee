"""What stands for Spark: tasks that write a batch, and know nothing of what became of their driver.

A task that a driver has started may run at once, later, twice, after another one has taken its place, after
its attempt was given up, after its driver died, and in any order with the others. Nobody ever stops one. It
writes a share of the driver's deltas, or reads and writes the state of a bolt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from simulation.log import Held
from txstream.api.errors import (
    BatchFailedError,
    PartitionUnavailableError,
    ServiceUnavailableError,
    StaleAttemptError,
)
from txstream.api.groupings import task_of
from txstream.digests import TableDigest
from txstream.engine.batch.plan import ExecutionPlan
from txstream.engine.batch.runner import NOTHING, BatchResult
from txstream.engine.commit.open_databases import StorePlace
from txstream.engine.commit.shares import StateWrite, cut
from txstream.engine.commit.state_tasks import TaskStates
from txstream.metas import BatchMetas
from txstream.state import StateBackend
from txstream.transaction import TransactionAttempt

if TYPE_CHECKING:
    from simulation.driver import Driver
    from simulation.world import World

_MOST_SHARES = 3
_MOST_TRIES = 4


@dataclass(eq=False)
class Task:
    """One that writes in one transaction. `is_done`: somebody has been told that it was written."""

    what: str
    write: Callable[[], Any]
    is_done: bool = False
    answer: Any = None

    def __str__(self) -> str:
        return self.what


@dataclass
class Process:
    """A worker process, as `TaskStates` uses it: it may sleep, and knows no epoch that could end it."""

    world: World
    plan: Any = None
    host: str = "a host"
    state_caches: dict[Any, Any] = field(default_factory=dict)
    left_open: list[Any] = field(default_factory=list)

    @property
    def stores(self) -> Process:
        return self

    def get(self, place: StorePlace, _topology: str) -> StateBackend:
        return self.world.store_at(place.url, self)

    def pass_point(self, where: str) -> None:
        if self.world.happens("freeze"):
            self.world.note(f"a task falls asleep {where}")
            self.world.go_on()


class Tasks:
    """All tasks that may still run, whoever started them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._tasks: list[Task] = []

    def add(self, what: str, write: Callable[[], Any]) -> Task:
        self._tasks.append(task := Task(what, write))
        return task

    def run_one(self) -> None:
        """Any task runs; its answer goes nowhere, unless its driver still waits."""
        if not self._tasks:
            return
        task = self._world.random.choice(self._tasks)
        try:
            self.run(task)
        except StaleAttemptError:
            self._drop(task)
            self._world.note(f"{task} is refused")
        except ServiceUnavailableError as error:
            self._world.note(f"{task} fails: {error}")

    def run_all(self) -> None:
        """What is left of the past runs at last."""
        while self._tasks:
            self.run_one()

    def run(self, task: Task) -> None:
        task.answer = task.write()
        self._world.note(f"the {task} is written{', again' if task.is_done else ''}")
        if task.is_done or not self._world.happens("task again"):
            self._drop(task)
        task.is_done = True

    def _drop(self, task: Task) -> None:
        if task in self._tasks:  # nobody else has done so while it slept
            self._tasks.remove(task)


class Runner:
    """`BatchRunner` of one driver: batches are read from the log, and tasks write what they hold."""

    def __init__(self, driver: Driver, plan: ExecutionPlan) -> None:
        self.slots: Mapping[str, int] = {}
        self._driver = driver
        self._world = driver.world
        # Two, so that a task may find what an attempt before the last one has left.
        self._processes = [Process(driver.world, plan) for _ in range(2)]
        self._bindings = plan.bindings

    def run(self, attempt: TransactionAttempt, metas: BatchMetas[Any]) -> BatchResult:
        driver, world = self._driver, self._world
        driver.pass_point(f"before {attempt} is processed")
        lost = world.log.lost & set(metas.partitions)
        if lost:
            raise PartitionUnavailableError(f"{attempt}: {sorted(lost)} cannot be read")
        if world.happens("batch fails"):
            raise BatchFailedError(f"{attempt} fails")
        held = world.log.hold(metas)
        tables = (declared for declared in driver.release.tables if not declared.by_bolt)
        deltas = {declared.table: [declared.deltas(held)] for declared in tables}
        return replace(NOTHING, deltas=deltas, kept=held)

    def commit(
        self, attempt: TransactionAttempt, processed: BatchResult, committed: TransactionAttempt | None = None
    ) -> BatchResult:
        """Bolts of the commit phase count in states of their own."""
        started: list[tuple[str, Task]] = []
        for component in self._bindings:
            count = self._driver.topology.component(component).tasks
            for at in range(count):
                mine = {key: n for key, n in processed.kept.items() if task_of([key], count) == at}
                process = self._world.random.choice(self._processes)
                work = partial(_run_bolt, component, at, count, attempt, process, committed, mine)
                if mine:
                    what = f"share of {sorted(mine)} of {attempt} for {component}"
                    started.append((component, self._world.tasks.add(what, work)))
        self._wait_for(attempt, [task for _, task in started])
        written: dict[tuple[str, str], TableDigest] = {}
        for component, task in started:
            if task.is_done:
                written[component, "kept"] = written.get((component, "kept"), TableDigest()) + task.answer
        return replace(NOTHING, written_by=written)

    def write(self, attempt: TransactionAttempt, writes: Sequence[StateWrite]) -> list[int]:
        process, tasks = self._processes[0], []
        for write in writes:
            slots = {table.component: self._world.random.randint(1, _MOST_SHARES) for table in write.tables}
            for share in cut(write, slots):
                store = process.get(share.place, share.life.topology)
                states = store.of(share.life.topology, share.life.uuid, share.life.semantics)
                tables = [(table.spec, table.deltas) for table in share.tables]
                what = f"share of {share.rows} of {attempt} for {store.url_for_people}"
                tasks.append(self._world.tasks.add(what, partial(states.write, attempt, tables)))
        self._wait_for(attempt, tasks)
        return [write.rows for write in writes]

    def release(self, processed: BatchResult) -> None:
        """Nothing is kept."""

    def cancel(self, attempt: TransactionAttempt) -> None:
        """Nobody ever stops a task."""

    def close(self) -> None:
        """Nothing is open."""

    def _wait_for(self, attempt: TransactionAttempt, tasks: Sequence[Task]) -> None:
        """Let these tasks run, until all are done or it is given up."""
        world, tries = self._world, 0
        while not world.mutations.are_done(tasks):
            self._driver.pass_point(f"waiting for the tasks of {attempt}")
            if world.happens("late arrives"):
                world.deliver_late()
            if world.happens("tasks given up"):
                raise BatchFailedError(f"{attempt}: its tasks take too long")
            open_tasks = [task for task in tasks if not task.is_done]
            if not open_tasks:
                continue
            try:
                world.tasks.run(world.random.choice(open_tasks))
            except ServiceUnavailableError:
                tries += 1
                if tries == _MOST_TRIES:
                    raise


def _run_bolt(
    component: str,
    task: int,
    tasks: int,
    attempt: TransactionAttempt,
    process: Any,
    committed: TransactionAttempt | None,
    held: Held,
) -> TableDigest:
    spec: Any = SimpleNamespace(id=component, tasks=tasks)
    states = TaskStates(spec, task, attempt, process, committed)
    (state,) = states.states.values()
    is_wide = len(process.plan.bindings[component]["kept"].state.value_names) > 1
    for key, (n, total) in held.items():
        state.update(key, _plus(n, total) if is_wide else _plus_one(n))
    return states.flush()["kept"]


def _plus(n: int, total: int) -> Callable[[Any], Any]:
    return lambda old: (n, total) if old is None else (old[0] + n, old[1] + total)


def _plus_one(n: int) -> Callable[[Any], Any]:
    return lambda old: n if old is None else old + n
