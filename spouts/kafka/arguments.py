"""Checks and normalizes the arguments of `KafkaSource`. Everything here raises TopologyError."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pyarrow as pa

from txstream.api.schema import format_type
from txstream.core.entry_points import VALUE_FORMATS
from txstream.core.errors import SchemaError, TopologyError
from txstream.spouts.formats.value_formats import FormatArguments, ValueFormat, format_of, known_formats
from txstream.spouts.kafka.topic_selection import TopicSelection

Start = Literal["earliest", "latest"] | datetime
StartingOffset = int | Start
ALL_OTHERS = "*"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
_FORMATS: dict[str, pa.DataType] = {"string": pa.string(), "binary": pa.binary()}


def one_of(name: str, value: Any, *allowed: str) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise TopologyError(f"{name} is {value!r}; it must be {' or '.join(map(repr, allowed))}")
    return value


def starting_offsets(
    given: Start | Mapping[str, StartingOffset], selection: TopicSelection
) -> dict[str, StartingOffset]:
    """Return the starting offsets as a mapping that always has an entry for all others."""
    if isinstance(given, (str, datetime)):
        given = {ALL_OTHERS: given}
    if not isinstance(given, Mapping):
        raise TopologyError(
            f"starting_offsets is {given!r}; it takes 'earliest', 'latest', a datetime with a time zone, or "
            f"a mapping from 'topic/number' to one of these or an offset"
        )
    entries: dict[str, Any] = {ALL_OTHERS: "earliest", **given}
    for partition, start in entries.items():
        if partition != ALL_OTHERS:
            topic, slash, number = partition.rpartition("/")
            if not slash or not selection.reads(topic) or not number.isdecimal():
                raise TopologyError(
                    f"starting_offsets has {partition!r}; its keys are 'topic/number' of {selection}, "
                    f"or '*' for all others"
                )
        elif isinstance(start, int):
            raise TopologyError(
                f"starting_offsets has {start} for '*'; all others take 'earliest', 'latest' or a datetime"
            )
        _check_start(partition, start)
    return entries


def _check_start(partition: str, start: Any) -> None:
    if isinstance(start, datetime):
        if start.utcoffset() is None:
            raise TopologyError(
                f"starting_offsets has {start!r} for {partition!r}, which has no time zone; write for "
                f"example datetime({start.year}, {start.month}, {start.day}, tzinfo=UTC)"
            )
        if start < _EPOCH:
            raise TopologyError(
                f"starting_offsets has {start} for {partition!r}; Kafka's timestamps begin in 1970, "
                f"'earliest' takes everything"
            )
        return
    numeric = isinstance(start, int) and not isinstance(start, bool) and start >= 0
    if not numeric and start not in ("earliest", "latest"):
        raise TopologyError(
            f"starting_offsets has {start!r} for {partition!r}; it takes an offset of 0 or more, 'earliest', "
            f"'latest' or a datetime with a time zone"
        )


def epoch_milliseconds(moment: datetime) -> int:
    """The first millisecond (Kafka's unit) that is not before this moment."""
    return -((_EPOCH - moment) // timedelta(milliseconds=1))


def kafka_schema(key_type: pa.DataType, value_format: str) -> pa.Schema:
    """The columns of Spark's Kafka source, with key and value typed by their formats."""
    return pa.schema(
        [
            pa.field("key", key_type),
            pa.field("value", _FORMATS.get(value_format, pa.binary())),
            pa.field("topic", pa.string()),
            pa.field("partition", pa.int32()),
            pa.field("offset", pa.int64()),
            pa.field("timestamp", pa.timestamp("us", tz="UTC")),
            pa.field("timestampType", pa.int32()),
            pa.field("headers", _HEADERS),
        ]
    )


def key_type(key_format: str, read_as: ValueFormat | None) -> pa.DataType:
    return _FORMATS[key_format] if read_as is None else read_as.type


def read_by(argument: str, name: str, given: FormatArguments) -> ValueFormat | None:
    """Return the format of values or keys; None for text and bytes, which are taken as they are."""
    schema = "key_schema" if argument == "key_format" else "schema"
    if name in _FORMATS:
        if given.schema is not None:
            raise SchemaError(
                f"{schema} goes with a format that has fields, such as 'json'; {argument} is {name!r}"
            )
        return None
    try:
        found = format_of(name, given)
    except SchemaError as error:
        raise SchemaError(f"{f'{name!r} needs ' if given.schema is None else ''}{schema}: {error}") from error
    if found is None:
        raise TopologyError(
            f"{argument} is {name!r}; it must be {' or '.join(map(repr, [*_FORMATS, *known_formats()]))}, or "
            f"what a package adds by an entry point in the group {VALUE_FORMATS!r}"
        )
    return found


def value_fields(read_as: ValueFormat | None) -> pa.Schema | None:
    """The fields that values are read into; None for formats without."""
    if read_as is None:
        return None
    if not pa.types.is_struct(read_as.type):
        raise SchemaError(
            f"schema: values are read into the fields of a record, and this is {format_type(read_as.type)}"
        )
    return pa.schema(list(read_as.type))


def check_registry(wire_format: str, registry: str | None, formats: Sequence[ValueFormat | None]) -> None:
    """Raise TopologyError for a registry that would not be used."""
    if registry is not None and not any(one is not None and one.takes_registry for one in formats):
        raise TopologyError(
            "schema_registry goes with formats whose schemas a registry has, such as 'avro'; leave it out"
        )
    if registry is not None and wire_format == "plain":
        raise TopologyError("with wire_format='plain' records have no schema ids; leave schema_registry out")


def output_columns(
    chosen: Sequence[str] | None, kafka: pa.Schema, fields: pa.Schema | None, value_format: str
) -> tuple[str, ...]:
    """Return which of Kafka's columns are emitted: by default all, or none beside the fields of a schema."""
    if chosen is None:
        return tuple(kafka.names) if fields is None else ()
    if isinstance(chosen, str):
        raise SchemaError(f"kafka_columns is the string {chosen!r}; give a sequence such as [{chosen!r}]")
    names = tuple(chosen)
    for name in names:
        if name not in kafka.names:
            raise SchemaError(f"kafka_columns has {name!r}; known are {', '.join(kafka.names)}")
        if names.count(name) > 1:
            raise SchemaError(f"kafka_columns has {name!r} twice")
        if fields is not None and name == "value":
            raise SchemaError(
                f"kafka_columns has 'value', which value_format={value_format!r} reads into its own fields"
            )
        if fields is not None and name in fields.names:
            raise SchemaError(
                f"kafka_columns has {name!r}, which is a field of the schema too; leave one of them out"
            )
    if fields is None and not names:
        raise SchemaError("kafka_columns is empty, so nothing would be emitted; name at least one column")
    return names
