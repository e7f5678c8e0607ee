"""Batches decoded together, compared with what kafka-python makes of them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from support.kafka_batches import (
    HEADER_BYTES,
    LOG_APPEND,
    LZ4,
    NONE,
    TRANSACTIONAL,
    ZSTD,
    Aborted,
    Headers,
    Record,
    batch,
    consumed,
    decode as decode_one,
    marker,
    sealed,
)
from support.lists import each

from txstream.api.spouts import SpoutContext
from txstream.core.errors import DecodeError
from txstream.spouts.kafka import Decode, KafkaSource, record_batches as kafka_record_batches
from txstream.spouts.kafka.columns import Readers, joined_batch, readers
from txstream.spouts.kafka.decode_numpy import decode
from txstream.spouts.kafka.protocol import Partition
from txstream.spouts.kafka.record_batches import CorruptBatchError, Fetched, decode_records
from txstream.spouts.kafka.record_blocks import Block, RecordColumns


def read(data: bytes, start: int, end: int, **options: Any) -> object:
    """Decode `data` and return everything that comes of it, errors included."""
    part = Fetched(data, start, end, options.pop("aborted", None))
    decode_records([part], **options)
    return told(part)


def told(part: Fetched) -> object:
    if isinstance(part.error, CorruptBatchError):
        return part.error.offset, part.error.reason
    columns = RecordColumns(part.blocks)
    return (
        part.position,
        part.size,
        part.covered,
        part.unpacked,
        part.largest,
        columns.offsets.tolist(),
        columns.timestamps.tolist(),
        columns.timestamp_types.tolist(),
        columns.keys.to_pylist(),
        columns.values.to_pylist(),
        columns.headers,
    )


def check(
    data: bytes, start: int, end: int, *, together: int = 1 << 20, unseen: bool = False, **options: Any
) -> None:
    """Check that the result is kafka-python's. If `unseen`, kafka-python may find damage that we do not look
    at: outside the range, or in the letters of a header's name."""
    with patch.object(kafka_record_batches, "decode", return_value=None):
        expected = read(data, start, end, **options)
    with patch.object(kafka_record_batches, "_TOGETHER_BYTES", together):
        found = read(data, start, end, **options)
    is_refused = isinstance(expected, tuple) and len(expected) == 2
    is_a_name = any(words in str(expected) for words in ("codec can't decode", "UnicodeDecodeError"))
    if found != expected and is_refused and (unseen or is_a_name):
        return
    assert found == expected


# What shapes the bytes: numbers at the edges of their varints, and runs of records of one size.
BYTES = st.integers(0, 130).map(bytes) | st.sampled_from([b"v" * 60, b"w" * 8191, b"x" * 8192])
HEADER = st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3))
RECORD = st.tuples(
    st.sampled_from([1, 1, 1, 2, 70]),
    st.sampled_from([0, 1, 63, 64, 70_000, 1 << 33, 1 << 40]),
    st.none() | BYTES,
    st.none() | BYTES,
    st.just([]) | st.lists(HEADER, max_size=2),
)
RUN = st.builds(lambda record, times: [record] * times, RECORD, st.sampled_from([1, 1, 2, 30, 70]))


@st.composite
def logs(draw: st.DrawFn) -> tuple[bytes, int, int, bytes]:
    """Consecutive batches, their first offset, the one after their last, and the same without compression."""
    first = offset = draw(st.sampled_from([0, 5, 1 << 40]))
    data = plain = b""
    for runs in draw(st.lists(st.lists(RUN, max_size=3), min_size=1, max_size=5)):
        delta, records, dense = -1, [], draw(st.booleans())
        for step, *rest in (record for run in runs for record in run):
            delta += 1 if dense else step
            records.append((delta, *rest))
        last = max(delta, 0) + (0 if dense else draw(st.integers(0, 2)))
        transactional = draw(st.booleans())
        header: dict[str, Any] = {
            "attributes": draw(st.sampled_from([0, LOG_APPEND])) | (TRANSACTIONAL if transactional else 0),
            "last_delta": last,
            "producer": draw(st.sampled_from([7, 8])) if transactional else -1,
        }
        data += batch(offset, records, codec=draw(st.integers(NONE, ZSTD)) if records else NONE, **header)
        plain += batch(offset, records, **header)
        offset += last + 1
        if draw(st.integers(0, 3)) == 0:
            end = marker(offset, draw(st.sampled_from([7, 8])), commit=draw(st.booleans()))
            data, plain = data + end, plain + end
            offset += 1
    return data, first, offset, plain


@st.composite
def ranges(draw: st.DrawFn, first: int, end: int) -> tuple[int, int]:
    start = draw(st.just(first) | st.integers(first, end))
    return start, draw(st.just(end) | st.integers(start + 1, max(start + 1, end + 5)))


def damaged(draw: Callable[[Any], Any], log: bytes) -> bytes:
    """Change a byte or the number of records or offsets in some batches, and make their checksums right."""
    changed = bytearray(log)
    at = 0
    while at < len(log):
        (length,) = struct.unpack_from(">i", log, at + 8)
        what = draw(st.sampled_from(["nothing", "byte", "count", "last"]))
        if what == "byte":
            place = draw(st.integers(HEADER_BYTES, max(HEADER_BYTES, 12 + length - 1)))
            if place < 12 + length:
                changed[at + place] = draw(st.integers(0, 255))
        elif what != "nothing":
            place = at + (57 if what == "count" else 23)
            (number,) = struct.unpack_from(">i", changed, place)
            struct.pack_into(">i", changed, place, number + draw(st.integers(-2, 2)))
        changed[at : at + 12 + length] = sealed(changed[at : at + 12 + length])
        at += 12 + length
    return bytes(changed)


@st.composite
def options(draw: st.DrawFn, first: int) -> dict[str, Any]:
    aborted = [
        Aborted(producer, first + draw(st.integers(0, 50)))
        for producer in draw(st.sets(st.sampled_from([7, 8])))
    ]
    return {
        "aborted": aborted,
        "read_committed": draw(st.booleans()),
        "together": draw(st.sampled_from([1, 2000, 1 << 20])),
    }


@given(st.data())
def test_any_log(data: st.DataObject) -> None:
    """What kafka-python's consumer, given the log without compression, makes of it."""
    log, first, end, plain = data.draw(logs())
    (start, stop), chosen = data.draw(ranges(first, end)), data.draw(options(first))
    cut = data.draw(st.just(len(log)) | st.integers(0, len(log)))
    check(log[:cut], start, stop, **chosen)
    with patch.object(kafka_record_batches, "_TOGETHER_BYTES", chosen.pop("together")):
        found = read(log, start, stop, **chosen)
    assert isinstance(found, tuple)
    *columns, headers = found[5:]
    every = [headers.get(row, []) for row in range(len(columns[0]))]
    assert (*columns, every) == consumed(plain, start, stop, **chosen)


@given(st.data())
def test_any_damage_behind_a_right_checksum(data: st.DataObject) -> None:
    log, first, end, _ = data.draw(logs())
    start, stop = data.draw(ranges(first, end))
    unseen = (start, stop) != (first, end)
    check(damaged(data.draw, log), start, stop, unseen=unseen, **data.draw(options(first)))


@st.composite
def several(draw: st.DrawFn) -> list[tuple[bytes, int, int, list[Aborted]]]:
    """What fetches brought from some partitions: whole, cut off or damaged."""
    fetched = []
    for _ in range(draw(st.integers(1, 5))):
        log, first, end, _ = draw(logs())
        what = draw(st.sampled_from(["whole", "whole", "cut", "damaged", "flipped"]))
        if what == "cut":
            log = log[: draw(st.integers(0, len(log)))]
        elif what == "damaged":
            log = damaged(draw, log)
        elif what == "flipped":  # its checksum does not match
            place = draw(st.integers(21, len(log) - 1))
            log = log[:place] + bytes([log[place] ^ 1]) + log[place + 1 :]
        fetched.append((log, *draw(ranges(first, end)), draw(options(first))["aborted"]))
    return fetched


@given(several(), st.booleans(), st.sampled_from([1, 300, 2000, 1 << 20]))
def test_several_partitions_together_are_what_each_is_alone(
    fetched: list[tuple[bytes, int, int, list[Aborted]]], committed: bool, together: int
) -> None:
    expected = [
        read(data, start, end, aborted=aborted, read_committed=committed)
        for data, start, end, aborted in fetched
    ]
    parts = [Fetched(*one) for one in fetched]
    with patch.object(kafka_record_batches, "_TOGETHER_BYTES", together):
        decode_records(parts, read_committed=committed)
    assert [told(part) for part in parts] == expected


def test_small_pieces_of_many_partitions_are_decoded_at_once() -> None:
    logs = [batch(7 * i, [(n, n, b"k%d" % i, b"v" * n, []) for n in range(i % 6 + 1)]) for i in range(40)]
    parts = [Fetched(data, 7 * i, 7 * i + 3) for i, data in enumerate(logs)]
    one_by_one = patch.object(kafka_record_batches, "_records", side_effect=AssertionError)
    with patch.object(kafka_record_batches, "decode", wraps=decode) as together, one_by_one:
        decode_records(parts)
    assert together.call_count == 1
    assert [told(part) for part in parts] == [
        read(data, part.start, part.end) for data, part in zip(logs, parts, strict=True)
    ]


def columns_of(logs: list[bytes]) -> list[tuple[Partition, RecordColumns]]:
    parts = [Fetched(data, 0, 100) for data in logs]
    decode_records(parts)
    return [(Partition(f"t{i % 2}", i), RecordColumns(part.blocks)) for i, part in enumerate(parts)]


VALUES = st.lists(st.none() | st.sampled_from([b"", b"a", b'{"n": 1}', b"\xff"]), max_size=4)


@given(
    st.lists(VALUES, min_size=1, max_size=5),
    st.sampled_from(
        [
            {},
            {"decode": Decode(errors="replace")},
            {"kafka_columns": ["partition", "value"]},
            {"decode": Decode("json", "n int"), "kafka_columns": ["topic", "offset"]},
        ]
    ),
)
def test_the_columns_of_several_partitions_are_what_each_has_alone(
    values: list[list[bytes | None]], options: dict[str, Any]
) -> None:
    source = KafkaSource(["t0", "t1"], **options)
    reader = readers(source, SpoutContext("t", "lines", {}))
    parts = columns_of(
        [batch(0, [(i, i, b"k", value, [("h", b"1")]) for i, value in enumerate(some)]) for some in values]
    )

    def made(how: Callable[[], pa.RecordBatch]) -> object:
        try:
            return how().to_pylist()
        except DecodeError as error:
            return str(error)

    together = made(lambda: joined_batch(source, reader, parts))
    assert together == made(
        lambda: pa.concat_batches([joined_batch(source, reader, [part]) for part in parts])
    )


def test_only_neighbours_in_the_same_records_become_one_block() -> None:
    """Between two others may lie the rows of another partition, which the answer to it holds."""
    columns = RecordColumns()
    decode_one(batch(0, [(n, n, None, b"v%d" % n, []) for n in range(9)]), 0, 9, columns)
    ((records, _, _),) = columns.blocks
    other = RecordColumns()
    decode_one(batch(0, [(0, 0, None, b"w", [])]), 0, 1, other)

    def part(*rows: tuple[int, int]) -> RecordColumns:
        return RecordColumns([Block(records, first, stop) for first, stop in rows])

    joined = RecordColumns.joined([part((0, 2), (2, 4)), part((4, 5)), part((7, 9)), other, part((1, 3))])
    assert [(block.first, block.stop) for block in joined.blocks] == [(0, 5), (7, 9), (0, 1), (1, 3)]
    expected = [*(b"v%d" % n for n in (0, 1, 2, 3, 4, 7, 8)), b"w", b"v1", b"v2"]
    assert joined.values.to_pylist() == expected
    assert len(joined) == len(expected)


@each(
    ("records", "start", "end"),
    [
        ([(i, i, None, b"v" * 60, []) for i in range(300)], 0, 300),
        ([(i, i, b"k" * (i % 7), b"v" * (i % 100), []) for i in range(300)], 0, 300),
        (
            [(i, i, None if i % 3 else b"k", None if i % 2 else b"", [("h", b"1")]) for i in range(300)],
            0,
            300,
        ),
        ([(3 * i, i, b"k", b"v", []) for i in range(300)], 0, 900),
        ([(i, i << 36, b"k", b"v", []) for i in range(300)], 0, 300),
        ([(i, i, b"k", b"v", []) for i in range(300)], 100, 200),
    ],
)
@each("codec", [NONE, LZ4])
def test_the_usual_records_are_decoded_together(
    records: list[Record], start: int, end: int, codec: int
) -> None:
    """Without this, the comparisons above might compare kafka-python with itself."""
    data = batch(0, records, codec=codec)
    one_by_one = patch.object(kafka_record_batches, "_records", side_effect=AssertionError)
    with patch.object(kafka_record_batches, "decode", wraps=decode) as together, one_by_one:
        rows = read(data, start, end)
    assert together.call_count == 1
    check(data, start, end)
    assert isinstance(rows, tuple)
    assert len(rows[5]) == sum(start <= record[0] < end for record in records)


@pytest.mark.parametrize("deltas", [(0, 1, 9), (0, 9, 1)])
def test_a_record_behind_the_end_of_a_batch_that_is_wanted_whole(deltas: tuple[int, ...]) -> None:
    """Alone, and before another partition, whose offsets may be lower."""
    wrong = batch(5, [(delta, 0, None, b"v", []) for delta in deltas], last_delta=2)
    check(wrong, 5, 8)
    parts = [Fetched(wrong, 5, 8), Fetched(batch(0, [(0, 0, None, b"w", [])]), 0, 1)]
    decode_records(parts)
    assert isinstance(parts[0].error, CorruptBatchError)
    assert len(RecordColumns(parts[1].blocks)) == 1


def test_headers_that_are_alike_are_read_once() -> None:
    data = batch(0, [(i, 0, None, b"v", [("trace", b"same")]) for i in range(50)])
    columns = RecordColumns()
    decode_one(data, 0, 50, columns)
    assert len(columns.headers) == 50
    assert {id(headers) for headers in columns.headers.values()} == {id(columns.headers[0])}


def test_records_without_a_value_are_left_out() -> None:
    columns = RecordColumns()
    values: list[bytes | None] = [None, b"b", b"", None, None, b"f"]
    decode_one(batch(0, [(i, 0, b"k", value, []) for i, value in enumerate(values)]), 0, 6, columns)
    left = columns.with_values()
    assert (left.offsets.tolist(), left.values.to_pylist()) == ([1, 2, 5], [b"b", b"", b"f"])
    assert len(left.at(5)) == 1
    assert len(columns.at(3).with_values()) == 0


def test_keys_that_nobody_asks_for_are_not_made() -> None:
    with patch("txstream.spouts.kafka.record_blocks._array") as made:
        columns = RecordColumns()
        decode_one(batch(0, [(0, 0, b"k", b"v", [])]), 0, 1, columns)
        assert columns.offsets.tolist() == [0]
        assert not made.called
        assert columns.values is made.return_value
        assert made.call_count == 1


def test_columns_that_are_left_out_change_nothing_in_the_others() -> None:
    columns = RecordColumns()
    headers: Headers = [("h", b"1")]
    decode_one(batch(0, [(i, i, b"k", b"%d" % i, headers) for i in range(9)]), 2, 7, columns)
    everything = joined_batch(KafkaSource("lines"), Readers(), [(Partition("lines", 0), columns)])
    for name in everything.schema.names:
        source = KafkaSource("lines", kafka_columns=[name])
        assert joined_batch(source, Readers(), [(Partition("lines", 0), columns)]) == everything.select(
            [name]
        )
