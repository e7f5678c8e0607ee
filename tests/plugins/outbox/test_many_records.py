"""A key goes to the partition that other clients of Kafka choose for it."""

from __future__ import annotations

from types import SimpleNamespace

from kafka.partitioner import DefaultPartitioner

from txstream.spouts.kafka.many_records import KeyPartitioner


def test_a_key_keeps_its_partition() -> None:
    ours, theirs = KeyPartitioner(), DefaultPartitioner()
    for count in (1, 4, 7):  # a topic grows
        numbers = set(range(count))
        cluster = SimpleNamespace(
            topics=lambda: {"t"},
            partitions_for_topic=lambda _, numbers=numbers: numbers,
            available_partitions_for_topic=lambda _: {0},
        )
        for key in [b"", b"a", "\u00e9t\u00e9".encode(), *(f"word-{n}".encode() for n in range(100))] * 2:
            expected = theirs.partition("t", key, key, b"", b"", cluster)
            assert ours.partition("t", key, key, b"", b"", cluster) == expected
        assert ours.partition("t", None, None, b"", b"", cluster) == 0  # the one that is available
