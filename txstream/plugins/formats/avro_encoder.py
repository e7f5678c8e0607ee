"""Rows as Avro: `Encode("avro")`, by a schema that is given or derived from the columns.

A derived schema is a record of all columns. What may be null is a union with null, null by default, so a
column more is a change that readers of the former schema and of the new one can resolve.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any

import pyarrow as pa

from txstream.api.schema import format_type
from txstream.core.errors import SchemaError
from txstream.plugins.formats.avro_schema import kind_of, parsed, schema_text
from txstream.plugins.formats.registered_encoders import RegisteredEncoder, require_fields
from txstream.spouts.formats.value_encoders import EncoderArguments

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TYPES: Mapping[pa.DataType, Any] = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    pa.timestamp("us", tz="UTC"): {"type": "long", "logicalType": "timestamp-micros"},
    pa.timestamp("us"): {"type": "long", "logicalType": "local-timestamp-micros"},
}


class AvroEncoder(RegisteredEncoder):
    kind = "AVRO"

    def __init__(self, given: EncoderArguments) -> None:
        super().__init__(given)
        self._is_given = given.given.schema is not None
        if not self._is_given:
            derived = _record(given.columns, _named(f"{given.topic}_value"), given.topic)
            self.text = json.dumps(derived)
            return
        self.text = schema_text(given.given.schema)
        root = parsed(self.text).root
        if kind_of(root) != "record":
            raise SchemaError(f"topic {given.topic!r} takes a schema of a record, not of {kind_of(root)!r}")
        require_fields(given, {one["name"] for one in root["fields"]}, "the Avro schema")
        for one in root["fields"]:
            if one["name"] not in given.columns.names and "default" not in one:
                raise SchemaError(
                    f"topic {given.topic!r} has no column {one['name']!r} for the Avro schema's field, which "
                    f"has no default; the columns are {', '.join(given.columns.names)}"
                )

    def written(self) -> Callable[[Mapping[str, Any]], bytes]:
        import fastavro
        from fastavro.validation import ValidationError, validate

        schema, check = parsed(self.text).root, self._is_given

        def write(row: Mapping[str, Any]) -> bytes:
            if check:  # the writer takes a number that is too large for an int, which no reader can read
                try:
                    validate(row, schema)
                except ValidationError as error:
                    raise ValueError(str(error)) from error
            data = BytesIO()
            fastavro.schemaless_writer(data, schema, row)
            return data.getvalue()

        return write


def _record(fields: Any, name: str, topic: str) -> dict[str, Any]:
    made = []
    for one in fields:
        if not _NAME.fullmatch(one.name):
            raise SchemaError(f"topic {topic!r}: {one.name!r} is no name for a field of Avro")
        kind = _type(one.type, f"{name}_{one.name}", topic)
        nullable = {"type": ["null", kind], "default": None}
        made.append({"name": one.name, **(nullable if one.nullable else {"type": kind})})
    return {"type": "record", "name": name, "fields": made}


def _type(kind: pa.DataType, name: str, topic: str) -> Any:
    if kind in _TYPES:
        return _TYPES[kind]
    if pa.types.is_decimal128(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if pa.types.is_list(kind):
        return {"type": "array", "items": ["null", _type(kind.value_type, name, topic)]}
    if pa.types.is_struct(kind):
        return _record(kind, name, topic)
    raise SchemaError(
        f"topic {topic!r}: a {format_type(kind)} has no schema of Avro of its own; give one (Encode(schema=))"
    )


def _named(text: str) -> str:
    name = re.sub(r"[^A-Za-z0-9_]", "_", text)
    return f"_{name}" if name[0].isdigit() else name
