"""The logs of a source's partitions as the cluster shows them now: first offsets and ends, broker by broker.

Invariants:

- One look is one round of questions under the caller's deadline. A broker that misses it is handed to
  `ClusterWatch` and not asked again until it has answered there.
- Every partition asked for is in the answer, either with its log or with the reason why not.
- A look for what is new is one fetch (`log_tail`), or none: then the questions are to be asked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic

import kafka.errors as kafka_errors

from txstream.api.spouts import Unavailable
from txstream.spouts.kafka import KafkaRange
from txstream.spouts.kafka.client import KafkaClient
from txstream.spouts.kafka.cluster_watch import ClusterView, ClusterWatch
from txstream.spouts.kafka.log_tail import LogTail
from txstream.spouts.kafka.protocol import (
    EARLIEST,
    LATEST_WRITTEN,
    NO_NODE,
    Leader,
    OffsetQuery,
    Partition,
    PartitionError,
    PartitionLog,
    reason_of,
)

_WRITTEN_SECONDS = 5.0
"""How often a look that is asked for what is committed also asks how far the log goes behind that."""
_REST_SECONDS = 1.0
"""A broker that throttles, or lets the driver ask but not read, is not tried with every plan."""


@dataclass(slots=True)
class _Led:
    """Who leads these partitions in a view, and why some have no leader. Plans ask for the same ones."""

    view: ClusterView
    names: Collection[str]
    leaders: dict[Partition, Leader] = field(default_factory=dict)
    without: dict[str, Unavailable] = field(default_factory=dict)


class LogReader:
    """Asks leaders for the bounds of their logs."""

    def __init__(self, client: KafkaClient, watch: ClusterWatch) -> None:
        self._client = client
        self._watch = watch
        self._seen_down: Mapping[int, str] = {}
        self._tail = LogTail(client)
        self._rests_until = 0.0
        self._next_written = 0.0
        self._led: _Led | None = None
        self._names: tuple[ClusterView, list[str]] | None = None

    def names(self, view: ClusterView) -> list[str]:
        """All partitions of the source's topics that the cluster has."""
        if self._names is None or self._names[0] is not view:
            names = [
                Partition(topic, number).name
                for topic, known in view.topics.items()
                if known.info is not None
                for number in sorted(known.info.leaders)
            ]
            self._names = view, names
        return self._names[1]

    def look(
        self,
        names: Collection[str],
        view: ClusterView,
        latest: OffsetQuery,
        deadline: float,
        *,
        to_the_end: bool = False,
    ) -> tuple[dict[str, PartitionLog], dict[str, Unavailable]]:
        """Return the logs of these partitions, and why some have none now. `deadline` is monotonic. With
        `to_the_end` they tell how far they are written; otherwise they do so now and then."""
        queries = [EARLIEST, latest]
        now = monotonic()
        if latest.read_committed and (to_the_end or now >= self._next_written):
            self._next_written = now + _WRITTEN_SECONDS
            queries.append(LATEST_WRITTEN)
        found, unavailable = self._ask(names, view, queries, deadline)
        logs: dict[str, PartitionLog] = {}
        for partition, (first, end, *further) in found.items():
            info = view.topics[partition.topic].info
            if info is not None:
                written = max(end, *further) if further else None if latest.read_committed else end
                leader = info.leaders[partition.number]
                logs[partition.name] = PartitionLog(first, end, info.id, leader, written)
        return logs, unavailable

    def look_for_new(
        self,
        names: Collection[str],
        view: ClusterView,
        latest: OffsetQuery,
        deadline: float,
        planned: Mapping[str, KafkaRange],
    ) -> dict[str, PartitionLog] | None:
        """Return the logs of those of these partitions in which records wait, or whose place in what is
        `planned` was not looked at before. None if one fetch does not tell that of all, or did not a moment
        ago."""
        if monotonic() < self._rests_until:
            return None
        led = self._led_of(names, view)
        if led.without or not all(name in planned and planned[name].is_placed for name in names):
            return None
        self._learn_addresses(led.leaders, view, deadline)
        ids = {topic: known.info.id for topic, known in view.topics.items() if known.info is not None}
        seconds = max(0.05, (deadline - monotonic()) / 2)  # the other half is for the questions
        logs = self._tail.look(led.leaders, ids, planned, seconds, read_committed=latest.read_committed)
        if logs is None:
            self._rests_until = monotonic() + _REST_SECONDS
        return logs

    def new_records(self, planned: Mapping[str, KafkaRange]) -> dict[str, bytes]:
        """Return what `look_for_new` brought of these ranges, from their beginning on."""
        found = self._tail.records
        return {
            name: found[name].data
            for name, one in planned.items()
            if name in found and found[name].start == one.start
        }

    def find(
        self, names: Collection[str], view: ClusterView, place: OffsetQuery, deadline: float
    ) -> tuple[dict[str, int], dict[str, Unavailable]]:
        """Return the offset of one place in these partitions (-1 if the log does not have it), and why some
        cannot be asked."""
        found, unavailable = self._ask(names, view, [place], deadline)
        return {partition.name: offsets[0] for partition, offsets in found.items()}, unavailable

    def _ask(
        self, names: Collection[str], view: ClusterView, queries: Sequence[OffsetQuery], deadline: float
    ) -> tuple[dict[Partition, tuple[int, ...]], dict[str, Unavailable]]:
        led = self._led_of(names, view)
        leaders, unavailable = led.leaders, dict(led.without)
        self._learn_addresses(leaders, view, deadline)
        answers, unanswered = self._client.offsets(leaders, queries, max(0.05, deadline - monotonic()))
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

    def _led_of(self, names: Collection[str], view: ClusterView) -> _Led:
        led = self._led
        if led is None or led.view is not view or (led.names is not names and led.names != names):
            led = self._led = self._leaders(names, view)
        return led

    def _leaders(self, names: Collection[str], view: ClusterView) -> _Led:
        led = _Led(view, names)
        for name in sorted(names):
            partition = Partition.parse(name)
            leader = self._leader(partition, view)
            if isinstance(leader, Unavailable):
                led.without[name] = leader
            else:
                led.leaders[partition] = leader
        return led

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
                self._client.topics((), max(0.05, deadline - monotonic()))
            except (kafka_errors.KafkaError, OSError):
                self._watch.look_again()
