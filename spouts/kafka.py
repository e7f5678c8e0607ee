"""`KafkaSource`: Kafka topics as a source of exact, replayable ranges.

Invariants:

- A source is a description: addresses, options, formats. It holds no connection, so it can be pickled to
  executors; Kafka's client is imported only where a connection is opened.
- What a batch holds is fixed by `KafkaRange`s alone: the offsets `[start, end)` of one partition of the topic
  that had `topic_id`. Reading a range again gives the same rows in the same order, or an error.
- Passwords never appear in `repr`, in messages or in logs: options are shown by name only.

The driver's side is `kafka_coordinator`, the executors' `kafka_emitter`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pyarrow as pa

from txstream.api.errors import TopologyError, UsageError
from txstream.api.spouts import PartitionedSpout, SpoutContext
from txstream.spouts.kafka_options import check_client_options

if TYPE_CHECKING:
    from txstream.spouts.kafka_coordinator import KafkaPartitionCoordinator
    from txstream.spouts.kafka_emitter import KafkaPartitionEmitter

Format = Literal["string", "binary"]
StartingOffset = int | Literal["earliest", "latest"]
ALL_OTHERS = "*"

_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
_FORMATS: dict[str, pa.DataType] = {"string": pa.string(), "binary": pa.binary()}


@dataclass(frozen=True, slots=True)
class KafkaRange:
    """Offsets `[start, end)` of one partition; not every offset need hold a record.

    `topic_id` is Kafka's id of the topic (empty with brokers older than 2.8), so that a topic deleted and
    created again is never taken for the old one. `skipped_from` is set when `on_data_loss="skip"` left a gap
    before this range: the place where reading should have gone on. Below `start`, the offsets
    `[skipped_from, start)` were lost; above it, the log was cut back or the topic created again.
    """

    start: int
    end: int
    topic_id: str = ""
    skipped_from: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("start", self.start), ("end", self.end), ("skipped_from", self.skipped_from)):
            if isinstance(value, bool) or not isinstance(value, int):
                if name == "skipped_from" and value is None:
                    continue
                raise TypeError(f"{name} must be an integer, found {value!r}")
        if not isinstance(self.topic_id, str):
            raise TypeError(f"topic_id must be a string, found {self.topic_id!r}")
        if not 0 <= self.start <= self.end:
            raise ValueError(f"start {self.start} and end {self.end} are not a range of offsets")

    @property
    def is_empty(self) -> bool:
        """True when the range holds a place only."""
        return self.start == self.end

    @property
    def records(self) -> int:
        """At most so many records: what the engine chooses the number of Spark tasks by."""
        return self.end - self.start


class KafkaSource(PartitionedSpout[KafkaRange]):
    """Kafka topics, emitted as Spark's own Kafka columns.

    topics: one name or several; a change of them is a change of the topology's identity.
    bootstrap: "host:port,..."; by default the run's Kafka address.
    starting_offsets: where partitions begin that have no place yet: "earliest", "latest" (what is there when
        the first run opens the source is passed over), or a mapping from "topic/number" to an offset,
        "earliest" or "latest", with "*" for all others (default "earliest"). Partitions that appear later
        always begin at their beginning.
    max_records_per_partition: upper bound, per batch, on the offsets taken from one partition.
    isolation_level: "read_committed" (the default: never counts what a producer has aborted) or
        "read_uncommitted".
    key_format, value_format: "string" (UTF-8) or "binary".
    errors: for invalid UTF-8: "strict" is a DecodeError that names topic, partition and offset; "replace"
        puts U+FFFD.
    on_data_loss: "fail" raises DataLostError when records are gone before they were planned; "skip" goes on
        behind the gap and records it in `KafkaRange.skipped_from`. A stored transactional plan is never
        skipped.
    client_options: kafka-python's connection options (security_protocol, sasl_*, ssl_*, ...).
    partition_discovery_seconds: how often new partitions and re-created topics are looked for.

    Raises TopologyError for anything that cannot be meant.
    """

    meta_type: ClassVar[type[KafkaRange]] = KafkaRange

    def __init__(
        self,
        topics: str | Sequence[str],
        bootstrap: str | None = None,
        *,
        starting_offsets: Literal["earliest", "latest"] | Mapping[str, StartingOffset] = "earliest",
        max_records_per_partition: int | None = None,
        isolation_level: Literal["read_committed", "read_uncommitted"] = "read_committed",
        key_format: Format = "binary",
        value_format: Format = "string",
        errors: Literal["strict", "replace"] = "strict",
        on_data_loss: Literal["fail", "skip"] = "fail",
        client_options: Mapping[str, Any] | None = None,
        partition_discovery_seconds: float = 5.0,
    ) -> None:
        self.topics = _topic_names(topics)
        self.bootstrap = bootstrap
        self.starting_offsets = _starting_offsets(starting_offsets, self.topics)
        self.max_records_per_partition = max_records_per_partition
        self.isolation_level = _one_of(
            "isolation_level", isolation_level, "read_committed", "read_uncommitted"
        )
        self.key_format = _one_of("key_format", key_format, "string", "binary")
        self.value_format = _one_of("value_format", value_format, "string", "binary")
        self.errors = _one_of("errors", errors, "strict", "replace")
        self.on_data_loss = _one_of("on_data_loss", on_data_loss, "fail", "skip")
        self.client_options = check_client_options(client_options or {})
        self.partition_discovery_seconds = partition_discovery_seconds
        if max_records_per_partition is not None and max_records_per_partition < 1:
            raise TopologyError(
                f"max_records_per_partition is {max_records_per_partition}; it must be at least 1"
            )
        if partition_discovery_seconds <= 0:
            raise TopologyError(
                f"partition_discovery_seconds is {partition_discovery_seconds}; it must be more than 0"
            )
        self.output: pa.Schema = record_schema(key_format, value_format)

    def __repr__(self) -> str:
        shown = [repr(self.topics[0] if len(self.topics) == 1 else list(self.topics))]
        if self.bootstrap is not None:
            shown.append(f"bootstrap={self.bootstrap!r}")
        if self.client_options:
            shown.append(f"client_options=<{', '.join(sorted(self.client_options))}>")
        return f"KafkaSource({', '.join(shown)})"

    def coordinator(self, context: SpoutContext) -> KafkaPartitionCoordinator:
        """Connects; raises ServiceUnavailableError when no broker answers or a topic does not exist."""
        from txstream.spouts.kafka_coordinator import KafkaPartitionCoordinator

        return KafkaPartitionCoordinator(self, context)

    def emitter(self, context: SpoutContext) -> KafkaPartitionEmitter:
        """Opens no connection yet: the first `emit` does."""
        from txstream.spouts.kafka_emitter import KafkaPartitionEmitter

        return KafkaPartitionEmitter(self, context)

    def identity(self) -> Mapping[str, Any]:
        return {"topics": sorted(self.topics)}

    def address(self, context: SpoutContext) -> str:
        """The bootstrap servers to use. Raises UsageError when neither source nor run names any."""
        address = self.bootstrap or context.addresses.get("kafka")
        if not address:
            raise UsageError(
                f"no Kafka address for the topic {self.topics[0]!r}; give --kafka HOST:PORT, set "
                f"TXSTREAM_KAFKA, or write KafkaSource(..., bootstrap='HOST:PORT')"
            )
        return address


def record_schema(key_format: Format, value_format: Format) -> pa.Schema:
    """The columns of Spark's Kafka source, key and value typed by their formats."""
    return pa.schema(
        [
            pa.field("key", _FORMATS[key_format]),
            pa.field("value", _FORMATS[value_format]),
            pa.field("topic", pa.string()),
            pa.field("partition", pa.int32()),
            pa.field("offset", pa.int64()),
            pa.field("timestamp", pa.timestamp("us", tz="UTC")),
            pa.field("timestampType", pa.int32()),
            pa.field("headers", _HEADERS),
        ]
    )


def _topic_names(topics: str | Sequence[str]) -> tuple[str, ...]:
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    if not names:
        raise TopologyError("KafkaSource needs at least one topic")
    for name in names:
        if not isinstance(name, str) or not _TOPIC_NAME.fullmatch(name) or name in (".", ".."):
            raise TopologyError(
                f"{name!r} is not a Kafka topic name; it takes 1 to 249 letters, digits, '.', '_' and '-'"
            )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise TopologyError(f"KafkaSource got the topic {twice[0]!r} twice; name each topic once")
    return names


def _starting_offsets(
    given: str | Mapping[str, StartingOffset], topics: tuple[str, ...]
) -> dict[str, StartingOffset]:
    """As a mapping that always has an entry for all others."""
    entries: dict[str, Any] = {ALL_OTHERS: given} if isinstance(given, str) else dict(given)
    entries.setdefault(ALL_OTHERS, "earliest")
    for partition, offset in entries.items():
        if partition != ALL_OTHERS:
            topic, slash, number = partition.rpartition("/")
            if not slash or topic not in topics or not number.isdecimal():
                raise TopologyError(
                    f"starting_offsets has {partition!r}; its keys are 'topic/number' of the topics "
                    f"{', '.join(topics)}, or '*' for all others"
                )
        elif isinstance(offset, int):
            raise TopologyError(
                f"starting_offsets has {offset} for '*'; all others take 'earliest' or 'latest'"
            )
        numeric = isinstance(offset, int) and not isinstance(offset, bool) and offset >= 0
        if not numeric and offset not in ("earliest", "latest"):
            raise TopologyError(
                f"starting_offsets has {offset!r} for {partition!r}; it takes an offset of 0 or more, "
                f"'earliest' or 'latest'"
            )
    return entries


def _one_of(name: str, value: str, *allowed: str) -> str:
    if value not in allowed:
        raise TopologyError(f"{name} is {value!r}; it must be {' or '.join(map(repr, allowed))}")
    return value
