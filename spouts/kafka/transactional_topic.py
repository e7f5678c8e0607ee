"""A topic that gets the rows of each txid exactly once, for readers of what is committed.

Invariants. The rows of a txid and the marker that names it, on a control topic, are in one transaction. The
transactional id is fixed, so whoever connects shuts out who was connected before and ends what that had open;
only then is the marker read, to the end of the control topic as it is then. So what the marker says is true
until somebody else connects. Nothing is decided here: a transaction that is lost is made again.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import TopicAlreadyExistsError

from txstream.core.errors import ServiceUnavailableError
from txstream.spouts.kafka.many_records import (
    Headers,
    Records,
    for_many_records,
    partitions_of,
    produce,
    require_sent,
)
from txstream.spouts.kafka.options import check_files

CONTROL = {"cleanup.policy": "compact", "segment.bytes": str(1 << 20)}
TRANSACTION_TIMEOUT_SECONDS = 30.0
"""After that the broker ends a transaction that nobody ends. Until then, or until the next leader connects, a
reader of what is committed gets nothing that is behind it."""
_TAIL = 100


class TransactionalTopic:
    """A connection to the topic. `life` tells the lives of one topology apart. The constructor and `send_all`
    raise ServiceUnavailableError, and what kafka-python raises; then close it and connect again."""

    def __init__(
        self,
        topic: str,
        control: str,
        transactional_id: str,
        life: str,
        bootstrap: str,
        options: Mapping[str, Any],
        timeout_seconds: float,
    ) -> None:
        check_files(options)
        self._topic, self._control = topic, TopicPartition(control, 0)
        self._key, self._life = transactional_id.encode(), life
        self._timeout_seconds = timeout_seconds
        timeout_ms = int(timeout_seconds * 1000)
        self._options = {
            **options,
            "request_timeout_ms": options.get("request_timeout_ms", timeout_ms),
            "bootstrap_servers": [server.strip() for server in bootstrap.split(",")],
        }
        self._make_control()
        self._producer = KafkaProducer(
            **{**for_many_records(), **self._options},
            transactional_id=transactional_id,
            transaction_timeout_ms=int(TRANSACTION_TIMEOUT_SECONDS * 1000),
            acks="all",
            delivery_timeout_ms=max(timeout_ms, self._options["request_timeout_ms"]),
            max_block_ms=timeout_ms,
            max_request_size=1 << 30,  # the topic's own limit decides
            allow_auto_create_topics=False,
        )
        try:
            self._producer.init_transactions()
            self.reached = self._read_marker()
        except BaseException:
            self._producer.close(timeout=0)
            raise

    def send_all(self, records: Records, txid: int, to_each: Headers | None = None) -> None:
        """Append the rows of a txid, each to the partition of its key, and one with the headers `to_each` to
        each partition, unless they are there."""
        if txid <= self.reached:
            return
        partitions = partitions_of(self._producer, self._topic)
        self._producer.begin_transaction()
        try:
            sent = produce(self._producer, self._topic, records, partitions, to_each)
            marker = json.dumps({"life": self._life, "txid": txid}).encode()
            sent.append(self._producer.send(self._control.topic, marker, self._key, partition=0))
            require_sent(self._producer, sent, 2 * self._timeout_seconds)
        except BaseException:
            with contextlib.suppress(Exception):  # the next one to connect ends it, or else the broker
                self._producer.abort_transaction()
            raise
        self._producer.commit_transaction()
        self.reached = txid

    def close(self) -> None:
        self._producer.close(timeout=0)

    # --- the marker ---------------------------------------------------------------------------------

    def _make_control(self) -> None:
        admin = KafkaAdminClient(**self._options)
        try:
            if self._control.topic not in admin.list_topics():
                with contextlib.suppress(TopicAlreadyExistsError):
                    wanted = {"num_partitions": 1, "configs": CONTROL}
                    admin.create_topics({self._control.topic: wanted}, wait_for_metadata=True)
        finally:
            admin.close()

    def _read_marker(self) -> int:
        """Return the last txid that this life of the topology has in the topic; 0 if it has none."""
        consumer = KafkaConsumer(
            **self._options,
            isolation_level="read_committed",
            enable_auto_commit=False,
            group_id=None,
            allow_auto_create_topics=False,
        )
        try:
            consumer.assign([self._control])
            begin = consumer.beginning_offsets([self._control])[self._control]
            end = consumer.end_offsets([self._control])[self._control]
            found = None
            for start in dict.fromkeys((max(begin, end - _TAIL), begin)):
                found = found or self._last_marker(consumer, start, end)
            return found or 0
        finally:
            consumer.close()

    def _last_marker(self, consumer: KafkaConsumer, start: int, end: int) -> int | None:
        consumer.seek(self._control, start)
        found, deadline = None, time.monotonic() + 3 * self._timeout_seconds
        while consumer.position(self._control) < end:
            if time.monotonic() > deadline:
                raise ServiceUnavailableError(f"the markers in topic {self._control.topic!r} cannot be read")
            for records in consumer.poll(timeout_ms=200).values():
                for record in records:
                    marker = json.loads(record.value) if record.key == self._key and record.value else {}
                    if marker.get("life") == self._life:
                        found = int(marker["txid"])
        return found
