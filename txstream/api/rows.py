"""Conversion of Python values to Arrow, for everything that takes rows from user code.

Invariant: the result has exactly the declared schema, and no value was changed to fit. Arrow by itself
truncates fractions to integers and datetimes to dates, and drops unknown fields of a struct, without an
error.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from decimal import Decimal
from typing import Any

import pyarrow as pa

# With more digits Arrow overflows and gives another number, without an error.
_ARROW_DIGITS = 38

# What Arrow and the checks below raise for a value that a type cannot hold.
_REFUSALS = (pa.ArrowException, TypeError, ValueError, OverflowError)


class UnfitValueError(ValueError):
    """The declared type cannot hold the value of `field` in row `row`. The cause, where known, says why."""

    def __init__(self, row: int, field: pa.Field, value: Any) -> None:
        super().__init__(f"row {row}: {value!r:.200} does not fit {field.name!r} of type {field.type}")
        self.row = row
        self.field = field
        self.value = value


def to_record_batch(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows as one Arrow batch. Each has as many values as the schema has fields.

    Raises UnfitValueError for the first value that a column cannot hold unchanged.
    """
    columns: Iterable[Sequence[Any]] = zip(*rows, strict=True) if rows else ((),) * len(schema)
    arrays = [to_column(values, field) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def to_column(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """Return one column as an Arrow array. Raises UnfitValueError."""
    try:
        array = to_array(values, field.type)
    except _REFUSALS as error:
        for row, value in enumerate(values):
            try:
                to_array([value], field.type)
            except _REFUSALS as reason:
                raise UnfitValueError(row, field, value) from reason
        raise UnfitValueError(0, field, values) from error
    if array.null_count and not field.nullable:
        raise UnfitValueError(list(values).index(None), field, None)
    return array


def to_array(values: Sequence[Any], data_type: pa.DataType) -> pa.Array:
    """Return the values as an Arrow array. Raises an Arrow error, TypeError, ValueError or OverflowError."""
    if pa.types.is_integer(data_type):
        found = pa.array(values)
        if not (pa.types.is_integer(found.type) or pa.types.is_null(found.type)):
            raise TypeError(f"expected whole numbers, found {found.type}")
        return found.cast(data_type)
    _check(values, data_type)
    return pa.array(values, type=data_type)


def _check(values: Iterable[Any], data_type: pa.DataType) -> None:
    """Refuse what Arrow would change. What Arrow itself refuses may pass."""
    if pa.types.is_date(data_type):
        _refuse(values, _has_time, "a date has no time of day")
    elif pa.types.is_decimal(data_type):
        _refuse(values, _is_too_long, f"a decimal has at most {_ARROW_DIGITS} digits, zeros behind it too")
    elif pa.types.is_timestamp(data_type):
        _refuse(values, _is_fraction, "a timestamp is no float")
    elif pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        _refuse(values, _is_no_sequence, "a list is expected")
        to_array([item for value in values if value is not None for item in value], data_type.value_type)
    elif pa.types.is_map(data_type):
        items = [item for value in values if value is not None for item in _pairs(value)]
        to_array([key for key, _ in items], data_type.key_type)
        to_array([item for _, item in items], data_type.item_type)
    elif pa.types.is_struct(data_type):
        _check_struct([value for value in values if value is not None], data_type)


def _check_struct(values: Sequence[Any], data_type: pa.DataType) -> None:
    names = {field.name for field in data_type}
    for value in values:
        if not isinstance(value, Mapping):
            raise TypeError(f"a mapping is expected, found {type(value).__name__}")
        if not names.issuperset(value):
            raise ValueError(f"no field {next(iter(set(value) - names))!r} in {data_type}")
    for field in data_type:
        to_array([value.get(field.name) for value in values], field.type)


def _refuse(values: Iterable[Any], is_wrong: Callable[[Any], bool], why: str) -> None:
    for value in values:
        if is_wrong(value):
            raise TypeError(f"{why}, found {value!r:.100}")


def _has_time(value: Any) -> bool:
    return isinstance(value, datetime.datetime)


def _is_too_long(value: Any) -> bool:
    return isinstance(value, Decimal) and len(value.as_tuple().digits) > _ARROW_DIGITS


def _is_fraction(value: Any) -> bool:
    return isinstance(value, float)


def _is_no_sequence(value: Any) -> bool:
    return value is not None and isinstance(value, (str, bytes, Mapping, Set))


def _pairs(value: Any) -> Iterator[tuple[Any, Any]]:
    return iter(value.items() if isinstance(value, Mapping) else value)
