"""How SQLite keeps each type, and the checks and functions that it needs for that.

SQLite checks no types: it turns an integer sum that overflows into a float, a float sum into infinity and NaN
into NULL. So every number column has a CHECK of its kind, and a sum that does not fit becomes a value of
another kind, which the CHECK refuses. SQLite has no exact decimals. They are kept as text of the declared
scale ("-0.50"), so that equal ones are the same text, and our own functions add and compare them, exactly at
any length. Dates and times are ISO 8601 text of a fixed width, which SQLite's own functions read and write
and which sorts by time.

Other programs that write such a column do not need these functions: no table's definition uses them.
"""

from __future__ import annotations

import sqlite3
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from sqlalchemy import (
    REAL,
    Column,
    ColumnElement,
    Double,
    Text,
    and_,
    case,
    func,
    literal_column,
    or_,
    types,
)

from txstream.state.sql.dialect import COLUMN_TYPES, INTEGER_RANGES

_LARGEST: Final = {REAL: "3.4028234663852886e38", Double: "1.7976931348623157e308"}

_UNFIT: Final = "x''"  # a kind that no number column allows
_MOST_DIGITS: Final = 38


class DecimalText(types.TypeDecorator[Decimal]):
    """A decimal as text with the digits of its scale."""

    impl = Text
    cache_ok = True

    def __init__(self, precision: int, scale: int) -> None:
        super().__init__()
        self.precision = precision
        self.scale = scale

    def process_bind_param(self, value: Decimal | str | None, dialect: object) -> str | None:
        return format(value, "f") if isinstance(value, Decimal) else value

    def process_result_value(self, value: str | None, dialect: object) -> Decimal | None:
        return None if value is None else Decimal(value)


class IsoText(types.TypeDecorator[Any]):
    """A date or a time as ISO 8601 text."""

    impl = Text
    cache_ok = True

    def __init__(self, data_type: pa.DataType) -> None:
        super().__init__()
        self.data_type = data_type

    def process_bind_param(self, value: Any, dialect: object) -> str | None:
        if value is None or isinstance(value, str):
            return value
        written: str = to_driver(pa.chunked_array([pa.array([value], self.data_type)]))[0]
        return written

    def process_result_value(self, value: str | None, dialect: object) -> Any:
        return None if value is None else pa.scalar(value).cast(self.data_type).as_py()


def column_type(data_type: pa.DataType) -> types.TypeEngine[Any] | None:
    """See `StateDialect.column_type`."""
    if pa.types.is_decimal128(data_type):
        return DecimalText(data_type.precision, data_type.scale)
    if pa.types.is_date32(data_type) or (
        pa.types.is_timestamp(data_type) and data_type.unit in ("s", "ms", "us")
    ):
        return IsoText(data_type)
    found = COLUMN_TYPES.get(data_type)
    return None if found is None else found()


def value_check(column: Column[Any], data_type: pa.DataType) -> ColumnElement[bool] | None:
    """See `StateDialect.value_check`."""
    kind = None
    if data_type in INTEGER_RANGES:
        kind = "integer"
    elif pa.types.is_floating(data_type):
        kind = "real"
    elif pa.types.is_decimal(data_type):
        kind = "text"
    if kind is None:
        return None
    # One equality instead of IN: an IN list would take a tenth of the whole upsert's time.
    is_kind = func.typeof(column) == literal_column(f"'{kind}'")
    if kind == "integer" and data_type != pa.int64():
        is_kind = and_(is_kind, column.between(*INTEGER_RANGES[data_type]))
    return or_(is_kind, column.is_(None)) if column.nullable else is_kind


def merged(merge: str, stored: Any, delta: Any) -> ColumnElement[Any] | None:
    """Return SQL that merges two values, null if one is; None where plain SQL merges them correctly."""
    kind = stored.type
    if isinstance(kind, DecimalText) and merge in ("sum", "min", "max"):
        if merge == "sum":
            size: list[Any] = [literal_column(f"{kind.precision}"), literal_column(f"{kind.scale}")]
            return func.txstream_decimal_sum(stored, delta, *size)
        return (func.txstream_decimal_min if merge == "min" else func.txstream_decimal_max)(stored, delta)
    largest = next((text for known, text in _LARGEST.items() if isinstance(kind, known)), None)
    if merge == "sum" and largest is not None:
        both = stored + delta
        return case(
            (func.abs(both) <= literal_column(largest), both),
            (both.is_not(None), literal_column(_UNFIT)),
        )
    return None


def ordering(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """See `StateDialect.ordering`."""
    return func.txstream_decimal_order(column) if isinstance(column.type, DecimalText) else column


def to_driver(column: pa.ChunkedArray) -> list[Any]:
    """See `StateDialect.to_driver`."""
    data_type = column.type
    if pa.types.is_decimal(data_type):
        return [None if value is None else format(value, "f") for value in column.to_pylist()]
    if pa.types.is_timestamp(data_type):
        zone = None if data_type.tz is None else "UTC"
        column = column.cast(pa.timestamp("us", tz=zone)).cast(pa.string())
    elif pa.types.is_date(data_type):
        column = column.cast(pa.string())
    values: list[Any] = column.to_pylist()
    return values


def from_driver(values: list[Any], data_type: pa.DataType) -> pa.Array:
    """Convert what the driver returns to a column: the inverse of `to_driver`."""
    if pa.types.is_temporal(data_type):
        return pa.array(values, pa.string()).cast(data_type)
    if pa.types.is_decimal(data_type):
        return pa.array([None if value is None else Decimal(value) for value in values], data_type)
    if pa.types.is_boolean(data_type):
        return pa.array(values, pa.int8()).cast(data_type)
    return pa.array(values, data_type)


def add_functions(connection: sqlite3.Connection) -> None:
    """Add the functions on decimals to a connection."""
    for name, arguments, function in (
        ("txstream_decimal_sum", 4, _sum),
        ("txstream_decimal_min", 2, _min),
        ("txstream_decimal_max", 2, _max),
        ("txstream_decimal_order", 1, _order),
    ):
        connection.create_function(name, arguments, function, deterministic=True)


def _unscaled(text: str) -> int:
    return int(text.replace(".", "", 1))


def _sum(first: str | None, second: str | None, precision: int, scale: int) -> str | bytes | None:
    if first is None or second is None:
        return None
    total = _unscaled(first) + _unscaled(second)
    digits = str(abs(total)).rjust(scale + 1, "0")
    if abs(total) >= 10**precision:
        return b""  # a value of another kind, which the column's CHECK refuses
    if scale:
        digits = f"{digits[:-scale]}.{digits[-scale:]}"
    return f"-{digits}" if total < 0 else digits


def _min(first: str | None, second: str | None) -> str | None:
    if first is None or second is None:
        return None
    return first if _unscaled(first) <= _unscaled(second) else second


def _max(first: str | None, second: str | None) -> str | None:
    if first is None or second is None:
        return None
    return first if _unscaled(first) >= _unscaled(second) else second


def _order(text: str | None) -> str | None:
    """Return text that sorts like the number."""
    return None if text is None else f"{_unscaled(text) + 10**_MOST_DIGITS:0{_MOST_DIGITS + 1}}"
