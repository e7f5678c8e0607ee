"""One stage of an attempt in one Spark task: the bolt tasks that live there, wired together.

Invariants.
- A bolt's `finish_batch` runs only after its task has received every tuple that was sent to it. The numbers
  sent and received are compared per task; a difference fails the attempt.
- The same tuples in the same order give the same output, because Spark may compute a Spark task again.
- An exception in user code, other than CrashError, leaves here as a `TaskFailedError`, which names the
  component, the task and the tuple that was being processed.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from txstream.api.bolts import BasicBolt, BatchBolt, StateCommitter, TopologyContext, overrides, refuse_result
from txstream.api.tracked import RichBolt
from txstream.api.tuples import Chunk, Tuple, one_row
from txstream.core.digests import TableDigest, added_up
from txstream.core.errors import BatchFailedError, ShortBatchError, StateValueError, TupleError
from txstream.core.fault_points import CrashError
from txstream.core.placement import TaskPlace
from txstream.core.transaction import TransactionAttempt
from txstream.core.wording import counted
from txstream.engine.batch.collector import Collector, Outbox, Send
from txstream.engine.batch.edge_counts import EdgeName
from txstream.engine.batch.execution_plan import BoltSpec, ExecutionPlan
from txstream.engine.batch.executor_failures import Failure, TaskFailedError, describe
from txstream.engine.batch.layout import Layout, Stage
from txstream.engine.batch.leaving_out import (
    LeavingOut,
    kept_by,
    leaving_out,
    lineage_of,
    may_be_a_record,
    may_retry,
    open_chunk,
    without_rows,
)
from txstream.engine.batch.messages import Parcel, Tracked, WorkOrder
from txstream.engine.batch.state_tasks import TaskStates
from txstream.engine.batch.worker_process import WorkerProcess

if TYPE_CHECKING:
    from txstream.engine.batch.task_tier import TieredTask


@dataclass
class Stopwatch:
    """Measures the time of each task alone. Tuples that a task passes on in place are processed inside its
    call, and that time must not count twice."""

    _inner: list[float] = field(default_factory=list)

    def start(self) -> float:
        self._inner.append(0.0)
        return time.perf_counter()

    def stop(self, started: float) -> float:
        """Return the seconds since `started`, without those measured inside that time."""
        elapsed = time.perf_counter() - started
        inner = self._inner.pop()
        if self._inner:
            self._inner[-1] += elapsed
        return elapsed - inner

    def leave_out(self, seconds: float) -> None:
        """Leave seconds that have just passed out of the time that is being measured."""
        if self._inner:
            self._inner[-1] += seconds


class TaskRuntime:
    """One bolt task of this attempt: the instance, its collector, its states, and how many tuples it got.

    `committed` is the attempt that was committed last, or None if that is not known. `written` is the digest
    of what the task has written, by state, once it has finished.
    """

    def __init__(
        self,
        spec: BoltSpec,
        task: int,
        slot: int,
        attempt: TransactionAttempt,
        process: WorkerProcess,
        send: Send,
        stopwatch: Stopwatch,
        committed: TransactionAttempt | None = None,
        horizons: Mapping[str, Any] | None = None,
        leaving: LeavingOut | None = None,
    ) -> None:
        self.spec = spec
        self.task = task
        self.received = 0
        self.seconds = 0.0
        self.written: Mapping[str, TableDigest] = {}
        self.tracked = process.tiered_task(spec, task, send)
        self.collector = Collector(spec, task, send) if self.tracked is None else self.tracked.out
        process.left_open.append(self.collector)
        self._stopwatch = stopwatch
        self._tuple: Tuple | None = None
        plan = process.plan
        self._spout = plan.spout_id
        with self.working():
            self.bolt = spec.create()
            if isinstance(self.bolt, StateCommitter):
                self.bolt.horizon = (horizons or {}).get(self.bolt.state.table)
            self._states = TaskStates(spec, task, attempt, process, committed)
            context = self._context = TopologyContext(
                topology_id=plan.topology_id,
                component=spec.id,
                task_index=task,
                task_count=spec.tasks,
                attempt=attempt,
                settings=plan.settings,
                task_counts=plan.task_counts,
                task_id=spec.task_ids[task],
                task_ids=plan.task_ids,
                slot=slot,
                worker=process.worker,
                host=process.host,
                resource=process.resource(spec, self.bolt),
                states=self._states.states,
                open_table=self._states.open_table,
                horizons=horizons or {},
            )
            can_leave = isinstance(self.bolt, StateCommitter) or may_retry(self.bolt)
            self._leaving = leaving if can_leave else None
            self.collector.may_cut = self._leaving is not None
            # What an instance has kept that has got no tuple yet, and one that tries a tuple by itself.
            self._fresh: bytes | None = None
            self._trial: BasicBolt | None = None
            if isinstance(self.bolt, BatchBolt):
                self._call("prepare", context, self.collector, attempt)
            elif isinstance(self.bolt, BasicBolt):
                self._call("prepare", context)
            elif isinstance(self.bolt, RichBolt):
                self._call("prepare", context, self.tracked)

    def receive(self, chunk: Chunk) -> None:
        self.received += len(chunk)
        with self.working():
            bolt = self.bolt
            execute: Any = getattr(bolt, "execute", None)
            if self.tracked is not None:
                self._receive_tracked(self.tracked, execute, chunk)
            elif isinstance(bolt, BasicBolt) and overrides(bolt, BasicBolt.execute_batch):
                self._call("execute_batch", chunk.batch, self.collector)
            elif self._leaving is not None and chunk.marks is not None:
                if isinstance(bolt, StateCommitter):
                    self._fold_leaving_out(self._leaving, chunk)
                else:
                    self._receive_leaving_out(self._leaving, execute, chunk)
            elif isinstance(bolt, BasicBolt):
                collector = self.collector
                for tup in chunk.tuples():
                    self._tuple = tup
                    if (result := execute(tup, collector)) is not None:
                        refuse_result(bolt, "execute", result)
            elif isinstance(bolt, BatchBolt):
                if overrides(bolt, BatchBolt.execute_chunk):
                    self._call("execute_chunk", chunk)
                else:
                    for tup in chunk.tuples():
                        self._tuple = tup
                        if (result := execute(tup)) is not None:
                            refuse_result(bolt, "execute", result)
            self._tuple = None
            self.collector.flush()

    def _receive_leaving_out(self, leaving: LeavingOut, execute: Any, chunk: Chunk) -> None:
        """Execute tuples of the spout one by one, and leave out those that fail again by themselves."""
        collector, mark = self.collector, self.collector.mark
        knows_all = leaving.knows_all
        ends: list[Any] = [mark()]  # of what each tuple has emitted
        sends_before = collector.sends
        for row, tup in enumerate(chunk.tuples()):
            if knows_all and leaving.is_known(chunk, row, self.spec.id):
                ends.append(ends[-1])
                continue
            self._tuple = tup
            sends, before = collector.sends, mark()
            try:
                if (result := execute(tup, collector)) is not None:
                    refuse_result(self.bolt, "execute", result)
            except Exception as error:
                is_undone = not knows_all and collector.undo(sends, before)
                if not (is_undone and self._is_left_out(leaving, chunk, row, error)):
                    raise
            ends.append(mark())
        while collector.sends == sends_before:
            try:
                return collector.flush()
            except TupleError as error:  # a value that its stream cannot hold
                row = -1 if error.at is None or knows_all else bisect_right(ends, error.at) - 1
                if row < 0:
                    raise
                self._tuple = next(one_row(chunk, row).tuples())
                if not self._is_left_out(leaving, chunk, row, error):
                    raise
                collector.cut(ends[row], ends[row + 1])
                gone = ends[row + 1] - ends[row]
                ends = [*ends[: row + 1], *(end - gone for end in ends[row + 1 :])]
        return None

    def _fold_leaving_out(self, leaving: LeavingOut, chunk: Chunk) -> None:
        """Give a state's bolt a chunk without the tuples that it refuses."""
        if leaving.knows_all:
            known = [row for row in range(len(chunk)) if leaving.is_known(chunk, row, self.spec.id)]
            chunk = without_rows(chunk, known)
        while True:
            try:
                return self._call("execute_chunk", chunk)
            except StateValueError as error:
                row = error.at
                if row is None or leaving.knows_all or not leaving.take(chunk, row, self._described(error)):
                    raise
                chunk = without_rows(chunk, [row])

    def _is_left_out(self, leaving: LeavingOut, chunk: Chunk, row: int, error: Exception) -> bool:
        """Leave out a tuple at which the bolt has failed, if it fails again by itself."""
        if isinstance(error, TaskFailedError):  # of a bolt that has got what this one has sent
            return False
        return (
            may_be_a_record(error)
            and self._fails_alone(one_row(chunk, row))
            and leaving.take(chunk, row, self._described(error))
        )

    def _fails_alone(self, chunk: Chunk) -> bool:
        """Whether a fresh instance fails at this tuple, too, and this one has kept nothing of what it got."""
        context, trial = self._context, self._trial
        collector = Collector(self.spec, self.task, lambda *_: None)
        self._trial = None
        try:
            if trial is None:
                fresh = self.spec.create()
                assert isinstance(fresh, BasicBolt)
                fresh.prepare(context)
                trial = fresh
                self._fresh = kept_by(trial, context)
            if self._fresh is None or kept_by(self.bolt, context) != self._fresh:
                return False
            for tup in chunk.tuples():
                execute: Any = trial.execute
                if (result := execute(tup, collector)) is not None:
                    refuse_result(trial, "execute", result)
            collector.flush()
            return False
        except Exception as error:  # noqa: BLE001 - whether it is the record's decides
            return may_be_a_record(error)
        finally:
            if trial is not None and kept_by(trial, context) == self._fresh:
                self._trial = trial

    def _described(self, error: BaseException) -> Failure:
        return describe(error, self.spec.id, self.task, self._tuple, spout=self._spout)

    def _receive_tracked(self, tracked: TieredTask, execute: Any, chunk: Chunk) -> None:
        """Execute tracked tuples one by one. A BatchFailedError fails only its tuple."""
        is_rich = isinstance(self.bolt, RichBolt)
        for tup in tracked.tuples(chunk):
            self._tuple = tup
            try:
                result = execute(tup) if is_rich else execute(tup, self.collector)
            except BatchFailedError as error:
                tracked.fail(tup, str(error))
                continue
            if result is not None:
                refuse_result(self.bolt, "execute", result)
        if not is_rich:
            tracked.ack_open(chunk)

    def finish(self) -> None:
        with self.working():
            if isinstance(self.bolt, RichBolt):
                self._call("cleanup")
            if isinstance(self.bolt, BatchBolt) and not isinstance(self.bolt, StateCommitter):
                self._call("finish_batch")
            self.collector.flush()
            self.collector.close()
            self.written = self._states.flush()

    def _call(self, method: str, *given: object) -> None:
        """Call a method, and refuse what it returns: a generator, for example, would be lost silently."""
        result = getattr(self.bolt, method)(*given)
        if result is not None:
            refuse_result(self.bolt, method, result)

    def working(self) -> _Working:
        """A context manager that goes around each call of the bolt."""
        return _Working(self)


class _Working:
    """Goes around every call of user code. It measures the time and describes what the call raises."""

    def __init__(self, runtime: TaskRuntime) -> None:
        self._runtime = runtime

    def __enter__(self) -> None:
        self._started = self._runtime._stopwatch.start()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        runtime = self._runtime
        runtime.seconds += runtime._stopwatch.stop(self._started)
        if error is not None and not isinstance(error, (TaskFailedError, CrashError)):
            raise TaskFailedError(runtime._described(error)) from error


@dataclass
class StageRun:
    """The bolt tasks of one stage that live in this Spark task. What they emit goes to `outbox`."""

    plan: ExecutionPlan
    layout: Layout
    stage: Stage
    spark_task: int
    order: WorkOrder
    process: WorkerProcess

    def __post_init__(self) -> None:
        self.outbox = Outbox(
            self.plan, self.layout, self.stage, self.spark_task, self._give, open_chunk=open_chunk
        )
        self.tracking = self.process.track(self.order, self.stage, self.spark_task)
        if self.tracking is not None:
            self.outbox.mark, self.outbox.open_chunk = self.tracking.mark, self.tracking.open_chunk
        self._sent: Counter[tuple[str, int]] = Counter()
        self._hosted: dict[str, dict[int, TaskRuntime]] = {}
        self.leaving = leaving_out(self.plan, self.stage, self.order)
        self.heard: dict[str, str] = {}
        stopwatch = Stopwatch()
        self.outbox.leave_out = stopwatch.leave_out
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
                    self.order.horizons,
                    self.leaving,
                )
                for task in self.stage.hosted(spec, self.spark_task)
            }

    def _sender(self, spec: BoltSpec) -> Send:
        def send(task: int, batch: pa.RecordBatch, stream: str, direct_task: int | None) -> None:
            self.outbox.push(spec.id, stream, task, batch, direct_task)

        return send

    def deliver(self, parcel: Parcel, table: pa.Table) -> None:
        """Give a task of this stage the tuples of a parcel."""
        spec = self.plan.bolt(parcel.component)
        for batch in table.to_batches():
            chunk = self.outbox.open_chunk(batch, parcel.source, parcel.stream, parcel.source_task)
            self._give(spec, parcel.task, chunk)

    def _give(self, spec: BoltSpec, task: int, chunk: Chunk) -> None:
        rows = len(chunk)
        self._sent[spec.id, task] += rows
        self._hosted[spec.id][task].receive(chunk)
        self.outbox.received[EdgeName(spec.id, chunk.source_component, chunk.source_stream)] += rows

    def finish(self) -> None:
        """Finish the bolts once all tuples have come, from the top down, so that each gets what those above
        it emit last. Raises ShortBatchError when a task received more or fewer tuples than were sent."""
        for runtime in self._runtimes():
            sent = self._sent[runtime.spec.id, runtime.task]
            if runtime.received != sent:
                raise ShortBatchError(
                    f"task {runtime.task} of {runtime.spec.id!r} got {counted(runtime.received, 'tuple')}, "
                    f"but {sent:,} were sent to it"
                )
            runtime.finish()

    @property
    def lineage(self) -> str:
        """What was left out of the tuples that this Spark task hands on (`leaving_out`)."""
        return lineage_of(self.leaving, self.heard)

    def tracked(self) -> Tracked | None:
        """The report on the trees that the tuples belong to; None if they are not tracked."""
        return (
            None
            if self.tracking is None
            else self.tracking.told(runtime.tracked for runtime in self._runtimes())
        )

    def deltas(self) -> dict[str, pa.Table]:
        """The deltas that the state committers of this Spark task have folded, by component."""
        tables: dict[str, pa.Table] = {}
        for runtime in self._runtimes():
            if isinstance(runtime.bolt, StateCommitter):
                with runtime.working():
                    tables[runtime.spec.id] = runtime.bolt.deltas()
        return tables

    def written(self) -> dict[tuple[str, str], TableDigest]:
        """The digests of what the bolts of this Spark task have written, by component and state."""
        return added_up(
            ((runtime.spec.id, name), digest)
            for runtime in self._runtimes()
            for name, digest in runtime.written.items()
        )

    def places(self) -> list[TaskPlace]:
        """Where each task ran, and how long it took."""
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
