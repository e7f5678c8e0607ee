"""One stage of an attempt in one Spark task: the bolts that live there, wired together.

Invariants.
- A bolt's `finish_batch` runs after every tuple that was sent to its task has come; the numbers sent and
  received are compared per task, and a difference fails the attempt.
- The same tuples in the same order give the same output: a Spark task may be computed again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from txstream.api.bolts import StateCommitter
from txstream.api.errors import ShortBatchError
from txstream.api.tuples import Chunk
from txstream.digests import TableDigest, added_up
from txstream.engine.batch.collector import Send
from txstream.engine.batch.layout import Layout, Stage
from txstream.engine.batch.messages import EdgeCount, EdgeName, Parcel
from txstream.engine.batch.outbox import Outbox
from txstream.engine.batch.plan import BoltSpec, ExecutionPlan
from txstream.engine.batch.tasks import Stopwatch, TaskRuntime
from txstream.engine.batch.wire import WorkOrder
from txstream.engine.batch.worker_process import WorkerProcess
from txstream.placement import TaskPlace


@dataclass
class StageRun:
    """The bolts of one stage, as far as they live in this Spark task. What they emit goes to `outbox`."""

    plan: ExecutionPlan
    layout: Layout
    stage: Stage
    spark_task: int
    order: WorkOrder
    process: WorkerProcess
    received: EdgeCount = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.outbox = Outbox(self.plan, self.layout, self.stage, self.spark_task, self._give)
        self._sent: Counter[tuple[str, int]] = Counter()
        self._hosted: dict[str, dict[int, TaskRuntime]] = {}
        stopwatch = Stopwatch()
        for spec in self.stage.bolts:
            send = self._sender(spec)
            self._hosted[spec.id] = {
                task: TaskRuntime(
                    spec,
                    task,
                    self.spark_task,
                    self.order.attempt,
                    self.process,
                    send,
                    stopwatch,
                    self.order.committed,
                )
                for task in self.stage.hosted(spec, self.spark_task)
            }

    def _sender(self, spec: BoltSpec) -> Send:
        def send(task: int, batch: pa.RecordBatch, stream: str, direct_task: int | None) -> None:
            self.outbox.push(spec.id, stream, task, batch, direct_task)

        return send

    def deliver(self, parcel: Parcel, table: pa.Table) -> None:
        """Give a task of this stage the tuples that came from another one."""
        spec = self.plan.bolt(parcel.component)
        for batch in table.to_batches():
            self._give(spec, parcel.task, Chunk(batch, parcel.source, parcel.stream, parcel.source_task))

    def _give(self, spec: BoltSpec, task: int, chunk: Chunk) -> None:
        rows = len(chunk)
        self._sent[spec.id, task] += rows
        self._hosted[spec.id][task].receive(chunk)
        self.received[EdgeName(spec.id, chunk.source_component, chunk.source_stream)] += rows

    def finish(self) -> None:
        """All tuples have come: finish the bolts from the top, so each sees what those above emit last."""
        for runtime in self._runtimes():
            sent = self._sent[runtime.spec.id, runtime.task]
            if runtime.received != sent:
                raise ShortBatchError(
                    f"task {runtime.task} of {runtime.spec.id!r} got {runtime.received} tuples, "
                    f"but {sent} were sent to it"
                )
            runtime.finish()

    def deltas(self) -> dict[str, pa.Table]:
        """What the state committers of this Spark task have folded, by component."""
        tables: dict[str, pa.Table] = {}
        for runtime in self._runtimes():
            if isinstance(runtime.bolt, StateCommitter):
                with runtime.working():
                    tables[runtime.spec.id] = runtime.bolt.deltas()
        return tables

    def written(self) -> dict[tuple[str, str], TableDigest]:
        """What the bolts of this Spark task have written, by component and state."""
        return added_up(
            ((runtime.spec.id, name), digest)
            for runtime in self._runtimes()
            for name, digest in runtime.written.items()
        )

    def places(self) -> list[TaskPlace]:
        """Where the tasks ran and how long each took."""
        return [
            TaskPlace(
                component=runtime.spec.id,
                task=runtime.task,
                slot=self.spark_task,
                worker=self.process.worker,
                host=self.process.host,
                seconds=round(runtime.seconds, 6),
                tuples=runtime.received,
            )
            for runtime in self._runtimes()
        ]

    def _runtimes(self) -> Iterator[TaskRuntime]:
        for hosted in self._hosted.values():
            yield from hosted.values()
