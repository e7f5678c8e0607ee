"""Which trees of tuples are pending, and which have ended: Storm's acker, over arrays.

For each root the ledger keeps `ack_val`, the XOR of all ids of tuples that were emitted and acked, and the
task of the spout that wants to know. A tree's place in the arrays is its root's slot.

Invariants. The first `init` of a root is answered once, as completed, failed or timed out, unless the slot
was given to a newer generation before. Zero is completion only once the init has come. A root that failed is
never completed, also when its init comes last. A message for a root that has ended, or for an older
generation of a slot, changes nothing. The messages of one call count as simultaneous: the newest generation
of a slot in them wins, and only the XOR of all of them is compared with zero. Nothing here reads a clock:
`rotate` is time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from txstream.acker.ids import (
    FIRST_GENERATION,
    Generations,
    Roots,
    Slots,
    as_numbers,
    generations_of,
    roots_of,
    slots_of,
)

Tasks: TypeAlias = NDArray[np.int32]
_Number = TypeVar("_Number", bound=np.generic)

DEFAULT_BUCKETS: Final = 3  # as in Storm

# The byte of state of a slot: two flags, and above them the number of the bucket, 0 for none.
_STARTED: Final = np.uint8(1)  # its init has come
_FAILED: Final = np.uint8(2)
_FLAGS: Final = np.uint8(3)
_BUCKET_SHIFT: Final = np.uint8(2)
_MOST_BUCKETS: Final = 63

_NOBODY: Final = np.uint32(2**32 - 1)  # no generation is as high


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """Roots of trees, and for each the task of the spout that emitted it."""

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
        # By slot. `_live` is the generation whose messages are taken as they come: it has an entry and has
        # not failed. `_least` is the oldest generation that has not ended.
        self._live: NDArray[np.uint32] = np.empty(0, np.uint32)
        self._least: NDArray[np.uint32] = np.empty(0, np.uint32)
        self._values: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._state: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._tasks: NDArray[np.int32] = np.empty(0, np.int32)

    # --- messages ------------------------------------------------------------------------------------------

    def init(self, roots: ArrayLike, values: ArrayLike, tasks: ArrayLike) -> Ended:
        """A spout emitted tuples; each value is the XOR of the ids of a root's copies. One init of each root
        counts."""
        numbers, slots, generations = self._read(roots)
        self._supersede(slots, generations)
        fits = (generations == self._least[slots]) & (self._state[slots] & _STARTED == 0)
        places = np.flatnonzero(fits)
        # Of several inits of a root in this call one stays: whichever was written last.
        self._tasks[slots[places]] = places
        places = places[self._tasks[slots[places]] == places]
        numbers, slots, generations = numbers[places], slots[places], generations[places]
        self._tasks[slots] = np.broadcast_to(np.asarray(tasks, np.int32), fits.shape)[places]
        state = self._state[slots]
        failed = state & _FAILED != 0
        state[state == 0] = self._bucket << _BUCKET_SHIFT
        self._state[slots] = state | _STARTED
        self._live[slots] = generations
        self._values[slots] ^= as_numbers(values)[places]
        complete = (self._values[slots] == 0) & ~failed
        return Ended(
            completed=self._end(numbers[complete], slots[complete]),
            failed=self._end(numbers[failed], slots[failed]),
        )

    def ack(self, roots: ArrayLike, values: ArrayLike) -> Ended:
        """Tuples were acked; each value is the XOR of a tuple's id and of the ids that were emitted anchored
        to it, or of several such values."""
        numbers, slots, generations = self._read(roots)
        value_numbers = as_numbers(values)
        live = self._live[slots] == generations
        if not live.all():
            self._begin(slots[~live], generations[~live])
            places = np.flatnonzero(self._live[slots] == generations)
            numbers, slots, value_numbers = numbers[places], slots[places], value_numbers[places]
        np.bitwise_xor.at(self._values, slots, value_numbers)
        places = np.flatnonzero(self._values[slots] == 0)
        places = places[self._state[slots[places]] & _STARTED != 0]
        _, firsts = np.unique(slots[places], return_index=True)
        places = places[firsts]
        return Ended(completed=self._end(numbers[places], slots[places]))

    def fail(self, roots: ArrayLike) -> Ended:
        """A tuple of each of these trees failed."""
        numbers, slots, generations = self._read(roots)
        self._supersede(slots, generations)
        places = np.flatnonzero(generations == self._least[slots])
        _, firsts = np.unique(slots[places], return_index=True)
        places = places[firsts]
        numbers, slots = numbers[places], slots[places]
        state = self._state[slots]
        started = state & _STARTED != 0
        early = slots[~started]
        fresh = early[state[~started] == 0]
        self._state[fresh] = self._bucket << _BUCKET_SHIFT
        self._refuse(early)
        return Ended(failed=self._end(numbers[started], slots[started]))

    def reset_timeout(self, roots: ArrayLike) -> Ended:
        """These trees' time begins anew. Ends nothing. A root without an entry is ignored: its time has not
        begun."""
        _, slots, generations = self._read(roots)
        slots = slots[generations == self._least[slots]]
        slots = slots[self._state[slots] >> _BUCKET_SHIFT != 0]
        self._state[slots] = (self._state[slots] & _FLAGS) | (self._bucket << _BUCKET_SHIFT)
        return Ended()

    # --- time ----------------------------------------------------------------------------------------------

    def rotate(self) -> Ended:
        """One step of time: what began `buckets` rotations ago has timed out. Roots whose init has not come
        leave as well, unannounced, since nobody knows their spout. If it comes later, it is answered as
        failed."""
        self._bucket = self._bucket % self._buckets + 1
        slots = np.flatnonzero(self._state >> _BUCKET_SHIFT == self._bucket)
        started = self._state[slots] & _STARTED != 0
        early, late = slots[~started], slots[started]
        self._refuse(early)
        self._state[early] = _FAILED
        return Ended(timed_out=self._end(roots_of(self._least[late], late), late))

    # --- what it holds -------------------------------------------------------------------------------------

    def ages(self) -> Sequence[int]:
        """How many roots have an entry, by the number of rotations since their first message."""
        counts = np.bincount(self._state >> _BUCKET_SHIFT, minlength=self._buckets + 1)
        return [int(counts[(self._bucket - 1 - age) % self._buckets + 1]) for age in range(self._buckets)]

    def __len__(self) -> int:
        """How many roots have an entry."""
        return sum(self.ages())

    def ack_val(self, root: int) -> int | None:
        """The value of a root that has an entry and has not failed."""
        _, slots, generations = self._read(root)
        return int(self._values[slots[0]]) if self._live[slots[0]] == generations[0] else None

    @property
    def nbytes(self) -> int:
        return sum(
            array.nbytes for array in (self._live, self._least, self._values, self._state, self._tasks)
        )

    # --- slots ---------------------------------------------------------------------------------------------

    def _read(self, roots: ArrayLike) -> tuple[Roots, Slots, Generations]:
        numbers = as_numbers(roots)
        slots = slots_of(numbers)
        needed = int(slots.max(initial=-1)) + 1
        if needed > len(self._state):
            self._grow(needed)
        return numbers, slots, generations_of(numbers)

    def _supersede(self, slots: Slots, generations: Generations) -> None:
        """Give slots to newer generations. The older tree's spout has ended it, or it could not have given
        the slot away."""
        newer = generations > self._least[slots]
        if newer.any():
            slots = slots[newer]
            np.maximum.at(self._least, slots, generations[newer])
            self._values[slots] = 0
            self._state[slots] = 0
            self._live[slots] = _NOBODY

    def _begin(self, slots: Slots, generations: Generations) -> None:
        """Entries for roots that have none: their init is yet to come."""
        self._supersede(slots, generations)
        fresh = (generations == self._least[slots]) & (self._state[slots] == 0)
        self._state[slots[fresh]] = self._bucket << _BUCKET_SHIFT
        self._live[slots[fresh]] = generations[fresh]

    def _refuse(self, slots: Slots) -> None:
        """These roots cannot be completed any more."""
        self._state[slots] |= _FAILED
        self._live[slots] = _NOBODY
        self._values[slots] = 0

    def _end(self, roots: Roots, slots: Slots) -> Trees:
        self._least[slots] += np.uint32(1)
        self._live[slots] = _NOBODY
        self._values[slots] = 0
        self._state[slots] = 0
        return Trees(roots, self._tasks[slots])

    def _grow(self, needed: int) -> None:
        size = max(1024, needed, 2 * len(self._state))
        self._live = _grown(self._live, size, _NOBODY)
        self._least = _grown(self._least, size, np.uint32(FIRST_GENERATION))
        self._values = _grown(self._values, size, np.uint64(0))
        self._state = _grown(self._state, size, np.uint8(0))
        self._tasks = _grown(self._tasks, size, np.int32(0))


def _grown(array: NDArray[_Number], size: int, new: _Number) -> NDArray[_Number]:
    larger = np.full(size, new, array.dtype)
    larger[: len(array)] = array
    return larger
