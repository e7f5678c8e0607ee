"""Tasks that write a batch, as Spark runs them: they know nothing of what became of their driver.

A task that a driver has started may run at once, later, twice, after another one has taken its place, after
its attempt was given up, after its driver died, and in any order with the others. Nobody ever stops one. It
writes a share of the driver's deltas, or reads and writes the state of a bolt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from simulation.log import Held
from txstream.api.errors import BatchFailedError, ServiceUnavailableError, StaleAttemptError
from txstream.api.groupings import task_of
from txstream.engine.commit.bindings import Bindings, map_bindings
from txstream.engine.commit.open_databases import StorePlace
from txstream.engine.commit.shares import StateWrite, cut
from txstream.engine.commit.state_tasks import TaskStates
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
    """All tasks that may still run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._tasks: list[Task] = []

    def write(self, driver: Driver, attempt: TransactionAttempt, writes: Sequence[StateWrite]) -> list[int]:
        """`BatchRunner.write`: returns when every share was written; the rows of each write."""
        process, tasks = Process(self._world), []
        for write in writes:
            slots = {table.component: self._world.random.randint(1, _MOST_SHARES) for table in write.tables}
            for share in cut(write, slots):
                store = process.get(share.place, share.life.topology)
                states = store.of(share.life.topology, share.life.uuid, share.life.semantics)
                tables = [(table.spec, table.deltas) for table in share.tables]
                what = f"share of {share.rows} of {attempt} for {store.url_for_people}"
                tasks.append(self._add(what, partial(states.write, attempt, tables)))
        self._wait_for(driver, attempt, tasks)
        return [write.rows for write in writes]

    def run_bolts(self, driver: Driver, attempt: TransactionAttempt, held: Held) -> None:
        """`BatchRunner.commit`: bolts of the commit phase count in states of their own."""
        tasks = []
        for component in driver.bindings:
            count = driver.topology.component(component).tasks
            for at in range(count):
                mine = {key: counts for key, counts in held.items() if task_of([key], count) == at}
                process = self._world.random.choice(driver.processes)
                work = partial(_run_bolt, component, at, count, attempt, process, driver.committed, mine)
                if mine:
                    tasks.append(self._add(f"share of {sorted(mine)} of {attempt} for {component}", work))
        self._wait_for(driver, attempt, tasks)

    def run_one(self) -> None:
        """Any task runs, whoever started it; its answer goes nowhere, unless its driver still waits."""
        if not self._tasks:
            return
        task = self._world.random.choice(self._tasks)
        try:
            self._run(task)
        except StaleAttemptError:
            self._drop(task)
            self._world.note(f"{task} is refused")
        except ServiceUnavailableError as error:
            self._world.note(f"{task} fails: {error}")

    def run_all(self) -> None:
        """What is left of the past runs at last."""
        while self._tasks:
            self.run_one()

    def _add(self, what: str, write: Callable[[], Any]) -> Task:
        self._tasks.append(task := Task(what, write))
        return task

    def _drop(self, task: Task) -> None:
        if task in self._tasks:  # nobody else has done so while it slept
            self._tasks.remove(task)

    def _wait_for(self, driver: Driver, attempt: TransactionAttempt, tasks: Sequence[Task]) -> None:
        """Let tasks of a living driver run, until all are done or the driver gives up."""
        world, tries = self._world, 0
        while not world.mutations.are_done(tasks):
            driver.pass_point(f"waiting for the tasks of {attempt}")
            if world.happens("tasks given up"):
                raise BatchFailedError(f"{attempt}: its tasks take too long")
            open_tasks = [task for task in tasks if not task.is_done]
            if not open_tasks:
                continue
            try:
                self._run(world.random.choice(open_tasks))
            except ServiceUnavailableError:
                tries += 1
                if tries == _MOST_TRIES:
                    raise

    def _run(self, task: Task) -> None:
        task.write()
        self._world.note(f"the {task} is written{', again' if task.is_done else ''}")
        if task.is_done or not self._world.happens("task again"):
            self._drop(task)
        task.is_done = True


def processes_of(driver: Driver) -> list[Process]:
    """Two, so that a task may find what an attempt before the last one has left."""
    plan = SimpleNamespace(bindings=driver.bindings)
    return [Process(driver.world, plan) for _ in range(2)]


def bindings_of(driver: Driver) -> Bindings:
    return map_bindings(driver.topology, driver.uuid, driver.targets)


def _run_bolt(
    component: str,
    task: int,
    tasks: int,
    attempt: TransactionAttempt,
    process: Any,
    committed: TransactionAttempt | None,
    held: Mapping[str, tuple[int, int]],
) -> None:
    spec: Any = SimpleNamespace(id=component, tasks=tasks)
    states = TaskStates(spec, task, attempt, process, committed)
    (state,) = states.states.values()
    is_wide = len(process.plan.bindings[component]["kept"].state.value_names) > 1
    for key, (n, total) in held.items():
        state.update(key, _plus(n, total) if is_wide else _plus_one(n))
    states.flush()


def _plus(n: int, total: int) -> Callable[[Any], Any]:
    return lambda old: (n, total) if old is None else (old[0] + n, old[1] + total)


def _plus_one(n: int) -> Callable[[Any], Any]:
    return lambda old: n if old is None else old + n
