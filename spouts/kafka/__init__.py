"""`KafkaSource`: Kafka topics as a source of exact, replayable ranges.

Invariants:

- A source is a description: addresses, options, formats. It holds no connection, so it can be pickled to
  executors; Kafka's client is imported only where a connection is opened.
- `KafkaRange`s alone determine what a batch holds: the offsets `[start, end)` of one partition of the topic
  with that `topic_id`, in the log whose last offset of them has that `leader_epoch`. Reading a range again
  gives the same rows in the same order, or an error.
- Passwords never appear in `repr`, in messages or in logs: options are shown by name only.

The driver's side is `coordinator`, the executors' is `emitter`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Unpack

import pyarrow as pa

from txstream.api.spouts import PartitionedSpout, SpoutContext
from txstream.core.errors import SchemaError, TopologyError, UsageError
from txstream.spouts.formats.value_formats import FormatArguments
from txstream.spouts.kafka.arguments import (
    Decode as Decode,
    FormerArguments,
    KafkaOptions as KafkaOptions,
    Starting,
    check_registry,
    default_tombstones,
    kafka_schema,
    key_type,
    one_of,
    output_columns,
    read_by,
    starting_offsets as checked_starting_offsets,
    value_fields,
    with_former,
)
from txstream.spouts.kafka.options import check_client_options
from txstream.spouts.kafka.topic_selection import TopicSelection
from txstream.spouts.ranges import RecordSpan

if TYPE_CHECKING:
    from txstream.core.dead_letters import DeadLetter, LetterSender
    from txstream.spouts.kafka.coordinator import KafkaPartitionCoordinator
    from txstream.spouts.kafka.emitter import KafkaPartitionEmitter


KNOWN, UNKNOWN = "known", "unknown"


@dataclass(frozen=True, slots=True)
class KafkaRange(RecordSpan):
    """Offsets `[start, end)` of one partition; not every offset need hold a record.

    `topic_id` is Kafka's id of the topic (empty with brokers older than 2.8), so that a topic deleted and
    created again is never mistaken for the old one. `skipped_from` is set when `on_data_loss="skip"` left a
    gap before this range: it is the offset where reading should have continued. If it is below `start`, the
    offsets `[skipped_from, start)` were lost; otherwise the log was cut back or the topic created again.
    `first_place` is set on an empty range where `start` decided where a partition begins: KNOWN,
    or UNKNOWN when the partition was there when the topology began, and could not be asked. `leader_epoch` is
    the leader epoch of the offset before `end`, so that another log that has grown to the same offsets is not
    mistaken for this one; None if it is not known (`leader_epochs`).
    """

    topic_id: str = ""
    skipped_from: int | None = None
    first_place: str | None = None
    leader_epoch: int | None = None

    @property
    def is_first_place(self) -> bool:
        return self.first_place == KNOWN

    @property
    def is_placed(self) -> bool:
        """Whether reading can go on at `end`."""
        return self.first_place != UNKNOWN

    def until(self, end: int) -> KafkaRange:
        return replace(self, end=end, leader_epoch=None)


class KafkaSource(PartitionedSpout[KafkaRange]):
    """Kafka topics, emitted as Spark's own Kafka columns or, with `decode=Decode("json", ...)`, "avro",
    "protobuf" or a format of yours, as the fields of their values.

    topics: one name or several.
    bootstrap: "host:port,..."; by default the run's Kafka address.
    topic_pattern: instead of topics, a regular expression (Python's) that matches whole topic names, such as
        "orders-.*"; names that begin with "__" are never matched. The next new batch reads new topics, from
        their beginning. A topic that disappears once it has a place in the topology is lost data. Kafka hides
        topics that the user may not describe, so these are not read. Topics and pattern are part of the
        topology's identity.
    start: where partitions without a place begin: "earliest", "latest" (what exists when the
        first run begins is skipped), a datetime with a time zone (the first record with that
        timestamp or a later one, the end when there is none), or a mapping from "topic/number" to an offset,
        "earliest", "latest" or a datetime, with "*" for all others (default "earliest"). Any place but
        "earliest" is committed in a batch without records before anything is read. Partitions that appear
        after the first run has opened the source begin at their beginning.
    max_records_per_partition: upper bound, per batch, on the offsets taken from one partition.
    isolation_level: "read_committed" (the default: never counts what a producer has aborted) or
        "read_uncommitted".
    decode: how the bytes of values and keys are read (`Decode`); by default values are text and keys bytes.
    kafka_columns: which of Kafka's columns are emitted, in that order, after the fields of a schema. By
        default all of them, but with a schema none. "value" is not allowed with a schema.
    on_data_loss: "fail" raises DataLostError when records are gone before they were planned; "skip" continues
        after the gap and records it in `KafkaRange.skipped_from`. A stored transactional plan is never
        skipped.
    client: how it is connected (`KafkaOptions`).
    publish_group: a consumer group that gets the places of each committed batch, soon after its commit, so
        that lag exporters and Kafka's tools show how far the topology is. It is never read. A group that has
        members is refused.
    table_first: topics that are read to their ends before any record of the others: a table that others are
        looked up in. It counts when a topology begins; once a record of another topic is read, all are
        read alike.

    Raises TopologyError for invalid arguments, SchemaError if they concern columns, and
    ServiceUnavailableError for a format whose package lacks something. The arguments that `Decode` and
    `KafkaOptions` have, and `starting_offsets`, may be given here too, as before; that warns.
    """

    meta_type: ClassVar[type[KafkaRange]] = KafkaRange

    def __init__(
        self,
        topics: str | Sequence[str] | None = None,
        bootstrap: str | None = None,
        *,
        topic_pattern: str | None = None,
        start: Starting = "earliest",
        decode: Decode | None = None,
        max_records_per_partition: int | None = None,
        isolation_level: Literal["read_committed", "read_uncommitted"] = "read_committed",
        kafka_columns: Sequence[str] | None = None,
        on_data_loss: Literal["fail", "skip"] = "fail",
        client: KafkaOptions | None = None,
        publish_group: str | None = None,
        table_first: str | Sequence[str] = (),
        **former: Unpack[FormerArguments],
    ) -> None:
        self.selection = TopicSelection.of(topics, topic_pattern)
        self.bootstrap = bootstrap
        start, decode, client = with_former(start, decode or Decode(), client or KafkaOptions(), former)
        self.starting_offsets = checked_starting_offsets(start, self.selection)
        self.max_records_per_partition = max_records_per_partition
        self.isolation_level = one_of(
            "isolation_level", isolation_level, "read_committed", "read_uncommitted"
        )
        self.key_format, self.value_format = decode.key_format, decode.value_format
        self.errors = one_of("errors", decode.errors, "strict", "replace")
        self.on_data_loss = one_of("on_data_loss", on_data_loss, "fail", "skip")
        self.client_options = check_client_options(client.options)
        self.partition_discovery_seconds = client.partition_discovery_seconds
        self.publish_group = publish_group
        if publish_group is not None and not (isinstance(publish_group, str) and publish_group.strip()):
            raise TopologyError(f"publish_group is {publish_group!r}; it is a consumer group's name")
        self.table_first = (table_first,) if isinstance(table_first, str) else tuple(table_first)
        for topic in self.table_first:
            if not self.selection.reads(topic):
                raise TopologyError(f"table_first names {topic!r}, and the source reads {self.selection}")
        if max_records_per_partition is not None and max_records_per_partition < 1:
            raise TopologyError(
                f"max_records_per_partition is {max_records_per_partition}; it must be at least 1"
            )
        if client.partition_discovery_seconds <= 0:
            raise TopologyError(
                f"partition_discovery_seconds is {client.partition_discovery_seconds}; it must be more than 0"
            )
        self.wire_format = one_of("wire_format", decode.wire_format, "confluent", "plain")
        given = FormatArguments(
            decode.schema, decode.errors, decode.wire_format, decode.schema_registry, str(self.selection)
        )
        self.takes_any_time = False
        self.value_schema = read_by("value_format", self.value_format, given)
        self.tombstones = one_of(
            "tombstones", decode.tombstones or default_tombstones(self.value_schema), "refuse", "null", "skip"
        )
        self.key_schema = read_by("key_format", self.key_format, replace(given, schema=decode.key_schema))
        check_registry(decode.wire_format, decode.schema_registry, (self.value_schema, self.key_schema))
        self.schema = value_fields(self.value_schema)
        kafka = kafka_schema(key_type(self.key_format, self.key_schema), self.value_format)
        self.kafka_columns = output_columns(kafka_columns, kafka, self.schema, self.value_format)
        if self.key_schema is not None and "key" not in self.kafka_columns:
            raise SchemaError(
                f"key_format={self.key_format!r} would not be used: kafka_columns does not have 'key'; add it"
            )
        self.output: pa.Schema = pa.schema(
            [*(self.schema or ()), *(kafka.field(name) for name in self.kafka_columns)]
        )

    def __repr__(self) -> str:
        shown = [self.selection.argument]
        if self.bootstrap is not None:
            shown.append(f"bootstrap={self.bootstrap!r}")
        if self.client_options:
            shown.append(f"client=<{', '.join(sorted(self.client_options))}>")
        return f"KafkaSource({', '.join(shown)})"

    def coordinator(self, context: SpoutContext) -> KafkaPartitionCoordinator:
        """Open the driver's side, which connects. Raises ServiceUnavailableError when no broker answers or a
        named topic does not exist."""
        from txstream.spouts.kafka.coordinator import KafkaPartitionCoordinator

        return KafkaPartitionCoordinator(self, context)

    def emitter(self, context: SpoutContext) -> KafkaPartitionEmitter:
        """Open the executors' side. The first `emit` connects."""
        from txstream.spouts.kafka.emitter import KafkaPartitionEmitter

        return KafkaPartitionEmitter(self, context)

    def decoded(self, letters: Sequence[DeadLetter]) -> pa.RecordBatch:
        return self.letter_decoder(SpoutContext("", "", {}))(letters)

    def letter_decoder(self, context: SpoutContext) -> Callable[[Sequence[DeadLetter]], pa.RecordBatch]:
        from txstream.spouts.kafka.columns import decoded

        return partial(decoded, self, context)

    def undecoded(self) -> KafkaSource:
        found = copy.copy(self)
        found.key_format = found.value_format = "binary"
        found.errors = "replace"  # for the names of headers
        found.takes_any_time = True
        found.schema = found.value_schema = found.key_schema = None
        found.output = kafka_schema(pa.binary(), "binary")
        found.kafka_columns = tuple(found.output.names)
        return found

    def letter_topic(self, topic: str, context: SpoutContext, timeout_seconds: float) -> LetterSender:
        from txstream.spouts.kafka.letter_topic import KafkaLetterTopic

        return KafkaLetterTopic(topic, self.address(context), self.client_options, timeout_seconds)

    def leaving_out(self, place: str) -> KafkaSource:
        selection = self.selection.without(place)
        if selection is self.selection:
            return self
        found = copy.copy(self)
        found.selection = selection
        return found

    def unpublished(self) -> KafkaSource:
        found = copy.copy(self)
        found.publish_group = None
        return found

    def starting(self, start: Literal["earliest"] | datetime) -> KafkaSource:
        found = copy.copy(self)
        found.starting_offsets = checked_starting_offsets(start, self.selection)
        return found

    def identity(self) -> Mapping[str, Any]:
        selection = self.selection
        if selection.pattern is not None:
            return {"topic_pattern": selection.pattern}
        return {"topics": sorted(selection.names)}

    def is_first(self, partition: str) -> bool:
        """Whether nothing has to be read before this partition."""
        return not self.table_first or partition.rpartition("/")[0] in self.table_first

    def address(self, context: SpoutContext) -> str:
        """The bootstrap servers to use. Raises UsageError when neither source nor run names any."""
        address = self.bootstrap or context.addresses.get("kafka")
        if not address:
            raise UsageError(
                f"no Kafka address for {self.selection}; give --kafka HOST:PORT, set TXSTREAM_KAFKA, or "
                f"write KafkaSource(..., bootstrap='HOST:PORT')"
            )
        return address
