"""Keeps a view of the cluster up to date beside planning: topics, leaders, and brokers that do not answer.

Invariants:

- `view()` answers at once, from the last successful look.
- A broker that failed to answer a planner is probed here, with backoff, until it answers. Meanwhile planners
  leave its partitions out, so an outage costs them one deadline in all.
- A topic's disappearance, or another id under its name, is `confirmed` only when two answers at least
  `CONFIRM_SECONDS` apart have shown it: one broker may learn of it later than the others.
- An expected topic is in the view whether the cluster has it or not; other topics only while it has them.
  Named topics are expected from the start, those of a pattern once they have a place.
- Only the watch's own thread uses its client.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace

import kafka.errors as kafka_errors

from txstream.core.backoff import Backoff
from txstream.core.errors import ServiceUnavailableError
from txstream.spouts.kafka.client import KafkaClient
from txstream.spouts.kafka.protocol import NO_NODE, TopicInfo, reason_of
from txstream.spouts.kafka.topic_selection import TopicSelection

log = logging.getLogger(__name__)

CONFIRM_SECONDS = 0.5
_ANSWER_SECONDS = 2.0
_BETWEEN_LOOKS_SECONDS = 0.05
_BACKOFF = Backoff(first_seconds=0.1, longest_seconds=2.0)


@dataclass(frozen=True, slots=True)
class TopicView:
    """What is known of one topic. `info` is None while the cluster has no topic of that name."""

    info: TopicInfo | None
    since: float
    confirmed: bool = False


@dataclass(frozen=True, slots=True)
class ClusterView:
    """`down` says for each broker that is left out why; `error` says why the last look failed, if it did."""

    topics: Mapping[str, TopicView] = field(default_factory=dict)
    down: Mapping[int, str] = field(default_factory=dict)
    error: str | None = None
    looks: int = 0


@dataclass(slots=True)
class _Probe:
    reason: str
    due: float
    failures: int = 1


class ClusterWatch:
    """A thread that looks at the cluster every `interval_seconds`, and sooner when something is amiss."""

    def __init__(
        self, make_client: Callable[[], KafkaClient], selection: TopicSelection, interval_seconds: float
    ) -> None:
        self._make_client = make_client
        self._selection = selection
        self._expected: frozenset[str] = frozenset(selection.names)
        self._interval = interval_seconds
        self._changed = threading.Condition()
        self._view = ClusterView()
        self._probes: dict[int, _Probe] = {}
        self._look_wanted = False
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="txstream-kafka-watch", daemon=True)

    def start(self, first_look: Mapping[str, TopicInfo]) -> None:
        """Start the thread, with what a client has already seen as the first view."""
        if self._selection.pattern is not None and not first_look:
            log.warning("no topic matches %r yet", self._selection.pattern)
        self._publish(first_look, self._expected)
        self._thread.start()

    def view(self) -> ClusterView:
        with self._changed:
            return self._view

    def expect(self, topics: Iterable[str]) -> None:
        """These topics have a place: from the next look on the view has them, even if they are gone."""
        with self._changed:
            if not self._expected.issuperset(topics):
                self._expected = self._expected.union(topics)
                if not self._view.topics.keys() >= self._expected:
                    self._look_wanted = True
                    self._changed.notify_all()

    def broker_failed(self, node: int, reason: str) -> None:
        """Leave a broker out, as it did not answer a planner, until it answers a probe."""
        with self._changed:
            if node not in self._probes:
                self._probes[node] = _Probe(reason, time.monotonic() + _BACKOFF.after(1))
                self._view = replace(self._view, down=self._down())
            self._look_wanted = True
            self._changed.notify_all()

    def look_again(self) -> None:
        """Look at the cluster now: something contradicts the view."""
        with self._changed:
            self._look_wanted = True
            self._changed.notify_all()

    def wait_for_look(self, after: int, timeout_seconds: float) -> ClusterView:
        """Ask for a look, and wait until there has been one after look number `after` or time is up."""
        self.look_again()
        with self._changed:
            self._changed.wait_for(lambda: self._view.looks > after or self._closing, timeout_seconds)
            return self._view

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(_ANSWER_SECONDS + 1)

    # --- the thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        client: KafkaClient | None = None
        try:
            while not self._wait():
                try:
                    if client is None:
                        client = self._make_client()
                        client.connect(_ANSWER_SECONDS)
                    expected = self._expected
                    self._publish(self._selection.look(client, expected, _ANSWER_SECONDS), expected)
                    self._probe(client)
                except (kafka_errors.KafkaError, OSError, ServiceUnavailableError) as error:
                    if client is not None and isinstance(error, ServiceUnavailableError):
                        client.close()
                        client = None
                    self._failed(reason_of(error))
        finally:
            if client is not None:
                client.close()

    def _wait(self) -> bool:
        """Wait until the next look is due. True when the watch is closing."""
        with self._changed:
            now = time.monotonic()
            pause = self._interval
            if any(probe.due for probe in self._probes.values()):
                pause = min(pause, max(0.0, min(probe.due for probe in self._probes.values()) - now))
            if self._view.error is not None or self._unsettled():
                pause = min(pause, CONFIRM_SECONDS)
            # However often a planner asks, one look in this time is enough.
            self._changed.wait_for(lambda: self._closing, min(pause, _BETWEEN_LOOKS_SECONDS))
            self._changed.wait_for(lambda: self._closing or self._look_wanted, pause)
            self._look_wanted = False
            return self._closing

    def _unsettled(self) -> bool:
        return any(
            not topic.confirmed
            or (
                topic.info is not None
                and any(leader.node == NO_NODE for leader in topic.info.leaders.values())
            )
            for topic in self._view.topics.values()
        )

    def _publish(self, found: Mapping[str, TopicInfo], expected: Set[str]) -> None:
        """Make a look's answer the view. `expected` are the topics that the look expected."""
        now = time.monotonic()
        with self._changed:
            topics = {}
            for name in sorted(expected | found.keys()):
                info, before = found.get(name), self._view.topics.get(name)
                self._tell(name, info, before)
                same = before is not None and (before.info and before.info.id) == (info and info.id)
                since = before.since if before is not None and same else now
                topics[name] = TopicView(info, since, same and now - since >= CONFIRM_SECONDS)
            for name in self._view.topics.keys() - topics.keys():
                log.warning(
                    "the topic %r, which matched %r, is no longer there", name, self._selection.pattern
                )
            self._view = ClusterView(topics, self._down(), None, self._view.looks + 1)
            self._changed.notify_all()

    def _tell(self, name: str, info: TopicInfo | None, before: TopicView | None) -> None:
        """Log what a look has changed, once."""
        known = before.info if before is not None else None
        if info is not None and info.refused and (known is None or known.refused != info.refused):
            log.warning("Kafka does not describe the topic %r: %s", name, info.refused)
        elif info is not None and before is None and self._selection.pattern is not None and self._view.looks:
            log.info("the topic %r matches %r and is read from now on", name, self._selection.pattern)

    def _failed(self, reason: str) -> None:
        with self._changed:
            self._view = replace(self._view, error=reason, looks=self._view.looks + 1)
            self._changed.notify_all()

    def _probe(self, client: KafkaClient) -> None:
        with self._changed:
            now = time.monotonic()
            due = [node for node, probe in self._probes.items() if probe.due <= now]
        for node in due:
            error = client.alive(node, _ANSWER_SECONDS)
            with self._changed:
                if error is None:
                    del self._probes[node]
                else:
                    probe = self._probes[node]
                    probe.failures += 1
                    probe.due = time.monotonic() + _BACKOFF.after(probe.failures)
                self._view = replace(self._view, down=self._down())
                self._changed.notify_all()

    def _down(self) -> dict[int, str]:
        return {node: probe.reason for node, probe in self._probes.items()}
