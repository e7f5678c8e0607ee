"""Deltas on their way into a database: checked, sorted, cut into chunks.

Invariant: what `prepare` returns has exactly the declared columns and types, no null in a key, and every key
once. All writers get keys in the same order, so that two of them cannot deadlock.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txstream.api.reducers import Reducer
from txstream.api.schema import format_schema, format_type
from txstream.core.errors import StateTableError, StateValueError
from txstream.core.semantics import Semantics
from txstream.state.records import TableSpec


class ChecksValues(Protocol):
    """What `prepare` checks single values with: a SQL dialect or a `StoreBackend`."""

    def check_values(self, table: str, name: str, column: pa.ChunkedArray, reducer: Reducer | None) -> None:
        """Raise StateValueError for a value that would be refused or changed. A key has no reducer."""


def prepare(spec: TableSpec, deltas: pa.Table, dialect: ChecksValues) -> pa.Table:
    """Return `deltas` ready to be written. Raises StateValueError that names table, column and value."""
    state = spec.state
    deltas = _declared_columns(spec, deltas)
    keys = list(state.key_names)
    for name in keys:
        if deltas.column(name).null_count:
            raise StateValueError(
                f"key column {name!r} of table {state.table!r} got a null; a row without a key cannot be "
                f"found again: filter such tuples out before the state or give them a key"
            )
    if spec.semantics is Semantics.OPAQUE and not spec.appends:
        deltas = _without_all_null(deltas, state.value_names)
    if deltas.num_rows > 1:
        deltas = deltas.take(pc.sort_indices(deltas, sort_keys=key_order(len(keys))))
    deltas = deltas.combine_chunks()
    _refuse_twice(spec, deltas)
    check_key_values(spec, deltas, dialect)
    for name in state.value_names:
        check_value(dialect, state.table, name, deltas.column(name), spec.reducers[name])
    return deltas


def check_key_values(spec: TableSpec, table: pa.Table, dialect: ChecksValues) -> None:
    """Raise StateValueError for a key that no row can have, whether it is to be written or looked up."""
    for name in spec.state.key_names:
        check_value(dialect, spec.state.table, name, table.column(name), None)


def key_order(keys: int) -> list[tuple[int, str]]:
    """Return the sort keys for deltas whose first `keys` columns are the key. They are indices, because Arrow
    takes a name that begins with a dot for a path to another column."""
    return [(place, "ascending") for place in range(keys)]


def check_value(
    dialect: ChecksValues, table: str, name: str, column: pa.ChunkedArray, reducer: Reducer | None
) -> None:
    """Raise StateValueError for a value that this or another store cannot keep. A key has no reducer."""
    check_column(table, name, column, reducer)
    dialect.check_values(table, name, column, reducer)


def check_column(table: str, name: str, column: pa.ChunkedArray, reducer: Reducer | None) -> None:
    """Raise StateValueError for a value that not every store can keep, so that a topology that ran on one
    store runs on another. A key has no reducer."""
    found = first_refused(column, summed=reducer is not None and reducer.merge == "sum")
    if found is not None:
        raise StateValueError(f"column {name!r} of table {table!r}{found[1]}; filter it out before the state")


def first_refused(column: pa.Array | pa.ChunkedArray, *, summed: bool = False) -> tuple[int, str] | None:
    """Return the row of the first value that not every store can keep, and what is wrong with it."""
    data_type = column.type
    if pa.types.is_string(data_type) or pa.types.is_large_string(data_type):
        return _first_nul(column)
    if pa.types.is_date(data_type) or pa.types.is_timestamp(data_type):
        return _first_year(column)
    return _first_no_number(column, summed=summed) if pa.types.is_floating(data_type) else None


def normal_keys(column: pa.Array) -> pa.Array:
    """Return a key column in which equal keys have the same bits: -0.0 becomes 0.0."""
    return pc.add(column, pa.scalar(0.0, column.type)) if pa.types.is_floating(column.type) else column


def _first_no_number(column: pa.Array | pa.ChunkedArray, *, summed: bool) -> tuple[int, str] | None:
    # The store checks that a sum of finite numbers fits; NaN or infinity would stay in the sum forever.
    fit = pc.is_finite(column) if summed else pc.invert(pc.is_nan(column))
    row = pc.index(fit, pa.scalar(False)).as_py()
    why = "would be in its sum for ever" if summed else "is not equal to itself and has no place in an order"
    return None if row < 0 else (row, f" got {column[row].as_py()}, which {why}")


def chunks(deltas: pa.Table, rows: int) -> Iterator[pa.Table]:
    """Yield `deltas` in pieces of at most `rows` rows."""
    for start in range(0, deltas.num_rows, rows):
        yield deltas.slice(start, rows)


def shown_key(spec: TableSpec, deltas: pa.Table, row: int) -> str:
    """Return a key as text for messages: word='spark'."""
    return ", ".join(f"{name}={deltas.column(name)[row].as_py()!r}" for name in spec.state.key_names)


def shown_values(spec: TableSpec, deltas: pa.Table, row: int) -> str:
    """Return a row's values as text for messages: (amount=3, note='x')."""
    shown = (f"{name}={deltas.column(name)[row].as_py()!r:.60}" for name in spec.state.value_names)
    return f"({', '.join(shown)})"


def _first_nul(column: pa.Array | pa.ChunkedArray) -> tuple[int, str] | None:
    # Search the bytes first: this costs microseconds, and hardly any batch contains a NUL.
    pieces = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    if not any(b"\0" in _text_bytes(piece) for piece in pieces):
        return None
    row = pc.index(pc.match_substring(column, "\0"), pa.scalar(True)).as_py()
    shown = f"{column[row].as_py()!r:.100}"
    return row, f": {shown} has the character NUL in it, which only binary columns keep"


def _text_bytes(piece: pa.Array) -> bytes:
    """The text of an array, which may be a part of a larger one."""
    _, ends, data = piece.buffers()
    if data is None or not len(piece):
        return b""
    width = np.int64 if pa.types.is_large_string(piece.type) else np.int32
    places = np.frombuffer(ends, width)
    return bytes(memoryview(data)[places[piece.offset] : places[piece.offset + len(piece)]])


def _first_year(column: pa.Array | pa.ChunkedArray) -> tuple[int, str] | None:
    """Databases and drivers disagree about years outside 1 to 9999."""
    # Without its zone, for which Arrow would ask the time zone database, also for UTC.
    is_date = pa.types.is_date(column.type)
    years = pc.year(column if is_date else column.cast(pa.timestamp(column.type.unit)))
    found = pc.min_max(years)
    if found["min"].as_py() is None or (found["min"].as_py() >= 1 and found["max"].as_py() <= 9999):
        return None
    row = pc.index(pc.or_(pc.less(years, 1), pc.greater(years, 9999)), pa.scalar(True)).as_py()
    return row, f": the year {years[row].as_py()} is not one of 1 to 9999"


def _declared_columns(spec: TableSpec, deltas: pa.Table) -> pa.Table:
    state = spec.state
    schema = pa.schema([*state.key_schema, *state.value_schema])
    if deltas.column_names != schema.names:
        raise StateTableError(
            f"state table {state.table!r} takes deltas of {format_schema(schema)!r}, got "
            f"{format_schema(deltas.schema)!r}"
        )
    columns = []
    for field, column in zip(schema, deltas.columns, strict=True):
        if not column.type.equals(field.type):
            try:
                column = column.cast(field.type)
            except pa.ArrowInvalid as error:
                raise StateValueError(
                    f"column {field.name!r} of table {state.table!r} ({format_type(field.type)}) cannot hold "
                    f"its delta: {error}"
                ) from error
            except pa.ArrowNotImplementedError as error:
                raise StateTableError(
                    f"column {field.name!r} of table {state.table!r} is {format_type(field.type)}, its delta "
                    f"{format_type(column.type)}"
                ) from error
        columns.append(normal_keys(column) if field.name in state.key_names else column)
    return pa.Table.from_arrays(columns, schema=schema.remove_metadata())


def _without_all_null(deltas: pa.Table, values: tuple[str, ...]) -> pa.Table:
    """Drop the keys whose values are all null: they add nothing, and value columns are NOT NULL."""
    if any(deltas.column(name).null_count == 0 for name in values):
        return deltas
    keep = deltas.column(values[0]).is_valid()
    for name in values[1:]:
        keep = pc.or_(keep, deltas.column(name).is_valid())
    return deltas.filter(keep)


def _refuse_twice(spec: TableSpec, deltas: pa.Table) -> None:
    rows = deltas.num_rows
    if rows < 2:
        return
    same = None
    for name in spec.state.key_names:
        column = deltas.column(name)
        equal = pc.equal(column.slice(1), column.slice(0, rows - 1))
        same = equal if same is None else pc.and_(same, equal)
    row = pc.index(same, pa.scalar(True)).as_py()
    if row >= 0:
        if spec.appends:
            raise StateValueError(
                f"table {spec.state.table!r}: two rows of one batch have the key "
                f"{shown_key(spec, deltas, row)}: {shown_values(spec, deltas, row)}, and "
                f"{shown_values(spec, deltas, row + 1)}; give each row a key of its own, or choose "
                f"on_conflict='ignore' or 'replace'"
            )
        raise StateValueError(
            f"table {spec.state.table!r}: key {shown_key(spec, deltas, row)} has two deltas in one batch; "
            f"they must be merged before they are written, or one would be lost"
        )
