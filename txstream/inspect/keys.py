"""Keys of state tables as people type them: one text per key column, read by the column's type.

Text is taken as it is, binary is hexadecimal, dates and timestamps are ISO 8601.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from numbers import Integral, Real
from typing import Any, NamedTuple

import pyarrow as pa

from txstream.api.schema import format_schema, format_type
from txstream.core.errors import UsageError

_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_WHOLE = re.compile(r"[+-]?\d{1,40}")


class _NotOfTypeError(Exception):
    """A value is not of its column's type. The message says what is expected."""


def parse_key(table: str, schema: pa.Schema, texts: Sequence[str]) -> list[Any]:
    """Return the key that `texts` stand for, one value per column. UsageError names column and type."""
    _check_count(table, schema, texts)
    return [_value(table, field, text, _read) for field, text in zip(schema, texts, strict=True)]


def check_key(table: str, schema: pa.Schema, key: Sequence[Any] | Mapping[str, Any]) -> list[Any]:
    """Return a key given as Python values, one per column, in the order of its columns or by their names.

    Raises UsageError that names column and type. Values are never rounded: the nearest value of the type is
    not what was asked for.
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


def _as_it_is(value: Any, data_type: pa.DataType) -> Any:
    """Return a Python value if it is of the type."""
    known: Any = value
    kind = _kind_of(data_type)
    if not isinstance(value, kind.wanted) or isinstance(value, kind.unwanted):
        raise _NotOfTypeError(kind.word)
    if isinstance(value, datetime) and (value.tzinfo is None) is not (data_type.tz is None):
        raise _NotOfTypeError(f"{kind.word} {'without' if data_type.tz is None else 'with'} a time zone")
    return int(known) if pa.types.is_integer(data_type) else known


def _read(text: str, data_type: pa.DataType) -> Any:
    """Return the value that a text stands for, if it is of the type."""
    kind = _kind_of(data_type)
    try:
        return kind.parse(text if kind.word == "a str" else text.strip(), data_type)
    except (ValueError, KeyError, InvalidOperation):
        raise _NotOfTypeError(kind.as_text) from None


def _values(count: int) -> str:
    return "one value" if count == 1 else f"{count} values, one per column"


def _integer(text: str, data_type: pa.DataType) -> int:
    if not _WHOLE.fullmatch(text):
        raise ValueError
    value = int(text)
    low, high = -(2 ** (data_type.bit_width - 1)), 2 ** (data_type.bit_width - 1) - 1
    if not low <= value <= high:
        raise _NotOfTypeError(f"a whole number from {low} to {high}")
    return value


def _decimal(text: str, data_type: pa.DataType) -> Decimal:
    value = Decimal(text)
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int):  # an infinity, or not a number
        raise ValueError
    if -exponent > data_type.scale:
        raise _NotOfTypeError(f"at most {data_type.scale} digits after the point")
    return value


def _timestamp(text: str, data_type: pa.DataType) -> datetime:
    moment = datetime.fromisoformat(text)
    if data_type.tz is None:
        if moment.tzinfo is not None:
            raise _NotOfTypeError("a time without an offset, as 2026-01-31T12:00:00.5")
        return moment
    if moment.tzinfo is None:
        raise _NotOfTypeError("a time with its offset, as 2026-01-31T12:00:00Z")
    return moment.astimezone(UTC)


def _is_binary(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_binary(data_type) or pa.types.is_large_binary(data_type))


class _Kind(NamedTuple):
    """A kind of column: the types of its values, subtypes that are refused, and a word for them; how they are
    read from text, and what they look like there."""

    is_kind: Callable[[pa.DataType], bool]
    wanted: tuple[type, ...]
    unwanted: tuple[type, ...]
    word: str
    parse: Callable[[str, pa.DataType], Any]
    as_text: str


# fmt: off
_KINDS = (
    _Kind(pa.types.is_boolean, (bool,), (), "a bool", lambda text, _: _WORDS[text.lower()], "true or false"),
    _Kind(pa.types.is_integer, (Integral,), (bool,), "an int", _integer, "a whole number"),
    _Kind(pa.types.is_floating, (Real,), (bool,), "a float", lambda text, _: float(text), "a number"),
    _Kind(
        pa.types.is_decimal, (Decimal, Integral), (bool,), "a Decimal",
        _decimal, "a decimal number, for example 1.50",
    ),
    _Kind(
        pa.types.is_date, (date,), (datetime,), "a datetime.date",
        lambda text, _: date.fromisoformat(text), "a date as 2026-01-31",
    ),
    _Kind(
        pa.types.is_timestamp, (datetime,), (), "a datetime.datetime",
        _timestamp, "a time as 2026-01-31T12:00:00.5",
    ),
    _Kind(
        _is_binary, (bytes, bytearray), (), "bytes",
        lambda text, _: bytes.fromhex(text.removeprefix("0x")), "hexadecimal digits, two per byte, as 00ff",
    ),
    _Kind(lambda _: True, (str,), (), "a str", lambda text, _: text, "text"),
)
# fmt: on


def _kind_of(data_type: pa.DataType) -> _Kind:
    return next(kind for kind in _KINDS if kind.is_kind(data_type))
