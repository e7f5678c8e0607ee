"""What is asked about transactions that stay open, when, and what is said if brokers do not tell.

The tests of a real broker are in tests/integration/test_kafka_held_back.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import SimpleNamespace as Document
from typing import Any

import kafka.errors as kafka_errors
import pytest
from kafka.protocol.admin.transactions import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)

from txstream.spouts.kafka import open_transactions
from txstream.spouts.kafka.open_transactions import OpenTransactions
from txstream.spouts.kafka.protocol import Leader, PartitionLog

BEGAN = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)
SHOWN = f"{BEGAN.astimezone():%H:%M:%S}"
REFUSED = kafka_errors.TransactionalIdAuthorizationFailedError.errno


class Brokers:
    """Brokers 1, which leads t/0, and 2, which coordinates the transaction of producer 7, begun at offset 10.
    Each of their `errors`, by request, is the error code or the failure of an answer."""

    def __init__(self) -> None:
        self.errors: dict[type[Any], int | Exception] = {}
        self.asked: list[tuple[int, type[Any]]] = []
        self.transactions = [Document(transactional_id="shop-1", producer_id=7, transaction_state="Ongoing")]

    def nodes(self) -> list[int]:
        return [1, 2]

    def ask(self, requests: Mapping[int, Sequence[Any]], timeout_seconds: float) -> dict[int, Any]:
        return {node: self._answer(node, *asked) for node, asked in requests.items()}

    def _answer(self, node: int, request: Any) -> Any:
        self.asked.append((node, type(request)))
        error = self.errors.get(type(request), 0)
        if isinstance(error, Exception):
            return error
        if isinstance(request, DescribeProducersRequest):
            producers = [
                Document(producer_id=6, current_txn_start_offset=-1),
                Document(producer_id=8, current_txn_start_offset=11),
                Document(producer_id=7, current_txn_start_offset=10),
            ]
            return [
                Document(
                    topics=[
                        Document(
                            name=topic.name,
                            partitions=[
                                Document(partition_index=one, error_code=error, active_producers=producers)
                                for one in topic.partition_indexes
                            ],
                        )
                        for topic in request.topics
                    ]
                )
            ]
        if isinstance(request, ListTransactionsRequest):
            assert request.producer_id_filters == [7]
            return [Document(error_code=error, transaction_states=self.transactions if node == 2 else [])]
        assert (node, request.transactional_ids) == (2, ["shop-1"])
        described = Document(
            error_code=error,
            transactional_id="shop-1",
            producer_id=7,
            transaction_start_time_ms=BEGAN.timestamp() * 1000,
            transaction_timeout_ms=60_000,
        )
        return [Document(transaction_states=[described])]


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(open_transactions, "time", found)
    return found


def log(end: int, written: int | None, topic_id: str = "id") -> PartitionLog:
    return PartitionLog(0, end, topic_id, Leader(1, 0), written)


def said(brokers: Brokers, clock: Clock) -> str:
    """Return what is said of 1,005 offsets of t/0 that have been behind offset 10 for three seconds."""
    found = OpenTransactions(brokers)  # type: ignore[arg-type]
    found.see({"t/0": log(10, 1_015)}, {"t/0"})
    clock.now += 3
    found.ask(clock.now + 2)
    (one,) = found.held_back().values()
    assert one.records == found.records == 1_005
    return one.behind


def test_whose_transaction_it_is(clock: Clock) -> None:
    brokers = Brokers()
    assert said(brokers, clock) == (
        f"an open transaction of producer 7, transactional id 'shop-1', open since {SHOWN}, which Kafka ends "
        f"after 60 s"
    )
    assert brokers.asked == [
        (1, DescribeProducersRequest),
        (1, ListTransactionsRequest),
        (2, ListTransactionsRequest),
        (2, DescribeTransactionsRequest),
    ]


def test_what_is_said_if_brokers_do_not_tell(clock: Clock) -> None:
    for request, error, expected in (
        (DescribeTransactionsRequest, REFUSED, "of producer 7, transactional id 'shop-1'"),
        (ListTransactionsRequest, kafka_errors.ClusterAuthorizationFailedError.errno, "of producer 7"),
        (ListTransactionsRequest, kafka_errors.KafkaTimeoutError("late"), "of producer 7"),
        (
            DescribeProducersRequest,
            kafka_errors.TopicAuthorizationFailedError.errno,
            "(whose, is not known: TopicAuthorizationFailed)",
        ),
        (
            DescribeProducersRequest,
            kafka_errors.IncompatibleBrokerVersion("an old one"),
            "(whose, is not known: [Error 35] IncompatibleBrokerVersion: an old one)",
        ),
    ):
        brokers = Brokers()
        brokers.errors = {request: error}
        assert said(brokers, clock) == f"an open transaction {expected}"
    hidden = Brokers()
    hidden.transactions = []
    assert said(hidden, clock) == "an open transaction of producer 7"


def test_brokers_are_asked_once_for_each_transaction_that_is_open_for_long(clock: Clock) -> None:
    brokers = Brokers()
    found = OpenTransactions(brokers)  # type: ignore[arg-type]

    def look(end: int, written: int | None) -> int:
        """Look every second for a minute, and return how often producers were asked for."""
        brokers.asked.clear()
        for _ in range(60):
            found.see({"t/0": log(end, written)}, {"t/0"})
            found.ask(clock.now + 2)
            clock.now += 1
        return brokers.asked.count((1, DescribeProducersRequest))

    assert look(10, 10) == 0
    assert look(10, 20) == 1
    assert look(15, 20) == 2, "no broker tells of its producer: it is asked again after half a minute"
    for end in range(20, 80):  # transactions of a producer that is alive and well
        brokers.asked.clear()
        found.see({"t/0": log(end, end + 5)}, {"t/0"})
        found.ask(clock.now + 2)
        clock.now += 1
        assert brokers.asked == []


def test_it_is_known_until_the_log_has_moved(clock: Clock) -> None:
    found = OpenTransactions(Brokers())  # type: ignore[arg-type]

    def records(**logs: PartitionLog) -> dict[str, int]:
        found.see({f"t/{name[1:]}": one for name, one in logs.items()}, {"t/0", "t/1"})
        return {name: one.records for name, one in found.held_back().items()}

    assert records(p0=log(10, 20), p1=log(5, 5)) == {"t/0": 10}
    assert records(p1=log(5, 7)) == {"t/0": 10, "t/1": 2}, "what is not in an answer is as it was"
    assert records(p0=log(10, 30)) == {"t/0": 20, "t/1": 2}
    assert records(p0=log(10, None), p1=log(7, 7)) == {"t/0": 20}, "nobody asked for its end"
    assert records(p0=log(11, None)) == {}, "it has moved, and nobody asked for its end"
    assert records(p0=log(11, 30)) == {"t/0": 19}
    assert records(p0=log(11, 12, "another topic's")) == {"t/0": 1}
    found.see({}, {"t/1"})
    assert found.held_back() == {}, "a partition that is gone"
