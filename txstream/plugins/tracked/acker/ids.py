"""The two kinds of 64-bit numbers that tracking needs, roots of trees and ids of tuples, and how they fold.

A root is a generation (high 32 bits) and a slot (low 32 bits). A spout task gives out the slot and raises its
generation by one each time the slot becomes free. So trees can be kept in arrays and found by slot, without
hashing, and the generation shows that a message is about a tree that has ended.

Invariants. No root is given out twice. Slots of different spout tasks differ. Generations run from 1
to 2**32 - 2: root 0 belongs to no tree and is ignored everywhere. A tuple's id is never 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

_SPARSE: Final = 8  # with more slots per message than this, sorting is cheaper than an array of all slots

Roots: TypeAlias = NDArray[np.uint64]
Values: TypeAlias = NDArray[np.uint64]
Slots: TypeAlias = NDArray[np.intp]
Generations: TypeAlias = NDArray[np.uint32]

FIRST_GENERATION: Final = 1
LAST_GENERATION: Final = 2**32 - 2

_SLOT_BITS: Final = np.uint64(32)
_SLOT_MASK: Final = np.uint64(2**32 - 1)


def as_numbers(numbers: ArrayLike) -> NDArray[np.uint64]:
    """Return 64-bit numbers as a flat unsigned array. Arrays of signed integers are read as their bits."""
    if not isinstance(numbers, np.ndarray):
        numbers = np.asarray(numbers, np.uint64)  # on its own, numpy turns large and small ints into floats
    elif numbers.dtype.kind not in "ui":
        raise TypeError(f"roots and ids are integers of 64 bits, not {numbers.dtype}")
    return np.atleast_1d(numbers.astype(np.uint64, copy=False))


def slots_of(roots: Roots) -> Slots:
    return (roots & _SLOT_MASK).astype(np.intp, copy=False)


def generations_of(roots: Roots) -> Generations:
    return (roots >> _SLOT_BITS).astype(np.uint32)


def roots_of(generations: NDArray[Any], slots: NDArray[Any]) -> Roots:
    return (generations.astype(np.uint64) << _SLOT_BITS) | slots.astype(np.uint64)


def larger_size(size: int, needed: int) -> int:
    """Return how long an array by slot becomes. A quarter more keeps a pending tree below 64 bytes in all."""
    return max(1024, needed, size + size // 4)


class RootIds:
    """The roots of one spout task: `take` for tuples that are emitted, `release` when their trees have ended.

    task, tasks: the number of this task among all spout tasks of the topology, from 0, and how many there
        are. Task 2 of 4 has the slots 2, 6, 10, ..., so that the slots of all tasks together are dense as
        long as the tasks have about as much pending.
    first_generation: if a task starts again while the ledger lives on, give it a number above every one that
        it has used (`generation` of the former object, plus 1). Otherwise its roots look like old ones, and
        the ledger ignores them.
    """

    def __init__(self, task: int = 0, tasks: int = 1, *, first_generation: int = FIRST_GENERATION) -> None:
        if not 0 <= task < tasks:
            raise ValueError(f"task {task} of {tasks} tasks: count them from 0")
        if not FIRST_GENERATION <= first_generation <= LAST_GENERATION:
            raise ValueError(f"first_generation={first_generation} is not in 1 to 2**32 - 2")
        self._task, self._tasks, self._first = task, tasks, first_generation
        # By the number of a slot within this task: the generation of its present or next owner.
        self._generations = np.empty(0, np.uint32)
        self._free = np.empty(0, np.uint32)  # a stack: its first `_free_count` are free
        self._free_count = 0
        self._used = 0  # slots given out at least once

    def take(self, count: int) -> Roots:
        """Return `count` roots that nobody has had before."""
        reused = min(count, self._free_count)
        self._free_count -= reused
        free = self._free[self._free_count : self._free_count + reused].astype(np.intp)
        first, self._used = self._used, self._used + count - reused
        if self._used > len(self._generations):
            self._grow(self._used)
        own = np.concatenate((free, np.arange(first, self._used, dtype=np.intp)))
        return self.roots_at(own)

    def release(self, roots: ArrayLike) -> NDArray[np.bool_]:
        """Free these roots' slots. Return for each whether it was taken until now: a root that was released
        before, a repetition within `roots`, and another task's root are False and change nothing."""
        numbers = as_numbers(roots)
        own, task = np.divmod(slots_of(numbers), self._tasks)
        mine = np.flatnonzero((task == self._task) & (own < self._used))
        mine = mine[self._generations[own[mine]] == generations_of(numbers[mine])]
        _, firsts = np.unique(own[mine], return_index=True)
        mine = mine[firsts]
        freed = own[mine]
        self._generations[freed] += np.uint32(1)
        # A slot whose generations are used up stays out of use, so that no number comes twice.
        again = freed[self._generations[freed] <= LAST_GENERATION]
        self._free[self._free_count : self._free_count + len(again)] = again
        self._free_count += len(again)
        was_taken = np.zeros(len(numbers), bool)
        was_taken[mine] = True
        return was_taken

    def roots_at(self, places: Slots) -> Roots:
        """Return the taken roots at these slot numbers within this task (slot // tasks)."""
        return roots_of(self._generations[places], places * self._tasks + self._task)

    @property
    def taken(self) -> int:
        """How many roots are taken now."""
        retired = np.count_nonzero(self._generations[: self._used] > LAST_GENERATION)
        return self._used - self._free_count - int(retired)

    @property
    def generation(self) -> int:
        """The highest generation that was given out or comes next."""
        return int(self._generations[: self._used].max(initial=self._first))

    @property
    def nbytes(self) -> int:
        return self._generations.nbytes + self._free.nbytes

    def _grow(self, needed: int) -> None:
        size = larger_size(len(self._generations), needed)
        generations = np.full(size, self._first, np.uint32)
        generations[: len(self._generations)] = self._generations
        free = np.empty(size, np.uint32)
        free[: self._free_count] = self._free[: self._free_count]
        self._generations, self._free = generations, free


class TupleIds:
    """Random ids of tuples, never 0, drawn in bulk.

    seed: None takes the system's randomness. Numbers (say batch, component, task) give the same ids again: a
        task that Spark runs a second time must draw them, because others may already have seen the first
        ones. Different tasks need different numbers: equal ids within a tree cancel each other.
    bits: fewer make false zeros frequent enough to be measured.
    """

    def __init__(self, seed: int | Sequence[int] | None = None, *, bits: int = 64) -> None:
        if not 2 <= bits <= 64:
            raise ValueError(f"bits={bits} is not in 2 to 64")
        self._random = np.random.Generator(np.random.SFC64(seed))
        self._last = np.uint64(2**bits - 1)

    def draw(self, count: int) -> NDArray[np.uint64]:
        return self._random.integers(np.uint64(1), self._last, count, np.uint64, endpoint=True)


def fold(roots: ArrayLike, values: ArrayLike) -> tuple[Roots, Values]:
    """Return each root once, with the XOR of its values. Used for what one task sends, and again for what
    several tasks sent: XOR is associative and commutative, so nothing is lost."""
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
