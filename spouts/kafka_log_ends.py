"""The logs of a source's partitions as the cluster shows them now: first offsets and ends, broker by broker.

Invariants:

- One look is one round of questions under the caller's deadline. A broker that misses it is handed to
  `ClusterWatch` and not asked again until it has answered there.
- Every partition asked for is in the answer, either with its log or with the reason why not.
- A first offset is as old as the look, but where only records are planned that came since a look of the last
  second: nothing removes those so soon, except a user. The reader finds that, as it does when one removes
  what is planned.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import NamedTuple

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
from txstream.spouts.ranges import Span

_RECENT_SECONDS = 1.0


class PartitionLog(NamedTuple):
    """A partition's log as its leader shows it: its first offset, and its end at the isolation level that was
    asked for. The leader still had this epoch when it answered: it refuses a question that names another."""

    first: int
    end: int
    topic_id: str
    leader: Leader = NOBODY


@dataclass(slots=True)
class _Look:
    """What a look at whole logs found, when it began, and who led then. `furthest` is the sum of the places
    of the plan that went furthest since: one that does not go on from there is made again."""

    view: ClusterView
    logs: Mapping[str, PartitionLog]
    began: float
    furthest: int


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
        self._look: _Look | None = None
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
        planned: Mapping[str, Span] | None = None,
    ) -> tuple[dict[str, PartitionLog], dict[str, Unavailable]]:
        """Return the logs of these partitions, and why some have none now. `deadline` is monotonic. With
        what is `planned` so far, first offsets may be a second old where all older records are in it."""
        known = None if planned is None else self._recent(names, view, planned)
        began = monotonic()
        queries = [EARLIEST, latest] if known is None else [latest]
        found, unavailable = self._ask(names, view, queries, deadline)
        logs: dict[str, PartitionLog] = {}
        for partition, offsets in found.items():
            info = view.topics[partition.topic].info
            if info is not None:
                name = partition.name
                first = offsets[0] if known is None else known[name].first
                logs[name] = PartitionLog(first, offsets[-1], info.id, info.leaders[partition.number])
        if planned is not None and known is None:
            self._look = _Look(view, logs, began, _sum_of_places(planned))
        return logs, unavailable

    def _recent(
        self, names: Collection[str], view: ClusterView, planned: Mapping[str, Span]
    ) -> Mapping[str, PartitionLog] | None:
        """Return the logs as the last whole look found them, if that was a moment ago and all that they had
        then is planned."""
        look = self._look
        if look is None or look.view is not view or monotonic() - look.began > _RECENT_SECONDS:
            return None
        goes_on = _sum_of_places(planned) > look.furthest
        logs = look.logs
        if not (goes_on and all(n in logs and n in planned and logs[n].end <= planned[n].end for n in names)):
            return None
        look.furthest = _sum_of_places(planned)
        return logs

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
        led = self._led
        if led is None or led.view is not view or led.names != names:
            led = self._led = self._leaders(names, view)
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


def _sum_of_places(planned: Mapping[str, Span]) -> int:
    return sum(one.end for one in planned.values())
