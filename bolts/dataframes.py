"""DataFrame bolts: tuples from a stage's messages to DataFrames, and back into messages.

The bolt's `transform` runs on the driver and only describes the computation, which Spark does within the
attempt's job. The results are handed on by Spark tasks of their own, one per partition, each of which sends
messages to the next stage.

Invariant: the same rows of a partition make the same messages, in whatever order Spark hands them over. Rows
that come through a shuffle come in another order when they are computed again, and an even spread would then
send other rows to a task than the first time.
"""

from __future__ import annotations

import functools
import logging
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from txstream.api.bolts import DataFrameBolt
from txstream.api.schema import format_schema, format_type
from txstream.api.tuples import DEFAULT_STREAM, Chunk
from txstream.core.errors import TopologyError, TupleError
from txstream.core.placement import TaskPlace
from txstream.engine.batch.collector import Outbox
from txstream.engine.batch.execution_plan import BoltSpec, ExecutionPlan, Input
from txstream.engine.batch.executor_failures import TaskFailedError, describe
from txstream.engine.batch.layout import lay_out
from txstream.engine.batch.messages import (
    ANSWER,
    Answer,
    Element,
    Message,
    WorkOrder,
    address_failure,
)
from txstream.engine.batch.worker_process import WorkerProcess, worker_process
from txstream.engine.spark.computed_bolts import Computation
from txstream.engine.spark.executor import current_order, shipped_plan

if TYPE_CHECKING:
    from pyspark import RDD, Broadcast, SparkContext
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

log = logging.getLogger(__name__)

__tracebackhide__ = True  # tracebacks begin in the user's own code

_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
_ADAPTIVE = "spark.sql.adaptive.enabled"
_PLAIN_NAME = re.compile(r"\w+")


def check_dataframes(plan: ExecutionPlan) -> None:
    """Raise TopologyError when the plan has a DataFrame bolt that Spark cannot run, or PySpark lacks what it
    needs for one."""
    needing = [bolt for bolt in plan.bolts if bolt.is_dataframe]
    if not needing:
        return
    from pyspark.errors import PySparkImportError
    from pyspark.sql.pandas.utils import require_minimum_pandas_version

    try:
        require_minimum_pandas_version()
    except PySparkImportError as error:
        raise TopologyError(
            f"component {needing[0].id!r} is a DataFrameBolt, for which PySpark needs pandas on the "
            f"driver; install it with pip install 'txstream[dataframe]' ({error})"
        ) from error
    for bolt in needing:
        if not bolt.streams:
            raise TopologyError(
                f"component {bolt.id!r} is a DataFrameBolt without output, so nothing would be computed; "
                f"declare what its transform returns"
            )
        for stream in bolt.direct_streams:
            raise TopologyError(
                f"component {bolt.id!r} declares stream {stream!r} as direct, but the rows of a DataFrame "
                f"cannot choose their tasks"
            )
        for given in bolt.inputs:
            _spark_schema(_schema_of(plan, given), bolt.id, given.source, given.stream)
        for stream, schema in bolt.streams.items():
            _spark_schema(schema, bolt.id, bolt.id, stream)


class Sessions:
    """The sessions in which DataFrame bolts are computed: the user's, or one for each width of a batch.

    This is the `ComputedBolts` of DataFrame bolts. It is made before the first batch, and one session is used
    at once: what Spark needs for its first DataFrame takes seconds, which must not count against the time
    limit of a batch.
    """

    def __init__(self, context: SparkContext, given: SparkSession | None, plan: ExecutionPlan) -> None:
        check_dataframes(plan)
        from pyspark.sql import SparkSession

        self._given = given
        self._base = SparkSession(context) if given is None else given
        self._lock = threading.Lock()
        self._by_width: dict[int, SparkSession] = {}
        if given is not None:
            _warn_of_partitions(given)
        blocks = _blocks(self._base, context.parallelize([(b"",)], 1))
        blocks.mapInArrow(_write_blocks, blocks.schema).rdd.count()

    def of_width(self, width: int) -> SparkSession:
        """Return the session for batches of `width` Spark tasks: their shuffles get as many partitions. A
        session of the user's is left as it is."""
        if self._given is not None:
            return self._given
        with self._lock:
            session = self._by_width.get(width)
            if session is None:
                session = self._by_width[width] = self._base.newSession()
                session.conf.set(_SHUFFLE_PARTITIONS, width)
            return session

    def compute(self, asked: Computation) -> Iterator[tuple[str, RDD[Element]]]:
        """See `ComputedBolts`."""
        plan, spec, session = asked.plan, asked.spec, self.of_width(asked.order.width)
        bolt = spec.create()
        if not isinstance(bolt, DataFrameBolt):
            raise TopologyError(f"component {spec.id!r} came back from pickle as {type(bolt).__name__}")
        inputs = {_input_name(given): _read(session, asked, given) for given in spec.inputs}
        try:
            outputs = bolt.transform_streams(inputs)
            _check_outputs(spec, outputs)
        except BaseException as error:
            raise describe(error, spec.id, None).to_error(asked.order.attempt) from error
        for stream, df in outputs.items():
            blocks = _with_plain_names(df).mapInArrow(_write_blocks, _block_schema()).rdd
            route = functools.partial(_route, asked.shipped, plan.run_id, spec.id, stream)
            yield f"{spec.id}.{stream}", blocks.mapPartitionsWithIndex(route)


def _warn_of_partitions(session: SparkSession) -> None:
    partitions = int(session.conf.get(_SHUFFLE_PARTITIONS) or 0)
    cores = session.sparkContext.defaultParallelism
    if session.conf.get(_ADAPTIVE) != "true" and partitions > 4 * cores:
        log.warning(
            "each shuffle of a DataFrame bolt will be %d Spark tasks, however small the batch; set %s to "
            "about %d in this SparkSession",
            partitions,
            _SHUFFLE_PARTITIONS,
            cores,
        )


def _input_name(given: Input) -> str:
    return given.source if given.stream == DEFAULT_STREAM else f"{given.source}.{given.stream}"


def _schema_of(plan: ExecutionPlan, given: Input) -> pa.Schema:
    if given.source == plan.spout_id:
        return plan.spout_schema
    return plan.bolt(given.source).streams[given.stream]


def _read(session: SparkSession, asked: Computation, given: Input) -> DataFrame:
    from pyspark.sql.pandas.types import to_arrow_schema

    component = asked.spec.id
    schema = _spark_schema(_schema_of(asked.plan, given), component, given.source, given.stream)
    select = functools.partial(_blocks_for, asked.stage.position, component, given.source, given.stream)
    read = functools.partial(_read_blocks, to_arrow_schema(schema, timezone="UTC"))
    return _blocks(session, asked.messages.flatMap(select)).mapInArrow(read, schema)


def _blocks(session: SparkSession, blocks: RDD[tuple[bytes]]) -> DataFrame:
    """Return a DataFrame whose rows are Arrow streams."""
    return session.createDataFrame(blocks, _block_schema(), verifySchema=False)


def _block_schema() -> StructType:
    from pyspark.sql.types import BinaryType, StructField, StructType

    return StructType([StructField("block", BinaryType())])  # DDL would be parsed by the JVM each time


def _check_outputs(spec: BoltSpec, outputs: Any) -> None:
    from pyspark.sql import DataFrame

    if not isinstance(outputs, Mapping) or set(outputs) != set(spec.streams):
        raise TupleError(
            f"component {spec.id!r} must answer with one DataFrame for each stream that it declares "
            f"({', '.join(map(repr, spec.streams))}), not {outputs!r:.200}"
        )
    for stream, df in outputs.items():
        if not isinstance(df, DataFrame):
            raise TupleError(
                f"component {spec.id!r} must answer with a Spark DataFrame for stream {stream!r}, "
                f"not {type(df).__name__}"
            )
        wanted = _columns(_spark_schema(spec.streams[stream], spec.id, spec.id, stream))
        if _columns(df.schema) != wanted:
            found = ", ".join(f"{name} {kind.simpleString()}" for name, kind in _columns(df.schema))
            raise TupleError(
                f"component {spec.id!r} answered with ({found}) for stream {stream!r}, which is declared as "
                f"({format_schema(spec.streams[stream])}); select and cast its columns, in this order"
            )


def _columns(schema: StructType) -> list[tuple[str, DataType]]:
    """Names and types. Nullability is left out: in Spark it depends on how a column was computed."""
    return [(column.name, _with_nulls(column.dataType)) for column in schema]


def _with_nulls(kind: DataType) -> DataType:
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    if isinstance(kind, ArrayType):
        return ArrayType(_with_nulls(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(_with_nulls(kind.keyType), _with_nulls(kind.valueType))
    if isinstance(kind, StructType):
        return StructType([StructField(inner.name, _with_nulls(inner.dataType)) for inner in kind])
    return kind


def _with_plain_names(df: DataFrame) -> DataFrame:
    """Rename columns if need be. PySpark looks them up by name: it takes a dot for a field, and two spellings
    for one name."""
    names = df.columns
    plain = all(map(_PLAIN_NAME.fullmatch, names)) and len({name.lower() for name in names}) == len(names)
    return df if plain else df.toDF(*(f"c{position}" for position in range(len(names))))


def _spark_schema(schema: pa.Schema, component: str, source: str, stream: str) -> StructType:
    """Return an Arrow schema as Spark's. Raises TopologyError for a type that Spark does not have."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    fields = []
    for column in schema:
        try:
            fields.append(StructField(column.name, from_arrow_type(column.type)))
        except PySparkException as error:
            raise TopologyError(
                f"component {component!r} is a DataFrameBolt, but field {column.name!r} of stream {stream!r} "
                f"of {source!r} is {format_type(column.type)}, which Spark's DataFrames do not have"
            ) from error
    return StructType(fields)


# --- on the executors ----------------------------------------------------------------------------------


def _blocks_for(
    position: int, component: str, source: str, stream: str, element: Element
) -> Iterator[tuple[bytes]]:
    """The tuples of one subscription in one message, as rows of one Arrow stream each."""
    message = Message.decode(element[1])
    if message.failure is not None:
        # Only if the message is computed again and fails then. The driver finds this error in Spark's.
        raise message.failure.to_error(current_order().attempt)
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
            rows = pa.ipc.open_stream(block.as_buffer()).read_all()
            yield from rows.cast(schema).to_batches()


def _write_blocks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if batch.num_rows:
            block = _to_block(pa.Table.from_batches([batch]))
            yield pa.RecordBatch.from_arrays([pa.array([block], pa.binary())], names=["block"])


def _route(
    shipped: Broadcast[bytes], run_id: str, component: str, stream: str, index: int, rows: Iterable[Any]
) -> Iterator[Element]:
    """Hand on one partition of the results, as a task of the bolt would."""
    # Outside `route_blocks`' try: what Spark raises here is not the bolt's failure, and ends the Spark task.
    blocks = [pa.ipc.open_stream(pa.py_buffer(row.block)).read_all() for row in rows]
    yield from route_blocks(shipped_plan(shipped, run_id), component, stream, index, current_order(), blocks)


def route_blocks(
    plan: ExecutionPlan,
    component: str,
    stream: str,
    index: int,
    order: WorkOrder,
    blocks: Iterable[pa.Table],
) -> Iterator[Element]:
    """Yield the answer, and the elements for the next stage, of partition `index` of a bolt's results."""
    layout = lay_out(plan, order.width, order.slots)
    stage = layout.home[component]
    origin = f"{component}.{stream}"
    started = time.perf_counter()
    try:
        outbox = Outbox(plan, layout, stage, index, _nobody_here)
        computed = _in_order(_as_declared(blocks, plan.bolt(component).streams[stream], component, stream))
        for batch in computed.to_batches():
            outbox.push(component, stream, index, batch)
        seconds = time.perf_counter() - started - outbox.sending_ns.total() * 1e-9
        place = _place(component, index, worker_process(plan), seconds, computed.num_rows)
        messages = outbox.messages(origin)  # first, because the answer says how long it took
        answer = Answer(
            emitted=outbox.captured(),
            places=[place],
            sent=outbox.sent,
            received=outbox.received,
            sending_ns=outbox.sending_ns,
        )
    except Exception as error:  # noqa: BLE001 - reported as an answer, as every failure on an executor is
        failure = error.failure if isinstance(error, TaskFailedError) else describe(error, component, index)
        following = layout.following(stage)
        width = 0 if following is None else following.width
        yield from address_failure(origin, index, width, failure)
    else:
        yield ANSWER, answer.encode()
        yield from messages


def _as_declared(blocks: Iterable[pa.Table], schema: pa.Schema, component: str, stream: str) -> pa.Table:
    tables = [schema.empty_table()]
    for block in blocks:
        try:
            tables.append(block.rename_columns(schema.names).cast(schema))
        except (pa.ArrowException, ValueError) as error:
            raise TupleError(
                f"component {component!r} computed ({format_schema(block.schema)}) for stream {stream!r}, "
                f"which cannot be turned into ({format_schema(schema)}): {error}"
            ) from error
    return pa.concat_tables(tables).combine_chunks()


def _in_order(table: pa.Table) -> pa.Table:
    """Return the rows in an order that depends only on their values."""
    keys = pa.table(
        [_sortable(column) for column in table.columns], [str(n) for n in range(table.num_columns)]
    )
    return table.take(pc.sort_indices(keys, [(name, "ascending") for name in keys.column_names]))


def _sortable(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """Return a column that Arrow can sort: it does not order nested values, so these become text."""
    if pa.types.is_nested(column.type):
        return pa.array([repr(value) for value in column.to_pylist()], pa.string())
    return column


def _nobody_here(spec: BoltSpec, task: int, _: Chunk) -> NoReturn:
    raise TopologyError(f"task {task} of {spec.id!r} cannot live in the Spark tasks of a DataFrame bolt")


def _place(component: str, task: int, process: WorkerProcess, seconds: float, tuples: int) -> TaskPlace:
    return TaskPlace(component, task, task, process.worker, process.host, round(seconds, 6), tuples)
