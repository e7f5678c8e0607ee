"""One Spark task of one stage of one batch: emit or receive tuples, push them through the bolts, hand on.

It runs in a worker process on an executor. It imports neither SQL nor ZooKeeper, so that executors need only
Arrow and what their spout reads with.

Invariant: nothing but CrashError is raised from here. A failure is an answer like any other, and goes to
every Spark task of the next stage, so that none runs on half of a batch.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any

import pyarrow as pa

from txstream.api.spouts import PartitionEmitter
from txstream.api.tuples import DEFAULT_STREAM
from txstream.core.batch_metas import pieces
from txstream.core.dead_letters import DeadLetter
from txstream.core.errors import (
    BatchFailedError,
    BoltError,
    DecodeError,
    ServiceUnavailableError,
    ShortBatchError,
    TxstreamError,
    UsageError,
)
from txstream.core.fault_points import CrashError
from txstream.core.placement import TaskPlace
from txstream.core.readings import Reading
from txstream.core.transaction import TransactionAttempt
from txstream.core.wording import counted
from txstream.engine.batch.edge_counts import EdgeCount, EdgeName, shared_out
from txstream.engine.batch.execution_plan import ExecutionPlan
from txstream.engine.batch.executor_failures import TaskFailedError, describe
from txstream.engine.batch.layout import Layout, Stage, lay_out
from txstream.engine.batch.leaving_out import LeavingOut, require_heard
from txstream.engine.batch.messages import (
    ANSWER,
    PYTHON,
    Answer,
    Element,
    Message,
    WorkOrder,
    address_failure,
    open_messages,
)
from txstream.engine.batch.stage import StageRun
from txstream.engine.batch.worker_process import WorkerProcess

# A chunk of this size is worth the cost of a bolt's call.
_CHUNK_ROWS = 20_000
_CHUNK_BYTES = 4 * 1024 * 1024
_KEPT_BYTES = 32 * 1024 * 1024
_LEFT_OUT_BYTES = 1024 * 1024
"""Records that are left out go with the answer, if they are not larger together."""


def run_first_stage(
    plan: ExecutionPlan, spark_task: int, order: WorkOrder, process: WorkerProcess
) -> list[Element]:
    """Read this Spark task's partitions and run the first stage. Returns the elements to hand on."""
    layout = lay_out(plan, order.width, order.slots)
    stage = layout.stages[0]

    def work(started: float) -> list[Element]:
        run = StageRun(plan, layout, stage, spark_task, order, process)
        records, waited, reading = _read(plan, spark_task, order, run, process)
        run.finish()
        if order.sought is not None:
            order.sought.refuse(run.outbox.tables())
        answer = _answer(run, started, waited)
        if run.leaving is not None:
            answer.gaps = run.leaving.gaps
            answer.stored = _stored(run.leaving, process)
        answer.records, answer.read_seconds, answer.reading = records, waited, reading
        answer.places.insert(0, _spout_place(plan, spark_task, process, records, waited))
        return _elements(run, answer)

    return _reporting(layout, stage, spark_task, plan.spout_id, process, work)


def run_later_stage(
    plan: ExecutionPlan,
    position: int,
    spark_task: int,
    order: WorkOrder,
    messages: Iterable[bytes],
    senders: Mapping[str, int],
    process: WorkerProcess,
    fetching_ns: int = 0,
) -> list[Element]:
    """Run the stage at `position` on what was sent to this Spark task, which has taken so many nanoseconds to
    come. `senders` has, by origin, how many senders there are: each must have sent one message. Returns the
    elements to hand on."""
    layout = lay_out(plan, order.width, order.slots)
    stage = layout.stages[position]
    who = stage.bolts[0].id if stage.bolts else f"stage {position}"

    def work(started: float) -> list[Element]:
        run = StageRun(plan, layout, stage, spark_task, order, process)
        opening = time.perf_counter_ns()
        opened = open_messages(messages, senders, repr(who))
        taking_ns = _by_edge(plan, opened, fetching_ns + time.perf_counter_ns() - opening)
        run.heard = {f"{one.origin}/{one.sender}": one.lineage for one in opened if one.lineage}
        if order.lineages is not None and stage is layout.commit[0]:
            require_heard(order.attempt, run.heard, order.lineages)
        for message in opened:
            if message.failure is not None:
                raise TaskFailedError(message.failure)
            _deliver(run, message)
        run.finish()
        answer = _answer(run, started, 0.0)
        answer.taking_ns = taking_ns
        return _elements(run, answer)

    return _reporting(layout, stage, spark_task, who, process, work)


def _reporting(
    layout: Layout,
    stage: Stage,
    spark_task: int,
    who: str,
    process: WorkerProcess,
    work: Callable[[float], list[Element]],
) -> list[Element]:
    try:
        return work(time.perf_counter())
    except CrashError:
        raise
    except BaseException as error:  # noqa: BLE001 - every failure of user code is reported, none is lost
        failure = error.failure if isinstance(error, TaskFailedError) else describe(error, who, None)
        following = layout.following(stage)
        width = 0 if following is None else following.width
        return list(address_failure(PYTHON, spark_task, width, failure))
    finally:
        process.end_task()


def _decoded(plan: ExecutionPlan, letters: Sequence[DeadLetter]) -> pa.RecordBatch:
    """Return the records of dead letters as the spout emits them. Here and not in the driver, which a decoder
    may end. What would end a run is of these records: they stay dead."""
    try:
        return plan.create_source().letter_decoder(plan.context)(letters)
    except TxstreamError as error:
        if isinstance(error, (BatchFailedError, ServiceUnavailableError, UsageError)):
            raise
        raise DecodeError(str(error)) from error


def _read(
    plan: ExecutionPlan, spark_task: int, order: WorkOrder, run: StageRun, process: WorkerProcess
) -> tuple[int, float, Reading]:
    """Push what the emitter reads. Returns the number of records, the seconds spent waiting for them, and
    what the emitter tells of them."""
    assigned = order.assignments[spark_task]
    if order.letters and spark_task == 0:
        records = _decoded(plan, order.letters)
        run.outbox.push(plan.spout_id, DEFAULT_STREAM, spark_task, records)
        return records.num_rows, 0.0, Reading()
    if not assigned:
        return 0, 0.0, Reading()
    emitter, codec = process.spout()
    emitter.take_reading()  # of a task that has failed
    emitter.keep_stored(0 if run.leaving is None else _KEPT_BYTES)
    emitter.known = order.known
    attempt = str(order.attempt)
    metas = {
        partition: codec.decode_meta(meta, f"partition {partition!r} of {attempt}")
        for partition, meta in assigned.items()
    }
    if order.ahead:
        emitter.take_ahead(metas, order.ahead)
    planned = {partition: getattr(meta, "records", None) for partition, meta in metas.items()}
    rows: Counter[str] = Counter()
    waited = 0.0
    leaving = run.leaving

    def push(some: pa.RecordBatch) -> None:
        placed = some if leaving is None else leaving.placed(some)
        run.outbox.push(plan.spout_id, DEFAULT_STREAM, spark_task, placed)

    joined = _JoinedChunks(push)
    rounds = _without(metas, order.excluded) if order.excluded else [metas]
    batches: Iterator[tuple[Mapping[str, int], pa.RecordBatch]]
    if leaving is None:
        batches = chain.from_iterable(emitter.emit_joined(order.attempt, each) for each in rounds)
    else:
        batches = _fitting(emitter, order.attempt, rounds, leaving)
    while True:
        started = time.perf_counter()
        item = next(batches, None)
        waited += time.perf_counter() - started
        if item is None:
            joined.push()
            if leaving is not None:
                leaving.require_unfit(assigned)
            return rows.total(), waited, emitter.take_reading()
        counts, batch = item
        rows.update(counts)
        for partition in counts:
            most = planned.get(partition)
            if most is not None and rows[partition] > most:
                raise BoltError(
                    f"partition {partition!r} gave {counted(rows[partition], 'row')}, but its meta says "
                    f"records={most}: {metas[partition]!r:.200}; a source must not emit more than it has "
                    f"planned"
                )
        if sum(counts.values()) != batch.num_rows:
            raise BoltError(
                f"a batch of {counted(batch.num_rows, 'row')} came with counts of "
                f"{counted(sum(counts.values()), 'row')} over {counted(len(counts), 'partition')}; "
                f"a source must say of each row whose it is"
            )
        joined.add(batch)


def _stored(leaving: LeavingOut, process: WorkerProcess) -> pa.Table | None:
    """Return the records that were left out as they are stored, so that the driver need not read them."""
    places = [(one.partition, one.offset) for one in leaving.found]
    found = process.spout()[0].take_stored(places) if places else None
    return found if found is not None and found.nbytes <= _LEFT_OUT_BYTES else None


def _fitting(
    emitter: PartitionEmitter[Any],
    attempt: TransactionAttempt,
    rounds: Iterable[Mapping[str, Any]],
    leaving: LeavingOut,
) -> Iterator[tuple[Mapping[str, int], pa.RecordBatch]]:
    """Yield what is read, without what cannot be decoded."""
    for metas in rounds:
        leaving.begin_round(metas)
        for counts, batch, offsets in emitter.emit_fitting(attempt, metas, leaving.unfit):
            leaving.add(counts, offsets)
            yield counts, batch


def _without(metas: Mapping[str, Any], excluded: Mapping[str, Sequence[int]]) -> Iterator[Mapping[str, Any]]:
    """Yield what to read, one piece of each partition after the other: a range is cut where a record is left
    out, so that nothing reads or decodes it."""
    cut = {name: pieces(meta, excluded[name]) if name in excluded else [meta] for name, meta in metas.items()}
    for each in zip_longest(*cut.values()):
        yield {name: piece for name, piece in zip(cut, each, strict=True) if piece is not None}


class _JoinedChunks:
    """Joins small chunks, of many partitions for example, and pushes them as one: a bolt's call costs the
    same for 5 rows as for 5,000. Rows keep their order."""

    def __init__(self, push: Callable[[pa.RecordBatch], None]) -> None:
        self._push = push
        self._held: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        rows, size = batch.num_rows, batch.nbytes
        if not rows:
            return
        is_large = rows >= _CHUNK_ROWS or size >= _CHUNK_BYTES
        if self._held and (is_large or not batch.schema.equals(self._held[0].schema)):
            self.push()
        self._held.append(batch)
        self._rows += rows
        self._bytes += size
        if is_large or self._rows >= _CHUNK_ROWS or self._bytes >= _CHUNK_BYTES:
            self.push()

    def push(self) -> None:
        """Push what is held."""
        held, self._held = self._held, []
        self._rows = self._bytes = 0
        if held:
            self._push(held[0] if len(held) == 1 else pa.concat_batches(held))


def _deliver(run: StageRun, message: Message) -> None:
    computed = {bolt.id for bolt in run.stage.dataframes}
    for parcel, table in message.parcels.items():
        if parcel.stage < run.stage.position:
            raise ShortBatchError(
                f"tuples of {parcel.source!r} for stage {parcel.stage} came to stage {run.stage.position}"
            )
        if parcel.stage > run.stage.position:
            run.outbox.carry(parcel, table)
        elif parcel.component not in computed:
            run.deliver(parcel, table)


def _by_edge(plan: ExecutionPlan, messages: Iterable[Message], nanoseconds: int) -> EdgeCount:
    """Divide the time that messages took to be taken in by the bytes of each edge."""
    if plan.fed:  # nobody is told
        return Counter()
    sizes: Counter[EdgeName] = Counter()
    for message in messages:
        for parcel, table in message.parcels.items():
            sizes[parcel.edge] += 1 + table.get_total_buffer_size()
    # What a DataFrame bolt reads passes by here.
    found = shared_out(nanoseconds, sizes)
    return Counter(
        {edge: spent for edge, spent in found.items() if not plan.bolt(edge.component).is_dataframe}
    )


def _answer(run: StageRun, started: float, waited: float) -> Answer:
    return Answer(
        deltas=run.deltas(),
        emitted=run.outbox.captured(),
        places=run.places(),
        sent=run.outbox.sent,
        received=run.outbox.received,
        sending_ns=run.outbox.sending_ns,
        written=run.written(),
        tracked=run.tracked(),
        process_seconds=time.perf_counter() - started - waited,
        stage=run.stage.position,
        sender=run.spark_task,
        left_out=() if run.leaving is None else run.leaving.found,
        lineage=run.lineage,
        heard=run.heard,
    )


def _elements(run: StageRun, answer: Answer) -> list[Element]:
    # First, because the answer says how long it took.
    messages = run.outbox.messages(PYTHON, run.lineage)
    return [(ANSWER, answer.encode()), *messages]


def _spout_place(
    plan: ExecutionPlan, spark_task: int, process: WorkerProcess, records: int, seconds: float
) -> TaskPlace:
    return TaskPlace(
        plan.spout_id, spark_task, spark_task, process.worker, process.host, round(seconds, 6), records
    )
