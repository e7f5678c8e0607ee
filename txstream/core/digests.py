"""Digests: what a batch adds to a state table, in a few numbers, so that a replay can say "the same".

The digest of a table's merged deltas (one row per key) holds the number of rows, a number for their keys, and
one for each value column. Each of these is the sum, modulo 2^64, of a hash of each row. So it does not depend
on the order of rows or on how they are spread over tasks and chunks, and digests of disjoint parts add up.

Of a floating-point value the first nine digits count, because a sum's last bits depend on the order of
additions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

T = TypeVar("T", bound=Hashable)

_MODULUS: Final = 1 << 64
_CHUNK_ROWS: Final = 1 << 16
_LANE_BYTES: Final = 8
# Longer values are hashed one by one: padding all values to the longest would take too much memory.
_LONG_BYTES: Final = 256
_LOST_BITS: Final = 22  # of a double's 52: nine decimal digits are left


Numbers = npt.NDArray[np.uint64]

_ODD: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX: Final = np.uint64(0xD6E8FEB86659FD93)
_HALF: Final = np.uint64(32)
_NULL: Final = np.uint64(0x5851F42D4C957F2D)
_WEIGHTS: Final = [np.uint64(pow(0xDA942042E4DD58B5, lane + 1, _MODULUS)) for lane in range(33)]
# Masks, by the number of a word's bytes that count, lowest bytes first.
_KEPT: Final = np.array([(1 << 8 * count) - 1 for count in range(_LANE_BYTES + 1)], np.uint64)
_ROUND_UP: Final = np.uint64(1 << (_LOST_BITS - 1))
_LOST: Final = np.uint64(_LOST_BITS)
_NOTHING: Final = np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True)
class TableDigest:
    """The digest of a table's deltas. `values` is by value column. Add only parts without a common key."""

    rows: int = 0
    keys: int = 0
    values: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: TableDigest) -> TableDigest:
        names = {**self.values, **other.values}
        return TableDigest(
            self.rows + other.rows,
            (self.keys + other.keys) % _MODULUS,
            {name: (self.values.get(name, 0) + other.values.get(name, 0)) % _MODULUS for name in names},
        )

    def differences(self, other: TableDigest) -> list[str]:
        """Return what differs: "rows", "keys", and value columns that both have, in the order of `other`."""
        found = ["rows"] if self.rows != other.rows else []
        found += ["keys"] if self.keys != other.keys else []
        return found + [
            name for name, number in other.values.items() if number != self.values.get(name, number)
        ]

    def to_document(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "keys": f"{self.keys:016x}",
            "values": {name: f"{number:016x}" for name, number in self.values.items()},
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> TableDigest:
        values = {name: int(number, 16) for name, number in document["values"].items()}
        return cls(document["rows"], int(document["keys"], 16), values)


def added_up(digests: Iterable[tuple[T, TableDigest]]) -> dict[T, TableDigest]:
    """Return the sum of the digests of each name, by name."""
    found: dict[T, TableDigest] = {}
    for name, digest in digests:
        found[name] = found.get(name, TableDigest()) + digest
    return found


def digest_of(deltas: pa.Table, key_names: Sequence[str]) -> TableDigest:
    """Return the digest of merged deltas: key columns first, then one per value column; no key twice."""
    found = TableDigest(values=dict.fromkeys(deltas.schema.names[len(key_names) :], 0))
    for start in range(0, deltas.num_rows, _CHUNK_ROWS):
        found += _digest(deltas.slice(start, _CHUNK_ROWS), len(key_names))
    return found


def _digest(table: pa.Table, keys: int) -> TableDigest:
    # By position: Arrow takes a name that begins with a dot for a path.
    columns = [_whole(column) for column in table.columns]
    row: Any = _ODD
    for at, column in enumerate(columns[:keys]):
        row = mixed(_hashes(column, exact=True) + (row * _ODD if at else row))
    # Each value is multiplied by its key's number, which is as good as random. So a surplus at one key does
    # not cancel out a deficit at another.
    values = {
        name: _sum(row * _hashes(column, exact=False))
        for name, column in zip(table.schema.names[keys:], columns[keys:], strict=True)
    }
    return TableDigest(table.num_rows, _sum(row), values)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _sum(numbers: Numbers) -> int:
    return int(np.add.reduce(numbers))  # wraps round


def mixed(numbers: Numbers) -> Numbers:
    """Mix the bits: the product carries each bit upwards, the shift brings the upper half down. 0 stays 0."""
    numbers = numbers * _MIX
    numbers ^= numbers >> _HALF
    return numbers


def _hashes(column: pa.Array, *, exact: bool) -> Numbers:
    """Return a number for each value: the same number for the same value, however it is stored."""
    kind = column.type
    nulls = None
    if column.null_count:
        nulls = column.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_floating(kind):
        found = mixed(_of_floats(_numbers(column.cast(pa.float64()), np.float64), exact=exact))
    elif pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_temporal(kind):
        if pa.types.is_temporal(kind):
            column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
        if not pa.types.is_int64(column.type):
            column = column.cast(pa.int64())
        found = mixed(_numbers(column, np.uint64))
    else:
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
        found = _of_bytes(column if is_text or is_bytes else column.cast(pa.string()))
    if nulls is not None:
        found[nulls] = _NULL
    return found


def _numbers(column: pa.Array, kind: type[Any]) -> npt.NDArray[Any]:
    """Return the values of a column of 64 bits each; the value at a null is arbitrary."""
    return np.frombuffer(column.buffers()[1], kind, len(column), column.offset * _LANE_BYTES)


def _of_floats(numbers: npt.NDArray[np.float64], *, exact: bool) -> Numbers:
    numbers = numbers + 0.0  # -0.0 is 0.0
    numbers[np.isnan(numbers)] = np.nan
    bits = numbers.view(np.uint64)
    return bits if exact else (bits + _ROUND_UP) >> _LOST


def _of_bytes(column: pa.Array) -> Numbers:
    """Hash text and bytes, eight bytes at a time; the last eight as if zeros followed."""
    starts, lengths, content = _bounds(column)
    found = lengths.astype(np.uint64)
    longest = int(lengths.max(initial=0))
    if longest > _LONG_BYTES:
        import pyarrow.compute as pc  # who only plans does not need it

        column = column.cast(pa.large_binary())
        is_long = pa.array(lengths > _LONG_BYTES)
        short = [hashlib.blake2b(value).digest() for value in column.filter(is_long).to_pylist()]
        starts, lengths, content = _bounds(
            pc.replace_with_mask(column, is_long, pa.array(short, column.type))
        )
        longest = _LONG_BYTES
    # One word at every byte offset. Bytes after a value's end are read too, but masked out.
    padded = np.zeros(len(content) + _LANE_BYTES, np.uint8)
    padded[: len(content)] = content
    words = np.ndarray(len(content) + 1, "<u8", padded, strides=(1,))
    for lane in range(-(-longest // _LANE_BYTES)):
        at = starts + lane * _LANE_BYTES
        if lane:
            np.minimum(at, len(content), out=at)
        lane_words = words[at]
        lane_words &= _KEPT.take(lengths - lane * _LANE_BYTES, mode="clip")
        found += mixed(lane_words) * _WEIGHTS[lane]
    return found


def _bounds(column: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.uint8]]:
    """Return where each value starts in the content, the lengths (0 for a null), and the content."""
    is_large = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    kind: type[Any] = np.int64 if is_large else np.int32
    _, ends, data = column.buffers()
    at = np.frombuffer(ends, kind, len(column) + 1, column.offset * np.dtype(kind).itemsize)
    lengths = np.diff(at)
    if column.null_count:
        lengths[column.is_null().to_numpy(zero_copy_only=False)] = 0
    first, last = int(at[0]), int(at[-1])
    content = np.frombuffer(data, np.uint8, last - first, first) if last > first else _NOTHING
    return at[:-1] - first, lengths, content
