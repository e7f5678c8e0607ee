"""Protobuf values as typed columns: the reader behind `KafkaSource(..., decode=Decode("protobuf"))`.

Invariants:

- A value is read in full or refused. A field that the topology's message does not have is ignored.
- A writer's schema whose field would be lost or misread is refused by name. Protobuf's own parser would not
  tell: it takes a field of another wire type for an unknown one.

protobuf's C code parses each message. Its fields are read column by column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import pyarrow as pa

from txstream.core.errors import UsageError
from txstream.plugins.formats.protobuf_schema import (
    MessageType,
    arrow_type,
    field_type,
    is_map,
    is_timestamp,
    is_wrapper,
    kind_of,
    message_type,
    registered_file,
    type_name,
    value_type,
)
from txstream.plugins.formats.registered_values import RegisteredFormat
from txstream.plugins.formats.schema_registry import RegisteredSchema, UnresolvableError
from txstream.plugins.formats.sliced_values import SlicedDecoder
from txstream.spouts.formats.json_columns import MisfitError, is_within_years, offsets, shown, spread
from txstream.spouts.formats.unfit_values import BadValueError
from txstream.spouts.formats.value_formats import FormatArguments

_FIRST = (0,)
# What a varint field may be written as so that every value keeps its meaning, by what it is read as.
_WIDER: Mapping[str, frozenset[str]] = {
    "INT64": frozenset({"INT32", "UINT32", "BOOL", "ENUM"}),
    "UINT64": frozenset({"UINT32", "BOOL"}),
    "INT32": frozenset({"BOOL", "ENUM"}),
    "UINT32": frozenset({"BOOL"}),
    "SINT64": frozenset({"SINT32"}),
    "STRING": frozenset({"BYTES"}),  # what is not UTF-8 is refused by itself
    "BYTES": frozenset({"STRING"}),
}

Convert = Callable[[Sequence[Any]], pa.Array]


class ProtobufFormat(RegisteredFormat):
    libraries = ("google.protobuf",)
    kind = "PROTOBUF"
    serialized = True

    def __init__(self, given: FormatArguments) -> None:
        super().__init__(given)
        self._message = message_type(given.schema)

    @property
    def type(self) -> pa.DataType:
        return arrow_type(self._message.descriptor)

    def decoder(self, writer: RegisteredSchema | None) -> ProtobufDecoder:
        return ProtobufDecoder(self._message, writer)


class ProtobufDecoder(SlicedDecoder):
    """Reads messages into the columns of the topology's message type. With a writer's schema from a registry,
    values begin with the indexes that say which message of that schema they are."""

    def __init__(self, reader: MessageType, writer: RegisteredSchema | None = None) -> None:
        """Raises UnresolvableError for a writer's schema that cannot be understood."""
        self._parse = reader.message_class.FromString
        self._reader = reader.descriptor
        self._type = arrow_type(self._reader)
        self._convert = _message_column(self._reader)
        self._writer = None if writer is None else _WriterFile(writer)
        self._problems: dict[tuple[int, ...], str | None] = {}

    def decode(self, values: Sequence[bytes], skip: int, found: list[Any]) -> Exception | None:
        parse, add, checked = self._parse, found.append, self._problems
        try:
            for value in values:
                start = skip
                if self._writer is not None:
                    indexes, start = _indexes(value, skip)
                    if indexes not in checked:
                        checked[indexes] = self._problem(self._writer, indexes)
                    problem = checked[indexes]
                    if problem is not None:
                        return UnresolvableError(problem, len(found))
                add(parse(value[start:]))
        except MisfitError as misfit:
            return BadValueError(len(found), misfit.reason)
        except Exception as error:  # noqa: BLE001 - protobuf raises what it meets in bytes that are no message
            words = " ".join(str(error).split())
            return BadValueError(len(found), f"it is no such Protobuf message: {words:.300}")
        return None

    def _problem(self, writer: _WriterFile, indexes: tuple[int, ...]) -> str | None:
        """Return why a message of the writer's file cannot be read, or None."""
        message = writer.message(indexes)
        if message is None:
            return f"it has no message with the indexes {list(indexes)}"
        if message.full_name != self._reader.full_name:
            return (
                f"the message is {message.full_name} there, {self._reader.full_name} in the topology's schema"
            )
        return _difference(message, self._reader, "", set())

    def column(self, found: Sequence[Any]) -> pa.Array:
        try:
            return self._convert(found)
        except (pa.ArrowException, UnicodeDecodeError, OverflowError) as error:
            raise MisfitError(str(error)) from error


class _WriterFile:
    """The file of a writer's schema."""

    def __init__(self, schema: RegisteredSchema) -> None:
        try:
            found = registered_file(schema.text, schema.references, f"schema-{schema.id}.proto")
            self._files, self._file = found
            self.message((0,))
        except UsageError:
            raise
        except Exception as error:  # protobuf raises what it meets in what are no descriptors
            raise UnresolvableError(
                f"its descriptors cannot be read ({type(error).__name__}: {error})"
            ) from error

    def message(self, indexes: Sequence[int]) -> Any:
        """Return the descriptor at these indexes, from the file's messages inwards; None if there is none."""
        name, messages = self._file.package, self._file.message_type
        for index in indexes:
            if not 0 <= index < len(messages):
                return None
            name, messages = f"{name}.{messages[index].name}", messages[index].nested_type
        return MessageType(self._files, name.lstrip(".")).descriptor


def _indexes(value: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """Return the indexes of a message and where it begins. Raises MisfitError."""
    if value[at : at + 1] == b"\0":
        return _FIRST, at + 1
    count, at = _zigzag(value, at)
    if not 0 < count <= len(value):
        raise MisfitError("its list of message indexes is no such list")
    indexes = []
    for _ in range(count):
        index, at = _zigzag(value, at)
        indexes.append(index)
    return tuple(indexes), at


def _zigzag(value: bytes, at: int) -> tuple[int, int]:
    number = 0
    for place in range(5):
        if at == len(value):
            break
        byte = value[at]
        at += 1
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
    raise MisfitError("its list of message indexes is no such list")


def _difference(writer: Any, reader: Any, path: str, seen: set[tuple[str, str]]) -> str | None:
    """Return which field of the reader's message cannot be read from the writer's, and why, or None."""
    if (writer.full_name, reader.full_name) in seen:
        return None
    seen.add((writer.full_name, reader.full_name))
    for field in reader.fields:
        inner = f"{path}.{field.name}".lstrip(".")
        written = writer.fields_by_number.get(field.number)
        if written is None:
            moved = writer.fields_by_name.get(field.name)
            if moved is not None:
                return (
                    f"field {inner!r} has number {moved.number} in the writer's schema, {field.number} in "
                    "the topology's"
                )
            continue
        if not _fits(written, field):
            named = "" if written.name == field.name else f"{written.name} "
            return (
                f"field {inner!r} (number {field.number}) is {named}{type_name(written)} in the writer's "
                f"schema, {type_name(field)} in the topology's"
            )
        if field.message_type is not None:
            found = _difference(written.message_type, field.message_type, inner, seen)
            if found is not None:
                return found
    return None


def _fits(written: Any, field: Any) -> bool:
    if written.is_repeated != field.is_repeated or is_map(written) != is_map(field):
        return False
    one, other = written.message_type, field.message_type
    if one is not None and other is not None:
        return bool(
            kind_of(written) == kind_of(field)
            and (one.full_name == other.full_name or not any(map(_is_known, (one, other))))
        )
    kinds = kind_of(written), kind_of(field)
    return kinds[0] == kinds[1] or kinds[0] in _WIDER.get(kinds[1], ())


def _is_known(message: Any) -> bool:
    return is_timestamp(message) or is_wrapper(message)


# --- columns -------------------------------------------------------------------------------------------


def _message_column(message: Any) -> Convert:
    columns = [(pa.field(one.name, field_type(one)), _field_column(one)) for one in message.fields]
    fields = [field for field, _ in columns]

    def convert(values: Sequence[Any]) -> pa.Array:
        present = [value for value in values if value is not None]
        arrays = []
        for field, column in columns:
            try:
                arrays.append(column(present))
            except MisfitError as misfit:
                raise misfit.within(f".{field.name}") from None
        return spread(arrays, fields, values)

    return convert


def _field_column(field: Any) -> Convert:
    """Return what makes a column of one field from messages."""
    name = field.name
    get = attrgetter(name)
    if is_map(field):
        return _map_column(field, get)
    convert = _value_column(field)
    if field.is_repeated:

        def lists(messages: Sequence[Any]) -> pa.Array:
            found = [get(message) for message in messages]
            elements = _elements(convert, [element for one in found for element in one])
            return pa.ListArray.from_arrays(offsets(found), elements)

        return lists
    if field.has_presence:
        return lambda messages: convert([get(one) if one.HasField(name) else None for one in messages])
    return lambda messages: convert(list(map(get, messages)))


def _map_column(field: Any, get: Callable[[Any], Any]) -> Convert:
    keys, items = (_value_column(field.message_type.fields_by_name[name]) for name in ("key", "value"))

    def maps(messages: Sequence[Any]) -> pa.Array:
        # In the order of the keys: protobuf keeps none, and a replay must give the same rows.
        found = [sorted(get(message).items(), key=lambda pair: pair[0]) for message in messages]
        pairs = [pair for one in found for pair in one]
        return pa.MapArray.from_arrays(
            offsets(found),
            keys([key for key, _ in pairs]),
            _elements(items, [item for _, item in pairs]),
        )

    return maps


def _elements(convert: Convert, values: Sequence[Any]) -> pa.Array:
    try:
        return convert(values)
    except MisfitError as misfit:
        raise misfit.within("[]") from None


def _value_column(field: Any) -> Convert:
    """Return what makes a column of a field's values; None among them is null."""
    message, data_type = field.message_type, value_type(field)
    if message is None:
        if field.enum_type is not None:
            return _enum_column(field.enum_type)
        if pa.types.is_decimal(data_type):
            return lambda values: pa.array(values, pa.uint64()).cast(data_type)
        return lambda values: pa.array(values, data_type)
    if is_timestamp(message):
        return _timestamps
    if is_wrapper(message):
        inner = _value_column(message.fields_by_name["value"])
        return lambda values: inner([None if value is None else value.value for value in values])
    return _message_column(message)


def _timestamps(values: Sequence[Any]) -> pa.Array:
    """Nanoseconds are cut off."""
    found = [None if value is None else value.seconds * 1_000_000 + value.nanos // 1_000 for value in values]
    try:
        array = pa.array(found, pa.timestamp("us", tz="UTC"))
    except (pa.ArrowInvalid, OverflowError):
        array = None
    if array is None or not is_within_years(array):
        raise MisfitError("it is not within the years 1 to 9999")
    return array


def _enum_column(enum: Any) -> Convert:
    names = {number: value.name for number, value in enum.values_by_number.items()}
    names[None] = None

    def convert(values: Sequence[Any]) -> pa.Array:
        try:
            return pa.array([names[value] for value in values], pa.string())
        except KeyError as unknown:
            raise MisfitError(
                f"{shown(unknown.args[0])} is no value of the topology's enum {enum.full_name}"
            ) from None

    return convert
