"""Deterministic texts, put into Kafka, and their true counts, worked out without Kafka."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic


def make_lines(lines: int, *, words_per_line: int = 5, vocabulary: int = 300, seed: int = 7) -> list[str]:
    """Return lines of words; a few words are frequent, most are rare."""
    rng = random.Random(seed)
    words = [f"w{number}é" for number in range(vocabulary)]
    weights = [1 / (rank + 1) for rank in range(vocabulary)]
    chosen = rng.choices(words, weights, k=lines * words_per_line)
    return [" ".join(chosen[at : at + words_per_line]) for at in range(0, len(chosen), words_per_line)]


def count_words(lines: Sequence[str]) -> dict[str, int]:
    """Return how often each word really occurs."""
    return dict(Counter(word for line in lines for word in line.split()))


def create_topic(bootstrap: str, topic: str, partitions: int = 4, replication: int = 1) -> None:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.create_topics([NewTopic(topic, partitions, replication)])
    finally:
        admin.close()


def produce(bootstrap: str, topic: str, lines: Sequence[str | bytes | None], partitions: int = 4) -> None:
    """Append the lines, round robin over the partitions, and wait until all of them are there."""
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=20, batch_size=1 << 18)
    try:
        sent = []
        for number, line in enumerate(lines):
            value = line.encode() if isinstance(line, str) else line
            sent.append(producer.send(topic, value, partition=number % partitions))
        producer.flush(timeout=60)
        for future in sent:
            future.get(timeout=60)
    finally:
        producer.close()


def fill_topic(
    bootstrap: str, topic: str, lines: Sequence[str], partitions: int = 4, replication: int = 1
) -> dict[str, int]:
    """Create a topic with these lines; return the true counts of its words."""
    create_topic(bootstrap, topic, partitions, replication)
    produce(bootstrap, topic, lines, partitions)
    return count_words(lines)
