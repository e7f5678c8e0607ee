"""The value rules of exactly-once, per key, as pure functions.

Invariants. A transactional row holds the effect of every batch up to and including its `txid`. An opaque row
also holds, in `prev`, the value from before its `txid`; `prev` is None exactly if this txid created the row.
A row is never written for a txid older than the one it carries.

The SQL in `txstream.state` says the same in statements. One test suite runs over both. Source: Storm
Trident's `OpaqueValue` and `TransactionalValue`, three branches: newer, same, behind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from txstream.core.errors import TxidRegressionError
from txstream.core.transaction import Txid

V = TypeVar("V")

Combine = Callable[[V, V], V]


class Semantics(StrEnum):
    """What a spout promises about replays, and what its state does about it."""

    TRANSACTIONAL = "transactional"
    OPAQUE = "opaque"
    NON_TRANSACTIONAL = "non-transactional"


@dataclass(frozen=True, slots=True)
class TransactionalValue(Generic[V]):
    """A value and the txid of the last batch in it. A replay holds the same tuples, so it is skipped."""

    value: V
    txid: Txid

    @classmethod
    def create(cls, delta: V, txid: Txid) -> TransactionalValue[V]:
        return cls(delta, txid)

    def update(self, delta: V, txid: Txid, combine: Combine[V]) -> TransactionalValue[V]:
        """Return this value with `delta` of batch `txid`. Raises TxidRegressionError for an older batch."""
        _refuse_regression(self.txid, txid)
        if txid == self.txid:
            return self
        return TransactionalValue(combine(self.value, delta), txid)


@dataclass(frozen=True, slots=True)
class OpaqueValue(Generic[V]):
    """A value, the value before its txid, and that txid. A replay may hold other tuples, so it starts again
    from `prev`. A `prev` of None means that this txid created the row."""

    value: V
    prev: V | None
    txid: Txid

    @classmethod
    def create(cls, delta: V, txid: Txid) -> OpaqueValue[V]:
        return cls(delta, None, txid)

    def update(self, delta: V, txid: Txid, combine: Combine[V]) -> OpaqueValue[V]:
        """Return this value with `delta` of batch `txid`. Raises TxidRegressionError for an older batch."""
        _refuse_regression(self.txid, txid)
        if txid == self.txid:
            value = delta if self.prev is None else combine(self.prev, delta)
            return OpaqueValue(value, self.prev, txid)
        return OpaqueValue(combine(self.value, delta), self.value, txid)

    def restore(self, txid: Txid) -> OpaqueValue[V] | None:
        """Return what is left when batch `txid` is undone: the value before it, or None if it created the
        row."""
        if self.txid != txid:
            return self
        return None if self.prev is None else OpaqueValue(self.prev, self.prev, self.txid)


def legal_state_semantics(spout: Semantics) -> tuple[Semantics, ...]:
    """Return the legal state semantics for a spout: those that keep its promise, its own first."""
    if spout is Semantics.TRANSACTIONAL:
        return (Semantics.TRANSACTIONAL, Semantics.OPAQUE)
    return (spout,)


def _refuse_regression(stored: Txid, txid: Txid) -> None:
    if stored > txid:
        raise TxidRegressionError(
            f"a row carries txid {stored}, newer than the batch being written, txid {txid}; "
            f"the table holds results of another run of this topology"
        )
