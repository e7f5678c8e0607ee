"""Kafka's requests and the parts of its answers, over kafka-python's protocol classes. No connections."""

from __future__ import annotations

import functools
import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import kafka.errors as kafka_errors
from kafka.protocol.consumer import (
    FetchRequest,
    IsolationLevel,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    OffsetSpec,
)
from kafka.protocol.metadata import MetadataRequest

NO_NODE = -1
FETCH_WITHOUT_TAGS = 16  # a partition's tags, which only brokers use, double the cost of writing it
NAMES_ONLY_VERSION = 12  # of a fetch: the last one that names topics without their ids
_BATCH_HEADER = struct.Struct(">qiibIhi")  # offset, length, epoch, format, checksum, attributes, offsets
_LIST_OFFSETS_WITHOUT_TAGS = 5  # tags add half the cost again to each partition, and say nothing
_EPOCHS_FOR_READERS = 3  # before it, only who may manage the cluster could ask for epochs


class Partition(NamedTuple):
    """A partition as Kafka names it; `name` is txstream's name for it."""

    topic: str
    number: int

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.number}"

    @classmethod
    @functools.lru_cache(maxsize=1 << 16)
    def parse(cls, name: str) -> Partition:
        topic, _, number = name.rpartition("/")
        return cls(topic, int(number))


@dataclass(frozen=True, slots=True)
class Leader:
    """Who answers for a partition now. `node` is NO_NODE while there is no leader."""

    node: int
    epoch: int


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """What the cluster says about a topic. `id` is "" with brokers that have no ids. `refused` says why there
    is nothing but the name, for example because the user may not describe the topic."""

    name: str
    id: str
    leaders: Mapping[int, Leader] = field(default_factory=dict)
    refused: str = ""


NOBODY = Leader(NO_NODE, -1)


class PartitionLog(NamedTuple):
    """A partition's log as its leader shows it: its first offset, and its end at the isolation level that was
    asked for. The leader still had this epoch when it answered: it refuses a question that names another.
    `written` is the end of all that is written; None if nobody asked for it."""

    first: int
    end: int
    topic_id: str
    leader: Leader = NOBODY
    written: int | None = None


class EpochEnd(NamedTuple):
    """An answer to the question where a leader epoch ends: the newest epoch up to that one which the log has,
    and the offset at which it ends. Both are -1 if the log knows none."""

    epoch: int
    end: int


class PartitionError(Exception):
    """The error in one partition's answer. `stale`: asking for topics and leaders again may help."""

    def __init__(self, reason: str, *, stale: bool) -> None:
        super().__init__(reason)
        self.stale = stale


def reason_of(error: BaseException) -> str:
    """Describe an error of kafka-python in a few words."""
    text = str(error)
    name = type(error).__name__
    return text if name in text else f"{name}: {text}" if text else name


class OffsetQuery(NamedTuple):
    """A place in a log. `spec` is kafka-python's OffsetSpec, or milliseconds since 1970 for the first record
    with that timestamp or a later one (its offset is -1 when there is none). With `read_committed` only what
    is committed counts."""

    spec: int
    read_committed: bool


EARLIEST = OffsetQuery(OffsetSpec.EARLIEST, read_committed=False)
LATEST_WRITTEN = OffsetQuery(OffsetSpec.LATEST, read_committed=False)
LATEST_STABLE = OffsetQuery(OffsetSpec.LATEST, read_committed=True)


_STALE = (
    kafka_errors.NotLeaderForPartitionError,
    kafka_errors.LeaderNotAvailableError,
    kafka_errors.ReplicaNotAvailableError,
    kafka_errors.FencedLeaderEpochError,
    kafka_errors.UnknownLeaderEpochError,
    kafka_errors.UnknownTopicOrPartitionError,
    kafka_errors.UnknownTopicIdError,
    kafka_errors.InconsistentTopicIdError,
    kafka_errors.KafkaStorageError,
    kafka_errors.OffsetNotAvailableError,
)


def partition_error(code: int) -> PartitionError | None:
    """Return the error of a partition's answer, or None."""
    if code == 0:
        return None
    error = kafka_errors.for_code(code)
    return PartitionError(error.__name__.removesuffix("Error"), stale=issubclass(error, _STALE))


def metadata_request(topics: list[Any] | None) -> Any:
    """Ask for topics. None asks for all, an empty list for none: then the answer has only the brokers."""
    return MetadataRequest(
        topics=topics,
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )


def list_offsets_request(
    query: OffsetQuery, topics: Mapping[str, list[Partition]], leaders: Mapping[Partition, Leader]
) -> Any:
    level = IsolationLevel.READ_COMMITTED if query.read_committed else IsolationLevel.READ_UNCOMMITTED
    topic_type = ListOffsetsRequest.ListOffsetsTopic
    return ListOffsetsRequest(
        isolation_level=level,
        min_version=ListOffsetsRequest.min_version_for_isolation_level(level),
        max_version=_LIST_OFFSETS_WITHOUT_TAGS,
        topics=[
            topic_type(
                name=name,
                partitions=[
                    topic_type.ListOffsetsPartition(
                        partition_index=partition.number,
                        current_leader_epoch=leaders[partition].epoch,
                        timestamp=query.spec,
                    )
                    for partition in partitions
                ],
            )
            for name, partitions in topics.items()
        ],
    )


def epoch_ends_request(questions: Iterable[tuple[Partition, Leader, int]]) -> Any:
    """Ask leaders where an epoch ends in their logs: where the first newer one begins or, for their own, at
    the log's own end."""
    topic_type = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    by_topic: dict[str, list[Any]] = defaultdict(list)
    for partition, leader, epoch in questions:
        by_topic[partition.topic].append(
            topic_type.OffsetForLeaderPartition(
                partition=partition.number, current_leader_epoch=leader.epoch, leader_epoch=epoch
            )
        )
    return OffsetForLeaderEpochRequest(
        replica_id=-1,
        min_version=_EPOCHS_FOR_READERS,
        topics=[topic_type(topic=name, partitions=asked) for name, asked in by_topic.items()],
    )


def one_batch_request(partition: Partition, leader: Leader, offset: int) -> Any:
    """Fetch the record batch that holds this offset, or the next one, if it is written already."""
    topic_type = FetchRequest.FetchTopic
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1,  # the first batch comes whole, however large it is
        isolation_level=IsolationLevel.READ_UNCOMMITTED,
        session_id=0,
        session_epoch=-1,
        min_version=4,
        max_version=NAMES_ONLY_VERSION,
        topics=[
            topic_type(
                topic=partition.topic,
                partitions=[
                    topic_type.FetchPartition(
                        partition=partition.number,
                        current_leader_epoch=leader.epoch,
                        fetch_offset=offset,
                        partition_max_bytes=1,
                    )
                ],
            )
        ],
    )


def epoch_of_batch(data: bytes | memoryview, offset: int) -> int | None:
    """The leader epoch of the first record batch in an answer, if that one holds this offset."""
    base, _, epoch, _, _, _, last_delta = _BATCH_HEADER.unpack_from(data)
    return epoch if base <= offset <= base + last_delta and epoch >= 0 else None
