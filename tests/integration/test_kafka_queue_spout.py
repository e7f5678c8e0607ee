"""`KafkaQueueSpout` over a real broker: offsets, groups that change, and what a killed process had read."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import KafkaError
from support.kafka_topics import Topics, wait_until
from support.spouts import OpenSpout

from txstream.core.errors import DataLostError, DecodeError, ServiceUnavailableError
from txstream.plugins.local.embedded import Services
from txstream.plugins.tracked.kafka_queue import KafkaMessage, KafkaQueueSpout
from txstream.spouts.kafka import Decode, KafkaOptions, KafkaSource


@pytest.fixture
def topics(services: Services) -> Iterator[Topics]:
    with Topics(services.kafka) as topics:
        yield topics


@pytest.fixture
def opened() -> Iterator[list[OpenSpout]]:
    """Spouts that are closed at the end."""
    opened: list[OpenSpout] = []
    yield opened
    for spout in opened:
        spout.close()


def source(topics: Topics, topic: str, **options: Any) -> KafkaSource:
    return KafkaSource(topic, topics.address, kafka_columns=["value", "partition", "offset"], **options)


class Reading:
    """A spout that is asked until it has what the test waits for: joining a group takes several calls."""

    def __init__(
        self, topics: Topics, topic: str, opened: list[OpenSpout], *, task: int = 0, **options: Any
    ) -> None:
        given = options.pop("source", None) or source(topics, topic)
        spout = KafkaQueueSpout(given, session_timeout_seconds=6, commit_seconds=0.05, **options)
        self.opened = OpenSpout(pickle.loads(pickle.dumps(spout)), task=task)
        self.spout = self.opened.spout
        opened.append(self.opened)
        self.ids: list[KafkaMessage] = []
        self.rows: list[Sequence[Any]] = []

    @property
    def offsets(self) -> list[int]:
        return [message.offset for message in self.ids]

    def step(self) -> None:
        for message, row in self.opened.take():
            self.ids.append(message)
            self.rows.append(row)

    def until(self, count: int) -> list[KafkaMessage]:
        """Ask until there are this many messages or more; return them."""
        drive([self], lambda: len(self.ids) >= count, f"{count} records")
        return self.ids

    def forget(self) -> None:
        self.ids, self.rows = [], []


def drive(readings: Sequence[Reading], condition: Any, what: str) -> None:
    def stepped() -> bool:
        for reading in readings:
            reading.step()
        return bool(condition())

    wait_until(stepped, what)


def committed(topics: Topics, topic: str, number: int = 0, group: str = "topology") -> int | None:
    with_admin = KafkaAdminClient(bootstrap_servers=topics.address)
    try:
        offsets = with_admin.list_group_offsets(group)
    except KafkaError as error:
        if not error.retriable:  # such as a new group, which has no coordinator at once
            raise
        return None
    finally:
        with_admin.close()
    found = offsets.get(group, offsets).get(TopicPartition(topic, number))
    return None if found is None else int(found.offset)


@pytest.fixture
def group(unique: str) -> str:
    return f"group-{unique}"


def test_offsets_are_committed_below_the_oldest_open_record(
    topics: Topics, unique: str, group: str, opened: list[OpenSpout]
) -> None:
    topics.create(unique)
    topics.send(unique, [b"%d" % n for n in range(5)])
    reading = Reading(topics, unique, opened, group=group)
    ids = reading.until(5)
    assert reading.rows == [(str(n), 0, n) for n in range(5)]
    for message in (ids[0], ids[1], ids[3]):
        reading.spout.ack(message)
    drive([reading], lambda: committed(topics, unique, group=group) == 2, "the second offset")
    reading.spout.ack(ids[2])
    drive([reading], lambda: committed(topics, unique, group=group) == 4, "the fourth offset")
    reading.spout.ack(ids[4])
    opened.pop().close()
    assert committed(topics, unique, group=group) == 5


def test_who_comes_next_begins_at_the_oldest_open_record(
    topics: Topics, unique: str, group: str, opened: list[OpenSpout]
) -> None:
    topics.create(unique)
    topics.send(unique, [b"%d" % n for n in range(5)])
    first = Reading(topics, unique, opened, group=group)
    ids = first.until(5)
    for message in (ids[0], ids[2]):
        first.spout.ack(message)
    opened.pop().close()
    second = Reading(topics, unique, opened, group=group)
    assert [message.offset for message in second.until(4)] == [1, 2, 3, 4]


def test_a_failed_record_is_emitted_again_from_memory(
    topics: Topics, unique: str, group: str, opened: list[OpenSpout]
) -> None:
    topics.create(unique)
    topics.send(unique, [b"a", b"b"])
    reading = Reading(topics, unique, opened, group=group)
    first, _ = reading.until(2)
    topics.delete_before(unique, 0, 2)
    reading.forget()
    reading.spout.fail(first)
    reading.step()
    assert (reading.ids, reading.rows) == ([first], [("a", 0, 0)])
    reading.spout.ack(first)
    reading.spout.fail(first)  # too late: it was acked
    reading.step()
    assert reading.ids == [first]


@pytest.mark.soak
def test_a_partition_that_moves_is_forgotten_and_goes_on_behind_what_is_complete(
    topics: Topics, unique: str, group: str, opened: list[OpenSpout]
) -> None:
    topics.create(unique, 2)
    for number in range(2):
        topics.send(unique, [b"%d" % n for n in range(4)], number)
    old = Reading(topics, unique, opened, group=group)
    ids = list(old.until(8))
    for message in ids:
        if message.offset != 2:
            old.spout.ack(message)
    new = Reading(topics, unique, opened, group=group, task=1)
    drive([old, new], lambda: len(new.ids) == 2, "the new task has its partition")
    (moved,) = {message.partition for message in new.ids}
    assert new.offsets == [2, 3]
    # What the old task is now told about the moved partition changes nothing.
    old.forget()
    late = next(message for message in ids if (message.partition, message.offset) == (moved, 2))
    old.spout.fail(late)
    old.spout.ack(late)
    old.step()
    assert old.ids == []
    opened.remove(new.opened)
    new.opened.close()
    drive([old], lambda: len(old.ids) == 2, "the partition is back")
    assert old.offsets == [2, 3]
    old.spout.ack(late)  # an ack for the former assignment
    drive([old], lambda: True, "one more step")
    old.forget()
    old.spout.fail(KafkaMessage(unique, moved, 2, late.assignment))
    old.step()
    assert old.ids == []


_READER = """
import sys, time
sys.path[:0] = sys.argv[4:]
from support.spouts import OpenSpout
from txstream.spouts.kafka import Decode, KafkaSource
from txstream.plugins.tracked.kafka_queue import KafkaQueueSpout

address, topic, group = sys.argv[1:4]
spout = KafkaQueueSpout(KafkaSource(topic, address), group=group, commit_seconds=0, session_timeout_seconds=6)
opened = OpenSpout(spout)
ids = []
while True:
    ids += [message for message, _ in opened.take()]
    if len(ids) == 5:
        for message in (ids[0], ids[1], ids[3]):
            opened.spout.ack(message)
        print("read", flush=True)
        ids.append(None)
    time.sleep(0.02)
"""


@pytest.mark.soak
def test_what_a_killed_process_had_goes_to_another(
    topics: Topics, unique: str, group: str, opened: list[OpenSpout]
) -> None:
    topics.create(unique)
    topics.send(unique, [b"%d" % n for n in range(5)])
    tests = str(Path(__file__).parents[1])
    arguments = [sys.executable, "-c", _READER, topics.address, unique, group, tests]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "read\n"
        wait_until(lambda: committed(topics, unique, group=group) == 2, "its commit")
        reader.send_signal(signal.SIGKILL)
    heir = Reading(topics, unique, opened, group=group)

    def is_read() -> bool:
        heir.step()
        waits = heir.spout.waiting_for()
        assert heir.ids or waits is not None, "an open session of the dead one is no end of the topic"
        return len(heir.ids) == 3

    wait_until(is_read, "what the dead one had")
    assert heir.offsets == [2, 3, 4]
    drive([heir], lambda: heir.spout.waiting_for() is None, "it has heard that there is no more")


def test_json_is_read_as_the_source_says(
    topics: Topics, unique: str, group: str, opened: list[OpenSpout]
) -> None:
    topics.create(unique)
    topics.send(unique, [b'{"id": "a", "n": 1}', b'{"id": "b"}'], headers=[("h", b"x")])
    given = KafkaSource(unique, topics.address, decode=Decode("json", "id string, n int"))
    reading = Reading(topics, unique, opened, group=group, source=given)
    reading.until(2)
    assert reading.rows == [("a", 1), ("b", None)]
    topics.send(unique, [b'{"id": 5}'])
    with pytest.raises(DecodeError, match=f"offset 2 of topic '{unique}', partition 0, does not fit"):
        reading.until(3)


def test_a_group_may_begin_at_the_end(
    topics: Topics, unique: str, group: str, opened: list[OpenSpout]
) -> None:
    topics.create(unique)
    topics.send(unique, [b"old"])
    given = source(topics, unique, start="latest")
    reading = Reading(topics, unique, opened, group=group, source=given)

    def read_something() -> bool:
        topics.send(unique, [b"new"])  # until one comes after the group has its place
        return bool(reading.rows)

    drive([reading], read_something, "a new record")
    assert {row[0] for row in reading.rows} == {"new"}


def test_what_comes_between_two_runs_that_began_at_the_end_is_read(
    topics: Topics, unique: str, group: str, opened: list[OpenSpout]
) -> None:
    topics.create(unique, 2)
    for number in range(2):
        topics.send(unique, [b"old"], number)
    given = source(topics, unique, start="latest", client=KafkaOptions(partition_discovery_seconds=1.0))
    Reading(topics, unique, opened, group=group, source=given)
    wait_until(lambda: committed(topics, unique, 0, group) == 1, "where the group begins")
    assert committed(topics, unique, 1, group) == 1
    opened.pop().close()
    topics.add_partitions(unique, 3)
    for number in range(3):
        topics.send(unique, [b"new"] * 5, number)
    again = Reading(topics, unique, opened, group=group, source=given)
    again.until(15)
    assert {row[0] for row in again.rows} == {"new"}


def test_a_paused_spout_reads_no_more_and_stays_in_the_group(
    topics: Topics, unique: str, group: str, opened: list[OpenSpout]
) -> None:
    topics.create(unique)
    topics.send(unique, [b"a"])
    reading = Reading(topics, unique, opened, group=group)
    reading.spout.ack(reading.until(1)[0])
    reading.spout.deactivate()
    consumer = reading.spout._consumer  # type: ignore[attr-defined]
    wait_until(lambda: consumer.paused() == {TopicPartition(unique, 0)}, "it is paused")
    topics.send(unique, [b"b"])
    wait_until(lambda: committed(topics, unique, group=group) == 1, "it commits as ever")
    assert reading.opened.take() == []
    reading.spout.activate()
    assert reading.until(2)[1].offset == 1


def test_records_that_were_deleted_unread_are_lost_data_or_skipped(
    topics: Topics, unique: str, group: str, opened: list[OpenSpout]
) -> None:
    topics.create(unique)
    topics.send(unique, [b"%d" % n for n in range(4)])
    first = Reading(topics, unique, opened, group=group)
    first.spout.ack(first.until(4)[0])
    opened.pop().close()
    topics.delete_before(unique, 0, 3)
    second = Reading(topics, unique, opened, group=group)
    with pytest.raises(DataLostError, match=f"{unique}/0 at 1; records were deleted unread"):
        second.until(1)
    opened.pop().close()
    third = Reading(topics, unique, opened, group=group, source=source(topics, unique, on_data_loss="skip"))
    assert third.until(1)[0].offset == 3


def test_a_topic_that_is_not_there_is_named(topics: Topics, unique: str) -> None:
    with pytest.raises(ServiceUnavailableError, match=f"topic '{unique}' does not exist"):
        OpenSpout(KafkaQueueSpout(source(topics, unique)))
