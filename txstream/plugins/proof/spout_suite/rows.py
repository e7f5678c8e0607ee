"""Compares rows: NaN equals NaN, and the first place where two readings differ is found."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from txstream.plugins.proof.spout_suite.harness import Row

_NAN = ("not a number",)


def freeze(value: Any) -> Hashable:
    """Return a value in a hashable form. NaN equals NaN, or a source of floats could never pass."""
    if isinstance(value, Mapping):
        return tuple(sorted((name, freeze(part)) for name, part in value.items()))
    if isinstance(value, (list, tuple)):
        return tuple(freeze(part) for part in value)
    if isinstance(value, float) and value != value:
        return _NAN
    return value if isinstance(value, Hashable) else repr(value)


def same(one: Sequence[Row], other: Sequence[Row]) -> bool:
    """Return whether both hold equal rows in the same order."""
    return [freeze(row) for row in one] == [freeze(row) for row in other]


def project(rows: Sequence[Row], columns: Sequence[str]) -> list[Row]:
    """Return the rows with only these columns."""
    return [{name: row[name] for name in columns} for row in rows]


def show(row: Row | None) -> str:
    return "no more rows" if row is None else f"{dict(row)!r:.200}"


def first_difference(expected: Sequence[Row], found: Sequence[Row]) -> tuple[int, Row | None, Row | None]:
    """Return where two unequal readings first differ: the index, and each one's row there, None past its end.
    Raises ValueError for equal readings."""
    for place in range(max(len(expected), len(found))):
        one = expected[place] if place < len(expected) else None
        other = found[place] if place < len(found) else None
        if one is None or other is None or freeze(one) != freeze(other):
            return place, one, other
    raise ValueError("the readings are equal")
