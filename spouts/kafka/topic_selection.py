"""Which topics a source reads: those it names, or those whose names match a pattern."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from txstream.core.errors import TopologyError

if TYPE_CHECKING:
    from txstream.spouts.kafka.client import KafkaClient
    from txstream.spouts.kafka.protocol import TopicInfo

_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_INTERNAL = "__"  # Kafka's internal topics


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """Either `names` or `pattern`, a regular expression that matches whole names; names that are `left_out`
    are not read though it matches them."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    left_out: tuple[str, ...] = ()

    @classmethod
    def of(cls, topics: str | Sequence[str] | None, pattern: str | None) -> TopicSelection:
        """Check the arguments. Raises TopologyError for invalid names and patterns."""
        if (topics is None) == (pattern is None):
            raise TopologyError(
                "KafkaSource takes either topics, such as KafkaSource('lines'), or a pattern, such as "
                "KafkaSource(topic_pattern='orders-.*')"
            )
        return cls(pattern=_checked_pattern(pattern)) if topics is None else cls(_checked_names(topics))

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"the topics that match {self.pattern!r}"
        return f"the topic{'s' if len(self.names) > 1 else ''} {', '.join(map(repr, self.names))}"

    @property
    def argument(self) -> str:
        """The selection as it is written in a call of KafkaSource."""
        if self.pattern is not None:
            return f"topic_pattern={self.pattern!r}"
        return repr(self.names[0] if len(self.names) == 1 else list(self.names))

    def reads(self, topic: str) -> bool:
        if self.pattern is None:
            return topic in self.names
        if topic.startswith(_INTERNAL) or topic in self.left_out:
            return False
        return re.fullmatch(self.pattern, topic) is not None

    def without(self, topic: str) -> TopicSelection:
        """Return this selection of which the topic is no part. Raises TopologyError if it is named."""
        if not self.reads(topic):
            return self
        if self.pattern is None:
            raise TopologyError(
                f"the source reads the topic {topic!r}, to which the topology would write: what it wrote "
                f"would come back as input; write to another topic"
            )
        return replace(self, left_out=(*self.left_out, topic))

    def look(
        self, client: KafkaClient, expected: Collection[str], timeout_seconds: float
    ) -> dict[str, TopicInfo]:
        """Return those of the topics that the cluster has, with one request for all of them.

        A list of all topics leaves out those that the user may not see. So a topic of a pattern that is
        `expected` but not listed is asked for by name. Raises KafkaError when no broker answers.
        """
        if self.pattern is None:
            return client.topics(self.names, timeout_seconds)
        listed = client.topics(None, timeout_seconds)
        found = {name: topic for name, topic in listed.items() if self.reads(name)}
        missing = sorted(name for name in expected if name not in found)
        return {**found, **client.topics(missing, timeout_seconds)} if missing else found


def is_topic_name(name: str) -> bool:
    return _TOPIC_NAME.fullmatch(name) is not None and name not in (".", "..")


def bad_topic_name(name: object) -> str:
    return f"{name!r} is not a Kafka topic name; it takes 1 to 249 letters, digits, '.', '_' and '-'"


def _checked_names(topics: str | Sequence[str]) -> tuple[str, ...]:
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    if not names:
        raise TopologyError("KafkaSource needs at least one topic")
    for name in names:
        if not isinstance(name, str) or not is_topic_name(name):
            raise TopologyError(f"{bad_topic_name(name)}; a regular expression is given as topic_pattern=")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise TopologyError(f"KafkaSource got the topic {twice[0]!r} twice; name each topic once")
    return names


def _checked_pattern(pattern: str | None) -> str:
    if not isinstance(pattern, str) or not pattern:
        raise TopologyError(
            f"topic_pattern is {pattern!r}; give a regular expression such as 'orders-.*', which is matched "
            f"with whole topic names"
        )
    try:
        re.compile(pattern)
    except re.error as error:
        raise TopologyError(f"topic_pattern {pattern!r} is not a regular expression: {error}") from error
    return pattern
