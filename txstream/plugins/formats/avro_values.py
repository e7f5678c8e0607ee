"""Avro values as typed columns: the reader behind `KafkaSource(..., decode=Decode("avro"))`.

Invariants:

- A value is read in full or refused: every byte of it belongs to it, and the result matches the topology's
  schema by Avro's rules of schema resolution.
- Whether a value is refused, and why, depends on that value and its writer's schema alone.

fastavro decodes by the writer's schema; each column is then resolved to the reader's schema at once, which
takes half the time of fastavro's own resolution. Only where a writer's union has several types besides null,
so that each value has to tell its own, fastavro resolves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from decimal import Context, Decimal
from io import BytesIO
from typing import Any
from uuid import UUID

import pyarrow as pa

from txstream.api.schema import format_type
from txstream.core.errors import SchemaError
from txstream.plugins.formats.avro_depth import depth_check
from txstream.plugins.formats.avro_schema import (
    AvroSchema,
    Schema,
    arrow_type,
    kind_of,
    logical_type,
    parsed,
    schema_text,
    type_name,
)
from txstream.plugins.formats.registered_values import RegisteredFormat
from txstream.plugins.formats.schema_registry import RegisteredSchema, UnresolvableError
from txstream.plugins.formats.sliced_values import SlicedDecoder
from txstream.spouts.formats.json_columns import MisfitError, is_within_years, nulls, offsets, shown, spread
from txstream.spouts.formats.unfit_values import BadValueError
from txstream.spouts.formats.value_formats import FormatArguments

Convert = Callable[[Sequence[Any]], pa.Array]
"""Turns the values of a column, as fastavro reads them, into the reader's type. Raises MisfitError."""

_EXACT = Context(prec=38)
_PROMOTIONS = {
    ("int", "long"), ("int", "float"), ("int", "double"), ("long", "float"), ("long", "double"),
    ("float", "double"), ("string", "bytes"), ("bytes", "string"),
}  # fmt: skip
_UNITS = {
    "timestamp-millis": pa.timestamp("ms", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
}


class AvroFormat(RegisteredFormat):
    libraries = ("fastavro",)
    kind = "AVRO"

    def __init__(self, given: FormatArguments) -> None:
        super().__init__(given)
        self._text = schema_text(given.schema)

    @property
    def type(self) -> pa.DataType:
        return arrow_type(parsed(self._text))

    def decoder(self, writer: RegisteredSchema | None) -> AvroDecoder:
        reader = parsed(self._text)
        try:
            written = reader
            if writer is not None:
                written = parsed(writer.text, [text for _, text in writer.references])
        except SchemaError as error:
            raise UnresolvableError(str(error)) from error
        return AvroDecoder(written, reader, errors=self.errors)


class AvroValues(SlicedDecoder):
    """Reads values by the schema that they were written by, without its logical types."""

    def __init__(self, writer: AvroSchema, errors: str) -> None:
        import fastavro

        self._read = fastavro.schemaless_reader
        self._check_depth = depth_check(writer)
        self._writer, self._errors = writer.plain, errors
        self._reader: Schema | None = None

    def decode(self, values: Sequence[bytes], skip: int, found: list[Any]) -> Exception | None:
        read, writer, reader, errors, add = self._read, self._writer, self._reader, self._errors, found.append
        check_depth = self._check_depth
        try:
            for value in values:
                if check_depth is not None:
                    check_depth(value, skip)
                data = BytesIO(value)
                data.seek(skip)
                add(read(data, writer, reader, handle_unicode_errors=errors))
                if data.tell() != len(value):
                    del found[-1]
                    left = f"{len(value) - data.tell():,}"
                    return BadValueError(len(found), f"bytes are left over behind it: {left}")
        except Exception as error:  # noqa: BLE001 - fastavro raises what it meets in bytes that are not Avro
            words = " ".join(str(error).split()) or type(error).__name__
            return BadValueError(len(found), f"it is no such Avro value: {words:.300}")
        return None


class AvroDecoder(AvroValues):
    """Reads values that were written by one schema into the columns of another."""

    def __init__(self, writer: AvroSchema, reader: AvroSchema, *, errors: str = "strict") -> None:
        """Raises UnresolvableError."""
        super().__init__(writer, errors)
        resolution = _Resolution(writer, reader, errors)
        self._convert = resolution.column(writer.root, reader.root, "")
        if resolution.needs_library:
            self._reader = _with_defaults_as_read(reader)
            self._convert = _Resolution(reader, reader, errors).column(reader.root, reader.root, "")
        self._type = arrow_type(reader)

    def column(self, found: Sequence[Any]) -> pa.Array:
        try:
            return self._convert(found)
        except (pa.ArrowException, OverflowError) as error:
            raise MisfitError(str(error)) from error


@dataclass
class _Resolution:
    """Finds for each column of the reader how it is made from what the writer has. `needs_library` says that
    only fastavro can tell, value by value."""

    writer: AvroSchema
    reader: AvroSchema
    errors: str
    needs_library: bool = False

    def column(self, writer: Schema, reader: Schema, path: str) -> Convert:
        writer, reader = self.writer.resolved(writer), self.reader.resolved(reader)
        if isinstance(writer, list):
            return self._of_union(writer, reader, path)
        if isinstance(reader, list):  # with null, or it would be no column
            if writer == "null":
                return _Nulls(_reader_type(self.reader, reader))
            return self.column(writer, next(branch for branch in reader if branch != "null"), path)
        kinds = kind_of(writer), kind_of(reader)
        if kinds == ("record", "record"):
            self._check_names(writer, reader, path)
            return self._of_record(writer, reader, path)
        if kinds == ("enum", "enum"):
            self._check_names(writer, reader, path)
            return _Enum(writer, reader)
        if kinds == ("array", "array"):
            return _List(self.column(writer["items"], reader["items"], f"{path}[]"))
        if kinds == ("map", "map"):
            return _Map(self.column(writer["values"], reader["values"], f"{path}[]"))
        if kinds == ("fixed", "fixed"):
            self._check_names(writer, reader, path)
            if writer["size"] != reader["size"]:
                raise self._differ(path, f"{writer['size']} bytes", f"{reader['size']} bytes")
        elif kinds[0] != kinds[1] and kinds not in _PROMOTIONS:
            raise self._differ(path, type_name(writer), type_name(reader))
        return self._of_leaf(writer, reader, path)

    def _of_union(self, writer: Sequence[Schema], reader: Schema, path: str) -> Convert:
        branches = [branch for branch in writer if branch != "null"]
        takes_null = isinstance(reader, list)
        if not branches:
            return self.column("null", reader, path)
        if len(branches) == 1:
            convert = self.column(branches[0], reader, path)
            return convert if takes_null or len(writer) == 1 else _NotNull(convert)
        self.needs_library = True
        problems = []
        for branch in branches:
            try:
                self.column(branch, reader, path)
            except UnresolvableError as error:
                problems.append(error)
        if len(problems) == len(branches):
            raise self._differ(path, type_name(writer), type_name(reader))
        # fastavro takes what the types are for the same, so what they mean has to be the same too.
        wanted = reader if not takes_null else next(one for one in reader if one != "null")
        meant = {logical_type(self.writer.resolved(branch)) for branch in branches} - {None}
        if meant - {logical_type(self.reader.resolved(wanted))}:
            raise self._differ(path, type_name(writer), type_name(reader))
        return _Nulls(_reader_type(self.reader, reader))  # never called: see AvroDecoder

    def _of_record(self, writer: Schema, reader: Schema, path: str) -> Convert:
        written = {field["name"]: field for field in writer["fields"]}
        fields: list[tuple[pa.Field, str | None, Convert]] = []
        for field in reader["fields"]:
            name, inner = field["name"], f"{path}.{field['name']}".lstrip(".")
            known = next((one for one in (name, *field.get("aliases", ())) if one in written), None)
            data_type = _reader_type(self.reader, field["type"])
            convert: Convert
            if known is not None:
                convert = self.column(written[known]["type"], field["type"], inner)
            elif "default" in field:
                convert = self._of_default(field["type"], field["default"], inner)
            else:
                raise UnresolvableError(
                    f"field {inner!r} has no default in the topology's schema "
                    f"({type_name(field['type'])}), and is not a field of the writer's {writer['name']} "
                    f"({', '.join(written) or 'no fields'})"
                )
            fields.append((pa.field(name, data_type), known, convert))
        return _Record(fields)

    def _of_default(self, schema: Schema, default: Any, path: str) -> Convert:
        same = _Resolution(self.reader, self.reader, self.errors)
        try:
            value = _default(self.reader, schema, default)
            return _Constant(same.column(schema, schema, path)([value]))
        except (MisfitError, pa.ArrowException, KeyError, TypeError, AttributeError) as error:
            raise UnresolvableError(
                f"field {path!r}: its default {default!r:.100} does not fit {type_name(schema)} in the "
                f"topology's schema"
            ) from error

    def _of_leaf(self, writer: Schema, reader: Schema, path: str) -> Convert:
        kinds = kind_of(writer), kind_of(reader)
        meant, wanted = logical_type(writer), logical_type(reader)
        data_type = _reader_type(self.reader, reader)
        if wanted == "decimal":
            if meant == "decimal" and not (
                writer.get("scale", 0) == reader.get("scale", 0)
                and writer["precision"] <= reader["precision"]
            ):
                raise self._differ(path, type_name(writer), type_name(reader))
            return _Decimals(data_type)
        timestamps = meant in _UNITS and wanted in _UNITS and _UNITS[meant].tz == _UNITS[wanted].tz
        if meant is not None and wanted is not None and meant != wanted and not timestamps:
            raise self._differ(path, type_name(writer), type_name(reader))
        if wanted in _UNITS:
            return _Times(_UNITS[meant if meant in _UNITS else wanted], data_type)
        if wanted == "date":
            return _Times(data_type, data_type)
        if wanted == "uuid" and kinds[1] == "fixed":
            return _Plain(data_type, lambda value: str(UUID(bytes=value)))
        if kinds[0] in ("int", "long") and kinds[1] in ("float", "double"):
            return _Plain(data_type, float)
        if kinds == ("bytes", "string"):
            return _Text(self.errors)
        return _Plain(data_type, str.encode if kinds == ("string", "bytes") else None)

    def _check_names(self, writer: Schema, reader: Schema, path: str) -> None:
        """Raise UnresolvableError for other names: as in the specification, without their namespaces."""
        aliases = {alias.rpartition(".")[2] for alias in reader.get("aliases", ())}
        if writer["name"].rpartition(".")[2] not in {reader["name"].rpartition(".")[2], *aliases}:
            raise self._differ(path, type_name(writer), type_name(reader))

    def _differ(self, path: str, writer: str, reader: str) -> UnresolvableError:
        where = f"field {path!r}" if path else "a value"
        return UnresolvableError(f"{where} is {writer} in the writer's schema, {reader} in the topology's")


def _reader_type(avro: AvroSchema, schema: Schema) -> pa.DataType:
    return arrow_type(AvroSchema(schema, avro.named, None))


def _with_defaults_as_read(avro: AvroSchema) -> Schema:
    """Return the plain schema with its defaults as values. fastavro hands them out as JSON has them, where
    bytes are text."""
    plain = deepcopy(avro.plain)

    def visit(schema: Schema) -> None:
        for branch in schema if isinstance(schema, list) else ():
            visit(branch)
        if not isinstance(schema, dict):
            return
        for inner in (schema.get(name) for name in ("type", "items", "values")):
            visit(inner)
        for field in schema.get("fields", ()):
            visit(field["type"])
            if "default" in field:
                field["default"] = _default(avro, field["type"], field["default"])

    for schema in (plain, *plain.get("__named_schemas", {}).values()):
        visit(schema)
    return plain


def _default(avro: AvroSchema, schema: Schema, default: Any) -> Any:
    """Return a default as fastavro would read it. In a schema, bytes are text."""
    schema = avro.resolved(schema)
    if isinstance(schema, list):
        # A null beside the one other type may come second, and some writers of schemas do not mind.
        other = next((branch for branch in schema if branch != "null"), "null")
        return None if default is None else _default(avro, other, default)
    match kind_of(schema):
        case "bytes" | "fixed":
            # Bytes already where a default holds one that was made before.
            return default if isinstance(default, bytes) else default.encode("latin-1")
        case "array":
            return [_default(avro, schema["items"], one) for one in default]
        case "map":
            return {name: _default(avro, schema["values"], one) for name, one in default.items()}
        case "record":
            return {
                field["name"]: _default(avro, field["type"], default.get(field["name"], field.get("default")))
                for field in schema["fields"]
            }
    return default


# --- columns -------------------------------------------------------------------------------------------


class _Plain:
    def __init__(self, data_type: pa.DataType, change: Callable[[Any], Any] | None = None) -> None:
        self._type = data_type
        self._change = change

    def __call__(self, values: Sequence[Any]) -> pa.Array:
        if self._change is not None:
            values = [value if value is None else self._change(value) for value in values]
        try:
            return pa.array(values, self._type)
        except (pa.ArrowInvalid, OverflowError):
            raise MisfitError(f"it is out of the range of {format_type(self._type)}") from None


class _Nulls:
    def __init__(self, data_type: pa.DataType) -> None:
        self._type = data_type

    def __call__(self, values: Sequence[Any]) -> pa.Array:
        return pa.nulls(len(values), self._type)


class _NotNull:
    """A writer's null where the reader takes none."""

    def __init__(self, convert: Convert) -> None:
        self._convert = convert

    def __call__(self, values: Sequence[Any]) -> pa.Array:
        if None in values:
            raise MisfitError("it is null, which the topology's schema does not allow")
        return self._convert(values)


class _Constant:
    """A reader's default."""

    def __init__(self, value: pa.Array) -> None:
        self._value = value

    def __call__(self, values: Sequence[Any]) -> pa.Array:
        return self._value.take(pa.array([0] * len(values), pa.int64()))


class _Text:
    """Bytes that are read as text."""

    def __init__(self, errors: str) -> None:
        self._errors = errors

    def __call__(self, values: Sequence[Any]) -> pa.Array:
        try:
            texts = [value if value is None else value.decode("utf-8", self._errors) for value in values]
        except UnicodeDecodeError as error:
            raise MisfitError(f"it is not UTF-8: {error.reason} at byte {error.start}") from None
        return pa.array(texts, pa.string())


class _Enum:
    def __init__(self, writer: Schema, reader: Schema) -> None:
        default = reader.get("default")
        known = set(reader["symbols"])
        names = {symbol: symbol if symbol in known else default for symbol in writer["symbols"]}
        self._unknown = {symbol for symbol, name in names.items() if name is None}
        self._names = None if known.issuperset(writer["symbols"]) else names
        self._reader = reader["name"]

    def __call__(self, values: Sequence[Any]) -> pa.Array:
        if self._names is not None:
            for value in values:
                if value in self._unknown:
                    raise MisfitError(
                        f"{shown(value)} of the writer's enum is no symbol of the topology's enum "
                        f"{self._reader}, which has no default"
                    )
            values = [value if value is None else self._names[value] for value in values]
        return pa.array(values, pa.string())


class _Decimals:
    """Big-endian two's complement."""

    def __init__(self, data_type: pa.Decimal128Type) -> None:
        self._type = data_type
        self._limit = 10**data_type.precision

    def __call__(self, values: Sequence[Any]) -> pa.Array:
        scale, limit = -self._type.scale, self._limit
        numbers: list[Decimal | None] = []
        for value in values:
            if value is None:
                numbers.append(None)
                continue
            number = int.from_bytes(value, "big", signed=True)
            if not -limit < number < limit:
                raise MisfitError(f"{len(value)} bytes are out of the range of {format_type(self._type)}")
            numbers.append(Decimal(number).scaleb(scale, _EXACT))
        return pa.array(numbers, self._type)


class _Times:
    """Dates and timestamps, from the numbers that Avro stores."""

    def __init__(self, unit: pa.DataType, data_type: pa.DataType) -> None:
        self._unit = unit
        self._type = data_type

    def __call__(self, values: Sequence[Any]) -> pa.Array:
        try:
            array = pa.array(values, self._unit).cast(self._type)
        except (pa.ArrowInvalid, OverflowError):
            array = None
        if array is None or not is_within_years(array):
            raise MisfitError("it is not within the years 1 to 9999")
        return array


class _List:
    def __init__(self, convert: Convert) -> None:
        self._convert = convert

    def __call__(self, values: Sequence[Any]) -> pa.Array:
        elements = [element for value in values if value is not None for element in value]
        array = _elements(self._convert, elements)
        return pa.ListArray.from_arrays(offsets(values), array, mask=nulls(values))


class _Map:
    def __init__(self, convert: Convert) -> None:
        self._convert = convert

    def __call__(self, values: Sequence[Any]) -> pa.Array:
        names = [name for value in values if value is not None for name in value]
        items = [item for value in values if value is not None for item in value.values()]
        array = _elements(self._convert, items)
        keys = pa.array(names, pa.string())
        return pa.MapArray.from_arrays(offsets(values), keys, array, mask=nulls(values))


class _Record:
    """`fields` are the reader's, each with the writer's name, None where it has none."""

    def __init__(self, fields: Sequence[tuple[pa.Field, str | None, Convert]]) -> None:
        self._fields = fields

    def __call__(self, values: Sequence[Mapping[str, Any] | None]) -> pa.Array:
        present = [value for value in values if value is not None]
        arrays = []
        for field, name, convert in self._fields:
            try:
                arrays.append(convert(present if name is None else [value[name] for value in present]))
            except MisfitError as misfit:
                raise misfit.within(f".{field.name}") from None
        return spread(arrays, [field for field, _, _ in self._fields], values)


def _elements(convert: Convert, values: Sequence[Any]) -> pa.Array:
    try:
        return convert(values)
    except MisfitError as misfit:
        raise misfit.within("[]") from None
