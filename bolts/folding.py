"""Folding tuples into one row per key with Arrow: what `ReduceBolt` and `SqlStateBolt` share.

Invariant: `finish` gives every key once. Rows are folded chunk by chunk, and partial results are folded
again when they pass a bound, so memory follows the number of keys, not of tuples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txstream.api.bolts import OutputFieldsDeclarer
from txstream.api.errors import StateValueError, TopologyError
from txstream.api.reducers import Count, Reducer
from txstream.api.schema import format_type

_REFOLD_ROWS = 200_000
_MAX_BIGINT = (1 << 63) - 1


def check_reducers(declarer: OutputFieldsDeclarer, reducers: Mapping[str, Reducer]) -> None:
    """Raise TopologyError when a reducer's field is missing or of a type that it cannot take."""
    for name, reducer in reducers.items():
        if not isinstance(reducer, Reducer):
            raise TopologyError(
                f"component {declarer.component!r}: {name}={reducer!r} is not a reducer; write for example "
                f"{name}=Sum({name!r})"
            )
        if reducer.field is None:
            continue
        data_type = declarer.input_field(reducer.field).type
        if not reducer.accepts(data_type):
            raise TopologyError(
                f"component {declarer.component!r}: {type(reducer).__name__} cannot take field "
                f"{reducer.field!r} of type {format_type(data_type)}"
            )


class Fold:
    """Tuples in, one row per key out, in the columns of `schema` (keys first, then one per reducer)."""

    def __init__(self, keys: Sequence[str], reducers: Mapping[str, Reducer], schema: pa.Schema) -> None:
        self.keys = list(keys)
        self.reducers = dict(reducers)
        self.schema = schema
        self._partials: list[pa.Table] = []
        self._rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Fold one batch of input tuples."""
        if batch.num_rows == 0:
            return
        self.add_partial(self._fold_tuples(batch))

    def add_partial(self, table: pa.Table) -> None:
        """Take rows that were folded elsewhere, in the columns of `schema`, every key once."""
        self._partials.append(table)
        self._rows += table.num_rows
        if self._rows > _REFOLD_ROWS and len(self._partials) > 1:
            merged = self._merge()
            self._partials, self._rows = [merged], merged.num_rows

    def finish(self) -> pa.Table:
        """One row per key. Without keys exactly one row, also when nothing came."""
        merged = self._merge()
        if not self.keys and merged.num_rows == 0:
            row = {name: [reducer.identity] for name, reducer in self.reducers.items()}
            return pa.table(row, schema=self.schema)
        return merged

    def _fold_tuples(self, batch: pa.RecordBatch) -> pa.Table:
        table = pa.Table.from_batches([batch])
        aggregates: list[tuple[Any, str]] = []
        for reducer in self.reducers.values():
            if isinstance(reducer, Count) and reducer.field is None:
                aggregates.append(([], "count_all"))
            else:
                aggregates.append((reducer.field, reducer.partial))
        return self._aggregate(table, aggregates)

    def _merge(self) -> pa.Table:
        if not self._partials:
            return self.schema.empty_table()
        if len(self._partials) == 1:
            return self._partials[0]
        table = pa.concat_tables(self._partials)
        return self._aggregate(table, [(name, reducer.merge) for name, reducer in self.reducers.items()])

    def _aggregate(self, table: pa.Table, aggregates: list[tuple[Any, str]]) -> pa.Table:
        for field, function in aggregates:
            if function == "sum":
                table = _widen(table, field)
        # use_threads=False keeps the rows in order of first appearance, and a worker on its own core.
        grouped = table.group_by(self.keys, use_threads=False).aggregate(aggregates)
        # By position: a key may be called like one of the results ("n_sum").
        columns = [grouped.column(position) for position in range(len(self.keys))]
        for position, (name, reducer) in enumerate(self.reducers.items()):
            column = grouped.column(len(self.keys) + position)
            if reducer.identity is not None and column.null_count:
                column = pc.fill_null(column, reducer.identity)
            columns.append(_cast(column, self.schema.field(name).type, name))
        return pa.Table.from_arrays(columns, schema=self.schema)


def _widen(table: pa.Table, field: str) -> pa.Table:
    """The table with integers that could overflow 64 bits when summed as decimals: Arrow's sum wraps round
    without an error, and a wrapped total would be stored as if it were right."""
    position = table.schema.get_field_index(field)
    column = table.column(position)
    if not pa.types.is_integer(column.type):
        return table
    bounds = pc.min_max(column).as_py()
    if bounds["min"] is None or max(-bounds["min"], bounds["max"]) * table.num_rows <= _MAX_BIGINT:
        return table
    return table.set_column(position, field, column.cast(pa.decimal128(38, 0)))


def _cast(column: pa.ChunkedArray, data_type: pa.DataType, name: str) -> pa.ChunkedArray:
    if column.type.equals(data_type):
        return column
    try:
        return column.cast(data_type)
    except pa.ArrowInvalid as error:
        raise StateValueError(
            f"value column {name!r} ({format_type(data_type)}) cannot hold its result: {error}"
        ) from error
