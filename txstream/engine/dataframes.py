"""DataFrame bolts: tuples from a stage's messages to DataFrames, and back into messages.

The bolt's `transform` runs on the driver and only describes; Spark computes it within the attempt's job. What
it computes is handed on by Spark tasks of its own, one per partition, each of which tells the next stage.
"""

from __future__ import annotations

import functools
import importlib.util
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa

from txstream.api.bolts import DataFrameBolt
from txstream.api.errors import TopologyError, TupleError, TxstreamError
from txstream.api.schema import format_schema
from txstream.api.tuples import DEFAULT_STREAM, Chunk
from txstream.assignment import TaskPlace
from txstream.engine.executor import current_order, shipped_plan
from txstream.engine.failures import describe
from txstream.engine.layout import Stage, lay_out
from txstream.engine.messages import ANSWER, Answer, Element, Message, address_failure, address_messages
from txstream.engine.outbox import Outbox
from txstream.engine.plan import BoltSpec, ExecutionPlan, Input
from txstream.engine.process import WorkerProcess, worker_process
from txstream.engine.tasks import TaskFailedError
from txstream.engine.wire import WorkOrder

if TYPE_CHECKING:
    from pyspark import RDD, Broadcast
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_BLOCK = "block binary"


def check_dataframes(plan: ExecutionPlan) -> None:
    """Raise TopologyError when the plan has a DataFrame bolt and PySpark lacks what it needs for one."""
    needing = [bolt.id for bolt in plan.bolts if bolt.is_dataframe]
    if needing and importlib.util.find_spec("pandas") is None:
        raise TopologyError(
            f"component {needing[0]!r} is a DataFrameBolt, for which PySpark needs pandas here and on the "
            f"executors; install it with pip install 'txstream[dataframe]'"
        )


def compute(
    session: SparkSession,
    plan: ExecutionPlan,
    shipped: Broadcast[bytes],
    order: WorkOrder,
    stage: Stage,
    spec: BoltSpec,
    messages: RDD[Element],
) -> Iterator[tuple[str, RDD[Element]]]:
    """What a DataFrame bolt of `stage` makes of the messages before it, for each of its output streams: a
    name for the sender, and elements for the next stage.

    Raises the error of its `transform`, or TupleError when that answers with other columns than declared.
    """
    bolt = spec.create()
    if not isinstance(bolt, DataFrameBolt):
        raise TopologyError(f"component {spec.id!r} came back from pickle as {type(bolt).__name__}")
    inputs = {_input_name(given): _read(session, plan, stage, spec, given, messages) for given in spec.inputs}
    try:
        outputs = bolt.transform_streams(inputs)
        _check_outputs(spec, outputs)
    except Exception as error:
        raise describe(error, spec.id, None).to_error(order.attempt) from error
    for stream, df in outputs.items():
        blocks = df.mapInArrow(_write_blocks, _BLOCK).rdd
        route = functools.partial(_route, shipped, plan.run_id, spec.id, stream)
        yield f"{spec.id}.{stream}", blocks.mapPartitionsWithIndex(route)


def _input_name(given: Input) -> str:
    return given.source if given.stream == DEFAULT_STREAM else f"{given.source}.{given.stream}"


def _read(
    session: SparkSession,
    plan: ExecutionPlan,
    stage: Stage,
    spec: BoltSpec,
    given: Input,
    messages: RDD[Element],
) -> DataFrame:
    schema = (
        plan.spout_schema if given.source == plan.spout_id else plan.bolt(given.source).streams[given.stream]
    )
    select = functools.partial(_blocks_for, stage.position, spec.id, given.source, given.stream)
    blocks = session.createDataFrame(messages.flatMap(select), _BLOCK, verifySchema=False)
    return blocks.mapInArrow(functools.partial(_read_blocks, schema), _spark_schema(schema))


def _check_outputs(spec: BoltSpec, outputs: Any) -> None:
    from pyspark.sql import DataFrame

    if not isinstance(outputs, Mapping) or set(outputs) != set(spec.streams):
        raise TupleError(
            f"component {spec.id!r} must answer with one DataFrame for each stream that it declares "
            f"({', '.join(map(repr, spec.streams)) or 'none'}), not {outputs!r:.200}"
        )
    for stream, df in outputs.items():
        if not isinstance(df, DataFrame):
            raise TupleError(
                f"component {spec.id!r} must answer with a Spark DataFrame for stream {stream!r}, "
                f"not {type(df).__name__}"
            )
        wanted = _spark_schema(spec.streams[stream])
        found = [(column.name, column.dataType) for column in df.schema]
        if found != [(column.name, column.dataType) for column in wanted]:
            raise TupleError(
                f"component {spec.id!r} answered with {df.schema.simpleString()} for stream {stream!r}, "
                f"which is declared as {format_schema(spec.streams[stream])}"
            )


def _spark_schema(schema: pa.Schema) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


# --- on the executors ----------------------------------------------------------------------------------


def _blocks_for(
    position: int, component: str, source: str, stream: str, element: Element
) -> Iterator[tuple[bytes]]:
    """The tuples of one subscription in one message, as rows of one Arrow stream each."""
    message = Message.decode(element[1])
    if message.failure is not None:
        raise TxstreamError(message.failure.message)
    for parcel, table in message.parcels.items():
        if (parcel.stage, parcel.component, parcel.source, parcel.stream) == (
            position,
            component,
            source,
            stream,
        ):
            yield (_to_block(table),)


def _to_block(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def _read_blocks(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for block in batch.column(0):
            for rows in pa.ipc.open_stream(block.as_buffer()).read_all().to_batches():
                yield pa.RecordBatch.from_arrays(rows.columns, schema=schema)


def _write_blocks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if batch.num_rows:
            block = _to_block(pa.Table.from_batches([batch]))
            yield pa.RecordBatch.from_arrays([pa.array([block], pa.binary())], names=["block"])


def _route(
    shipped: Broadcast[bytes], run_id: str, component: str, stream: str, index: int, rows: Iterable[Any]
) -> Iterator[Element]:
    """Hand on one partition of what was computed, as a task of the bolt would."""
    plan = shipped_plan(shipped, run_id)
    order = current_order()
    layout = lay_out(plan, order.width, order.slots)
    stage = layout.home(component)
    following = layout.following(stage)
    width = 0 if following is None else following.width
    origin = f"{component}.{stream}"
    started = time.perf_counter()
    try:
        outbox = Outbox(plan, layout, stage, index, _nobody_here)
        schema = plan.bolt(component).streams[stream]
        count = 0
        for row in rows:
            table = pa.ipc.open_stream(pa.py_buffer(row.block)).read_all()
            for batch in _as_declared(table, schema, component, stream).to_batches():
                count += batch.num_rows
                outbox.push(component, stream, index, batch)
        place = _place(component, index, worker_process(plan), time.perf_counter() - started, count)
        answer = Answer(emitted=outbox.captured(), sent=outbox.sent, places=[place])
        yield ANSWER, answer.encode()
        if following is not None:
            yield from address_messages(origin, index, width, outbox.tables())
    except Exception as error:  # noqa: BLE001 - reported as an answer, as every failure on an executor is
        failure = error.failure if isinstance(error, TaskFailedError) else describe(error, component, index)
        yield from address_failure(origin, index, width, failure)


def _as_declared(table: pa.Table, schema: pa.Schema, component: str, stream: str) -> pa.Table:
    try:
        return table.cast(schema)
    except (pa.ArrowException, ValueError) as error:
        raise TupleError(
            f"component {component!r} computed {format_schema(table.schema)} for stream {stream!r}, which "
            f"cannot be turned into {format_schema(schema)}: {error}"
        ) from error


def _nobody_here(spec: BoltSpec, task: int, _: Chunk) -> NoReturn:
    raise TopologyError(f"task {task} of {spec.id!r} cannot live in the Spark tasks of a DataFrame bolt")


def _place(component: str, task: int, process: WorkerProcess, seconds: float, tuples: int) -> TaskPlace:
    return TaskPlace(component, task, task, process.worker, process.host, round(seconds, 6), tuples)
