"""Reading planned ranges from a real broker gives exactly what was planned, or an error."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from support.kafka_topics import Topics, attempt, wait_until

from txstream.api.spouts import SpoutContext
from txstream.core.errors import DataLostError, DecodeError, ShortReadError
from txstream.plugins.local.embedded import Services
from txstream.spouts.kafka import Decode, KafkaOptions, KafkaRange, KafkaSource, client as kafka_client
from txstream.spouts.kafka.emitter import KafkaPartitionEmitter
from txstream.spouts.kafka.fetch import RangeFetcher
from txstream.spouts.kafka.range_read import RangeRead

ATTEMPT = attempt()


@pytest.fixture(scope="module")
def topics(services: Services) -> Iterator[Topics]:
    with Topics(services.kafka) as opened:
        yield opened


class Reading:
    """An emitter as a worker process keeps it, and its rows as Python values."""

    def __init__(self, source: KafkaSource, fetch_timeout_seconds: float = 10.0) -> None:
        context = SpoutContext("reading", "lines", {}, fetch_timeout_seconds)
        self.emitter: KafkaPartitionEmitter = source.emitter(context)

    def table(self, partition: str, start: int, end: int, topic_id: str = "") -> pa.Table:
        batches = self.emitter.emit(ATTEMPT, partition, KafkaRange(start, end, topic_id))
        return pa.Table.from_batches(batches, self.emitter._source.output)

    def values(self, partition: str, start: int, end: int, topic_id: str = "") -> list[Any]:
        return list(self.table(partition, start, end, topic_id).column("value").to_pylist())

    def offsets(self, partition: str, start: int, end: int) -> list[int]:
        return list(self.table(partition, start, end).column("offset").to_pylist())


@pytest.fixture
def open_reading(topics: Topics) -> Iterator[Any]:
    opened: list[Reading] = []

    def start(*names: str, fetch_timeout_seconds: float = 10.0, **options: Any) -> Reading:
        opened.append(Reading(KafkaSource(names, topics.address, **options), fetch_timeout_seconds))
        return opened[-1]

    yield start
    for reading in opened:
        reading.emitter.close()


def topic_id(topics: Topics, name: str) -> str:
    return str(topics.admin.describe_topics([name])[0]["topic_id"])


def numbered(start: int, end: int) -> list[str]:
    return [f"v{number}" for number in range(start, end)]


def fill(topics: Topics, name: str, records: int, partition: int = 0) -> None:
    topics.send(name, [value.encode() for value in numbered(0, records)], partition)


def test_what_was_read_is_at_hand_as_it_is_stored_up_to_a_bound(
    topics: Topics, unique: str, open_reading: Any
) -> None:
    topics.create(unique, partitions=2)
    values = [b'{"n": %d}' % number for number in range(100)]
    values[7] = b"\xff no JSON"
    for partition in (0, 1):
        topics.send(unique, values, partition)
    decode = Decode("json", "n bigint")
    source, emitter = KafkaSource(unique, topics.address), open_reading(unique, decode=decode).emitter
    first, second = (f"{unique}/{partition}" for partition in (0, 1))
    ranges = {name: KafkaRange(0, 100) for name in (first, second)}
    places = [(second, 7), (first, 99), (first, 7)]

    def read(most_bytes: int) -> pa.Table | None:
        found: list[tuple[str, int]] = []
        emitter.keep_stored(most_bytes)
        for _ in emitter.emit_fitting(ATTEMPT, ranges, lambda name, at, error: found.append((name, at))):
            pass
        assert sorted(found) == [(first, 7), (second, 7)]
        return emitter.take_stored(places)

    stored = Reading(source.undecoded())
    expected = [stored.table(name, at, at + 1) for name, at in places]
    stored.emitter.close()
    assert read(1_000_000) == pa.concat_tables(expected)
    assert emitter.take_stored(places) is None, "it was forgotten"
    assert read(0) is None
    assert read(10) is None


def test_a_large_answer_is_received_in_large_pieces(
    topics: Topics, unique: str, open_reading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[int] = []
    receive = kafka_client._Socket.recv

    def told(self: Any, *arguments: Any) -> bytes:
        data = receive(self, *arguments)
        received.append(len(data))
        return data

    monkeypatch.setattr(kafka_client._Socket, "recv", told)
    topics.create(unique)
    values = [str(number) * 1000 for number in range(100)]
    topics.send(unique, [value.encode() for value in values])
    assert open_reading(unique).values(f"{unique}/0", 0, 100) == values
    assert max(received) > 4096


def test_all_columns(topics: Topics, unique: str, open_reading: Any) -> None:
    topics.create(unique, 2)
    topics.send(
        unique, [b"line \xc3\xa9"], 1, key=b"\xff", headers=[("a", b"\x00"), ("a", b"")], timestamp_ms=1_234
    )
    topics.send(unique, [None], 1, key=b"gone", timestamp_ms=5_000)
    topics.send(unique, [b"no key"], 1, timestamp_ms=0)
    table = open_reading(unique).table(f"{unique}/1", 0, 3)
    assert table.schema.equals(KafkaSource(unique).output)
    assert table.to_pylist() == [
        {
            "key": b"\xff",
            "value": "line é",
            "topic": unique,
            "partition": 1,
            "offset": 0,
            "timestamp": datetime(1970, 1, 1, 0, 0, 1, 234_000, tzinfo=UTC),
            "timestampType": 0,
            "headers": [{"key": "a", "value": b"\x00"}, {"key": "a", "value": b""}],
        },
        {
            "key": b"gone",
            "value": None,
            "topic": unique,
            "partition": 1,
            "offset": 1,
            "timestamp": datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC),
            "timestampType": 0,
            "headers": None,
        },
        {
            "key": None,
            "value": "no key",
            "topic": unique,
            "partition": 1,
            "offset": 2,
            "timestamp": datetime(1970, 1, 1, tzinfo=UTC),
            "timestampType": 0,
            "headers": None,
        },
    ]


def test_one_emitter_reads_any_ranges_in_any_order(topics: Topics, unique: str, open_reading: Any) -> None:
    """A consumer that seeks could get this wrong: data prefetched for another range, pauses that stay."""
    topics.create(unique, 2)
    fill(topics, unique, 1000, 0)
    topics.send(unique, [b"w%d" % number for number in range(1000)], 1)
    reading = open_reading(unique)
    ranges = [(0, 500), (500, 1000), (0, 10), (999, 1000), (0, 10), (400, 600), (0, 1000), (600, 400 + 201)]
    for start, end in ranges:
        assert reading.values(f"{unique}/0", start, end) == numbered(start, end)
        assert reading.values(f"{unique}/1", start, end) == [f"w{n}" for n in range(start, end)]
    assert reading.values(f"{unique}/0", 7, 7) == []


def test_a_read_that_is_given_up_does_not_disturb_the_next(
    topics: Topics, unique: str, open_reading: Any
) -> None:
    topics.create(unique, 2)
    fill(topics, unique, 3000, 0)
    fill(topics, unique, 3000, 1)
    reading = open_reading(unique, client=KafkaOptions({"max_partition_fetch_bytes": 65536}))
    both = {f"{unique}/0": KafkaRange(0, 3000), f"{unique}/1": KafkaRange(0, 3000)}
    given_up = reading.emitter.emit_many(ATTEMPT, both)
    next(given_up)
    assert reading.values(f"{unique}/0", 10, 20) == numbered(10, 20)
    given_up.close()
    first = reading.emitter.emit_many(ATTEMPT, both)
    second = reading.emitter.emit_many(ATTEMPT, dict(reversed(both.items())))
    seen: list[list[Any]] = [[], []]
    for turn in range(4):
        name, batch = next((first, second)[turn % 2])
        seen[turn % 2].append((name, batch.num_rows))
    assert sorted(seen[0]) == sorted(seen[1]) == [(name, 3000) for name in sorted(both)]


def test_several_partitions_are_read_together_in_order(
    topics: Topics, unique: str, open_reading: Any
) -> None:
    other = topics.create(f"{unique}-other")
    topics.create(unique, 3)
    for number in range(3):
        fill(topics, unique, 4000, number)
    fill(topics, other, 10)
    metas = {f"{unique}/{number}": KafkaRange(number, 4000 - number) for number in range(3)}
    metas |= {f"{other}/0": KafkaRange(0, 10), f"{unique}/nothing": KafkaRange(3, 3)}
    # Fetches are small, so that every range takes many and the ranges take turns.
    reading = open_reading(unique, other, client=KafkaOptions({"fetch_max_bytes": 20_000}))
    got: dict[str, list[int]] = {}
    for name, batch in reading.emitter.emit_many(ATTEMPT, metas):
        got.setdefault(name, []).extend(batch.column("offset").to_pylist())
        assert batch.column("topic").unique().to_pylist() == [name.rpartition("/")[0]]
    assert got == {
        name: list(range(meta.start, meta.end)) for name, meta in metas.items() if not meta.is_empty
    }


def test_transactions(topics: Topics, unique: str, open_reading: Any) -> None:
    topics.create(unique)
    producer = topics.transactional_producer(unique)
    topics.transaction(producer, unique, [b"a", b"b"], commit=True)  # 0, 1; marker 2
    topics.transaction(producer, unique, [b"x", b"y"], commit=False)  # 3, 4; marker 5
    topics.send(unique, [b"c"])  # 6
    topics.transaction(producer, unique, [b"d"], commit=True)  # 7; marker 8
    producer.close()
    name = f"{unique}/0"
    committed = open_reading(unique)
    assert committed.table(name, 0, 9).column("value").to_pylist() == ["a", "b", "c", "d"]
    assert committed.offsets(name, 0, 9) == [0, 1, 6, 7]
    # A range may end in a marker, begin in an aborted transaction, or hold nothing else.
    assert committed.values(name, 0, 3) == ["a", "b"]
    assert committed.values(name, 0, 2) == ["a", "b"]
    assert committed.values(name, 1, 4) == ["b"]
    assert committed.values(name, 4, 7) == ["c"]
    for start, end in ((2, 3), (3, 6), (4, 5), (5, 6), (8, 9)):
        assert committed.values(name, start, end) == []
    everything = open_reading(unique, isolation_level="read_uncommitted")
    assert everything.values(name, 0, 9) == ["a", "b", "x", "y", "c", "d"]
    assert everything.values(name, 3, 6) == ["x", "y"]


@pytest.mark.parametrize("isolation_level", ["read_committed", "read_uncommitted"])
def test_ranges_that_follow_each_other_within_a_batch(
    topics: Topics, unique: str, open_reading: Any, isolation_level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one answer brought of the next ranges gives the same rows as a fetch of each."""
    topics.create(unique, configs={"compression.type": "zstd"})
    producer = topics.transactional_producer(unique)
    topics.transaction(producer, unique, [b"c%d" % number for number in range(40)], commit=True)
    topics.transaction(producer, unique, [b"a%d" % number for number in range(40)], commit=False)
    topics.transaction(producer, unique, [b"d%d" % number for number in range(40)], commit=True)
    producer.close()
    asked: set[int] = set()
    fetch = RangeFetcher._fetch_request

    def told(self: RangeFetcher, reads: list[RangeRead]) -> Any:
        asked.update(read.ahead for read in reads)
        return fetch(self, reads)

    monkeypatch.setattr(RangeFetcher, "_fetch_request", told)
    reading, known = open_reading(unique, isolation_level=isolation_level), topic_id(topics, unique)
    rows: list[Any] = []
    ranges = [(start, min(start + 7, 123)) for start in range(0, 123, 7)]
    for start, end in ranges:
        wanted = KafkaRange(start, end, known, leader_epoch=0)
        for batch in reading.emitter.emit(ATTEMPT, f"{unique}/0", wanted):
            rows += zip(batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True)
    aborted = [(41 + number, f"a{number}") for number in range(40)]
    assert rows == sorted(
        [(number, f"c{number}") for number in range(40)]
        + (aborted if isolation_level == "read_uncommitted" else [])
        + [(82 + number, f"d{number}") for number in range(40)]
    )
    assert asked.isdisjoint({91, 98, 105, 112}), "behind the aborted transaction, one answer had all of them"


def test_a_compaction_gap_is_not_a_short_read(topics: Topics, unique: str, open_reading: Any) -> None:
    configs = {
        "cleanup.policy": "compact",
        "segment.ms": "50",
        "min.cleanable.dirty.ratio": "0.01",
        "max.compaction.lag.ms": "100",
    }
    topics.create(unique, configs=configs)
    topics.send(unique, [b"old %d" % number for number in range(50)], key=b"same")
    topics.send(unique, [b"kept"], key=b"other")
    reading: Reading = open_reading(unique)
    name = f"{unique}/0"

    def compacted() -> bool:
        topics.send(unique, [b"roll"], key=b"same")  # only a new record makes a segment begin
        return reading.offsets(name, 0, 51) == [50]

    wait_until(compacted, "the log is compacted")
    assert reading.values(name, 0, 51) == ["kept"]
    assert reading.values(name, 10, 40) == []


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_by_the_broker(topics: Topics, unique: str, open_reading: Any, codec: str) -> None:
    topics.create(unique, configs={"compression.type": codec})
    values = [f"{number} {'lorem ipsum ' * 40}" for number in range(1000)]
    topics.send(unique, [value.encode() for value in values])
    reading = open_reading(unique)
    assert reading.values(f"{unique}/0", 0, 1000) == values
    assert reading.values(f"{unique}/0", 321, 654) == values[321:654]


def test_a_record_larger_than_a_fetch(topics: Topics, unique: str, open_reading: Any) -> None:
    topics.create(unique, 2)
    for partition in (0, 1):
        topics.send(unique, [b"a", b"b" * 600_000, b"c"], partition)
    reading = open_reading(
        unique, client=KafkaOptions({"max_partition_fetch_bytes": 1000, "fetch_max_bytes": 1000})
    )
    metas = {f"{unique}/{number}": KafkaRange(0, 3) for number in (0, 1)}
    sizes = [
        len(value)
        for _, batch in reading.emitter.emit_many(ATTEMPT, metas)
        for value in batch.column("value").to_pylist()
    ]
    assert sorted(sizes) == [1, 1, 1, 1, 600_000, 600_000]


def test_what_is_not_utf8_is_named(topics: Topics, unique: str, open_reading: Any) -> None:
    topics.create(unique)
    topics.send(unique, [b"fine", b"caf\xe9 au lait"], key=b"fine")
    topics.send(unique, [b"fine"], key=b"\xff")
    name = f"{unique}/0"
    strict = open_reading(unique, decode=Decode(key_format="string"))
    assert strict.values(name, 0, 1) == ["fine"]
    with pytest.raises(
        DecodeError,
        match=f"the value of the record at offset 1 of topic '{unique}', partition 0, .*byte at byte 3",
    ):
        strict.values(name, 0, 2)
    with pytest.raises(DecodeError, match="the key of the record at offset 2"):
        strict.values(name, 2, 3)
    replacing = open_reading(unique, decode=Decode(key_format="string", errors="replace")).table(name, 0, 3)
    assert replacing.column("value").to_pylist() == ["fine", "caf\ufffd au lait", "fine"]
    assert replacing.column("key").to_pylist() == ["fine", "fine", "\ufffd"]
    raw = open_reading(unique, decode=Decode("binary")).table(name, 0, 3)
    assert raw.column("value").to_pylist() == [b"fine", b"caf\xe9 au lait", b"fine"]
    assert raw.column("key").to_pylist() == [b"fine", b"fine", b"\xff"]


def test_a_range_that_retention_took(topics: Topics, unique: str, open_reading: Any) -> None:
    topics.create(unique)
    fill(topics, unique, 100)
    topics.delete_before(unique, 0, 60)
    name = f"{unique}/0"
    reading = open_reading(unique)
    with pytest.raises(DataLostError, match=f"{name}, planned offsets 50 to 70 .* begins at offset 60"):
        reading.values(name, 50, 70)
    assert reading.values(name, 60, 100) == numbered(60, 100)
    with pytest.raises(ShortReadError, match="begins at offset 60"):
        open_reading(unique, on_data_loss="skip").values(name, 50, 70)


def test_a_plan_beyond_the_logs_end_is_not_waited_for(topics: Topics, unique: str, open_reading: Any) -> None:
    topics.create(unique)
    fill(topics, unique, 10)
    reading = open_reading(unique, fetch_timeout_seconds=30)
    began = time.monotonic()
    for start in (5, 10, 11):
        with pytest.raises(DataLostError, match="the log ends at offset 10"):
            reading.values(f"{unique}/0", start, 20)
    assert time.monotonic() - began < 30, "as long as one of them may wait"


def test_a_topic_created_again_is_another_one(topics: Topics, unique: str, open_reading: Any) -> None:
    topics.create(unique)
    fill(topics, unique, 10)
    planned = topic_id(topics, unique)
    reading = open_reading(unique)
    assert reading.values(f"{unique}/0", 0, 5, planned) == numbered(0, 5)
    topics.delete(unique)
    with pytest.raises(DataLostError, match="no longer exists"):
        reading.values(f"{unique}/0", 5, 10, planned)
    topics.create(unique)
    fill(topics, unique, 10)
    with pytest.raises(DataLostError, match="deleted and created again"):
        reading.values(f"{unique}/0", 5, 10, planned)
    assert reading.values(f"{unique}/0", 5, 10, topic_id(topics, unique)) == numbered(5, 10)


def test_a_frozen_first_address_leaves_time_for_the_others(topics: Topics, unique: str) -> None:
    topics.create(unique)
    topics.send(unique, [b"x"])
    with socket.create_server(("127.0.0.1", 0)) as silent:
        addresses = f"127.0.0.1:{silent.getsockname()[1]},{topics.address}"
        for _ in range(3):  # addresses are tried in random order
            context = SpoutContext("reading", "lines", {}, connect_timeout_seconds=4.0)
            emitter = KafkaSource(unique, addresses).emitter(context)
            try:
                rows = sum(batch.num_rows for batch in emitter.emit(ATTEMPT, f"{unique}/0", KafkaRange(0, 1)))
            finally:
                emitter.close()
            assert rows == 1
