"""Stands in for Spark: tasks that run bolts and write, and do not know what became of their driver.

A task of the commit phase may run at once, later, twice, after another task has taken its place, after its
attempt was given up or its driver died, and in any order with the others. Nobody ever stops a task. It writes
a share of the driver's deltas, or runs bolts, which may read and write their own states.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from txstream.api.topology import Phase
from txstream.core.batch_metas import BatchMetas, to_json
from txstream.core.errors import (
    BatchFailedError,
    BoltError,
    PartitionUnavailableError,
    ServiceUnavailableError,
    StaleAttemptError,
    StateValueError,
)
from txstream.core.fault_points import CrashError
from txstream.core.transaction import TransactionAttempt
from txstream.engine.batch.execution_plan import ExecutionPlan
from txstream.engine.batch.layout import Layout, Stage
from txstream.engine.batch.messages import ANSWER, PYTHON, Element, WorkOrder
from txstream.engine.batch.record_search import FailingRecord
from txstream.engine.batch.runner_contract import BatchResult
from txstream.engine.batch.shares import StateWrite, cut
from txstream.engine.batch.sought import Sought
from txstream.engine.batch.worker import run_later_stage
from txstream.engine.batch.worker_process import WorkerProcess
from txstream.engine.states.worker_databases import StorePlace
from txstream.plugins.local.local_runner import InProcessRunner
from txstream.plugins.proof.simulation.determinism import NotDeterministicError
from txstream.plugins.proof.simulation.source import LogEmitter
from txstream.state import StateBackend

if TYPE_CHECKING:
    from txstream.plugins.proof.simulation.driver import SimulatedDriver
    from txstream.plugins.proof.simulation.world import World

T = TypeVar("T")

_MOST_SHARES = 3
_MOST_TRIES = 4


@dataclass(eq=False)
class Task:
    """A task that writes. `is_done`: it has run once, and `answer` is the first answer."""

    what: str
    write: Callable[[], Any]
    is_done: bool = False
    answer: Any = None

    def __str__(self) -> str:
        return self.what


class _Stores:
    """The stores of a world for its tasks, which may sleep between two transactions."""

    def __init__(self, world: World) -> None:
        self._world = world

    def get(self, place: StorePlace, _topology: str) -> StateBackend:
        return self._world.store_at(place.url, self)

    def pass_point(self, where: str, whose: object = "") -> None:
        if self._world.happens("freeze"):
            self._world.note(f"a task falls asleep {where} {whose}")
            self._world.go_on()

    def close(self) -> None:
        """Close nothing: nothing is open."""


class Process(WorkerProcess):
    """A worker process over the stores and rows of a world."""

    def __init__(self, world: World, plan: ExecutionPlan) -> None:
        super().__init__(plan)
        self.stores: Any = _Stores(world)
        self._spout = (LogEmitter(world.log.rows), world.codec)


class Tasks:
    """All tasks that may still run, of all drivers."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._tasks: list[Task] = []

    def add(self, what: str, write: Callable[[], Any]) -> Task:
        self._tasks.append(task := Task(what, write))
        return task

    @property
    def are_left(self) -> bool:
        return bool(self._tasks)

    def run_one(self) -> None:
        """Run any task. Its answer is lost unless its driver still waits for it."""
        if not self._tasks:
            return
        task = self._world.chances.pick(self._tasks)
        try:
            self.run(task)
        except StaleAttemptError:
            self._drop(task)
            self._world.note(f"{task} is refused")
        except (ServiceUnavailableError, StateValueError) as error:
            self._world.note(f"{task} fails: {error}")

    def run_all(self) -> None:
        """Run all tasks that are left."""
        while self._tasks:
            self.run_one()

    def run(self, task: Task) -> None:
        answer = task.write()
        if not task.is_done:
            task.answer = answer
        self._world.note(f"the {task} is written{', again' if task.is_done else ''}")
        if task.is_done or not self._world.happens("task again"):
            self._drop(task)
        task.is_done = True

    def _drop(self, task: Task) -> None:
        if task in self._tasks:  # it may have been dropped while it slept
            self._tasks.remove(task)


class _Calls:
    """Calls on this thread. An actor that is to be left behind sleeps in the middle of one."""

    def call(self, attempt: TransactionAttempt, work: Callable[[], T]) -> T:
        return work()

    def give_up(self, attempt: TransactionAttempt) -> list[str]:
        return []

    leave = give_up


class Runner(InProcessRunner):
    """The `BatchRunner` of one driver. What bolts make of a batch before its commit is computed once for all
    histories. The commit phase runs as `Tasks`."""

    def __init__(self, driver: SimulatedDriver, plan: ExecutionPlan) -> None:
        super().__init__(plan, width=driver.world.width)
        self._driver = driver
        self._world = driver.world
        self._calls: Any = _Calls()
        self._computes = False
        self._stores = _Stores(driver.world)
        # Two processes, so that a task may find what an earlier attempt than the last one left. None is a
        # process that has not been used yet.
        self._free: list[Process | None] = [None, None]

    @contextlib.contextmanager
    def _process(self) -> Iterator[WorkerProcess]:
        if not self._free:  # tasks sleep in all of them
            self._free.append(None)
        # A computation that only some histories make must not draw a decision.
        chosen = 0 if self._computes else self._world.chances.below(len(self._free))
        process = self._free.pop(chosen) or Process(self._world, self.plan)
        kept: Process | None = process
        try:
            yield process
        except CrashError:
            kept = None  # what it held is lost
            raise
        finally:
            self._free.insert(chosen if self._computes else len(self._free), kept)

    def run(self, attempt: TransactionAttempt, metas: BatchMetas[Any], spare: int = 0) -> BatchResult:
        world = self._world
        self._driver.pass_point("before a batch is processed", attempt)
        lost = world.log.lost & set(metas.partitions)
        if lost:
            raise PartitionUnavailableError(f"{attempt}: {sorted(lost)} cannot be read")
        if world.happens("batch fails"):
            raise BatchFailedError(f"{attempt} fails")
        results = self._driver.program.results
        key = (
            self._width,
            *((name, taken.start, taken.end) for name, taken in sorted(metas.partitions.items())),
            *((one.partition, one.offset) for one in metas.excluded),
            *(key.place for key in metas.retried),
            to_json(dict(metas.horizons)),
            spare,
        )
        found = results.get(key)
        if found is None:
            self._computes = True
            world.bolt_runs += 1
            try:
                found = self._run(attempt, metas, spare)
                found = results.put(key, found, found.kept.elements)
            except CrashError as error:
                raise BoltError(f"{attempt}: user code has killed its worker process") from error
            except NotDeterministicError as error:
                world.wrong = world.wrong or error  # another attempt cannot mend this
                raise
            finally:
                self._computes = False
        if found.kept.layout.commit:
            order = replace(found.kept.order, attempt=attempt)
            found = replace(found, kept=replace(found.kept, order=order))
        return found

    def find(
        self,
        attempt: TransactionAttempt,
        parts: Sequence[BatchMetas[Any]],
        *,
        most: int,
        seconds: float,
        sought: Sought | None = None,
    ) -> list[FailingRecord]:
        self._driver.pass_point("before records are looked for", attempt)
        lost = self._world.log.lost & {name for part in parts for name in part.partitions}
        if lost:
            raise PartitionUnavailableError(f"{attempt}: {sorted(lost)} cannot be read")
        # Without time, all is left to the trials of the driver.
        seconds = math.inf if self._world.chances.below(3) else 0.0
        self._computes = True
        try:
            return super().find(attempt, parts, most=most, seconds=seconds, sought=sought)
        except CrashError as error:
            raise BoltError(f"{attempt}: user code has killed its worker process") from error
        finally:
            self._computes = False

    def _later_stage(
        self, order: WorkOrder, layout: Layout, stage: Stage, elements: list[Element]
    ) -> list[Element]:
        if stage.phase is not Phase.COMMIT:
            return super()._later_stage(order, layout, stage, elements)
        senders = {PYTHON: layout.stages[stage.position - 1].width}
        bolts = " and ".join(bolt.id for bolt in stage.bolts)
        tasks = [
            self._world.tasks.add(
                f"task {spark_task} of {bolts} of {order.attempt}",
                partial(self._run_task, order, stage, spark_task, messages, senders),
            )
            for spark_task, messages in enumerate(self.exchange(elements, stage.width))
        ]
        self._wait_for(order.attempt, tasks)
        following = [element for element in elements if element[0] == ANSWER]
        return following + [element for task in tasks for element in task.answer or ()]

    def _run_task(
        self,
        order: WorkOrder,
        stage: Stage,
        spark_task: int,
        messages: Sequence[bytes],
        senders: Mapping[str, int],
    ) -> list[Element]:
        self._world.bolt_runs += 1
        with self._process() as process:
            return run_later_stage(self.plan, stage.position, spark_task, order, messages, senders, process)

    def write(self, attempt: TransactionAttempt, writes: Sequence[StateWrite]) -> list[int]:
        tasks = []
        for write in writes:
            slots = {table.component: self._world.chances.between(1, _MOST_SHARES) for table in write.tables}
            for share in self._cut(write, slots):
                store = self._stores.get(share.place, share.life.topology)
                states = store.of(share.life.topology, share.life.uuid, share.life.semantics)
                tables = [(table.spec, table.deltas) for table in share.tables]
                what = f"share of {share.rows} of {attempt} for {store.display_url}"
                tasks.append(self._world.tasks.add(what, partial(states.write, attempt, tables)))
        self._wait_for(attempt, tasks)
        return [write.rows for write in writes]

    def _cut(self, write: StateWrite, slots: Mapping[str, int]) -> list[StateWrite]:
        """Cut the same deltas into the same shares, so that results derived from them are known too."""
        deltas = [table.deltas for table in write.tables]
        kept = self._world.program.memo.of(("cut", *slots.values()), deltas, lambda: cut(write, slots))
        return [replace(write, tables=share.tables) for share in kept]

    def cancel(self, attempt: TransactionAttempt) -> None:
        """Do nothing: nobody ever stops a task."""

    def close(self) -> None:
        """Close what bolts have opened in the processes."""
        for process in self._free:
            if process is not None:
                process.close()

    def _wait_for(self, attempt: TransactionAttempt, tasks: Sequence[Task]) -> None:
        """Run these tasks until all are done or the attempt is given up."""
        world, tries = self._world, 0
        while not world.are_done(tasks):
            self._driver.pass_point("waiting for tasks", attempt)
            if world.happens("late arrives"):
                world.deliver_late()
            if world.happens("tasks given up"):
                raise BatchFailedError(f"{attempt}: its tasks take too long")
            open_tasks = [task for task in tasks if not task.is_done]
            if not open_tasks:
                continue
            try:
                world.tasks.run(world.chances.pick(open_tasks))
            except ServiceUnavailableError:
                tries += 1
                if tries == _MOST_TRIES:
                    raise
