"""What lies behind open transactions: records that are written, and that a reader of what is committed gets
only once an older transaction in their partition has ended.

Invariants:

- How much lies there comes with the answers about where logs end. Who holds it is asked only once it has not
  moved for some seconds, once for each transaction, or now and then while no broker tells.
- What is asked for is words for people: without the right to see them, less is said and nothing fails.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from kafka.protocol.admin.transactions import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)

from txstream.api.spouts import HeldBack
from txstream.spouts.kafka.client import KafkaClient
from txstream.spouts.kafka.protocol import Partition, PartitionLog, partition_error, reason_of

_LONG_SECONDS = 3.0
"""Transactions of a producer that is alive and well rarely last longer."""
_AGAIN_SECONDS = 30.0
_ASK_SECONDS = 0.5
_MOST_ASKED = 100


@dataclass(slots=True)
class _Behind:
    """What is written between the stable end of a log and its end. It has been so since `began` (monotonic),
    for all that this process knows."""

    log: PartitionLog
    written: int
    since: datetime
    began: float
    reason: str = "an open transaction"
    next_question: float = 0.0

    @property
    def records(self) -> int:
        return self.written - self.log.end


class _Transaction(NamedTuple):
    """A transaction as its coordinator describes it; the times are None if it does not."""

    id: str
    node: int
    began: datetime | None = None
    timeout_seconds: float | None = None


class OpenTransactions:
    """Remembers which partitions have records behind an open transaction."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._behind: dict[str, _Behind] = {}

    @property
    def records(self) -> int:
        """How many offsets lie behind open transactions, over all partitions."""
        return sum(one.records for one in self._behind.values())

    def see(self, logs: Mapping[str, PartitionLog], names: Collection[str]) -> None:
        """Learn from answers about where logs end. Those of these partitions that are left out are as before;
        all others are forgotten."""
        for name, log in logs.items():
            before = self._behind.get(name)
            has_moved = before is None or (before.log.end, before.log.topic_id) != (log.end, log.topic_id)
            if log.written is None and not has_moved:
                continue  # nobody asked how far it goes
            if log.written is None or log.written <= log.end:
                self._behind.pop(name, None)
            elif before is None or has_moved:
                self._behind[name] = _Behind(log, log.written, datetime.now(UTC), time.monotonic())
            else:
                before.written, before.log = log.written, log
        for name in [name for name in self._behind if name not in names]:
            del self._behind[name]

    def held_back(self) -> dict[str, HeldBack]:
        return {name: HeldBack(one.records, one.reason, one.since) for name, one in self._behind.items()}

    def ask(self, deadline: float) -> None:
        """Ask whose the transactions are that have been open for long. `deadline` is monotonic."""
        now = time.monotonic()
        long = [
            name
            for name, one in self._behind.items()
            if now - one.began >= _LONG_SECONDS and now >= one.next_question
        ][:_MOST_ASKED]
        if not long:
            return
        for name in long:
            self._behind[name].next_question = now + _AGAIN_SECONDS
        deadline = min(deadline, now + _ASK_SECONDS)
        producers = self._producers(long, deadline)
        found = {producer for producer in producers.values() if isinstance(producer, int)}
        transactions = self._transactions(found, deadline) if found else {}
        for name, producer in producers.items():
            one = self._behind[name]
            if isinstance(producer, int):
                one.reason = _in_words(producer, transactions.get(producer))
                if producer in transactions:
                    one.next_question = float("inf")
            else:
                one.reason = f"an open transaction (whose, is not known: {producer})"

    def _producers(self, names: Iterable[str], deadline: float) -> dict[str, int | str]:
        """Return whose transaction begins at the stable end of a partition, or why that is not known."""
        by_node: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        found: dict[str, int | str] = {}
        for name in names:
            partition = Partition.parse(name)
            by_node[self._behind[name].log.leader.node][partition.topic].append(partition.number)
        topic_type = DescribeProducersRequest.TopicRequest
        asked = {
            node: [
                DescribeProducersRequest(
                    topics=[
                        topic_type(name=topic, partition_indexes=numbers) for topic, numbers in topics.items()
                    ]
                )
            ]
            for node, topics in by_node.items()
        }
        for node, answer in self._client.ask(asked, max(0.05, deadline - time.monotonic())).items():
            if isinstance(answer, Exception):
                for topic, numbers in by_node[node].items():
                    found |= {Partition(topic, number).name: reason_of(answer) for number in numbers}
                continue
            for topic in answer[0].topics:
                for data in topic.partitions:
                    name = Partition(topic.name, data.partition_index).name
                    if name in self._behind:
                        found[name] = _producer(data, self._behind[name].log.end)
        return found

    def _transactions(self, producers: Collection[int], deadline: float) -> dict[int, _Transaction]:
        """Return the transactions of these producers, as far as the brokers show them."""
        request = ListTransactionsRequest(
            state_filters=[], producer_id_filters=sorted(producers), min_version=0, max_version=0
        )
        nodes = self._client.nodes()
        found: dict[int, _Transaction] = {}
        answers = self._client.ask(
            {node: [request] for node in nodes}, max(0.05, deadline - time.monotonic())
        )
        for node, answer in answers.items():
            if not isinstance(answer, Exception) and not answer[0].error_code:
                for data in answer[0].transaction_states:
                    found[data.producer_id] = _Transaction(data.transactional_id, node)
        by_node: dict[int, list[str]] = defaultdict(list)
        for one in found.values():
            by_node[one.node].append(one.id)
        asked = {node: [DescribeTransactionsRequest(transactional_ids=ids)] for node, ids in by_node.items()}
        for node, answer in self._client.ask(asked, max(0.05, deadline - time.monotonic())).items():
            for data in () if isinstance(answer, Exception) else answer[0].transaction_states:
                if not data.error_code and data.producer_id in found:
                    found[data.producer_id] = _described(data, node)
        return found


def _producer(data: Any, stable_end: int) -> int | str:
    """Return the producer with the oldest open transaction, or why there is none."""
    if data.error_code:
        return str(partition_error(data.error_code))
    # A log's stable end is the first offset of its oldest open transaction.
    for producer in data.active_producers:
        if producer.current_txn_start_offset == stable_end:
            return int(producer.producer_id)
    return "its leader tells of no producer with one there"


def _described(data: Any, node: int) -> _Transaction:
    began = None
    if data.transaction_start_time_ms >= 0:
        began = datetime.fromtimestamp(data.transaction_start_time_ms / 1000, UTC)
    return _Transaction(data.transactional_id, node, began, data.transaction_timeout_ms / 1000)


def _in_words(producer: int, transaction: _Transaction | None) -> str:
    words = [f"an open transaction of producer {producer}"]
    if transaction is not None:
        words.append(f"transactional id {transaction.id!r}")
        if transaction.began is not None:
            words.append(f"open since {transaction.began.astimezone():%H:%M:%S}")
        if transaction.timeout_seconds is not None:
            words.append(f"which Kafka ends after {transaction.timeout_seconds:,.0f} s")
    return ", ".join(words)
