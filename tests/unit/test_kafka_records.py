"""Decoding record batches, against batches that kafka-python encoded."""

from __future__ import annotations

import contextlib
import struct
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, strategies as st
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from support.kafka_batches import (
    CONTROL,
    GZIP,
    HEADER_BYTES,
    LOG_APPEND,
    LZ4,
    NONE,
    SNAPPY,
    TRANSACTIONAL,
    ZSTD,
    Aborted,
    Headers,
    Record,
    batch,
    decode,
    marker,
    plain,
    sealed,
)
from support.lists import each

from txstream.core.errors import DecodeError
from txstream.spouts.kafka import KafkaRange
from txstream.spouts.kafka.fetch import RangeFetcher
from txstream.spouts.kafka.protocol import Leader, TopicInfo
from txstream.spouts.kafka.range_read import RangeRead
from txstream.spouts.kafka.record_batches import CorruptBatchError
from txstream.spouts.kafka.record_blocks import RecordColumns


def rows(columns: RecordColumns) -> list[tuple[int, bytes | None]]:
    assert (
        len(columns.keys)
        == len(columns.values)
        == len(columns.timestamps)
        == len(columns.timestamp_types)
        == len(columns)
    )
    return list(zip(columns.offsets.tolist(), columns.values.to_pylist(), strict=True))


def read(data: bytes, start: int, end: int, **options: Any) -> tuple[RecordColumns, int]:
    columns = RecordColumns()
    position, _ = decode(data, start, end, columns, **options)
    return columns, position


def test_several_batches_and_the_position_behind_them() -> None:
    columns, position = read(plain(0, b"a", b"b") + plain(2, b"c"), 0, 9)
    assert rows(columns) == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert columns.timestamps.tolist() == [1000, 1001, 1000]
    assert list(columns.timestamp_types) == [0, 0, 0]
    assert position == 3


@each(("start", "end"), [(0, 6), (1, 5), (2, 4), (3, 3 + 1), (4, 6), (0, 2)])
def test_only_the_planned_offsets_come_out(start: int, end: int) -> None:
    header: Headers = [("h", b"x")]
    data = batch(0, [(i, 9, b"k", b"%d" % i, header if i % 2 else []) for i in range(4)]) + plain(
        4, b"4", b"5"
    )
    columns, position = read(data, start, end)
    assert rows(columns) == [(i, b"%d" % i) for i in range(start, end)]
    assert {columns.offsets[row] for row in columns.headers} == {i for i in range(start, end) if i in (1, 3)}
    assert position >= end


def test_compaction_gaps_move_the_position_on() -> None:
    data = batch(10, [(2, 9, None, b"x", []), (5, 9, None, b"y", [])], last_delta=9)
    columns, position = read(data, 10, 20)
    assert rows(columns) == [(12, b"x"), (15, b"y")]
    assert position == 20
    columns, position = read(data, 13, 15)
    assert (rows(columns), position >= 15) == ([], True)
    empty = batch(20, [], last_delta=4)
    assert read(empty, 20, 30)[1] == 25


def test_a_batch_that_is_cut_off_waits_for_the_next_fetch() -> None:
    whole, cut = plain(0, b"a"), plain(1, b"b")
    for length in (1, 11, 12, 40, len(cut) - 1):
        columns, position = read(whole + cut[:length], 0, 2)
        assert (rows(columns), position) == ([(0, b"a")], 1)


def test_nulls_headers_and_sizes_of_every_length() -> None:
    big = b"v" * 300_000
    records: list[Record] = [
        (0, 5, None, None, []),
        (1, 5 + (1 << 40), b"", b"", [("", None)]),
        (2, 4, b"k" * 63, b"v" * 64, [("name", b"value"), ("name", b"")]),
        (3, 5, b"k" * 64, b"v" * 8191, []),
        (200, 5, b"k" * 9000, b"v" * 8192, []),
        (100_000, 5, b"k", big, []),
    ]
    columns, position = read(batch(7, records), 0, 1 << 40)
    assert columns.offsets.tolist() == [7, 8, 9, 10, 207, 100_007]
    assert columns.keys.to_pylist() == [r[2] for r in records]
    assert columns.values.to_pylist() == [r[3] for r in records]
    assert columns.timestamps.tolist() == [r[1] for r in records]
    assert columns.headers == {1: [(b"", None)], 2: [(b"name", b"value"), (b"name", b"")]}
    assert position == 100_008


def test_the_brokers_time_replaces_the_producers() -> None:
    columns, _ = read(plain(0, b"a", b"b", attributes=LOG_APPEND), 0, 2)
    assert columns.timestamps.tolist() == [1001, 1001]
    assert list(columns.timestamp_types) == [1, 1]


def test_aborted_transactions_are_read_past_and_committed_ones_kept() -> None:
    data = (
        plain(0, b"a", attributes=TRANSACTIONAL, producer=7)
        + plain(1, b"b", attributes=TRANSACTIONAL, producer=8)
        + marker(2, 7, commit=False)
        + plain(3, b"c", attributes=TRANSACTIONAL, producer=7)
        + marker(4, 8, commit=True)
        + marker(5, 7, commit=True)
        + plain(6, b"d")
    )
    aborted = [Aborted(7, 0)]
    columns, position = read(data, 0, 7, aborted=aborted)
    assert (rows(columns), position) == ([(1, b"b"), (3, b"c"), (6, b"d")], 7)
    columns, position = read(data, 0, 7, aborted=aborted, read_committed=False)
    assert (rows(columns), position) == ([(0, b"a"), (1, b"b"), (3, b"c"), (6, b"d")], 7)
    assert read(data, 0, 5, aborted=aborted)[1] == 5
    assert rows(read(data, 0, 1, aborted=aborted)[0]) == []


def test_a_producer_that_aborts_twice() -> None:
    data = (
        plain(0, b"a", attributes=TRANSACTIONAL, producer=7)
        + marker(1, 7, commit=False)
        + plain(2, b"b", attributes=TRANSACTIONAL, producer=7)
        + marker(3, 7, commit=True)
        + plain(4, b"c", attributes=TRANSACTIONAL, producer=7)
        + marker(5, 7, commit=False)
    )
    columns, position = read(data, 0, 6, aborted=[Aborted(7, 4), Aborted(7, 0)])
    assert (rows(columns), position) == ([(2, b"b")], 6)


def test_a_marker_that_compaction_has_removed() -> None:
    """Its batch is kept for a while without a record."""
    ends = [batch(at, [], attributes=CONTROL | TRANSACTIONAL, last_delta=0, producer=7) for at in (1, 3)]
    rest = [plain(at, b"%d" % at, attributes=TRANSACTIONAL, producer=7) for at in (0, 2)]
    columns, position = read(rest[0] + ends[0] + rest[1] + ends[1], 0, 4, aborted=[Aborted(7, 2)])
    assert (rows(columns), position) == ([(0, b"0")], 4)


def test_gzip() -> None:
    columns, _ = read(plain(0, *[b"%d" % i for i in range(500)], codec=GZIP), 100, 400)
    assert rows(columns) == [(i, b"%d" % i) for i in range(100, 400)]


def test_a_flipped_bit_is_noticed_and_leaves_no_rows() -> None:
    first, second = plain(0, b"a"), bytearray(plain(1, b"bbbb"))
    second[-3] ^= 1
    columns = RecordColumns()
    with pytest.raises(CorruptBatchError, match="checksum") as caught:
        decode(first + bytes(second), 0, 2, columns)
    assert caught.value.offset == 1
    assert rows(columns) == []


@each(
    ("at", "form", "value", "reason"),
    [
        (16, ">b", 3, "format 3"),
        (57, ">i", 9, "cannot be read"),
        (57, ">i", 1, "unconsumed bytes"),
        (21, ">h", 5, "compression 5"),
        (21, ">h", 1, "decompressed"),
        (21, ">h", 2, "decompressed"),
        (21, ">h", 3, "decompressed"),
        (21, ">h", 4, "decompressed"),
    ],
)
def test_a_batch_with_a_right_checksum_and_wrong_contents(
    at: int, form: str, value: int, reason: str
) -> None:
    data = bytearray(plain(0, b"a", b"b"))
    struct.pack_into(form, data, at, value)
    with pytest.raises(CorruptBatchError, match=reason):
        read(sealed(data), 0, 2)


@each("codec", [GZIP, SNAPPY, LZ4, ZSTD])
@each("at", [0, 1, 3, 11, -9])
def test_a_compressed_batch_with_a_right_checksum_and_a_wrong_byte(codec: int, at: int) -> None:
    """Whatever the library raises, the error is CorruptBatchError. A byte that nothing checks may pass."""
    data = bytearray(plain(0, *[b"%d" % (i % 7) for i in range(100)], codec=codec))
    data[HEADER_BYTES + at if at >= 0 else at] ^= 0xFF
    with contextlib.suppress(CorruptBatchError):
        read(sealed(data), 0, 100)


def test_snappy_that_claims_to_unpack_to_too_much() -> None:
    data = bytearray(plain(0, b"a", codec=SNAPPY))
    data[HEADER_BYTES : HEADER_BYTES + 5] = b"\xff\xff\xff\xff\x7f"
    with pytest.raises(CorruptBatchError, match="claims to have 34359738367"):
        read(sealed(data), 0, 1)


@dataclass
class OneAnswer:
    """A client whose broker answers each fetch of words/0 with the same records."""

    records: bytes

    def topics(self, names: set[str], _timeout: float) -> dict[str, TopicInfo]:
        return {name: TopicInfo(name, "", {0: Leader(1, 0)}) for name in names}

    def drive(self, _until: object, _deadline: float) -> None:
        """Do nothing: all requests have been answered."""

    def flush(self) -> None:
        """Do nothing: all requests have left."""

    def send(self, _node: int, _request: object, _timeout: float) -> Any:
        data = SimpleNamespace(
            partition_index=0, error_code=0, records=self.records, aborted_transactions=None
        )
        answer = SimpleNamespace(error_code=0, responses=[SimpleNamespace(topic="words", partitions=[data])])
        return SimpleNamespace(is_done=True, exception=None, value=answer)


def legacy(magic: int, codec: int) -> bytes:
    builder = LegacyRecordBatchBuilder(magic=magic, compression_type=codec, batch_size=1 << 20)
    builder.append(0, timestamp=77, key=b"k", value=b"a")
    data = bytearray(builder.build())
    struct.pack_into(">q", data, 0, 5)
    return bytes(data)


@each(("magic", "codec"), [(0, NONE), (1, NONE), (1, GZIP)])
@each("skip_lost", [False, True])
def test_records_from_before_kafka_0_11_are_refused_at_once(magic: int, codec: int, skip_lost: bool) -> None:
    """They are not lost, so `on_data_loss="skip"` does not skip them."""
    fetcher = RangeFetcher(
        cast(Any, OneAnswer(plain(4, b"a") + legacy(magic, codec))),
        read_committed=True,
        fetch_timeout_seconds=5,
        skip_lost=skip_lost,
        max_partition_bytes=1 << 20,
        max_bytes=1 << 20,
    )
    told = (
        rf"offset 5 of topic 'words', partition 0, are in message format {magic}.*"
        r"write .* again .* message\.format\.version \(the broker's log\.message\.format\.version;"
    )
    with pytest.raises(DecodeError, match=told):
        list(fetcher.run([RangeRead("words/0", KafkaRange(4, 9))]))


def test_a_damaged_batch_is_not_taken_for_an_old_one() -> None:
    for magic in (0, 1):
        data = bytearray(plain(0, b"a"))
        data[16] = magic
        with pytest.raises(CorruptBatchError, match=f"its format {magic} "):
            read(bytes(data), 0, 1)


RECORDS = st.lists(
    st.tuples(
        st.integers(1, 300),
        st.integers(0, 1 << 45),
        st.none() | st.binary(max_size=200),
        st.none() | st.binary(max_size=9000),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2),
    ),
    max_size=30,
)


@given(st.lists(RECORDS, max_size=4), st.integers(0, 400), st.integers(1, 600), st.booleans())
def test_any_records_any_range(batches: list[list[Any]], start: int, length: int, compressed: bool) -> None:
    base, data, sent = 0, b"", []
    for steps in batches:
        records: list[Record] = []
        delta = -1
        for step, *rest in steps:
            delta += step
            records.append((delta, *rest))
        data += batch(base, records, codec=GZIP if compressed else NONE, last_delta=max(delta, 0) + 2)
        sent += [(base + record[0], *record[1:]) for record in records]
        base += max(delta, 0) + 3
    end = start + length
    columns, position = read(data, start, end)
    got = [
        (offset, time, key, value, [(n.decode(), v) for n, v in columns.headers.get(row, [])])
        for row, (offset, time, key, value) in enumerate(
            zip(
                columns.offsets.tolist(),
                columns.timestamps.tolist(),
                columns.keys.to_pylist(),
                columns.values.to_pylist(),
                strict=True,
            )
        )
    ]
    assert got == [record for record in sent if start <= record[0] < end]
    assert position >= min(end, base) or base <= start
