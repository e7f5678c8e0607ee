"""Types for the numbers of a batch: `Txid`, `AttemptId`, and the pair of them.

Invariants: txids are 1, 2, 3 ... without gaps. An attempt id is one 63-bit integer: the leader's epoch in the
high 31 bits, a sequence in the low 32. It only grows over a topology's whole life, so it serves as the
fencing token in every database.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from typing import NewType

Txid = NewType("Txid", int)
AttemptId = NewType("AttemptId", int)
Epoch = NewType("Epoch", int)

_SEQUENCE_BITS = 32
_MAX_SEQUENCE = (1 << _SEQUENCE_BITS) - 1
_MAX_EPOCH = (1 << 31) - 1

FIRST_TXID = Txid(1)


def attempt_id(epoch: int, sequence: int) -> AttemptId:
    """Return the attempt id of `sequence` under `epoch`.

    Raises OverflowError if the epoch does not fit 31 bits or the sequence 32.
    """
    if not 0 <= epoch <= _MAX_EPOCH:
        raise OverflowError(f"epoch {epoch} does not fit 31 bits")
    if not 0 <= sequence <= _MAX_SEQUENCE:
        raise OverflowError(f"attempt sequence {sequence} does not fit 32 bits")
    return AttemptId(epoch << _SEQUENCE_BITS | sequence)


def epoch_of(attempt: int) -> Epoch:
    """Return the epoch of the leader that made this attempt id."""
    return Epoch(attempt >> _SEQUENCE_BITS)


def sequence_of(attempt: int) -> int:
    """Return the number of this attempt among its leader's attempts."""
    return attempt & _MAX_SEQUENCE


@dataclass(frozen=True, slots=True, order=True)
class TransactionAttempt:
    """One try at a batch: Storm's first field of every transactional tuple."""

    txid: Txid
    attempt: AttemptId

    def __str__(self) -> str:
        return f"txid {self.txid} attempt {epoch_of(self.attempt)}.{sequence_of(self.attempt)}"


_in_hand: ContextVar[TransactionAttempt | Txid | None] = ContextVar("in_hand", default=None)


@contextmanager
def about(one: TransactionAttempt | Txid | None) -> Iterator[None]:
    """What this thread logs inside the block is about this attempt, or this txid if it has none yet."""
    token = _in_hand.set(one)
    try:
        yield
    finally:
        _in_hand.reset(token)


def concerning(one: TransactionAttempt | Txid | None) -> Context:
    """Return a context as the present one, in which what is logged is about this. Cheaper than `about`."""
    context = copy_context()
    context.run(_in_hand.set, one)
    return context


def in_hand() -> TransactionAttempt | Txid | None:
    """Return what this thread works on now, for the log; None where that is not one batch."""
    return _in_hand.get()


class AttemptSequence:
    """Hands out growing attempt ids under one epoch: those after `after`, at which a new leader's fences are;
    by default they are at (epoch, 0)."""

    def __init__(self, epoch: Epoch, after: AttemptId | None = None) -> None:
        self.epoch = epoch
        self._sequence = 0 if after is None else sequence_of(after)

    def next(self) -> AttemptId:
        self._sequence += 1
        return attempt_id(self.epoch, self._sequence)
