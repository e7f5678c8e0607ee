"""A state table's key as a person types it: one text per key column, read by the column's type.

Text is taken as it is; binary is hexadecimal; dates and timestamps are ISO 8601.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from numbers import Integral, Real
from typing import Any

import pyarrow as pa

from txstream.api.errors import UsageError
from txstream.api.schema import format_schema, format_type

_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")
_WHOLE = re.compile(r"[+-]?\d{1,40}")


class _NotOfTypeError(Exception):
    """Its message says what is expected."""


def parse_key(table: str, schema: pa.Schema, texts: Sequence[str]) -> list[Any]:
    """The key that `texts` mean, one value per column. Raises UsageError that names column and type."""
    _check_count(table, schema, texts)
    return [
        _value(table, field, text, _parser(field.type)) for field, text in zip(schema, texts, strict=True)
    ]


def check_key(table: str, schema: pa.Schema, key: Sequence[Any] | Mapping[str, Any]) -> list[Any]:
    """A key of Python values, in the order of its columns or by their names, one value per column.

    Raises UsageError that names column and type: the nearest value of the type is not what was asked for.
    """
    if isinstance(key, Mapping):
        if key.keys() != {*schema.names}:
            raise UsageError(
                f"the key of table {table!r} is {format_schema(schema)}, got the columns "
                f"{', '.join(map(str, key)) or 'of none'}"
            )
        key = [key[name] for name in schema.names]
    if isinstance(key, (str, bytes)):
        raise UsageError(
            f"the key of table {table!r} is {format_schema(schema)}: give a list of "
            f"{_values(len(schema))}, not {key!r:.100}"
        )
    _check_count(table, schema, key)
    return [_value(table, field, value, _as_it_is) for field, value in zip(schema, key, strict=True)]


def _check_count(table: str, schema: pa.Schema, values: Sequence[Any]) -> None:
    if len(values) != len(schema):
        raise UsageError(
            f"the key of table {table!r} is {format_schema(schema)}: give {_values(len(schema))}, "
            f"not {len(values)}"
        )


def _value(table: str, field: pa.Field, given: Any, understand: Callable[[Any, pa.DataType], Any]) -> Any:
    try:
        value = understand(given, field.type)
        pa.array([value], field.type)
    except (_NotOfTypeError, pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError) as error:
        expected = str(error) if isinstance(error, _NotOfTypeError) else "a value within its range"
        if isinstance(error, UnicodeEncodeError):
            expected = "text that is valid Unicode"
        raise UsageError(
            f"key column {field.name!r} of table {table!r} is {format_type(field.type)}: expected "
            f"{expected}, got {given!r:.100}"
        ) from error
    return value


_Kind = tuple[Callable[[pa.DataType], bool], tuple[type, ...], tuple[type, ...], str]

# Of each kind of column: what its values are, what they are not although they are that, and in a word.
_PYTHON: tuple[_Kind, ...] = (
    (pa.types.is_boolean, (bool,), (), "a bool"),
    (pa.types.is_integer, (Integral,), (bool,), "an int"),
    (pa.types.is_floating, (Real,), (bool,), "a float"),
    (pa.types.is_decimal, (Decimal, Integral), (bool,), "a Decimal"),
    (pa.types.is_date, (date,), (datetime,), "a datetime.date"),
    (pa.types.is_timestamp, (datetime,), (), "a datetime.datetime"),
    (pa.types.is_binary, (bytes, bytearray), (), "bytes"),
    (pa.types.is_large_binary, (bytes, bytearray), (), "bytes"),
    (lambda _: True, (str,), (), "a str"),
)


def _as_it_is(value: Any, data_type: pa.DataType) -> Any:
    """A Python value, if it is of the type."""
    known: Any = value
    _, wanted, unwanted, word = next(kind for kind in _PYTHON if kind[0](data_type))
    if not isinstance(value, wanted) or isinstance(value, unwanted):
        raise _NotOfTypeError(word)
    if isinstance(value, datetime) and (value.tzinfo is None) is not (data_type.tz is None):
        raise _NotOfTypeError(f"{word} {'without' if data_type.tz is None else 'with'} a time zone")
    return int(known) if pa.types.is_integer(data_type) else known


def _values(count: int) -> str:
    return "one value" if count == 1 else f"{count} values, one per column"


def _parser(data_type: pa.DataType) -> Callable[[str, pa.DataType], Any]:
    kinds: list[tuple[Callable[[pa.DataType], bool], Callable[[str, pa.DataType], Any]]] = [
        (pa.types.is_boolean, _boolean),
        (pa.types.is_integer, _integer),
        (pa.types.is_floating, _float),
        (pa.types.is_decimal, _decimal),
        (pa.types.is_date, _date),
        (pa.types.is_timestamp, _timestamp),
        (pa.types.is_binary, _binary),
        (pa.types.is_large_binary, _binary),
    ]
    return next((parse for is_kind, parse in kinds if is_kind(data_type)), lambda text, _: text)


def _boolean(text: str, _: pa.DataType) -> bool:
    word = text.strip().lower()
    if word not in (*_TRUE, *_FALSE):
        raise _NotOfTypeError("true or false")
    return word in _TRUE


def _integer(text: str, data_type: pa.DataType) -> int:
    if not _WHOLE.fullmatch(text.strip()):
        raise _NotOfTypeError("a whole number")
    value = int(text)
    low, high = -(2 ** (data_type.bit_width - 1)), 2 ** (data_type.bit_width - 1) - 1
    if not low <= value <= high:
        raise _NotOfTypeError(f"a whole number from {low} to {high}")
    return value


def _float(text: str, _: pa.DataType) -> float:
    try:
        return float(text)
    except ValueError:
        raise _NotOfTypeError("a number") from None


def _decimal(text: str, data_type: pa.DataType) -> Decimal:
    try:
        value = Decimal(text.strip())
        if not value.is_finite():
            raise InvalidOperation
    except InvalidOperation:
        raise _NotOfTypeError("a decimal number, for example 1.50") from None
    exponent = value.as_tuple().exponent
    if isinstance(exponent, int) and -exponent > data_type.scale:
        raise _NotOfTypeError(f"at most {data_type.scale} digits after the point")
    return value


def _date(text: str, _: pa.DataType) -> date:
    try:
        return date.fromisoformat(text.strip())
    except ValueError:
        raise _NotOfTypeError("a date as 2026-01-31") from None


def _timestamp(text: str, data_type: pa.DataType) -> datetime:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise _NotOfTypeError("a time as 2026-01-31T12:00:00.5") from None
    if data_type.tz is None:
        if moment.tzinfo is not None:
            raise _NotOfTypeError("a time without an offset, as 2026-01-31T12:00:00.5")
        return moment
    if moment.tzinfo is None:
        raise _NotOfTypeError("a time with its offset, as 2026-01-31T12:00:00Z")
    return moment.astimezone(UTC)


def _binary(text: str, _: pa.DataType) -> bytes:
    try:
        return bytes.fromhex(text.strip().removeprefix("0x"))
    except ValueError:
        raise _NotOfTypeError("hexadecimal digits, two per byte, as 00ff") from None
