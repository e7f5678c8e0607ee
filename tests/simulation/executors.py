"""Tasks that write shares of a batch, as Spark runs them: they know nothing of what became of their driver.

A task that the driver has started may run at once, later, twice, after another one has taken its place, after
its attempt was given up, after its driver died, and in any order with the others. What it writes is one
transaction; its answer may get lost. Nobody ever stops one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simulation.model import Database, Deltas
from txstream.api.errors import BatchFailedError, ServiceUnavailableError, StaleAttemptError
from txstream.engine.commit.shares import StateWrite
from txstream.state import AnswerLostError
from txstream.transaction import TransactionAttempt

if TYPE_CHECKING:
    from simulation.driver import Driver
    from simulation.world import World

_MOST_SHARES = 3
_MOST_TRIES = 4


class Counts(dict[str, int]):
    """A batch's deltas, as far as the committer looks at them."""

    @property
    def num_rows(self) -> int:
        return len(self)


@dataclass(eq=False)
class Task:
    """One share. `is_done`: somebody has been told that it was written."""

    attempt: TransactionAttempt
    database: Database
    deltas: Deltas
    is_done: bool = False

    def __str__(self) -> str:
        return f"share {dict(self.deltas)} of {self.attempt} for {self.database.name}"


class Executors:
    """All tasks that may still run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._tasks: list[Task] = []

    def write(self, driver: Driver, attempt: TransactionAttempt, writes: Sequence[StateWrite]) -> list[int]:
        """`BatchRunner.write`: returns when every share was written; the rows of each write."""
        tasks: list[Task] = []
        for write in writes:
            deltas: Any = write.tables[0].deltas
            tasks += self.start(attempt, self._world.database(write.place.url), deltas)
        self.wait_for(driver, attempt, tasks)
        return [len(write.tables[0].deltas) for write in writes]

    def start(self, attempt: TransactionAttempt, database: Database, deltas: Deltas) -> list[Task]:
        """Cut deltas into shares, no key in two of them, each a task's."""
        random = self._world.random
        shares: list[dict[str, int]] = [{} for _ in range(random.randint(1, _MOST_SHARES))]
        for key, delta in deltas.items():
            random.choice(shares)[key] = delta
        tasks = [Task(attempt, database, share) for share in shares if share]
        self._tasks += tasks
        return tasks

    def wait_for(self, driver: Driver, attempt: TransactionAttempt, tasks: Sequence[Task]) -> None:
        """Let tasks of a living driver run, until all are done or the driver gives up."""
        world = self._world
        tries = 0
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

    def run_one(self) -> None:
        """Any task runs, whoever started it; its answer goes nowhere, unless its driver still waits."""
        if not self._tasks:
            return
        task = self._world.random.choice(self._tasks)
        try:
            self._run(task, alone=True)
        except StaleAttemptError:
            if task in self._tasks:  # nobody else has been told so while it slept
                self._tasks.remove(task)
            self._world.note(f"{task.database.name} refuses {task}")
        except ServiceUnavailableError as error:
            self._world.note(f"{task} fails: {error}")

    def run_all(self) -> None:
        """What is left of the past runs at last."""
        while self._tasks:
            self.run_one()

    def _run(self, task: Task, *, alone: bool = False) -> None:
        world = self._world
        if world.happens("database away"):
            raise ServiceUnavailableError(f"{task.database.name} is away")
        world.mutations.write(world, task, alone=alone)
        world.note(f"{task.database.name} has {task}{', again' if task.is_done else ''}")
        if world.happens("answer lost"):
            raise AnswerLostError(f"{task.database.name} did not answer")
        if (task.is_done or not world.happens("task again")) and task in self._tasks:
            self._tasks.remove(task)
        task.is_done = True
