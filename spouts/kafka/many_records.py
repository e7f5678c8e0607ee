"""Sends many records at once. kafka-python's default batches, of 16 KB, need a request each where a partition
takes one at a time, and it computes the hash of a key in Python."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from kafka.partitioner import DefaultPartitioner, murmur2

from txstream.core.errors import ServiceUnavailableError

REWIND = b"txstream-rewind"
"""The key of a record without a value that tells each partition of a rewind."""

Headers = Sequence[tuple[str, bytes]]
Records = Sequence[tuple[bytes | None, bytes | None, Headers]]
"""Key, value and headers of each."""
_KEYS = 100_000


class KeyPartitioner(DefaultPartitioner):  # type: ignore[misc]  # kafka-python has no types
    """Chooses the partition that every client of Kafka chooses for a key. It remembers the last keys:
    a table's keys come again and again."""

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


def partitions_of(producer: Any, topic: str) -> list[int]:
    """Return a topic's partitions. Raises ServiceUnavailableError if it has none, or no broker answers."""
    found = producer.partitions_for(topic)
    if not found:
        raise ServiceUnavailableError(f"Kafka has no topic {topic!r}, or does not answer")
    return sorted(found)


def produce(
    producer: Any, topic: str, records: Records, partitions: Sequence[int], to_each: Headers | None
) -> list[Any]:
    """Send records, each to the partition of its key, and one with these headers to each partition; return
    their futures."""
    sent = [producer.send(topic, value, key, headers=list(headers)) for key, value, headers in records]
    if to_each is not None:
        sent += [
            producer.send(topic, None, REWIND, headers=list(to_each), partition=one) for one in partitions
        ]
    return sent


def require_sent(producer: Any, sent: Sequence[Any], timeout_seconds: float) -> None:
    """Return once the broker has acknowledged all of these. Raises what kafka-python raises."""
    producer.flush(timeout=timeout_seconds)
    for one in sent:
        if not one.succeeded():
            one.get(timeout=0)
