"""Folds many messages about a root into one. XOR is associative and commutative, so nothing is lost."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from txstream.acker.ids import Roots, Values, as_numbers, slots_of

_SPARSE: Final = 8  # with more slots per message than this, sorting is cheaper than an array of all slots


def fold(roots: ArrayLike, values: ArrayLike) -> tuple[Roots, Values]:
    """Return each root once, with the XOR of its values. Used for what one task sends, and again for what
    several tasks sent."""
    root_numbers, value_numbers = as_numbers(roots), as_numbers(values)
    if not len(root_numbers):
        return root_numbers, value_numbers
    slots = slots_of(root_numbers)
    slots -= slots.min()
    count = int(slots.max()) + 1
    if count <= _SPARSE * len(slots):
        owners = np.zeros(count, np.uint64)
        owners[slots] = root_numbers
        if (owners[slots] == root_numbers).all():  # one generation of each slot
            folded = np.zeros(count, np.uint64)
            np.bitwise_xor.at(folded, slots, value_numbers)
            present = np.flatnonzero(owners)
            return owners[present], folded[present]
    order = np.argsort(root_numbers)
    ordered = root_numbers[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    return ordered[starts], np.bitwise_xor.reduceat(value_numbers[order], starts)
