"""Checks and normalizes the arguments of `KafkaSource`. Everything here raises TopologyError."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pyarrow as pa

from txstream.api.schema import format_type
from txstream.core.errors import SchemaError, TopologyError
from txstream.spouts.formats.json_values import json_schema
from txstream.spouts.formats.value_formats import FORMATS_WITH_SCHEMAS, SchemaFormat, schema_format
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


def key_type(key_format: str, schema: SchemaFormat | None) -> pa.DataType:
    return _FORMATS[key_format] if schema is None else schema.type


def schema_of(argument: str, name: str, given: Any) -> SchemaFormat | None:
    """Return the schema of a format that has one, None for other formats."""
    if name in FORMATS_WITH_SCHEMAS:
        return schema_format(argument, name, given)
    if argument == "key_schema" and given is not None:
        raise SchemaError(f"key_schema goes with key_format='avro' or 'protobuf'; key_format is {name!r}")
    return None


def value_fields(value_format: str, declaration: Any, schema: SchemaFormat | None) -> pa.Schema | None:
    """The fields that values are read into; None for formats without."""
    if schema is not None:
        if not pa.types.is_struct(schema.type):
            raise SchemaError(
                f"schema: values are read into the fields of a record, and this is {format_type(schema.type)}"
            )
        return pa.schema(list(schema.type))
    if value_format == "json":
        if declaration is None:
            raise SchemaError(
                "value_format='json' needs the fields of its objects; give them as "
                "schema='user string, amount decimal(10,2)' or as an Arrow schema"
            )
        return json_schema(declaration)
    if declaration is not None:
        raise SchemaError(
            f"schema goes with value_format='json', 'avro' or 'protobuf'; value_format is {value_format!r}"
        )
    return None


def check_wire_format(wire_format: str, registry: str | None, schemas: Sequence[SchemaFormat | None]) -> None:
    """Raise TopologyError for arguments about schema ids that would not be used."""
    one_of("wire_format", wire_format, "confluent", "plain")
    if registry is not None and not any(schemas):
        raise TopologyError("schema_registry goes with the formats 'avro' and 'protobuf'; leave it out")
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
