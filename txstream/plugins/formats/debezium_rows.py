"""Rows out of Debezium's change events: which side of an event counts, and how its values are encoded.

Invariants:

- A value is read by what the event's own schema says of it, or by what the user has declared. A number that
  may be seconds of several kinds, or bytes that may have any scale, are refused, never guessed.
- Whether an event is refused, and why, depends on that event and its schema alone.

The meanings of Connect's and Debezium's types are those of their documentation; docs/mirror.md has the table.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, NamedTuple

import pyarrow as pa

from txstream.api.schema import format_type
from txstream.core.errors import SchemaError
from txstream.plugins.formats.avro_schema import AvroSchema
from txstream.spouts.formats.json_columns import MisfitError, kind_of, read_fields
from txstream.spouts.formats.json_paths import Pick, read_picks
from txstream.spouts.formats.json_values import json_picks

ABOUT = pa.schema(
    [
        pa.field("op", pa.string()),
        pa.field("sequence", pa.int64()),
        pa.field("changed_at", pa.timestamp("us", tz="UTC")),
    ]
)
"""The columns beside the row's own: what happened, its place in the source's log, and when it happened."""

_WRITES, _DELETE, _TRUNCATE = ("c", "r", "u"), "d", "t"
_UNSENT = "__debezium_unavailable_value"
_UNSENT_FORMS = (_UNSENT, base64.b64encode(_UNSENT.encode()).decode(), _UNSENT.encode())
_MILLIS, _MICROS, _NANOS, _DAYS, _DECIMAL = "millis", "micros", "nanos", "days", "decimal"
_KINDS = {
    "io.debezium.time.Timestamp": _MILLIS,
    "io.debezium.time.MicroTimestamp": _MICROS,
    "io.debezium.time.NanoTimestamp": _NANOS,
    "org.apache.kafka.connect.data.Timestamp": _MILLIS,
    "io.debezium.time.Date": _DAYS,
    "org.apache.kafka.connect.data.Date": _DAYS,
    "date": _DAYS,
    "timestamp-millis": _MILLIS,
    "timestamp-micros": _MICROS,
    "org.apache.kafka.connect.data.Decimal": _DECIMAL,
    "decimal": _DECIMAL,
}
_DECLARED = re.compile(r"\b(millis|micros|nanos|unscaled)\s*\(\s*([A-Za-z_]\w*)\s*\)(?=\s+as\s)", re.I)
_EPOCH, _FIRST_DAY = datetime(1970, 1, 1), date(1970, 1, 1).toordinal()
_EXACT = Context(prec=38)
_FILE_BITS, _POSITION_BITS = 31, 32


class Meaning(NamedTuple):
    """What a number or bytes stand for: `days` or `millis`, `micros` or `nanos` since 1970, a `decimal` of a
    scale, or another type of Connect's or Debezium's, by its name."""

    kind: str
    scale: int | None = None


Meanings = Mapping[str, Meaning]
"""By the name of the source's column; one whose type has no name is not in it."""


class Event(NamedTuple):
    """A change event, and what its schema says of the row's columns."""

    payload: Mapping[str, Any]
    meanings: Meanings


class Rows:
    """Makes the declared columns of rows, and `ABOUT`, from events."""

    def __init__(self, declared: Any) -> None:
        """Raises SchemaError."""
        functions: dict[str, str] = {}
        if isinstance(declared, str):
            functions = {name: how.lower() for how, name in _DECLARED.findall(declared)}
            declared = _DECLARED.sub(r"\2", declared)
        self._picks: tuple[Pick, ...] = json_picks(declared)
        self._declared: dict[str, Meaning] = {}
        for pick in self._picks:
            name, kind = pick.path[0], pick.field.type
            if pick.field.name in ABOUT.names:
                raise SchemaError(
                    f"column {pick.field.name!r} is what the format says of each row; read a column of that "
                    f"name by another, as in '{name} as {name}_of_row {format_type(kind)}'"
                )
            how = functions.get(name)
            if how == "unscaled" and pa.types.is_decimal(kind):
                self._declared[name] = Meaning(_DECIMAL, kind.scale)
            elif how is not None and how != "unscaled" and pa.types.is_timestamp(kind):
                self._declared[name] = Meaning(how)
            elif how is not None:
                fits = "decimal(p,s)" if how == "unscaled" else "timestamp or timestamp_ntz"
                raise SchemaError(
                    f"column {pick.field.name!r} is {format_type(kind)}, and {how}() gives a {fits}"
                )
        self.schema = pa.schema([*(pick.field for pick in self._picks), *ABOUT])

    def read(self, events: Sequence[Event]) -> list[pa.Array]:
        """Return one array for each field of `schema`. Raises MisfitError."""
        rows: list[dict[str, Any]] = []
        about: list[dict[str, Any]] = []
        for at, event in enumerate(events):
            try:
                rows.append(self._row(event))
                about.append(_about(event.payload))
            except MisfitError as misfit:
                raise misfit.within("", [at]) from None
        return [*read_picks(rows, self._picks), *read_fields(about, pa.struct(list(ABOUT)))]

    def _row(self, event: Event) -> dict[str, Any]:
        op = event.payload.get("op")
        row = _side(event.payload, op)
        found = dict(row)
        for pick in self._picks:
            name = pick.path[0]
            value = row.get(name)
            if value is None:
                continue
            if value in _UNSENT_FORMS or value == [_UNSENT]:
                if op != _DELETE:
                    raise MisfitError(
                        "its value was not sent, since the change left a long (TOAST) value as it was; let "
                        "the source's table have REPLICA IDENTITY FULL, or leave the column out",
                        f".{name}",
                    )
                found[name] = None
            elif len(pick.path) == 1:
                meaning = event.meanings.get(name) or self._declared.get(name)
                try:
                    found[name] = _plain(value, pick.field.type, meaning)
                except MisfitError as misfit:
                    raise misfit.within(f".{name}") from None
        return found


def _side(payload: Mapping[str, Any], op: Any) -> Mapping[str, Any]:
    """Return the row that an event is about. Raises MisfitError if it is about none."""
    if op == _TRUNCATE:
        raise MisfitError(
            "the source's table was truncated (op 't'), and rows go only one by one here: empty the table "
            "yourself, begin anew under another id behind this record, and let the connector leave such "
            "events out (skipped.operations=t, its default)"
        )
    if op not in (*_WRITES, _DELETE):
        shown = "it has no 'op'" if op is None else f"its op is {kind_of(op)}, not one of c, r, u, d"
        raise MisfitError(
            f"it is no change event of Debezium: {shown}; rows that a transform (ExtractNewRecordState) has "
            f"taken out of their events are read by value_format='json' or 'avro'"
        )
    side = "before" if op == _DELETE else "after"
    row = payload.get(side)
    if type(row) is not dict:
        remedy = "; give the source's table a primary key or REPLICA IDENTITY FULL" if op == _DELETE else ""
        raise MisfitError(f"an event of op {op!r} has a row here, not {kind_of(row)}{remedy}", f".{side}")
    return row


def _about(payload: Mapping[str, Any]) -> dict[str, Any]:
    source = payload.get("source")
    if type(source) is not dict:
        raise MisfitError(f"expected an object, found {kind_of(source)}", ".source")
    moment = source.get("ts_ms")
    return {
        "op": payload["op"],
        "sequence": _sequence(source),
        "changed_at": moment if type(moment) is not int else f"{_moment(moment, _MILLIS)}Z",
    }


def _sequence(source: Mapping[str, Any]) -> Any:
    """Return the place in the source's log: PostgreSQL's LSN, or MySQL's number of the file and position in
    it. None for connectors that say it otherwise."""
    lsn, file, position = source.get("lsn"), source.get("file"), source.get("pos")
    if lsn is not None or type(file) is not str or type(position) is not int:
        return lsn
    number = file.rpartition(".")[2]
    if not number.isdecimal():
        return None
    if int(number) >> _FILE_BITS or position >> _POSITION_BITS:
        raise MisfitError(f"{file} {position} is beyond what a bigint can order", ".source.pos")
    return int(number) << _POSITION_BITS | position


def _plain(value: Any, data_type: pa.DataType, meaning: Meaning | None) -> Any:
    """Return a value as `json_columns` takes one of this type."""
    kind = type(value)
    if pa.types.is_decimal(data_type):
        if kind is dict and value.keys() == {"scale", "value"}:
            return _decimal(value["value"], value["scale"])
        if meaning is not None and meaning.kind == _DECIMAL and kind in (str, bytes):
            return _decimal(value, meaning.scale)
    elif pa.types.is_date(data_type) and kind is int:
        if meaning is not None and meaning.kind != _DAYS:
            raise MisfitError(f"it is {meaning.kind} and no date")
        return _day(value)
    elif pa.types.is_timestamp(data_type) and kind is int:
        if meaning is not None and meaning.kind not in (_MILLIS, _MICROS, _NANOS):
            raise MisfitError(f"it is {meaning.kind} and no timestamp")
        if meaning is None:
            raise MisfitError(
                "it is a number without a unit, since the event has no schema: let the converter write "
                "schemas (schemas.enable=true), or declare it, as in 'micros(at) as at timestamp_ntz'"
            )
        return _moment(value, meaning.kind) + ("" if data_type.tz is None else "Z")
    return base64.b64encode(value).decode() if kind is bytes else value


def _decimal(unscaled: Any, scale: Any) -> Decimal:
    """Big-endian two's complement, in JSON as base64."""
    try:
        data = base64.b64decode(unscaled, validate=True) if isinstance(unscaled, str) else bytes(unscaled)
        return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-scale, _EXACT)
    except (ArithmeticError, TypeError, ValueError):
        raise MisfitError(f"{kind_of(unscaled)} with scale {kind_of(scale)} is no decimal") from None


def _day(days: int) -> str:
    try:
        return date.fromordinal(_FIRST_DAY + days).isoformat()
    except (ValueError, OverflowError):
        raise MisfitError(f"day {days} is not within the years 1 to 9999") from None


def _moment(value: int, unit: str) -> str:
    micros, rest = divmod(value, 1000) if unit == _NANOS else (value * (1000 if unit == _MILLIS else 1), 0)
    if rest:
        raise MisfitError(f"{value} has nanoseconds, and a timestamp has microseconds")
    try:
        return (_EPOCH + timedelta(microseconds=micros)).isoformat()
    except OverflowError:
        raise MisfitError(f"{value} {unit} is not within the years 1 to 9999") from None


# --- what events say of their columns ------------------------------------------------------------------


def connect_meanings(schema: Any) -> Meanings:
    """Return the meanings in the `schema` that Connect's JSON converter puts beside a `payload`."""
    for field in _members(schema, "fields"):
        if field.get("field") in ("before", "after"):
            columns = _members(field, "fields")
            return _known({one.get("field"): (one.get("name"), one.get("parameters")) for one in columns})
    return {}


def avro_meanings(schema: AvroSchema) -> Meanings:
    """Return the meanings in a writer's schema, where Connect's Avro converter keeps its own names."""

    def inner(one: Any) -> Any:
        one = schema.resolved(one)
        if isinstance(one, list):
            one = next((schema.resolved(branch) for branch in one if branch != "null"), None)
        return one if isinstance(one, dict) else {}

    for field in _members(schema.root, "fields"):
        if field.get("name") in ("before", "after"):
            columns = {one["name"]: inner(one["type"]) for one in _members(inner(field["type"]), "fields")}
            return _known(
                {
                    name: (one.get("connect.name") or one.get("logicalType"), one)
                    for name, one in columns.items()
                }
            )
    return {}


def _members(schema: Any, name: str) -> Sequence[Mapping[str, Any]]:
    found = schema.get(name) if isinstance(schema, dict) else None
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else ()


def _known(columns: Mapping[Any, tuple[Any, Any]]) -> Meanings:
    found = {}
    for column, (name, parameters) in columns.items():
        kind = _KINDS.get(name, name) if isinstance(name, str) else None
        if kind == _DECIMAL:
            scale = parameters.get("scale", "0") if isinstance(parameters, dict) else None
            found[column] = Meaning(kind, int(scale) if str(scale).lstrip("-").isdecimal() else None)
        elif kind is not None:
            found[column] = Meaning(kind)
    return found
