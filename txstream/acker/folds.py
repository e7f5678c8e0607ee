"""Many messages about a root as one: XOR is associative and commutative, so folding loses nothing."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from txstream.acker.ids import Roots, Values, as_numbers


def fold(roots: ArrayLike, values: ArrayLike) -> tuple[Roots, Values]:
    """Each root once, ascending, with the XOR of its values. For what a task sends, and again for what
    several tasks sent."""
    root_numbers, value_numbers = as_numbers(roots), as_numbers(values)
    if not len(root_numbers):
        return root_numbers, value_numbers
    order = np.argsort(root_numbers)
    ordered = root_numbers[order]
    first = np.empty(len(ordered), bool)
    first[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    starts = np.flatnonzero(first)
    return ordered[starts], np.bitwise_xor.reduceat(value_numbers[order], starts)
