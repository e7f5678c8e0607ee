"""One Spark task of one stage of one batch: emit or receive tuples, push them through the bolts, answer.

Runs in a worker process on an executor. It imports neither SQL nor ZooKeeper, so that executors need only
Arrow and what their spout reads with.

Invariant: a bolt's `finish_batch` runs after every tuple that was sent to its task has come; the numbers
sent and received are compared per task, and a difference fails the attempt.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from txstream.api.bolts import BasicBolt, BatchBolt, MergeableBolt, StateCommitter, TopologyContext
from txstream.api.errors import ShortBatchError
from txstream.api.spouts import PartitionEmitter
from txstream.api.tuples import DEFAULT_STREAM, Chunk, Tuple
from txstream.engine.collector import Collector
from txstream.engine.failures import Failure, describe
from txstream.engine.plan import BoltSpec, Edge, ExecutionPlan, Stage
from txstream.engine.routing import keep, route
from txstream.engine.wire import WorkOrder, pack, unpack
from txstream.metas import MetaCodec
from txstream.transaction import TransactionAttempt

# Opens this process's emitter and codec, or gives those that are open.
OpenSpout = Callable[[ExecutionPlan], tuple[PartitionEmitter[Any], MetaCodec[Any]]]


class _FailedError(Exception):
    """Carries a described failure out of nested calls, within this module."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class TaskRuntime:
    """One bolt task of this attempt: the instance, its collector, and how many tuples it got."""

    def __init__(
        self,
        spec: BoltSpec,
        task: int,
        plan: ExecutionPlan,
        attempt: TransactionAttempt,
        send: Callable[[int, pa.RecordBatch, str], None],
    ) -> None:
        self.spec = spec
        self.task = task
        self.received = 0
        self.collector = Collector(spec, task, send)
        self._tuple: Tuple | None = None
        with self._reporting():
            self.bolt = spec.create()
            if isinstance(self.bolt, BatchBolt):
                context = TopologyContext(plan.topology_id, spec.id, task, spec.tasks, attempt, plan.settings)
                self.bolt.prepare(context, self.collector, attempt)

    def receive(self, chunk: Chunk) -> None:
        self.received += len(chunk)
        with self._reporting():
            bolt = self.bolt
            if isinstance(bolt, BasicBolt):
                collector = self.collector
                execute = bolt.execute
                for tup in chunk.tuples():
                    self._tuple = tup
                    execute(tup, collector)
            elif isinstance(bolt, BatchBolt):
                if type(bolt).execute_chunk is BatchBolt.execute_chunk:
                    for tup in chunk.tuples():
                        self._tuple = tup
                        bolt.execute(tup)
                else:
                    bolt.execute_chunk(chunk)
            self._tuple = None
            self.collector.flush()

    def finish(self) -> None:
        with self._reporting():
            if isinstance(self.bolt, BatchBolt) and not isinstance(self.bolt, StateCommitter):
                self.bolt.finish_batch()
            self.collector.flush()

    def _reporting(self) -> _Reporting:
        return _Reporting(self)


class _Reporting:
    """Turns an exception of the user's code into a failure that names component, task and tuple."""

    def __init__(self, runtime: TaskRuntime) -> None:
        self._runtime = runtime

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, _FailedError):
            runtime = self._runtime
            raise _FailedError(describe(error, runtime.spec.id, runtime.task, runtime._tuple)) from error


@dataclass
class StageRun:
    """The bolts of one stage, as far as they live in this Spark task, wired together."""

    plan: ExecutionPlan
    stage: Stage
    spark_task: int
    order: WorkOrder
    next_stage: Stage | None
    upstream: str
    outgoing: dict[int, dict[str, list[pa.RecordBatch]]] = field(default_factory=dict)
    sent: Counter[tuple[int, int]] = field(default_factory=Counter)
    sent_away: Counter[str] = field(default_factory=Counter)
    spread: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.hosted: list[dict[int, TaskRuntime]] = []
        for position, spec in enumerate(self.stage.bolts):
            send = self._sender(position + 1, spec)
            self.hosted.append(
                {
                    task: TaskRuntime(spec, task, self.plan, self.order.attempt, send)
                    for task in spec.hosted(self.spark_task, self.stage.width)
                }
            )

        self.merges = [
            any(isinstance(runtime.bolt, (StateCommitter, MergeableBolt)) for runtime in hosted.values())
            for hosted in self.hosted
        ]

    def _sender(self, position: int, spec: BoltSpec) -> Callable[[int, pa.RecordBatch, str], None]:
        def send(task: int, batch: pa.RecordBatch, stream: str) -> None:
            self.push(position, batch, spec.id, stream, task)

        return send

    def push(self, position: int, batch: pa.RecordBatch, source: str, stream: str, source_task: int) -> None:
        """Send tuples to the bolt at `position` of this stage, or out of it."""
        if position < len(self.stage.bolts):
            spec = self.stage.bolts[position]
            hosted = self.hosted[position]
            if spec.grouping.stream != stream:
                return
            if spec.edge is Edge.PASS:
                together = self.merges[position]
                parts = keep(batch, spec, list(hosted), self._start(position, batch), together=together)
            else:
                parts = route(batch, spec, self._start(position, batch))
            for task, part in parts:
                self.sent[position, task] += part.num_rows
                hosted[task].receive(Chunk(part, source, stream, source_task))
        elif self.next_stage is not None:
            spec = self.next_stage.bolts[0]
            if spec.grouping.stream != stream:
                return
            for task, part in route(batch, spec, self._start(position, batch)):
                name = f"{task} from {source_task}"
                self.outgoing.setdefault(task % self.next_stage.width, {}).setdefault(name, []).append(part)
                self.sent_away[name] += part.num_rows

    def _start(self, position: int, batch: pa.RecordBatch) -> int:
        """Where an even spread begins: after the tuples before, or small batches would all go to one task."""
        start = self.spark_task + self.spread[position]
        self.spread[position] += batch.num_rows
        return start

    def deliver(self, task: int, source_task: int, batch: pa.RecordBatch) -> None:
        """Give tuples that came from another Spark task to a task of the first bolt."""
        spec = self.stage.bolts[0]
        self.sent[0, task] += batch.num_rows
        self.hosted[0][task].receive(Chunk(batch, self.upstream, spec.grouping.stream, source_task))

    def finish(self) -> None:
        """All tuples have come: finish the bolts from the top, so each sees what those above emit last."""
        for position, hosted in enumerate(self.hosted):
            for task, runtime in hosted.items():
                if runtime.received != self.sent[position, task]:
                    raise ShortBatchError(
                        f"task {task} of {runtime.spec.id!r} got {runtime.received} tuples, "
                        f"but {self.sent[position, task]} were sent to it"
                    )
                runtime.finish()

    def deltas(self) -> dict[str, pa.Table]:
        """What the state committers of this Spark task have folded, by component."""
        tables: dict[str, pa.Table] = {}
        for hosted in self.hosted:
            for runtime in hosted.values():
                if not isinstance(runtime.bolt, StateCommitter):
                    continue
                with runtime._reporting():
                    deltas = runtime.bolt.deltas()
                above = tables.get(runtime.spec.id)
                # What is merged further down is kept together, so at most one of them has any.
                if above is not None and above.num_rows and deltas.num_rows:
                    raise ShortBatchError(f"two tasks of {runtime.spec.id!r} folded tuples in one Spark task")
                if above is None or deltas.num_rows:
                    tables[runtime.spec.id] = deltas
        return tables


def run_first_stage(
    plan: ExecutionPlan, spark_task: int, order: WorkOrder, open_spout: OpenSpout | None = None
) -> list[tuple[int, bytes]]:
    """Read this Spark task's partitions and run the first stage. Answers are (Spark task below, message)."""
    stages = plan.stages(order.width)
    following = stages[1] if len(stages) > 1 else None
    width = following.width if following else 1
    started = time.perf_counter()
    try:
        run = StageRun(plan, stages[0], spark_task, order, following, plan.spout_id)
        records, read_seconds = _read(plan, spark_task, order, run, open_spout or _spout)
        run.finish()
        deltas = run.deltas()
    except Exception as error:  # noqa: BLE001 - every failure of user code is reported, none is lost
        return [(target, pack({"failure": _failure(error, plan.spout_id)})) for target in range(width)]
    busy = time.perf_counter() - started
    stats = {"records": records, "read_seconds": read_seconds, "process_seconds": busy - read_seconds}
    if following is None:
        return [(0, pack({"stats": stats}, deltas))]
    return _outgoing(run, following, spark_task, stats)


def run_later_stage(
    plan: ExecutionPlan, position: int, spark_task: int, order: WorkOrder, messages: Iterable[bytes]
) -> list[tuple[int, bytes]]:
    """Take what the stage above sent to this Spark task and run the stage at `position`."""
    stages = plan.stages(order.width)
    stage = stages[position]
    following = stages[position + 1] if position + 1 < len(stages) else None
    above = stages[position - 1]
    source = above.bolts[-1].id if above.bolts else plan.spout_id
    started = time.perf_counter()
    stats = {"records": 0, "read_seconds": 0.0, "process_seconds": 0.0}
    try:
        run = StageRun(plan, stage, spark_task, order, following, source)
        senders: set[int] = set()
        for message in messages:
            header, tables = unpack(message)
            if "failure" in header:
                raise _FailedError(Failure(**header["failure"]))
            senders.add(header["from"])
            for name in stats:
                stats[name] += header["stats"][name]
            _deliver(run, header, tables)
        if senders != set(range(above.width)):
            raise ShortBatchError(
                f"{stage.bolts[0].id!r} heard from {len(senders)} of "
                f"the {above.width} Spark tasks of {source!r}"
            )
        run.finish()
        deltas = run.deltas()
    except Exception as error:  # noqa: BLE001 - every failure of user code is reported, none is lost
        width = following.width if following else 1
        return [(target, pack({"failure": _failure(error, stage.bolts[0].id)})) for target in range(width)]
    stats["process_seconds"] += time.perf_counter() - started
    if following is None:
        return [(0, pack({"stats": stats}, deltas))]
    return _outgoing(run, following, spark_task, stats)


def _read(
    plan: ExecutionPlan, spark_task: int, order: WorkOrder, run: StageRun, open_spout: OpenSpout
) -> tuple[int, float]:
    assigned = order.assignments[spark_task]
    if not assigned:
        return 0, 0.0
    emitter, codec = open_spout(plan)
    metas = {
        partition: codec.decode_meta(meta, f"partition {partition!r} of {order.attempt}")
        for partition, meta in assigned.items()
    }
    records = 0
    waited = 0.0
    batches = iter(emitter.emit_many(order.attempt, metas))
    while True:
        started = time.perf_counter()
        item = next(batches, None)
        waited += time.perf_counter() - started
        if item is None:
            return records, waited
        _, batch = item
        records += batch.num_rows
        run.push(0, batch, plan.spout_id, DEFAULT_STREAM, spark_task)


def _deliver(run: StageRun, header: Mapping[str, Any], tables: Mapping[str, pa.Table]) -> None:
    arrived: Counter[str] = Counter()
    for name, table in tables.items():
        task, _, source_task = name.partition(" from ")
        for batch in table.to_batches():
            arrived[name] += batch.num_rows
            run.deliver(int(task), int(source_task), batch)
    for name, count in header["sent"].items():
        if arrived[name] != count:
            task, _, source_task = name.partition(" from ")
            raise ShortBatchError(
                f"task {task} of {run.stage.bolts[0].id!r} got {arrived[name]} tuples from task "
                f"{source_task} of {run.upstream!r}, which sent {count}"
            )


def _outgoing(
    run: StageRun, following: Stage, spark_task: int, stats: Mapping[str, Any]
) -> list[tuple[int, bytes]]:
    """One message to every Spark task below, also to those that get no tuples: it is how they count."""
    messages = []
    for target in range(following.width):
        tables = {
            name: pa.Table.from_batches(batches) for name, batches in run.outgoing.get(target, {}).items()
        }
        header = {
            "from": spark_task,
            "sent": {name: run.sent_away[name] for name in tables},
            # Only one of them carries the statistics on, or they would be added up several times.
            "stats": stats if target == 0 else dict.fromkeys(stats, 0),
        }
        messages.append((target, pack(header, tables)))
    return messages


def _failure(error: Exception, component: str) -> dict[str, Any]:
    failure = error.failure if isinstance(error, _FailedError) else describe(error, component, None)
    return failure.to_document()


_SPOUTS: dict[str, tuple[PartitionEmitter[Any], MetaCodec[Any]]] = {}


def _spout(plan: ExecutionPlan) -> tuple[PartitionEmitter[Any], MetaCodec[Any]]:
    """This worker process's emitter: one per run, kept between batches with its connections."""
    cached = _SPOUTS.get(plan.run_id)
    if cached is None:
        for emitter, _ in _SPOUTS.values():
            emitter.close()
        _SPOUTS.clear()
        source = plan.create_source()
        cached = _SPOUTS[plan.run_id] = (source.emitter(plan.context), MetaCodec(source.meta_type))
    return cached
