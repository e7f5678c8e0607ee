"""Topics that belong to one test, and what producers do to them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.admin import OffsetSpec

from txstream.api.spouts import Unavailable
from txstream.core.transaction import AttemptId, TransactionAttempt, Txid
from txstream.spouts.kafka import KafkaRange

Headers = list[tuple[str, bytes]]


class Topics:
    """Creates, fills and damages topics; a context manager that closes its clients."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.admin = KafkaAdminClient(bootstrap_servers=address)
        self._producer: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._producer is not None:
            self._producer.close()
        self.admin.close()

    def create(
        self,
        name: str,
        partitions: int = 1,
        *,
        configs: Mapping[str, str] | None = None,
        replicas: Mapping[int, list[int]] | None = None,
    ) -> str:
        """Create a topic that all brokers know; `replicas` puts partitions on brokers, leaders first."""
        options: dict[str, Any] = {"configs": dict(configs or {})}
        if replicas is None:
            options |= {"num_partitions": partitions, "replication_factor": 1}
        else:
            options["assignments"] = dict(replicas)
        self.admin.create_topics({name: options}, wait_for_metadata=True)
        return name

    def delete(self, name: str) -> None:
        self.admin.delete_topics([name])
        wait_until(lambda: name not in self.admin.list_topics(), f"topic {name} is gone")

    def add_partitions(self, name: str, total: int) -> None:
        self.admin.create_partitions({name: total})
        self.admin.wait_for_topics([name])
        if self._producer is not None:  # it would not know the new partitions for minutes
            self._producer.close()
            self._producer = None

    def delete_before(self, name: str, partition: int, offset: int) -> None:
        self.admin.delete_records({TopicPartition(name, partition): offset})

    def send(
        self,
        name: str,
        values: Iterable[bytes | None],
        partition: int = 0,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        if self._producer is None:
            self._producer = KafkaProducer(bootstrap_servers=self.address, linger_ms=5)
        for value in values:
            self._producer.send(
                name, value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms
            )
        self._producer.flush(10)

    def transactional_producer(self, transactional_id: str, **options: Any) -> Any:
        """Return a producer; the caller begins, sends, commits or aborts, and closes."""
        producer = KafkaProducer(bootstrap_servers=self.address, transactional_id=transactional_id, **options)
        producer.init_transactions()
        return producer

    def transaction(
        self, producer: Any, name: str, values: Iterable[bytes], *, commit: bool, partition: int = 0
    ) -> None:
        """Send a whole transaction; its marker, which takes an offset, is written when this returns."""
        end = self.end(name, partition) + 1
        producer.begin_transaction()
        for value in values:
            end += 1
            producer.send(name, value, partition=partition)
        producer.flush(10)
        if commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
        wait_until(lambda: self.end(name, partition) == end, "the transaction's marker is written")

    def end(self, name: str, partition: int) -> int:
        """Return the offset after the last record of any kind."""
        place = TopicPartition(name, partition)
        return int(self.admin.list_partition_offsets({place: OffsetSpec.LATEST})[place].offset)


def attempt(number: int = 1) -> TransactionAttempt:
    """Return an attempt at the first batch; readers do not look at it."""
    return TransactionAttempt(Txid(1), AttemptId(number))


def ranges(plan: Mapping[str, KafkaRange | Unavailable]) -> dict[str, KafkaRange]:
    """Return the plan's ranges; every partition must be readable."""
    found = {}
    for name, meta in plan.items():
        assert isinstance(meta, KafkaRange), f"{name}: {meta}"
        found[name] = meta
    return found


def wait_until(condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    """Poll a condition of another process that no event announces. Polling takes at most a tenth of the time,
    since that process needs the rest."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while True:
        asked = time.monotonic()
        if condition():
            return
        answered = time.monotonic()
        assert answered < deadline, f"not within {seconds:g} s: {what}"
        pause.wait(max(0.05, min(10 * (answered - asked), 1.0)))
