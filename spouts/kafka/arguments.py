"""Checks and normalizes the arguments of `KafkaSource`. Everything here raises TopologyError."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypedDict

import pyarrow as pa

from txstream.api.schema import format_type
from txstream.core.entry_points import VALUE_FORMATS
from txstream.core.errors import SchemaError, TopologyError
from txstream.spouts.formats.value_formats import FormatArguments, ValueFormat, format_of, known_formats
from txstream.spouts.kafka.topic_selection import TopicSelection

Start = Literal["earliest", "latest"] | datetime
StartingOffset = int | Start
ALL_OTHERS = "*"


@dataclass(frozen=True, slots=True)
class Decode:
    """How a `KafkaSource` reads the bytes of records.

    value_format: "string" (UTF-8), "binary", or one that is read into the fields of `schema`: "json", "avro",
        "protobuf" or what another package has (`ValueFormat`). A value that cannot be read is a DecodeError
        with topic, partition, offset, field, reason and the beginning of the value.
    schema: for JSON, the fields of UTF-8 objects: "user string, amount decimal(10,2)" or an Arrow schema;
        `json_values` says what fits which type, missing fields are null, unknown ones are ignored. In the
        string, "user.id as user string" takes a value from inside, and "hour(at) as hour timestamp" the hour
        that a time lies in (second, minute, hour, day, month, year). For Avro, the schema that the topology
        reads by: the path of a .avsc file, JSON text, or a dict. For Protobuf, a generated message class, or
        the pair of a path (.proto or descriptor set) and a message's full name.
        docs/formats.md says which types become which columns, and how schemas may change.
    tombstones: what to do with a record without a value (in a compacted topic it deletes its key). "refuse"
        raises a DecodeError, so that it becomes a dead letter if these are asked for; "null" emits a row
        whose fields are null; "skip" emits nothing. None is what the format says, by default "refuse". With
        "string" and "binary" only "skip" makes a difference: the column `value` is null otherwise.
    key_format, key_schema: the same for keys. The column `key` has its type: a record is a struct.
    wire_format: for Avro and Protobuf, "confluent": keys and values begin with the id of the schema that they
        were written by, which a schema registry has; or "plain": they were all written by `schema`.
    schema_registry: the registry's URL; by default the run's.
    errors: what to do with invalid UTF-8: "strict" raises a DecodeError that names topic, partition and
        offset; "replace" puts U+FFFD.
    """

    value_format: str = "string"
    schema: Any = None
    key_format: str = "binary"
    key_schema: Any = None
    wire_format: Literal["confluent", "plain"] = "confluent"
    schema_registry: str | None = None
    errors: Literal["strict", "replace"] = "strict"
    tombstones: Literal["refuse", "null", "skip"] | None = None


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """How a `KafkaSource` is connected.

    options: kafka-python's connection options (security_protocol, sasl_*, ssl_*, ...). A value that
        kafka-python would ignore, such as a misspelt security_protocol, is refused.
    partition_discovery_seconds: how often to look for new topics, new partitions and re-created topics.
    """

    options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # there are passwords among them
    partition_discovery_seconds: float = 5.0


class FormerArguments(TypedDict, total=False):
    """What `KafkaSource` took before `start`, `decode` and `client`."""

    starting_offsets: Start | Mapping[str, StartingOffset]
    value_format: str
    schema: Any
    key_format: str
    key_schema: Any
    wire_format: Literal["confluent", "plain"]
    schema_registry: str | None
    errors: Literal["strict", "replace"]
    client_options: Mapping[str, Any] | None
    partition_discovery_seconds: float


Starting = Start | Mapping[str, StartingOffset]


def with_former(
    start: Starting, decode: Decode, client: KafkaOptions, former: FormerArguments
) -> tuple[Starting, Decode, KafkaOptions]:
    """Return the three values with what was given by its former name, and warn of it."""
    given: dict[str, Any] = {**former}
    instead = []
    if "starting_offsets" in given:
        start = given.pop("starting_offsets")
        instead.append("start=...")
    for_client = {_CLIENT[name]: given.pop(name) for name in _CLIENT if name in given}
    if for_client:
        client = replace(
            client, **{name: {} if value is None else value for name, value in for_client.items()}
        )
        instead.append(f"client=KafkaOptions({', '.join(f'{name}=...' for name in for_client)})")
    for_decode = {one.name: given.pop(one.name) for one in fields(Decode) if one.name in given}
    if for_decode:
        decode = replace(decode, **for_decode)
        instead.append(f"decode=Decode({', '.join(f'{name}=...' for name in for_decode)})")
    for name in given:
        raise TypeError(f"KafkaSource() got an unexpected keyword argument {name!r}")
    if instead:
        warnings.warn(
            f"KafkaSource takes {', '.join(former)} by other names: write {', '.join(instead)}",
            DeprecationWarning,
            stacklevel=3,
        )
    return start, decode, client


_CLIENT = {"client_options": "options", "partition_discovery_seconds": "partition_discovery_seconds"}
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
            f"start is {given!r}; it takes 'earliest', 'latest', a datetime with a time zone, or "
            f"a mapping from 'topic/number' to one of these or an offset"
        )
    entries: dict[str, Any] = {ALL_OTHERS: "earliest", **given}
    for partition, start in entries.items():
        if partition != ALL_OTHERS:
            topic, slash, number = partition.rpartition("/")
            if not slash or not selection.reads(topic) or not number.isdecimal():
                raise TopologyError(
                    f"start has {partition!r}; its keys are 'topic/number' of {selection}, "
                    f"or '*' for all others"
                )
        elif isinstance(start, int):
            raise TopologyError(
                f"start has {start} for '*'; all others take 'earliest', 'latest' or a datetime"
            )
        _check_start(partition, start)
    return entries


def _check_start(partition: str, start: Any) -> None:
    if isinstance(start, datetime):
        if start.utcoffset() is None:
            raise TopologyError(
                f"start has {start!r} for {partition!r}, which has no time zone; write for "
                f"example datetime({start.year}, {start.month}, {start.day}, tzinfo=UTC)"
            )
        if start < _EPOCH:
            raise TopologyError(
                f"start has {start} for {partition!r}; Kafka's timestamps begin in 1970, "
                f"'earliest' takes everything"
            )
        return
    numeric = isinstance(start, int) and not isinstance(start, bool) and start >= 0
    if not numeric and start not in ("earliest", "latest"):
        raise TopologyError(
            f"start has {start!r} for {partition!r}; it takes an offset of 0 or more, 'earliest', "
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


def default_tombstones(read_as: ValueFormat | None) -> str:
    return "refuse" if read_as is None else read_as.tombstones


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
