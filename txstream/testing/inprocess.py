"""Batches without Spark: the stages of a plan on the caller's thread, with every exchange carried out.

For tests of topologies and of the event loop. What an executor would do is done by the same functions,
through the same messages; only the processes between them are missing.

Invariant: an emitter serves one batch at a time, as in a worker process, however many threads call `run`.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from txstream.api.spouts import PartitionEmitter
from txstream.engine.plan import ExecutionPlan
from txstream.engine.runner import BatchResult, collect_result, fit_order, work_order
from txstream.engine.wire import WorkOrder
from txstream.engine.worker import run_first_stage, run_later_stage
from txstream.metas import BatchMetas, MetaCodec
from txstream.transaction import TransactionAttempt

# A Spark task's answers: for which Spark task of the next stage, and the message.
Answers = list[tuple[int, bytes]]


class InProcessRunner:
    """A `BatchRunner` for one plan. `width` is the number of Spark tasks that every batch gets, as far as
    its partitions and slots go; None leaves it to the size of the batch, as on Spark."""

    def __init__(self, plan: ExecutionPlan, *, width: int | None = None) -> None:
        self.plan = plan
        self._width = width
        self._codec = plan.codec()
        self._lock = threading.Lock()
        self._emitters: list[PartitionEmitter[Any]] = []
        self._cancelled: set[TransactionAttempt] = set()

    def run(self, attempt: TransactionAttempt, metas: BatchMetas[Any]) -> BatchResult:
        """Process one attempt. Raises the TxstreamError that a stage reported."""
        started = time.perf_counter()
        order = work_order(attempt, metas, self._codec, self.plan.max_width, width=self._width)
        stages = self.plan.stages(order.width)
        order = fit_order(order, stages[0].width)
        answers: Answers = []
        for spark_task in range(stages[0].width):
            answers += self._first_stage(spark_task, order)
        for stage in stages[1:]:
            inboxes = self.exchange(answers, stage.width)
            answers = []
            for spark_task, messages in enumerate(inboxes):
                answers += run_later_stage(self.plan, stage.position, spark_task, order, messages)
        seconds = time.perf_counter() - started
        return collect_result(attempt, (message for _, message in answers), seconds, order.width)

    def exchange(self, answers: Answers, width: int) -> list[list[bytes]]:
        """The messages for each Spark task of the next stage. Override it to lose some."""
        inboxes: list[list[bytes]] = [[] for _ in range(width)]
        for target, message in answers:
            inboxes[target].append(message)
        return inboxes

    def cancel(self, attempt: TransactionAttempt) -> None:
        """Only noted: nothing can end a thread that runs user code."""
        with self._lock:
            self._cancelled.add(attempt)

    @property
    def cancelled(self) -> frozenset[TransactionAttempt]:
        """The attempts that were asked to stop."""
        with self._lock:
            return frozenset(self._cancelled)

    def close(self) -> None:
        """Close the emitters that serve no batch now."""
        with self._lock:
            emitters, self._emitters = self._emitters, []
        for emitter in emitters:
            emitter.close()

    def _first_stage(self, spark_task: int, order: WorkOrder) -> Answers:
        opened: list[PartitionEmitter[Any]] = []

        def open_spout(plan: ExecutionPlan) -> tuple[PartitionEmitter[Any], MetaCodec[Any]]:
            with self._lock:
                opened.append(
                    self._emitters.pop() if self._emitters else plan.create_source().emitter(plan.context)
                )
            return opened[-1], self._codec

        try:
            return run_first_stage(self.plan, spark_task, order, open_spout)
        finally:
            with self._lock:
                self._emitters += opened
