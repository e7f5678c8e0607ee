"""`WindowBolt`: the committer that fills a `WindowState`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txstream.api.bolts import OutputFieldsDeclarer
from txstream.api.reducers import Max, Reducer
from txstream.api.retention import is_time, late_error
from txstream.api.schema import format_type
from txstream.api.tuples import Chunk
from txstream.bolts.sql import SqlStateBolt, refuse_nulls
from txstream.core.errors import StateValueError, TopologyError
from txstream.plugins.windows.state import CLOSED, END, OWN, START, WindowState
from txstream.plugins.windows.times import moment
from txstream.plugins.windows.watermark import AHEAD, later, told

_MICROS = pa.timestamp("us", "UTC")


class WindowBolt(SqlStateBolt):
    """Stores its input in a `WindowState`: `WindowBolt(state, n=Count())`. Each tuple counts in the windows
    that its time is in.

    It is a `SqlStateBolt`; group its input by the key, or a part of it, that the state declares. Tuples must
    have kept the partition of their record, as fields `topic` and `partition` or, of a source without topics,
    `partition`. A tuple without a time is refused like one without a key.
    """

    state: WindowState

    def __init__(self, state: WindowState, **reducers: Reducer) -> None:
        if not isinstance(state, WindowState):
            raise TopologyError(f"WindowBolt takes a WindowState, not {type(state).__name__}")
        own = sorted({END, CLOSED} & reducers.keys())
        if own:
            raise TopologyError(f"state table {state.table!r}: WindowBolt fills {' and '.join(own)} itself")
        super().__init__(state, **reducers, **{END: Max(END), CLOSED: Max(CLOSED)})
        assert state.window is not None
        self.window = state.window
        self.latest: dict[str, int] = {}

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        time = declarer.input_field(self.window.time)
        if not is_time(time.type) or pa.types.is_date(time.type):
            raise TopologyError(
                f"component {declarer.component!r}: the time of its windows, field {time.name!r}, is "
                f"{format_type(time.type)}; it must be a timestamp"
            )
        self.by_topic = all("topic" in schema.names for schema in declarer.inputs)
        if any("partition" not in schema.names for schema in declarer.inputs):
            raise TopologyError(
                f"component {declarer.component!r}: its input has no field 'partition', and how far time has "
                f"come is known by partition; let the source emit it (KafkaSource(..., kafka_columns="
                f"('topic', 'partition', 'offset'))) and every bolt in between pass it on"
            )
        taken = [one for schema in declarer.inputs for one in OWN.names if one in schema.names]
        if taken:
            raise TopologyError(
                f"component {declarer.component!r}: its input has a field {taken[0]!r}, which WindowBolt "
                f"makes; give the field another name"
            )
        inputs = [pa.schema([*schema, *OWN]) for schema in declarer.inputs]
        super().declare_output_fields(OutputFieldsDeclarer(declarer.component, inputs))

    def execute_chunk(self, chunk: Chunk) -> None:
        """As `SqlStateBolt`; with several windows of a time, each tuple comes as often to the fold."""
        refuse_nulls(self.state, chunk, f"the time {self.window.time!r}", self.window.time)
        column = chunk.batch.column(chunk.index[self.window.time])
        times = column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64())
        found = self.window.windows(np.asarray(times))
        self._refuse_late(chunk, found[0][1])
        many = len(found)
        rows = chunk.batch if many == 1 else chunk.batch.take(np.repeat(np.arange(len(chunk)), many))
        starts, ends = (np.stack([pair[at] for pair in found], axis=1).ravel() for at in (0, 1))
        for name, values in ((START, starts), (END, ends)):
            rows = rows.append_column(name, pa.array(values, pa.int64()).cast(_MICROS))
        rows = rows.append_column(CLOSED, pa.repeat(pa.scalar(False), rows.num_rows))
        with _of_rows(many):
            super().execute_chunk(Chunk(rows, chunk.source_component, chunk.source_stream, chunk.source_task))
        self._count_times(chunk, times)

    def _refuse_late(self, chunk: Chunk, first_ends: Any) -> None:
        """Raise LateRecordError for tuples of which a window is closed."""
        until = None if self.horizon is None else self.horizon["late"]
        if until is None or self.state.late != "dead-letter":
            return
        late = first_ends <= until
        if late.any():
            raise late_error(
                chunk,
                pa.array(late),
                f"table {self.state.table!r} has closed the windows that end at {moment(until)} or before",
            )

    def _count_times(self, chunk: Chunk, times: pa.Array) -> None:
        """Note the latest time of each partition, as far as it counts (`watermark.counted`)."""
        if self.horizon is None or not len(chunk):
            return
        clock = self.horizon["clock"]
        names = pc.cast(chunk.batch.column(chunk.index["partition"]), pa.string())
        if self.by_topic:
            topics = pc.cast(chunk.batch.column(chunk.index["topic"]), pa.string())
            names = pc.binary_join_element_wise(topics, names, "/")
        counts = pc.min_element_wise(times, clock)
        found = pa.table({"name": names, "time": counts}).filter(pc.less_equal(times, clock + AHEAD))
        latest = found.group_by("name", use_threads=False).aggregate([("time", "max")])
        new = zip(latest["name"].to_pylist(), latest["time_max"].to_pylist(), strict=True)
        self.latest = later(self.latest, {name: time for name, time in new if name is not None})

    def deltas(self) -> pa.Table:
        """As `SqlStateBolt.deltas`; with the latest times, for the driver."""
        return super().deltas().replace_schema_metadata(told(self.latest))


@contextmanager
def _of_rows(many: int) -> Iterator[None]:
    """Have an error name the tuple, and not one of the rows that were made of it."""
    try:
        yield
    except StateValueError as error:
        if error.at is not None:
            error.at //= many
        raise
