"""Turns parsed JSON values into Arrow arrays: which value fits which type, and why another does not.

A reader takes the values of a whole column, so that C code compares the types and builds the arrays. It
raises MisfitError when a value does not fit, with the reason of the first misfit that it met. That need not
be in the first bad row: a caller that needs the first bad row asks again, value by value.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from itertools import accumulate
from typing import Any

import pyarrow as pa

from txstream.api.schema import format_type

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_SHOWN_CHARACTERS = 60
_TIMESTAMP, _TIMESTAMP_NTZ = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
# Years 1 to 9999, the range of Python's dates, in the types' own units.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_DAY_MICROSECONDS = 86_400_000_000

Column = Sequence[Any]


class MisfitError(Exception):
    """A value does not fit its type; `path` says where it is in the record, from the outside in. `rows` are
    values of the column that look like misfits, if that is known."""

    def __init__(self, reason: str, path: str = "", rows: Sequence[int] = ()) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path
        self.rows = rows

    def within(self, outer: str, rows: Sequence[int] = ()) -> MisfitError:
        """Return the error of the column around this one, in which these rows look like misfits."""
        return MisfitError(self.reason, outer + self.path, rows)


def _read(values: Column, data_type: pa.DataType) -> pa.Array:
    reader = _READERS.get(data_type)
    if reader is not None:
        return reader(values, data_type)
    if pa.types.is_decimal128(data_type):
        return _decimals(values, data_type)
    if pa.types.is_struct(data_type):
        return _structs(values, data_type)
    if pa.types.is_map(data_type):
        return _maps(values, data_type)
    return _lists(values, data_type)


def read_fields(rows: Sequence[dict[str, Any]], row_type: pa.StructType) -> list[pa.Array]:
    """Return one array per field of the objects. Raises MisfitError."""
    arrays = []
    for field in row_type:
        name = field.name
        try:
            arrays.append(read_column([row.get(name) for row in rows], field))
        except MisfitError as misfit:
            raise misfit.within(f".{name}", misfit.rows) from None
    return arrays


def read_column(values: Column, field: pa.Field) -> pa.Array:
    """Return an array of a field's type. Raises MisfitError."""
    _check_nulls(values, field)
    return _read(values, field.type)


def _check_nulls(values: Column, field: pa.Field) -> None:
    if not field.nullable and None in values:
        raise MisfitError("it is missing or null, and the schema declares it as not nullable")


def _structs(values: Column, data_type: pa.StructType) -> pa.Array:
    _expect(values, data_type, dict)
    present = [value for value in values if value is not None]
    try:
        arrays = read_fields(present, data_type)
    except MisfitError as misfit:
        raise misfit.within("", misfit.rows if len(present) == len(values) else ()) from None
    return spread(arrays, list(data_type), values)


def spread(arrays: Sequence[pa.Array], fields: Sequence[pa.Field], values: Column) -> pa.Array:
    """Return a struct column. The arrays have the rows whose value is not None."""
    if arrays and len(arrays[0]) < len(values):
        places = iter(range(len(values)))
        indices = pa.array([None if value is None else next(places) for value in values], pa.int64())
        arrays = [array.take(indices) for array in arrays]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=nulls(values))


def _lists(values: Column, data_type: pa.ListType) -> pa.Array:
    _expect(values, data_type, list)
    elements = [element for value in values if value is not None for element in value]
    array = _elements(elements, data_type.value_field)
    return pa.ListArray.from_arrays(offsets(values), array, type=data_type, mask=nulls(values))


def _maps(values: Column, data_type: pa.MapType) -> pa.Array:
    _expect(values, data_type, dict)
    names = [name for value in values if value is not None for name in value]
    items = [item for value in values if value is not None for item in value.values()]
    keys = _strings(names, data_type.key_type)
    array = _elements(items, data_type.item_field, names)
    return pa.MapArray.from_arrays(offsets(values), keys, array, type=data_type, mask=nulls(values))


def _elements(values: Column, field: pa.Field, names: Sequence[str] | None = None) -> pa.Array:
    """The elements of lists or maps. A misfit is named by its index in the list or its name in the map."""
    try:
        _check_nulls(values, field)
        return _read(values, field.type)
    except MisfitError as together:
        for place, value in enumerate(values):
            try:
                _check_nulls([value], field)
                _read([value], field.type)
            except MisfitError as misfit:
                raise misfit.within(f"[{place if names is None else shown(names[place])}]") from None
        raise together.within("") from None


def offsets(values: Column) -> pa.Array:
    """Return where the elements of each list or map begin; a null has none."""
    return pa.array([0, *accumulate(0 if value is None else len(value) for value in values)], pa.int32())


def nulls(values: Column) -> pa.Array:
    return pa.array([value is None for value in values], pa.bool_())


def _strings(values: Column, data_type: pa.DataType) -> pa.Array:
    _expect(values, data_type, str)
    try:
        return pa.array(values, pa.string())
    except UnicodeEncodeError:
        raise MisfitError("half of a surrogate pair is no character") from None


def _binaries(values: Column, data_type: pa.DataType) -> pa.Array:
    _expect(values, data_type, str)
    try:
        found = [None if value is None else base64.b64decode(value, validate=True) for value in values]
    except ValueError:
        raise MisfitError(f"{shown(_any(values))} is not base64") from None
    return pa.array(found, data_type)


def _booleans(values: Column, data_type: pa.DataType) -> pa.Array:
    _expect(values, data_type, bool)
    return pa.array(values, data_type)


def _integers(values: Column, data_type: pa.DataType) -> pa.Array:
    _expect(values, data_type, int)
    try:
        return pa.array(values, data_type)
    except (pa.ArrowInvalid, OverflowError):
        raise _out_of_range(values, data_type) from None


def _floats(values: Column, data_type: pa.DataType) -> pa.Array:
    import pyarrow.compute as pc  # who only plans does not need it

    _expect(values, data_type, float, int, Decimal)
    try:
        doubles = [None if value is None else float(value) for value in values]
    except OverflowError:
        raise _out_of_range(values, data_type) from None
    array = pa.array(doubles, pa.float64()).cast(data_type)
    if pc.any(pc.is_inf(array)).as_py():
        raise _out_of_range(values, data_type)
    return array


def _decimals(values: Column, data_type: pa.Decimal128Type) -> pa.Array:
    _expect(values, data_type, Decimal, int, str)
    numbers = [value if value is None or type(value) is Decimal else _decimal(value) for value in values]
    # Give Arrow numbers of exactly its scale and precision: it corrupts numbers of more than 38 digits, and
    # it checks the precision of the first number only.
    context = Context(prec=data_type.precision, traps=[Inexact, InvalidOperation])
    unit = Decimal((0, (1,), -data_type.scale))
    try:
        exact = [None if number is None else number.quantize(unit, None, context) for number in numbers]
    except InvalidOperation:
        raise _out_of_range(values, data_type) from None
    except Inexact:
        raise MisfitError(
            f"{shown(_any(values))} has more than {data_type.scale} digits after the point, which "
            f"{format_type(data_type)} cannot hold"
        ) from None
    return pa.array(exact, data_type)


def _decimal(value: int | str) -> Decimal:
    if isinstance(value, str) and not _NUMBER.fullmatch(value):
        raise MisfitError(f"the string {shown(value)} is not a number")
    try:
        return Decimal(value)
    except DecimalException:
        raise MisfitError(f"the exponent of {shown(value)} is out of any range") from None


def _times(values: Column, data_type: pa.DataType) -> pa.Array:
    """Dates and timestamps."""
    texts = _strings(values, data_type)
    try:
        array = texts.cast(data_type)
    except pa.ArrowInvalid:
        raise MisfitError(f"{shown(_any(values))} is not {_EXAMPLES[data_type]}") from None
    if not is_within_years(array):
        raise MisfitError(f"{shown(_any(values))} is not within the years 1 to 9999")
    return array


def is_within_years(array: pa.Array) -> bool:
    """Whether dates or timestamps in microseconds are within the years 1 to 9999, as far as Python's go."""
    import pyarrow.compute as pc

    if pa.types.is_date(array.type):
        bounds, first, last = pc.min_max(array.cast(pa.int32())), _FIRST_DAY, _LAST_DAY
    else:
        bounds = pc.min_max(array.cast(pa.int64()))
        first, last = _FIRST_DAY * _DAY_MICROSECONDS, (_LAST_DAY + 1) * _DAY_MICROSECONDS - 1
    least, most = bounds["min"].as_py(), bounds["max"].as_py()
    return least is None or (least >= first and most <= last)


_EXAMPLES = {
    pa.date32(): "a date such as '2026-11-21'",
    _TIMESTAMP: "a timestamp with a zone such as '2026-11-21T10:00:00Z', up to microseconds",
    _TIMESTAMP_NTZ: "a timestamp without a zone such as '2026-11-21T10:00:00', up to microseconds",
}

_READERS: dict[pa.DataType, Callable[[Column, pa.DataType], pa.Array]] = {
    pa.string(): _strings,
    pa.binary(): _binaries,
    pa.bool_(): _booleans,
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.int64()), _integers),
    **dict.fromkeys((pa.float32(), pa.float64()), _floats),
    **dict.fromkeys(_EXAMPLES, _times),
}
SIMPLE_TYPES = tuple(_READERS)


# --- reasons -------------------------------------------------------------------------------------------


def _expect(values: Column, data_type: pa.DataType, *kinds: type) -> None:
    found = set(map(type, values))
    found.discard(type(None))
    if not found <= set(kinds):
        rows = [row for row, value in enumerate(values) if value is not None and type(value) not in kinds]
        wrong = kind_of(values[rows[0]])
        raise MisfitError(f"expected {format_type(data_type)}, found {wrong}", rows=rows)


def _out_of_range(values: Column, data_type: pa.DataType) -> MisfitError:
    return MisfitError(f"{shown(_any(values))} is out of the range of {format_type(data_type)}")


def _any(values: Column) -> Any:
    return next(value for value in values if value is not None)


def kind_of(value: Any) -> str:
    """A value's kind in JSON's words, and the value itself if it is short."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    if isinstance(value, str):
        return f"the string {shown(value)}"
    if isinstance(value, int):
        return f"the number {shown(value)}"
    return f"the number {shown(value)}, with a fraction or an exponent"


def shown(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
