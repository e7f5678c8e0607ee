"""Questions to Kafka and the words of its answers, over kafka-python's protocol classes. No connections
here."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import kafka.errors as kafka_errors
from kafka.protocol.consumer import (
    IsolationLevel,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    OffsetSpec,
)
from kafka.protocol.metadata import MetadataRequest

NO_NODE = -1
_LIST_OFFSETS_WITHOUT_TAGS = 5  # which cost half as much again, for each partition, and say nothing


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
    """Who answers for a partition now: `node` is NO_NODE while it has no leader."""

    node: int
    epoch: int


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """What the cluster says about a topic; `id` is "" with brokers that have none. `refused` is why it says
    nothing more than that, as for a user who may not describe the topic."""

    name: str
    id: str
    leaders: Mapping[int, Leader] = field(default_factory=dict)
    refused: str = ""


class PartitionError(Exception):
    """One partition's refusal; `stale` when asking the cluster for topics and leaders again may help."""

    def __init__(self, reason: str, *, stale: bool) -> None:
        super().__init__(reason)
        self.stale = stale


def reason_of(error: BaseException) -> str:
    """An error of kafka-python in few words."""
    text = str(error)
    name = type(error).__name__
    return text if name in text else f"{name}: {text}" if text else name


class OffsetQuery(NamedTuple):
    """Which place in a log: kafka-python's OffsetSpec, or milliseconds since 1970 for the first record with
    that timestamp or a later one (-1 when there is none); and whether only what is committed counts."""

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
    """The error of a partition's answer, None for none."""
    if code == 0:
        return None
    error = kafka_errors.for_code(code)
    return PartitionError(error.__name__.removesuffix("Error"), stale=issubclass(error, _STALE))


def metadata_request(topics: list[Any] | None) -> Any:
    """None asks for all topics, an empty list for none: then the answer has the brokers alone."""
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


def log_end_request(partition: Partition, leader: Leader) -> Any:
    """The current leader epoch's end is the log's own end."""
    topic_type = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    return OffsetForLeaderEpochRequest(
        replica_id=-1,
        topics=[
            topic_type(
                topic=partition.topic,
                partitions=[
                    topic_type.OffsetForLeaderPartition(
                        partition=partition.number,
                        current_leader_epoch=leader.epoch,
                        leader_epoch=leader.epoch,
                    )
                ],
            )
        ],
    )
