"""Decodes records one by one, at about a microsecond each: for batches that `kafka_decode_numpy` cannot take,
and as the reference for its results. The loop in `read_records` is written out on purpose."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from kafka.record.util import decode_varint

from txstream.spouts.kafka_record_blocks import Block, Headers, Records


class RecordLists:
    """One batch's rows as Python lists of equal length; headers, by row, only where a record has some."""

    __slots__ = ("headers", "keys", "offsets", "timestamps", "values")

    def __init__(self) -> None:
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.offsets: list[int] = []
        self.timestamps: list[int] = []
        self.headers: dict[int, Headers] = {}

    def cut(self, start: int, end: int) -> None:
        """Keep the rows with offsets (ascending) in `[start, end)`."""
        high = bisect_left(self.offsets, end)
        low = bisect_left(self.offsets, start, 0, high)
        for column in (self.keys, self.values, self.offsets, self.timestamps):
            del column[high:], column[:low]
        self.headers = {row - low: headers for row, headers in self.headers.items() if low <= row < high}

    def block(self, append_time: int | None) -> Block:
        """Return the rows as a block. `append_time` is the broker's time, if it replaces the producers'."""
        rows = len(self.offsets)
        times = self.timestamps if append_time is None else [append_time] * rows
        return Records(
            np.array(self.offsets, np.int64),
            np.array(times, np.int64),
            np.full(rows, append_time is not None),
            self.keys,
            self.values,
            self.headers,
        ).block


def skip_records(data: bytes, at: int, count: int) -> int:
    for _ in range(count):
        length, at = decode_varint(data, at)
        at += length
    return at


def read_records(
    data: bytes, at: int, count: int, base: int, first_time: int, stop_delta: int, columns: RecordLists
) -> int:
    """Read `count` records, or up to the first whose offset delta is at least `stop_delta`. Return the end.

    Numbers are zigzag varints: an even byte below 128 is a small number, 1 is -1 (null).
    """
    add_key, add_value = columns.keys.append, columns.values.append
    add_offset, add_time = columns.offsets.append, columns.timestamps.append
    for _ in range(count):
        begin = at
        number = data[at]
        if number < 128:
            at += 1
            stop = at + (number >> 1)
        elif data[at + 1] < 128:
            stop = at + 2 + (((number & 127) | (data[at + 1] << 7)) >> 1)
            at += 2
        else:
            length, at = decode_varint(data, at)
            stop = at + length
        at += 1  # attributes: none are defined
        number = data[at]
        if number < 128:
            at += 1
            time = first_time + ((number >> 1) ^ -(number & 1))
        else:
            delta, at = decode_varint(data, at)
            time = first_time + delta
        number = data[at]
        if number < 128:
            at += 1
            delta = number >> 1
        elif data[at + 1] < 128:
            delta = ((number & 127) | (data[at + 1] << 7)) >> 1
            at += 2
        else:
            delta, at = decode_varint(data, at)
        if delta >= stop_delta:
            return begin
        number = data[at]
        if number == 1:
            at += 1
            key = None
        else:
            if number < 128:
                at += 1
                length = number >> 1
            else:
                length, at = decode_varint(data, at)
            key = data[at : at + length]
            at += length
        number = data[at]
        if number == 1:
            at += 1
            value = None
        else:
            if number < 128:
                at += 1
                length = number >> 1
            elif data[at + 1] < 128:
                length = ((number & 127) | (data[at + 1] << 7)) >> 1
                at += 2
            else:
                length, at = decode_varint(data, at)
            value = data[at : at + length]
            at += length
        if data[at] == 0:
            at += 1
        else:
            headers, at = read_headers(data, at)
            columns.headers[len(columns.offsets)] = headers
        if at != stop:
            raise ValueError(f"a record ends at byte {at} instead of {stop}")
        add_key(key)
        add_value(value)
        add_offset(base + delta)
        add_time(time)
    return at


def read_headers(data: bytes, at: int) -> tuple[Headers, int]:
    headers: Headers = []
    count, at = decode_varint(data, at)
    for _ in range(count):
        length, at = decode_varint(data, at)
        if length < 0:
            raise ValueError(f"the name of a header has {length} bytes")
        key = data[at : at + length]
        at += length
        length, at = decode_varint(data, at)
        if length < 0:
            headers.append((key, None))
        else:
            headers.append((key, data[at : at + length]))
            at += length
    return headers, at
