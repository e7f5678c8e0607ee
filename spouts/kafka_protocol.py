"""Kafka's requests and the parts of its answers, over kafka-python's protocol classes. No connections."""

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
_LIST_OFFSETS_WITHOUT_TAGS = 5  # tags add half the cost again to each partition, and say nothing


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


def log_end_request(partition: Partition, leader: Leader) -> Any:
    """Ask for the end of the leader's current epoch, which is the log's own end."""
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
