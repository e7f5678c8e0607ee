"""JSON values as typed columns: the strict reader behind `KafkaSource(..., decode=Decode("json"))`.

Invariants:

- A value is read in full or refused. The result matches the schema, and no value is changed to fit it, except
  that a double takes the nearest number that it can hold.
- Each value is parsed by itself: the content of one record can neither hide nor complete another's.
- Whether a value is refused, and why, depends on that value alone, not on the values read with it.

What fits which type:

| type | JSON |
|---|---|
| string | a string |
| binary | a string of base64 |
| boolean | true, false |
| tinyint, smallint, int, bigint | a number without fraction and exponent, in the type's range |
| float, double | a number in the type's range |
| decimal(p,s) | a number that it can hold exactly, or a string with such a number in it |
| date | a string such as "2026-11-21" |
| timestamp | a string in ISO 8601 with a zone, such as "2026-11-21T10:00:00.5Z", up to microseconds |
| timestamp_ntz | the same without a zone |
| array, map<string,...>, struct | an array, an object, an object |

A field that is missing or null is null, and a field that the schema does not have is ignored. A name may
occur only once in an object. NaN and Infinity are not JSON. Python's recursion limit bounds the nesting.

Why not `pyarrow.json`: it is three times as fast, but it accepts NaN, several objects in one value, and
invalid UTF-8 in ignored fields, and a value `null` at the top ends the process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal, DecimalException
from typing import Any, NoReturn

import pyarrow as pa

from txstream.api.schema import format_type, parse_schema
from txstream.core.errors import SchemaError
from txstream.spouts.formats.json_columns import SIMPLE_TYPES, MisfitError, kind_of, read_fields, shown
from txstream.spouts.formats.json_paths import Pick, parse_picks, read_picks
from txstream.spouts.formats.unfit_values import converted, in_rows, refuse_first

_SLICE_ROWS = 4096  # a fifth faster than 50,000 rows at once, whose dicts overflow the processor's cache


def json_picks(declaration: str | pa.Schema) -> tuple[Pick, ...]:
    """As `json_schema`; a declaration may have paths and functions of times (`json_paths`)."""
    picks = parse_picks(declaration)
    json_schema(pa.schema([pick.field for pick in picks]))
    return picks


def json_schema(declaration: str | pa.Schema) -> pa.Schema:
    """Return the schema, checked: JSON values can be read by it.

    Raises SchemaError for one that cannot be understood and for a type that JSON cannot express.
    """
    schema = parse_schema(declaration)
    for field in schema:
        _check_type(field.type, field.name)
    return schema


def _check_type(data_type: pa.DataType, path: str) -> None:
    if pa.types.is_list(data_type):
        _check_type(data_type.value_type, f"{path}[]")
    elif pa.types.is_map(data_type):
        if data_type.key_type != pa.string():
            raise SchemaError(
                f"field {path!r} is {format_type(data_type)}, but the names in a JSON object are strings; "
                f"declare map<string,...>"
            )
        _check_type(data_type.item_type, f"{path}[]")
    elif pa.types.is_struct(data_type):
        names = [field.name for field in data_type]
        if len(set(names)) < len(names) or not names:
            raise SchemaError(f"field {path!r} is {format_type(data_type)}, a struct takes distinct fields")
        for field in data_type:
            _check_type(field.type, f"{path}.{field.name}")
    elif data_type not in SIMPLE_TYPES and not pa.types.is_decimal128(data_type):
        raise SchemaError(
            f"field {path!r} is {format_type(data_type)}, which JSON has no form for; known are "
            f"{', '.join(map(format_type, SIMPLE_TYPES))}, decimal(p,s), array<>, map<string,...>, struct<>"
        )


class JsonReader:
    """Reads values by a schema that `json_schema` has checked, or by `picks`. Keeps nothing between calls.
    A subclass may make the columns in another way (`columns`)."""

    def __init__(
        self, schema: pa.Schema, *, replace_invalid_utf8: bool = False, picks: Sequence[Pick] = ()
    ) -> None:
        self._type = pa.struct(list(schema))
        self._picks = picks if any(one.unit or one.path != (one.field.name,) for one in picks) else ()
        self._errors = "replace" if replace_invalid_utf8 else "strict"
        self._decoder = json.JSONDecoder(
            parse_float=Decimal if _has_decimal(self._type) else None,
            parse_constant=_refuse_constant,
            object_pairs_hook=_distinct,
        )

    def read(self, values: Sequence[bytes | None]) -> list[pa.Array]:
        """Return one array per field of the schema. A value of None, Kafka's tombstone, is a row of nulls.

        Raises BadValueError for the first value that cannot be read.
        """
        arrays, unfit = self.read_fit(values)
        refuse_first(unfit)
        return arrays

    def read_fit(self, values: Sequence[bytes | None]) -> tuple[list[pa.Array], Mapping[int, str]]:
        """As `read`. Values that cannot be read have nulls; why they cannot comes with them, by row."""
        slices = []
        unfit: dict[int, str] = {}
        for first in range(0, max(1, len(values)), _SLICE_ROWS):
            arrays, found = self._read(values[first : first + _SLICE_ROWS])
            slices.append(arrays)
            unfit.update((first + row, reason) for row, reason in found.items())
        if len(slices) == 1:
            return slices[0], unfit
        return [pa.concat_arrays(a) for a in zip(*slices, strict=True)], unfit

    def _read(self, values: Sequence[bytes | None]) -> tuple[list[pa.Array], dict[int, str]]:
        rows: list[dict[str, Any]] = []
        unfit: dict[int, str] = {}
        while len(rows) < len(values):
            try:
                self._parse(values[len(rows) :] if rows else values, rows)
            except MisfitError as misfit:
                unfit[len(rows)] = misfit.reason
                rows.append({})
        if unfit and len(unfit) == len(rows):  # of a value that is tried by itself, most often
            return [pa.nulls(len(rows), field.type) for field in self._type], unfit
        arrays = converted(rows, self.columns, unfit)
        return in_rows(arrays, unfit, len(rows)), unfit

    def columns(self, rows: Sequence[dict[str, Any]]) -> list[pa.Array]:
        """Return one array per field of the schema, from parsed objects. Raises MisfitError."""
        return read_picks(rows, self._picks) if self._picks else read_fields(rows, self._type)

    def _parse(self, values: Iterable[bytes | None], rows: list[dict[str, Any]]) -> None:
        """Append to `rows`. When it raises, `len(rows)` is the row of the value that is not a JSON object."""
        raw_decode, errors, add = self._decoder.raw_decode, self._errors, rows.append
        try:
            for value in values:
                if value is None:
                    add({})
                    continue
                text = value.decode("utf-8", errors)
                try:
                    found, end = raw_decode(text)
                except json.JSONDecodeError:
                    end = -1
                if end != len(text):  # spaces around it, or not JSON
                    found = self._decoder.decode(text)
                if type(found) is not dict:
                    raise MisfitError(f"it is not a JSON object but {kind_of(found)}")
                add(found)
        except UnicodeDecodeError as error:
            raise MisfitError(f"it is not UTF-8: {error.reason} at byte {error.start}") from None
        except json.JSONDecodeError as error:
            raise MisfitError(f"it is not JSON: {error.msg} at character {error.pos}") from None
        except RecursionError:
            raise MisfitError("it is nested too deeply") from None
        except DecimalException:
            raise MisfitError("it has a number whose exponent is out of any range") from None
        except ValueError:  # an integer with more digits than Python accepts
            raise MisfitError(f"it has a number of more than {sys.get_int_max_str_digits()} digits") from None


def _has_decimal(data_type: pa.DataType) -> bool:
    children = [data_type.field(index).type for index in range(data_type.num_fields)]
    return pa.types.is_decimal128(data_type) or any(map(_has_decimal, children))


def _refuse_constant(name: str) -> NoReturn:
    raise MisfitError(f"it is not JSON: {name} is no number there")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise MisfitError(f"the name {shown(twice)} stands twice in one object")
    return found
