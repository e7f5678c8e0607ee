"""Folding tuples into one row per key with Arrow: what `ReduceBolt` and `SqlStateBolt` share.

Invariants. `finish` gives every key once. Rows are folded chunk by chunk, and partial results are folded
again when they pass a bound, so memory grows with the number of keys, not of tuples. The merged result does
not depend on how tuples are spread over folds, nor on the order in which tuples and partial results come:
totals are kept in types that are wide enough for any total, and only the result has to fit its column. Only
sums of floating-point numbers differ: each addition rounds, so their last digits depend on the order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txstream.api.bolts import StateCommitter
from txstream.api.reducers import Count, Custom, Last, Reducer
from txstream.api.rows import UnfitValueError, to_column
from txstream.api.schema import format_type
from txstream.api.state import SqlTable
from txstream.core.errors import StateValueError
from txstream.state.row_fold import RowFold
from txstream.state.values import normal_keys

# So much is folded at once.
_FOLDED_ROWS = 10_000
_FOLDED_BYTES = 1024 * 1024
_REFOLD_ROWS = 200_000
_FEW_ROWS = 128  # Arrow's grouping costs as much as that of so many in Python
_MAX_BIGINT = (1 << 63) - 1
_DECIMAL_DIGITS = 38


def bound(reducers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reducers by column, each given its column's name. Bolts refuse other values."""
    return {
        name: reducer.for_column(name) if isinstance(reducer, Reducer) else reducer
        for name, reducer in reducers.items()
    }


# Values of these are equal in Python where Arrow groups them together.
_PLAIN_KEYS = {pa.string(), pa.binary(), pa.bool_(), pa.date32(), pa.int64(), pa.int32(), pa.int16()}


class Fold:
    """Takes tuples and gives one row per key, in the columns of `schema` (keys first, then one per reducer).

    A partial result has further columns after those: the `order_fields` that reducers need until they are
    merged. Totals in it may have wider types. Messages name the `table` that they are for.
    """

    def __init__(
        self,
        keys: Sequence[str],
        reducers: Mapping[str, Reducer],
        schema: pa.Schema,
        table: str | None = None,
    ) -> None:
        self.keys = list(keys)
        self.reducers = dict(reducers)
        self.schema = schema
        self._table = table
        self._owner = f"table {table!r}, " if table is not None else ""
        self._partials: list[pa.Table] = []
        self._rows = 0
        self._given: list[pa.RecordBatch] = []
        self._given_rows = self._given_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Fold one batch of input tuples. Small ones are folded together: it costs the same for 5 rows as for
        5,000."""
        if batch.num_rows == 0:
            return
        if self._given and not batch.schema.equals(self._given[0].schema):
            self._fold_given()
        self._given.append(batch)
        self._given_rows += batch.num_rows
        self._given_bytes += batch.nbytes
        if self._given_rows >= _FOLDED_ROWS or self._given_bytes >= _FOLDED_BYTES:
            self._fold_given()

    def _fold_given(self) -> None:
        given, self._given = self._given, []
        self._given_rows = self._given_bytes = 0
        if given:
            self.add_partial(self._fold_tuples(pa.Table.from_batches(given)))

    def add_partial(self, table: pa.Table) -> None:
        """Take the `partial` of another fold."""
        if table.num_rows == 0:
            return
        self._partials.append(table)
        self._rows += table.num_rows
        if self._rows > _REFOLD_ROWS and len(self._partials) > 1:
            merged = self.partial()
            self._partials, self._rows = [merged], merged.num_rows

    def partial(self) -> pa.Table:
        """Return one row per key, to be merged with the rows of other folds."""
        self._fold_given()
        if not self._partials:
            return self.schema.empty_table()
        if len(self._partials) == 1:
            return self._partials[0]
        return self._merge(_together(self._partials))

    def finish(self) -> pa.Table:
        """Return one row per key; without key columns exactly one row, even if no tuples came. Raises
        StateValueError for a result that its column cannot hold."""
        merged = self.partial()
        if not self.keys and merged.num_rows == 0:
            row = {name: [reducer.identity] for name, reducer in self.reducers.items()}
            return pa.table(row, schema=self.schema)
        columns = [self._fitted(merged, place) for place in range(len(self.schema))]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def refused(self, keys: Sequence[pa.ChunkedArray], row: int, why: str) -> StateValueError:
        """Return the error about the row of these keys: "table 't', key word='spark': ..."."""
        named = zip(self.keys, keys, strict=True)
        key = ", ".join(f"{name}={column[row].as_py()!r}" for name, column in named)
        error = StateValueError(f"{self._owner}{f'key {key}: ' if key else ''}{why}")
        return error if self._table is None else error.of_row(self._table, key)

    def _fitted(self, merged: pa.Table, place: int) -> pa.ChunkedArray:
        field, column = self.schema.field(place), merged.column(place)
        if column.type.equals(field.type):
            return column
        try:
            return column.cast(field.type)
        except pa.ArrowInvalid as error:
            row = first_unfit(column, field.type)
            raise self.refused(
                merged.columns[: len(self.keys)],
                row,
                f"value column {field.name!r} ({format_type(field.type)}) cannot hold its result "
                f"{column[row].as_py()}; declare a wider type",
            ) from error

    # --- the two steps ------------------------------------------------------------------------------

    def _fold_tuples(self, table: pa.Table) -> pa.Table:
        keys = [normal_keys(table.column(key)) for key in self.keys]
        work = _Work(self, keys, table.num_rows)
        for name, reducer in self.reducers.items():
            if isinstance(reducer, Count) and reducer.field is None:
                work.count(name)
            else:
                order = [table.column(field) for field in reducer.order_fields]
                work.add(name, reducer, reducer.partial, table.column(reducer.field), order)
        return work.done()

    def _merge(self, table: pa.Table) -> pa.Table:
        # By position: a key may have the name of one of the columns after the values.
        columns = table.columns
        keys, rest = columns[: len(self.keys)], columns[len(self.keys) :]
        values, hidden = rest[: len(self.reducers)], iter(rest[len(self.reducers) :])
        work = _Work(self, keys, table.num_rows)
        for (name, reducer), column in zip(self.reducers.items(), values, strict=True):
            work.add(name, reducer, reducer.merge, column, [next(hidden) for _ in reducer.order_fields])
        return work.done()


class _Work:
    """One grouping of rows by key: collects what to aggregate, then gives the result."""

    def __init__(self, fold: Fold, keys: Sequence[pa.ChunkedArray], rows: int) -> None:
        self._fold = fold
        self._key_names = [f"key{place}" for place in range(len(keys))]
        self._columns: dict[str, pa.ChunkedArray] = dict(zip(self._key_names, keys, strict=True))
        self._rows = rows
        self._aggregates: list[tuple[Any, str]] = []
        # By value column: the rows in event order, then the columns of the value and of its order.
        self._orders: dict[str, tuple[pa.Array, list[pa.ChunkedArray]]] = {}

    def count(self, name: str) -> None:
        self._aggregates.append(([], "count_all"))

    def add(
        self,
        name: str,
        reducer: Reducer,
        function: str,
        column: pa.ChunkedArray,
        order: list[pa.ChunkedArray],
    ) -> None:
        """Aggregate `column` for value column `name`."""
        if function == "sum":
            column = _widen(column, self._rows)
        elif function == "custom":
            function = "list"
        elif isinstance(reducer, Last):
            # The greatest place in the order of events, among the rows that have a value.
            rows = _in_order([*order, column])
            self._orders[name] = rows, [column, *order]
            function, column = "max", pc.if_else(column.is_valid(), pc.sort_indices(rows), None)
        place = f"value{len(self._aggregates)}"
        self._columns[place] = column
        self._aggregates.append((place, function))

    def done(self) -> pa.Table:
        fold = self._fold
        grouped = self._grouped_few() if self._is_for_python() else self._grouped()
        keys = grouped.columns[: len(fold.keys)]
        columns = list(keys)
        hidden: list[pa.ChunkedArray] = []
        names: list[str] = []
        for place, (name, reducer) in enumerate(fold.reducers.items()):
            column = grouped.column(len(fold.keys) + place)
            if name in self._orders:
                rows, (values, *order) = self._orders[name]
                winners = rows.take(column)
                column = values.take(winners)
                hidden += [part.take(winners) for part in order]
                names += [f"{name} by {by}" for by in reducer.order_fields]
            elif isinstance(reducer, Custom):
                column = self._called(fold.schema.field(name), reducer, column, keys)
            if reducer.identity is not None and column.null_count:
                column = pc.fill_null(column, reducer.identity)
            columns.append(column)
        # Without the schema's types: only a final result has to fit its column.
        return pa.Table.from_arrays([*columns, *hidden], names=[*fold.schema.names, *names])

    def _grouped(self) -> pa.Table:
        # use_threads=False keeps the rows in the order of first appearance, and the worker on one core.
        table = pa.table(self._columns) if self._columns else pa.table({"row": pa.nulls(self._rows)})
        return table.group_by(self._key_names, use_threads=False).aggregate(self._aggregates)

    def _is_for_python(self) -> bool:
        """Whether these are few rows of types that are equal in Python where they are in Arrow, and counted
        or summed as 64-bit integers."""
        return (
            bool(self._key_names)
            and self._rows <= _FEW_ROWS
            and all(self._columns[name].type in _PLAIN_KEYS for name in self._key_names)
            and all(
                function == "count_all" or (function == "sum" and self._columns[place].type == pa.int64())
                for place, function in self._aggregates
            )
        )

    def _grouped_few(self) -> pa.Table:
        """As `_grouped`. A sum fits: `_widen` has seen to that."""
        keys = [self._columns[name] for name in self._key_names]
        rows: dict[tuple[Any, ...], list[int]] = {}
        for row, key in enumerate(zip(*(column.to_pylist() for column in keys), strict=True)):
            rows.setdefault(key, []).append(row)
        found = zip(*rows, strict=True)
        columns = [pa.array(values, key.type) for values, key in zip(found, keys, strict=True)]
        for place, function in self._aggregates:
            if function == "count_all":
                columns.append(pa.array(map(len, rows.values()), pa.int64()))
            else:
                given = self._columns[place].to_pylist()
                present = ([given[row] for row in some if given[row] is not None] for some in rows.values())
                columns.append(pa.array([sum(some) if some else None for some in present], pa.int64()))
        return pa.Table.from_arrays(columns, names=list(map(str, range(len(columns)))))

    def _called(
        self, field: pa.Field, reducer: Custom, lists: pa.ChunkedArray, keys: list[pa.ChunkedArray]
    ) -> pa.ChunkedArray:
        fold = self._fold
        results = []
        for row, values in enumerate(lists.to_pylist()):
            try:
                results.append(reducer.reduced(values))
            except StateValueError as error:
                why = f"value column {field.name!r}: {error}"
                raise fold.refused(keys, row, why) from error.__cause__
        try:
            return pa.chunked_array([to_column(results, field.with_nullable(True))])
        except UnfitValueError as error:
            raise fold.refused(
                keys,
                error.row,
                f"value column {field.name!r} ({format_type(field.type)}) cannot hold {error.value!r:.100}, "
                f"which {reducer} gave",
            ) from error


def _in_order(columns: list[pa.ChunkedArray]) -> pa.Array:
    """Return the row numbers sorted by these columns in turn, nulls first."""
    table = pa.table({str(place): column for place, column in enumerate(columns)})
    return pc.sort_indices(table, sort_keys=[(name, "ascending", "at_start") for name in table.column_names])


def _widen(column: pa.ChunkedArray, rows: int) -> pa.ChunkedArray:
    """Return the column in a type that its sum fits into. Arrow's sum wraps round without an error, and a
    wrapped total would be stored as if it were right."""
    if pa.types.is_integer(column.type):
        largest, wider = _MAX_BIGINT, pa.decimal128(_DECIMAL_DIGITS, 0)
    elif pa.types.is_decimal128(column.type):
        # Arrow adds decimals of any precision as decimals of 38 digits.
        largest, wider = 10**_DECIMAL_DIGITS - 1, pa.decimal256(2 * _DECIMAL_DIGITS, column.type.scale)
    else:
        return column
    seen = column.to_pylist() if rows <= _FEW_ROWS else pc.min_max(column).as_py().values()
    if max((abs(_unscaled(number)) for number in seen if number is not None), default=0) * rows <= largest:
        return column
    return column.cast(wider)


def _unscaled(number: Any) -> int:
    """Return a number's digits, those of a decimal as if its point were at the end."""
    return number if isinstance(number, int) else int("".join(map(str, number.as_tuple().digits)))


def _together(partials: Sequence[pa.Table]) -> pa.Table:
    """Return partial results as one table. A total that is wider in one of them becomes so in all."""
    first = partials[0].schema
    if all(table.schema.equals(first) for table in partials):
        return pa.concat_tables(partials)
    types = [max((table.field(place).type for table in partials), key=_width) for place in range(len(first))]
    schema = pa.schema([pa.field(name, kind) for name, kind in zip(first.names, types, strict=True)])
    return pa.concat_tables([table.cast(schema) for table in partials])


def _width(data_type: pa.DataType) -> int:
    return data_type.precision if pa.types.is_decimal(data_type) else 0


def first_unfit(column: pa.Array | pa.ChunkedArray, data_type: pa.DataType) -> int:
    """Return the first row whose value cannot be cast."""
    for row in range(len(column)):
        try:
            column.slice(row, 1).cast(data_type)
        except pa.ArrowInvalid:
            return row
    return 0


def new_fold(bolt: StateCommitter) -> Fold | RowFold:
    """Return a fold for a state's deltas: over tuples on the executors, over their results on the driver."""
    if isinstance(bolt.state, SqlTable):
        return RowFold(bolt.state, bolt.order_by)
    schema = pa.schema([*bolt.state.key_schema, *bolt.state.value_schema])
    return Fold(bolt.state.key_names, bolt.reducers, schema, bolt.state.table)
