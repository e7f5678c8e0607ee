"""The hash by which groupings choose a task: BLAKE2b with an 8-byte digest over a canonical byte encoding of
the values, read as a big-endian number.

It never changes: a key that moved to another task between two releases would be counted by two tasks. Fixed
vectors in `tests/unit/test_groupings.py` pin it. Python's own `hash` differs between processes and cannot be
used.

A partial key grouping has a second hash: the same with a `person` parameter, which makes it independent of
the first. Source: Nasir et al., "The Power of Both Choices: Practical Load Balancing for Distributed Stream
Processing Engines", ICDE 2015; Storm's PartialKeyGrouping.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import math
import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from txstream.core.errors import TupleError


def canonical_bytes(value: Any) -> bytes:
    """Return a value as bytes. Equal values of one SQL type give equal bytes, on every machine and version.

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
    """Return the digits without trailing zeros, and the exponent. Not `normalize`: it rounds to the precision
    of the thread's decimal context, which a user may have changed in one process and not in another."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return str(value).encode("ascii")
    text = "".join(map(str, digits))
    kept = text.rstrip("0")
    if not kept:
        return b"0"
    shown = f"{'-' if sign else ''}{kept.lstrip('0')}e{exponent + len(text) - len(kept)}"
    return shown.encode("ascii")


_SECOND = b"txstream-second"  # BLAKE2b's `person`: another value makes another hash


def stable_hash(values: Sequence[Any]) -> int:
    """Return the 64-bit hash of a tuple's grouping values: same values, same number, in every version.

    Raises TupleError for a value that cannot be grouped by.
    """
    return _number(hashlib.blake2b(_key_bytes(values), digest_size=8))


def task_of(values: Sequence[Any], tasks: int) -> int:
    """Return the task, 0 to `tasks` - 1, that a fields grouping sends these values to."""
    return stable_hash(values) % tasks


def tasks_of_partial_key(values: Sequence[Any], tasks: int) -> tuple[int, int]:
    """Return the two tasks, 0 to `tasks` - 1, between which a partial key grouping chooses for these values.

    The first is that of a fields grouping. They differ unless there is only one task: if both hashes give the
    same task, the second choice is the task after it.
    """
    key = _key_bytes(values)
    first = _number(hashlib.blake2b(key, digest_size=8)) % tasks
    second = _number(hashlib.blake2b(key, digest_size=8, person=_SECOND)) % tasks
    return first, (second + 1) % tasks if second == first else second


def _key_bytes(values: Sequence[Any]) -> bytes:
    parts = []
    for value in values:
        encoded = canonical_bytes(value)
        parts.append(len(encoded).to_bytes(4, "big"))  # lengths, so that ("ab","c") differs from ("a","bc")
        parts.append(encoded)
    return b"".join(parts)


def _number(hashed: hashlib.blake2b) -> int:
    return int.from_bytes(hashed.digest(), "big")
