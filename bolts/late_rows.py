"""Refuses tuples whose row is older than its table keeps rows."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from txstream.api.errors import LateRecordError
from txstream.api.state import SqlState
from txstream.api.tuples import Chunk
from txstream.retention import late_rows, late_words

_PLACE = ("topic", "partition", "offset")


def refuse_late(state: SqlState, horizon: int | None, chunk: Chunk) -> None:
    """Raise LateRecordError for tuples of a time before the horizon of the state's table."""
    if horizon is None or state.keep_on is None:
        return
    column = chunk.batch.column(chunk.index[state.keep_on])
    late = late_rows(column, horizon)
    if late is None:
        return
    rows = chunk.batch.filter(late)
    error = LateRecordError(late_words(state.table, state.keep_on, column.type, horizon))
    error.places = _places(rows, chunk)
    if rows.num_rows == chunk.batch.num_rows:
        error.only_late_from = chunk.source_component
    raise error


def _places(rows: pa.RecordBatch, chunk: Chunk) -> Sequence[tuple[str, int]]:
    """Return where the records of rows are, if they have kept Kafka's columns. What fields of these names
    mean is for the search to find out."""
    if not {*_PLACE} <= chunk.index.keys():
        return ()
    topics, partitions, offsets = (rows.column(chunk.index[name]).to_pylist() for name in _PLACE)
    return sorted(
        {
            (f"{topic}/{partition}", offset)
            for topic, partition, offset in zip(topics, partitions, offsets, strict=True)
            if isinstance(offset, int)
        }
    )
