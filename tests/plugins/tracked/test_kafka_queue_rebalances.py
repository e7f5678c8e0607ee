"""`KafkaQueueSpout` without Kafka: how a group begins and changes, what is waited for, and refusals."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.errors import IllegalStateError, KafkaTimeoutError, NoOffsetForPartitionError
from support.kafka_topics import wait_until
from support.lists import each
from support.spouts import OpenSpout

from txstream.core.errors import TopologyError
from txstream.plugins.tracked import kafka_queue
from txstream.plugins.tracked.kafka_queue import KafkaQueueSpout
from txstream.spouts.kafka import KafkaSource

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

    def __init__(self, polls: list[Poll], position: int, *, partitions: int = 1) -> None:
        self.polls = polls
        self.sought: list[int] = []
        self.commits: list[dict[int, int]] = []
        self.rested = False
        self.is_paused = False
        self.paused_polls = 0
        self.spout: Any = None
        self.own = {PLACE}
        self.offsets: dict[int, int] = {0: 0}
        self.begins = dict.fromkeys(range(partitions), 0)
        self.ends = dict.fromkeys(range(partitions), position)
        self._position = position
        self._moves = not position
        self._idle = threading.Event()

    @property
    def committed_here(self) -> list[int]:
        return [offsets[0] for offsets in self.commits if 0 in offsets]

    def subscribe(self, topics: Any, listener: Any) -> None:
        self.spout = listener._spout

    def poll(self, timeout_ms: int, max_records: int) -> dict[TopicPartition, list[Any]]:
        self.paused_polls += self.is_paused
        missing = [place for place in sorted(self.own) if place.partition not in self.offsets]
        if missing:
            self.rested = True
            raise NoOffsetForPartitionError(missing)
        if not self.polls or self.is_paused:
            self.rested = True
            self._idle.wait(0.005)
            return {}
        found = self.polls.pop(0)(self)
        if self._moves:
            self._position = max([0, *(row.offset + 1 for row in found.get(PLACE, ()))])
        return found

    def assignment(self) -> set[TopicPartition]:
        return self.own

    def partitions_for_topic(self, topic: str) -> set[int]:
        return set(self.ends)

    def beginning_offsets(self, places: list[TopicPartition], timeout_ms: int) -> dict[TopicPartition, int]:
        return {place: self.begins[place.partition] for place in places}

    def end_offsets(self, places: list[TopicPartition], timeout_ms: int) -> dict[TopicPartition, int]:
        return {place: self.ends[place.partition] for place in places}

    def committed(self, place: TopicPartition, timeout_ms: int) -> int | None:
        return self.offsets.get(place.partition)

    def paused(self) -> set[TopicPartition]:
        return self.own if self.is_paused else set()

    def pause(self, *places: TopicPartition) -> None:
        self.is_paused = True

    def resume(self, *places: TopicPartition) -> None:
        if places:
            self.is_paused = False

    def position(self, place: TopicPartition, timeout_ms: int = 0) -> int:
        return self._position

    def seek(self, place: TopicPartition, offset: int) -> None:
        self.sought.append(offset)

    def commit_async(self, offsets: Any, callback: Any = None) -> None:
        self.commit(offsets, 0)
        callback(offsets, None)

    def commit(self, offsets: Any, timeout_ms: int) -> None:
        made = {place.partition: offset.offset for place, offset in offsets.items()}
        self.offsets |= made
        self.commits.append(made)

    def close(self, autocommit: bool, timeout_ms: int) -> None:
        pass


def answer(*offsets: int) -> Poll:
    return lambda consumer: records(*offsets)


def gained(found: dict[TopicPartition, list[Any]]) -> Poll:
    """A poll in which the spout loses the partition and gains it again."""

    def poll(consumer: Consumer) -> dict[TopicPartition, list[Any]]:
        consumer.spout.lost([PLACE])
        consumer.spout.gained([PLACE])
        return found

    return poll


def opened(
    monkeypatch: pytest.MonkeyPatch,
    polls: list[Poll],
    position: int = 0,
    *,
    consumer: Consumer | None = None,
    **options: Any,
) -> tuple[OpenSpout, Consumer]:
    consumer = consumer or Consumer(polls, position)
    monkeypatch.setattr(kafka_queue, "KafkaConsumer", lambda **options: consumer)
    monkeypatch.setattr(KafkaSource, "coordinator", lambda self, context: SimpleNamespace(close=lambda: None))
    source = KafkaSource("orders", "127.0.0.1:9", kafka_columns=["offset"], **options)
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
    wait_until(lambda: consumer.committed_here[-1] == 6, "its commit", 10)
    consumer.spout.lost([PLACE])
    spout.spout.fail(second)
    spout.spout.ack(second)
    assert offsets(spout) == []
    spout.close()
    assert consumer.committed_here[-1] == 6


def test_the_committed_offset_is_that_of_the_oldest_open_record(monkeypatch: pytest.MonkeyPatch) -> None:
    spout, consumer = opened(monkeypatch, [gained({}), lambda consumer: records(5, 6, 9)])
    ids = [message for message, _ in spout.take()]
    wait_until(lambda: consumer.committed_here == [0, 5], "its first commits", 10)
    spout.spout.ack(ids[1])
    spout.spout.ack(ids[0])
    wait_until(lambda: consumer.committed_here[-1] == 9, "the commit up to the one that is open", 10)
    spout.spout.ack(ids[2])
    wait_until(lambda: consumer.committed_here[-1] == 10, "the commit of the end", 10)
    spout.close()
    assert consumer.committed_here == [0, 5, 9, 10]


@pytest.mark.parametrize(("start", "begin"), [("latest", {0: 7, 1: 9}), ("earliest", {0: 2, 1: 3})])
def test_where_a_group_begins_is_committed_at_once_for_every_partition(
    monkeypatch: pytest.MonkeyPatch, start: str, begin: dict[int, int]
) -> None:
    consumer = Consumer([], 7, partitions=2)
    consumer.offsets, consumer.begins, consumer.ends = {}, {0: 2, 1: 3}, {0: 7, 1: 9}
    spout, _ = opened(monkeypatch, [], consumer=consumer, start=start)
    wait_until(lambda: consumer.commits, "its commit", 10)
    assert consumer.commits == [begin]
    spout.close()


def test_a_partition_that_is_new_to_the_topic_begins_at_its_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consumer = Consumer([], 7, partitions=3)
    consumer.ends[1], consumer.own = 5, {PLACE, TopicPartition("orders", 1)}
    spout, _ = opened(monkeypatch, [], consumer=consumer, start="latest")
    wait_until(lambda: consumer.commits, "its commit", 10)
    assert consumer.commits == [{1: 0}]
    spout.close()


def test_only_the_task_with_the_first_partition_says_where_a_group_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another answer, given later, would pass over what was added meanwhile."""
    consumer = Consumer([], 7, partitions=2)
    consumer.offsets, consumer.own = {}, {TopicPartition("orders", 1)}
    asked = threading.Event()
    consumer.begins = {}  # nobody may ask for them
    committed = consumer.committed

    def ask(place: TopicPartition, timeout_ms: int) -> int | None:
        if place.partition == 1:
            asked.set()
        return committed(place, timeout_ms)

    monkeypatch.setattr(consumer, "committed", ask)
    spout, _ = opened(monkeypatch, [], consumer=consumer, start="latest")
    assert asked.wait(10)
    asked.clear()
    assert asked.wait(10), "it has asked a second time"
    assert consumer.commits == []
    consumer.offsets = {0: 7, 1: 7}
    wait_until(lambda: spout.spout.waiting_for() is None, "it goes on", 10)
    spout.close()


def test_it_is_polled_while_its_buffer_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the group takes the task for dead, and what it has is processed by another one, too."""
    polls: list[Poll] = [gained({})]
    polls += [answer(*range(at, at + 500)) for at in range(0, 2500, 500)]
    spout, consumer = opened(monkeypatch, polls)
    wait_until(lambda: consumer.paused_polls > 3, "polls of paused partitions", 10)
    assert len(consumer.polls) == 3
    found: list[int] = []

    def took_all() -> bool:
        found.extend(offsets(spout))
        return len(found) == 2500

    wait_until(took_all, "all records", 10)
    assert found == list(range(2500))
    spout.close()


def test_it_waits_until_kafka_has_said_that_the_whole_group_is_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka_queue, "_LOOK_SECONDS", 0.0)
    consumer = Consumer([gained({}), lambda consumer: records(0, 1)], 0, partitions=2)
    consumer.ends = {0: 4, 1: 3}
    spout, _ = opened(monkeypatch, [], consumer=consumer)

    def told(text: str | None) -> None:
        wait_until(lambda: spout.spout.waiting_for() == text, str(text), 10)

    of_other = ", which another member of the group 'topology' has or had"
    told("orders/0, 2 records before its end; and 1 more")
    consumer.polls.append(lambda consumer: records(2, 3))
    told("orders/1, where the group 'topology' has no offset yet")
    consumer.offsets[1] = 1
    told(f"orders/1, 2 records before its end{of_other}")
    consumer.offsets[1] = 3
    told(None)

    def away(*_: Any) -> Any:
        raise KafkaTimeoutError("no answer")

    monkeypatch.setattr(kafka_queue, "_FRESH_SECONDS", 0.05)
    monkeypatch.setattr(consumer, "end_offsets", away)
    told("an answer of Kafka about the ends of 'orders'")
    spout.close()


def test_places_move_past_what_is_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """The marker of a transaction has an offset. A group that stops before it never reaches the end."""
    spout, consumer = opened(monkeypatch, [gained({}), lambda consumer: records(0)])
    ((message, _),) = spout.take()
    consumer._position = consumer.ends[0] = 2
    spout.spout.ack(message)
    wait_until(lambda: consumer.committed_here[-1:] == [2], "the commit behind the marker", 10)
    assert spout.spout.waiting_for() is None
    spout.close()


@pytest.mark.parametrize("error", [KeyError(PLACE), IllegalStateError("Partition is not assigned")])
@pytest.mark.parametrize("method", ["resume", "position"])
def test_a_partition_that_is_lost_while_kafka_is_asked_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, method: str, error: Exception
) -> None:
    """kafka-python raises these where another of its threads takes the partition away meanwhile."""
    monkeypatch.setattr(kafka_queue, "_LOOK_AGAIN_SECONDS", 0.0)
    consumer, errors = Consumer([gained({}), answer(0, 1)], 0), [error]
    asked = getattr(consumer, method)

    def lost_once(*given: Any, **named: Any) -> Any:
        if errors:
            raise errors.pop()
        return asked(*given, **named)

    monkeypatch.setattr(consumer, method, lost_once)
    spout, _ = opened(monkeypatch, [], consumer=consumer)
    wait_until(lambda: not errors, "the error", 10)
    consumer.polls.append(answer(2))
    wait_until(lambda: not consumer.polls, "all polls are answered", 10)
    spout.close()
    assert offsets(spout) == [0, 1, 2]


@pytest.mark.parametrize("error", [ValueError("broken"), KeyError(PLACE, "broken")])
def test_an_error_of_the_reader_reaches_the_spouts_thread(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def broken(consumer: Consumer) -> dict[TopicPartition, list[Any]]:
        raise error

    spout, _ = opened(monkeypatch, [gained({}), lambda consumer: records(5), broken])
    spout.spout.next_tuple()  # emits what was read before the error
    with pytest.raises(type(error), match="broken"):
        spout.spout.next_tuple()


@each(
    ("source", "message"),
    [
        ("orders", "KafkaQueueSpout takes a KafkaSource, not str"),
        (KafkaSource(topic_pattern="o.*"), "topics by their names; topic_pattern does not apply"),
        (KafkaSource("orders", start={"orders/0": 3}), "takes its offsets from the group"),
        (KafkaSource("orders", max_records_per_partition=3), "tracked tuples have max_spout_pending"),
    ],
)
def test_what_cannot_be_meant_is_refused(source: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        KafkaQueueSpout(source)
