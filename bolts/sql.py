"""`SqlStateBolt`: the committer that keeps exactly-once results in a SQL table."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from txstream.api.bolts import OutputFieldsDeclarer, StateCommitter
from txstream.api.reducers import Count, Custom, Reducer, Sum
from txstream.api.retention import refuse_late
from txstream.api.schema import format_type
from txstream.api.state import SqlState, SqlTable
from txstream.api.tuples import Chunk, Tuple, one_row
from txstream.bolts.reducer_checks import check_reducers
from txstream.core.errors import StateValueError, TopologyError
from txstream.state.folding import bound, new_fold

_BIGINT_DIGITS = 19


class SqlStateBolt(StateCommitter):
    """Stores its input in a `SqlState`: `SqlStateBolt(state, n=Sum("n"))`.

    Each value column has a reducer, by default `Sum` of the field of that name. Key columns are filled from
    the input's fields of the same names. Group the input by the key or a part of it. A tuple with a null in
    its key, or with NaN in a key or in a value other than a count or a custom one, ends the run with
    StateValueError: a row without a key could not be found again, and a sum would stay NaN.
    """

    def __init__(self, state: SqlState, **reducers: Reducer) -> None:
        if not isinstance(state, SqlState):
            raise TopologyError(f"SqlStateBolt takes a SqlState, not {type(state).__name__}")
        if isinstance(state, SqlTable):
            raise TopologyError(
                f"SqlStateBolt merges rows, and SqlTable {state.table!r} takes them as they come; write "
                f"SqlAppendBolt, or declare a SqlState"
            )
        unknown = sorted(set(reducers) - set(state.value_names))
        if unknown:
            raise TopologyError(
                f"state table {state.table!r} has no value column {', '.join(map(repr, unknown))}; "
                f"it has {', '.join(state.value_names)}"
            )
        self.state = state
        self.reducers: Mapping[str, Reducer] = bound(
            {name: reducers.get(name) or Sum(name) for name in state.value_names}
        )

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        for column in self.state.key_schema:
            found = declarer.input_field(column.name).type
            if not found.equals(column.type):
                raise TopologyError(
                    f"component {declarer.component!r}: key column {column.name!r} of table "
                    f"{self.state.table!r} is {format_type(column.type)}, the field is {format_type(found)}"
                )
        check_reducers(declarer, self.reducers)
        for column in self.state.value_schema:
            self._check_value(column, declarer)
        self.fold = new_fold(self)

    def _check_value(self, column: pa.Field, declarer: OutputFieldsDeclarer) -> None:
        reducer = self.reducers[column.name]
        source = declarer.input_field(reducer.field).type if reducer.field else None
        result = reducer.result_type(source)
        if not holds(column.type, result):
            raise TopologyError(
                f"component {declarer.component!r}: value column {column.name!r} of table "
                f"{self.state.table!r} is {format_type(column.type)}, but {reducer} gives "
                f"{format_type(result)}"
            )

    def execute(self, tup: Tuple) -> None:
        self.execute_chunk(one_row(tup._chunk, tup._row))

    def execute_chunk(self, chunk: Chunk) -> None:
        for name in self.state.key_names:
            column = chunk.batch.column(chunk.index[name])
            if column.null_count:
                self._refuse(
                    chunk,
                    pc.is_null(column),
                    f"key column {name!r}",
                    "a null",
                    "filter such tuples out before the state or give them a key",
                )
            self._refuse_nan(chunk, column, f"key column {name!r}")
        for name, reducer in self.reducers.items():
            # Arrow's minimum skips NaN, but a database's may be NaN. A sum would stay NaN for ever.
            if reducer.field is not None and not isinstance(reducer, (Count, Custom)):
                column = chunk.batch.column(chunk.index[reducer.field])
                self._refuse_nan(chunk, column, f"value column {name!r}")
        refuse_late(self.state, self.horizon, chunk)
        self.fold.add(chunk.batch)

    def _refuse_nan(self, chunk: Chunk, column: pa.Array, what: str) -> None:
        if pa.types.is_floating(column.type):
            wrong = pc.is_nan(column)
            if pc.any(wrong).as_py():
                self._refuse(chunk, wrong, what, "nan", "filter such tuples out before the state")

    def _refuse(self, chunk: Chunk, wrong: pa.Array, what: str, got: str, remedy: str) -> None:
        row = pc.index(wrong, pa.scalar(True)).as_py()
        found = next(one_row(chunk, row).tuples())
        raise StateValueError(f"{what} of table {self.state.table!r} got {got}, in {found!r}; {remedy}")

    def deltas(self) -> pa.Table:
        """Return this task's deltas as `Fold.partial` does: one row per key, keys first, then one delta per
        value column."""
        return self.fold.partial()


def holds(column: pa.DataType, result: pa.DataType) -> bool:
    """Return whether a column of this type can hold such results. Numbers out of range are refused later."""
    if column.equals(result):
        return True
    if pa.types.is_integer(result):
        if pa.types.is_decimal(column):
            return bool(column.precision - column.scale >= _BIGINT_DIGITS)
        return bool(pa.types.is_integer(column) or pa.types.is_floating(column))
    if pa.types.is_decimal(result):
        return bool(pa.types.is_decimal(column) and column.scale >= result.scale)
    return bool(pa.types.is_floating(result) and pa.types.is_floating(column))
