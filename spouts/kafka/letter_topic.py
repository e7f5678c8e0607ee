"""The topics that results and dead letters are sent to, in the cluster of the topology's source.

Dead letters one record at a time, each acknowledged before the next: letters are few, and an order that
survives a broker's failure is worth more than speed. Letters of one partition of the source go to one
partition of the topic. Results a batch at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafka import KafkaProducer

from txstream.core.dead_letters import SentLetter
from txstream.spouts.kafka.many_records import (
    Headers,
    Records,
    for_many_records,
    partitions_of,
    produce,
    require_sent,
)
from txstream.spouts.kafka.options import check_files


class KafkaLetterTopic:
    """A connection to the topic. The constructor and `send` raise ServiceUnavailableError, and what
    kafka-python raises."""

    def __init__(
        self, topic: str, bootstrap: str, options: Mapping[str, Any], timeout_seconds: float
    ) -> None:
        check_files(options)
        self._topic = topic
        self._timeout_seconds = timeout_seconds
        timeout_ms = int(timeout_seconds * 1000)
        request_ms = options.get("request_timeout_ms", timeout_ms)
        self._producer = KafkaProducer(
            **{**for_many_records(), **options, "request_timeout_ms": request_ms},
            # The producer gives a record up by itself, so that none is sent behind its successors.
            delivery_timeout_ms=max(timeout_ms, request_ms),
            bootstrap_servers=[server.strip() for server in bootstrap.split(",")],
            acks="all",
            max_in_flight_requests_per_connection=1,
            max_block_ms=timeout_ms,
            max_request_size=1 << 30,  # the topic's own limit decides
            allow_auto_create_topics=False,
        )

    def send(self, record: SentLetter) -> None:
        partitions = partitions_of(self._producer, self._topic)
        sent = self._producer.send(
            self._topic,
            record.value,
            record.key,
            headers=list(record.headers),
            partition=partitions[(record.partition or 0) % len(partitions)],
            timestamp_ms=record.timestamp_ms,
        )
        sent.get(timeout=2 * self._timeout_seconds)

    def send_all(self, records: Records, _txid: int, to_each: Headers | None = None) -> None:
        """Append records in this order, each to the partition of its key, and one with the headers `to_each`
        to each partition; return once all of them are acknowledged. The txid does not matter."""
        partitions = partitions_of(self._producer, self._topic)
        sent = produce(self._producer, self._topic, records, partitions, to_each)
        require_sent(self._producer, sent, 2 * self._timeout_seconds)

    def close(self) -> None:
        self._producer.close(timeout=0)
