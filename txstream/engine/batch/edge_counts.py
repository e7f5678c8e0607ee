"""Tuples are counted on every edge, as sent and as received: a difference fails the attempt.

Invariant: both numbers are equal on every edge of a phase before its result is given out; tuples sent
into the commit phase are compared there. Parcels (`messages`) and tasks (`stage`) are checked on the way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from txstream.api.errors import ShortBatchError
from txstream.transaction import TransactionAttempt


class EdgeName(NamedTuple):
    """A subscription: whose, and to which stream of what."""

    component: str
    source: str
    stream: str


EdgeCount = Counter[EdgeName]


def counts_of(rows: Iterable[list[Any]]) -> EdgeCount:
    """From JSON: lists of an edge's three names and its count."""
    return Counter({EdgeName(*edge): count for *edge, count in rows})


def require_delivered(attempt: TransactionAttempt, under_way: EdgeCount, later: Collection[str]) -> None:
    """Raises ShortBatchError when an edge has a count left: sent, less received. `later` are components
    that receive in a later phase."""
    for edge, count in under_way.items():
        if count and edge.component not in later:
            raise ShortBatchError(
                f"{attempt}: {edge.component!r} got {abs(count)} tuples {'less' if count > 0 else 'more'} "
                f"from stream {edge.stream!r} of {edge.source!r} than were sent to it"
            )
