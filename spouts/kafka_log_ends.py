"""The logs of a source's partitions as the cluster shows them now: first offsets and ends, broker by broker.

Invariants:

- One look is one round of questions under the caller's deadline. A broker that misses it is handed to
  `ClusterWatch` and not asked again until it has answered there.
- Every partition asked for is in the answer, either with its log or with the reason why not.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import kafka.errors as kafka_errors

from txstream.api.spouts import Unavailable
from txstream.spouts.kafka_client import KafkaClient
from txstream.spouts.kafka_cluster_watch import ClusterView, ClusterWatch
from txstream.spouts.kafka_protocol import (
    EARLIEST,
    NO_NODE,
    NOBODY,
    Leader,
    OffsetQuery,
    Partition,
    PartitionError,
    reason_of,
)


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """A partition's log as its leader shows it: its first offset, and its end at the isolation level that was
    asked for. The leader still had this epoch when it answered: it refuses a question that names another."""

    first: int
    end: int
    topic_id: str
    leader: Leader = NOBODY


class LogReader:
    """Asks leaders for the bounds of their logs."""

    def __init__(self, client: KafkaClient, watch: ClusterWatch) -> None:
        self._client = client
        self._watch = watch
        self._seen_down: Mapping[int, str] = {}

    def names(self, view: ClusterView) -> list[str]:
        """All partitions of the source's topics that the cluster has."""
        return [
            Partition(topic, number).name
            for topic, known in view.topics.items()
            if known.info is not None
            for number in sorted(known.info.leaders)
        ]

    def look(
        self, names: Iterable[str], view: ClusterView, latest: OffsetQuery, deadline: float
    ) -> tuple[dict[str, PartitionLog], dict[str, Unavailable]]:
        """Return the logs of these partitions, and why some have none now. `deadline` is monotonic."""
        found, unavailable = self._ask(names, view, [EARLIEST, latest], deadline)
        logs: dict[str, PartitionLog] = {}
        for partition, (first, end) in found.items():
            info = view.topics[partition.topic].info
            if info is not None:
                leader = info.leaders[partition.number]
                logs[partition.name] = PartitionLog(first, end, info.id, leader)
        return logs, unavailable

    def find(
        self, names: Iterable[str], view: ClusterView, place: OffsetQuery, deadline: float
    ) -> tuple[dict[str, int], dict[str, Unavailable]]:
        """Return the offset of one place in these partitions (-1 if the log does not have it), and why some
        cannot be asked."""
        found, unavailable = self._ask(names, view, [place], deadline)
        return {partition.name: offsets[0] for partition, offsets in found.items()}, unavailable

    def _ask(
        self, names: Iterable[str], view: ClusterView, queries: Sequence[OffsetQuery], deadline: float
    ) -> tuple[dict[Partition, tuple[int, ...]], dict[str, Unavailable]]:
        unavailable: dict[str, Unavailable] = {}
        leaders: dict[Partition, Leader] = {}
        for name in sorted(names):
            partition = Partition.parse(name)
            leader = self._leader(partition, view)
            if isinstance(leader, Unavailable):
                unavailable[name] = leader
            else:
                leaders[partition] = leader
        self._learn_addresses(leaders, view, deadline)
        answers, unanswered = self._client.offsets(leaders, queries, max(0.05, deadline - time.monotonic()))
        reasons = {
            node: f"broker {node} does not answer ({reason_of(error)})" for node, error in unanswered.items()
        }
        for node, reason in reasons.items():
            self._watch.broker_failed(node, reason)
        found: dict[Partition, tuple[int, ...]] = {}
        for partition, leader in leaders.items():
            offsets = answers.get(partition)
            if offsets is None:
                reason = reasons.get(leader.node, f"broker {leader.node} left it out of its answer")
                unavailable[partition.name] = Unavailable(reason)
            elif isinstance(offsets, PartitionError):
                unavailable[partition.name] = Unavailable(str(offsets))
                if offsets.stale:
                    self._watch.look_again()
            else:
                found[partition] = offsets
        return found, unavailable

    def _leader(self, partition: Partition, view: ClusterView) -> Leader | Unavailable:
        topic = view.topics.get(partition.topic)
        if topic is None or topic.info is None:
            return Unavailable(f"topic {partition.topic!r} does not exist")
        leader = topic.info.leaders.get(partition.number)
        if leader is None or leader.node == NO_NODE:
            return Unavailable(topic.info.refused or "it has no leader")
        if leader.node in view.down:
            return Unavailable(view.down[leader.node])
        return leader

    def _learn_addresses(
        self, leaders: Mapping[Partition, Leader], view: ClusterView, deadline: float
    ) -> None:
        """Learn the brokers' addresses again if one is new, or is back perhaps under another address."""
        came_back = any(node not in view.down for node in self._seen_down)
        self._seen_down = view.down
        if came_back or not all(map(self._client.knows, {leader.node for leader in leaders.values()})):
            try:
                self._client.topics((), max(0.05, deadline - time.monotonic()))
            except (kafka_errors.KafkaError, OSError):
                self._watch.look_again()
