"""Reading ahead: the next fetch is on its way while the last answer is decoded and the caller works."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from support.kafka_batches import Aborted, plain
from support.lists import each

from txstream.core.errors import DataLostError, PartitionUnavailableError, ShortReadError, TxstreamError
from txstream.spouts.kafka import KafkaRange
from txstream.spouts.kafka.fetch import RangeFetcher
from txstream.spouts.kafka.protocol import Leader, TopicInfo
from txstream.spouts.kafka.range_read import RangeRead

TIMEOUT_SECONDS = 5.0
EPOCH_AT = 12  # the checksum does not cover it


TOPIC_ID = str(UUID(int=7))


@dataclass
class Broker:
    """A client of one broker, whose partitions have batches of so many records. An answer has one batch for
    each of the first `room` partitions asked for. All but the first are cut off at the size that was asked
    for. `spoil` may change what a partition gets."""

    ends: dict[str, int]
    room: int = 99
    spoil: Callable[[str, int, bytes], bytes] = lambda _name, _offset, records: records
    per_batch: int = 2
    topic_id: str = ""
    aborted: list[Aborted] = field(default_factory=list)
    asked: list[dict[str, int]] = field(default_factory=list)
    sizes: list[dict[str, int]] = field(default_factory=list)
    timeouts: list[float] = field(default_factory=list)
    flushed: int = 0
    hung_up: list[int] = field(default_factory=list)

    def topics(self, names: set[str], _timeout: float) -> dict[str, TopicInfo]:
        return {name: TopicInfo(name, self.topic_id, {n: Leader(1, 0) for n in range(9)}) for name in names}

    def drive(self, _until: object, _deadline: float) -> None:
        """Do nothing: all requests have been answered."""

    def flush(self) -> None:
        self.flushed = len(self.asked)

    def hang_up(self, node: int) -> None:
        self.hung_up.append(node)

    def log_end(self, partition: Any, _leader: Leader, _timeout: float) -> int:
        return self.ends[partition.name]

    def send(self, _node: int, request: Any, timeout: float) -> Any:
        wanted = {
            f"{topic.topic}/{partition.partition}": partition.fetch_offset
            for topic in request.topics
            for partition in topic.partitions
        }
        sizes = {
            f"{topic.topic}/{partition.partition}": partition.partition_max_bytes
            for topic in request.topics
            for partition in topic.partitions
        }
        self.asked.append(wanted)
        self.sizes.append(sizes)
        self.timeouts.append(timeout)
        partitions = [
            SimpleNamespace(
                partition_index=int(name.rpartition("/")[2]),
                error_code=0,
                records=self.records(name, offset)[: sizes[name] if place else None]
                if place < self.room
                else b"",
                aborted_transactions=self.aborted,
                last_stable_offset=self.ends[name],
                high_watermark=self.ends[name],
            )
            for place, (name, offset) in enumerate(wanted.items())
        ]
        answer = SimpleNamespace(
            error_code=0, responses=[SimpleNamespace(topic="words", partitions=partitions)]
        )
        return SimpleNamespace(is_done=True, exception=None, value=answer)

    def records(self, name: str, offset: int) -> bytes:
        base = offset - offset % self.per_batch
        if base >= self.ends[name]:
            return b""
        values = (b"%d" % number for number in range(base, base + self.per_batch))
        return self.spoil(name, offset, plain(base, *values))


def fetcher(broker: Broker, *, skip_lost: bool = False) -> RangeFetcher:
    return RangeFetcher(
        cast(Any, broker),
        read_committed=True,
        fetch_timeout_seconds=TIMEOUT_SECONDS,
        skip_lost=skip_lost,
        max_partition_bytes=1 << 20,
        max_bytes=1 << 20,
    )


def offsets(run: Iterator[list[RangeRead]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for read in itertools.chain.from_iterable(run):
        found.setdefault(read.name, []).extend(read.take().offsets.tolist())
    return found


def test_what_follows_is_asked_for_before_the_caller_gets_the_first_rows() -> None:
    broker = Broker({"words/0": 8})
    run = fetcher(broker).run([RangeRead("words/0", KafkaRange(1, 7))])
    (first,) = next(run)
    assert first.take().offsets.tolist() == [1]
    assert broker.asked == [{"words/0": 1}, {"words/0": 2}]
    assert broker.flushed == 2
    assert offsets(run) == {"words/0": [2, 3, 4, 5, 6]}
    assert broker.asked == [{"words/0": offset} for offset in (1, 2, 4, 6)], "nothing twice, nothing beyond"


def test_the_time_that_the_caller_takes_does_not_count_against_a_fetch_ahead() -> None:
    broker = Broker({"words/0": 4})
    offsets(fetcher(broker).run([RangeRead("words/0", KafkaRange(0, 4))]))
    assert broker.timeouts[0] == TIMEOUT_SECONDS
    assert broker.timeouts[1] > 100 * TIMEOUT_SECONDS


def test_an_answer_behind_a_damaged_batch_is_dropped() -> None:
    damaged = [2]

    def spoil(_name: str, offset: int, records: bytes) -> bytes:
        if offset in damaged:
            damaged.remove(offset)
            return records[:-3] + b"!!!"
        return records

    broker = Broker({"words/0": 8}, spoil=spoil)
    assert offsets(fetcher(broker).run([RangeRead("words/0", KafkaRange(0, 8))])) == {
        "words/0": list(range(8))
    }
    assert broker.asked.count({"words/0": 4}) == 2, "once ahead, in vain, and once when its turn had come"


def test_a_partition_that_got_no_room_comes_first_in_the_fetch_ahead() -> None:
    broker = Broker({"words/0": 4, "words/1": 4}, room=1)
    wanted = [RangeRead(name, KafkaRange(0, 4)) for name in broker.ends]
    assert offsets(fetcher(broker).run(wanted)) == {"words/0": [0, 1, 2, 3], "words/1": [0, 1, 2, 3]}
    assert list(broker.asked[1].items()) == [("words/1", 0), ("words/0", 2)]


def test_a_fetch_asks_for_what_the_batches_of_its_topic_take() -> None:
    large = plain(4, b"x" * 50_000, b"y")

    def swell(name: str, offset: int, records: bytes) -> bytes:
        return large if offset == 4 and name != "words/0" else records

    broker = Broker({"words/0": 6, "words/1": 6, "words/2": 6}, spoil=swell)
    wanted = [RangeRead(name, KafkaRange(0, 6)) for name in broker.ends]
    assert offsets(fetcher(broker).run(wanted)) == {name: [0, 1, 2, 3, 4, 5] for name in broker.ends}
    assert max(broker.sizes[2].values()) < 1000, "after two answers it is known how small they are"
    assert broker.asked[3:] == [{"words/1": 4, "words/2": 4}, {"words/2": 4}], "both were cut off, then one"
    assert broker.sizes[4]["words/2"] >= len(large)


@each(("end", "last"), [(8, 6), (7, 6), (2, 0), (1, 0)])
def test_a_range_ends_in_the_leader_epoch_that_was_planned(end: int, last: int) -> None:
    """Else the log was cut back between plan and read. Epochs before the last record's do not matter."""

    def written(_name: str, offset: int, records: bytes) -> bytes:
        epoch = 4 if offset >= last else 3
        return records[:EPOCH_AT] + epoch.to_bytes(4) + records[EPOCH_AT + 4 :]

    def read(planned: int | None) -> list[int]:
        run = fetcher(Broker({"words/0": 8}, spoil=written))
        return offsets(run.run([RangeRead("words/0", KafkaRange(0, end, leader_epoch=planned))]))["words/0"]

    assert read(4) == read(None) == list(range(end))
    for planned in (3, 5):
        with pytest.raises(
            DataLostError,
            match=f"offset {end - 1} was planned in leader epoch {planned} and is now one of epoch 4",
        ):
            read(planned)


def test_a_record_batch_without_a_leader_epoch_is_not_compared() -> None:
    def without(_name: str, _offset: int, records: bytes) -> bytes:
        return records[:EPOCH_AT] + b"\xff" * 4 + records[EPOCH_AT + 4 :]

    run = fetcher(Broker({"words/0": 4}, spoil=without))
    found = offsets(run.run([RangeRead("words/0", KafkaRange(0, 4, leader_epoch=2))]))
    assert found == {"words/0": [0, 1, 2, 3]}


def test_where_compaction_has_left_no_last_record_there_is_no_epoch_to_compare() -> None:
    beyond = plain(9, b"x")
    broker = Broker({"words/0": 9}, spoil=lambda _, offset, records: records if offset < 6 else beyond)
    found = offsets(fetcher(broker).run([RangeRead("words/0", KafkaRange(0, 8, leader_epoch=7))]))
    assert found == {"words/0": [0, 1, 2, 3, 4, 5]}


def test_a_broker_that_falls_silent_ends_the_batch_in_time_and_loses_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = Broker({"words/0": 8})
    run = fetcher(broker).run([RangeRead("words/0", KafkaRange(0, 8))])
    send, silence = broker.send, SimpleNamespace(is_done=False)
    monkeypatch.setattr(broker, "send", lambda *given: silence if broker.asked else send(*given))
    next(run)
    clock = iter(range(0, 1000, 3))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    with pytest.raises(PartitionUnavailableError, match="gave nothing for 5 s at offset 2"):
        next(run)
    assert broker.hung_up == [1]


@pytest.mark.parametrize(("skip_lost", "error"), [(False, DataLostError), (True, ShortReadError)])
def test_a_range_that_is_gone_ends_the_run_unless_the_next_plan_may_go_on_behind_it(
    skip_lost: bool, error: type[TxstreamError]
) -> None:
    broker = Broker({"words/0": 4})
    run = fetcher(broker, skip_lost=skip_lost).run([RangeRead("words/0", KafkaRange(0, 8))])
    with pytest.raises(error, match="position 4: the log ends at offset 4") as raised:
        offsets(run)
    assert type(raised.value) is error


# --- the next range, where the last answer went beyond the one that it was asked for ---------------------


def in_epoch(epoch: int) -> Callable[[str, int, bytes], bytes]:
    written = epoch.to_bytes(4, signed=True)
    return lambda _name, _offset, records: records[:EPOCH_AT] + written + records[EPOCH_AT + 4 :]


def planned(start: int, end: int, epoch: int | None = 3, topic_id: str = TOPIC_ID) -> RangeRead:
    return RangeRead("words/0", KafkaRange(start, end, topic_id, leader_epoch=epoch))


def test_a_range_in_the_middle_of_a_batch_is_not_fetched_again() -> None:
    broker = Broker({"words/0": 12}, per_batch=6, topic_id=TOPIC_ID, spoil=in_epoch(3))
    reader = fetcher(broker)
    for start, end in ((0, 2), (2, 3), (3, 5), (5, 6), (6, 8)):
        assert offsets(reader.run([planned(start, end)])) == {"words/0": list(range(start, end))}
    assert broker.asked == [{"words/0": 0}, {"words/0": 6}]


@each(
    ("again", "why"),
    [
        (planned(1, 4), "it begins earlier, as a replay does"),
        (planned(2, 8), "it goes on further"),
        (planned(2, 4, epoch=None), "nobody knows the epoch in which it was planned"),
        (planned(2, 4, topic_id=""), "nobody knows of which topic it was planned"),
    ],
)
def test_any_other_range_is_fetched(again: RangeRead, why: str) -> None:
    broker = Broker({"words/0": 12}, per_batch=6, topic_id=TOPIC_ID, spoil=in_epoch(3))
    reader = fetcher(broker)
    offsets(reader.run([planned(0, 2)]))
    assert offsets(reader.run([again])) == {"words/0": list(range(again.range.start, again.range.end))}
    assert {"words/0": again.range.start} in broker.asked[1:], why


@pytest.mark.parametrize(
    ("written", "epoch", "topic_id"), [(-1, None, TOPIC_ID), (3, 3, "")], ids=["no epochs", "no topic ids"]
)
def test_what_an_old_broker_does_not_tell_cannot_be_compared(
    written: int, epoch: int | None, topic_id: str
) -> None:
    broker = Broker({"words/0": 12}, per_batch=6, topic_id=topic_id, spoil=in_epoch(written))
    reader = fetcher(broker)
    for start, end in ((0, 2), (2, 4)):
        assert offsets(reader.run([planned(start, end, epoch, topic_id)])) == {"words/0": [start, start + 1]}
    assert broker.asked == [{"words/0": 0}, {"words/0": 2}]


def test_a_log_that_was_cut_back_meanwhile_is_fetched() -> None:
    broker = Broker({"words/0": 12}, per_batch=6, topic_id=TOPIC_ID, spoil=in_epoch(3))
    reader = fetcher(broker)
    offsets(reader.run([planned(0, 2)]))
    broker.spoil = in_epoch(4)
    assert offsets(reader.run([planned(2, 4, epoch=4)])) == {"words/0": [2, 3]}
    assert broker.asked == [{"words/0": 0}, {"words/0": 2}]


def test_what_was_kept_for_long_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker({"words/0": 12}, per_batch=6, topic_id=TOPIC_ID, spoil=in_epoch(3))
    reader = fetcher(broker)
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    offsets(reader.run([planned(0, 2)]))
    now += 4
    offsets(reader.run([planned(2, 3)]))  # does not make it newer
    now += 2
    assert offsets(reader.run([planned(3, 4)])) == {"words/0": [3]}
    assert broker.asked == [{"words/0": 0}, {"words/0": 3}]


def test_what_needs_to_know_of_aborted_transactions_is_fetched() -> None:
    aborted = [Aborted(producer_id=9, first_offset=0)]
    broker = Broker({"words/0": 12}, per_batch=6, topic_id=TOPIC_ID, spoil=in_epoch(3), aborted=aborted)
    reader = fetcher(broker)
    offsets(reader.run([planned(0, 2)]))
    assert offsets(reader.run([planned(2, 4)])) == {"words/0": [2, 3]}
    assert broker.asked == [{"words/0": 0}, {"words/0": 2}]


def test_no_more_is_kept_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker({"words/0": 12, "words/1": 12}, per_batch=6, topic_id=TOPIC_ID, spoil=in_epoch(3))
    size = len(broker.records("words/0", 0))
    monkeypatch.setattr("txstream.spouts.kafka.kept_answers._MOST_BYTES", size + 1)
    reader = fetcher(broker)

    def both(start: int, end: int) -> list[RangeRead]:
        wanted = KafkaRange(start, end, TOPIC_ID, leader_epoch=3)
        return [RangeRead(name, wanted) for name in broker.ends]

    offsets(reader.run(both(0, 2)))
    assert offsets(reader.run(both(2, 4))) == {"words/0": [2, 3], "words/1": [2, 3]}
    assert broker.asked == [{"words/0": 0, "words/1": 0}, {"words/0": 2}]
