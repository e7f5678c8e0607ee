"""Counts of the tuples sent and received on every edge. A difference fails the attempt.

Invariant: before the result of a phase is given out, both numbers are equal on each of its edges. Tuples sent
into the commit phase are compared in that phase. Parcels (`messages`) and tasks (`stage`) are checked on the
way. Tracked tuples are not compared (`task_answers`). What a DataFrame bolt reads counts as received where it
is sent, because Spark takes it in.

The nanoseconds of an edge are those outside of bolts. Only an edge to another stage has any: its senders
choose tasks and encode, its receivers fetch and decode. Clocks are read once for many tuples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from txstream.core.errors import ShortBatchError
from txstream.core.transaction import TransactionAttempt
from txstream.core.wording import counted


class EdgeName(NamedTuple):
    """A subscription: the component that reads, and the source and stream that it reads from."""

    component: str
    source: str
    stream: str


EdgeCount = Counter[EdgeName]


def counts_of(rows: Iterable[list[Any]]) -> EdgeCount:
    """Return counts from JSON: lists of an edge's three names and its count."""
    return Counter({EdgeName(*edge): count for *edge, count in rows})


def shared_out(nanoseconds: int, sizes: EdgeCount) -> EdgeCount:
    """Divide what several edges took together by their sizes, which are not 0. Each gets at least 1."""
    total = sizes.total()
    return Counter({edge: 1 + nanoseconds * size // total for edge, size in sizes.items()})


def require_delivered(attempt: TransactionAttempt, under_way: EdgeCount, later: Collection[str]) -> None:
    """Raise ShortBatchError when `under_way`, what was sent less what was received, is not 0 on some edge.
    `later` are the components that receive in a later phase; their edges are left out."""
    for edge, count in under_way.items():
        if count and edge.component not in later:
            raise ShortBatchError(
                f"{attempt}: {edge.component!r} got {counted(abs(count), 'tuple')} "
                f"{'less' if count > 0 else 'more'} "
                f"from stream {edge.stream!r} of {edge.source!r} than were sent to it"
            )
