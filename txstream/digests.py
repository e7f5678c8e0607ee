"""What a batch adds to a state table, in a few numbers: so that a replay can say "the same".

The merged deltas of a table (one row per key) have a digest: how many rows, a number for their keys, and one
for each value column. A number is the sum, modulo 2^64, of a hash of each row. So it depends neither on the
order of rows nor on how they are spread over tasks and chunks, and digests of disjoint parts add up.

A floating-point value counts by its first nine digits: a sum's last bits depend on the order of additions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

T = TypeVar("T", bound=Hashable)

_MODULUS: Final = 1 << 64
_CHUNK_ROWS: Final = 1 << 16
_LANE_BYTES: Final = 8
# Longer values are hashed one by one: padding them all to the longest would take memory.
_LONG_BYTES: Final = 256
_LOST_BITS: Final = 22  # of a double's 52: what is left are nine decimal digits


def _number(value: int) -> pa.UInt64Scalar:
    return pa.scalar(value % _MODULUS, pa.uint64())


_ODD: Final = _number(0x9E3779B97F4A7C15)
_MIX: Final = _number(0xD6E8FEB86659FD93)
_HALF: Final = _number(32)
_NULL: Final = _number(0x5851F42D4C957F2D)
_WEIGHTS: Final = [_number(pow(0xDA942042E4DD58B5, lane + 1, _MODULUS)) for lane in range(33)]
_ROUND_UP: Final = _number(1 << (_LOST_BITS - 1))
_LOST: Final = _number(_LOST_BITS)


@dataclass(frozen=True, slots=True)
class TableDigest:
    """`values` is by value column. `+` is for parts that have no key in common."""

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
        """What differs: rows, keys, and value columns, of those that both have, in the order of `other`."""
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
    """The digests of one name added up, by name."""
    found: dict[T, TableDigest] = {}
    for name, digest in digests:
        found[name] = found.get(name, TableDigest()) + digest
    return found


def digest_of(deltas: pa.Table, key_names: Sequence[str]) -> TableDigest:
    """The digest of merged deltas: key columns first, then one per value column; no key twice."""
    found = TableDigest(values=dict.fromkeys(deltas.schema.names[len(key_names) :], 0))
    for start in range(0, deltas.num_rows, _CHUNK_ROWS):
        found += _digest(deltas.slice(start, _CHUNK_ROWS), len(key_names))
    return found


def _digest(table: pa.Table, keys: int) -> TableDigest:
    # By place: Arrow takes a name that begins with a dot for a path.
    columns = [column.combine_chunks() for column in table.columns]
    row: Any = _ODD
    for column in columns[:keys]:
        before = row if row is _ODD else pc.multiply(row, _ODD)
        row = _mixed(pc.add(before, _hashes(column, exact=True)))
    # Each value times its key's number, which is as good as random: what one key has more and another has
    # less does not cancel out.
    values = {
        name: _sum(pc.multiply(row, _hashes(column, exact=False)))
        for name, column in zip(table.schema.names[keys:], columns[keys:], strict=True)
    }
    return TableDigest(table.num_rows, _sum(row), values)


def _sum(numbers: pa.Array) -> int:
    return int(pc.sum(numbers).as_py())  # Arrow's sum wraps round


def _mixed(numbers: pa.Array) -> pa.Array:
    """Every bit counts for the higher ones, and those for the lower ones; 0 stays 0."""
    numbers = pc.multiply(numbers, _MIX)
    return pc.bit_wise_xor(numbers, pc.shift_right(numbers, _HALF))


def _hashes(column: pa.Array, *, exact: bool) -> pa.Array:
    """A number for each value; the same for the same values, however they are stored."""
    kind = column.type
    if pa.types.is_floating(kind):
        found = _mixed(_of_floats(column.cast(pa.float64()), exact=exact))
    elif pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_temporal(kind):
        if pa.types.is_temporal(kind):
            column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
        if not pa.types.is_int64(column.type):
            column = column.cast(pa.int64())
        found = _mixed(column.view(pa.uint64()))
    else:
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
        found = _of_bytes(column if is_text or is_bytes else column.cast(pa.string()))
    return found if column.null_count == 0 else pc.if_else(column.is_valid(), found, _NULL)


def _of_floats(column: pa.Array, *, exact: bool) -> pa.Array:
    column = pc.add(column, 0.0)  # -0.0 is 0.0
    bits = pc.if_else(pc.is_nan(column), float("nan"), column).view(pa.uint64())
    return bits if exact else pc.shift_right(pc.add(bits, _ROUND_UP), _LOST)


def _of_bytes(column: pa.Array) -> pa.Array:
    """Text and bytes: padded to one length, then eight bytes at a time."""
    lengths = pc.binary_length(column)
    longest: int = pc.max(lengths).as_py() or 0
    if longest > _LONG_BYTES:
        is_long = pc.fill_null(pc.greater(lengths, _LONG_BYTES), False)
        column = column.cast(pa.large_binary())
        short = [hashlib.blake2b(value).digest() for value in column.filter(is_long).to_pylist()]
        column = pc.replace_with_mask(column, is_long, pa.array(short, column.type))
        longest = _LONG_BYTES
    if column.null_count:
        column, lengths = pc.fill_null(column, b""), pc.fill_null(lengths, 0)
    lanes = max(1, -(-longest // _LANE_BYTES))
    # Arrow pads text alone; these bytes need not be text, and are not looked at as such.
    is_large = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    kind = pa.large_string() if is_large else pa.string()
    text = pa.Array.from_buffers(kind, len(column), column.buffers(), offset=column.offset)
    padded = pc.ascii_rpad(text, lanes * _LANE_BYTES, padding="\0")
    numbers = _mixed(_words(padded.buffers()[2], padded.offset * lanes, len(column) * lanes))
    view = memoryview(numbers.buffers()[1]).cast("Q")
    found = lengths.cast(pa.uint64())
    for lane in range(lanes):
        # Arrow has no strides, and its lists are three times as slow.
        words = _words(pa.py_buffer(view[lane::lanes].tobytes()), 0, len(column))
        found = pc.add(found, pc.multiply(words, _WEIGHTS[lane]))
    return found


def _words(buffer: pa.Buffer, offset: int, count: int) -> pa.Array:
    return pa.Array.from_buffers(pa.uint64(), count, [None, buffer], offset=offset)
