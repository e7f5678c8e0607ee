"""Which of many values do not fit, and the columns of the others: what a reader does when some are bad.

Invariant: whether a value fits is decided by that value alone. Those that fit are converted together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from txstream.spouts.formats.json_columns import MisfitError

T = TypeVar("T")

_PARTS = 8  # of those that do not fit together, which are tried by themselves


class BadValueError(Exception):
    """The value of one row cannot be read. `reason` names the field, if there is one."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row
        self.reason = reason


def refuse_first(unfit: Mapping[int, str]) -> None:
    """Raise BadValueError for the first of the rows that cannot be read, if there are any."""
    if unfit:
        row = min(unfit)
        raise BadValueError(row, unfit[row])


def converted(found: Sequence[Any], convert: Callable[[Sequence[Any]], T], unfit: dict[int, str]) -> T:
    """Convert values by row. Those in `unfit` are left out, and so are others that do not fit, which are
    added to it. Raises MisfitError if only several together do not fit."""
    while True:
        some = _without(found, unfit)
        try:
            return convert(some)
        except MisfitError as misfit:
            bad = _alone(some, convert, misfit.rows) or _misfits(some, convert, 0)
            if not bad:
                raise
        rows = _without(range(len(found)), unfit)
        for at, one in bad.items():
            path = one.path.removeprefix(".")
            unfit[rows[at]] = f"field {path!r}: {one.reason}" if path else one.reason


def _without(values: Sequence[Any], rows: Collection[int]) -> Sequence[Any]:
    """Return the values but for those rows."""
    if not rows:
        return values
    left = list(values)
    for row in sorted(rows, reverse=True):
        del left[row]
    return left


def _alone(
    found: Sequence[Any], convert: Callable[[Sequence[Any]], object], suspects: Sequence[int]
) -> dict[int, MisfitError]:
    """Return those of the suspects that do not fit by themselves, either."""
    bad = {}
    for at in suspects:
        try:
            convert(found[at : at + 1])
        except MisfitError as misfit:
            bad[at] = misfit
    return bad


def _misfits(
    found: Sequence[Any], convert: Callable[[Sequence[Any]], object], first: int
) -> dict[int, MisfitError]:
    try:
        convert(found)
    except MisfitError as misfit:
        if len(found) == 1:
            return {first: misfit}
    else:
        return {}
    size = -(-len(found) // _PARTS)
    parts = [_misfits(found[at : at + size], convert, first + at) for at in range(0, len(found), size)]
    return {row: misfit for part in parts for row, misfit in part.items()}


def in_rows(arrays: Iterable[pa.Array], unfit: Mapping[int, str], length: int) -> list[pa.Array]:
    """Return columns of `length` rows from those of the values that fit. The others' rows are null."""
    if not unfit:
        return list(arrays)
    is_unfit = np.zeros(length, np.bool_)
    is_unfit[list(unfit)] = True
    indices = pa.array(np.cumsum(~is_unfit) - 1, pa.int64(), mask=is_unfit)
    return [array.take(indices) for array in arrays]
