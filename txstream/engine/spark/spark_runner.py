"""Batches on Spark: each phase of an attempt is one job, whose partitions are the Spark tasks of its stages.

A batch whose layout is a single stage, and narrow enough, needs no job while `small_batches` takes it.
Otherwise the RDD of such a layout is built once per width and used for every batch: the batch's
ranges travel as a local property of the job, so several batches may be in flight. With an exchange, a
DataFrame or a commit phase, RDDs are built for each attempt, because Spark would hand back the blocks of an
older one.

Over 500 lines: one runner, whose ways to run an attempt share its sessions, RDDs and what is persisted.

What crosses into the commit phase is persisted on the executors, and so is what a DataFrame bolt reads. If it
is lost there, it is computed again from the ranges, which were fixed before the attempt began.

Invariant: nothing stays persisted for an attempt that failed or was released, nor once the runner is closed.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from pyspark import StorageLevel, cloudpickle

from txstream.core.batch_metas import BatchMetas
from txstream.core.errors import BatchFailedError, TxstreamError
from txstream.core.transaction import TransactionAttempt
from txstream.engine.batch.execution_plan import ExecutionPlan
from txstream.engine.batch.layout import Layout, Stage, lay_out
from txstream.engine.batch.messages import ANSWER, DRIVER, PYTHON, Answer, Element, WorkOrder
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
from txstream.engine.batch.sizing import RecordCost, work_order
from txstream.engine.batch.sought import Sought
from txstream.engine.batch.task_answers import collect_result, open_answers
from txstream.engine.batch.task_tree import task_tree
from txstream.engine.batch.worker import run_first_stage, run_later_stage
from txstream.engine.batch.worker_process import worker_process
from txstream.engine.spark.computed_bolts import Computation, ComputedBolts, computed_bolts
from txstream.engine.spark.errors import spark_error
from txstream.engine.spark.executor import current_order, shipped_plan
from txstream.engine.spark.java_process import SparkProcess
from txstream.engine.spark.jobs import JobProperties, collect, succeeded_tasks
from txstream.engine.spark.session import COMMIT_POOL, PROCESSING_POOL
from txstream.engine.spark.small_batches import small_batches

if TYPE_CHECKING:
    from pyspark import RDD, Broadcast, SparkContext
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


def _blaming(
    call: Callable[Concatenate[SparkRunner, P], T],
) -> Callable[Concatenate[SparkRunner, P], T]:
    """Make a method raise SparkLostError for any error that the end of Spark's process causes."""

    def blaming(self: SparkRunner, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._process.blamed():
            return call(self, *args, **kwargs)

    return blaming


@dataclass(eq=False)
class _Pipeline:
    """The RDDs of one attempt, as far as they are built.

    `senders` are the origins whose messages the RDD holds, with their number of partitions. `settled` says
    that the RDD is computed and persisted, and its answers are collected. `dataframes` are the DataFrame
    bolts that were added since it was last settled.
    """

    attempt: TransactionAttempt
    order: WorkOrder
    layout: Layout
    rdd: RDD[Any]
    senders: Mapping[str, int]
    answers: list[Answer] = field(default_factory=list)
    dataframes: list[str] = field(default_factory=list)
    # The positions of the stages that each Spark stage runs; None with a DataFrame, where Spark decides.
    spark_stages: list[list[int]] | None = field(default_factory=lambda: [[0]])
    settled: bool = False
    cancelled: bool = False
    persisted: list[RDD[Any]] = field(default_factory=list)

    def release(self) -> None:
        persisted, self.persisted = self.persisted, []
        for rdd in persisted:
            rdd.unpersist()


class SparkRunner:
    """A `BatchRunner` on Spark.

    `session` is the user's, for DataFrame bolts; without one they get sessions of the runner's own.
    `computed` is for DataFrame bolts, if it is made already. `width` is the number of Spark tasks
    that every batch gets, as far as slots go; with None it depends on the batch's size and on how long
    earlier batches took. `residents` is the number of Spark tasks that stay for small batches.
    """

    def __init__(
        self,
        context: SparkContext,
        plan: ExecutionPlan,
        session: SparkSession | None = None,
        *,
        width: int | None = None,
        computed: ComputedBolts | None = None,
        residents: int = 0,
    ) -> None:
        self.plan = plan
        self.slots: Mapping[str, int] = {}
        self.fetched: Mapping[str, str] = {}
        self._context = context
        self._process = SparkProcess.of(context._gateway)
        self._width = width
        self._cost = RecordCost()
        self._lock = threading.Lock()
        self._indexes: dict[int, RDD[int]] = {}
        self._simple: dict[int, RDD[Any]] = {}
        self._live: dict[TransactionAttempt, _Pipeline] = {}
        # The attempt whose shares are being written, until it is cancelled.
        self._writing: set[TransactionAttempt] = set()
        self._closed = False
        self._properties = JobProperties(context)
        self._shipped: Broadcast[bytes] = context.broadcast(pickled(plan))
        self._computed = computed or computed_bolts(context, session, plan)
        self._small_batches = small_batches(context, self._shipped, plan.run_id, residents)

    # --- for the event loop -------------------------------------------------------------------------

    @_blaming
    def run(self, attempt: TransactionAttempt, metas: BatchMetas[Any], spare: int = 0) -> BatchResult:
        """Process one attempt. Raises the TxstreamError that a Spark task reported, or BoltError."""
        order = work_order(
            attempt,
            metas,
            self.plan,
            self.slots,
            width=self._width,
            # Nobody knows how long DataFrame bolts take.
            record_seconds=None if self._computed else self._cost.seconds,
            can_stay=self._small_batches.count > 0,
            spare=spare,
            known=self.fetched,
        )
        layout = lay_out(self.plan, order.width, order.slots)
        width = layout.stages[0].width
        is_small = layout.is_simple and width <= self._small_batches.count
        result = self._by_residents(order, width) if is_small else None
        if result is None:
            self._small_batches.job_begins(is_small=is_small)
            order = replace(order, ahead={})  # Spark shows and logs what travels with a job
            first = self._first_stage(layout)
            result = self._process_all(_Pipeline(attempt, order, layout, first, {PYTHON: width}))
            self._small_batches.job_succeeded(is_small=is_small)
        if not layout.commit:
            self._cost.add(result.records, result.read_seconds + result.process_seconds)
        return result

    def _by_residents(self, order: WorkOrder, width: int) -> BatchResult | None:
        """Have residents process a batch of one stage. Returns None if a job has to."""
        started = time.perf_counter()
        elements = self._small_batches.run(order, width)
        if elements is None:
            return None
        answers = open_answers(order.attempt, [message for _, message in elements])
        seconds = time.perf_counter() - started
        result = collect_result(self.plan, order.attempt, answers, seconds, order.width)
        return replace(result, by_residents=True)

    @_blaming
    def find(
        self,
        attempt: TransactionAttempt,
        parts: Sequence[BatchMetas[Any]],
        *,
        most: int,
        seconds: float,
        sought: Sought | None = None,
    ) -> list[FailingRecord]:
        """See `BatchRunner`. Raises the TxstreamError that ended the search of a Spark task, or BoltError."""
        shares = search_shares(
            self.plan,
            attempt,
            parts,
            self.slots,
            most=most,
            seconds=seconds,
            sought=sought,
            record_seconds=self._cost.seconds,
        )
        search = functools.partial(_search_shares, self._shipped, self.plan.run_id)
        with self._properties.set(_tag(self.plan.run_id, attempt), PROCESSING_POOL):
            rdd = self._context.parallelize(shares, len(shares)).mapPartitions(search)
            return records_found(attempt, _collected(rdd, attempt))

    @_blaming
    def feed(self, order: WorkOrder, messages: Sequence[bytes]) -> BatchResult:
        """Process tuples that come from the driver. Raises as `run`."""
        layout = lay_out(self.plan, order.width, order.slots)
        fed = self._context.parallelize(list(enumerate(messages)), len(messages))
        first = functools.partial(_later_stage, self._shipped, self.plan.run_id, 0, {DRIVER: 1}, False)
        rdd = fed.mapPartitionsWithIndex(first)
        width = layout.stages[0].width
        return self._process_all(_Pipeline(order.attempt, order, layout, rdd, {PYTHON: width}))

    def _process_all(self, pipeline: _Pipeline) -> BatchResult:
        """Run the processing phase of a pipeline that has only its first stage."""
        started = time.perf_counter()
        attempt, order, layout = pipeline.attempt, pipeline.order, pipeline.layout
        self._begin(pipeline)
        try:
            with self._properties.set(_tag(self.plan.run_id, attempt), PROCESSING_POOL, order):
                for stage in layout.process[1:]:
                    self._extend(pipeline, stage)
                self._finish(pipeline, settle=bool(layout.commit))
            result = collect_result(
                self.plan,
                attempt,
                pipeline.answers,
                time.perf_counter() - started,
                order.width,
                kept=pipeline,
            )
        except BaseException:
            self._drop(pipeline)
            raise
        if self._closed or not layout.commit:
            self._drop(pipeline)
        return result

    @_blaming
    def commit(
        self,
        attempt: TransactionAttempt,
        processed: BatchResult,
        committed: TransactionAttempt | None = None,
    ) -> BatchResult:
        """Run the bolts of the commit phase. Raises the TxstreamError that a Spark task reported, or
        BoltError."""
        pipeline: _Pipeline | None = processed.kept
        if pipeline is None or not pipeline.layout.commit:
            return NOTHING
        started = time.perf_counter()
        pipeline.answers = []
        order = processed.to_commit(pipeline.order, committed)
        with self._properties.set(_tag(self.plan.run_id, attempt), COMMIT_POOL, order):
            for stage in pipeline.layout.commit:
                self._extend(pipeline, stage)
            self._finish(pipeline, settle=False)
        result = collect_result(
            self.plan,
            attempt,
            pipeline.answers,
            time.perf_counter() - started,
            pipeline.order.width,
            crossing=processed.crossing,
        )
        seconds = processed.read_seconds + processed.process_seconds + result.process_seconds
        self._cost.add(processed.records, seconds)
        return result

    @_blaming
    def write(self, attempt: TransactionAttempt, writes: Sequence[StateWrite]) -> Sequence[int]:
        """Write deltas in shares, each in a Spark task. Raises the TxstreamError that a Spark task reported,
        or BoltError when Spark gave one up."""
        with self._lock:
            self._writing = {attempt}
        messages, positions = cut_all(writes, self.plan.slots(self.slots))
        shares = self._context.parallelize(messages, len(messages))
        write = functools.partial(_write_shares, self._shipped, self.plan.run_id)
        with self._properties.set(_tag(self.plan.run_id, attempt), COMMIT_POOL):
            if attempt not in self._writing:
                raise BatchFailedError(f"{attempt} was cancelled")
            answers = _collected(shares.mapPartitions(write), attempt)
        return rows_by_write(writes, positions, rows_written(attempt, answers))

    def release(self, processed: BatchResult) -> None:
        """Drop what was persisted for the commit phase."""
        if isinstance(processed.kept, _Pipeline):
            self._drop(processed.kept)

    def cancel(self, attempt: TransactionAttempt) -> None:
        with self._lock:
            pipeline = self._live.get(attempt)
            self._writing.discard(attempt)
        if pipeline is None:
            self._small_batches.cancel(attempt)
        else:
            pipeline.cancelled = True  # for the jobs that the attempt has not begun yet
            self._small_batches.leave()  # it may have waited for a core
        self._context.cancelJobsWithTag(_tag(self.plan.run_id, attempt))

    def end_trial(self, attempt: TransactionAttempt) -> None:
        """See `BatchRunner`. What the attempt runs next is another job."""
        self.cancel(attempt)

    @_blaming
    def task_tree(self, attempt: TransactionAttempt) -> Mapping[str, Any] | None:
        """See `TellsTasks`: Spark knows which of its tasks have succeeded."""
        with self._lock:
            pipeline = self._live.get(attempt)
        if pipeline is None:
            return None
        ended = succeeded_tasks(self._context, _tag(self.plan.run_id, attempt), pipeline.spark_stages)
        return None if ended is None else task_tree(self.plan, pipeline.layout, ended)

    def close(self) -> None:
        """Drop what is persisted for any attempt. An attempt that still runs drops its own when it ends."""
        with self._lock:
            self._closed = True
            live = list(self._live.values())
        try:
            self._small_batches.close()
            for pipeline in live:
                self._drop(pipeline)
            self._shipped.unpersist()
        except Exception as error:  # noqa: BLE001 - a lost cluster keeps nothing; this must not hide its loss
            log.info("what the run kept on its executors could not be dropped: %s", error)

    def _begin(self, pipeline: _Pipeline) -> None:
        with self._lock:
            self._live[pipeline.attempt] = pipeline

    def _drop(self, pipeline: _Pipeline) -> None:
        with self._lock:
            self._live.pop(pipeline.attempt, None)
        pipeline.release()

    # --- the jobs -----------------------------------------------------------------------------------

    def _first_stage(self, layout: Layout) -> RDD[Any]:
        width = layout.stages[0].width
        with self._lock:
            if width not in self._indexes:
                self._indexes[width] = self._context.parallelize(range(width), width)
            if layout.is_simple and width in self._simple:
                return self._simple[width]
            first = functools.partial(_first_stage, self._shipped, self.plan.run_id)
            rdd = self._indexes[width].mapPartitionsWithIndex(first)
            if layout.is_simple:
                self._simple[width] = rdd
            return rdd

    def _extend(self, pipeline: _Pipeline, stage: Stage) -> None:
        """Append a stage to the pipeline."""
        if not stage.dataframes:
            moves = stage.width > 1 or sum(pipeline.senders.values()) > 1
            if pipeline.spark_stages is not None and moves:
                pipeline.spark_stages.append([stage.position])
            elif pipeline.spark_stages is not None:
                pipeline.spark_stages[-1].append(stage.position)
            pipeline.rdd = self._later_stage(pipeline, stage)
            pipeline.senders = {PYTHON: stage.width}
            pipeline.settled = False
            return
        pipeline.spark_stages = None
        # Each DataFrame, and the bolts beside them, read this, so it is computed before any of them does.
        self._settle(pipeline)
        parts: list[RDD[Any]] = []
        senders: dict[str, int] = {}
        for bolt in stage.dataframes:
            pipeline.dataframes.append(bolt.id)
            for origin, computed in self._compute(pipeline, stage, bolt.id):
                parts.append(computed)
                senders[origin] = computed.getNumPartitions()
        if stage.bolts or stage.relays:
            parts.append(self._later_stage(pipeline, stage))
            senders[PYTHON] = stage.width
        # Spark cannot put what follows a union into the same call of Python.
        pipeline.rdd = parts[0] if len(parts) == 1 else self._context.union(parts)
        pipeline.senders = senders
        pipeline.settled = False

    def _compute(self, pipeline: _Pipeline, stage: Stage, component: str) -> list[tuple[str, RDD[Element]]]:
        """The output streams of a DataFrame bolt. With adaptive execution, Spark already runs part of it."""
        assert self._computed is not None, "the plan has such bolts"
        spec = self.plan.bolt(component)
        asked = Computation(self.plan, self._shipped, pipeline.order, stage, spec, pipeline.rdd)
        try:
            return list(self._computed.compute(asked))
        except TxstreamError:
            raise  # `from error` would make it its own cause
        except Exception as error:
            raise spark_error(error, pipeline.attempt, pipeline.dataframes) from error

    def _later_stage(self, pipeline: _Pipeline, stage: Stage) -> RDD[Any]:
        rdd = pipeline.rdd
        moves = stage.width > 1 or sum(pipeline.senders.values()) > 1
        # Otherwise the stage before runs inside this one's call.
        fetches = moves or pipeline.settled
        senders = dict(pipeline.senders)
        later = functools.partial(
            _later_stage, self._shipped, self.plan.run_id, stage.position, senders, fetches
        )
        if moves:
            rdd = rdd.partitionBy(stage.width, _same)
        return rdd.mapPartitionsWithIndex(later)

    def _finish(self, pipeline: _Pipeline, *, settle: bool) -> None:
        """Run the last job of a phase."""
        if settle:
            self._settle(pipeline)
        else:
            self._collect_answers(pipeline, pipeline.rdd)

    def _settle(self, pipeline: _Pipeline) -> None:
        """Compute the pipeline so far once for all its readers, and collect the answers."""
        if pipeline.settled:
            return
        rdd = pipeline.rdd
        rdd.persist(StorageLevel.MEMORY_AND_DISK)
        pipeline.persisted.append(rdd)
        self._collect_answers(pipeline, rdd.filter(_is_answer))
        pipeline.rdd = rdd.filter(_is_message)
        pipeline.settled = True
        pipeline.dataframes = []

    def _collect_answers(self, pipeline: _Pipeline, rdd: RDD[Any]) -> None:
        """Run the job that gives the answers. Raises the error of the first that failed."""
        if pipeline.cancelled:
            raise BatchFailedError(f"{pipeline.attempt} was cancelled")
        found = _collected(rdd, pipeline.attempt, pipeline.dataframes)
        messages = [message for target, message in found if target == ANSWER]
        pipeline.answers += open_answers(pipeline.attempt, messages)


def pickled(plan: ExecutionPlan) -> bytes:
    return bytes(cloudpickle.dumps(plan))  # type: ignore[no-untyped-call]  # pyspark's copy


def _collected(rdd: RDD[T], attempt: TransactionAttempt, dataframes: Sequence[str] = ()) -> list[T]:
    """Run a job. Raises what `spark_error` makes of its failure."""
    try:
        return collect(rdd)
    except TxstreamError:
        raise  # `from error` would make it its own cause
    except Exception as error:
        raise spark_error(error, attempt, dataframes) from error


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


def _write_shares(shipped: Broadcast[bytes], run_id: str, messages: Iterable[Message]) -> Iterator[bytes]:
    process = worker_process(shipped_plan(shipped, run_id))
    for message in messages:
        yield write_share(message, process)


def _search_shares(shipped: Broadcast[bytes], run_id: str, shares: Iterable[str]) -> Iterator[str]:
    plan = shipped_plan(shipped, run_id)
    for share in shares:
        yield search_share(plan, share, worker_process(plan))


def _later_stage(
    shipped: Broadcast[bytes],
    run_id: str,
    position: int,
    senders: Mapping[str, int],
    fetches: bool,
    index: int,
    elements: Iterable[Element],
) -> Iterator[Element]:
    plan = shipped_plan(shipped, run_id)
    started = time.perf_counter_ns()
    came = list(elements)
    fetching_ns = time.perf_counter_ns() - started if fetches else 0
    yield from filter(_is_answer, came)
    messages = [message for target, message in came if target != ANSWER]
    yield from run_later_stage(
        plan, position, index, current_order(), messages, senders, worker_process(plan), fetching_ns
    )
