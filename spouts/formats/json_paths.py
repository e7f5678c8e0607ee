"""Columns of a JSON schema that are not fields of the same name: `user.id as user string` takes a value from
inside, `hour(at) as hour timestamp` the hour that a time lies in.

A path that leads nowhere, because a field is missing or null, gives null. One that leads through something
else than an object does not fit: the record is refused, as for a wrong type.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from txstream.api.schema import format_type, parse_schema
from txstream.core.errors import SchemaError
from txstream.spouts.formats.json_columns import MisfitError, kind_of, read_column

_UNITS = ("second", "minute", "hour", "day", "month", "year")
_NAME = r"(?:`(?:[^`]|``)+`|[A-Za-z_][A-Za-z0-9_]*)"
_PATH = rf"{_NAME}(?:\s*\.\s*{_NAME})*"
_PICK = re.compile(
    rf"\s*(?:(?P<function>[A-Za-z_]\w*)\s*\(\s*(?P<argument>{_PATH})\s*\)|(?P<path>{_PATH}))\s+as\s+"
    rf"(?P<field>.+)",
    re.IGNORECASE | re.DOTALL,
)
_IS_NO_FIELD = re.compile(rf"\s*{_NAME}\s*[.(\[]")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_NTZ = pa.timestamp("us")


@dataclass(frozen=True, slots=True)
class Pick:
    """What a column takes: the value at `path` in the object, and of a time its beginning of this `unit`."""

    field: pa.Field
    path: tuple[str, ...]
    unit: str | None = None


def parse_picks(declaration: str | pa.Schema) -> tuple[Pick, ...]:
    """Return the columns of a declaration, in order. Raises SchemaError."""
    if not isinstance(declaration, str):
        return tuple(Pick(field, (field.name,)) for field in parse_schema(declaration))
    items = list(_items(declaration))
    found = [_PICK.fullmatch(item) for item in items]
    for item, pick in zip(items, found, strict=True):
        if pick is None and _IS_NO_FIELD.match(item):
            raise SchemaError(
                f"cannot read {item.strip()!r} in the schema {declaration!r}: a column is 'NAME TYPE', "
                f"'path.to.field as NAME TYPE', or 'hour(path) as NAME timestamp', with {', '.join(_UNITS)}; "
                f"elements of arrays have no path"
            )
    fields = [item if pick is None else pick["field"] for item, pick in zip(items, found, strict=True)]
    return tuple(map(_pick, parse_schema(",".join(fields)), found))


def _items(declaration: str) -> Iterator[str]:
    """Cut a declaration at the commas outside of brackets and quotes."""
    depth, is_quoted, start = 0, False, 0
    for at, character in enumerate(declaration):
        if character == "`":
            is_quoted = not is_quoted
        elif is_quoted:
            continue
        elif character in "<>()":
            depth += 1 if character in "<(" else -1
        elif character == "," and not depth:
            yield declaration[start:at]
            start = at + 1
    yield declaration[start:]


def _pick(field: pa.Field, found: re.Match[str] | None) -> Pick:
    if found is None:
        return Pick(field, (field.name,))
    path = tuple(
        name[1:-1].replace("``", "`") if name[0] == "`" else name
        for name in re.findall(_NAME, found["path"] or found["argument"])
    )
    unit = found["function"] and found["function"].lower()
    if unit is None:
        return Pick(field, path)
    if unit not in _UNITS:
        raise SchemaError(
            f"column {field.name!r}: there is no function {unit!r}; known are {', '.join(_UNITS)}"
        )
    is_date = pa.types.is_date(field.type) and unit in _UNITS[3:]
    if not (is_date or pa.types.is_timestamp(field.type)):
        fits = "timestamp, timestamp_ntz or date" if unit in _UNITS[3:] else "timestamp or timestamp_ntz"
        raise SchemaError(
            f"column {field.name!r} is {format_type(field.type)}, and {unit}() gives a {fits}: the beginning "
            f"of the {unit} in which a time lies"
        )
    return Pick(field, path, unit)


def read_picks(rows: Sequence[dict[str, Any]], picks: Sequence[Pick]) -> list[pa.Array]:
    """Return an array for each column, from parsed objects. Raises MisfitError."""
    arrays = []
    for pick in picks:
        column = _at(rows, pick.path)
        try:
            arrays.append(read_column(column, pick.field) if pick.unit is None else _begun(column, pick))
        except MisfitError as misfit:
            raise misfit.within(_shown(pick.path), misfit.rows) from None
    return arrays


def _at(rows: Sequence[dict[str, Any]], path: tuple[str, ...]) -> list[Any]:
    column = [row.get(path[0]) for row in rows]
    for at, name in enumerate(path[1:], 1):
        wrong = [row for row, value in enumerate(column) if value is not None and type(value) is not dict]
        if wrong:
            found = kind_of(column[wrong[0]])
            raise MisfitError(
                f"expected an object with {name!r} in it, found {found}", _shown(path[:at]), wrong
            )
        column = [None if value is None else value.get(name) for value in column]
    return column


def _shown(path: Sequence[str]) -> str:
    return "".join(f".{name}" for name in path)


def _begun(column: list[Any], pick: Pick) -> pa.Array:
    """Return the beginnings of the units in which times lie; those with a zone in UTC."""
    import pyarrow.compute as pc  # who only plans does not need it

    is_date = pa.types.is_date(pick.field.type)
    if is_date:  # of a time or of a date: both are JSON's text
        column = [f"{one}T00:00:00Z" if type(one) is str and _DATE.fullmatch(one) else one for one in column]
    kind = pa.timestamp("us", tz="UTC") if is_date else pick.field.type
    times = read_column(column, pick.field.with_type(kind))
    # Without the zone, since Arrow would ask the time zone database for UTC.
    begun = pc.floor_temporal(times.view(_NTZ), unit=pick.unit)
    return begun.cast(pick.field.type) if is_date else begun.view(pick.field.type)
