"""Turns the fields of Redis entries, which are bytes, into the values of declared columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from txstream.api.errors import SchemaError
from txstream.api.schema import format_type, parse_schema

Entry = tuple[str, Mapping[bytes, bytes]]
"""An entry's id and its fields."""

_SHOWN_BYTES = 60
_TEXT = pa.string()
_KNOWN = (
    pa.string(), pa.binary(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(),
    pa.float32(), pa.float64(), pa.date32(), pa.timestamp("us", tz="UTC"), pa.timestamp("us"),
)  # fmt: skip


class BadEntryError(Exception):
    """An entry does not fit the columns. The message names the field and shows the beginning of its value."""


class EntryReader:
    """Reads entries by a schema; `id_field` is the column that gets an entry's id.

    Raises SchemaError for a type that text cannot express.
    """

    def __init__(self, output: str | pa.Schema, id_field: str | None) -> None:
        self.schema = parse_schema(output)
        self._id_field = id_field
        self._names = [name.encode() for name in self.schema.names]
        if id_field is not None and (
            id_field not in self.schema.names or self.schema.field(id_field).type != _TEXT
        ):
            raise SchemaError(f"id_field is {id_field!r}; it must be a string column of the output")
        for field in self.schema:
            if field.type not in _KNOWN and not pa.types.is_decimal128(field.type):
                raise SchemaError(
                    f"field {field.name!r} is {format_type(field.type)}, but the fields of a Redis entry are "
                    f"single values; known are {', '.join(map(format_type, _KNOWN))} and decimal(p,s)"
                )

    def read(self, entries: Sequence[Entry]) -> list[tuple[Any, ...]]:
        """Return the rows of these entries. Raises BadEntryError if any does not fit."""
        columns = [
            self._column(field, name, entries) for field, name in zip(self.schema, self._names, strict=True)
        ]
        return list(zip(*columns, strict=True))

    def _column(self, field: pa.Field, name: bytes, entries: Sequence[Entry]) -> list[Any]:
        if field.name == self._id_field:
            return [entry_id for entry_id, _ in entries]
        values = [fields.get(name) for _, fields in entries]
        if not field.nullable and None in values:
            raise BadEntryError(
                f"field {field.name!r} is missing, and the output declares it as not nullable"
            )
        raw = pa.array(values, pa.binary())
        if field.type == pa.binary():
            return values
        try:
            found: list[Any] = raw.cast(_TEXT).cast(field.type).to_pylist()
        except pa.ArrowInvalid:
            shown = next((value for value in values if value is not None), b"")
            cut = "..." if len(shown) > _SHOWN_BYTES else ""
            text = shown[:_SHOWN_BYTES].decode(errors="backslashreplace")
            raise BadEntryError(
                f"field {field.name!r} is {text!r}{cut}, not {format_type(field.type)}"
            ) from None
        return found
