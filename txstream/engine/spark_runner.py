"""Batches on Spark: each phase of an attempt is one job, whose partitions are the Spark tasks of its stages.

A layout of a single stage is built once per width and used for every batch: the batch's ranges travel as a
local property of the job, so several batches may be in flight. With an exchange, a DataFrame or a commit
phase it is built for each attempt, because Spark would hand back the blocks of an older one.

What crosses into the commit phase is persisted on the executors. What is lost there is computed again from
the ranges, which were fixed before the attempt began.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel, cloudpickle

from txstream.api.errors import BoltError, TxstreamError
from txstream.engine.dataframes import check_dataframes, compute
from txstream.engine.executor import WORK_PROPERTY, current_order, shipped_plan
from txstream.engine.layout import Layout, Stage, lay_out
from txstream.engine.messages import ANSWER, PYTHON, Answer, Element
from txstream.engine.plan import ExecutionPlan
from txstream.engine.process import worker_process
from txstream.engine.runner import NOTHING, BatchResult, collect_result, open_answers, work_order
from txstream.engine.wire import WorkOrder
from txstream.engine.worker import run_first_stage, run_later_stage
from txstream.metas import BatchMetas
from txstream.transaction import TransactionAttempt

if TYPE_CHECKING:
    from pyspark import RDD, Broadcast, SparkContext
    from pyspark.sql import SparkSession

PROCESSING_POOL = "processing"
COMMIT_POOL = "commit"


@dataclass
class _Pipeline:
    """The RDDs of one attempt. `persisted` are dropped when the attempt is done with."""

    attempt: TransactionAttempt
    order: WorkOrder
    layout: Layout
    rdd: RDD[Any]
    senders: Mapping[str, int]
    answers: list[Answer] = field(default_factory=list)
    persisted: list[RDD[Any]] = field(default_factory=list)

    def keep(self) -> None:
        """Have what the RDD holds computed only once."""
        self.rdd.persist(StorageLevel.MEMORY_AND_DISK)
        self.persisted.append(self.rdd)

    def release(self) -> None:
        persisted, self.persisted = self.persisted, []
        for rdd in persisted:
            rdd.unpersist()


class SparkRunner:
    """See the module. `session` is needed for DataFrame bolts; without one, one is made when it is needed."""

    def __init__(
        self, context: SparkContext, plan: ExecutionPlan, session: SparkSession | None = None
    ) -> None:
        self.plan = plan
        self.slots: Mapping[str, int] = {}
        self._context = context
        self._session = session
        self._codec = plan.codec()
        self._lock = threading.Lock()
        self._simple: dict[int, RDD[Any]] = {}
        check_dataframes(plan)
        self._shipped: Broadcast[bytes] = context.broadcast(_pickle(plan))

    # --- for the event loop -------------------------------------------------------------------------

    def run(self, attempt: TransactionAttempt, metas: BatchMetas[Any]) -> BatchResult:
        """Process one attempt. Raises the TxstreamError that a Spark task reported, or BoltError."""
        started = time.perf_counter()
        order = work_order(attempt, metas, self.plan, self._codec, self.slots)
        layout = lay_out(self.plan, order.width, order.slots)
        first = self._first_stage(layout)
        pipeline = _Pipeline(attempt, order, layout, first, {PYTHON: layout.stages[0].width})
        try:
            with _Job(self._context, self.plan, order, PROCESSING_POOL):
                for stage in layout.process[1:]:
                    self._extend(pipeline, stage)
                if layout.commit:
                    pipeline.keep()
                self._collect_answers(pipeline)
            return collect_result(
                self.plan,
                attempt,
                pipeline.answers,
                time.perf_counter() - started,
                order.width,
                kept=pipeline,
            )
        except BaseException:
            pipeline.release()
            raise

    def commit(self, attempt: TransactionAttempt, processed: BatchResult) -> BatchResult:
        """Run the bolts of the commit phase. Raises the TxstreamError that a Spark task reported, or
        BoltError."""
        pipeline: _Pipeline = processed.kept
        if not pipeline.layout.commit:
            return NOTHING
        started = time.perf_counter()
        pipeline.answers = []
        with _Job(self._context, self.plan, pipeline.order, COMMIT_POOL):
            pipeline.rdd = pipeline.rdd.filter(_is_message)
            for stage in pipeline.layout.commit:
                self._extend(pipeline, stage)
            self._collect_answers(pipeline)
        return collect_result(
            self.plan,
            attempt,
            pipeline.answers,
            time.perf_counter() - started,
            pipeline.order.width,
            crossing=processed.crossing,
        )

    def release(self, processed: BatchResult) -> None:
        """Drop what was persisted for the commit phase."""
        if isinstance(processed.kept, _Pipeline):
            processed.kept.release()

    def cancel(self, attempt: TransactionAttempt) -> None:
        self._context.cancelJobsWithTag(_tag(self.plan.run_id, attempt))

    def close(self) -> None:
        self._shipped.unpersist()

    # --- the jobs -----------------------------------------------------------------------------------

    def _first_stage(self, layout: Layout) -> RDD[Any]:
        if not layout.is_simple:
            return self._new_first_stage(layout.stages[0].width)
        width = layout.stages[0].width
        with self._lock:
            if width not in self._simple:
                self._simple[width] = self._new_first_stage(width)
            return self._simple[width]

    def _new_first_stage(self, width: int) -> RDD[Any]:
        first = functools.partial(_first_stage, self._shipped, self.plan.run_id)
        return self._context.parallelize(range(width), width).mapPartitionsWithIndex(first)

    def _extend(self, pipeline: _Pipeline, stage: Stage) -> None:
        """Put a stage behind the RDD."""
        if not stage.dataframes:
            pipeline.rdd = self._later_stage(pipeline, stage)
            pipeline.senders = {PYTHON: stage.width}
            return
        # Read twice, by Spark and by the bolts beside it: computed before either reads it.
        pipeline.keep()
        self._collect_answers(pipeline)
        pipeline.rdd = pipeline.rdd.filter(_is_message)
        parts: list[RDD[Any]] = []
        senders: dict[str, int] = {}
        for bolt in stage.dataframes:
            for origin, computed in compute(
                self._open_session(), self.plan, self._shipped, pipeline.order, stage, bolt, pipeline.rdd
            ):
                parts.append(computed)
                senders[origin] = computed.getNumPartitions()
        if stage.bolts or stage.relays:
            parts.append(self._later_stage(pipeline, stage))
            senders[PYTHON] = stage.width
        pipeline.rdd = self._context.union(parts)
        pipeline.senders = senders

    def _later_stage(self, pipeline: _Pipeline, stage: Stage) -> RDD[Any]:
        later = functools.partial(
            _later_stage, self._shipped, self.plan.run_id, stage.position, dict(pipeline.senders)
        )
        rdd = pipeline.rdd
        if stage.width > 1 or rdd.getNumPartitions() > 1:
            rdd = rdd.partitionBy(stage.width, _same)
        return rdd.mapPartitionsWithIndex(later)

    def _collect_answers(self, pipeline: _Pipeline) -> None:
        """Run the job that gives the answers. Raises the error of the first that failed."""
        rdd = pipeline.rdd if not pipeline.rdd.is_cached else pipeline.rdd.filter(_is_answer)
        try:
            found = rdd.collect()
        except TxstreamError:
            raise
        except Exception as error:
            raise BoltError(f"{pipeline.attempt}: its Spark job failed: {_spark_reason(error)}") from error
        messages = [message for target, message in found if target == ANSWER]
        pipeline.answers += open_answers(pipeline.attempt, messages)

    def _open_session(self) -> SparkSession:
        with self._lock:
            if self._session is None:
                from pyspark.sql import SparkSession

                self._session = SparkSession(self._context)
                # Spark's default of 200 would make every shuffle of a small batch 200 Spark tasks.
                self._session.conf.set("spark.sql.shuffle.partitions", self._context.defaultParallelism)
            return self._session


class _Job:
    """The local properties of a thread's Spark jobs while an attempt uses it."""

    def __init__(self, context: SparkContext, plan: ExecutionPlan, order: WorkOrder, pool: str) -> None:
        self._context = context
        self._order = order
        self._pool = pool
        self._tag = _tag(plan.run_id, order.attempt)

    def __enter__(self) -> None:
        self._context.setLocalProperty(WORK_PROPERTY, self._order.to_json())
        self._context.setLocalProperty("spark.scheduler.pool", self._pool)
        self._context.addJobTag(self._tag)

    def __exit__(self, *_: object) -> None:
        self._context.removeJobTag(self._tag)


def _pickle(plan: ExecutionPlan) -> bytes:
    return bytes(cloudpickle.dumps(plan))  # type: ignore[no-untyped-call]  # pyspark's copy


def _tag(run_id: str, attempt: TransactionAttempt) -> str:
    return f"txstream-{run_id}-{attempt.attempt}"


def _same(key: int) -> int:
    return key


def _is_answer(element: Element) -> bool:
    return element[0] == ANSWER


def _is_message(element: Element) -> bool:
    return element[0] != ANSWER


# --- on the executors ----------------------------------------------------------------------------------


def _first_stage(shipped: Broadcast[bytes], run_id: str, index: int, _: Iterator[int]) -> Iterator[Element]:
    plan = shipped_plan(shipped, run_id)
    return iter(run_first_stage(plan, index, current_order(), worker_process(plan)))


def _later_stage(
    shipped: Broadcast[bytes],
    run_id: str,
    position: int,
    senders: Mapping[str, int],
    index: int,
    elements: Iterable[Element],
) -> Iterator[Element]:
    plan = shipped_plan(shipped, run_id)
    messages: list[bytes] = []
    for target, message in elements:
        if target == ANSWER:
            yield target, message
        else:
            messages.append(message)
    yield from run_later_stage(
        plan, position, index, current_order(), messages, senders, worker_process(plan)
    )


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
