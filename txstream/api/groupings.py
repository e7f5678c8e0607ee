"""Groupings: which task of a bolt gets a tuple. A fields grouping hashes the values with a stable hash.

The hash is BLAKE2b with an 8-byte digest over a canonical byte encoding of the values, read as a big
endian number. It never changes: the fixed vectors in `tests/unit/test_groupings.py` hold it, because a
key that moved to another task between two releases would be counted by two tasks. Python's own `hash`
differs between processes and cannot be used.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any

from txstream.api.errors import TupleError
from txstream.api.tuples import DEFAULT_STREAM


class GroupingKind(StrEnum):
    SHUFFLE = "shuffle"
    LOCAL_OR_SHUFFLE = "local_or_shuffle"
    FIELDS = "fields"
    GLOBAL = "global"


@dataclass(frozen=True, slots=True)
class Grouping:
    """One subscription of a bolt: whose stream, and how its tuples are spread over the bolt's tasks."""

    kind: GroupingKind
    component: str
    stream: str = DEFAULT_STREAM
    fields: tuple[str, ...] = ()

    def __str__(self) -> str:
        source = self.component if self.stream == DEFAULT_STREAM else f"{self.component}.{self.stream}"
        return f"{self.kind}({', '.join((source, *self.fields))})"


def canonical_bytes(value: Any) -> bytes:
    """A value as bytes: equal values of one SQL type give equal bytes, on every machine and version.

    Raises TupleError for a value that cannot be a grouping key (a list, a map).
    """
    if value is None:
        return b"n"
    if isinstance(value, bool):
        return b"b1" if value else b"b0"
    if isinstance(value, int):
        return f"i{value}".encode("ascii")
    if isinstance(value, str):
        return b"s" + value.encode("utf-8", "surrogatepass")
    if isinstance(value, (bytes, bytearray, memoryview)):
        return b"y" + bytes(value)
    if isinstance(value, float):
        if math.isnan(value):
            return b"fnan"
        return b"f" + struct.pack(">d", value + 0.0)  # adding 0.0 turns -0.0 into 0.0
    if isinstance(value, Decimal):
        return b"d" + _decimal_bytes(value)
    if isinstance(value, dt.datetime):
        if value.tzinfo is not None:
            value = value.astimezone(dt.UTC)
        return f"t{value.isoformat()}".encode("ascii")
    if isinstance(value, dt.date):
        return b"a" + value.isoformat().encode("ascii")
    raise TupleError(f"a value of type {type(value).__name__} cannot be grouped by: {value!r}")


def _decimal_bytes(value: Decimal) -> bytes:
    """Digits without trailing zeros, and the exponent. Not `normalize`: that rounds to the precision of the
    thread's decimal context, which a user may have changed in one process and not in another."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return str(value).encode("ascii")
    text = "".join(map(str, digits))
    kept = text.rstrip("0")
    if not kept:
        return b"0"
    shown = f"{'-' if sign else ''}{kept.lstrip('0')}e{exponent + len(text) - len(kept)}"
    return shown.encode("ascii")


def stable_hash(values: Sequence[Any]) -> int:
    """The 64-bit hash of a tuple's grouping values: same values, same number, for ever."""
    digest = hashlib.blake2b(digest_size=8)
    for value in values:
        encoded = canonical_bytes(value)
        digest.update(struct.pack(">I", len(encoded)))  # lengths, so that ("ab","c") is not ("a","bc")
        digest.update(encoded)
    return int.from_bytes(digest.digest(), "big")


def task_of(values: Sequence[Any], tasks: int) -> int:
    """The task, 0 to `tasks` - 1, that a fields grouping sends these values to."""
    return stable_hash(values) % tasks
