"""Batches without Spark: runs the stages of a plan in this process, with every exchange between them.

For tests of topologies and of the event loop. The work of executors is done by the same functions and the
same messages; only the separate processes are missing. Nothing can end a thread that runs user code, so a
cancelled call runs on and nobody waits for it. On Spark, too, a cancelled job returns at once, and the fence
refuses what its tasks write afterwards.

Invariants. A `WorkerProcess` serves one stage at a time, as in a worker process, however many threads call.
Once an attempt is cancelled, nobody waits for its calls, and it begins no further call.
"""

from __future__ import annotations

import contextvars
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from txstream.core.batch_metas import BatchMetas
from txstream.core.errors import BatchFailedError, TopologyError
from txstream.core.transaction import TransactionAttempt
from txstream.engine.batch.execution_plan import ExecutionPlan
from txstream.engine.batch.layout import Layout, Stage, lay_out
from txstream.engine.batch.messages import ANSWER, DRIVER, PYTHON, Element, WorkOrder
from txstream.engine.batch.record_search import (
    FailingRecord,
    records_found,
    search_share,
    search_shares,
)
from txstream.engine.batch.runner_contract import NOTHING, BatchResult
from txstream.engine.batch.shares import (
    Message,
    StateWrite,
    cut_all,
    rows_by_write,
    rows_written,
    write_share,
)
from txstream.engine.batch.sizing import work_order
from txstream.engine.batch.sought import Sought
from txstream.engine.batch.task_answers import collect_result, open_answers
from txstream.engine.batch.task_tree import task_tree
from txstream.engine.batch.worker import run_first_stage, run_later_stage
from txstream.engine.batch.worker_process import WorkerProcess

T = TypeVar("T")

_KEPT_ATTEMPTS = 100
_OURS = (Path(__file__).parents[1], Path(__file__).parents[2] / "engine")


@dataclass(eq=False)
class _Call(Generic[T]):
    """One call, on a thread of its own. Once it is `over`, either `answer` or `error` is set. Nobody waits
    any more for one that is `left`."""

    attempt: TransactionAttempt
    work: Callable[[], T]
    answer: T | None = None
    error: BaseException | None = None
    over: bool = False
    left: bool = False
    thread: threading.Thread | None = None

    def run(self) -> None:
        try:
            self.answer = self.work()
        except BaseException as error:  # noqa: BLE001 - raised by whoever waits for the call
            self.error = error

    def where(self) -> str:
        """Return the user code that the call is in."""
        frame = sys._current_frames().get(self.thread.ident or 0) if self.thread is not None else None
        frames = traceback.extract_stack(frame) if frame is not None else []
        theirs = [
            at for at, summary in enumerate(frames) if any(map(Path(summary.filename).is_relative_to, _OURS))
        ]
        inside = frames[theirs[-1] + 1 :] if theirs else []
        if not inside:
            return str(self.attempt)
        return (
            f"{self.attempt}, in {inside[0].name} ({Path(inside[0].filename).name}, line {inside[0].lineno})"
        )


class DetachedCalls:
    """The calls of all attempts of a run. May be used from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: list[_Call[Any]] = []
        self._given_up: set[TransactionAttempt] = set()

    @property
    def given_up(self) -> frozenset[TransactionAttempt]:
        """The attempts that have been given up."""
        with self._changed:
            return frozenset(self._given_up)

    def call(self, attempt: TransactionAttempt, work: Callable[[], T]) -> T:
        """Return or raise what `work` does. Raises BatchFailedError when the attempt is given up first."""
        call = _Call(attempt, work)
        context = contextvars.copy_context()

        def run() -> None:
            context.run(call.run)
            with self._changed:
                call.over = True
                self._calls.remove(call)
                self._changed.notify_all()

        # A daemon, because a bolt that hangs must not keep Python from exiting.
        call.thread = threading.Thread(target=run, name=f"txstream-{attempt.attempt}", daemon=True)
        with self._changed:
            if attempt in self._given_up:
                raise BatchFailedError(f"{attempt} was cancelled")
            self._calls.append(call)
            call.thread.start()
            self._changed.wait_for(lambda: call.over or call.left or attempt in self._given_up)
            if not call.over:
                raise BatchFailedError(f"{attempt} was cancelled")
        if call.error is not None:
            raise call.error
        return call.answer  # type: ignore[return-value]  # of type T: it is over, without an error

    def give_up(self, attempt: TransactionAttempt) -> list[str]:
        """Release the threads that wait for this attempt. Returns the user code that it is still in."""
        with self._changed:
            self._given_up.add(attempt)
            self._changed.notify_all()
            return [call.where() for call in self._calls if call.attempt == attempt]

    def leave(self, attempt: TransactionAttempt) -> list[str]:
        """As `give_up`, but the attempt may make further calls."""
        with self._changed:
            left = [call for call in self._calls if call.attempt == attempt and not call.left]
            for call in left:
                call.left = True
            self._changed.notify_all()
            return [call.where() for call in left]

    def where(self) -> list[str]:
        """Return the user code that each unfinished call is in."""
        with self._changed:
            return [call.where() for call in self._calls]


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Kept:
    """What the commit phase of an attempt needs."""

    order: WorkOrder
    layout: Layout
    elements: list[Element]


class InProcessRunner:
    """A `BatchRunner` for one plan, without Spark. DataFrame bolts need Spark and are refused.

    `width` is the number of Spark tasks that every batch gets, as far as there are slots. None leaves it to
    the size of the batch, as on Spark.
    """

    def __init__(self, plan: ExecutionPlan, *, width: int | None = None) -> None:
        dataframes = [bolt.id for bolt in plan.bolts if bolt.is_dataframe]
        if dataframes:
            raise TopologyError(
                f"component {dataframes[0]!r} is a DataFrameBolt, which Spark computes; run this topology "
                f"on Spark"
            )
        self.plan = plan
        self.slots: Mapping[str, int] = {}
        self.fetched: Mapping[str, str] = {}
        self._width = width
        self._lock = threading.Lock()
        self._idle: list[WorkerProcess] = []
        self._closed = False
        self._calls = DetachedCalls()
        # The stages and Spark tasks that the newest attempts have finished.
        self._ended: dict[TransactionAttempt, tuple[Layout, set[tuple[int, int]]]] = {}

    def run(self, attempt: TransactionAttempt, metas: BatchMetas[Any], spare: int = 0) -> BatchResult:
        """Process one attempt. Raises the TxstreamError that a stage reported, or BatchFailedError when the
        attempt is cancelled."""
        return self._calls.call(attempt, lambda: self._run(attempt, metas, spare))

    def _run(self, attempt: TransactionAttempt, metas: BatchMetas[Any], spare: int) -> BatchResult:
        started = time.perf_counter()
        order = work_order(
            attempt, metas, self.plan, self.slots, width=self._width, spare=spare, known=self.fetched
        )
        return self._collected(order, self._processed(order), started)

    def _processed(self, order: WorkOrder) -> list[Element]:
        """Return what the Spark tasks of the processing phase send on, and their answers."""
        layout = lay_out(self.plan, order.width, order.slots)
        ended: set[tuple[int, int]] = set()
        self._ended[order.attempt] = layout, ended
        if len(self._ended) > _KEPT_ATTEMPTS:
            del self._ended[next(iter(self._ended))]
        elements: list[Element] = []
        for spark_task in range(layout.stages[0].width):
            with self._process() as process:
                elements += run_first_stage(self.plan, spark_task, order, process)
            ended.add((0, spark_task))
        return self._later_stages(order, layout, elements)

    def find(
        self,
        attempt: TransactionAttempt,
        parts: Sequence[BatchMetas[Any]],
        *,
        most: int,
        seconds: float,
        sought: Sought | None = None,
    ) -> list[FailingRecord]:
        """See `BatchRunner`. Raises BatchFailedError when the attempt is cancelled."""
        shares = search_shares(
            self.plan, attempt, parts, self.slots, most=most, seconds=seconds, sought=sought
        )

        def work() -> list[FailingRecord]:
            with self._process() as process:
                return records_found(attempt, [search_share(self.plan, share, process) for share in shares])

        return self._calls.call(attempt, work)

    def feed(self, order: WorkOrder, messages: Sequence[bytes]) -> BatchResult:
        """Process tuples that come from the driver. Raises as `run`."""
        fed = list(enumerate(messages))
        return self._calls.call(order.attempt, lambda: self._feed(order, fed))

    def _feed(self, order: WorkOrder, fed: list[Element]) -> BatchResult:
        started = time.perf_counter()
        layout = lay_out(self.plan, order.width, order.slots)
        elements = self._through(order, layout.stages[0], fed, {DRIVER: 1})
        return self._collected(order, self._later_stages(order, layout, elements), started)

    def _later_stages(self, order: WorkOrder, layout: Layout, elements: list[Element]) -> list[Element]:
        for stage in layout.process[1:]:
            elements = self._later_stage(order, layout, stage, elements)
        return elements

    def _collected(self, order: WorkOrder, elements: list[Element], started: float) -> BatchResult:
        """Put together what the processing phase gives."""
        layout = lay_out(self.plan, order.width, order.slots)
        return collect_result(
            self.plan,
            order.attempt,
            open_answers(order.attempt, (message for target, message in elements if target == ANSWER)),
            time.perf_counter() - started,
            order.width,
            kept=_Kept(order, layout, [element for element in elements if element[0] != ANSWER]),
        )

    def commit(
        self,
        attempt: TransactionAttempt,
        processed: BatchResult,
        committed: TransactionAttempt | None = None,
    ) -> BatchResult:
        """Run the bolts of the commit phase. Raises as `run`."""
        kept: _Kept = processed.kept
        if not kept.layout.commit:
            return NOTHING
        return self._calls.call(attempt, lambda: self._commit(attempt, processed, committed))

    def _commit(
        self, attempt: TransactionAttempt, processed: BatchResult, committed: TransactionAttempt | None
    ) -> BatchResult:
        kept: _Kept = processed.kept
        started = time.perf_counter()
        order = processed.to_commit(kept.order, committed)
        elements = kept.elements
        for stage in kept.layout.commit:
            elements = self._later_stage(order, kept.layout, stage, elements)
        return collect_result(
            self.plan,
            attempt,
            open_answers(attempt, (message for target, message in elements if target == ANSWER)),
            time.perf_counter() - started,
            kept.order.width,
            crossing=processed.crossing,
        )

    def write(self, attempt: TransactionAttempt, writes: Sequence[StateWrite]) -> Sequence[int]:
        """Write deltas in shares, one after the other. Raises the TxstreamError of the first share that
        failed; the others are written all the same, as on Spark. Raises BatchFailedError when the attempt is
        cancelled."""
        messages, positions = cut_all(writes, self.plan.slots(self.slots))
        answers = self._calls.call(attempt, lambda: [self.write_share(message) for message in messages])
        rows = rows_written(attempt, answers)
        return rows_by_write(writes, positions, rows)

    def write_share(self, message: Message) -> bytes:
        """Write one share as a Spark task would. Override this to write a share twice, late or not at all."""
        with self._process() as process:
            return write_share(message, process)

    def release(self, processed: BatchResult) -> None:
        """Do nothing: nothing is kept outside the result."""

    def exchange(self, elements: list[Element], width: int) -> list[list[bytes]]:
        """Return the messages for each Spark task of the next stage. Override this to lose some."""
        inboxes: list[list[bytes]] = [[] for _ in range(width)]
        for target, message in elements:
            if target != ANSWER:
                inboxes[target].append(message)
        return inboxes

    def task_tree(self, attempt: TransactionAttempt) -> Mapping[str, Any] | None:
        """See `TellsTasks`."""
        found = self._ended.get(attempt)
        return None if found is None else task_tree(self.plan, *found)

    def cancel(self, attempt: TransactionAttempt) -> None:
        """Stop waiting for the attempt. Its bolts run on beside its successor's, because nothing can end a
        thread that runs user code."""
        self._say_left(attempt, self._calls.give_up(attempt))

    def end_trial(self, attempt: TransactionAttempt) -> None:
        """See `BatchRunner`."""
        self._say_left(attempt, self._calls.leave(attempt))

    def _say_left(self, attempt: TransactionAttempt, calls: Sequence[str]) -> None:
        for where in calls:
            log.warning(
                "%s was cancelled and still runs; what it does from now on is not used",
                where,
                extra={"about": attempt},
            )

    @property
    def cancelled(self) -> frozenset[TransactionAttempt]:
        """The attempts that were asked to stop."""
        return self._calls.given_up

    def still_running(self) -> list[str]:
        """Describe which calls of bolts attempts are in now, cancelled attempts included."""
        return self._calls.where()

    def close(self) -> None:
        """Close the emitters and what bolts have opened. A process that is busy now is closed afterwards."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for process in idle:
            process.close()

    def _later_stage(
        self, order: WorkOrder, layout: Layout, stage: Stage, elements: list[Element]
    ) -> list[Element]:
        senders = {PYTHON: layout.stages[stage.position - 1].width}
        return self._through(order, stage, elements, senders)

    def _through(
        self, order: WorkOrder, stage: Stage, elements: list[Element], senders: Mapping[str, int]
    ) -> list[Element]:
        inboxes = self.exchange(elements, stage.width)
        following = [element for element in elements if element[0] == ANSWER]
        for spark_task, messages in enumerate(inboxes):
            with self._process() as process:
                following += run_later_stage(
                    self.plan, stage.position, spark_task, order, messages, senders, process
                )
            if order.attempt in self._ended:
                self._ended[order.attempt][1].add((stage.position, spark_task))
        return following

    @contextmanager
    def _process(self) -> Iterator[WorkerProcess]:
        with self._lock:
            process = self._idle.pop() if self._idle else WorkerProcess(self.plan)
        try:
            yield process
        finally:
            with self._lock:
                late = self._closed
                if not late:
                    self._idle.append(process)
            if late:
                process.close()
