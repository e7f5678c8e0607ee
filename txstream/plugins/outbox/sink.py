"""`KafkaSinkBolt`: the committer whose tuples become records of a topic, by way of a table.

Invariants. A row's key is its txid, its task and its number in that task, so no two batches share one.
Numbers follow the fields `order_by`, then the bytes of key and value: a task that is computed again, from the
same tuples in another order, makes the same rows. The table is opaque whatever the spout is, so another
attempt undoes all rows of an earlier one before it writes its own.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa

from txstream.api.bolts import (
    OutputCollector,
    OutputFieldsDeclarer,
    StateCommitter,
    TopologyContext,
    WorkerContext,
)
from txstream.api.reducers import Put
from txstream.api.spouts import SpoutContext
from txstream.api.state import SqlTable
from txstream.api.tuples import Chunk, Tuple, one_row
from txstream.core.errors import StateValueError, TopologyError
from txstream.core.semantics import Semantics
from txstream.core.transaction import TransactionAttempt
from txstream.spouts.formats.value_encoders import (
    AS_JSON,
    Encode,
    Rows,
    UnfitRowError,
    ValueEncoder,
    encoder_of,
)
from txstream.state.reading import StoredRow

KEY, VALUE = "key", "value"
_PLACE = ("topic", "partition", "offset")


class KafkaSinkBolt(StateCommitter):
    """Sends each tuple to a topic: `KafkaSinkBolt("alerts", key="customer", value=["customer", "amount"])`.

    `key` and `value` name a field or several. A field of text or bytes is sent as it is, any other, and
    several, as JSON; a null is Kafka's null. Without `key` there is none; without `value` it is the whole
    tuple. Tuples are stored in a table of the run's database, or of `url`, in the commit of their batch, and
    sent once that is committed: at least once, in the order of txids. Of one batch and task, they are sent
    in the order of the fields `order_by`, by default those of topic, partition and offset that the input has.
    The table is named after the topic, `alerts_outbox`, unless `table` is given; its rows are deleted when
    they are sent. The topology may not read the topic. What no JSON can hold (NaN, half a character) ends the
    run with StateValueError or becomes a dead letter. With `encode=Encode("avro")`, a value is a record of
    its fields, be it one. With `exactly_once`, each txid is one transaction, which a consumer that reads only
    what is committed gets once (`ChangeTopic`).
    """

    state: SqlTable
    tells_rewinds = True

    def __init__(
        self,
        topic: str,
        *,
        key: str | Sequence[str] | None = None,
        value: str | Sequence[str] | None = None,
        order_by: str | Sequence[str] = (),
        table: str | None = None,
        url: str | None = None,
        encode: Encode = AS_JSON,
        exactly_once: bool = False,
    ) -> None:
        if not isinstance(topic, str) or not topic:
            raise TopologyError(f"KafkaSinkBolt takes the name of a topic, not {topic!r}")
        self.topic, self.exactly_once = topic, exactly_once
        self.writes_to = (topic,)
        self._key, self._value = key, value
        self._encode: Encode | None = encode
        self._encoder: ValueEncoder | None = None
        self._order = (order_by,) if isinstance(order_by, str) else tuple(order_by)
        self.state = SqlTable(
            table or f"{topic.replace('.', '_')}_outbox",
            f"{KEY} binary, {VALUE} binary",
            key="batch bigint, task int, number bigint",
            url=url,
            semantics=Semantics.OPAQUE,
            index_txid=True,
            transient=True,
        )
        self.reducers = {KEY: Put(), VALUE: Put()}

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        named = [*_listed(self._key or ()), *_listed(self._value or ()), *self._order]
        for schema in declarer.inputs:
            for name in named:
                if name not in schema.names:
                    raise TopologyError(
                        f"component {declarer.component!r}: its input has no field {name!r} for topic "
                        f"{self.topic!r}; it has {', '.join(map(repr, schema.names))}"
                    )
        if not self._order:
            self._order = tuple(name for name in _PLACE if all(name in one.names for one in declarer.inputs))
        for name in self._order:
            declarer.input_field(name)
        if self._encode is not None:
            self._encoder = encoder_of(self._encode, self._sent_columns(declarer), self.topic)
            self._encode = None  # a user's class in it stays on the driver

    def _sent_columns(self, declarer: OutputFieldsDeclarer) -> pa.Schema:
        first, *others = [
            schema if self._value is None else pa.schema(map(schema.field, _listed(self._value)))
            for schema in declarer.inputs
        ]
        if any(not one.equals(first) for one in others) and self._encode != AS_JSON:
            raise TopologyError(
                f"component {declarer.component!r}: topic {self.topic!r} gets tuples of several kinds, and "
                f"its values are of one schema; say which fields (value=)"
            )
        return first

    def prepare_worker(self, context: WorkerContext) -> Callable[[Rows], list[bytes]] | None:
        if self._encoder is None:
            return None
        return self._encoder.writer(SpoutContext(context.topology_id, context.component, context.addresses))

    def prepare(
        self, context: TopologyContext, collector: OutputCollector, batch_id: TransactionAttempt
    ) -> None:
        super().prepare(context, collector, batch_id)
        self._parts: list[pa.Table] = []

    def execute(self, tup: Tuple) -> None:
        self.execute_chunk(one_row(tup._chunk, tup._row))

    def execute_chunk(self, chunk: Chunk) -> None:
        value = chunk.names if self._value is None else self._value
        write = self.context.resource
        values = self._encoded(chunk, value) if write is None else self._written(chunk, _listed(value), write)
        sent = {KEY: self._encoded(chunk, self._key), VALUE: values}
        columns = [chunk.batch.column(chunk.index[name]) for name in self._order]
        columns += [pa.array(sent[name], pa.binary()) for name in (KEY, VALUE)]
        names = [*(f"order {at}" for at in range(len(self._order))), KEY, VALUE]
        self._parts.append(pa.Table.from_arrays(columns, names=names))

    def _encoded(self, chunk: Chunk, wanted: str | Sequence[str] | None) -> list[bytes | None]:
        if wanted is None:
            return [None] * len(chunk)
        found: list[bytes | None] = []
        try:
            for one in _values(chunk, wanted):
                found.append(encoded(one))
        except (TypeError, ValueError) as error:
            raise self._refused(chunk, len(found), error) from error
        return found

    def _written(
        self, chunk: Chunk, names: Sequence[str], write: Callable[[Rows], list[bytes]]
    ) -> list[bytes]:
        try:
            return write(_values(chunk, names))
        except UnfitRowError as error:
            raise self._refused(chunk, error.row, error) from error

    def _refused(self, chunk: Chunk, row: int, error: Exception) -> StateValueError:
        refused = StateValueError(
            f"topic {self.topic!r} cannot be sent {next(one_row(chunk, row).tuples())!r}: {error}; "
            f"filter such tuples out before the sink"
        )
        refused.at = row
        return refused

    def deltas(self) -> pa.Table:
        """Return this task's rows: txid, task and number, then key and value."""
        schema = pa.schema([*self.state.key_schema, *self.state.value_schema])
        if not self._parts:
            return schema.empty_table()
        rows = pa.concat_tables(self._parts)
        rows = rows.sort_by([(name, "ascending") for name in rows.column_names])
        count, context = rows.num_rows, self.context
        keys = [
            pa.repeat(pa.scalar(context.attempt.txid, pa.int64()), count),
            pa.repeat(pa.scalar(context.task_index, pa.int32()), count),
            pa.array(range(count), pa.int64()),
        ]
        return pa.Table.from_arrays([*keys, rows.column(KEY), rows.column(VALUE)], schema=schema)


def sink_record(row: StoredRow) -> tuple[bytes | None, bytes | None]:
    """Return key and value of the record that a row of an outbox becomes."""
    return row.value[KEY], row.value[VALUE]


def sink_place(row: StoredRow) -> tuple[int, int]:
    return row.key["task"], row.key["number"]


def encoded(value: Any) -> bytes | None:
    """Return what is sent for a value. Raises ValueError or TypeError for one that has no JSON."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return _ENCODER.encode(value).encode()


def _values(chunk: Chunk, wanted: str | Sequence[str]) -> Sequence[Any]:
    if isinstance(wanted, str):
        return chunk.column(wanted)
    columns = [chunk.column(name) for name in wanted]
    return [dict(zip(wanted, row, strict=True)) for row in zip(*columns, strict=True)]


def _listed(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


_JSON: dict[type, Callable[[Any], str]] = {
    bytes: lambda value: base64.b64encode(value).decode(),
    Decimal: str,
    datetime: datetime.isoformat,
    date: date.isoformat,
    time: time.isoformat,
}


def _as_json(value: Any) -> str:
    """Return the text that stands for a value of which JSON knows nothing."""
    if type(value) not in _JSON:
        raise TypeError(f"JSON has no {type(value).__name__}")
    return _JSON[type(value)](value)


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_as_json)
