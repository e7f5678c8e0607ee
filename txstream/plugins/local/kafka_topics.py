"""Kafka topics as commands need them: made, filled, removed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import (
    BrokerResponseError,
    KafkaError,
    NoError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    for_code,
)

from txstream.core.errors import ServiceUnavailableError, UsageError
from txstream.settings.addresses import unresolved
from txstream.spouts.kafka.protocol import reason_of

Record = tuple[bytes | None, bytes]
"""A key, if there is one, and a value."""

_FLUSH_SECONDS = 60.0
_CHUNK = 500
_BATCH_BYTES = 256 * 1024


class KafkaTopics:
    """The topics of one cluster. Every method may raise ServiceUnavailableError."""

    def __init__(self, bootstrap: str, timeout_seconds: float) -> None:
        self.bootstrap = bootstrap
        self._timeout_ms = int(timeout_seconds * 1000)

    def remove(self, is_wanted_gone: Callable[[str], bool]) -> list[str]:
        """Delete the topics that `is_wanted_gone` picks. Return their names."""
        with self._admin("deleting topics") as admin:
            found = sorted(name for name in admin.list_topics() if is_wanted_gone(name))
            if found:
                admin.delete_topics(found)
            return found

    def create(self, topic: str, partitions: int | None = None) -> int:
        """Make an empty topic and wait until every partition has a leader. Return the number of partitions.

        None means the cluster's own default. Raises UsageError for a topic that exists.
        """
        with self._admin(f"creating topic {topic!r}") as admin:
            options = {} if partitions is None else {"num_partitions": partitions}
            try:
                admin.create_topics({topic: options}, wait_for_metadata=True)
            except TopicAlreadyExistsError:
                raise UsageError(
                    f"topic {topic!r} exists already in Kafka at {self.bootstrap}; "
                    f"`txstream topic produce {topic} FILE` appends to it"
                ) from None
        return self.partitions(topic)

    def partitions(self, topic: str) -> int:
        """Return the number of partitions. Raises UsageError for a topic that does not exist."""
        with self._admin(f"asking for topic {topic!r}") as admin:
            (described,) = admin.describe_topics([topic])
            error = for_code(described["error_code"])
            if error is UnknownTopicOrPartitionError:
                raise UsageError(
                    f"topic {topic!r} does not exist in Kafka at {self.bootstrap}; make it with "
                    f"`txstream topic create {topic}`"
                )
            if error is not NoError:
                raise error
            return len(described["partitions"])

    def fill(
        self, topic: str, records: Iterable[Record], partitions: int, advance: Callable[[int], None]
    ) -> int:
        """Append the records and wait until the broker has them all. Return how many there were. Records
        without a key go round robin over the partitions.

        `advance` is called with the number of further records sent. If `records` raises, the topic has the
        records before that.
        """
        number, failed = 0, list[KafkaError]()
        with self._told("producing"):
            producer = KafkaProducer(
                **self._options(),
                acks="all",
                linger_ms=20,
                batch_size=_BATCH_BYTES,
                max_block_ms=self._timeout_ms,
                allow_auto_create_topics=False,
            )
            try:
                for key, value in records:
                    place = number % partitions if key is None else None
                    producer.send(topic, value, key, partition=place).add_errback(failed.append)
                    number += 1
                    if number % _CHUNK == 0:
                        advance(_CHUNK)
                        if failed:
                            break
            finally:
                producer.flush(timeout=_FLUSH_SECONDS)
                producer.close(timeout=5)
                if failed:
                    raise failed[0]
        advance(number % _CHUNK)
        return number

    @contextmanager
    def _admin(self, doing: str) -> Iterator[Any]:
        with self._told(doing):
            admin = KafkaAdminClient(**self._options())
            try:
                yield admin
            finally:
                admin.close()

    def _options(self) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.bootstrap.split(","),
            "client_id": "txstream",
            "bootstrap_timeout_ms": self._timeout_ms,
        }

    @contextmanager
    def _told(self, doing: str) -> Iterator[None]:
        hosts = [server.strip().rpartition(":")[0].strip("[]") for server in self.bootstrap.split(",")]
        if (why := unresolved(filter(None, hosts))) is not None:
            raise ServiceUnavailableError(
                f"there is no Kafka at {self.bootstrap}: {why}; check the address (--kafka, TXSTREAM_KAFKA)"
            )
        try:
            yield
        except BrokerResponseError as error:
            raise ServiceUnavailableError(
                f"Kafka at {self.bootstrap} refused when {doing}: {reason_of(error)}"
            ) from error
        except (KafkaError, ValueError) as error:
            raise ServiceUnavailableError(
                f"Kafka at {self.bootstrap} failed when {doing} ({reason_of(error)}); check that it runs "
                "there and that the address is right (--kafka, TXSTREAM_KAFKA)"
            ) from error
