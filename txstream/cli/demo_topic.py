"""The demo's Kafka topic: made, filled, and removed with older ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import KafkaError

from txstream.api.errors import ServiceUnavailableError

_FLUSH_SECONDS = 60.0
_CHUNK = 500
_BATCH_BYTES = 256 * 1024


class DemoTopics:
    """Topics of one cluster whose names begin with `prefix`. Raises ServiceUnavailableError throughout."""

    def __init__(self, bootstrap: str, prefix: str, timeout_seconds: float) -> None:
        self.bootstrap = bootstrap
        self.prefix = prefix
        self._timeout_ms = int(timeout_seconds * 1000)

    def remove(self, is_wanted_gone: Callable[[str], bool]) -> list[str]:
        """Delete those of the topics with the prefix; their names."""
        with self._admin() as admin:
            found = sorted(
                name for name in admin.list_topics() if name.startswith(self.prefix) and is_wanted_gone(name)
            )
            if found:
                admin.delete_topics(found)
            return found

    def create(self, topic: str, partitions: int) -> None:
        """Make an empty topic and wait until every partition has a leader."""
        with self._admin() as admin:
            admin.create_topics({topic: {"num_partitions": partitions}}, wait_for_metadata=True)

    def fill(self, topic: str, lines: Sequence[str], partitions: int, advance: Callable[[int], None]) -> None:
        """Append the lines, round robin over the partitions, and wait until the broker has them all.

        `advance` is told how many lines more are on their way."""
        try:
            producer = KafkaProducer(
                **self._options(),
                acks="all",
                linger_ms=20,
                batch_size=_BATCH_BYTES,
                max_block_ms=self._timeout_ms,
            )
            try:
                sent = []
                for number, line in enumerate(lines):
                    sent.append(producer.send(topic, line.encode(), partition=number % partitions))
                    if number % _CHUNK == _CHUNK - 1:
                        advance(_CHUNK)
                producer.flush(timeout=_FLUSH_SECONDS)
                for future in sent:
                    future.get(timeout=_FLUSH_SECONDS)
            finally:
                producer.close(timeout=5)
        except KafkaError as error:
            raise self._unavailable("filling the topic", error) from error
        advance(len(lines) % _CHUNK)

    @contextmanager
    def _admin(self) -> Iterator[Any]:
        try:
            admin = KafkaAdminClient(**self._options())
            try:
                yield admin
            finally:
                admin.close()
        except KafkaError as error:
            raise self._unavailable("asking for its topics", error) from error

    def _options(self) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.bootstrap.split(","),
            "client_id": "txstream-demo",
            "bootstrap_timeout_ms": self._timeout_ms,
        }

    def _unavailable(self, doing: str, error: KafkaError) -> ServiceUnavailableError:
        return ServiceUnavailableError(
            f"Kafka at {self.bootstrap} failed while {doing} ({error}); check that it runs and the address "
            "given by --kafka or TXSTREAM_KAFKA, or leave both out to have one started"
        )
