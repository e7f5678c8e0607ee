"""Collecting tuples as the rows of a `SqlTable`: what `Fold` is for states that are merged.

Invariant: the result does not depend on how tuples are spread over folds, nor on the order in which they
come. Of several rows of one key, the first or the last in the order of their order fields is kept, then in
the order of all their values.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from txstream.api.state import SqlTable
from txstream.state.values import normal_keys


class RowFold:
    """Takes tuples and gives rows in the columns of `table`: its keys, then its values.

    A partial result has the order fields after those. Several rows of one key are left as they are where that
    is to fail.
    """

    def __init__(self, table: SqlTable, order_by: Sequence[str]) -> None:
        self._table = table
        self._schema = pa.schema([*table.key_schema, *table.value_schema])
        self._order = [] if table.on_conflict == "fail" else list(order_by)
        self._parts: list[pa.Table] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Take the rows of one batch of input tuples."""
        if batch.num_rows == 0:
            return
        fields = {name: place for place, name in enumerate(batch.schema.names)}
        columns = [self._fitted(field, batch.column(fields[field.name])) for field in self._schema]
        columns += [batch.column(fields[name]) for name in self._order]
        names = [*self._schema.names, *(f"order {place}" for place in range(len(self._order)))]
        self.add_partial(pa.Table.from_arrays(columns, names=names))

    def add_partial(self, table: pa.Table) -> None:
        """Take the `partial` of another fold."""
        if table.num_rows:
            self._parts.append(table)

    def partial(self) -> pa.Table:
        """Return the rows that came, to be put beside those of other folds."""
        return pa.concat_tables(self._parts) if self._parts else self._schema.empty_table()

    def finish(self) -> pa.Table:
        """Return the rows to write."""
        rows, width = self.partial(), len(self._schema)
        if self._table.on_conflict != "fail" and rows.num_rows > 1:
            rows = self._one_of_each_key(rows)
        return pa.Table.from_arrays(rows.columns[:width], schema=self._schema)

    def _one_of_each_key(self, rows: pa.Table) -> pa.Table:
        # By position: Arrow takes a name that begins with a dot for a path, and a name may come twice.
        columns = pa.Table.from_arrays(rows.columns, names=[f"c{at}" for at in range(rows.num_columns)])
        keys = columns.column_names[: len(self._table.key_names)]
        found = columns.group_by(keys, use_threads=False).aggregate([([], "count_all")])
        if found.num_rows == rows.num_rows:
            return rows
        order = columns.column_names[len(self._schema) :]
        values = columns.column_names[len(keys) : len(self._schema)]
        sort_keys = [(name, "ascending") for name in (*keys, *order, *values)]
        columns = columns.take(pc.sort_indices(columns, sort_keys=sort_keys))
        last = columns.num_rows - 1
        differs = pc.invert(_equal(columns.select(keys).slice(1), columns.select(keys).slice(0, last)))
        edge = pa.chunked_array([[True]])
        replaces = self._table.on_conflict == "replace"
        kept = [*differs.chunks, *edge.chunks] if replaces else [*edge.chunks, *differs.chunks]
        return columns.filter(pa.chunked_array(kept, pa.bool_()))

    def _fitted(self, field: pa.Field, column: pa.Array) -> pa.Array:
        """Return a column in its declared type, which all its values fit, as the bolt has made sure."""
        return (normal_keys(column) if field.name in self._table.key_names else column).cast(field.type)


def _equal(one: pa.Table, other: pa.Table) -> pa.ChunkedArray:
    same: pa.ChunkedArray = pa.chunked_array([pa.repeat(True, one.num_rows)])
    for mine, its in zip(one.columns, other.columns, strict=True):
        same = pc.and_(same, pc.equal(mine, its))
    return same
