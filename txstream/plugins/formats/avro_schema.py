"""Avro schemas: read from where the user has them, and mapped to Arrow types. docs/formats.md has the table.

A reader's schema gives the columns of a source, so it need not be declared a second time. What cannot be a
column is refused here, when the topology is built.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from txstream.core.errors import SchemaError, UsageError

Schema = Any
"""A schema as JSON has it: a name, a list (a union) or an object."""

_PRIMITIVES: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_TIMESTAMP, _TIMESTAMP_NTZ = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
_LOGICAL: Mapping[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): _TIMESTAMP,
    ("long", "timestamp-micros"): _TIMESTAMP,
    ("long", "local-timestamp-millis"): _TIMESTAMP_NTZ,
    ("long", "local-timestamp-micros"): _TIMESTAMP_NTZ,
    ("fixed", "uuid"): pa.string(),
}
_NANOS = ("timestamp-nanos", "local-timestamp-nanos")
# Of the logical types that are left, each value is what Avro stores.
_UNDERSTOOD = {name for _, name in _LOGICAL} | {"decimal", "time-millis", "time-micros", *_NANOS}


@dataclass(frozen=True)
class AvroSchema:
    """A parsed schema. `named` are the records, enums and fixed types in it, by their full names; `plain` is
    the same schema without logical types, for fastavro: a column is converted at once, not value by value."""

    root: Schema
    named: Mapping[str, Schema]
    plain: Schema

    def resolved(self, schema: Schema) -> Schema:
        """Return what a name stands for, or a schema that is wrapped in an object; anything else as it is."""
        if isinstance(schema, str):
            return self.named.get(schema, schema)
        if isinstance(schema, dict):
            inner = schema["type"]
            if not isinstance(inner, str) or inner in self.named:
                return self.resolved(inner)
        return schema


def parsed(text: str, referenced: Sequence[str] = ()) -> AvroSchema:
    """Return a schema, parsed. `referenced` are those that it takes named types from, each after what it
    needs itself. Raises SchemaError with the parser's words, UsageError without fastavro."""
    return _parsed(text, tuple(referenced))


@lru_cache(maxsize=256)
def _parsed(text: str, referenced: tuple[str, ...]) -> AvroSchema:
    fastavro = _fastavro()
    named: dict[str, Schema] = {}
    plain: dict[str, Schema] = {}
    try:
        for one in referenced:
            fastavro.parse_schema(json.loads(one), named)
            fastavro.parse_schema(_without_logical_types(json.loads(one)), plain)
        document = json.loads(text)
        root = fastavro.parse_schema(document, named)
        bare = fastavro.parse_schema(_without_logical_types(document), plain)
    except Exception as error:  # fastavro raises what it meets in a document that is no schema
        raise SchemaError(f"it is no Avro schema: {type(error).__name__}: {error}") from error
    return AvroSchema(root, named, bare)


def _fastavro() -> Any:
    try:
        import fastavro
    except ImportError as error:
        raise UsageError(
            "Avro needs fastavro, which is not installed; type pip install 'txstream[avro]', where the "
            "workers run too"
        ) from error
    return fastavro


def _without_logical_types(schema: Schema) -> Schema:
    if isinstance(schema, list):
        return [_without_logical_types(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    bare = {name: value for name, value in schema.items() if name != "logicalType"}
    for name in ("type", "items", "values"):
        if name in bare:
            bare[name] = _without_logical_types(bare[name])
    if isinstance(bare.get("fields"), list):
        bare["fields"] = [_without_logical_types(field) for field in bare["fields"]]
    return bare


def schema_text(given: Any) -> str:
    """Return the JSON of a schema that a user gives as the path of a .avsc file, as JSON text, or as what the
    JSON stands for. Raises SchemaError."""
    if isinstance(given, (dict, list)):
        return json.dumps(given)
    if isinstance(given, str) and given.lstrip()[:1] in ("{", "[", '"'):
        return given
    if not isinstance(given, (str, Path)):
        raise SchemaError(
            f"an Avro schema is given as the path of its .avsc file, as JSON text or as a dict, not as "
            f"{type(given).__name__}"
        )
    try:
        return Path(given).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SchemaError(f"the Avro schema {str(given)!r} cannot be read: {error}") from error


def arrow_type(schema: AvroSchema) -> pa.DataType:
    """Return the Arrow type of a reader's schema. Raises SchemaError for what no column can hold."""
    return _arrow(schema, schema.root, "", ())


def _arrow(avro: AvroSchema, schema: Schema, path: str, within: tuple[str, ...]) -> pa.DataType:
    schema = avro.resolved(schema)
    if isinstance(schema, list):
        return _arrow(avro, _only_branch(schema, path), path, within)
    kind, logical = kind_of(schema), logical_type(schema)
    where = f"field {path!r}" if path else "the schema"
    if logical in _NANOS:
        raise SchemaError(
            f"{where} has logical type {logical}, and a timestamp column has microseconds; leave the logical "
            f"type out of the topology's schema to read the number, a bigint"
        )
    if logical == "decimal":
        return _decimal(schema, where)
    known = _LOGICAL.get((kind, logical or "")) or _PRIMITIVES.get(kind)
    if known is not None:
        return known
    match kind:
        case "fixed":
            return pa.binary()
        case "enum":
            return pa.string()
        case "array":
            return pa.list_(_arrow(avro, schema["items"], f"{path}[]", within))
        case "map":
            return pa.map_(pa.string(), _arrow(avro, schema["values"], f"{path}[]", within))
        case "record":
            return _struct(avro, schema, path, within)
    raise SchemaError(f"{where} is {kind!r}, which says nothing that a column could hold; leave it out")


def _struct(avro: AvroSchema, schema: Schema, path: str, within: tuple[str, ...]) -> pa.DataType:
    name = schema["name"]
    where = f"field {path!r}" if path else "the schema"
    if name in within:
        raise SchemaError(
            f"{where} is a {name} inside a {name}: a column cannot hold a type that contains itself; leave "
            f"the field out of the topology's schema"
        )
    if not schema["fields"]:
        raise SchemaError(f"{where} is record {name} without fields; a struct takes at least one")
    return pa.struct(
        [
            pa.field(field["name"], _arrow(avro, field["type"], _inner(path, field), (*within, name)))
            for field in schema["fields"]
        ]
    )


def _inner(path: str, field: Mapping[str, Any]) -> str:
    return f"{path}.{field['name']}" if path else str(field["name"])


def _only_branch(union: Sequence[Schema], path: str) -> Schema:
    branches = [branch for branch in union if branch != "null"]
    if len(branches) == 1:
        return branches[0]
    words = ", ".join(map(type_name, union))
    raise SchemaError(
        f"{f'field {path!r}' if path else 'the schema'} is a union of {words}: a column has one type; name "
        f"one of them in the topology's schema, perhaps with null"
    )


def _decimal(schema: Schema, where: str) -> pa.DataType:
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if not isinstance(precision, int) or not 0 <= scale <= precision <= 38:
        raise SchemaError(
            f"{where} is decimal({precision},{scale}); a column holds at most decimal(38,s), 0 <= s <= 38"
        )
    return pa.decimal128(precision, scale)


def kind_of(schema: Schema) -> str:
    """Return a schema's type in Avro's word: "long", "record", "union"."""
    if isinstance(schema, list):
        return "union"
    return str(schema["type"] if isinstance(schema, dict) else schema)


def logical_type(schema: Schema) -> str | None:
    """Return the logical type that is understood here. Any other is ignored, as Avro's specification asks."""
    found = schema.get("logicalType") if isinstance(schema, dict) else None
    return found if found in _UNDERSTOOD else None


def type_name(schema: Schema) -> str:
    """Return a type as a message shows it: "long (timestamp-millis)", "enum shop.Colour"."""
    if isinstance(schema, list):
        return f"[{', '.join(map(type_name, schema))}]"
    if not isinstance(schema, dict):
        return str(schema)
    words = str(schema["type"] if isinstance(schema["type"], str) else type_name(schema["type"]))
    if "name" in schema:
        words = f"{words} {schema['name']}"
    if schema.get("logicalType") == "decimal":
        return f"{words} (decimal({schema.get('precision')},{schema.get('scale', 0)}))"
    return f"{words} ({schema['logicalType']})" if "logicalType" in schema else words
