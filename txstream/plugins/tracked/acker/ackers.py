"""Several ackers share the trees by root, each with a ledger of its own.

The slots of an acker are renumbered, so that its arrays are as dense as the slots are. A root's slot alone
decides which acker has it. Consecutive slots go round the ackers from a scattered start, so that the load is
balanced even if one spout task has most of the pending trees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from txstream.plugins.tracked.acker.ids import Roots, Slots, as_numbers, generations_of, roots_of, slots_of
from txstream.plugins.tracked.acker.ledger import DEFAULT_BUCKETS, AckLedger, Ended, Trees, together

_SCATTER: Final = 0x9E3779B1  # Knuth's multiplicative hashing: 2**32 divided by the golden ratio


def _start(round_numbers: Slots, ackers: int) -> Slots:
    """Return the acker at which each round of `ackers` slots begins."""
    return ((round_numbers * _SCATTER) >> 16) % ackers


def acker_of(roots: ArrayLike, ackers: int) -> NDArray[np.intp]:
    """Return the number of the acker of each root, from 0."""
    rounds, within = np.divmod(slots_of(as_numbers(roots)), ackers)
    return (within + _start(rounds, ackers)) % ackers


def _own_roots(roots: Roots, ackers: int) -> Roots:
    """Return the roots as their acker's ledger knows them."""
    return roots_of(generations_of(roots), slots_of(roots) // ackers)


def _shared_roots(own: Roots, acker: int, ackers: int) -> Roots:
    rounds = slots_of(own)
    return roots_of(generations_of(own), rounds * ackers + (acker - _start(rounds, ackers)) % ackers)


class Ackers:
    """Several `AckLedger`s with the interface of one: each message goes to the ledger of its root.

    `lose(acker)` does what an acker's death does: its trees are forgotten, so the spout must time them out.
    """

    def __init__(self, ackers: int = 1, *, buckets: int = DEFAULT_BUCKETS) -> None:
        if ackers < 1:
            raise ValueError(f"ackers={ackers}: at least one keeps a ledger")
        self._buckets = buckets
        self.ledgers = [AckLedger(buckets=buckets) for _ in range(ackers)]

    def init(self, roots: ArrayLike, values: ArrayLike, tasks: ArrayLike) -> Ended:
        return self._share(AckLedger.init, roots, values, tasks)

    def ack(self, roots: ArrayLike, values: ArrayLike) -> Ended:
        return self._share(AckLedger.ack, roots, values)

    def fail(self, roots: ArrayLike) -> Ended:
        return self._share(AckLedger.fail, roots)

    def rotate(self) -> Ended:
        return self._together([ledger.rotate() for ledger in self.ledgers])

    def ages(self) -> Sequence[int]:
        return [sum(counts) for counts in zip(*(ledger.ages() for ledger in self.ledgers), strict=True)]

    def __len__(self) -> int:
        return sum(map(len, self.ledgers))

    @property
    def nbytes(self) -> int:
        return sum(ledger.nbytes for ledger in self.ledgers)

    def lose(self, acker: int) -> None:
        self.ledgers[acker] = AckLedger(buckets=self._buckets)

    def _share(self, call: Callable[..., Ended], roots: ArrayLike, *columns: ArrayLike) -> Ended:
        numbers, count = as_numbers(roots), len(self.ledgers)
        if count == 1:
            return call(self.ledgers[0], numbers, *columns)
        wide = [np.broadcast_to(as_numbers(column), numbers.shape) for column in columns]
        acker, own = acker_of(numbers, count), _own_roots(numbers, count)
        answers = []
        for number, ledger in enumerate(self.ledgers):
            mine = np.flatnonzero(acker == number)
            answers.append(call(ledger, own[mine], *(column[mine] for column in wide)))
        return self._together(answers)

    def _together(self, answers: Sequence[Ended]) -> Ended:
        count = len(answers)
        return together(
            [
                Ended(*(Trees(_shared_roots(trees.roots, number, count), trees.tasks) for trees in ended))
                for number, ended in enumerate(answers)
            ]
        )
