"""Which trees of tuples are pending, and which have ended: Storm's acker, over arrays.

For each root the ledger keeps `ack_val`, the XOR of all ids of tuples that were emitted and acked, and the
spout task that wants to know. A tree's place in the arrays is its root's slot.

Invariants. The first `init` of a root is answered once, as completed, failed or timed out, unless the slot
goes to a newer generation before that. An `ack_val` of zero means completion only once the init has come. A
failed root never completes, even if its init comes last. A message for a root that has ended, or for an older
generation of its slot, changes nothing. A call takes its messages in portions, and those of a portion count
as simultaneous: the newest generation of a slot wins, and only the XOR of them all is compared with zero.
Nothing here reads a clock: time passes with `rotate`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from txstream.plugins.tracked.acker.ids import (
    FIRST_GENERATION,
    Generations,
    Roots,
    Slots,
    Values,
    as_numbers,
    generations_of,
    larger_size,
    roots_of,
    slots_of,
)

Tasks: TypeAlias = NDArray[np.int32]
_Number = TypeVar("_Number", bound=np.generic)

DEFAULT_BUCKETS: Final = 3  # as in Storm

# The state of a slot: a flag, the number of its bucket (0 for none), and a negative sign if it failed. So a
# state above 0 takes acks, and 0 is an empty slot.
_STARTED: Final = np.int8(1)  # its init has come
_BUCKET_SHIFT: Final = np.int8(1)
_BUCKET_MASK: Final = np.int8(63)
_FAILED: Final = np.int8(-128)
_MOST_BUCKETS: Final = 63

# The slots of a portion of messages fit a core's cache, so that each slot is fetched from memory once.
_PORTION: Final = 8192


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """Roots of trees, and for each the spout task that emitted it."""

    roots: Roots
    tasks: Tasks

    def __len__(self) -> int:
        return len(self.roots)


NO_TREES: Final = Trees(np.empty(0, np.uint64), np.empty(0, np.int32))


class Ended(NamedTuple):
    """The trees that a call has ended, each once."""

    completed: Trees = NO_TREES
    failed: Trees = NO_TREES
    timed_out: Trees = NO_TREES


def together(answers: Sequence[Ended]) -> Ended:
    """Return several answers as one."""
    if len(answers) == 1:
        return answers[0]
    kinds = []
    for same in zip(*answers, strict=True):
        some = [trees for trees in same if len(trees)] or [NO_TREES]
        roots = np.concatenate([trees.roots for trees in some])
        kinds.append(Trees(roots, np.concatenate([trees.tasks for trees in some])))
    return Ended(*kinds)


class AckLedger:
    """The pending trees of one acker. Roots and values are arrays of 64-bit numbers, of equal length.

    buckets: a tree that is still pending at the `buckets`-th `rotate` after its first message has timed out.
        So rotate every `message_timeout / (buckets - 1)` seconds: no tree ends early, and none is late by
        more than one such step.
    """

    def __init__(self, *, buckets: int = DEFAULT_BUCKETS) -> None:
        if not 2 <= buckets <= _MOST_BUCKETS:
            raise ValueError(f"buckets={buckets} is not in 2 to {_MOST_BUCKETS}")
        self._buckets = buckets
        self._bucket = 1
        # By slot. The generation is the oldest that has not ended.
        self._generations: NDArray[np.uint32] = np.empty(0, np.uint32)
        self._states: NDArray[np.int8] = np.empty(0, np.int8)
        self._values: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._tasks: NDArray[np.int32] = np.empty(0, np.int32)
        self._places: NDArray[np.uint16] = np.empty(0, np.uint16)  # see `_once`

    # --- messages ------------------------------------------------------------------------------------------

    def init(self, roots: ArrayLike, values: ArrayLike, tasks: ArrayLike) -> Ended:
        """Begin the trees of tuples that a spout emitted. Each value is the XOR of the ids of a root's
        copies. One init of each root counts."""
        portions = _portions(as_numbers(roots), as_numbers(values), np.asarray(tasks, np.int32))
        return together([self._init(*portion) for portion in portions])

    def ack(self, roots: ArrayLike, values: ArrayLike) -> Ended:
        """Ack tuples. Each value is the XOR of a tuple's id and of the ids that were emitted anchored to it,
        or of several such values."""
        portions = _portions(as_numbers(roots), as_numbers(values))
        return together([self._ack(*portion) for portion in portions])

    def fail(self, roots: ArrayLike) -> Ended:
        """Fail these trees: a tuple of each has failed."""
        return together([self._fail(*portion) for portion in _portions(as_numbers(roots))])

    def _init(self, roots: Roots, values: Values, tasks: Tasks) -> Ended:
        slots, generations = self._read(roots)
        self._supersede(slots, generations)
        states = self._states.take(slots)
        places = np.flatnonzero((generations == self._generations.take(slots)) & (states & _STARTED == 0))
        places = places[self._once(slots[places])]
        if len(places) < len(slots):
            roots, slots, generations = roots[places], slots[places], generations[places]
            values, tasks, states = values[places], tasks[places], states[places]
        self._tasks[slots] = tasks
        self._states[slots] = np.where(states == 0, self._new_entry, states) | _STARTED
        values = values ^ self._values.take(slots)
        self._values[slots] = values
        failed = states < 0
        complete = (values == 0) & ~failed
        return Ended(
            completed=self._end(roots[complete], slots[complete], generations[complete]),
            failed=self._end(roots[failed], slots[failed], generations[failed]),
        )

    def _ack(self, roots: Roots, values: Values) -> Ended:
        slots, generations = self._read(roots)
        fits = (self._generations.take(slots) == generations) & (self._states.take(slots) > 0)
        if not fits.all():
            self._begin(slots[~fits], generations[~fits])
            fits = (self._generations.take(slots) == generations) & (self._states.take(slots) > 0)
            roots, slots, generations, values = roots[fits], slots[fits], generations[fits], values[fits]
        # `at` waits for memory at each number, `take` for many at a time: so `take` fetches them first.
        self._values.take(slots)
        np.bitwise_xor.at(self._values, slots, values)
        places = np.flatnonzero(self._values.take(slots) == 0)
        places = places[self._states.take(slots[places]) & _STARTED != 0]
        places = places[self._once(slots[places])]
        return Ended(completed=self._end(roots[places], slots[places], generations[places]))

    def _fail(self, roots: Roots) -> Ended:
        slots, generations = self._read(roots)
        self._supersede(slots, generations)
        places = np.flatnonzero(generations == self._generations.take(slots))
        places = places[self._once(slots[places])]
        roots, slots, generations = roots[places], slots[places], generations[places]
        states = self._states.take(slots)
        started = states & _STARTED != 0
        early = slots[~started]
        self._states[early] = np.where(states == 0, self._new_entry, states)[~started] | _FAILED
        self._values[early] = 0
        return Ended(failed=self._end(roots[started], slots[started], generations[started]))

    # --- time ----------------------------------------------------------------------------------------------

    def rotate(self) -> Ended:
        """Take one step of time: what began `buckets` rotations ago has timed out. Roots whose init has not
        come leave too, without being returned, since nobody knows their spout. If the init comes later, it is
        answered as failed."""
        self._bucket = self._bucket % self._buckets + 1
        slots = np.flatnonzero(_bucket_of(self._states) == self._bucket)
        started = self._states[slots] & _STARTED != 0
        early, late = slots[~started], slots[started]
        self._states[early] = _FAILED
        self._values[early] = 0
        generations = self._generations[late]
        return Ended(timed_out=self._end(roots_of(generations, late), late, generations))

    # --- what it holds -------------------------------------------------------------------------------------

    def ages(self) -> Sequence[int]:
        """Return how many roots have an entry, by the number of rotations since their first message."""
        counts = np.bincount(_bucket_of(self._states), minlength=self._buckets + 1)
        return [int(counts[(self._bucket - 1 - age) % self._buckets + 1]) for age in range(self._buckets)]

    def __len__(self) -> int:
        """How many roots have an entry."""
        return sum(self.ages())

    def ack_val(self, root: int) -> int | None:
        """Return the value of a root that has an entry and has not failed, otherwise None."""
        (slot,), (generation,) = self._read(as_numbers(root))
        known = self._generations[slot] == generation and self._states[slot] > 0
        return int(self._values[slot]) if known else None

    @property
    def nbytes(self) -> int:
        arrays = (self._generations, self._states, self._values, self._tasks, self._places)
        return sum(array.nbytes for array in arrays)

    # --- slots ---------------------------------------------------------------------------------------------

    @property
    def _new_entry(self) -> np.int8:
        return np.int8(self._bucket << _BUCKET_SHIFT)

    def _read(self, roots: Roots) -> tuple[Slots, Generations]:
        slots = slots_of(roots)
        needed = int(slots.max(initial=-1)) + 1
        if needed > len(self._states):
            self._grow(needed)
        return slots, generations_of(roots)

    def _once(self, slots: Slots) -> Slots:
        """Return one place for each slot: every place writes itself to its slot, and the last one stays."""
        places = np.arange(len(slots), dtype=np.uint16)
        self._places[slots] = places
        return np.flatnonzero(self._places.take(slots) == places)

    def _supersede(self, slots: Slots, generations: Generations) -> None:
        """Give slots to newer generations. The older tree's spout has ended it; otherwise it could not have
        given the slot away."""
        newer = generations > self._generations.take(slots)
        if newer.any():
            slots = slots[newer]
            np.maximum.at(self._generations, slots, generations[newer])
            self._values[slots] = 0
            self._states[slots] = 0

    def _begin(self, slots: Slots, generations: Generations) -> None:
        """Make entries for roots that have none: their init is yet to come."""
        self._supersede(slots, generations)
        fresh = (generations == self._generations[slots]) & (self._states[slots] == 0)
        self._states[slots[fresh]] = self._new_entry

    def _end(self, roots: Roots, slots: Slots, generations: Generations) -> Trees:
        self._generations[slots] = generations + np.uint32(1)
        self._values[slots] = 0
        self._states[slots] = 0
        return Trees(roots, self._tasks.take(slots))

    def _grow(self, needed: int) -> None:
        size = larger_size(len(self._states), needed)
        self._generations = _grown(self._generations, size, np.uint32(FIRST_GENERATION))
        self._states = _grown(self._states, size, np.int8(0))
        self._values = _grown(self._values, size, np.uint64(0))
        self._tasks = _grown(self._tasks, size, np.int32(0))
        self._places = _grown(self._places, size, np.uint16(0))


def _portions(*columns: NDArray[Any]) -> Iterator[tuple[NDArray[Any], ...]]:
    equal = [np.broadcast_to(column, columns[0].shape) for column in columns]
    for start in range(0, max(1, len(columns[0])), _PORTION):
        yield tuple(column[start : start + _PORTION] for column in equal)


def _bucket_of(states: NDArray[np.int8]) -> NDArray[np.int8]:
    return (states >> _BUCKET_SHIFT) & _BUCKET_MASK


def _grown(array: NDArray[_Number], size: int, new: _Number) -> NDArray[_Number]:
    larger = np.full(size, new, array.dtype)
    larger[: len(array)] = array
    return larger
