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
from txstream.state.folding import bound, first_unfit, new_fold
from txstream.state.values import first_refused

_BIGINT_DIGITS = 19


class SqlStateBolt(StateCommitter):
    """Stores its input in a `SqlState`: `SqlStateBolt(state, n=Sum("n"))`.

    Each value column has a reducer, by default `Sum` of the field of that name. Key columns are filled from
    the input's fields of the same names. Group the input by the key or a part of it. A tuple with a null in
    its key, or with a value that no database keeps (NaN, NUL in text, a year beyond 9999), other than for a
    count or a custom reducer, ends the run with StateValueError or becomes a dead letter: a row without a key
    could not be found again, and a sum would stay NaN.
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
        refuse_unfit_keys(self.state, chunk)
        for column in self.state.value_schema:
            reducer = self.reducers[column.name]
            if reducer.field is None or isinstance(reducer, (Count, Custom)):
                continue
            is_sum = reducer.merge == "sum"
            # A single value may be too large for its column; a sum is known when all have been added.
            fits = None if is_sum else column.type
            refuse_unfit(
                self.state, chunk, f"value column {column.name!r}", reducer.field, fits, summed=is_sum
            )
        refuse_late(self.state, self.horizon, chunk)
        self.fold.add(chunk.batch)

    def deltas(self) -> pa.Table:
        """Return this task's deltas as `Fold.partial` does: one row per key, keys first, then one delta per
        value column."""
        return self.fold.partial()


def refuse_unfit_keys(state: SqlState, chunk: Chunk) -> None:
    """Raise StateValueError for the first tuple with a key that no row can have."""
    for name in state.key_names:
        refuse_nulls(state, chunk, f"key column {name!r}", name, " or give them a key")
        refuse_unfit(state, chunk, f"key column {name!r}", name)


def refuse_nulls(state: SqlState, chunk: Chunk, what: str, field: str, remedy: str = "") -> None:
    """Raise StateValueError for the first tuple whose field is null."""
    column = chunk.batch.column(chunk.index[field])
    if column.null_count:
        row = pc.index(pc.is_null(column), pa.scalar(True)).as_py()
        raise _refused(state, chunk, row, what, " got a null", remedy)


def refuse_unfit(
    state: SqlState,
    chunk: Chunk,
    what: str,
    field: str,
    fits: pa.DataType | None = None,
    *,
    summed: bool = False,
) -> None:
    """Raise StateValueError for the first tuple with a value that no database keeps, or that does not fit the
    column's type. It is known here, with its tuple, and no database is asked."""
    column = chunk.batch.column(chunk.index[field])
    found = first_refused(column, summed=summed)
    if found is None and fits is not None and not column.type.equals(fits):
        try:
            column.cast(fits)
        except pa.ArrowInvalid:
            row = first_unfit(column, fits)
            found = row, f" ({format_type(fits)}) cannot hold {column[row].as_py()}"
    if found is not None:
        raise _refused(state, chunk, found[0], what, found[1])


def _refused(
    state: SqlState, chunk: Chunk, row: int, what: str, got: str, remedy: str = ""
) -> StateValueError:
    found = next(one_row(chunk, row).tuples())
    error = StateValueError(
        f"{what} of table {state.table!r}{got}, in {found!r}; filter such tuples out before the state{remedy}"
    )
    error.at = row
    return error


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
