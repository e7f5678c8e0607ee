"""Batches without Spark: the stages of a plan in this process, with every exchange carried out.

For tests of topologies and of the event loop. What an executor would do is done by the same functions,
through the same messages; only the processes between them are missing.

Invariants. A `WorkerProcess` serves one stage at a time, as in a worker process, however many threads call.
Who waits for an attempt goes on when it is cancelled, whatever its bolts do.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from txstream.api.errors import TopologyError
from txstream.engine.batch.answers import collect_result, open_answers
from txstream.engine.batch.layout import Layout, Stage, lay_out
from txstream.engine.batch.messages import ANSWER, PYTHON, Element
from txstream.engine.batch.plan import ExecutionPlan
from txstream.engine.batch.runner import NOTHING, BatchResult
from txstream.engine.batch.sizing import work_order
from txstream.engine.batch.wire import WorkOrder
from txstream.engine.batch.worker import run_first_stage, run_later_stage
from txstream.engine.batch.worker_process import WorkerProcess
from txstream.engine.commit.shares import (
    Message,
    StateWrite,
    cut_all,
    rows_by_write,
    rows_written,
    write_share,
)
from txstream.metas import BatchMetas
from txstream.testing.detached import DetachedCalls
from txstream.transaction import TransactionAttempt

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Kept:
    """What the commit phase of an attempt needs."""

    order: WorkOrder
    layout: Layout
    elements: list[Element]


class InProcessRunner:
    """A `BatchRunner` for one plan. `width` is the number of Spark tasks that every batch gets, as far as
    slots go; None leaves it to the size of the batch, as on Spark. DataFrame bolts need Spark itself."""

    def __init__(self, plan: ExecutionPlan, *, width: int | None = None) -> None:
        dataframes = [bolt.id for bolt in plan.bolts if bolt.is_dataframe]
        if dataframes:
            raise TopologyError(
                f"component {dataframes[0]!r} is a DataFrameBolt, which Spark computes; run this topology "
                f"on Spark"
            )
        self.plan = plan
        self.slots: Mapping[str, int] = {}
        self._width = width
        self._codec = plan.codec()
        self._lock = threading.Lock()
        self._idle: list[WorkerProcess] = []
        self._closed = False
        self._calls = DetachedCalls()

    def run(self, attempt: TransactionAttempt, metas: BatchMetas[Any]) -> BatchResult:
        """Process one attempt. Raises the TxstreamError that a stage reported, BatchFailedError when it is
        cancelled."""
        return self._calls.call(attempt, lambda: self._run(attempt, metas))

    def _run(self, attempt: TransactionAttempt, metas: BatchMetas[Any]) -> BatchResult:
        started = time.perf_counter()
        order = work_order(attempt, metas, self.plan, self._codec, self.slots, width=self._width)
        layout = lay_out(self.plan, order.width, order.slots)
        elements: list[Element] = []
        for spark_task in range(layout.stages[0].width):
            with self._process() as process:
                elements += run_first_stage(self.plan, spark_task, order, process)
        for stage in layout.process[1:]:
            elements = self._later_stage(order, layout, stage, elements)
        return collect_result(
            self.plan,
            attempt,
            open_answers(attempt, (message for target, message in elements if target == ANSWER)),
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
        order = replace(kept.order, committed=committed)
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
        """Write deltas in shares, one after the other. Raises the TxstreamError of the first that failed, as
        Spark would: the others are written all the same. Raises BatchFailedError when it is cancelled."""
        messages, positions = cut_all(writes, self.plan.slots(self.slots))
        answers = self._calls.call(attempt, lambda: [self.write_share(message) for message in messages])
        rows = rows_written(attempt, answers)
        return rows_by_write(writes, positions, rows)

    def write_share(self, message: Message) -> bytes:
        """One share, as a Spark task writes it. Override it to write one twice, late or not at all."""
        with self._process() as process:
            return write_share(message, process)

    def release(self, processed: BatchResult) -> None:
        """Nothing is kept but in the result itself."""

    def exchange(self, elements: list[Element], width: int) -> list[list[bytes]]:
        """The messages for each Spark task of the next stage. Override it to lose some."""
        inboxes: list[list[bytes]] = [[] for _ in range(width)]
        for target, message in elements:
            if target != ANSWER:
                inboxes[target].append(message)
        return inboxes

    def cancel(self, attempt: TransactionAttempt) -> None:
        """Have nobody wait for it any more. What its bolts do goes on beside its successor: nothing can end a
        thread that runs user code."""
        for where in self._calls.give_up(attempt):
            log.warning("%s was cancelled and still runs; what it does from now on is not used", where)

    @property
    def cancelled(self) -> frozenset[TransactionAttempt]:
        """The attempts that were asked to stop."""
        return self._calls.given_up

    def still_running(self) -> list[str]:
        """For people: in which calls of bolts attempts are now, cancelled ones among them."""
        return self._calls.where()

    def close(self) -> None:
        """Close the emitters and what bolts have opened, as far as they serve no batch now."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for process in idle:
            process.close()

    def _later_stage(
        self, order: WorkOrder, layout: Layout, stage: Stage, elements: list[Element]
    ) -> list[Element]:
        senders = {PYTHON: layout.stages[stage.position - 1].width}
        inboxes = self.exchange(elements, stage.width)
        following = [element for element in elements if element[0] == ANSWER]
        for spark_task, messages in enumerate(inboxes):
            with self._process() as process:
                following += run_later_stage(
                    self.plan, stage.position, spark_task, order, messages, senders, process
                )
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
