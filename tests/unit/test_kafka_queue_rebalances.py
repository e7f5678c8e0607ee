"""`KafkaQueueSpout` without Kafka: the group changes while records are on their way, and refusals."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import TopicPartition
from support.kafka_topics import wait_until
from support.spouts import OpenSpout

from txstream.api.errors import TopologyError
from txstream.spouts import kafka_queue
from txstream.spouts.kafka import KafkaSource
from txstream.spouts.kafka_queue import KafkaQueueSpout

PLACE = TopicPartition("orders", 0)
Poll = Callable[["Consumer"], dict[TopicPartition, list[Any]]]


def records(*offsets: int) -> dict[TopicPartition, list[Any]]:
    return {
        PLACE: [
            SimpleNamespace(
                offset=offset, timestamp=0, timestamp_type=0, key=None, value=b"%d" % offset, headers=[]
            )
            for offset in offsets
        ]
    }


class Consumer:
    """Kafka's consumer as far as it is used. `polls` are its answers and what happens meanwhile."""

    def __init__(self, polls: list[Poll], position: int) -> None:
        self.polls = polls
        self.sought: list[int] = []
        self.committed: list[int] = []
        self.rested = False
        self.spout: Any = None
        self._position = position
        self._idle = threading.Event()

    def subscribe(self, topics: Any, listener: Any) -> None:
        self.spout = listener._spout

    def poll(self, timeout_ms: int, max_records: int) -> dict[TopicPartition, list[Any]]:
        if not self.polls:
            self.rested = True
            self._idle.wait(0.005)
            return {}
        return self.polls.pop(0)(self)

    def assignment(self) -> set[TopicPartition]:
        return {PLACE}

    def paused(self) -> set[TopicPartition]:
        return set()

    def resume(self, *places: TopicPartition) -> None:
        pass

    def position(self, place: TopicPartition) -> int:
        return self._position

    def seek(self, place: TopicPartition, offset: int) -> None:
        self.sought.append(offset)

    def commit_async(self, offsets: Any, callback: Any = None) -> None:
        self.committed.append(offsets[PLACE].offset)
        callback(offsets, None)

    def commit(self, offsets: Any, timeout_ms: int) -> None:
        self.committed.append(offsets[PLACE].offset)

    def close(self, autocommit: bool, timeout_ms: int) -> None:
        pass


def gained(answer: dict[TopicPartition, list[Any]]) -> Poll:
    """A poll in which the spout loses the partition and gains it again."""

    def poll(consumer: Consumer) -> dict[TopicPartition, list[Any]]:
        consumer.spout.lost([PLACE])
        consumer.spout.gained([PLACE])
        return answer

    return poll


def opened(
    monkeypatch: pytest.MonkeyPatch, polls: list[Poll], position: int = 0
) -> tuple[OpenSpout, Consumer]:
    consumer = Consumer(polls, position)
    monkeypatch.setattr(kafka_queue, "KafkaConsumer", lambda **options: consumer)
    monkeypatch.setattr(KafkaSource, "coordinator", lambda self, context: SimpleNamespace(close=lambda: None))
    source = KafkaSource("orders", "127.0.0.1:9", kafka_columns=["offset"])
    spout = OpenSpout(KafkaQueueSpout(source, commit_seconds=0))
    reader = spout.spout._reader  # type: ignore[attr-defined]
    wait_until(lambda: consumer.rested or not reader.is_alive(), "all polls are answered", 10)
    return spout, consumer


def offsets(spout: OpenSpout) -> list[int]:
    return [message.offset for message, _ in spout.take()]


@pytest.mark.parametrize(("position", "sought"), [(3, 3), (12, 10)])
def test_records_of_a_former_assignment_are_read_again(
    monkeypatch: pytest.MonkeyPatch, position: int, sought: int
) -> None:
    """They may lie after the place where the new assignment begins, and nothing in between is left out."""
    polls: list[Poll] = [gained({}), gained(records(10, 11)), lambda consumer: records(sought)]
    spout, consumer = opened(monkeypatch, polls, position)
    assert consumer.sought == [sought]
    assert offsets(spout) == [sought]
    spout.close()


def test_what_was_lost_is_neither_emitted_again_nor_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    spout, consumer = opened(monkeypatch, [gained({}), lambda consumer: records(5, 6, 7)])
    (first, _), (second, _) = spout.take(2)
    spout.spout.ack(first)
    wait_until(lambda: consumer.committed[-1] == 6, "its commit", 10)
    consumer.spout.lost([PLACE])
    spout.spout.fail(second)
    spout.spout.ack(second)
    assert offsets(spout) == []
    spout.close()
    assert consumer.committed[-1] == 6


def test_an_error_of_the_reader_reaches_the_spouts_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(consumer: Consumer) -> dict[TopicPartition, list[Any]]:
        raise ValueError("broken")

    spout, _ = opened(monkeypatch, [gained({}), lambda consumer: records(5), broken])
    spout.spout.next_tuple()  # emits what was read before the error
    with pytest.raises(ValueError, match="broken"):
        spout.spout.next_tuple()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("orders", "KafkaQueueSpout takes a KafkaSource, not str"),
        (KafkaSource(topic_pattern="o.*"), "topics by their names; topic_pattern does not apply"),
        (KafkaSource("orders", starting_offsets={"orders/0": 3}), "takes its offsets from the group"),
        (KafkaSource("orders", max_records_per_partition=3), "tracked tuples have max_spout_pending"),
    ],
)
def test_what_cannot_be_meant_is_refused(source: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        KafkaQueueSpout(source)
