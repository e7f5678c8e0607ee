"""What makes kafka-python's producer cheaper where many records are sent at once.

Its default batches, of 16 KB, need a request each where a partition takes one at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kafka.partitioner import DefaultPartitioner, murmur2

Sent = tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes]]]
"""Key, value and headers."""
_KEYS = 100_000


class KeyPartitioner(DefaultPartitioner):  # type: ignore[misc]  # kafka-python has no types
    """Chooses the partition that every client of Kafka chooses for a key. It remembers the last keys:
    the hash is computed in Python, and a table's keys come again and again."""

    def __init__(self) -> None:
        self._hash = functools.lru_cache(_KEYS)(murmur2)

    def partition(
        self,
        topic: str,
        key: Any,
        serialized_key: bytes | None,
        value: Any,
        serialized_value: Any,
        cluster: Any,
    ) -> int:
        count = len(cluster.partitions_for_topic(topic) or ())
        if serialized_key is None or not count:
            return int(super().partition(topic, key, serialized_key, value, serialized_value, cluster))
        return int((self._hash(serialized_key) & 0x7FFFFFFF) % count)


def for_many_records() -> Mapping[str, Any]:
    """Return the options of a producer."""
    return {"batch_size": 1 << 17, "partitioner": KeyPartitioner()}


def send_each(producer: Any, topic: str, records: Iterable[Sent]) -> list[Any]:
    """Hand records to a producer; return what becomes of each."""
    return [producer.send(topic, value, key, headers=list(headers)) for key, value, headers in records]


def require_sent(producer: Any, sent: Sequence[Any], timeout_seconds: float) -> None:
    """Return once the broker has acknowledged all of these. Raises what kafka-python raises."""
    producer.flush(timeout=timeout_seconds)
    for one in sent:
        if not one.succeeded():
            one.get(timeout=0)
