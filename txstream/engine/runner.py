"""How an attempt of a batch is processed: the contract, and the runner that does it on Spark.

The event loop knows only `BatchRunner`. `SparkRunner` runs a batch as one Spark job. Its RDDs without an
exchange are built once per width and used for every batch: the batch's ranges travel as a local property
of the job, so several batches may be in flight. With an exchange they are built for each batch, because
Spark would hand back the shuffle blocks of an older one.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from pyspark import cloudpickle

from txstream.api.errors import BoltError, TxstreamError
from txstream.engine.failures import Failure
from txstream.engine.plan import ExecutionPlan, batch_width
from txstream.engine.wire import WorkOrder, unpack
from txstream.engine.worker import run_first_stage, run_later_stage
from txstream.metas import BatchMetas, MetaCodec
from txstream.transaction import TransactionAttempt

if TYPE_CHECKING:
    from pyspark import RDD, Broadcast, SparkContext

_WORK = "txstream.work"


@dataclass(frozen=True)
class BatchResult:
    """What a processed batch leaves: unmerged deltas by committer, and where its time went."""

    deltas: Mapping[str, list[pa.Table]]
    records: int
    job_seconds: float
    read_seconds: float
    process_seconds: float
    width: int = 1


class BatchRunner(Protocol):
    """Processes batches. Called from several threads at once, one per batch in flight."""

    def run(self, attempt: TransactionAttempt, metas: BatchMetas[Any]) -> BatchResult:
        """Process one attempt. Raises the TxstreamError that the executor reported, or another on a crash."""

    def cancel(self, attempt: TransactionAttempt) -> None:
        """Ask a running attempt to stop; it may go on for a while."""

    def close(self) -> None: ...


def work_order(
    attempt: TransactionAttempt,
    metas: BatchMetas[Any],
    codec: MetaCodec[Any],
    max_width: int,
    *,
    width: int | None = None,
) -> WorkOrder:
    """Spread a batch's partitions over as many Spark tasks as it is worth (or over `width`, as far as it
    goes), the largest first."""
    sizes = {partition: getattr(meta, "records", None) for partition, meta in metas.partitions.items()}
    known = [size for size in sizes.values() if size is not None]
    total = sum(known) if len(known) == len(sizes) else None
    if width is None:
        width = batch_width(total, len(sizes), max_width)
    else:
        width = max(1, min(width, len(sizes), max_width))
    assignments: list[dict[str, Any]] = [{} for _ in range(width)]
    loads = [0] * width
    for partition, meta in sorted(
        metas.partitions.items(), key=lambda item: (-(sizes[item[0]] or 1), item[0])
    ):
        lightest = loads.index(min(loads))
        assignments[lightest][partition] = codec.encode_meta(meta)
        loads[lightest] += sizes[partition] or 1
    return WorkOrder(attempt, width, assignments)


def collect_result(
    attempt: TransactionAttempt, messages: Iterable[bytes], job_seconds: float, width: int
) -> BatchResult:
    """Put the Spark tasks' answers together. Raises the error of the first that failed."""
    deltas: dict[str, list[pa.Table]] = {}
    totals = {"records": 0, "read_seconds": 0.0, "process_seconds": 0.0}
    for message in messages:
        header, tables = unpack(message)
        if "failure" in header:
            raise Failure(**header["failure"]).to_error(attempt)
        for name in totals:
            totals[name] += header["stats"][name]
        for component, table in tables.items():
            deltas.setdefault(component, []).append(table)
    return BatchResult(
        deltas,
        int(totals["records"]),
        job_seconds,
        totals["read_seconds"],
        totals["process_seconds"],
        width,
    )


@dataclass
class SparkRunner:
    """See the module. `pool` is the FAIR scheduler's pool for processing."""

    context: SparkContext
    plan: ExecutionPlan
    pool: str = "processing"
    _rdds: dict[int, RDD[Any]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._codec = self.plan.codec()
        self._shipped: Broadcast[bytes] = self.context.broadcast(_pickle(self.plan))

    def run(self, attempt: TransactionAttempt, metas: BatchMetas[Any]) -> BatchResult:
        order = work_order(attempt, metas, self._codec, self.plan.max_width)
        stages = self.plan.stages(order.width)
        context = self.context
        started = time.perf_counter()
        rdd: RDD[Any] = self._first_stage(stages[0].width)
        order = fit_order(order, stages[0].width)
        for stage in stages[1:]:
            later = functools.partial(_later_stage, self._shipped, self.plan.run_id, stage.position)
            rdd = rdd.partitionBy(stage.width, _same).mapPartitionsWithIndex(later)
        tag = _tag(self.plan.run_id, attempt)
        context.setLocalProperty(_WORK, order.to_json())
        context.setLocalProperty("spark.scheduler.pool", self.pool)
        context.addJobTag(tag)
        try:
            answers = rdd.collect()
        except TxstreamError:
            raise
        except Exception as error:
            raise BoltError(f"{attempt}: its Spark job failed: {_spark_reason(error)}") from error
        finally:
            context.removeJobTag(tag)
        return collect_result(
            attempt, (message for _, message in answers), time.perf_counter() - started, order.width
        )

    def cancel(self, attempt: TransactionAttempt) -> None:
        self.context.cancelJobsWithTag(_tag(self.plan.run_id, attempt))

    def close(self) -> None:
        self._shipped.unpersist()

    def _first_stage(self, width: int) -> RDD[Any]:
        with self._lock:
            if width not in self._rdds:
                first = functools.partial(_first_stage, self._shipped, self.plan.run_id)
                self._rdds[width] = self.context.parallelize(range(width), width).mapPartitionsWithIndex(
                    first
                )
            return self._rdds[width]


def fit_order(order: WorkOrder, width: int) -> WorkOrder:
    """The order for a first stage that has fewer slots than the batch is worth Spark tasks."""
    if len(order.assignments) == width:
        return order
    merged: list[dict[str, Any]] = [{} for _ in range(width)]
    for position, assigned in enumerate(order.assignments):
        merged[position % width].update(assigned)
    return WorkOrder(order.attempt, order.width, merged)


def _pickle(plan: ExecutionPlan) -> bytes:
    return bytes(cloudpickle.dumps(plan))  # type: ignore[no-untyped-call]  # pyspark's copy


def _tag(run_id: str, attempt: TransactionAttempt) -> str:
    return f"txstream-{run_id}-{attempt.attempt}"


def _same(key: int) -> int:
    return key


def _first_stage(
    shipped: Broadcast[bytes], run_id: str, index: int, _: Iterator[int]
) -> Iterator[tuple[int, bytes]]:
    return iter(run_first_stage(_load(shipped, run_id), index, _order()))


def _later_stage(
    shipped: Broadcast[bytes], run_id: str, position: int, index: int, items: Iterator[tuple[int, bytes]]
) -> Iterator[tuple[int, bytes]]:
    messages = [message for _, message in items]
    return iter(run_later_stage(_load(shipped, run_id), position, index, _order(), messages))


def _order() -> WorkOrder:
    from pyspark import TaskContext

    context = TaskContext.get()
    text = context.getLocalProperty(_WORK) if context is not None else None
    if text is None:
        raise RuntimeError("this Spark task has no work order: it was not started by SparkRunner.run")
    return WorkOrder.from_json(text)


_PLANS: dict[str, ExecutionPlan] = {}


def _load(shipped: Broadcast[bytes], run_id: str) -> ExecutionPlan:
    plan = _PLANS.get(run_id)
    if plan is None:
        _PLANS.clear()
        plan = _PLANS[run_id] = cloudpickle.loads(shipped.value)
    return plan


def _spark_reason(error: Exception) -> str:
    """The line of a Py4J error that says what happened, without the JVM's stack."""
    text = str(getattr(error, "java_exception", None) or error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        if "No module named" in line and "txstream" in line:
            return f"{line} (make the framework a zip with `txstream package`, ship it with --py-files)"
        if line.startswith(("ModuleNotFoundError", "ImportError")):
            return f"{line} (ship your own modules with --py-files)"
    return next(
        (line for line in lines if "Job aborted" in line or "cancelled" in line), lines[0] if lines else ""
    )
